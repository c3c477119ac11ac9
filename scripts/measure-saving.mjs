#!/usr/bin/env node
// Time to the first token with and without a checkpoint being written, over HTTP. Uses the built
// package. The model has θ̄ and two sets of moments, as in NLAC.
//   node scripts/measure-saving.mjs [MODEL] [--requests 200] [--pause 100] [--prompt 32]
//     [--directory DIR] [--json]
// One client sends prompts of --prompt random ids, --pause milliseconds after each answer, and asks
// for one token. Checkpoints of a run in --directory are written one after another, without a pause;
// the newest two are kept.
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { silentProgress } from "../dist/display/progress.js";
import { Learner } from "../dist/learner/learner.js";
import { RunDirectory } from "../dist/run/directory.js";
import { serve } from "../dist/serve/server.js";
import { quantile } from "../dist/statistics/resampling.js";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    requests: { type: "string", default: "200" },
    pause: { type: "string", default: "100" },
    prompt: { type: "string", default: "32" },
    directory: { type: "string", default: tmpdir() },
    json: { type: "boolean", default: false },
  },
});
const [model = "SmolLM2-135M-Instruct"] = positionals;
const [requests, pause, promptTokens] = [values.requests, values.pause, values.prompt].map(Number);

/** Quantiles of times in milliseconds. */
function quantiles(times) {
  const sorted = Float64Array.from(times).sort();
  return {
    ...{ requests: times.length, p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99) },
    longest: sorted.at(-1),
  };
}

const learner = await Learner.load(model);
const random = (count) =>
  Array.from({ length: count }, () => Math.floor(Math.random() * learner.info.vocabSize));
const text = { prompt: random(8), response: random(8) };
await learner.updateTarget(1);
for (const moments of ["critic", "policy"]) {
  await learner.tokenNll([text]);
  await learner.step({ learningRate: 1e-9, moments, targetRate: 0.005 });
}

const server = await serve({ learner, name: "m", port: 0 });
async function firstToken() {
  const started = performance.now();
  const reply = await fetch(`${server.url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "m", prompt: random(promptTokens), max_tokens: 1 }),
  });
  if (!reply.ok) throw new Error(await reply.text());
  await reply.json();
  return performance.now() - started;
}

async function measure() {
  const times = [];
  for (let i = 0; i < requests; i++) {
    times.push(await firstToken());
    await sleep(pause);
  }
  return quantiles(times);
}

const directory = mkdtempSync(join(values.directory, "nlac-saving-"));
const { signal } = new AbortController();
const run = RunDirectory.create(join(directory, "run"), {
  signal,
  progress: silentProgress,
  description: {},
});
try {
  for (let i = 0; i < 10; i++) await firstToken();
  const without = await measure();
  let done = false;
  const saves = [];
  const saving = (async () => {
    while (!done) {
      const started = performance.now();
      await run.checkpoint({ state: {}, model: learner }, true);
      saves.push(performance.now() - started);
    }
  })();
  const during = await measure();
  done = true;
  await saving;
  const load = loadavg()[0];
  const result = { model, cpu: cpus()[0].model, load, without, during, save: quantiles(saves) };
  if (values.json) console.log(JSON.stringify(result));
  else {
    const row = (name, { requests: count, p50, p99, longest }) =>
      console.log(
        name.padEnd(22),
        ...[count, p50, p99, longest].map((value) => value.toFixed(0).padStart(10)),
      );
    console.log(`${model}, ${cpus().length} × ${cpus()[0].model}, load average ${load.toFixed(1)}`);
    console.log(
      "".padEnd(22),
      ...["count", "p50, ms", "p99, ms", "longest"].map((name) => name.padStart(10)),
    );
    row("first token, quiet", without);
    row("first token, saving", during);
    row("a checkpoint", result.save);
  }
} finally {
  run.close();
  await server.close(0);
  await learner.dispose();
  rmSync(directory, { recursive: true, force: true });
}
