/**
 * Judgements that need mathjs, in a separate thread that can be killed. One thread is started by
 * the first request and reused; it does not keep the process alive. Requests are queued.
 */

import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { NlacError } from "../../base/errors.ts";

/** Timeout of one judgement in milliseconds; the thread is then killed and the result is false. */
export const limit = 1000;
/** Memory limit of the thread in megabytes. */
const maxMemory = 256;

let thread: Promise<Worker> | undefined;
let line: Promise<unknown> = Promise.resolve();
let inLine = 0;

/**
 * Whether `prediction` matches `gold`; false also at the timeout.
 * @throws NlacError ERR_INTERNAL if mathjs does not load
 */
export async function judgeWithLibrary(gold: string, prediction: string): Promise<boolean> {
  inLine++;
  const answer = line.then(() => ask(gold, prediction)).finally(() => inLine--);
  line = answer.catch(() => {});
  return answer;
}

/** Number of unanswered requests, including the current one. */
export function waiting(): number {
  return inLine;
}

async function ask(gold: string, prediction: string): Promise<boolean> {
  thread ??= start();
  const worker = await thread.catch((error: unknown) => {
    thread = undefined;
    throw error;
  });
  const controller = new AbortController();
  // If this thread was blocked, the answer may have arrived already: it is read before the
  // immediate runs.
  const timer = setTimeout(() => setImmediate(() => controller.abort()), limit);
  worker.ref();
  worker.postMessage({ gold, prediction });
  try {
    const [verdict] = (await once(worker, "message", controller)) as [boolean];
    worker.unref();
    return verdict;
  } catch {
    // Timed out, or out of memory.
    thread = undefined;
    await worker.terminate();
    return false;
  } finally {
    clearTimeout(timer);
  }
}

/** JavaScript in the package, TypeScript through jiti in a checkout's tests. */
async function start(): Promise<Worker> {
  const compiled = import.meta.url.endsWith(".js");
  const worker = new Worker(new URL(compiled ? "./worker.js" : "./worker.ts", import.meta.url), {
    execArgv: compiled ? [] : ["--import", "jiti/register"],
    resourceLimits: { maxOldGenerationSizeMb: maxMemory },
  });
  // The waiting request gets the error; this handler covers a thread that runs out of memory while
  // it is killed.
  worker.on("error", () => {});
  try {
    await once(worker, "message");
  } catch (error) {
    throw new NlacError("ERR_INTERNAL", "gradeMath: its thread did not start. Is mathjs installed?", {
      cause: error,
    });
  }
  return worker;
}
