// A server that trains, and its client, in one process: node served.mjs RUN PLAN. The plan is JSON:
//   method        nlac, rft or sft
//   episodes      names up to episode-(episodes - 1) are played
//   kept          the last of these whose number leaves a remainder of 3 by 4 stay open, among so many
//   said          the answers that the long episode got in earlier lives
//   acknowledged  the requests that were acknowledged in earlier lives
//   finish        ends all episodes, and waits until all training is done
// An episode has one or two turns, a reward and a correction of the first one, and a last reward. The
// long episode gets some turns in each life, each with a reward. Every reward has a key, so that it
// counts once, however often it is sent. Prints
//   ready SECONDS    the server listens; CPU time so far
//   said JSON        an answer of the long episode
//   turn NAME KEY, correction NAME, end NAME      an acknowledged request
//   {"done": true, "cpu": SECONDS} or {"code", "message"}         at the end
// A refused request is sent once more, as after a full disk.
import { existsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { readEpisodeRecords } from "../../../dist/episodes/records.js";
import { readRecords } from "../../../dist/files/records.js";
import { serveAndTrain } from "../../../dist/serving.js";
import { cpuSeconds } from "./in-process.mjs";

const run = process.argv[2];
const { method, episodes, kept, said, acknowledged, finish } = JSON.parse(process.argv[3]);
const acked = new Set(acknowledged);
const print = (line) => writeSync(1, `${line}\n`);
const acknowledge = (line) => {
  acked.add(line);
  print(line);
};

class Refused extends Error {
  constructor({ message, code }) {
    super(message);
    this.code = code;
  }
}

/** What was acknowledged is not there. */
class Lost extends Error {}

async function post(path, body, name, key) {
  const reply = await fetch(`${server.url}/v1${path}`, {
    method: "POST",
    headers: {
      ...{ "content-type": "application/json", "x-episode-id": name },
      ...(key !== undefined && { "idempotency-key": key }),
    },
    body: JSON.stringify(body),
  });
  const answer = await reply.json();
  if (!reply.ok) throw new Refused(answer.error);
  return answer;
}

const twice = (request) => request().catch(request);
const user = (content) => ({ role: "user", content });

async function ask(name, messages, seed) {
  const asked = { model: "m", messages, max_tokens: 6, temperature: 1, seed };
  return (await post("/chat/completions", asked, name)).choices[0].message;
}

async function reward(name, key, body) {
  if (acked.has(`turn ${name} ${key}`)) return;
  await twice(() => post(`/episodes/${name}/reward`, body, name, `${name} ${key}`));
  acknowledge(`turn ${name} ${key}`);
}

const isKnown = (name) => [...acked].some((line) => line.split(" ")[1] === name);

/** Plays an episode, or ends one that an earlier life has left. */
async function play(name, number, end) {
  const messages = [user(`Errand ${number}`)];
  try {
    await reward(name, 0, { reward: 0.5, turn: 0 });
  } catch (error) {
    if (error.code !== "episode_not_found") throw error;
    if (isKnown(name)) throw new Lost(`${name} was acknowledged, and is not found`);
    messages.push(await ask(name, messages, 2 * number));
    await reward(name, 0, { reward: 0.5, turn: 0 });
  }
  if (!acked.has(`correction ${name}`)) {
    await twice(() => post(`/episodes/${name}/corrections`, { turn: 0, content: name }, name));
    acknowledge(`correction ${name}`);
  }
  if (messages.length > 1) await ask(name, [...messages, user("And then?")], 2 * number + 1);
  if (!end) return;
  await twice(() => post(`/episodes/${name}/reward`, { reward: 1 }, name, `${name} end`));
  acknowledge(`end ${name}`);
}

/** Turns of the long episode that fit into the model's context of 256 tokens. */
const mostTurns = 14;

/** Continues the long episode by some turns. */
async function continueLong(turns) {
  const answers = [...said];
  const asked = () => answers.flatMap((answer, i) => [user(`Question ${i}`), answer]);
  for (let turn = 0; turn < turns && answers.length < mostTurns; turn++) {
    // The reward of a turn that an earlier life was answered, but not rewarded for.
    const last = answers.length - 1;
    if (last >= 0) await reward("long", last, { reward: 0.25, turn: last });
    const messages = [...asked(), user(`Question ${answers.length}`)];
    answers.push(await ask("long", messages, 1000 + answers.length));
    print(`said ${JSON.stringify(answers.at(-1))}`);
  }
  const last = answers.length - 1;
  await reward("long", last, { reward: 0.25, turn: last });
}

const training = {
  nlac: {
    ...{ episodesPerIteration: 2, updatesPerIteration: 1, batchSize: 1, targetRate: 0.02 },
    ...{ criticLearningRate: 1e-4, policyLearningRate: 1e-4, maxCriticTokens: 16 },
  },
  rft: { episodesPerIteration: 2, updatesPerIteration: 1, batchSize: 1, successReward: 0 },
  sft: { epochs: 1, batchSize: 2, learningRate: 1e-4 },
}[method];

const recipe = {
  name: "served",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  run: { checkpointSeconds: 0 },
  algorithm: method,
  config: { ...training, maxPromptTokens: 256, maxActionTokens: 8 },
};

function recorded() {
  const file = join(run, "episodes.jsonl");
  return existsSync(file) ? [...readEpisodeRecords(file)].map(({ task }) => task) : [];
}

/** Whether every correction was imitated, and the updates of every full iteration were taken. */
async function isTrained() {
  const status = await (await fetch(`${server.url}/v1/training`)).json();
  if (status.failure !== null) throw new Error(status.failure);
  if (status.corrections_waiting > 0) return false;
  if (method === "sft") return true;
  let [known, updates] = [0, 0];
  for (const { values } of readRecords(join(run, "metrics.jsonl"))) {
    if ("time/update" in values || "target/distance" in values) updates++;
    if (values.episodes !== undefined) [known, updates] = [values.episodes, 0];
  }
  const { episodesPerIteration, updatesPerIteration } = recipe.config;
  return recorded().length - known < episodesPerIteration && updates >= updatesPerIteration;
}

let server;
let result = { done: true };
try {
  const options = method === "sft" ? {} : { corrections: { epochs: 1 } };
  server = await serveAndTrain({ recipe, directory: run, name: "m", port: 0, ...options });
  print(`ready ${cpuSeconds()}`);
  const ended = new Set(recorded());
  for (let number = 0; number < episodes; number++) {
    const name = `episode-${number}`;
    if (ended.has(name)) continue;
    const stays = !finish && number % 4 === 3 && number >= episodes - kept;
    await play(name, number, !stays);
  }
  if (!ended.has("long")) await continueLong(1);
  if (finish && !ended.has("long")) {
    await twice(() => post("/episodes/long/reward", { reward: 1 }, "long", "long end"));
    acknowledge("end long");
  }
  while (finish && !(await isTrained())) await new Promise((done) => setTimeout(done, 20));
} catch (error) {
  result = {
    ...{ code: error?.code, message: String(error?.message ?? error) },
    ...{ refused: error instanceof Refused, lost: error instanceof Lost },
  };
}
await server?.close(0).catch(() => undefined);
print(JSON.stringify({ ...result, cpu: cpuSeconds() }));
