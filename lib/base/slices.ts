/** Long loops that run in slices, so that they do not stall the event loop. */

/** Milliseconds of a loop after which the event loop gets a turn. */
export const sliceMs = 5;

/** Loops that wait for their next slice, in order. */
const waiting: (() => void)[] = [];

/**
 * Resolves in a later iteration of the event loop. Each iteration continues one loop only: the
 * slices of many loops at once would stall it together.
 */
export function nextSlice(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    if (waiting.length === 1) setImmediate(continueOne);
  });
}

function continueOne(): void {
  const next = waiting.shift()!;
  // The slice runs after this function. Loops that wait then find a turn scheduled.
  if (waiting.length > 0) setImmediate(continueOne);
  next();
}

/**
 * Returns a function to be awaited in each pass of a loop: every few milliseconds it gives the
 * event loop a turn.
 */
export function slices(): () => Promise<void> {
  let begun = performance.now();
  return async () => {
    if (performance.now() - begun < sliceMs) return;
    await nextSlice();
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
