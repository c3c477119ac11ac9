/**
 * Trains the runs of a comparison, each with `nlac train` in its own process. Next to a run's
 * directory, NAME.log has the output of its processes, and NAME.json says how they ended, so that
 * a stopped comparison can be resumed.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync, rmSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { z } from "zod";
import { failureOfChild, moduleArguments, threadVariables } from "../base/child-process.ts";
import { NlacError } from "../base/errors.ts";
import { residentMemory } from "../base/platform.ts";
import { makeDirectory, onDisk, readJson } from "../files/disk.ts";
import { withLock } from "../files/lock.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { parseRecipe } from "../recipe/recipe.ts";
import { changedFields } from "../recipe/run-recipe.ts";
import { hasCheckpoint } from "../run/checkpoints.ts";
import { isRun, readDescription } from "../run/description.ts";
import { lockRun } from "../run/directory.ts";
import type { PlannedRun } from "./comparison.ts";

/** How the last process of a run ended, and the totals of all its processes. */
const outcomeSchema = z.strictObject({
  /** "stopped": it can be resumed. */
  state: z.enum(["finished", "stopped", "failed"]),
  /** Why it failed. */
  reason: z.string().nullable(),
  /** Includes loading and warm-up; null if unknown, because a comparison was killed meanwhile. */
  seconds: z.number().nullable(),
  /** Peak resident memory; null if unknown. */
  peakBytes: z.number().nullable(),
});

export type Outcome = z.infer<typeof outcomeSchema>;

/** While a process runs: nobody knows its time and memory if the comparison is killed. */
const unknownOutcome: Outcome = { state: "stopped", reason: null, seconds: null, peakBytes: null };

export type RunState = Outcome["state"] | "waiting" | "running";

/** A run and its state. */
export interface ComparedRun {
  method: string;
  seed: number;
  /** The run directory. */
  path: string;
  state: RunState;
  /** Undefined until a process of it has ended. */
  outcome?: Outcome;
  /** `performance.now()` at the start of the current process. */
  started?: number;
  /** Why its outcome cannot be read; undefined if it can, and once a process of it has ended. */
  fault?: string;
}

/** A run with everything needed to train it. */
export type TrainableRun = ComparedRun & PlannedRun;

/** The state of each run in `directory`. One whose outcome is damaged counts as not ended. */
export function findRuns<Run extends Pick<ComparedRun, "method" | "seed">>(
  runs: readonly Run[],
  directory: string,
): (Run & ComparedRun)[] {
  return runs.map((run) => {
    const path = join(directory, run.method, String(run.seed));
    // A checkpoint without an outcome: the comparison was killed.
    const open = { ...run, path, state: hasCheckpoint(path) ? "stopped" : "waiting" } as const;
    if (!existsSync(`${path}.json`)) return open;
    let outcome: Outcome;
    try {
      outcome = readJson(`${path}.json`, outcomeSchema, "ERR_RUN");
    } catch (error) {
      return { ...open, outcome: unknownOutcome, fault: (error as Error).message };
    }
    // The run directory was deleted: train it again.
    if (outcome.state === "finished" && !existsSync(path)) return { ...run, path, state: "waiting" };
    return { ...run, path, outcome, state: outcome.state };
  });
}

/**
 * Checks that a run was started with the recipe that the comparison has now. A run whose run.json
 * is damaged passes: it cannot be resumed, and the others can.
 * Throws ERR_RUN.
 */
export function requireSameRecipe({ path, resolved }: TrainableRun): void {
  if (!isRun(path)) return;
  let description: Record<string, unknown>;
  try {
    description = readDescription(path);
  } catch {
    return;
  }
  const changed = changedFields(resolved, parseRecipe(description.recipe, path));
  if (changed.length === 0) return;
  throw new NlacError(
    "ERR_RUN",
    `${path} was trained with a different recipe than the comparison has now (${changed.join(", ")}): ` +
      "choose another --out, or delete it.",
  );
}

export interface ScheduleOptions {
  /** Number of concurrent processes, and the threads that they share. */
  jobs: number;
  threads: number;
  /** The nlac program and its first arguments. Default: this one. */
  program?: readonly string[];
  /** Called when a run has started or ended. */
  onChange?(run: ComparedRun): void;
  /** Called when a run waits for `holder`, a process that trains it already. */
  onWait?(run: ComparedRun, holder: string): void;
}

export class Schedule {
  readonly #options: ScheduleOptions;
  readonly #children = new Set<ChildProcess>();
  readonly #stopping = new AbortController();

  constructor(options: ScheduleOptions) {
    this.#options = options;
  }

