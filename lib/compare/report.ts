/** The results of a comparison: figures of every method after the same steps, and of every run. */

import { NlacError } from "../base/errors.ts";
import { describeSource, type Source } from "../run/build.ts";
import { interquartileMean, median, probabilityOfImprovement, shareOfWins } from "../statistics/few-runs.ts";
import { type Interval, wilsonInterval } from "../statistics/intervals.ts";
import { mean } from "../statistics/mean.ts";
import { bootstrap, type PermutationTest, permutationTest } from "../statistics/resampling.ts";
import { type Comparison, groupsOf, stepsOf } from "./comparison.ts";
import {
  type Axis,
  axes,
  noFigures,
  type Point,
  type RunFigures,
  readBuild,
  readFigures,
  smoothed,
  valueAt,
} from "./run-figures.ts";
import type { ComparedRun, RunState } from "./schedule.ts";

/** How success is measured; the same for all methods. */
export type Measure = "evaluated" | "collected";

export interface RunReport {
  method: string;
  seed: number;
  state: RunState;
  /** Why it failed. */
  reason: string | null;
  /** Why its files cannot be read, which one first; the run then does not count. */
  fault: string | null;
  /** Steps so far. More than the comparison's if the last collection exceeded the limit. */
  environmentSteps: number;
  /** Success after the comparison's steps, or at an earlier end; null while not known. */
  success: number | null;
  updates: number;
  gradientTokens: number;
  generatedTokens: number;
  /**
   * Total time of its processes, with loading and warm-up; null until one has started, and if
   * unknown.
   */
  seconds: number | null;
  /** Peak resident memory, bytes; null if unknown. */
  peakBytes: number | null;
  /** The build that trained it; null if not recorded. */
  build: string | null;
  /** Whether that build differs from the report's: the run is then shown but does not count. */
  otherBuild: boolean;
  curve: Point[];
}

/** A method's success at a position of an axis. */
export interface CurvePoint extends Interval {
  at: number;
}

/** The difference between a method and the reference. */
export interface Difference {
  /** Mean success minus the reference's, with its bootstrap interval. */
  means: Interval;
  test: PermutationTest;
}

export interface MethodReport {
  name: string;
  recipe: string;
  /** Runs that count; at most the number of seeds. */
  counted: number;
  /** Interquartile mean of the counted runs' success. Here and below: null without such runs. */
  success: Interval | null;
  mean: number | null;
  median: number | null;
  /**
   * Probability that a run of it ends above one of the reference; if the comparison is paired, the
   * share of seeds with which it does. Null for the reference.
   */
  improvement: Interval | null;
  /** Null for the reference, and if either has fewer than two runs that count. */
  difference: Difference | null;
  /** Means of the counted runs. */
  updates: number | null;
  gradientTokens: number | null;
  generatedTokens: number | null;
  seconds: number | null;
  peakBytes: number | null;
  /** Of the runs that count. If there are none yet: of started runs, as far as all of them are. */
  curves: Record<Axis, CurvePoint[]>;
  curveRuns: number;
}

export interface Report {
  comparison: Comparison;
  date: string;
  source: Source;
  measure: Measure;
  /** The build of the runs that count; null if not recorded. */
  build: string | null;
  methods: MethodReport[];
  runs: RunReport[];
}

/** Intervals at whose ends curves are drawn. */
const gridPoints = 40;
const tokenGridPoints = 160;
/** Success in collected episodes is averaged over this share of the comparison's steps. */
export const smoothing = 0.1;

/** Reads every run and computes the figures. Runs whose files are damaged are named and do not count. */
export function makeReport(comparison: Comparison, runs: readonly ComparedRun[]): Report {
  const read = runs.map((run) => readRun(run, stepsOf(comparison, run.method)));
  const measure = measureOf(read.map(({ figures }) => figures));
  const all = runs.map((run, i) => reportRun(comparison, run, read[i]!, measure));
  const build = mostFrequentBuild(all);
  const reports = all.map((run) => ({ ...run, otherBuild: isBegun(run) && run.build !== build }));
  const grids = gridsOf(comparison, reports);
  const ofMethod = (name: string) => reports.filter(({ method }) => method === name);
  const references = new Map(
    groupsOf(comparison).flatMap(({ methods, reference }) =>
      methods.map(({ name }) => [name, reference] as const),
    ),
  );
  return {
    comparison,
    date: new Date().toISOString(),
    source: describeSource(),
    measure,
    build,
    methods: comparison.methods.map(({ name, recipe }) => {
      const reference = references.get(name)!;
      return reportMethod(
        comparison,
        { name, recipe },
        ofMethod(name),
        name === reference ? undefined : ofMethod(reference),
        grids,
      );
    }),
    runs: reports,
  };
}

/** The report of each group; the whole report, if the comparison has no groups. */
export function reportsOfGroups(report: Report): Report[] {
  return groupsOf(report.comparison).map((comparison) => {
    const names = new Set(comparison.methods.map(({ name }) => name));
    return {
      ...report,
      comparison,
      methods: report.methods.filter(({ name }) => names.has(name)),
      runs: report.runs.filter(({ method }) => names.has(method)),
    };
  });
}

