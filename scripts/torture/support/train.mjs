// A training in its own process: node train.mjs DIRECTORY NAME [again]. Continues the run in
// DIRECTORY from its newest checkpoint, or starts it. Prints {"done": true} or {"code", "message"}
// as JSON. With "again" a run that failed is continued in the same process; "first" is then the
// result of the first attempt.
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { resumeRun, trainRecipe } from "../../../dist/index.js";
import { recipe } from "./recipes.mjs";

const [directory, name, again] = process.argv.slice(2);

async function train() {
  try {
    if (existsSync(join(directory, "latest"))) await resumeRun(directory);
    else {
      // Nothing can be resumed before the first checkpoint.
      rmSync(directory, { recursive: true, force: true });
      await trainRecipe(recipe(name), { directory });
    }
    return { done: true };
  } catch (error) {
    return { code: error?.code, message: String(error?.message ?? error) };
  }
}

const results = [await train()];
if (again !== undefined && !results[0].done) results.push(await train());
const megabytes = process.resourceUsage().maxRSS / 1024;
process.stdout.write(JSON.stringify({ ...results.at(-1), megabytes, first: results[0] }));