  /**
   * Trains the runs that are not finished. Continues after a failed run. Throws ERR_IO, after all
   * processes have ended.
   */
  async train(runs: readonly TrainableRun[]): Promise<void> {
    const waiting = runs.filter(({ state }) => state !== "finished");
    const worker = async () => {
      try {
        for (;;) {
          const run = this.#isStopping ? undefined : waiting.shift();
          if (run === undefined) return;
          await this.#run(run);
        }
      } catch (error) {
        // A second stop would not let the processes reach a safe point.
        if (!this.#isStopping) this.stop();
        throw error;
      }
    };
    const ended = await Promise.allSettled(Array.from({ length: this.#options.jobs }, worker));
    const failed = ended.find(({ status }) => status === "rejected");
    if (failed !== undefined) throw (failed as PromiseRejectedResult).reason;
  }

  get #isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** Stops the processes at their next safe point; a second call stops them at once. */
  stop(): void {
    this.#stopping.abort();
    for (const child of this.#children) child.kill("SIGTERM");
  }

  async #run(run: TrainableRun): Promise<void> {
    await this.#waitForOthers(run);
    if (this.#isStopping) return;
    const before = run.outcome ?? { seconds: 0, peakBytes: 0 };
    makeDirectory(dirname(run.path));
    writeOutcome(run.path, unknownOutcome);
    run.state = "running";
    run.started = performance.now();
    this.#options.onChange?.(run);
    const { state, reason, peakBytes } = await this.#process(run);
    const seconds = (performance.now() - run.started) / 1000;
    run.outcome = {
      state,
      reason,
      seconds: before.seconds === null ? null : before.seconds + seconds,
      peakBytes:
        before.seconds === null || peakBytes === null ? null : Math.max(peakBytes, before.peakBytes ?? 0),
    };
    writeOutcome(run.path, run.outcome);
    run.state = state;
    delete run.started;
    delete run.fault;
    this.#options.onChange?.(run);
  }

  /** Waits until no other process trains the run: a killed comparison leaves its processes running. */
  async #waitForOthers(run: TrainableRun): Promise<void> {
    if (!existsSync(run.path)) return;
    try {
      await withLock(join(run.path, "lock"), async () => {}, {
        pollMs: 1000,
        signal: this.#stopping.signal,
        onWait: (holder) => this.#options.onWait?.(run, holder),
      });
    } catch {
      // Stopped; or a file system error, which also fails the training below.
    }
  }

  async #process(run: TrainableRun): Promise<Omit<Outcome, "seconds">> {
    const resuming = hasCheckpoint(run.path);
    try {
      if (!resuming) clear(run.path);
    } catch (error) {
      return { state: "failed", reason: (error as Error).message, peakBytes: null };
    }
    const log = `${run.path}.log`;
    const descriptor = onDisk(log, () => openSync(log, "a"));
    const logged = statSync(log).size;
    const recipe = [run.recipe, ...run.changes.flatMap((change) => ["--set", change])];
    const thisProgram = [process.execPath, ...moduleArguments("../cli/main", import.meta.url)];
    const [command, ...before] = this.#options.program ?? thisProgram;
    const threads = Math.max(1, Math.floor(this.#options.threads / this.#options.jobs));
    const child = spawn(
      command!,
      [...before, "train", ...(resuming ? ["--resume"] : recipe), "--run", run.path, "--json"],
      {
        env: { ...process.env, ...threadVariables(threads) },
        stdio: ["ignore", "pipe", descriptor],
        detached: true, // the comparison handles Ctrl-C and stops its processes
      },
    );
    closeSync(descriptor);
    this.#children.add(child);
    let peakBytes: number | null = null;
    const clock = setInterval(() => {
      const bytes = child.pid === undefined ? null : residentMemory(child.pid);
      if (bytes !== null) peakBytes = Math.max(bytes, peakBytes ?? 0);
    }, 500);
    let output = "";
    child.stdout!.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
    const ended = await failureOfChild(child);
    clearInterval(clock);
    this.#children.delete(child);
    if (ended === undefined) {
      const stopped = saysStopped(output);
      if (stopped === undefined) return { state: "failed", reason: "ended without a result", peakBytes };
      return { state: stopped ? "stopped" : "finished", reason: null, peakBytes };
    }
    if (this.#isStopping) return { state: "stopped", reason: null, peakBytes };
    return { state: "failed", reason: fault(log, logged) ?? ended, peakBytes };
  }
}

function writeOutcome(path: string, outcome: Outcome): void {
  writeAtomically(`${path}.json`, `${JSON.stringify(outcome)}\n`);
}

/** Removes a run without a checkpoint, unless a process uses it. Throws ERR_RUN, ERR_IO. */
function clear(path: string): void {
  if (!existsSync(path)) return;
  const lock = lockRun(path);
  try {
    onDisk(path, () => rmSync(path, { recursive: true }));
  } finally {
    lock.release();
  }
}

/** Whether the result of a training says that it was stopped; undefined if there is no result. */
function saysStopped(output: string): boolean | undefined {
  try {
    const { stopped } = JSON.parse(output.trim().split("\n").at(-1)!) as { stopped?: unknown };
    return typeof stopped === "boolean" ? stopped : undefined;
  } catch {
    return undefined;
  }
}

/** The last error that nlac wrote to `log` after byte `from`, without the program's name. */
function fault(log: string, from: number): string | undefined {
  const text = onDisk(log, () => readFileSync(log))
    .subarray(from)
    .toString("utf8");
  const line = text.split("\n").findLast((line) => line.startsWith("nlac: ERR_"));
  return line?.slice("nlac: ".length);
}
