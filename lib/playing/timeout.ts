/** Waiting for an environment, but not for ever. */

import { NlacError, throwIfAborted } from "../base/errors.ts";

export interface Patience {
  /** Milliseconds that the environment may take. Default: no limit. */
  stepTimeout?: number;
  signal?: AbortSignal;
}

/**
 * What the environment answers, if it does so before its time is up and before the signal fires. It is not asked at all where
 * the signal has fired already.
 * @throws NlacError ERR_ENVIRONMENT, ERR_ABORTED; what `answer` throws
 */
export async function withTimeout<T>(
  answer: () => Promise<T>,
  { stepTimeout, signal }: Patience = {},
): Promise<T> {
  throwIfAborted(signal);
  const ending = new AbortController();
  const tooLate = new Promise<never>((_, reject) => {
    const abort = () => reject(new NlacError("ERR_ABORTED", "The operation was aborted."));
    signal?.addEventListener("abort", abort, { signal: ending.signal });
    if (stepTimeout === undefined) return;
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
