// A server that trains, and its client, in one process: node served.mjs (RUN PLAN)... Several runs are
// served one after another. A plan is JSON:
//   method        nlac, rft or sft
//   episodes      names up to episode-(episodes - 1) are played; 0: the server is only started
//   kept          the last of these whose number leaves a remainder of 3 by 4 stay open, among so many
//   said, acknowledged, requested      see served-history.mjs, of earlier processes
//   finish        ends all episodes, and waits until all training is done
// An episode has one or two turns, a reward and a correction of the first one, and a last reward. Some
// are deleted, before or after their end. The long episode gets some turns in each life, each with a
// reward. Every reward and correction has a key, so that it counts once, however often it is sent:
// those that were acknowledged are sent again at the start, and must be answered again. A life that
// finds an earlier version restores it. Prints
//   ready SECONDS    the server listens; CPU time so far
//   said JSON        an answer of the long episode
//   deleting NAME, rolling VERSION      before the request
//   turn NAME KEY, correction NAME, end NAME, delete NAME, rollback VERSION      when the server has
//                    sent its answer
//   {"done": true, "cpu": SECONDS} or {"code", "message"}         at the end of each run
// A refused request is sent once more, as after a full disk.
import { existsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { readEpisodeRecords } from "../../../dist/episodes/records.js";
import { readRecords } from "../../../dist/files/records.js";
import { serveAndTrain } from "../../../dist/serving.js";
import { onAcknowledged } from "./acknowledged.mjs";
import { cpuSeconds } from "./in-process.mjs";
import { tinyModel } from "./tiny-model.mjs";

const print = (line) => writeSync(1, `${line}\n`);
onAcknowledged(print);

class Refused extends Error {
  constructor({ message, code }) {
    super(message);
    this.code = code;
  }
}

/** What was acknowledged is not there. */
class Lost extends Error {}

const user = (content) => ({ role: "user", content });
/** Turns of the long episode. */
const mostTurns = 14;
/** Episodes that are deleted after their end, and while they are open. */
const deletedLate = (number) => number % 5 === 4;
const deletedEarly = (number) => number % 8 === 1;

const training = {
  nlac: {
    ...{ episodesPerIteration: 2, updatesPerIteration: 1, batchSize: 1, targetRate: 0.02 },
    ...{ criticLearningRate: 1e-4, policyLearningRate: 1e-4, maxCriticTokens: 16 },
  },
  rft: { episodesPerIteration: 2, updatesPerIteration: 1, batchSize: 1, successReward: 0 },
  sft: { epochs: 1, batchSize: 2, learningRate: 1e-4 },
};

const recipeOf = (method) => ({
  name: "served",
  model: tinyModel,
  learner: { dtype: "float32" },
  environment: { name: "recorded" },
  run: { checkpointSeconds: 0 },
  algorithm: method,
  config: { ...training[method], maxPromptTokens: 256, maxActionTokens: 8 },
});

/** The client of one server. */
class Client {
  constructor(server, run, { method, said, acknowledged, requested }) {
    Object.assign(this, { server, run, method, said, requested, acked: new Set(acknowledged) });
  }

  /** Sends a request. `line` says that it was acknowledged. */
  async send(httpMethod, path, body, { episode, key, line } = {}) {
    const reply = await fetch(`${this.server.url}/v1${path}`, {
      method: httpMethod,
      headers: {
        "content-type": "application/json",
        ...(episode !== undefined && { "x-episode-id": episode }),
        ...(key !== undefined && { "idempotency-key": key }),
        ...(line !== undefined && { "x-acknowledge": line }),
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const answer = await reply.json();
    if (!reply.ok) throw new Refused(answer.error);
    if (line !== undefined) this.acked.add(line);
    return answer;
  }

  async ask(episode, messages, seed) {
    const body = { model: "m", messages, max_tokens: 6, temperature: 1, seed };
    return (await this.send("POST", "/chat/completions", body, { episode })).choices[0].message;
  }

  /** Sends the request that `line` acknowledges, with its key. */
  async tell(line) {
    const [what, name, turn] = line.split(" ");
    const path = `/episodes/${name}/${what === "correction" ? "corrections" : "reward"}`;
    const amount = name === "long" ? 0.25 : 0.5;
    const body = {
      turn: { reward: amount, turn: Number(turn) },
      end: { reward: 1 },
      correction: { turn: 0, content: name },
    }[what];
    const send = () => this.send("POST", path, body, { key: line, line });
    await send().catch(send);
  }

  async tellOnce(line) {
    if (!this.acked.has(line)) await this.tell(line);
  }

  /** Whether an episode was known, and its deletion not requested. */
  isKept(name) {
    const isKnown = [...this.acked].some((line) => line.split(" ")[1] === name);
    return isKnown && !this.requested.includes(`deleting ${name}`);
  }

  /** Sends everything again that was acknowledged. */
  async repeat() {
    for (const line of [...this.acked]) {
      const [what, name] = line.split(" ");
      if (!["turn", "correction", "end"].includes(what) || !this.isKept(name)) continue;
      await this.tell(line).catch((error) => {
        throw new Lost(`${line} was acknowledged, and is now refused: ${error.message}`);
      });
    }
  }

  /** Plays an episode, or ends one that an earlier life has left. */
  async play(name, number, end) {
    const messages = [user(`Errand ${number}`)];
    try {
      await this.tellOnce(`turn ${name} 0`);
    } catch (error) {
      if (error.code !== "episode_not_found") throw error;
      if (this.isKept(name)) throw new Lost(`${name} was acknowledged, and is not found`);
      messages.push(await this.ask(name, messages, 2 * number));
      await this.tell(`turn ${name} 0`);
    }
    await this.tellOnce(`correction ${name}`);
    if (messages.length > 1) await this.ask(name, [...messages, user("And then?")], 2 * number + 1);
    if (end) await this.tellOnce(`end ${name}`);
  }

  /** Deletes an episode; it may be deleted already if that was requested before. */
  async remove(name) {
    const again = this.requested.includes(`deleting ${name}`);
    this.requested.push(`deleting ${name}`);
    print(`deleting ${name}`);
    const line = `delete ${name}`;
    const send = () => this.send("DELETE", `/episodes/${name}`, undefined, { line });
    try {
      await send().catch((error) => (error.code === "episode_not_found" ? Promise.reject(error) : send()));
    } catch (error) {
      if (!again || error.code !== "episode_not_found") throw error;
      this.acked.add(line);
      print(line);
    }
  }

  /** Continues the long episode by a turn. */
  async continueLong() {
    const answers = this.said;
    // The reward of a turn that an earlier life was answered, but not rewarded for.
    if (answers.length > 0) await this.tellOnce(`turn long ${answers.length - 1}`);
    if (answers.length === mostTurns) return;
    const asked = answers.flatMap((answer, i) => [user(`Question ${i}`), answer]);
    const question = user(`Question ${answers.length}`);
    answers.push(await this.ask("long", [...asked, question], 1000 + answers.length));
    print(`said ${JSON.stringify(answers.at(-1))}`);
    await this.tellOnce(`turn long ${answers.length - 1}`);
  }

  /** Restores the version before the last one, if there is one. */
  async rollBack() {
    const { data } = await this.send("GET", "/versions");
    if (data.length < 2) return;
    const { id } = data[1];
    print(`rolling ${id}`);
    const send = () => this.send("POST", `/versions/${id}/rollback`, undefined, { line: `rollback ${id}` });
    // The version may not be kept any more.
    await send().catch((error) => (error.code === "version_not_found" ? undefined : send()));
  }

  recorded() {
    const file = join(this.run, "episodes.jsonl");
    return existsSync(file) ? [...readEpisodeRecords(file)].map(({ task }) => task) : [];
  }

  /**
   * Whether every correction was imitated, the updates of every full iteration were taken, and no
   * version has to be restored.
   */
  async isTrained() {
    const status = await this.send("GET", "/training");
    if (status.failure !== null) throw new Error(status.failure);
    if (status.corrections_waiting > 0 || existsSync(join(this.run, "rollback.json"))) return false;
    if (this.method === "sft") return true;
    let [known, updates] = [0, 0];
    for (const { values } of readRecords(join(this.run, "metrics.jsonl"))) {
      if ("time/update" in values || "target/distance" in values) updates++;
      if (values.episodes !== undefined) [known, updates] = [values.episodes, 0];
    }
    const { episodesPerIteration, updatesPerIteration } = training[this.method];
    return this.recorded().length - known < episodesPerIteration && updates >= updatesPerIteration;
  }

  async follow({ episodes, kept, finish }) {
    if (episodes === 0) return;
    await this.repeat();
    const ended = new Set(this.recorded());
    for (let number = 0; number < episodes; number++) {
      const name = `episode-${number}`;
      if (this.acked.has(`delete ${name}`)) continue;
      const isDeleted = this.requested.includes(`deleting ${name}`);
      const stays = !finish && number % 4 === 3 && number >= episodes - kept;
      const early = deletedEarly(number);
      if (!isDeleted && !ended.has(name)) await this.play(name, number, !stays && !early);
      if (early || (deletedLate(number) && !stays)) await this.remove(name);
    }
    if (!ended.has("long")) await this.continueLong();
    if (finish) await this.tellOnce("end long");
    else await this.rollBack();
    while (finish && !(await this.isTrained())) await new Promise((done) => setTimeout(done, 20));
  }
}

async function serveOne(run, plan) {
  let server;
  let result = { done: true };
  const began = performance.now();
  try {
    const options = plan.method === "sft" ? {} : { corrections: { epochs: 1 } };
    const recipe = recipeOf(plan.method);
    const log = (line) => {
      if (line.startsWith("a version that was requested is not restored"))
        result = { message: line, lost: true };
    };
    server = await serveAndTrain({ recipe, directory: run, name: "m", port: 0, log, ...options });
    print(`ready ${cpuSeconds()}`);
    await new Client(server, run, plan).follow(plan);
  } catch (error) {
    result = {
      ...{ code: error?.code, message: String(error?.message ?? error) },
      ...{ refused: error instanceof Refused, lost: error instanceof Lost },
    };
  }
  await server?.close(0).catch(() => undefined);
  const seconds = (performance.now() - began) / 1000;
  const megabytes = process.resourceUsage().maxRSS / 1024;
  print(JSON.stringify({ ...result, seconds, megabytes, cpu: cpuSeconds() }));
}

for (let i = 2; i < process.argv.length; i += 2)
  await serveOne(process.argv[i], JSON.parse(process.argv[i + 1]));
