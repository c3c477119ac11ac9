/** Estimates how long a training still takes, from its share done. Times are seconds of one clock. */
export class RemainingTime {
  /** The number of iterations, if it is known. */
  iterations: number | undefined;
  #fraction = 0;
  /** A resumed run starts in the middle: only the progress since then counts for its speed. */
  #start: { fraction: number; time: number } | undefined;
  /** Seconds from `#start` to the phase with the first progress: evaluation and episodes. */
  #before = 0;
  #phaseStarted: number | undefined;

  /** A phase begins. */
  phase(now: number): void {
    this.#phaseStarted = now;
  }

  /** @param fraction the share of the whole training that is done, 0 to 1 */
  overall(fraction: number, now: number): void {
    this.#start ??= { fraction, time: now };
    const isFirst = this.#fraction <= this.#start.fraction && fraction > this.#start.fraction;
    if (isFirst) this.#before = Math.max(0, (this.#phaseStarted ?? now) - this.#start.time);
    this.#fraction = fraction;
  }

  /** Seconds left; 0 once all updates are done. Undefined before the first progress. */
  left(now: number): number | undefined {
    if (this.#start === undefined) return undefined;
    const { fraction, time } = this.#start;
    const [progressed, remaining] = [this.#fraction - fraction, 1 - this.#fraction];
    if (progressed <= 0) return undefined;
    if (remaining <= 0) return 0;
    // In its first iteration, what came before the updates is repeated once per iteration, not
    // with every update. Afterwards the mean speed includes it.
    const { iterations } = this;
    const before = iterations !== undefined && progressed * iterations < 1 ? this.#before : 0;
    const repeated = before > 0 ? before * Math.floor(remaining * iterations!) : 0;
    return ((now - time - before) / progressed) * remaining + repeated;
  }
}
