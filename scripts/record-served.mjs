#!/usr/bin/env node
// Shows how an unmodified agent gets better while the model behind its base URL is served and
// trained: success over time, latency of its requests with and without training, lost episodes.
//
//   npm run build && node scripts/record-served.mjs --agent ai-sdk
//
// --out     also writes all figures as JSON
// --agent   ai-sdk, openai, openai-agents, langchain (examples/errands), or python
// --agents  agents at work at a time (2)        --pause    ms between two errands of an agent (100)
// --minutes limit (20)
// --success ends at this success of the last 100 (0.95)
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, homedir, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { build } from "esbuild";
import { quantile } from "../dist/statistics/resampling.js";

const root = fileURLToPath(new URL("..", import.meta.url));
const { values: options } = parseArgs({
  options: {
    agent: { type: "string", default: "ai-sdk" },
    agents: { type: "string", default: "2" },
    pause: { type: "string", default: "100" },
    minutes: { type: "string", default: "20" },
    success: { type: "string", default: "0.95" },
    recipe: { type: "string", default: "errands" },
    out: { type: "string" },
  },
});
const model = "errands-base";
const window = 100;
/** Errands between two reports. */
const reportEvery = 50;

const work = mkdtempSync(join(tmpdir(), "nlac-served-"));
const outdir = join(root, "build/record-served");
const names = ["world", "run-errands", "ai-sdk", "openai", "openai-agents", "langchain"];
await build({
  entryPoints: names.map((name) => join(root, `examples/errands/${name}.ts`)),
  ...{ outdir, bundle: true, platform: "node", format: "esm", packages: "external", logLevel: "warning" },
  outExtension: { ".js": ".mjs" },
});
const load = (name) => import(pathToFileURL(join(outdir, `${name}.mjs`)));
const { openWorld } = await load("world");
const { runErrand } = await load("run-errands");

const percentile = (values, share) => quantile(Float64Array.from(values).sort(), share);
const latencyOf = (ms) => ({
  requests: ms.length,
  p50: percentile(ms, 0.5),
  p95: percentile(ms, 0.95),
  p99: percentile(ms, 0.99),
});

/** Times to the first token of streamed answers, in milliseconds, of the requests of this process. */
let firstTokens = [];
const plainFetch = globalThis.fetch;
globalThis.fetch = async (input, init) => {
  const started = performance.now();
  const reply = await plainFetch(input, init);
  const isStream = reply.headers.get("content-type")?.startsWith("text/event-stream") ?? false;
  if (!isStream) return reply;
  const decoder = new TextDecoder();
  let text = "";
  const watch = new TransformStream({
    transform(chunk, controller) {
      if (text !== undefined) text += decoder.decode(chunk, { stream: true });
      if (text !== undefined && /"content":"[^"]/.test(text)) {
        firstTokens.push(performance.now() - started);
        text = undefined;
      }
      controller.enqueue(chunk);
    },
  });
  return new Response(reply.body.pipeThrough(watch), reply);
};

