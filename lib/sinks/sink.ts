/**
 * Destinations of a run's metrics and episodes besides its directory. Each has a bounded queue that
 * is sent in the background: a slow or failing one loses entries, which are counted, and never
 * delays or stops the run.
 */

import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../base/errors.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { runEvents } from "./config.ts";

/** What a sink receives about the run before anything else. */
export interface ReportedRun {
  /** Unique, and the same after `--resume`. */
  id: string;
  name: string;
  directory: string;
  /** The resolved recipe, without API keys. */
  recipe: Record<string, unknown>;
}

/** A row of metrics. */
export interface ReportedRow {
  /**
   * The row's number in metrics.jsonl, from 0. A resumed run repeats the numbers after its
   * checkpoint.
   */
  number: number;
  /** Number of updates. */
  step: number;
  /** Seconds since 1970. */
  time: number;
  /** Finite numbers. */
  values: Record<string, number>;
}

/** A change of the state of a run. */
export interface RunEvent {
  kind: (typeof runEvents)[number];
  /** Seconds since 1970. */
  time: number;
  /** One sentence. */
  message: string;
}

/** One destination. Its methods are called one at a time; a rejected one is repeated. */
export interface Sink {
  name: string;
  /** Called first, and again until it succeeds. */
  start?(run: ReportedRun, signal: AbortSignal): void | Promise<void>;
  metrics?(rows: readonly ReportedRow[], signal: AbortSignal): void | Promise<void>;
  /** `prepare` returns what `episodes` gets, so that no conversation is retained in a queue. */
  prepare?(episode: Trajectory, time: number): unknown;
  episodes?(prepared: readonly unknown[], signal: AbortSignal): void | Promise<void>;
  event?(event: RunEvent, signal: AbortSignal): void | Promise<void>;
}

export interface QueueLimits {
  /** Entries that wait; the oldest of them are dropped. */
  maxQueued: number;
  /** Entries of one call. */
  maxBatch: number;
  /** Longest duration of a call. */
  timeoutMs: number;
  /** Attempts of a call, and the pause before the second; it doubles. */
  attempts: number;
  pauseMs: number;
  /** Time that `close` has for what is left. */
  closeMs: number;
}

const defaultLimits: QueueLimits = {
  maxQueued: 2000,
  maxBatch: 100,
  timeoutMs: 10_000,
  attempts: 4,
  pauseMs: 1000,
  closeMs: 5000,
};

type Entry =
  | { kind: "metrics"; data: ReportedRow }
  | { kind: "episodes"; data: unknown }
  | { kind: "event"; data: RunEvent };

/** Sends entries to a sink in their order. No method throws. */
export class SinkQueue {
  readonly #sink: Sink;
  readonly #run: ReportedRun;
  readonly #limits: QueueLimits;
  readonly #ending = new AbortController();
  #waiting: Entry[] = [];
  /** Entries of the call in progress. */
  #inFlight = 0;
  #started = false;
  #sending: Promise<void> | undefined;
  #closing = false;
  #dropped = 0;
  #sent = 0;
  #lastError: string | undefined;

  constructor(sink: Sink, run: ReportedRun, limits: Partial<QueueLimits> = {}) {
    this.#sink = sink;
    this.#run = run;
    this.#limits = { ...defaultLimits, ...limits };
  }

  metrics(row: ReportedRow): void {
    if (this.#sink.metrics) this.#add({ kind: "metrics", data: row });
  }

  episode(episode: Trajectory, time: number): void {
    if (!this.#sink.episodes) return;
    try {
      this.#add({ kind: "episodes", data: this.#sink.prepare?.(episode, time) ?? episode });
    } catch (error) {
      this.#lose(1, error);
    }
  }

  event(event: RunEvent): void {
    if (this.#sink.event) this.#add({ kind: "event", data: event });
  }

  /** Sends what is left within the limit; returns a sentence if something was lost. */
  async close(): Promise<string | undefined> {
    this.#closing = true;
    const late = new AbortController();
    const limit = sleep(this.#limits.closeMs, undefined, { signal: late.signal }).catch(() => undefined);
    await Promise.race([this.#sending, limit]);
    late.abort();
    this.#ending.abort();
    const { length } = this.#waiting;
    this.#lose(length + this.#inFlight);
    this.#waiting = [];
    this.#inFlight = 0;
    if (this.#dropped === 0) return undefined;
    const why = this.#lastError === undefined ? "" : ` (last error: ${this.#lastError})`;
    return `report to ${this.#sink.name}: ${this.#dropped} of ${this.#dropped + this.#sent} entries were not sent${why}`;
  }

  #add(entry: Entry): void {
    if (this.#closing) {
      this.#lose(1);
      return;
    }
    this.#waiting.push(entry);
    if (this.#waiting.length > this.#limits.maxQueued) {
      // An event is rare and matters more than a row.
      const oldest = this.#waiting.findIndex(({ kind }) => kind !== "event");
      this.#waiting.splice(Math.max(0, oldest), 1);
      this.#lose(1);
    }
    this.#sending ??= this.#send();
  }

  async #send(): Promise<void> {
    await Promise.resolve(); // the caller's own work first
    while (this.#waiting.length > 0 && !this.#ending.signal.aborted) {
      const batch = this.#next();
      this.#inFlight = batch.length;
      const isSent = await this.#attempt(batch);
      if (this.#ending.signal.aborted) return; // `close` has counted them
      this.#inFlight = 0;
      if (isSent) this.#sent += batch.length;
      else this.#lose(batch.length);
    }
    this.#sending = undefined;
  }

  /** The longest run of entries of one kind; events are sent one by one. */
  #next(): Entry[] {
    const { kind } = this.#waiting[0]!;
    const other = this.#waiting.findIndex((entry) => entry.kind !== kind);
    const most = kind === "event" ? 1 : this.#limits.maxBatch;
    return this.#waiting.splice(0, Math.min(most, other < 0 ? this.#waiting.length : other));
  }

  async #attempt(batch: readonly Entry[]): Promise<boolean> {
    const { attempts, pauseMs, timeoutMs } = this.#limits;
    for (let i = 0; i < attempts && !this.#ending.signal.aborted; i++) {
      try {
        if (i > 0)
          await sleep(pauseMs * 2 ** (i - 1), undefined, { signal: this.#ending.signal, ref: false });
        const signal = AbortSignal.any([this.#ending.signal, AbortSignal.timeout(timeoutMs)]);
        await inTime(this.#call(batch, signal), signal);
        return true;
      } catch (error) {
        this.#lastError = messageOf(error);
        if (error instanceof PermanentError) return false;
      }
    }
    return false;
  }

  async #call(batch: readonly Entry[], signal: AbortSignal): Promise<void> {
    if (!this.#started) await this.#sink.start?.(this.#run, signal);
    this.#started = true;
    const data = batch.map(({ data }) => data);
    const { kind } = batch[0]!;
    if (kind === "metrics") await this.#sink.metrics?.(data as ReportedRow[], signal);
    else if (kind === "episodes") await this.#sink.episodes?.(data, signal);
    else await this.#sink.event?.(data[0] as RunEvent, signal);
  }

  #lose(count: number, error?: unknown): void {
    this.#dropped += count;
    if (error !== undefined) this.#lastError = messageOf(error);
  }
}

/** A failure that repeating does not help. */
export class PermanentError extends Error {}

/** Rejects when `signal` fires, also if the sink does not obey it. */
function inTime(work: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
