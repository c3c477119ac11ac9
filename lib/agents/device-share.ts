/**
 * Shares one device between requests and training. Requests come first: training runs in the gaps
 * between them. If the measured latencies allow it, or if training has waited too long, new
 * requests wait for one training job.
 */

import { throwIfAborted } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";

export interface DeviceShareOptions {
  /**
   * Bound on the 99th percentile of the time from a request's arrival to its first token, in
   * milliseconds.
   */
  maxFirstTokenMs: number;
  /** Milliseconds since any fixed time. Default `performance.now`. */
  now?: () => number;
}

/** Number of latest requests over which latencies are measured. */
const measuredRequests = 256;
/** Minimum number of requests for a percentile. */
const fewRequests = 20;

/** A request that uses the device. */
export interface Visit {
  /** To be called when the first token was sampled. */
  firstToken(): void;
  /** To be called once when the request has ended; further calls have no effect. */
  leave(): void;
}

export class DeviceShare {
  readonly #maxFirstTokenMs: number;
  readonly #now: () => number;
  readonly #firstTokens = new LatestValues(measuredRequests);
  readonly #durations = new LatestValues(measuredRequests);
  /** Requests on the device. */
  #inside = 0;
  /** Whether new requests wait for a training job. */
  #closed = false;
  readonly #waiting: (() => void)[] = [];
  #changed = (): void => {};
  #busyMs = 0;
  #overdue = 0;
  readonly #started: number;

  constructor({ maxFirstTokenMs, now = () => performance.now() }: DeviceShareOptions) {
    this.#maxFirstTokenMs = maxFirstTokenMs;
    this.#now = now;
    this.#started = now();
  }

  /** Duration that a training job should not exceed, in milliseconds. */
  get jobMs(): number {
    return this.#maxFirstTokenMs / 4;
  }

  /**
   * The 99th percentile of the time to the first token over the latest requests, in milliseconds;
   * undefined before the first request.
   */
  get firstTokenMs(): number | undefined {
    return this.#firstTokens.quantile(0.99);
  }

  /** Share of the time since the start in which training jobs had the device to themselves. */
  get trainingShare(): number {
    return this.#busyMs / Math.max(1, this.#now() - this.#started);
  }

  /**
   * Number of jobs that found no gap in the time that they may wait, and made new requests wait.
   */
  get overdue(): number {
    return this.#overdue;
  }

  /** Admits a request. Waits if a training job has the device. */
  async enter(): Promise<Visit> {
    const arrived = this.#now();
    if (this.#closed) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    else this.#inside++;
    const entered = this.#now();
    let first = false;
    let left = false;
    return {
      firstToken: () => {
        if (!first) this.#firstTokens.add(this.#now() - arrived);
        first = true;
      },
      leave: () => {
        if (left) return;
        left = true;
        this.#durations.add(this.#now() - entered);
        this.#inside--;
        this.#changed();
      },
    };
  }

  /**
   * Runs a training job while no request is on the device. Call it for one job at a time.
   *
   * @param estimatedMs expected duration of the job, in milliseconds
   * @param maxWaitMs time after which new requests wait until the job has run. Default: no bound
   * @throws what `job` throws; NlacError ERR_ABORTED if the signal fires while the job waits
   */
  async alone<T>(
    estimatedMs: number,
    signal: AbortSignal | undefined,
    job: () => Promise<T>,
    maxWaitMs = Number.POSITIVE_INFINITY,
  ): Promise<T> {
    const overdueAt = this.#now() + maxWaitMs;
    let closedAt: number | undefined;
    try {
      while (this.#inside > 0) {
        throwIfAborted(signal);
        const untilOverdue = overdueAt - this.#now();
        if (untilOverdue <= 0) {
          this.#overdue++;
          this.#closed = true;
          await this.#emptied(signal);
          break;
        }
        // New requests wait only if the running ones and the job are expected to end in time.
        if (closedAt === undefined && this.#fits(estimatedMs)) {
          closedAt = this.#now();
          this.#closed = true;
        }
        const left = this.#closed ? closedAt! + this.#maxFirstTokenMs / 2 - this.#now() : undefined;
        await this.#change(signal, Math.min(left ?? untilOverdue, untilOverdue));
        // The running requests took longer than expected: wait for a gap.
        if (this.#closed && this.#inside > 0 && this.#now() - closedAt! >= this.#maxFirstTokenMs / 2)
          this.#open();
      }
      throwIfAborted(signal);
      this.#closed = true;
      const started = this.#now();
      try {
        return await job();
      } finally {
        this.#busyMs += this.#now() - started;
      }
    } finally {
      this.#open();
    }
  }

  /**
   * Waits until no request is on the device, or until the latencies leave room for work beside
   * requests, or for `maxWaitMs`. For training's generations, which requests can join.
   */
  async quiet(signal: AbortSignal | undefined, maxWaitMs = Number.POSITIVE_INFINITY): Promise<void> {
    const overdueAt = this.#now() + maxWaitMs;
    while (this.#inside > 0 && !this.#fits(0)) {
      throwIfAborted(signal);
      const untilOverdue = overdueAt - this.#now();
      if (untilOverdue <= 0) break;
      await this.#change(signal, untilOverdue);
    }
    throwIfAborted(signal);
  }

  /** Whether a request that arrives now would still get its first token within the bound. */
  #fits(jobMs: number): boolean {
    if (
      (this.#firstTokens.quantile(0.99) ?? 0) > this.#maxFirstTokenMs &&
      this.#firstTokens.size >= fewRequests
    )
      return false;
    const runningMs = this.#durations.quantile(0.95);
    return runningMs !== undefined && runningMs + jobMs <= this.#maxFirstTokenMs / 2;
  }

  /** Resolves when no request is on the device. */
  async #emptied(signal: AbortSignal | undefined): Promise<void> {
    while (this.#inside > 0) {
      throwIfAborted(signal);
      await this.#change(signal);
    }
  }

  #open(): void {
    this.#closed = false;
    this.#inside += this.#waiting.length;
    for (const enter of this.#waiting.splice(0)) enter();
  }

  /** Resolves when a request has left, the signal has fired, or `ms` have passed. */
  #change(signal: AbortSignal | undefined, ms?: number): Promise<void> {
    return new Promise((resolve) => {
      // A wait of a month or more has no timer.
      const timer =
        ms === undefined || ms > maxDelayMs ? undefined : setTimeout(() => done(), Math.max(0, ms));
      const done = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", done);
        resolve();
      };
      this.#changed = done;
      signal?.addEventListener("abort", done, { once: true });
    });
  }
}

/** The latest values of a series, for quantiles. */
class LatestValues {
  readonly #values: number[] = [];
  readonly #capacity: number;
  #next = 0;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  get size(): number {
    return this.#values.length;
  }

  add(value: number): void {
    this.#values[this.#next] = value;
    this.#next = (this.#next + 1) % this.#capacity;
  }

  quantile(share: number): number | undefined {
    if (this.#values.length === 0) return undefined;
    const sorted = this.#values.toSorted((a, b) => a - b);
    return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  }
}
