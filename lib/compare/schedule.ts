/**
 * Trains the runs of a comparison, each by `nlac train` in a process of its own. Beside a run's directory lie NAME.log,
 * what its processes said, and NAME.json, how they ended: that is how a comparison goes on where it was stopped.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, rmSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { onDisk, readJson } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { parseRecipe, type Recipe } from "../recipe/recipe.ts";
import { lock, readDescription, withoutKeys } from "../run/directory.ts";
import type { PlannedRun } from "./comparison.ts";

/** How the last process of a run ended, and what all of its processes took. */
const outcomeSchema = z.strictObject({
  /** Its training was finished, stopped to go on later, or broke off. */
  state: z.enum(["finished", "stopped", "failed"]),
  /** Why it broke off. */
  reason: z.string().nullable(),
  /** With loading and warm-up. */
  seconds: z.number(),
  /** Peak of resident memory; null where the system does not tell. */
  peakBytes: z.number().nullable(),
});

export type Outcome = z.infer<typeof outcomeSchema>;
export type RunState = Outcome["state"] | "waiting" | "running";

/** A run and where it stands. */
export interface ComparedRun {
  method: string;
  seed: number;
  /** The run directory. */
  path: string;
  state: RunState;
  /** Undefined until a process of it has ended. */
  outcome?: Outcome;
  /** Of the process that trains it now: `performance.now()` at its start. */
  started?: number;
}

/** A run with all that is needed to train it. */
export type TrainableRun = ComparedRun & PlannedRun;

/** The runs as `directory` has them. Throws ERR_RUN when a file that says how one ended is damaged. */
export function findRuns<Run extends Pick<ComparedRun, "method" | "seed">>(
  runs: readonly Run[],
  directory: string,
): (Run & ComparedRun)[] {
  return runs.map((run) => {
    const path = join(directory, run.method, String(run.seed));
    if (!existsSync(`${path}.json`)) {
      // A checkpoint without an outcome: the comparison itself was killed.
      return { ...run, path, state: existsSync(join(path, "latest")) ? "stopped" : "waiting" };
    }
    const outcome = readJson(`${path}.json`, outcomeSchema, "ERR_RUN");
    // What was deleted is to be trained anew.
    if (outcome.state === "finished" && !existsSync(path)) return { ...run, path, state: "waiting" };
    return { ...run, path, outcome, state: outcome.state };
  });
}

/** What was trained before goes on, and is compared, only under the recipe that it began with. Throws ERR_RUN. */
export function requireSameRecipe({ path, resolved }: TrainableRun): void {
  if (!existsSync(join(path, "run.json"))) return;
  const recorded = parseRecipe(readDescription(path).recipe, path);
  if (isDeepStrictEqual(recorded, asRecorded(resolved, path))) return;
  throw new NlacError(
    "ERR_RUN",
    `${path} was trained by another recipe than the comparison has now: choose another --out, or delete it.`,
  );
}

/** A recipe as it comes back from a run directory, where a key of a service is never written. */
function asRecorded(recipe: Recipe, path: string): Recipe {
  return parseRecipe(JSON.parse(JSON.stringify(recipe, withoutKeys)), path);
}

export interface ScheduleOptions {
  /** Processes at once, and the threads that they share. */
  jobs: number;
  threads: number;
  /** A program that takes nlac's command line. Default: this very one. */
  program?: readonly string[];
  /** Called when a run has begun or ended. */
  onChange?(run: ComparedRun): void;
}

export class Schedule {
  readonly #options: ScheduleOptions;
  readonly #children = new Set<ChildProcess>();
  #stopping = false;

  constructor(options: ScheduleOptions) {
    this.#options = options;
  }

