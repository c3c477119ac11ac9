/** What a comparison came to: every method's figures at the same number of environment steps, and every run's. */

import { describeSource, type Source } from "../bench/machine.ts";
import type { Interval } from "../rollout/intervals.ts";
import { mean } from "../rollout/losses.ts";
import { bootstrap } from "../statistics.ts";
import type { Comparison } from "./comparison.ts";
import { type Point, type RunFigures, readFigures, smoothed, valueAt } from "./runs.ts";
import type { ComparedRun, RunState } from "./schedule.ts";
import { interquartileMean, median, probabilityOfImprovement } from "./statistics.ts";

/** What stands for success: the same for all methods. */
export type Measure = "evaluated" | "collected";

export interface RunReport {
  method: string;
  seed: number;
  state: RunState;
  /** Why it broke off. */
  reason: string | null;
  /** Of the environment, so far; more than the comparison's where the last round of episodes went beyond. */
  environmentSteps: number;
  /** At the comparison's number of steps, or where it ended before; null while that is not known. */
  success: number | null;
  updates: number;
  gradientTokens: number;
  generatedTokens: number;
  /** Of its processes, with loading and warm-up; null until one has ended. */
  seconds: number | null;
  /** Peak of resident memory, bytes; null where it is not known. */
  peakBytes: number | null;
  curve: Point[];
}

/** A method's success after so many steps. */
export interface CurvePoint extends Interval {
  steps: number;
}

export interface MethodReport {
  name: string;
  recipe: string;
  /** Runs that count, of as many as there are seeds. */
  counted: number;
  /** Interquartile mean of the counted runs' success; null where none counts, like all that follows. */
  success: Interval | null;
  mean: number | null;
  median: number | null;
  /** The probability that a run of it ends above one of the reference; null for the reference itself. */
  improvement: Interval | null;
  /** Means of the counted runs. */
  updates: number | null;
  gradientTokens: number | null;
  generatedTokens: number | null;
  seconds: number | null;
  peakBytes: number | null;
  /** Of the runs that count; while none does, of those that have begun, as far as all of them have come. */
  curve: CurvePoint[];
  curveRuns: number;
}

export interface Report {
  comparison: Comparison;
  date: string;
  source: Source;
  measure: Measure;
  methods: MethodReport[];
  runs: RunReport[];
}

/** Places on the axis of steps at which curves are drawn, beside 0. */
const gridPoints = 40;
/** Episodes that were collected are averaged over this share of the comparison's steps. */
export const smoothing = 0.1;

/** Reads every run and takes the figures of every method. Throws ERR_RUN for damaged records, ERR_IO. */
export function makeReport(comparison: Comparison, runs: readonly ComparedRun[]): Report {
  const figures = runs.map(({ path }) => readFigures(path, comparison.environmentSteps));
  const begun = figures.filter(({ environmentSteps }) => environmentSteps > 0);
  const measure: Measure =
    begun.length > 0 && begun.every(({ evaluated }) => evaluated.length > 0) ? "evaluated" : "collected";
  const reports = runs.map((run, i) => reportRun(comparison, run, figures[i]!, measure));
  const ofMethod = (name: string) => reports.filter(({ method }) => method === name);
  return {
    comparison,
    date: new Date().toISOString(),
    source: describeSource(),
    measure,
    methods: comparison.methods.map(({ name, recipe }) =>
      reportMethod(
        comparison,
        { name, recipe },
        ofMethod(name),
        name === comparison.reference ? undefined : ofMethod(comparison.reference),
      ),
    ),
    runs: reports,
  };
}

/** A run that has ended, by itself or by a fault: what it came to is all that it will come to. */
export function isOver(state: RunState): boolean {
  return state === "finished" || state === "failed";
}

/** A run that has ended before the steps that it was given: its last success counts where it came no further. */
export function endedShort({ state, environmentSteps }: RunReport, comparison: Comparison): boolean {
  return isOver(state) && environmentSteps < comparison.environmentSteps;
}

function reportRun(
  { environmentSteps: budget }: Comparison,
  { method, seed, state, outcome, started }: ComparedRun,
  figures: RunFigures,
  measure: Measure,
): RunReport {
  const { environmentSteps, updates, gradientTokens, generatedTokens } = figures;
  const points =
    measure === "evaluated" ? figures.evaluated : smoothed(figures.collected, smoothing * budget);
  const now = started === undefined ? 0 : (performance.now() - started) / 1000;
  return {
    ...{ method, seed, state, environmentSteps, updates, gradientTokens, generatedTokens },
    reason: state === "failed" ? (outcome?.reason ?? null) : null,
    success: known(valueAt(points, budget, isOver(state))),
    seconds: outcome === undefined && now === 0 ? null : (outcome?.seconds ?? 0) + now,
    peakBytes: outcome?.peakBytes ?? null,
    curve: points,
  };
}

function reportMethod(
  { environmentSteps: budget }: Comparison,
  { name, recipe }: { name: string; recipe: string },
  runs: readonly RunReport[],
  reference: readonly RunReport[] | undefined,
): MethodReport {
  const counted = runs.filter(({ success }) => success !== null);
  const scores = counted.map(({ success }) => success!);
  const drawn = counted.length > 0 ? counted : runs.filter(({ curve }) => curve.length > 0);
  const against = reference?.flatMap(({ success }) => success ?? []);
  const average = (figure: (run: RunReport) => number | null) =>
    known(mean(counted.flatMap((run) => figure(run) ?? [])));
  return {
    name,
    recipe,
    counted: counted.length,
    success: knownInterval(bootstrap([scores], ([sample]) => [interquartileMean(sample!)])[0]!),
    mean: known(mean(scores)),
    median: known(median(scores)),
    improvement:
      against === undefined
        ? null
        : knownInterval(bootstrap([scores, against], ([a, b]) => [probabilityOfImprovement(a!, b!)])[0]!),
    updates: average(({ updates }) => updates),
    gradientTokens: average(({ gradientTokens }) => gradientTokens),
    generatedTokens: average(({ generatedTokens }) => generatedTokens),
    seconds: average(({ seconds }) => seconds),
    peakBytes: average(({ peakBytes }) => peakBytes),
    curve: methodCurve(drawn, budget),
    curveRuns: drawn.length,
  };
}

/** A draw takes runs whole, so that its curve is of the same runs from its beginning to its end. */
function methodCurve(runs: readonly RunReport[], budget: number): CurvePoint[] {
  const grid = Array.from({ length: gridPoints + 1 }, (_, i) => (budget * i) / gridPoints);
  const curves = runs.map(({ curve, state }) => grid.map((steps) => valueAt(curve, steps, isOver(state))));
  const intervals = bootstrap([curves], ([sample]) =>
    grid.map((_, i) => interquartileMean(sample!.map((values) => values[i]!))),
  );
  return grid.flatMap((steps, i) =>
    Number.isNaN(intervals[i]!.estimate) ? [] : [{ steps, ...intervals[i]! }],
  );
}

/** JSON has no NaN. */
function known(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

function knownInterval(interval: Interval): Interval | null {
  return Number.isNaN(interval.estimate) || Number.isNaN(interval.low) ? null : interval;
}