/** What a report reads of a run. */
interface ReadRun {
  figures: RunFigures;
  build: string | null;
  fault: string | null;
}

function readRun({ path, state, fault }: ComparedRun, budget: number): ReadRun {
  try {
    const build = readBuild(path);
    if (fault !== undefined) return { figures: noFigures(), build, fault };
    return { figures: readFigures(path, budget, state === "finished"), build, fault: null };
  } catch (error) {
    // One damaged file must not hide the other runs.
    if (!(error instanceof NlacError)) throw error;
    return { figures: noFigures(), build: null, fault: error.message };
  }
}

/**
 * Evaluations, if every run that has begun was evaluated; else the episodes played for training.
 */
export function measureOf(figures: readonly RunFigures[]): Measure {
  const begun = figures.filter(({ environmentSteps }) => environmentSteps > 0);
  return begun.length > 0 && begun.every(({ evaluated }) => evaluated.length > 0) ? "evaluated" : "collected";
}

/** A run's success over its steps by `measure`. */
export function pointsOf(
  { evaluated, collected }: Pick<RunFigures, "evaluated" | "collected">,
  measure: Measure,
  budget: number,
): Point[] {
  return measure === "evaluated" ? evaluated : smoothed(collected, smoothing * budget);
}

function isBegun({ environmentSteps, curve }: RunReport): boolean {
  return environmentSteps > 0 || curve.length > 0;
}

/**
 * Runs of different builds are not one sample: only those of the most frequent build count (the
 * first one in case of a tie).
 */
function mostFrequentBuild(runs: readonly RunReport[]): string | null {
  const counts = new Map<string | null, number>();
  const over = runs.filter(({ success }) => success !== null);
  for (const { build } of over.length > 0 ? over : runs.filter(isBegun))
    counts.set(build, (counts.get(build) ?? 0) + 1);
  const most = Math.max(0, ...counts.values());
  return [...counts].find(([, count]) => count === most)?.[0] ?? null;
}

/** Whether a run has ended with all its results, by completion or by an error. */
export function isOver(state: RunState): boolean {
  return state === "finished" || state === "failed";
}

/** Whether a run ended before its number of steps: its last success then counts. */
export function endedShort(
  { state, method, environmentSteps, fault }: RunReport,
  comparison: Comparison,
): boolean {
  return fault === null && isOver(state) && environmentSteps < stepsOf(comparison, method);
}

function reportRun(
  comparison: Comparison,
  { method, seed, state, outcome, started }: ComparedRun,
  { figures, build, fault }: ReadRun,
  measure: Measure,
): RunReport {
  const { environmentSteps, updates, gradientTokens, generatedTokens } = figures;
  const budget = stepsOf(comparison, method);
  const points = pointsOf(figures, measure, budget);
  const now = started === undefined ? null : (performance.now() - started) / 1000;
  return {
    ...{ method, seed, state, environmentSteps, updates, gradientTokens, generatedTokens },
    reason: state === "failed" ? (outcome?.reason ?? null) : null,
    fault,
    success: known(valueAt(points, budget, isOver(state))),
    seconds: secondsOf(outcome, now),
    peakBytes: outcome?.peakBytes ?? null,
    build,
    otherBuild: false,
    curve: points,
  };
}

/** @param now seconds of the current process; null if there is none */
function secondsOf(outcome: ComparedRun["outcome"], now: number | null): number | null {
  if (outcome === undefined) return now;
  return outcome.seconds === null ? null : outcome.seconds + (now ?? 0);
}

function reportMethod(
  comparison: Comparison,
  { name, recipe }: { name: string; recipe: string },
  allRuns: readonly RunReport[],
  reference: readonly RunReport[] | undefined,
  grids: Record<Axis, number[]>,
): MethodReport {
  const counts = ({ success, otherBuild }: RunReport) => success !== null && !otherBuild;
  const runs = allRuns.filter(({ otherBuild }) => !otherBuild);
  const counted = runs.filter(counts);
  const scores = counted.map(({ success }) => success!);
  const drawn = counted.length > 0 ? counted : runs.filter(({ curve }) => curve.length > 0);
  const referenceRuns = reference?.filter(counts);
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
      referenceRuns === undefined ? null : improvementOf(counted, referenceRuns, comparison.paired),
    difference: referenceRuns === undefined ? null : differenceOf(counted, referenceRuns, comparison.paired),
    updates: average(({ updates }) => updates),
    gradientTokens: average(({ gradientTokens }) => gradientTokens),
    generatedTokens: average(({ generatedTokens }) => generatedTokens),
    seconds: average(({ seconds }) => seconds),
    peakBytes: average(({ peakBytes }) => peakBytes),
    curves: byAxis((axis) =>
      methodCurve(
        drawn,
        grids[axis].filter((at) => axis !== "steps" || at <= stepsOf(comparison, name)),
        axis,
      ),
    ),
    curveRuns: drawn.length,
  };
}

