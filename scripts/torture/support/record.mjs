// A recording server and its client in one process: node record.mjs EPISODES FILE... Plays the
// episodes that a file does not have yet, two turns each, one after another, and prints a line "ack
// NAME" when the server has sent the answer to an episode's reward. Then prints, per file, {"done": true} or
// {"code", "message"}, with its seconds, the process's CPU time when the server was ready and at the
// end, and its largest memory so far. FILE=FAULT sets a fault of fault-shim.c.
import { existsSync, writeSync } from "node:fs";
import { readEpisodeRecords } from "../../../dist/episodes/records.js";
import { Learner } from "../../../dist/index.js";
import { serve } from "../../../dist/serving.js";
import { onAcknowledged } from "./acknowledged.mjs";
import { cpuSeconds, underFault } from "./in-process.mjs";

const [episodes, ...targets] = process.argv.slice(2);
const print = (line) => writeSync(1, `${line}\n`);

onAcknowledged(print);

class Refused extends Error {}

async function post(url, body, headers = {}) {
  const reply = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  const answer = await reply.json();
  if (!reply.ok) throw new Refused(answer.error?.message ?? JSON.stringify(answer));
  return answer;
}

async function play(url, name, number) {
  const messages = [{ role: "user", content: `Errand ${number}` }];
  for (let turn = 0; turn < 2; turn++) {
    const answer = await post(
      `${url}/v1/chat/completions`,
      { model: "m", messages, max_tokens: 6, temperature: 1, seed: number * 2 + turn },
      { "x-episode-id": name },
    );
    messages.push(answer.choices[0].message, { role: "user", content: `Turn ${turn}` });
  }
  const acknowledge = { "x-acknowledge": `ack ${name}` };
  const reward = () => post(`${url}/v1/episodes/${name}/reward`, { reward: (number % 3) / 2 }, acknowledge);
  // A refused reward was not added, and may be sent again.
  await reward().catch(reward);
}

async function record(file) {
  let server;
  let learner;
  let result = { done: true };
  let ready;
  try {
    const had = existsSync(file) ? new Set([...readEpisodeRecords(file)].map(({ task }) => task)) : new Set();
    learner = await Learner.load("errands-base", { dtype: "float32", threads: 1, seed: 7 });
    server = await serve({ learner, name: "m", port: 0, record: file });
    ready = cpuSeconds();
    for (let number = 0; number < Number(episodes); number++) {
      const name = `episode-${number}`;
      if (had.has(name)) continue;
      await play(server.url, name, number);
    }
  } catch (error) {
    const message = String(error?.message ?? error);
    result = { code: error?.code, message, refused: error instanceof Refused };
  }
  await server?.close(0).catch(() => undefined);
  await learner?.dispose();
  const cpu = cpuSeconds();
  return { ...result, ready: ready ?? cpu, cpu };
}

for (const target of targets) {
  const began = performance.now();
  const result = await record(underFault(target).path);
  const seconds = (performance.now() - began) / 1000;
  print(JSON.stringify({ ...result, seconds, megabytes: process.resourceUsage().maxRSS / 1024 }));
}
