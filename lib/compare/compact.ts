/**
 * Copies the finished runs of a comparison without their texts and weights: what a report needs,
 * some kilobytes a run. The copy can be reported on, and continued with the runs that it lacks.
 */

import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { makeDirectory, onDisk, requireEmpty } from "../files/disk.ts";
import { RecordWriter, readRecords } from "../files/records.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import type { MetricsRow } from "../run/directory.ts";
import type { Comparison } from "./comparison.ts";
import { gradientMetrics } from "./run-figures.ts";
import type { ComparedRun } from "./schedule.ts";

/** Metrics of a curve. A row with one of them is kept. */
const kept = ["environment_steps", "eval/success", "rollout/success"];
/** Costs. Those of the rows between two kept ones are added up. */
const costs = ["tokens/generated", "tokens/gradient", "rollout/tokens"];

/**
 * Writes the finished ones of `runs` into `directory`, as METHOD/SEED. Returns their number.
 * @throws NlacError ERR_RUN if the directory has files, for damaged records, or for runs of
 *   versions that did not record these metrics; ERR_IO
 */
export function compactRuns(comparison: Comparison, runs: readonly ComparedRun[], directory: string): number {
  requireEmpty(directory, "ERR_RUN", "Choose another directory for the copy.");
  makeDirectory(directory);
  writeAtomically(join(directory, "comparison.json"), `${JSON.stringify({ comparison }, null, 2)}\n`);
  const finished = runs.filter(({ state }) => state === "finished");
  for (const { method, seed, path } of finished) {
    const to = join(directory, method, String(seed));
    makeDirectory(to);
    onDisk(to, () => {
      copyFileSync(join(path, "run.json"), join(to, "run.json"));
      copyFileSync(`${path}.json`, `${to}.json`);
    });
    const writer = RecordWriter.resume(join(to, "metrics.jsonl"));
    try {
      for (const row of compactRows(join(path, "metrics.jsonl"))) writer.append(row);
    } finally {
      writer.close();
    }
  }
  return finished.length;
}

function* compactRows(path: string): Generator<MetricsRow> {
  let pending: MetricsRow | undefined;
  for (const row of readRecords<MetricsRow>(path)) {
    const { values } = row;
    requireTotals(values, path);
    if (kept.some((name) => name in values)) {
      if (pending !== undefined) yield pending;
      pending = undefined;
      yield { ...row, values: pick(values, [...kept, ...costs]) };
      continue;
    }
    const sums = { ...pending?.values };
    for (const [name, value] of Object.entries(pick(values, costs)))
      sums[name] = (sums[name] ?? 0) + (value ?? 0);
    pending = { ...row, values: sums };
  }
  if (pending !== undefined) yield pending;
}

/** Throws ERR_RUN for a row whose costs are not recorded as totals. */
function requireTotals(values: MetricsRow["values"], path: string): void {
  const hasParts = gradientMetrics.some((name) => name in values) && !("tokens/gradient" in values);
  if (hasParts || ("rollout/action_tokens" in values && !("rollout/tokens" in values)))
    throw new NlacError(
      "ERR_RUN",
      `${path} has no totals of tokens: it is from a version of nlac that did not record them.`,
    );
}

function pick(values: MetricsRow["values"], names: readonly string[]): MetricsRow["values"] {
  return Object.fromEntries(names.filter((name) => name in values).map((name) => [name, values[name]!]));
}
