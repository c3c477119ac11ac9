/** Waits for an environment, with a timeout. */

import { NlacError, throwIfAborted } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";

export interface Patience {
  /** Timeout of the environment, in milliseconds. Default: none. */
  stepTimeout?: number;
  signal?: AbortSignal;
}

/**
 * Returns what `answer` resolves to, if it does so before the timeout and before the signal fires.
 * `answer` is not called if the signal has fired already.
 * @throws NlacError ERR_ENVIRONMENT, ERR_ABORTED; what `answer` throws
 */
export async function withTimeout<T>(
  answer: () => Promise<T>,
  { stepTimeout, signal }: Patience,
): Promise<T> {
  throwIfAborted(signal);
  const ending = new AbortController();
  const tooLate = new Promise<never>((_, reject) => {
    const abort = () => reject(new NlacError("ERR_ABORTED", "The operation was aborted."));
    signal?.addEventListener("abort", abort, { signal: ending.signal });
    if (stepTimeout === undefined || stepTimeout > maxDelayMs) return;
    const message = `The environment gave no answer within ${stepTimeout} ms.`;
    const timer = setTimeout(() => reject(new NlacError("ERR_ENVIRONMENT", message)), stepTimeout);
    ending.signal.addEventListener("abort", () => clearTimeout(timer));
  });
  try {
    return await Promise.race([answer(), tooLate]);
  } finally {
    ending.abort();
  }
}
