/** Long loops that run in slices, so that they do not stall the event loop. */

import { setImmediate as nextIteration } from "node:timers/promises";

/** Milliseconds of a loop after which the event loop gets a turn. */
const sliceMs = 5;

/**
 * Returns a function to be awaited in each pass of a loop: every few milliseconds it gives the
 * event loop a turn.
 */
export function slices(): () => Promise<void> {
  let begun = performance.now();
  return async () => {
    if (performance.now() - begun < sliceMs) return;
    await nextIteration();
    begun = performance.now();
  };
}

/** The same items, with turns of the event loop between them. */
export async function* inSlices<T>(items: Iterable<T>): AsyncGenerator<T> {
  const turn = slices();
  for (const item of items) {
    yield item;
    await turn();
  }
}
