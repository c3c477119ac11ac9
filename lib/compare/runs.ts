/** What a comparison reads of a run: its curve over environment steps, and what it cost. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { mean } from "../rollout/losses.ts";
import type { MetricsRow } from "../run/directory.ts";
import { readRecords } from "../run/records.ts";

/** A success measured after so many environment steps. */
export interface Point {
  steps: number;
  value: number;
}

export interface RunFigures {
  /** Success as evaluated while training went on. */
  evaluated: Point[];
  /** Success of the episodes that were collected to train on, up to these steps. */
  collected: Point[];
  environmentSteps: number;
  /** Of the part of the run that is compared, like all that follows. */
  updates: number;
  /** Tokens whose loss had a gradient. */
  gradientTokens: number;
  /** Tokens that the model wrote, its actions included. */
  generatedTokens: number;
}

/** The metrics that count tokens of a gradient; the other tokens/… are of prompts and of single roles. */
const gradientMetrics = [
  "tokens/l1",
  "tokens/l2",
  "tokens/rehearsal",
  "tokens/nll",
  "tokens/policy",
  "tokens/actions",
];

/** The metrics of the run in `path`, up to the first row of a later iteration than reached `budget` steps. */
export function readFigures(path: string, budget: number): RunFigures {
  const figures: RunFigures = {
    evaluated: [],
    collected: [],
    environmentSteps: 0,
    updates: 0,
    gradientTokens: 0,
    generatedTokens: 0,
  };
  const file = join(path, "metrics.jsonl");
  if (!existsSync(file)) return figures;
  for (const { step, values } of readRecords<MetricsRow>(file)) {
    const value = (name: string) => values[name] ?? 0;
    const steps = values.environment_steps ?? figures.environmentSteps;
    if (figures.environmentSteps >= budget && steps > figures.environmentSteps) break;
    const evaluated = values["eval/success"];
    const collected = values["rollout/success"];
    if (typeof evaluated === "number") figures.evaluated.push({ steps, value: evaluated });
    if (typeof collected === "number") figures.collected.push({ steps, value: collected });
    // A turn is a step of the environment, and an action's length is told as the mean of the turns since the last row.
    figures.generatedTokens += value("tokens/generated");
    figures.generatedTokens += value("rollout/action_tokens") * (steps - figures.environmentSteps);
    for (const name of gradientMetrics) figures.gradientTokens += value(name);
    figures.environmentSteps = steps;
    figures.updates = step;
  }
  return figures;
}

/** Each point as the mean of itself and those less than `window` steps before it. */
export function smoothed(points: readonly Point[], window: number): Point[] {
  return points.map(({ steps }) => {
    const near = points.filter((point) => point.steps <= steps && point.steps > steps - window);
    return { steps, value: mean(near.map(({ value }) => value)) };
  });
}

/**
 * The value at `steps`, on a straight line between two points. NaN before the first point, and after the last one
 * unless the run is over: its last value is then what it came to.
 */
export function valueAt(points: readonly Point[], steps: number, over: boolean): number {
  const after = points.findIndex((point) => point.steps >= steps);
  if (after < 0) return over ? (points.at(-1)?.value ?? Number.NaN) : Number.NaN;
  const high = points[after]!;
  if (high.steps === steps) return high.value;
  if (after === 0) return Number.NaN;
  const low = points[after - 1]!;
  return low.value + ((high.value - low.value) * (steps - low.steps)) / (high.steps - low.steps);
}
