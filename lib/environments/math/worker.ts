/**
 * The thread that library.ts starts: judges with mathjs, one pair at a time, and may be killed at
 * any moment.
 */

import { parentPort } from "node:worker_threads";
import { judge } from "./judge.ts";
import * as values from "./values.ts";

parentPort!.on("message", ({ gold, prediction }: { gold: string; prediction: string }) => {
  parentPort!.postMessage(judge(gold, prediction, values));
});
parentPort!.postMessage("ready");
