/**
 * Judgements that need mathjs, in a thread of their own that can be killed. One thread is kept, started by the first
 * question; it ends with the process and does not keep it alive. Questions wait for each other in line.
 */

import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { NlacError } from "../../base/errors.ts";

/** Milliseconds for one judgement, after which it is a no and the thread is killed. */
export const limit = 1000;
/** Megabytes the thread may hold. */
const maxMemory = 256;

let thread: Promise<Worker> | undefined;
let line: Promise<unknown> = Promise.resolve();
let inLine = 0;

/**
 * Whether `prediction` gives `gold`; false also where it takes longer than `limit`.
 * @throws NlacError ERR_INTERNAL if mathjs does not load
 */
export async function judgeWithLibrary(gold: string, prediction: string): Promise<boolean> {
  inLine++;
  const answer = line.then(() => ask(gold, prediction)).finally(() => inLine--);
  line = answer.catch(() => {});
  return answer;
}

/** Questions without an answer, the one that is being judged among them. */
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
  // Where this thread was held up itself, the answer may lie there already: it is read before the immediate.
  const timer = setTimeout(() => setImmediate(() => controller.abort()), limit);
  worker.ref();
  worker.postMessage({ gold, prediction });
  try {
    const [verdict] = (await once(worker, "message", controller)) as [boolean];
    worker.unref();
    return verdict;
  } catch {
    // Too slow, or out of memory.
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
  // The question that is waiting hears of it; a thread that is being killed may still run out of memory.
  worker.on("error", () => {});
  try {
    await once(worker, "message");
  } catch (error) {
    throw new NlacError("ERR_INTERNAL", "gradeMath: its thread does not start; is mathjs installed?", {
      cause: error,
    });
  }
  return worker;
}
