/**
 * A comparison whose runs were never trained: run directories with metrics that a test makes up.
 */

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { uniform } from "../../lib/base/random.ts";
import { type Comparison, type ComparisonInput, parseComparison } from "../../lib/compare/comparison.ts";
import type { Outcome } from "../../lib/compare/schedule.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { memoryRun } from "../../lib/run/training-run.ts";

export function comparisonOf(changes: Partial<ComparisonInput> = {}): Comparison {
  const methods = ["nlac", "grpo"].map((name) => ({ name, recipe: "errands" }));
  return parseComparison(
    { name: "made-up", environmentSteps: 1000, seeds: [0, 1, 2], methods, ...changes },
    "the test",
  );
}

export interface Row {
  step: number;
  values: Record<string, number>;
}

/** Writes a run as `nlac train` does, as far as a comparison reads it. */
export function writeRun(
  path: string,
  rows: readonly Row[],
  recipe: unknown = {},
  builds?: readonly object[],
): void {
  const { signal, progress } = memoryRun();
  const description = { recipe, ...(builds !== undefined && { builds }) };
  const run = RunDirectory.create(path, { signal, progress, description });
  for (const { step, values } of rows) run.metrics(step, values);
  run.close();
}

export function writeOutcome(path: string, outcome: Partial<Outcome> = {}): void {
  const whole = { state: "finished", reason: null, seconds: 60, peakBytes: 5e8, ...outcome };
  writeFileSync(`${path}.json`, JSON.stringify(whole));
}

/**
 * A training that collects 100 steps an iteration and learns from `from` towards `to`, with noise.
 */
export function learningRows(
  from: number,
  to: number,
  options: { seed: number; iterations?: number; evaluated?: boolean },
): Row[] {
  const { seed, iterations = 10, evaluated = false } = options;
  return Array.from({ length: iterations }, (_, i): Row[] => {
    const noise = (uniform(seed, 1000, i) - 0.5) / 10;
    const success = Math.min(1, Math.max(0, from + (to - from) * (i / 9) + noise));
    const steps = 100 * (i + 1);
    const measured = { [evaluated ? "eval/success" : "rollout/success"]: success };
    return [
      { step: 2 * i, values: { ...measured, environment_steps: steps, "rollout/action_tokens": 8 } },
      { step: 2 * i + 1, values: { "tokens/l1": 100, "tokens/l2": 50, "tokens/generated": 300 } },
      { step: 2 * i + 2, values: { "tokens/nll": 20, "tokens/policy": 30 } },
    ];
  }).flat();
}

/** Every run of `comparison` below `directory`, finished: the first method learns best. */
export function writeRuns(comparison: Comparison, directory: string): void {
  for (const [i, { name }] of comparison.methods.entries()) {
    for (const seed of comparison.seeds) {
      const path = join(directory, name, String(seed));
      writeRun(path, learningRows(0.1, 0.9 - 0.12 * i, { seed: 100 * i + seed }));
      writeOutcome(path);
    }
  }
}
