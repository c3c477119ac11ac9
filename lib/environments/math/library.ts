/**
 * Judgements that need mathjs, in a separate thread that can be killed. One thread is started by
 * the first request and reused; it does not keep the process alive. Requests are queued.
 */

import { once } from "node:events";
import type { Worker } from "node:worker_threads";
import { startWorker } from "../../base/start-worker.ts";

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

function start(): Promise<Worker> {
  return startWorker("worker", import.meta.url, "gradeMath: its thread did not start. Is mathjs installed?", {
    resourceLimits: { maxOldGenerationSizeMb: maxMemory },
  });
}
