/**
 * Writes metrics and the recipe as an offline run of Weights & Biases into the run directory
 * (`wandb/offline-run-…/run-ID.wandb`), which `wandb sync` uploads. Nothing is sent.
 *
 * The file has the rows of metrics.jsonl. If it does not end with the row before the next one (in
 * a resumed run, or after lost entries), it is made again from metrics.jsonl.
 */

import { existsSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { AppendOnlyFile, makeDirectory, onDisk } from "../files/disk.ts";
import { delimited, integer } from "../files/protobuf.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { type MetricsRow, metricsPath, readMetrics } from "../run/metrics.ts";
import type { ReportedRun, RunEvent, Sink } from "./sink.ts";
import { fileHeader, inChunks, itemsOf, type RecordKind, recordOf, timestampOf } from "./wandb-file.ts";

/** As wandb's own client reports an end, an interrupt and an exception. */
const exitCodes: Readonly<Record<RunEvent["kind"], number | undefined>> = {
  finished: 0,
  stopped: 255,
  crashed: 1,
  collapsed: undefined, // the run goes on
};

/** The metric that holds a row's step. */
const stepMetric = "updates";

type Options = { project: string; entity?: string | undefined };
type Row = Pick<MetricsRow, "step" | "time" | "values">;
type Entry = readonly [kind: RecordKind, body: Uint8Array];

export function wandbSink(options: Options): Sink {
  let run: ReportedRun;
  let offline: OfflineRun | undefined;
  /** The run's file with its first `rowCount` rows. */
  const upTo = (rowCount: number, now: number): OfflineRun => {
    if (offline?.rowCount !== rowCount) offline = new OfflineRun(run, options, rowCount, now);
    return offline;
  };
  return {
    name: "wandb",
    start(started) {
      run = started;
    },
    metrics(rows) {
      for (let from = 0, to = 1; from < rows.length; from = to++) {
        while (to < rows.length && rows[to]!.number === rows[to - 1]!.number + 1) to++;
        upTo(rows[from]!.number, rows[from]!.time).append(rows.slice(from, to));
      }
    },
    event({ kind, time, message }) {
      const file = offline ?? upTo(Number.POSITIVE_INFINITY, time);
      file.end({ [`nlac_${kind}`]: message }, exitCodes[kind], time);
      if (exitCodes[kind] !== undefined) offline = undefined; // nothing may follow an exit
    },
  };
}

class OfflineRun {
  readonly #path: string;
  /** Seconds since 1970. */
  readonly #started: number;
  #bytes = fileHeader.length;
  #recordCount = 0;
  #rowCount = 0;

  /**
   * Writes the file of `run` with its first `rowCount` rows. `now`: seconds since 1970. Throws
   * ERR_IO.
   */
  constructor(run: ReportedRun, options: Options, rowCount: number, now: number) {
    const directory = directoryOf(run);
    makeDirectory(join(directory, "files"));
    this.#path = join(directory, `run-${run.id}.wandb`);
    const rows = firstRows(run, rowCount);
    this.#started = rows[0]?.time ?? now;
    const records = [...openingOf(run, options, this.#started), ...this.#recordsOf(rows)];
    this.#write(records, (data) => writeAtomically(this.#path, Buffer.concat([fileHeader, data])));
    // Rows that are missing in metrics.jsonl are missing here too.
    this.#rowCount = Number.isFinite(rowCount) ? rowCount : rows.length;
    // `wandb sync` marks a file that it has uploaded with these, and then skips it.
    for (const mark of ["synced", "syncstate"])
      onDisk(this.#path, () => rmSync(`${this.#path}.${mark}`, { force: true }));
  }

  /** Rows of the run so far. */
  get rowCount(): number {
    return this.#rowCount;
  }

  append(rows: readonly Row[]): void {
    this.#append(this.#recordsOf(rows));
    this.#rowCount += rows.length;
  }

  /** Adds to the summary and, with an exit code, ends the run. `time`: seconds since 1970. */
  end(summary: Record<string, string>, exitCode: number | undefined, time: number): void {
    const records: Entry[] = [["summary", itemsOf(summary)]];
    const runtime = Math.max(0, Math.round(time - this.#started));
    if (exitCode !== undefined)
      records.push(["exit", Buffer.concat([integer(1, exitCode), integer(2, runtime)])]);
    this.#append(records);
  }

  /** The history of `rows`, which follow the rows so far, and the summary's new values. */
  #recordsOf(rows: readonly Row[]): Entry[] {
    const latest: Record<string, number | null> = {};
    const history = rows.map(({ step, time, values }, i): Entry => {
      const number = this.#rowCount + i;
      const clock = { _timestamp: time, _runtime: time - this.#started, _step: number };
      const all = { ...values, [stepMetric]: step, ...clock };
      Object.assign(latest, all);
      return ["history", Buffer.concat([itemsOf(all), delimited(2, integer(1, number))])];
    });
    return rows.length === 0 ? [] : [...history, ["summary", itemsOf(latest)]];
  }

  #append(records: readonly Entry[]): void {
    this.#write(records, (data) => {
      const file = new AppendOnlyFile(this.#path, this.#bytes);
      try {
        file.append(data);
      } finally {
        file.close();
      }
    });
  }

  /** Counts the records once `write` has returned. */
  #write(records: readonly Entry[], write: (data: Uint8Array) => void): void {
    let bytes = this.#bytes;
    const chunks = records.map(([kind, body], i) => {
      const data = inChunks(recordOf(this.#recordCount + i + 1, kind, body), bytes);
      bytes += data.length;
      return data;
    });
    write(Buffer.concat(chunks));
    this.#bytes = bytes;
    this.#recordCount += records.length;
  }
}

/** The run's directory, for one that was resumed the same as before. */
function directoryOf({ id, directory }: ReportedRun): string {
  const root = join(directory, "wandb");
  const known = existsSync(root) ? onDisk(root, () => readdirSync(root)) : [];
  const found = known.find((name) => name.startsWith("offline-run-") && name.endsWith(`-${id}`));
  const now = new Date().toISOString().slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "_");
  return join(root, found ?? `offline-run-${now}-${id}`);
}

/** At most `count` rows of the run's metrics.jsonl. */
function firstRows({ directory }: ReportedRun, count: number): MetricsRow[] {
  const rows: MetricsRow[] = [];
  if (count === 0 || !existsSync(metricsPath(directory))) return rows;
  for (const row of readMetrics(directory)) if (rows.push(row) >= count) break;
  return rows;
}

/** What comes before the first row. `started`: seconds since 1970. */
function openingOf(run: ReportedRun, { project, entity }: Options, started: number): Entry[] {
  const configuration = Object.entries(run.recipe);
  return [
    ["header", Buffer.alloc(0)],
    [
      "run",
      Buffer.concat([
        delimited(1, run.id),
        ...(entity === undefined ? [] : [delimited(2, entity)]),
        delimited(3, project),
        ...(configuration.length > 0 ? [delimited(4, itemsOf(run.recipe))] : []),
        delimited(8, run.name),
        delimited(17, timestampOf(started)),
      ]),
    ],
    // Charts have the number of updates as their axis.
    ["metric", Buffer.concat([delimited(1, stepMetric), delimited(6, integer(3, 1))])],
    [
      "metric",
      Buffer.concat([
        ...[delimited(2, "*"), delimited(4, stepMetric)],
        delimited(6, Buffer.concat([integer(1, 1), integer(3, 1)])), // in step, and defined
      ]),
    ],
  ];
}
