/**
 * Shows the progress of a comparison on stderr. At a terminal: a line per run, updated in place.
 * In a pipe: a line when a run starts or ends, and regular lines for the running ones.
 */

import { statSync } from "node:fs";
import { join } from "node:path";
import { LiveLines, type ProgressStream, progressBar } from "../display/live-lines.ts";
import { formatSeconds } from "../display/progress.ts";
import { smoothing } from "./report.ts";
import { readFigures, smoothed } from "./run-figures.ts";
import type { ComparedRun } from "./schedule.ts";
import { formatCount, formatShare, nameOf } from "./table.ts";

/** Seconds between updates. */
const plainInterval = 60;
const drawInterval = 2;
const barWidth = 16;

interface Standing {
  /** Size of the metrics file when it was last read. */
  bytes: number;
  steps: number;
  /** Steps when the run's process started, to compute its speed. */
  stepsBefore: number | undefined;
  success: number | null;
}

export class RunsDisplay {
  readonly #runs: readonly ComparedRun[];
  readonly #stepsOf: (method: string) => number;
  readonly #stream: ProgressStream;
  readonly #standings = new Map<ComparedRun, Standing>();
  readonly #clock: NodeJS.Timeout;
  readonly #lines: LiveLines;

  /** @param stepsOf returns the environment steps of a method's runs */
  constructor(
    runs: readonly ComparedRun[],
    stepsOf: (method: string) => number,
    stream: ProgressStream = process.stderr,
  ) {
    this.#runs = runs;
    this.#stepsOf = stepsOf;
    this.#stream = stream;
    this.#lines = new LiveLines(stream);
    const interval = stream.isTTY ? drawInterval : plainInterval;
    this.#clock = setInterval(() => this.#look(), interval * 1000).unref();
  }

  /** Call when a run has started or ended. */
  changed(run: ComparedRun): void {
    const standing = this.#read(run);
    if (run.state === "running") standing.stepsBefore = standing.steps;
    if (this.#stream.isTTY) this.#draw();
    else this.#stream.write(`${this.#line(run)}\n`);
  }

  /** Prints `text` above the lines of the runs. */
  note(text: string): void {
    this.#lines.note(text);
    if (this.#stream.isTTY) this.#draw();
  }

  /** Stops updating, and leaves the last state on the screen. */
  end(): void {
    clearInterval(this.#clock);
    this.#lines.end();
  }

  #look(): void {
    if (this.#stream.isTTY) this.#draw();
    else
      for (const run of this.#runs) if (run.state === "running") this.#stream.write(`${this.#line(run)}\n`);
  }

  #draw(): void {
    const begun = this.#runs.filter(({ state }) => state !== "waiting");
    // Lines that do not fit on the screen could not be updated: omit the runs that ended first.
    const room = Math.max(1, (this.#stream.rows ?? 24) - 2);
    const shown = begun
      .toSorted((a, b) => Number(a.state === "running") - Number(b.state === "running"))
      .slice(-room);
    const waiting = this.#runs.length - begun.length;
    this.#lines.draw([
      ...shown.map((run) => this.#line(run)),
      ...(waiting > 0 ? [`${waiting} waiting`] : []),
    ]);
  }

  #line(run: ComparedRun): string {
    const { steps, success } = this.#read(run);
    const budget = this.#stepsOf(run.method);
    const names = Math.max(...this.#runs.map((run) => nameOf(run).length));
    const parts = [
      nameOf(run).padEnd(names),
      run.state.padEnd(8),
      progressBar(steps / budget, barWidth),
      `${formatCount(steps)}/${formatCount(budget)} steps`,
    ];
    if (success !== null) parts.push(`success ${formatShare(success)}`);
    if (run.state === "running") parts.push(...this.#times(run));
    else if (run.outcome !== undefined) parts.push(formatSeconds(run.outcome.seconds));
    if (run.state === "failed" && run.outcome?.reason) parts.push(run.outcome.reason);
    return parts.join("  ");
  }

  #times(run: ComparedRun): string[] {
    const { steps, stepsBefore = 0 } = this.#standings.get(run)!;
    const gone = (performance.now() - (run.started ?? performance.now())) / 1000;
    const progressed = steps - stepsBefore;
    const left = (gone / progressed) * Math.max(0, this.#stepsOf(run.method) - steps);
    return [`${formatSeconds(gone)} gone`, ...(progressed > 0 ? [`${formatSeconds(left)} left`] : [])];
  }

  /** The run's progress; reads its metrics if they have grown. */
  #read(run: ComparedRun): Standing {
    const standing = this.#standings.get(run) ?? {
      bytes: -1,
      steps: 0,
      stepsBefore: undefined,
      success: null,
    };
    this.#standings.set(run, standing);
    const bytes = statSync(join(run.path, "metrics.jsonl"), { throwIfNoEntry: false })?.size ?? 0;
    if (bytes === standing.bytes) return standing;
    const budget = this.#stepsOf(run.method);
    const { environmentSteps, evaluated, collected } = readFigures(run.path, budget);
    const points = evaluated.length > 0 ? evaluated : smoothed(collected, smoothing * budget);
    return Object.assign(standing, {
      bytes,
      steps: environmentSteps,
      success: points.at(-1)?.value ?? null,
    });
  }
}