/** Successes of the runs with a seed that both have. */
function pairsOf(runs: readonly RunReport[], reference: readonly RunReport[]): (readonly [number, number])[] {
  return runs.flatMap((run) => {
    const other = reference.find(({ seed }) => seed === run.seed);
    return other === undefined ? [] : [[run.success!, other.success!] as const];
  });
}

/**
 * Pairs are independent, so their share has Wilson's interval: a bootstrap of pairs that all agree
 * has no width, however few they are.
 */
function improvementOf(
  runs: readonly RunReport[],
  reference: readonly RunReport[],
  paired: boolean,
): Interval | null {
  if (paired) {
    const pairs = pairsOf(runs, reference);
    return knownInterval(wilsonInterval(shareOfWins(pairs), pairs.length));
  }
  const of = (runs: readonly RunReport[]) => runs.map(({ success }) => success!);
  const samples = [of(runs), of(reference)];
  const [interval] = bootstrap(samples, ([a, b]) => [probabilityOfImprovement(a!, b!)]);
  return knownInterval(interval!);
}

/** The difference to the reference. Pairs are the seeds that both have. */
function differenceOf(
  runs: readonly RunReport[],
  reference: readonly RunReport[],
  paired: boolean,
): Difference | null {
  const pairs = pairsOf(runs, reference);
  const a = paired ? pairs.map(([own]) => own) : runs.map(({ success }) => success!);
  const b = paired ? pairs.map(([, other]) => other) : reference.map(({ success }) => success!);
  if (a.length < 2 || b.length < 2) return null;
  const [means] = paired
    ? bootstrap([a.map((own, i) => own - b[i]!)], ([differences]) => [mean(differences!)])
    : bootstrap([a, b], ([own, other]) => [mean(own!) - mean(other!)]);
  return { means: means!, test: permutationTest(a, b, { paired }) };
}

/**
 * The bootstrap resamples whole runs, so that each curve is of the same runs at every point. Over
 * steps, a run that ended early keeps its last value. Over tokens, the curve ends where the first
 * run ends, because results with more tokens are unknown.
 */
function methodCurve(runs: readonly RunReport[], grid: readonly number[], axis: Axis): CurvePoint[] {
  const curves = runs.map(({ curve, state }) =>
    grid.map((at) => valueAt(curve, at, axis === "steps" && isOver(state), axis)),
  );
  const intervals = bootstrap([curves], ([sample]) =>
    grid.map((_, i) => interquartileMean(sample!.map((values) => values[i]!))),
  );
  return grid.flatMap((at, i) => (Number.isNaN(intervals[i]!.estimate) ? [] : [{ at, ...intervals[i]! }]));
}

function byAxis<T>(of: (axis: Axis) => T): Record<Axis, T> {
  return Object.fromEntries(axes.map((axis) => [axis, of(axis)])) as Record<Axis, T>;
}

/**
 * The positions at which curves are drawn: evenly spaced over steps, and logarithmically over
 * tokens, because methods use very different numbers of them.
 */
function gridsOf(comparison: Comparison, runs: readonly RunReport[]): Record<Axis, number[]> {
  return byAxis((axis) => {
    if (axis === "steps") {
      const budgets = [...new Set(comparison.methods.map(({ name }) => stepsOf(comparison, name)))];
      const places = budgets.flatMap((budget) =>
        Array.from({ length: gridPoints + 1 }, (_, i) => (budget * i) / gridPoints),
      );
      return [...new Set(places)].sort((a, b) => a - b);
    }
    const range = rangeOf(runs, axis);
    if (range === undefined) return [];
    const [least, most] = range;
    const points = tokenGridPoints;
    return Array.from({ length: points + 1 }, (_, i) =>
      i === points ? most : least * (most / least) ** (i / points),
    );
  });
}

/**
 * The smallest and largest number above 0 of steps or tokens at which success was measured;
 * undefined if there is none.
 */
export function rangeOf(runs: readonly RunReport[], axis: Axis): [number, number] | undefined {
  let [least, most] = [Number.POSITIVE_INFINITY, 0];
  for (const { curve } of runs)
    for (const { [axis]: at } of curve) {
      if (at > 0) least = Math.min(least, at);
      most = Math.max(most, at);
    }
  return most === 0 ? undefined : [least, most];
}

/** Whether methods take so different numbers of steps or tokens that an even axis hides a curve. */
export function hasLogarithmicAxis(comparison: Comparison, axis: Axis): boolean {
  if (axis !== "steps") return true;
  const budgets = comparison.methods.map(({ name }) => stepsOf(comparison, name));
  return Math.max(...budgets) > 4 * Math.min(...budgets);
}

/** Replaces NaN, which JSON does not have, with null. */
function known(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

function knownInterval(interval: Interval): Interval | null {
  return Number.isNaN(interval.estimate) || Number.isNaN(interval.low) ? null : interval;
}