/** Starts `nlac serve` with arguments. Resolves once it serves. */
async function startServer(...args) {
  const cli = join(root, "dist/cli/main.js");
  const child = spawn(process.execPath, [cli, "serve", model, "--port", "0", ...args], {
    stdio: ["ignore", "inherit", "pipe"],
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const baseURL = await new Promise((resolve, reject) => {
    ended.then((code) => reject(new Error(`nlac serve ended with ${code}`)));
    createInterface(child.stderr).on("line", (line) => {
      const url = /(http:\S+\/v1)/.exec(line)?.[1];
      if (url !== undefined) resolve(url);
      else if (/ERR_|paused/.test(line)) console.error(line);
    });
  });
  return {
    baseURL,
    async stop() {
      child.kill("SIGTERM");
      await ended;
    },
  };
}

/** Runs errands with several agents until `isOver(rewards)`; `onErrand` gets each reward. */
async function playInProcess(baseURL, world, isOver, onErrand) {
  const { [`${options.agent.replace(/-(\w)/g, (_, c) => c.toUpperCase())}Agent`]: agent } = await load(
    options.agent,
  );
  const answer = agent(baseURL, model);
  const latencies = [];
  const timed = async (messages, episode) => {
    const started = performance.now();
    const text = await answer(messages, episode);
    latencies.push(performance.now() - started);
    return text;
  };
  let next = 0;
  const play = async () => {
    while (!isOver()) {
      const number = next++;
      onErrand(await runErrand(timed, { baseURL, world }, `errand-${number}`, number));
      await sleep(Number(options.pause));
    }
  };
  await Promise.all(Array.from({ length: Number(options.agents) }, play));
  return latencies;
}

/**
 * As `playInProcess`, by Python's agent, which reports every 20 errands and measures no latency.
 */
async function playInPython(baseURL, world, isOver, onErrand) {
  const python = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "nlac/peers/bin/python");
  const script = join(root, "examples/errands/gymnasium_agent.py");
  const args = ["-u", script, baseURL, world, model, "1000000"];
  const play = async () => {
    const child = spawn(python, args, { stdio: ["ignore", "pipe", "inherit"] });
    let errands = 0;
    for await (const line of createInterface(child.stdout)) {
      const report = JSON.parse(line);
      const count = report.errands - errands;
      errands = report.errands;
      const successes = Math.round(report.success * count);
      for (let i = 0; i < count; i++) onErrand(i < successes ? 1 : 0);
      if (isOver()) child.kill();
    }
  };
  await Promise.all(Array.from({ length: Number(options.agents) }, play));
  return [];
}

const shownLatency = (latency) =>
  latency === undefined
    ? "not measured"
    : `${latency.requests}, median ${latency.p50.toFixed(0)} ms, p95 ${latency.p95.toFixed(0)} ms, p99 ${latency.p99.toFixed(0)} ms`;

function shownPoint({ errands, seconds, updates, success, first_token_ms_p99: firstToken }) {
  const bar = "█".repeat(Math.round(success * 16)).padEnd(16, "░");
  const latency = firstToken === null ? "" : `${firstToken.toFixed(0)} ms`;
  const counts = [errands, seconds, updates].map((value) => String(value).padStart(7));
  return `${counts.join("  ")}  ${success.toFixed(2)}  ${bar}  ${latency.padStart(13)}`;
}

const play = options.agent === "python" ? playInPython : playInProcess;
const world = await openWorld();
const load1 = () => Number(loadavg()[0].toFixed(1));
const result = {
  ...{ date: new Date().toISOString().slice(0, 10), agent: options.agent, agents: Number(options.agents) },
  ...{ pauseMs: Number(options.pause), recipe: options.recipe },
  machine: { cpu: cpus()[0].model, cores: cpus().length, node: process.version, loadBefore: load1() },
};
try {
  console.log(`${options.agents} agents (${options.agent}) on nlac serve ${model}, ${window} errands`);
  const plain = await startServer("--record", join(work, "plain.jsonl"));
  let played = 0;
  const before = await play(
    plain.baseURL,
    world.url,
    () => played >= window,
    () => played++,
  );
  result.latencyWithoutTraining = before.length > 0 ? latencyOf(before) : undefined;
  result.firstTokenWithoutTraining = firstTokens.length > 0 ? latencyOf(firstTokens) : undefined;
  console.log(`requests: ${shownLatency(result.latencyWithoutTraining)}`);
  console.log(`first tokens: ${shownLatency(result.firstTokenWithoutTraining)}\n`);
  firstTokens = [];
  await plain.stop();

  console.log(`the same agents on nlac serve ${model} --train ${options.recipe}`);
  console.log("errands  seconds  updates  success of the last 100  first token, p99");

  const run = join(work, "run");
  const server = await startServer("--train", options.recipe, "--run", run);
  const rewards = [];
  const curve = [];
  const started = performance.now();
  const seconds = () => (performance.now() - started) / 1000;
  const recent = () => {
    const last = rewards.slice(-window);
    return last.reduce((sum, reward) => sum + reward, 0) / Math.max(1, last.length);
  };
  const isOver = () =>
    seconds() > Number(options.minutes) * 60 ||
    (rewards.length >= window && recent() >= Number(options.success));
  const points = [];
  const onErrand = (reward) => {
    rewards.push(reward);
    if (rewards.length % reportEvery > 0) return;
    const point = { errands: rewards.length, seconds: Math.round(seconds()), success: recent() };
    points.push(
      fetch(`${server.baseURL}/training`).then(async (response) => {
        const { updates, episodes_waiting, training_share, first_token_ms_p99 } = await response.json();
        const state = { updates, waiting: episodes_waiting, training_share, first_token_ms_p99 };
        curve.push({ ...point, ...state, load: load1() });
        console.log(shownPoint(curve.at(-1)));
      }),
    );
  };
  const during = await play(server.baseURL, world.url, isOver, onErrand);
  const total = seconds();
  await Promise.all(points);
  await server.stop();
  const { readEpisodeRecords } = await import(join(root, "dist/episodes/records.js"));
  let recorded = 0;
  let tokens = 0;
  for (const { conversation } of readEpisodeRecords(join(run, "episodes.jsonl"))) {
    recorded++;
    for (const { source, start, end } of conversation.segments) if (source === "model") tokens += end - start;
  }
  Object.assign(result, {
    latencyWithTraining: during.length > 0 ? latencyOf(during) : undefined,
    firstTokenWithTraining: firstTokens.length > 0 ? latencyOf(firstTokens) : undefined,
    ...{ seconds: total, errands: rewards.length, recorded, lost: Math.max(0, rewards.length - recorded) },
    ...{ answeredTokensPerSecond: tokens / total, curve },
  });
  result.machine.loadAfter = load1();
  console.log(
    `${rewards.length} errands in ${Math.round(total)} s, success ${recent().toFixed(2)}; ` +
      `${recorded} recorded, ${result.lost} lost`,
  );
  console.log(`requests: ${shownLatency(result.latencyWithTraining)}`);
  console.log(`first tokens: ${shownLatency(result.firstTokenWithTraining)}`);
  if (options.out !== undefined) writeFileSync(options.out, `${JSON.stringify(result)}\n`);
} finally {
  await world.close();
  rmSync(work, { recursive: true, force: true });
}
