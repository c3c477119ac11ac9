/**
 * Shows the progress of a comparison on stderr. At a terminal: a line per run, updated in place.
 * In a pipe: a line when a run starts or ends, and regular lines for the running ones.
 */

import { statSync } from "node:fs";
import { getOrAdd } from "../base/get-or-add.ts";
import {
  fitParts,
  type LinePart,
  LiveLines,
  type ProgressStream,
  progressBar,
} from "../display/live-lines.ts";
import { formatSeconds } from "../display/progress.ts";
import { metricsPath } from "../run/metrics.ts";
import { longestSilence, type RunStatus, readStatus } from "../run/status.ts";
import { isOver, measureOf, pointsOf } from "./report.ts";
import { type RunFigures, readFigures, valueAt } from "./run-figures.ts";
import type { ComparedRun } from "./schedule.ts";
import { formatCount, formatShare, nameOf } from "./table.ts";

/** A metrics file is not read again for this many times as long as reading it took. */
const readingPause = 50;
/** Seconds between updates. */
const plainInterval = 60;
const drawInterval = 2;
const barWidth = 16;

interface Standing {
  /** Size of the metrics file when it was last read. */
  bytes: number;
  /** `performance.now()` from which it may be read again, so that reading costs little time. */
  due: number;
  steps: number;
  figures: RunFigures | undefined;
}

/** Columns of the parts whose width differs between runs. */
type Widths = Record<"state" | "time" | "counted", number>;

function formatKnown(seconds: number | null): string {
  return seconds === null ? "" : formatSeconds(seconds);
}

/**
 * What the process of a running run has written about itself. Undefined before it has, and if the
 * file is that of an earlier process.
 */
function statusOf({ path, state }: ComparedRun): RunStatus | undefined {
  if (state !== "running") return undefined;
  let status: RunStatus | undefined;
  try {
    status = readStatus(path);
  } catch {
    return undefined; // damaged: the process soon writes it again
  }
  const isLive = status?.state === "running" && Date.now() / 1000 - status.heartbeat < longestSilence;
  return isLive ? status : undefined;
}

/** What a run does now: "update 3/16". */
function phaseOf({ phase, done, total }: RunStatus): string {
  return `${phase} ${done}/${total}`;
}

/** Elapsed and remaining time. After its updates, a run has an evaluation left to do. */
function timesOf({ started }: ComparedRun, status: RunStatus | undefined): string {
  const elapsed = formatSeconds((performance.now() - (started ?? performance.now())) / 1000);
  if (status?.left === undefined) return elapsed;
  return status.left > 0 ? `${elapsed}, ${formatSeconds(status.left)} left` : `${elapsed}, finishing`;
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
    this.#read(run, true);
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
    const parts = shown.map((run) => this.#parts(run));
    const widest = (part: keyof Widths) => Math.max(0, ...parts.map((texts) => texts[part].length));
    const widths = { state: widest("state"), time: widest("time"), counted: widest("counted") };
    this.#lines.draw([
      ...shown.map((run, i) => this.#line(run, parts[i], widths)),
      ...(waiting > 0 ? [`${waiting} waiting`] : []),
    ]);
  }

  /** What a line shows of a run's progress. */
  #parts(run: ComparedRun): Record<keyof Widths, string> & { share: number } {
    const { steps } = this.#read(run);
    const budget = this.#stepsOf(run.method);
    const status = statusOf(run);
    return {
      state: status !== undefined && status.total > 0 ? phaseOf(status) : run.state,
      time: run.state === "running" ? timesOf(run, status) : formatKnown(run.outcome?.seconds ?? null),
      // The last collection may exceed the budget; figures are those at the budget.
      counted: `${formatCount(Math.min(steps, budget))}/${formatCount(budget)} steps`,
      // Steps come before the updates that learn from them.
      share: status?.fraction ?? steps / budget,
    };
  }

  /** @param widths of the parts, so that the lines of all runs have the same columns */
  #line(
    run: ComparedRun,
    { state, time, counted, share } = this.#parts(run),
    widths: Widths = { state: 0, time: 0, counted: 0 },
  ): string {
    const success = this.#success(run);
    const names = Math.max(...this.#runs.map((run) => nameOf(run).length));
    const isLive = this.#stream.isTTY === true;
    const parts: LinePart[] = [
      { text: nameOf(run).padEnd(names), drop: 0 },
      { text: state.padEnd(Math.max(8, widths.state)), drop: 2 },
      ...(time === "" && !isLive ? [] : [{ text: time.padEnd(widths.time), drop: 0 }]),
      { text: progressBar(share, barWidth), drop: 3 },
      { text: counted.padStart(widths.counted), drop: 1 },
    ];
    // A run without a success yet leaves its place free.
    if (success !== null) parts.push({ text: `success ${formatShare(success)}`, drop: 0 });
    else if (isLive && run.state === "running")
      parts.push({ text: " ".repeat("success 0.00".length), drop: 0 });
    if (run.state === "failed" && run.outcome?.reason) parts.push({ text: run.outcome.reason, drop: 0 });
    return fitParts(parts, isLive ? this.#lines.width : Number.POSITIVE_INFINITY).trimEnd();
  }

  /** As the report computes it: by the same measure for all runs, and not beyond the budget. */
  #success(run: ComparedRun): number | null {
    const figures = [...this.#standings.values()].flatMap(({ figures }) => figures ?? []);
    const own = this.#standings.get(run)?.figures;
    if (own === undefined) return null;
    const budget = this.#stepsOf(run.method);
    const points = pointsOf(own, measureOf(figures), budget);
    const latest = points.at(-1);
    if (latest === undefined) return null;
    const value = valueAt(points, Math.min(latest.steps, budget), isOver(run.state));
    return Number.isNaN(value) ? null : value;
  }

  /** The run's progress; reads its metrics if they have grown, and if it is time or `now`. */
  #read(run: ComparedRun, now = false): Standing {
    const unread = () => ({ bytes: -1, due: 0, steps: 0, figures: undefined });
    const standing: Standing = getOrAdd(this.#standings, run, unread);
    const bytes = statSync(metricsPath(run.path), { throwIfNoEntry: false })?.size ?? 0;
    const started = performance.now();
    if (bytes === standing.bytes || (!now && started < standing.due)) return standing;
    standing.bytes = bytes;
    try {
      standing.figures = readFigures(run.path, this.#stepsOf(run.method));
      standing.steps = standing.figures.environmentSteps;
    } catch {
      // The file is damaged: the report says so when the run has ended.
    }
    const ended = performance.now();
    standing.due = ended + readingPause * (ended - started);
    return standing;
  }
}