  /** Trains what is not finished. A run that fails says so, and the others go on. Throws ERR_IO. */
  async train(runs: readonly TrainableRun[]): Promise<void> {
    const waiting = runs.filter(({ state }) => state !== "finished");
    const worker = async () => {
      for (;;) {
        const run = this.#stopping ? undefined : waiting.shift();
        if (run === undefined) return;
        await this.#run(run);
      }
    };
    try {
      await Promise.all(Array.from({ length: this.#options.jobs }, worker));
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  /** Tells the processes to stop at their next safe point; when told again, they quit at once. */
  stop(): void {
    this.#stopping = true;
    for (const child of this.#children) child.kill("SIGTERM");
  }

  async #run(run: TrainableRun): Promise<void> {
    run.state = "running";
    run.started = performance.now();
    this.#options.onChange?.(run);
    const { state, reason, peakBytes } = await this.#process(run);
    const seconds = (performance.now() - run.started) / 1000;
    run.outcome = {
      state,
      reason,
      seconds: (run.outcome?.seconds ?? 0) + seconds,
      peakBytes: peakBytes === null ? null : Math.max(peakBytes, run.outcome?.peakBytes ?? 0),
    };
    writeAtomically(`${run.path}.json`, `${JSON.stringify(run.outcome)}\n`);
    run.state = state;
    delete run.started;
    this.#options.onChange?.(run);
  }

  async #process(run: TrainableRun): Promise<Omit<Outcome, "seconds">> {
    const resuming = existsSync(join(run.path, "latest"));
    try {
      if (!resuming) clear(run.path);
    } catch (error) {
      return { state: "failed", reason: (error as Error).message, peakBytes: null };
    }
    const log = `${run.path}.log`;
    onDisk(log, () => mkdirSync(dirname(log), { recursive: true }));
    const descriptor = onDisk(log, () => openSync(log, "a"));
    const logged = statSync(log).size;
    const recipe = [run.recipe, ...run.changes.flatMap((change) => ["--set", change])];
    const [command, ...before] = this.#options.program ?? thisProgram();
    const threads = String(Math.max(1, Math.floor(this.#options.threads / this.#options.jobs)));
    const child = spawn(
      command!,
      [...before, "train", ...(resuming ? ["--resume"] : recipe), "--run", run.path, "--json"],
      {
        env: { ...process.env, NLAC_THREADS: threads, OMP_NUM_THREADS: threads, MKL_NUM_THREADS: threads },
        stdio: ["ignore", "pipe", descriptor],
        detached: true, // Ctrl-C is for the comparison, which tells its processes once
      },
    );
    closeSync(descriptor);
    this.#children.add(child);
    let peakBytes: number | null = null;
    const clock = setInterval(() => {
      peakBytes = peakMemory(child.pid) ?? peakBytes;
    }, 500);
    let output = "";
    child.stdout!.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
    const ended = await new Promise<string | undefined>((resolve) => {
      child.on("error", (error) => resolve(error.message));
      child.on("close", (code, signal) =>
        resolve(code === 0 ? undefined : `ended by ${signal ?? `exit ${code}`}`),
      );
    });
    clearInterval(clock);
    this.#children.delete(child);
    if (ended === undefined) {
      const stopped = saysStopped(output);
      if (stopped === undefined) return { state: "failed", reason: "ended without a result", peakBytes };
      return { state: stopped ? "stopped" : "finished", reason: null, peakBytes };
    }
    if (this.#stopping) return { state: "stopped", reason: null, peakBytes };
    return { state: "failed", reason: fault(log, logged) ?? ended, peakBytes };
  }
}

/** Removes what a run left that never came to a checkpoint, unless a process is still at it. Throws ERR_RUN, ERR_IO. */
function clear(path: string): void {
  if (!existsSync(path)) return;
  lock(path);
  onDisk(path, () => rmSync(path, { recursive: true }));
}

/** Whether a training's result, the last line it wrote, says that it is to be gone on with; undefined without one. */
function saysStopped(output: string): boolean | undefined {
  try {
    const { stopped } = JSON.parse(output.trim().split("\n").at(-1)!) as { stopped?: unknown };
    return typeof stopped === "boolean" ? stopped : undefined;
  } catch {
    return undefined;
  }
}

/** The error that nlac wrote to `log` after its first `from` bytes, without the program's name. */
function fault(log: string, from: number): string | undefined {
  const text = onDisk(log, () => readFileSync(log))
    .subarray(from)
    .toString("utf8");
  const line = text.split("\n").findLast((line) => line.startsWith("nlac: ERR_"));
  return line?.slice("nlac: ".length);
}

/** The most memory that a process has had at once, bytes; null where /proc is not there, or the process is gone. */
function peakMemory(pid: number | undefined): number | null {
  try {
    const found = /^VmHWM:\s*(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"));
    return found === null ? null : Number(found[1]) * 1024;
  } catch {
    return null;
  }
}

/** JavaScript in the package, TypeScript through jiti in a checkout's tests. */
function thisProgram(): string[] {
  const compiled = import.meta.url.endsWith(".js");
  const file = fileURLToPath(new URL(compiled ? "../cli/main.js" : "../cli/main.ts", import.meta.url));
  return [process.execPath, ...(compiled ? [] : ["--import", "jiti/register"]), file];
}
