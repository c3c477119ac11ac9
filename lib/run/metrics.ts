/** metrics.jsonl, the metrics of a run: its place, its rows, and reading them. */

import { join } from "node:path";
import { z } from "zod";
import { isObject } from "../base/validation.ts";
import { readRecordsOf } from "../files/records.ts";

/** A row of metrics.jsonl. */
export interface MetricsRow {
  step: number;
  /** Seconds since 1970. */
  time: number;
  values: Record<string, number | null>;
}

/** The schema of a row. */
export const metricsRow: z.ZodType<MetricsRow> = z.strictObject({
  step: z.int().min(0),
  time: z.number(),
  // Not a z.record, which takes ten times as long: a run may have a million rows.
  values: z.custom<MetricsRow["values"]>(
    (values) =>
      isObject(values) && Object.values(values).every((value) => value === null || typeof value === "number"),
    "it must have a number or null for each metric",
  ),
});

export function metricsPath(run: string): string {
  return join(run, "metrics.jsonl");
}

/** The rows of a run. Throws ERR_RUN that names a damaged line or a record of another kind; ERR_IO. */
export function readMetrics(run: string): Generator<MetricsRow> {
  return readRecordsOf(metricsPath(run), metricsRow);
}
