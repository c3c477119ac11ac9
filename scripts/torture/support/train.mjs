// Trainings in a process of their own: node train.mjs [--again] NAME DIRECTORY... Each run is continued
// from its newest checkpoint, or started. Prints a line of JSON per directory: {"done": true} or
// {"code", "message"}, with the seconds it took, the process's CPU time when the training began and
// when it ended, and its largest memory so far. With --again a run that failed is continued in the
// same process; "first" is then the result of the first attempt.
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { silentProgress } from "../../../dist/display/progress.js";
import { resumeRun, trainRecipe } from "../../../dist/index.js";
import { cpuSeconds } from "./in-process.mjs";
import { recipe } from "./recipes.mjs";

const { values, positionals } = parseArgs({
  options: { again: { type: "boolean" } },
  allowPositionals: true,
});
const [name, ...directories] = positionals;

/** CPU time when the model was loaded. */
let ready;
const progress = {
  ...silentProgress,
  phase: () => {
    ready ??= cpuSeconds();
  },
};

async function train(directory) {
  try {
    if (existsSync(join(directory, "latest"))) await resumeRun(directory, { progress });
    else {
      // Nothing can be resumed before the first checkpoint.
      rmSync(directory, { recursive: true, force: true });
      await trainRecipe(recipe(name), { directory, progress });
    }
    return { done: true };
  } catch (error) {
    return { code: error?.code, message: String(error?.message ?? error) };
  }
}

for (const directory of directories) {
  ready = undefined;
  const began = performance.now();
  const first = await train(directory);
  const last = values.again && !first.done ? await train(directory) : first;
  const seconds = (performance.now() - began) / 1000;
  const megabytes = process.resourceUsage().maxRSS / 1024;
  const cpu = cpuSeconds();
  console.log(JSON.stringify({ ...last, seconds, ready: ready ?? cpu, cpu, megabytes, first }));
}
