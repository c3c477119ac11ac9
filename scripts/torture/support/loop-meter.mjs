// Measures how long the event loop is held up: how much later than asked for a timer fires. On a
// busy machine a thread also waits for a processor. On Linux this time is known, and is subtracted.
import { openSync, readSync } from "node:fs";

/** Milliseconds between measurements. */
const interval = 2;

export class LoopMeter {
  #delays = [];
  #waits = [];
  #last;
  #waited;
  #used = process.cpuUsage();
  #begun = performance.now();
  #utilization = performance.eventLoopUtilization();

  constructor() {
    this.#waited = waitedMs();
    this.#last = performance.now();
    this.#next();
  }

  /**
   * In milliseconds, since the call before: `p99` and `max` of the event loop's delay without the
   * time that its thread waited for a processor; `waiting`, the most that it waited at once; and
   * the shares of the time in which the process computed and in which the event loop was busy.
   */
  take() {
    const delays = this.#delays.sort((a, b) => a - b);
    const elapsed = performance.now() - this.#begun;
    const { user, system } = process.cpuUsage(this.#used);
    const { utilization } = performance.eventLoopUtilization(this.#utilization);
    const measured = {
      p99: delays[Math.ceil(0.99 * delays.length) - 1] ?? 0,
      max: delays.at(-1) ?? 0,
      waiting: this.#waits.reduce((a, b) => Math.max(a, b), 0),
      computing: (user + system) / 1000 / elapsed,
      busy: utilization,
    };
    this.#delays = [];
    this.#waits = [];
    this.#used = process.cpuUsage();
    this.#begun = performance.now();
    this.#utilization = performance.eventLoopUtilization();
    return measured;
  }

  #next() {
    setTimeout(() => {
      const [now, waited] = [performance.now(), waitedMs()];
      const wait = waited - this.#waited;
      this.#delays.push(Math.max(0, now - this.#last - interval - wait));
      this.#waits.push(wait);
      [this.#last, this.#waited] = [performance.now(), waited];
      this.#next();
    }, interval).unref();
  }
}

let file;
const text = Buffer.alloc(100);

/** Milliseconds that this thread, the main one, was ready to run but had no processor. */
function waitedMs() {
  if (process.platform !== "linux") return 0;
  file ??= openSync("/proc/self/schedstat", "r");
  const [, waited] = text.toString("latin1", 0, readSync(file, text, 0, text.length, 0)).split(" ");
  return Number(waited) / 1e6;
}
