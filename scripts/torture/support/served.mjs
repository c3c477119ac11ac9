// A server that trains, and its client, in one process: node served.mjs RUN EPISODES. Continues the
// run: ends the open episodes, plays the missing ones, and trains on all. Prints a line for every
// request that the server has acknowledged:
//   turn NAME        half a reward for the episode's first turn
//   correction NAME  a better answer for it
//   end NAME         the last reward of the episode
// Then prints {"done": true} or {"code", "message"}. A refused request is sent once more.
import { existsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { readEpisodeRecords } from "../../../dist/episodes/records.js";
import { readRecords } from "../../../dist/files/records.js";
import { serveAndTrain } from "../../../dist/index.js";

const [run, episodes] = process.argv.slice(2);
const print = (line) => writeSync(1, `${line}\n`);

class Refused extends Error {
  constructor({ message, code }) {
    super(message);
    this.code = code;
  }
}

async function post(path, body, name) {
  const headers = { "content-type": "application/json", "x-episode-id": name };
  const reply = await fetch(`${server.url}/v1${path}`, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
  });
  const answer = await reply.json();
  if (!reply.ok) throw new Refused(answer.error);
  return answer;
}

const twice = (request) => request().catch(request);

async function play(name, number) {
  const messages = [{ role: "user", content: `Errand ${number}` }];
  for (let turn = 0; turn < 2; turn++) {
    const asked = { model: "m", messages, max_tokens: 6, temperature: 1, seed: number * 2 + turn };
    const answer = await post("/chat/completions", asked, name);
    messages.push(answer.choices[0].message, { role: "user", content: `Turn ${turn}` });
    if (turn > 0) continue;
    await twice(() => post(`/episodes/${name}/reward`, { reward: 0.5, turn: 0 }, name));
    print(`turn ${name}`);
    await twice(() => post(`/episodes/${name}/corrections`, { turn: 0, content: "nothing" }, name));
    print(`correction ${name}`);
  }
}

const recipe = {
  name: "served",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  run: { checkpointSeconds: 0 },
  config: {
    ...{ episodesPerIteration: 2, updatesPerIteration: 1, batchSize: 1, targetRate: 0.02 },
    ...{ criticLearningRate: 1e-4, policyLearningRate: 1e-4 },
    ...{ maxPromptTokens: 256, maxActionTokens: 8, maxCriticTokens: 16 },
  },
};

/**
 * Whether too few episodes are left for another iteration, and the last one's updates were taken.
 */
function isTrained() {
  let [known, updates] = [0, 0];
  for (const { values } of readRecords(join(run, "metrics.jsonl"))) {
    if ("target/distance" in values) updates++;
    if (values.episodes !== undefined) [known, updates] = [values.episodes, 0];
  }
  const { episodesPerIteration, updatesPerIteration } = recipe.config;
  return Number(episodes) - known < episodesPerIteration && updates >= updatesPerIteration;
}

let server;
let result = { done: true };
try {
  server = await serveAndTrain({ recipe, directory: run, name: "m", port: 0, corrections: { epochs: 1 } });
  const file = join(run, "episodes.jsonl");
  const recorded = () => (existsSync(file) ? [...readEpisodeRecords(file)].map(({ task }) => task) : []);
  for (let number = 0; number < Number(episodes); number++) {
    const name = `episode-${number}`;
    if (recorded().includes(name)) continue;
    // An episode that was left open is ended; one that was lost is played.
    const left = await post(`/episodes/${name}/reward`, { reward: 1 }, name).catch((error) => error);
    if (left.code === "episode_not_found") {
      await play(name, number);
      await twice(() => post(`/episodes/${name}/reward`, { reward: 1 }, name));
    } else if (left instanceof Error && !recorded().includes(name)) throw left;
    print(`end ${name}`);
  }
  while (!isTrained()) await new Promise((done) => setTimeout(done, 50));
} catch (error) {
  result = { code: error?.code, message: String(error?.message ?? error), refused: error instanceof Refused };
}
await server?.close(0).catch(() => undefined);
print(JSON.stringify(result));
