/**
 * A small training in a process of its own, for tests that stop it: node --import jiti/register
 * train-child.ts DIR [SIGNAL OPERATION DELAY]. Starts the run in DIR, or resumes it when it has a
 * checkpoint. Sends SIGNAL to itself in the learner's OPERATION-th operation, DELAY milliseconds
 * after its beginning or at its end, so that it is cut there however fast the machine is. SIGTERM
 * saves and ends it.
 */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { learnerDirectory } from "../../lib/run/checkpoints.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { errandEnvironment } from "./errand.ts";
import { tinyConfig, tinyLearner } from "./tiny.ts";

const [path, signal, cutAt, delay] = process.argv.slice(2) as [string, ...(string | undefined)[]];
const controller = new AbortController();
const stopped = new Promise<void>((resolve) => {
  process.on("SIGTERM", () => {
    controller.abort(new Error("stopped"));
    resolve();
  });
});
const resuming = existsSync(join(path, "latest"));
const options = {
  signal: controller.signal,
  progress: silentProgress,
  description: { recipe: { name: "child" } },
  checkpointSeconds: 0,
};
const learnerOptions = { dtype: "float32", threads: 1, seed: 3 } as const;
const model = resuming
  ? await Learner.resume(learnerDirectory(path), learnerOptions)
  : await tinyLearner({ ...learnerOptions }, { ...tinyConfig, max_position_embeddings: 4096 });
const run = resuming ? await RunDirectory.resume(path, model, options) : RunDirectory.create(path, options);

let operations = 0;
for (const name of ["generate", "tokenNll", "tokenKl", "step", "updateTarget", "save"] as const) {
  const operation = model[name].bind(model) as (...args: unknown[]) => Promise<never>;
  model[name] = async (...args: unknown[]) => {
    const under = operation(...args);
    if (++operations === Number(cutAt)) {
      await Promise.race([under, setTimeout(Number(delay))]);
      // Without a timer, a process that only waits for a signal would end before it arrives.
      const awake = setInterval(() => undefined, 1000);
      process.kill(process.pid, signal);
      await stopped;
      clearInterval(awake);
    }
    return under;
  };
}
const result = await trainNlac({
  model,
  environment: errandEnvironment({ turns: 1 }),
  run,
  config: {
    iterations: 2,
    episodesPerIteration: 3,
    updatesPerIteration: 4,
    updatesAhead: 3,
    batchSize: 4,
    criticLearningRate: 1e-2,
    policyLearningRate: 1e-2,
    priorityExponent: 1,
    targetRate: 0.1,
    optimizerState: "separate",
    evaluation: { every: 1, episodes: 2 },
    diagnostics: { every: 1, transitions: 2 },
    maxActionTokens: 80,
    maxCriticTokens: 40,
    seed: 11,
  },
});
run.close();
await model.dispose();
process.stdout.write(`${JSON.stringify({ ...result, operations })}\n`);
