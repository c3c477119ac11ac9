// A training in its own process: node train.mjs DIRECTORY NAME. Continues the run in DIRECTORY from
// its newest checkpoint, or starts it. Prints {"done": true} or {"code", "message"} as JSON.
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { resumeRun, trainRecipe } from "../../../dist/index.js";
import { recipe } from "./recipes.mjs";

const [directory, name] = process.argv.slice(2);
let result;
try {
  if (existsSync(join(directory, "latest"))) await resumeRun(directory);
  else {
    // Nothing can be resumed before the first checkpoint.
    rmSync(directory, { recursive: true, force: true });
    await trainRecipe(recipe(name), { directory });
  }
  result = { done: true };
} catch (error) {
  result = { code: error?.code, message: String(error?.message ?? error), name: error?.name };
}
process.stdout.write(JSON.stringify({ ...result, megabytes: process.resourceUsage().maxRSS / 1024 }));
