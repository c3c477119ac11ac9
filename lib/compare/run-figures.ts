/** Reads a run for a comparison: its curve over steps and tokens, its costs, and its build. */

import { existsSync } from "node:fs";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { endsUnfinished } from "../files/records.ts";
import type { Build } from "../run/build.ts";
import { isRun, readDescription } from "../run/description.ts";
import { metricsPath, readMetrics } from "../run/metrics.ts";

/**
 * The x axes of curves: environment steps, generated tokens, and tokens of a loss with a gradient.
 */
export const axes = ["steps", "generatedTokens", "gradientTokens"] as const;
export type Axis = (typeof axes)[number];

/** A success, and the steps and tokens used before it was measured. */
export interface Point extends Record<Axis, number> {
  value: number;
}

export interface RunFigures {
  /** Success in evaluations during training. */
  evaluated: Point[];
  /** Success of the episodes collected for training. */
  collected: Point[];
  environmentSteps: number;
  /** Here and below: of the part of the run that is compared. */
  updates: number;
  /** Tokens whose loss had a gradient. */
  gradientTokens: number;
  /** Tokens generated for training, including actions; without evaluations and diagnostics. */
  generatedTokens: number;
}

/** Metrics that add up to the gradient tokens if a run of an older version has no total. */
export const gradientMetrics = [
  "tokens/l1",
  "tokens/l2",
  "tokens/rehearsal",
  "tokens/nll",
  "tokens/policy",
  "tokens/actions",
];

export function noFigures(): RunFigures {
  return {
    evaluated: [],
    collected: [],
    environmentSteps: 0,
    updates: 0,
    gradientTokens: 0,
    generatedTokens: 0,
  };
}

/**
 * The metrics of the run in `path`, up to the end of the iteration that reached `budget` steps. An
 * iteration of HOPE collects twice, and is cut between the two if the first part reaches `budget`.
 * If the last evaluation was before `budget` steps, the next one is read too, so that success can
 * be interpolated; it does not add to the costs.
 *
 * @param finished whether the run has finished: its last row is then complete
 * @throws NlacError ERR_RUN for damaged metrics, ERR_IO
 */
export function readFigures(path: string, budget: number, finished = false): RunFigures {
  const figures = noFigures();
  const file = metricsPath(path);
  if (!existsSync(file)) return figures;
  // Of all rows so far.
  let [reached, generatedTokens, gradientTokens] = [0, 0, 0];
  let beyond = false;
  for (const { step, values } of readMetrics(path)) {
    const value = (name: string) => values[name] ?? 0;
    const steps = values.environment_steps ?? reached;
    beyond ||= reached >= budget && steps > reached;
    if (beyond && (figures.evaluated.at(-1)?.steps ?? budget) >= budget) break;
    generatedTokens += value("tokens/generated");
    // Runs of older versions have only the mean length; one turn is one environment step.
    generatedTokens +=
      values["rollout/tokens"] ?? Math.round(value("rollout/action_tokens") * (steps - reached));
    gradientTokens +=
      values["tokens/gradient"] ?? gradientMetrics.reduce((sum, name) => sum + value(name), 0);
    reached = steps;
    const evaluated = values["eval/success"];
    const collected = values["rollout/success"];
    const point = { steps, generatedTokens, gradientTokens };
    if (typeof evaluated === "number") figures.evaluated.push({ ...point, value: evaluated });
    if (beyond) continue;
    if (typeof collected === "number") figures.collected.push({ ...point, value: collected });
    Object.assign(figures, { environmentSteps: steps, updates: step, generatedTokens, gradientTokens });
  }
  if (finished) requireComplete(file);
  return figures;
}

/** Throws ERR_RUN if the metrics of a finished run were cut within a row; ERR_IO. */
export function requireComplete(file: string): void {
  if (!endsUnfinished(file)) return;
  throw new NlacError("ERR_RUN", `${file} is cut: it ends within a row, although the run has finished.`);
}

/**
 * Each point as the mean of all points less than `window` steps before it, itself and others of its
 * steps included. `points` are in order of their steps.
 */
export function smoothed(points: readonly Point[], window: number): Point[] {
  let [from, to, sum] = [0, 0, 0];
  return points.map((last) => {
    while (to < points.length && points[to]!.steps <= last.steps) sum += points[to++]!.value;
    while (points[from]!.steps <= last.steps - window) sum -= points[from++]!.value;
    // A share; rounding of the running sum must not leave its range.
    const value = to - from === 1 ? last.value : Math.min(1, Math.max(0, sum / (to - from)));
    return { ...last, value };
  });
}

/**
 * The value at `place` of `axis`, linearly interpolated; of several points there, that of the last.
 * NaN before the first point. After the last one: its value if the run is `over`, else NaN.
 */
export function valueAt(
  points: readonly (Partial<Point> & Pick<Point, "value">)[],
  place: number,
  over: boolean,
  axis: Axis = "steps",
): number {
  const at = points.findLastIndex((point) => point[axis]! <= place);
  const [low, high] = [points[at], points[at + 1]];
  if (low === undefined) return Number.NaN;
  if (low[axis] === place) return low.value;
  if (high === undefined) return over ? low.value : Number.NaN;
  return low.value + ((high.value - low.value) * (place - low[axis]!)) / (high[axis]! - low[axis]!);
}

const recordedBuilds = z.array(
  z.object({ version: z.string(), commit: z.string().nullable(), core: z.string().nullable() }).nullable(),
);

/**
 * The build, or the builds in order, that trained the run in `path`; null if not recorded. Throws
 * ERR_RUN.
 */
export function readBuild(path: string): string | null {
  if (!isRun(path)) return null;
  const builds = recordedBuilds.safeParse(readDescription(path).builds);
  if (!builds.success || builds.data.length === 0) return null;
  return builds.data
    .map((build) => (build === null ? "an unknown build" : formatBuild(build)))
    .join(", then ");
}

function formatBuild({ version, commit, core }: Build): string {
  const at = commit === null ? "" : ` at ${commit}`;
  return `nlac ${version}${at}${core === null ? "" : `, core ${core}`}`;
}
