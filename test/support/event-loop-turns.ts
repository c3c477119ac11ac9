/** Counts how work is divided over turns of the event loop. */

import { type MockInstance, vi } from "vitest";

/**
 * Runs `work` on a clock on which every reading takes 10 ms, so that slices are over at once. Resolves
 * to its result, and to the number of different counts of calls of `step` that turns of the event loop
 * saw meanwhile. Restores `step`.
 */
export async function turnsBetween<T>(
  step: MockInstance,
  work: () => Promise<T>,
): Promise<{ result: T; turns: number }> {
  let ms = 0;
  const clock = vi.spyOn(performance, "now").mockImplementation(() => (ms += 10));
  const seen = new Set<number>();
  let watched = setImmediate(function watch() {
    seen.add(step.mock.calls.length);
    watched = setImmediate(watch);
  });
  try {
    return { result: await work(), turns: seen.size };
  } finally {
    clearImmediate(watched);
    clock.mockRestore();
    step.mockRestore();
  }
}
