#!/usr/bin/env node
// Memory, traffic and speed of training on several ranks of this machine, against the plans of
// `nlac train --dry-run` (lib/estimate) and the formulas of docs/scaling.md. Uses the built package.
//   node scripts/measure-ranks.mjs [--ranks 1,2,4] [--sharding none,1,2,3,3-layerwise] [--updates 3]
//     [--tokens 64] [--quick] [--json]
// An update is NLAC's two losses on 8 texts of --tokens tokens, each with a step. "3-layerwise" is
// sharding 3 with layerwiseGeneration. The ranks are processes with one thread each. Held memory is
// that of the rank with the most, after two updates; the peak is the highest of the updates after
// them. At last 16 tokens of each text are generated; their peak includes the packed matrices.
// Bytes are those of the loopback interface of a network namespace of its own, with all headers;
// where such a namespace cannot be made (util-linux's unshare, iproute2's ip), they are left out.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { getHeapStatistics } from "node:v8";
import { estimate } from "../dist/estimate/estimate.js";
import { layerCount, memoryOf, total } from "../dist/estimate/memory.js";
import { gatheredBytes } from "../dist/estimate/ranks.js";
import { DistributedLearner, joinRanks, rankPlace, serveRank } from "../dist/models.js";
import { parseRecipe } from "../dist/recipe/recipe.js";
import { freePort } from "./torture/support/rank-processes.mjs";

const file = fileURLToPath(import.meta.url);
const size = 2; // bytes of bfloat16
const generated = 16; // tokens of a completion

function setupOf({ quick, tokens }) {
  const config = {
    ...{ architectures: ["LlamaForCausalLM"], model_type: "llama", vocab_size: quick ? 256 : 4096 },
    ...{ hidden_size: quick ? 64 : 384, intermediate_size: quick ? 192 : 1152 },
    ...{ num_hidden_layers: quick ? 2 : 8, num_attention_heads: quick ? 1 : 6, head_dim: 64 },
    ...{ num_key_value_heads: quick ? 1 : 6, max_position_embeddings: 256, rms_norm_eps: 1e-5 },
    ...{ rope_theta: 10000, hidden_act: "silu", tie_word_embeddings: true, eos_token_id: 0 },
  };
  return { config, texts: 8, tokens, microBatchTokens: 2 * tokens };
}

// ------------------------------------------------------------------------------ processes of a trial

/** Resident bytes of processes: all, those that no file backs, and the highest of all. */
function memoryOfProcess(pid) {
  const text = readFileSync(`/proc/${pid}/status`, "utf8");
  const bytes = (name) => 1024 * Number(new RegExp(`^${name}:\\s*(\\d+) kB`, "m").exec(text)[1]);
  return { all: bytes("VmRSS"), own: bytes("RssAnon"), highest: bytes("VmHWM") };
}

/**
 * Bytes of this process beside JavaScript's heap, which shrinks by 30 MB when the modules have been
 * loaded. V8 returns collected memory in the background.
 */
async function nativeBytes() {
  globalThis.gc();
  await setTimeout(1000);
  return memoryOfProcess("self").own - getHeapStatistics().total_physical_size;
}

/** Bytes that this network namespace has sent over its loopback interface. */
function bytesSent() {
  const line = readFileSync("/proc/net/dev", "utf8")
    .split("\n")
    .find((one) => one.trim().startsWith("lo:"));
  return Number(line.split(":")[1].trim().split(/\s+/)[8]);
}

async function otherRank() {
  const ranks = await joinRanks(rankPlace(), "cpu");
  createInterface({ input: process.stdin }).on("line", async () => console.log(await nativeBytes()));
  await serveRank(ranks);
  process.exit(0);
}

function startOther(rank, place) {
  const env = { ...process.env, ...place, RANK: String(rank), LOCAL_RANK: String(rank) };
  const child = spawn(process.execPath, ["--expose-gc", file, "--other"], {
    env,
    stdio: ["pipe", "pipe", "inherit"],
  });
  const answers = createInterface({ input: child.stdout });
  const bytes = async () => {
    child.stdin.write("\n");
    return Number((await once(answers, "line"))[0]);
  };
  return { pid: child.pid, bytes };
}

