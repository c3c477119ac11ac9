/** The longest delay of a timer, in milliseconds; a longer one fires at once. */
export const maxDelayMs = 2 ** 31 - 1;

/** Parts of a limit that are counted. */
const parts = 10;

/**
 * Calls `late` after about `ms` milliseconds in which the process ran. However long it was stopped, or
 * its event loop was held, counts as a tenth of that: what it waits for could not arrive meanwhile.
 * Returns a function that prevents the call.
 */
export function afterRunning(ms: number, late: () => void): () => void {
  let left = parts;
  const timer = setInterval(() => {
    if (--left > 0) return;
    clearInterval(timer);
    late();
  }, ms / parts);
  return () => clearInterval(timer);
}
