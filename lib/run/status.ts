/**
 * status.json: whether a run is running, finished, stopped or failed, and how far it is. Rewritten
 * every few seconds while it runs, so that a reader knows when its process has ended.
 */

import { existsSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import type { Progress } from "../display/progress.ts";
import { RemainingTime } from "../display/remaining-time.ts";
import { readJson, removeIfPossible } from "../files/disk.ts";

const runStatus = z.strictObject({
  state: z.enum(["running", "finished", "stopped", "failed"]),
  /**
   * Seconds since 1970: when this process began, and when it wrote last. Both by the clock at the
   * last write, so that their difference is right after the clock has jumped.
   */
  started: z.number(),
  heartbeat: z.number(),
  /** The phase, and its finished and total steps. */
  phase: z.string(),
  done: z.number(),
  total: z.number(),
  /** Share of the training that is done, 0 to 1. */
  fraction: z.number(),
  /** Estimated seconds that it still takes after the last write; absent before the first progress. */
  left: z.number().optional(),
  /** Why it failed. */
  error: z.strictObject({ code: z.string(), message: z.string() }).optional(),
});

/** Contents of status.json. */
export type RunStatus = z.infer<typeof runStatus>;

/** Milliseconds between two writes while nothing changes. */
export const heartbeatMs = 5000;
/** Seconds without a write after which a process that was running has ended. */
export const longestSilence = (heartbeatMs * 6) / 1000;

/** Undefined for a run of an earlier version. Throws ERR_RUN for a damaged file. */
export function readStatus(run: string): RunStatus | undefined {
  const path = join(run, "status.json");
  return existsSync(path) ? readJson(path, runStatus, "ERR_RUN") : undefined;
}

/** Writes status.json from the calls of a progress display, and passes the calls on. */
export class StatusWriter implements Progress {
  readonly #path: string;
  readonly #shown: Progress;
  readonly #status: RunStatus;
  readonly #clock: NodeJS.Timeout;
  /** `performance.now()` when this process began, and at the last write. */
  readonly #begun = performance.now();
  #written = 0;
  readonly #remaining = new RemainingTime();

  constructor(run: string, shown: Progress) {
    this.#path = join(run, "status.json");
    this.#shown = shown;
    const now = Date.now() / 1000;
    this.#status = {
      ...{ state: "running", started: now, heartbeat: now, phase: "", done: 0, total: 0 },
      fraction: 0,
    };
    this.#write();
    this.#clock = setInterval(() => this.#write(), heartbeatMs).unref();
  }

  phase(name: string, total: number): void {
    Object.assign(this.#status, { phase: name, total, done: 0 });
    this.#remaining.phase(performance.now() / 1000);
    this.#shown.phase(name, total);
    this.#soon();
  }

  advance(done: number, tokens?: number): void {
    this.#status.done = done;
    this.#shown.advance(done, tokens);
    this.#soon();
  }

  show(figures: Record<string, number>): void {
    this.#shown.show(figures);
  }

  hide(name: string): void {
    this.#shown.hide?.(name);
  }

  note(text: string): void {
    this.#shown.note?.(text);
  }

  iteration(number: number, total?: number): void {
    this.#remaining.iterations = total;
    this.#shown.iteration?.(number, total);
  }

  overall(fraction: number): void {
    this.#remaining.overall(fraction, performance.now() / 1000);
    this.#status.fraction = fraction;
    this.#shown.overall(fraction);
  }

  /** Writes how the run ended, and stops. */
  end(state: Exclude<RunStatus["state"], "running">, error?: RunStatus["error"]): void {
    clearInterval(this.#clock);
    if (this.#status.state !== "running") return;
    Object.assign(this.#status, { state, ...(error && { error }) });
    this.#write();
  }

  /** At most one write a second. */
  #soon(): void {
    if (performance.now() - this.#written >= 1000) this.#write();
  }

  /**
   * Not synced: nothing depends on it, and the next process of the run writes it again. A full disk
   * must not end the training, whose records report it.
   */
  #write(): void {
    this.#written = performance.now();
    this.#status.heartbeat = Date.now() / 1000;
    this.#status.started = this.#status.heartbeat - (this.#written - this.#begun) / 1000;
    this.#status.left = this.#remaining.left(this.#written / 1000);
    const partial = `${this.#path}.partial`;
    try {
      writeFileSync(partial, `${JSON.stringify(this.#status)}\n`);
      renameSync(partial, this.#path);
    } catch {
      removeIfPossible(partial);
    }
  }
}