/** Rank 0 of one trial. Returns its figures; memory is the highest of all ranks. */
async function trial(asked) {
  const { ranks: count, sharding, layerwise, updates, counted } = asked;
  const { config, texts, tokens, microBatchTokens } = setupOf(asked);
  const port = await freePort();
  const place = { WORLD_SIZE: String(count), MASTER_ADDR: "127.0.0.1", MASTER_PORT: String(port) };
  const others = Array.from({ length: count - 1 }, (_, i) => startOther(i + 1, place));
  const ranks = await joinRanks(rankPlace({ ...place, RANK: "0", LOCAL_RANK: "0" }), "cpu");
  const processes = [{ pid: process.pid, bytes: nativeBytes }, ...others];
  for (const one of processes) one.before = await one.bytes();
  const options = { dtype: "bfloat16", sharding, layerwiseGeneration: layerwise, microBatchTokens };
  const model = await DistributedLearner.open({ kind: "create", config, options }, ranks);

  const ids = (length, seed) => Array.from({ length }, (_, i) => 1 + ((7919 * (i + 1) * (seed + 1)) % 250));
  const scored = Array.from({ length: texts }, (_, i) => ({
    ...{ prompt: ids(tokens / 2, i), response: ids(tokens / 2, 50 + i), weight: 1 / texts },
  }));
  const distilled = scored.map(({ prompt, response, weight }, i) => ({
    ...{ student: prompt, teacher: ids(tokens / 2, 90 + i), response, weight },
  }));
  const step = { learningRate: 1e-5 };
  const critic = async () => {
    await model.tokenKl(distilled);
    await model.step(step);
  };
  const policy = async () => {
    await model.tokenNll(scored);
    await model.step({ ...step, targetRate: 0.01 });
  };
  const measured = async (work) => {
    const before = bytesSent();
    await work();
    return (bytesSent() - before) / count;
  };
  const requests = scored.map(({ prompt }, i) => ({
    ...{ tokens: prompt, maxNewTokens: generated, forbidden: [0], seed: i },
  }));
  await model.updateTarget(1);
  await critic();
  await policy();
  await model.dropCaches();
  const started = [];
  for (const { pid, bytes, before } of processes) {
    const held = (await bytes()) - before;
    writeFileSync(`/proc/${pid}/clear_refs`, "5"); // resets the highest
    started.push({ all: memoryOfProcess(pid).all, held });
  }
  const sent = { critic: await measured(critic), policy: await measured(policy) };
  const began = performance.now();
  for (let i = 0; i < updates; i++) {
    await critic();
    await policy();
  }
  const seconds = (performance.now() - began) / 1000;
  const highest = () => {
    const peaks = processes.map(({ pid }, i) => {
      const { all, held } = started[i];
      return held + memoryOfProcess(pid).highest - all;
    });
    return Math.max(...peaks);
  };
  const peak = highest();
  for (const { pid } of processes) writeFileSync(`/proc/${pid}/clear_refs`, "5");
  sent.generation = await measured(() => model.generate(requests));
  const generationPeak = highest();
  await model.dispose();
  return {
    held: Math.max(...started.map(({ held }) => held)),
    ...{ peak, generationPeak },
    sent: counted ? sent : undefined,
    tokensPerSecond: (2 * texts * tokens * updates) / seconds,
  };
}

// -------------------------------------------------------------------------------------- expectations

/** What the plan says of a rank, and what the formulas of docs/scaling.md say of its traffic. */
function planOf(asked) {
  const { ranks, sharding, layerwise } = asked;
  const split = { ranks, sharding, layerwise };
  const { config, texts, tokens, microBatchTokens } = setupOf(asked);
  const recipe = parseRecipe(
    {
      ...{ name: "measured", model: { config, tokenizer: {} }, environment: { name: "errands" } },
      ...{ algorithm: "nlac", learner: { dtype: "bfloat16", sharding, microBatchTokens } },
      config: { optimizerState: "shared" },
    },
    "measure-ranks",
  );
  const { shape, work, parameters } = estimate(recipe);
  const passes = [{ what: "a loss", texts, tokens, scored: tokens / 2, backward: true }];
  const warmup = { ...work.warmup, steps: 0 };
  const prompt = tokens / 2;
  const call = { what: "actions", weights: "θ", times: 1, texts, prompt, fresh: prompt, generated };
  const generation = { playing: [call], generation: [], diagnosis: { times: 0, generation: [] } };
  const all = { ...work, ...generation, passes, warmup };
  const memory = memoryOf(recipe, shape, all, "cpu", split);
  // Updates come before generation here, and the process itself is not measured.
  const held = total(memory.held.filter(({ name }) => !/^(keys|matrices|Node)/.test(name)));
  const forGeneration = memory.held.filter(({ name }) => /^(keys|matrices)/.test(name));
  const layers = layerCount(shape, parameters, undefined, 0);
  const rest = parameters - layers;
  const batches = Math.ceil((texts * tokens) / ranks / microBatchTokens);
  const share = (ranks - 1) / ranks;
  const step = (target, losses) => {
    if (sharding === "none") return 8 * share * parameters;
    const copies = size * (target ? 2 : 1);
    const gradients = sharding === 1 ? 4 * parameters : 4 * (rest + batches * layers);
    const gathered = sharding === 3 ? copies * rest + losses * size * batches * layers : copies * parameters;
    return share * (gradients + gathered);
  };
  // At sharding 3 the critic's loss collects layers for θ̄'s pass and θ's two, the policy's for two.
  return {
    parameters,
    held,
    peak: held + total(memory.training),
    generationPeak: held + total(forGeneration) + total(memory.generation),
    sent: {
      ...{ critic: step(false, 3), policy: step(true, 2) },
      // The prompts are read in the step that generates the first token.
      generation: gatheredBytes(recipe, shape, split) * (layerwise ? generated : 1),
    },
  };
}

