/** Starts threads of the package's own modules. */

import { once } from "node:events";
import { Worker, type WorkerOptions } from "node:worker_threads";
import { extensionOf, loaderArguments } from "./child-process.ts";
import { NlacError } from "./errors.ts";

/**
 * Starts a thread that runs the module `name` in the folder of `from`. Resolves after its first
 * message.
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
  const worker = new Worker(new URL(`./${name}${extensionOf(from)}`, from), {
    ...options,
    execArgv: loaderArguments(from),
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
