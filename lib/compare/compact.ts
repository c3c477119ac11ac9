/**
 * Copies the ended runs of a comparison without their texts and weights: what a report needs, some
 * kilobytes a run. The copy can be reported on, and continued with the runs that it lacks. Failed
 * runs are copied too: they count with their last success.
 */

import { copyFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { emptyDirectory, makeDirectory, onDisk, requireEmpty } from "../files/disk.ts";
import { RecordWriter } from "../files/records.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { isRun, readDescription } from "../run/description.ts";
import { type MetricsRow, metricsPath, readMetrics } from "../run/metrics.ts";
import type { Comparison } from "./comparison.ts";
import { isOver } from "./report.ts";
import { gradientMetrics, requireComplete } from "./run-figures.ts";
import type { ComparedRun } from "./schedule.ts";

/** Metrics of a curve. A row with one of them is kept. */
const kept = ["environment_steps", "eval/success", "rollout/success"];
/** Costs. Those of the rows between two kept ones are added up. */
const costs = ["tokens/generated", "tokens/gradient", "rollout/tokens"];

/**
 * Writes the finished and the failed ones of `runs` into `directory`, as METHOD/SEED. Returns their
 * number, and why the others of them were left out: their files are damaged, or their version of nlac
 * did not record these metrics. If it fails, the directory is empty.
 *
 * @throws NlacError ERR_RUN if the directory has files, ERR_IO
 */
export function compactRuns(
  comparison: Comparison,
  runs: readonly ComparedRun[],
  directory: string,
): { copied: number; faults: string[] } {
  requireEmpty(directory, "ERR_RUN", "Choose another directory for the copy.");
  const faults = runs.flatMap(({ fault }) => fault ?? []);
  let copied = 0;
  try {
    makeDirectory(directory);
    for (const { method, seed, path, state } of runs.filter(({ state }) => isOver(state))) {
      let rows: MetricsRow[] = [];
      try {
        // A run may have failed before it wrote any file.
        if (state === "finished" || isRun(path)) {
          readDescription(path);
          rows = [...compactRows(path, state === "finished")];
        }
      } catch (error) {
        if (!(error instanceof NlacError)) throw error;
        faults.push(error.message);
        continue;
      }
      copyRun(path, join(directory, method, String(seed)), rows);
      copied++;
    }
    // Last: without it, the directory is not a comparison.
    writeAtomically(join(directory, "comparison.json"), `${JSON.stringify({ comparison }, null, 2)}\n`);
  } catch (error) {
    emptyDirectory(directory);
    throw error;
  }
  return { copied, faults };
}

function copyRun(path: string, to: string, rows: readonly MetricsRow[]): void {
  makeDirectory(dirname(to));
  onDisk(to, () => copyFileSync(`${path}.json`, `${to}.json`));
  if (!isRun(path)) return;
  makeDirectory(to);
  onDisk(to, () => copyFileSync(join(path, "run.json"), join(to, "run.json")));
  const writer = RecordWriter.resume(metricsPath(to));
  try {
    for (const row of rows) writer.append(row);
    writer.sync();
  } finally {
    writer.close();
  }
}

/** Throws ERR_RUN, ERR_IO. A run that has not `finished` may end within a row. */
function* compactRows(run: string, finished: boolean): Generator<MetricsRow> {
  const path = metricsPath(run);
  let pending: MetricsRow | undefined;
  for (const row of readMetrics(run)) {
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
  if (finished) requireComplete(path);
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