// ---------------------------------------------------------------------------------------------- main

const isolation = ["--net", "--map-root-user"];

function canIsolate() {
  return spawnSync("unshare", [...isolation, "ip", "link", "set", "lo", "up"]).status === 0;
}

/** Runs a trial in processes of its own. */
async function runTrial(options) {
  const command = [process.execPath, "--expose-gc", file, "--one", JSON.stringify(options)];
  const [program, ...args] = options.counted
    ? ["unshare", ...isolation, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", ...command]
    : command;
  // Freed memory is returned at once, so that resident memory is what is in use.
  const malloc = { MALLOC_MMAP_THRESHOLD_: "65536", MALLOC_TRIM_THRESHOLD_: "65536" };
  const env = { ...process.env, NLAC_THREADS: "1", OMP_NUM_THREADS: "1", ...malloc };
  const child = spawn(program, args, { env, stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  for await (const chunk of child.stdout) output += chunk;
  return JSON.parse(output);
}

const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0);
const ofPlan = (value, plan) => `${megabytes(value)} of ${megabytes(plan)}`;

function row({ ranks, sharding, layerwise, measured, plan }) {
  const sent = ["critic", "policy", "generation"].map((kind) => {
    if (ranks === 1 || plan.sent[kind] === 0) return "–";
    return measured.sent ? ofPlan(measured.sent[kind], plan.sent[kind]) : "?";
  });
  const memory = ["held", "peak", "generationPeak"].map((kind) => ofPlan(measured[kind], plan[kind]));
  const name = layerwise ? `${sharding}, layerwise` : sharding;
  const cells = [ranks, name, ...memory, ...sent, Math.round(measured.tokensPerSecond)];
  return `| ${cells.join(" | ")} |`;
}

async function main() {
  const { values } = parseArgs({
    options: {
      ranks: { type: "string", default: "1,2,4" },
      sharding: { type: "string", default: "none,1,2,3,3-layerwise" },
      updates: { type: "string", default: "3" },
      tokens: { type: "string", default: "64" },
      quick: { type: "boolean", default: false },
      json: { type: "boolean", default: false },
      one: { type: "string" },
      other: { type: "boolean", default: false },
    },
  });
  if (values.other) return otherRank();
  if (values.one !== undefined) return console.log(JSON.stringify(await trial(JSON.parse(values.one))));
  const counted = canIsolate();
  const results = [];
  for (const ranks of values.ranks.split(",").map(Number)) {
    for (const name of ranks === 1 ? ["none"] : values.sharding.split(",")) {
      const [stage, how] = name.split("-");
      const sharding = stage === "none" ? stage : Number(stage);
      const layerwise = how === "layerwise";
      const [updates, tokens] = [Number(values.updates), Number(values.tokens)];
      const options = { ranks, sharding, layerwise, updates, tokens, quick: values.quick, counted };
      const [plan, measured] = [planOf(options), await runTrial(options)];
      const result = { ranks, sharding, layerwise, plan, measured };
      results.push(result);
      if (!values.json) process.stderr.write(`${row(result)}\n`);
    }
  }
  if (values.json) return console.log(JSON.stringify(results));
  console.log(
    [
      `${(results[0].plan.parameters / 1e6).toFixed(1)} million parameters in bfloat16; MB, measured of planned.`,
      "",
      `| ranks | sharding | held by a rank | peak of updates | of generation | sent, critic's step | policy's step | ${generated} tokens | tokens/s |`,
      "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
      ...results.map(row),
    ].join("\n"),
  );
}

await main();
