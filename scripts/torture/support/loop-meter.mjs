// Measures how long the event loop is held up: the processor time of its thread between two turns of
// a timer. On a busy machine a thread also waits for a processor, often for longer, so that the
// timer's delay says little there. On Linux the processor time of a thread is known; elsewhere the
// delay is taken for it.
import { openSync, readSync } from "node:fs";
import { PerformanceObserver } from "node:perf_hooks";

/** Milliseconds between measurements. */
const interval = 2;

export class LoopMeter {
  #held = [];
  #delays = [];
  #last = performance.now();
  #computed = computedMs();
  #collections = [];

  constructor() {
    new PerformanceObserver((list) => {
      this.#collections.push(...list.getEntries().map(({ duration }) => duration));
    }).observe({ entryTypes: ["gc"] });
    this.#next();
  }

  /**
   * In milliseconds, since the call before: `p99` and `max` of the time for which the event loop was
   * held up, `collection`, the longest garbage collection, and `delay`, the longest delay of the timer.
   */
  take() {
    const held = this.#held.sort((a, b) => a - b);
    const longest = (times) => times.reduce((a, b) => Math.max(a, b), 0);
    const [delay, collection] = [longest(this.#delays), longest(this.#collections)];
    [this.#held, this.#delays, this.#collections] = [[], [], []];
    const p99 = held[Math.ceil(0.99 * held.length) - 1] ?? 0;
    return { p99, max: held.at(-1) ?? 0, collection, delay };
  }

  #next() {
    setTimeout(() => {
      const delay = Math.max(0, performance.now() - this.#last - interval);
      const computed = computedMs();
      this.#held.push(computed === undefined ? delay : computed - this.#computed);
      this.#delays.push(delay);
      [this.#last, this.#computed] = [performance.now(), computed];
      this.#next();
    }, interval).unref();
  }
}

let file;
const text = Buffer.alloc(100);

/** Milliseconds of processor time of this thread, the main one; undefined if it is not known. */
function computedMs() {
  if (process.platform !== "linux") return undefined;
  file ??= openSync("/proc/self/schedstat", "r");
  return Number(text.toString("latin1", 0, readSync(file, text, 0, text.length, 0)).split(" ")[0]) / 1e6;
}
