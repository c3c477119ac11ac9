// Trainings in a process of their own: node train.mjs NAME DIRECTORY... Each run is continued from its
// newest checkpoint, or started. Prints a line of JSON per directory: {"done": true} or {"code",
// "message"}, with the seconds it took, the process's CPU time when the training began and when it
// ended, and its largest memory so far. DIRECTORY=FAULT sets a fault of fault-shim.c; unless it lasts
// ("onwards"), a run that failed is continued in the same process, and "first" is the result of the
// first attempt.
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { silentProgress } from "../../../dist/display/progress.js";
import { resumeRun, trainRecipe } from "../../../dist/index.js";
import { cpuSeconds, underFault } from "./in-process.mjs";
import { recipe } from "./recipes.mjs";

const [name, ...targets] = process.argv.slice(2);

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

for (const target of targets) {
  ready = undefined;
  const began = performance.now();
  const { path: directory, fault } = underFault(target);
  const first = await train(directory);
  const again = fault !== undefined && !fault.endsWith("onwards") && !first.done;
  const last = again ? await train(directory) : first;
  const seconds = (performance.now() - began) / 1000;
  const megabytes = process.resourceUsage().maxRSS / 1024;
  const cpu = cpuSeconds();
  console.log(JSON.stringify({ ...last, seconds, ready: ready ?? cpu, cpu, megabytes, first }));
}
