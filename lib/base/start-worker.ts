/** Starts threads of the package's own modules. */

import { once } from "node:events";
import { extname } from "node:path";
import { Worker, type WorkerOptions } from "node:worker_threads";
import { NlacError } from "./errors.ts";

/**
 * Starts a thread that runs the module `name` in the folder of `from`. Resolves after its first
 * message. The module is JavaScript in the package, and TypeScript through jiti in a checkout's
 * tests.
 *
 * @param from the caller's `import.meta.url`
 * @throws NlacError ERR_INTERNAL with `failure`
 */
export async function startWorker(
  name: string,
  from: string,
  failure: string,
  options: Omit<WorkerOptions, "execArgv">,
): Promise<Worker> {
  const extension = extname(new URL(from).pathname);
  const worker = new Worker(new URL(`./${name}${extension}`, from), {
    ...options,
    execArgv: extension === ".js" ? [] : ["--import", "jiti/register"],
  });
  // The waiting request gets the error. Without a handler, an error of a thread that is being ended
  // would end the process.
  worker.on("error", () => {});
  try {
    await once(worker, "message");
  } catch (error) {
    throw new NlacError("ERR_INTERNAL", failure, { cause: error });
  }
  return worker;
}
