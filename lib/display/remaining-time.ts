/** Estimates how long a training still takes, from its share done. Times are seconds of one clock. */
export class RemainingTime {
  /** The number of iterations, if it is known. */
  iterations: number | undefined;
  /** A resumed run starts in the middle: only the progress since then counts for its speed. */
  #start: { fraction: number; time: number } | undefined;
  /** The newest progress, and by how much the fraction grew. */
  #last = { fraction: 0, time: 0, step: 0 };
  /** Seconds from `#start` to the phase with the first progress: evaluation and episodes. */
  #before = 0;
  #phaseStarted: number | undefined;

  /** A phase begins. */
  phase(now: number): void {
    this.#phaseStarted = now;
  }

  /**
   * @param fraction the share of the whole training that is done, 0 to 1. It falls when a last
   *   iteration turns out to be longer than what was left
   */
  overall(fraction: number, now: number): void {
    if (this.#start === undefined || fraction < this.#start.fraction) {
      this.#start = { fraction, time: now };
      this.#last = { fraction, time: now, step: 0 };
      return;
    }
    const step = fraction - this.#last.fraction;
    if (step < 0) this.#last = { fraction, time: now, step: this.#last.step };
    if (step <= 0) return;
    const isFirst = this.#last.fraction === this.#start.fraction;
    if (isFirst) this.#before = Math.max(0, (this.#phaseStarted ?? now) - this.#start.time);
    this.#last = { fraction, time: now, step };
  }

  /** Seconds left; 0 once all updates are done. Undefined before the first progress. */
  left(now: number): number | undefined {
    if (this.#start === undefined) return undefined;
    const { fraction, time, step } = this.#last;
    const progressed = fraction - this.#start.fraction;
    const remaining = 1 - fraction;
    if (progressed <= 0) return undefined;
    if (remaining <= 0) return 0;
    // In its first iteration, what came before the updates is repeated once per iteration, not
    // with every update. Afterwards the mean speed includes it.
    const { iterations } = this;
    const before = iterations !== undefined && progressed * iterations < 1 ? this.#before : 0;
    const repeated = before > 0 ? before * Math.floor(remaining * iterations!) : 0;
    const started = this.#start.time + before;
    // The time counts down from the last progress. If the next step takes longer than those before,
    // assume that it ends now.
    const counted = ((time - started) / progressed) * remaining - (now - time);
    const overdue = ((now - started) / (progressed + step)) * Math.max(0, remaining - step);
    return Math.max(1, repeated + Math.max(counted, overdue));
  }
}
