import { existsSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { RecordWriter } from "../../lib/files/records.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { reportConfig } from "../../lib/sinks/config.ts";
import { openSinks, Reporting } from "../../lib/sinks/reporting.ts";
import type { ReportedRow, Sink } from "../../lib/sinks/sink.ts";
import { inChunks } from "../../lib/sinks/wandb-file.ts";
import { inDirectory } from "../support/tiny.ts";
import { historyOf, itemsIn, readWandb, type WandbRecord } from "../support/wandb-reader.ts";

const id = "7c1e7a2e-0000-4000-8000-000000000001";
const recipe = { name: "mine", model: "tiny", config: { batchSize: 8, betas: [0.9, 0.98] } };
const runIn = (directory: string) => ({ id, name: "mine", directory, recipe });
const signal = new AbortController().signal;
const row = (
  number: number,
  values: Record<string, number> = { "loss/l1": 1 / (number + 1) },
): ReportedRow => ({
  ...{ number, step: Math.floor(number / 2), time: 1000 + number, values },
});

async function open(directory: string, options: object = {}): Promise<Sink> {
  const [sink] = await openSinks(reportConfig.parse([{ to: "wandb", ...options }]));
  await sink!.start?.(runIn(directory), signal);
  return sink!;
}

/** The path of the only offline run in `directory`. */
function fileIn(directory: string): string {
  const runs = readdirSync(join(directory, "wandb"));
  expect(runs).toEqual([expect.stringMatching(new RegExp(`^offline-run-\\d{8}_\\d{6}-${id}$`))]);
  return join(directory, "wandb", runs[0]!, `run-${id}.wandb`);
}

const recordsIn = (directory: string) => readWandb(readFileSync(fileIn(directory)));
const steps = (records: readonly WandbRecord[]) => historyOf(records).map(({ _step }) => _step);

function recordRows(directory: string, count: number): void {
  rmSync(join(directory, "metrics.jsonl"), { force: true });
  const writer = new RecordWriter(join(directory, "metrics.jsonl"));
  for (let number = 0; number < count; number++) {
    const { step, time, values } = row(number);
    writer.append({ step, time, values });
  }
  writer.close();
}

test("a run's file has its recipe, rows, summary and exit, in wandb's records", () =>
  inDirectory(async (directory) => {
    const sinks = await openSinks(reportConfig.parse([{ to: "wandb", project: "p", entity: "team" }]));
    const report = new Reporting(sinks, runIn(directory));
    const run = report.of(memoryRun());
    run.metrics(0, { "loss/l1": 0.5, missing: Number.NaN });
    run.metrics(3, { "loss/l1": 0.25, "eval/success": 1 });
    report.ended({ updates: 3, episodes: 4, environmentSteps: 9, stopped: false });
    await report.close((line) => expect.fail(line));

    const records = recordsIn(directory);
    expect(records.map(({ number }) => number)).toEqual(records.map((_, i) => i + 1));
    expect(records.slice(0, 4).map(({ kind }) => kind)).toEqual(["header", "run", "metric", "metric"]);
    const { body } = records[1]!;
    const text = (field: number) => String(body.get(field)?.[0]);
    expect([text(1), text(2), text(3), text(8)]).toEqual([id, "team", "p", "mine"]);
    const history = historyOf(records);
    expect(history).toMatchObject([
      { "loss/l1": 0.5, updates: 0, _step: 0, _runtime: 0 },
      { "loss/l1": 0.25, "eval/success": 1, updates: 3, _step: 1 },
    ]);
    expect(Object.keys(history[0]!)).not.toContain("missing");
    expect(Math.abs(Number(history[0]!._timestamp) - Date.now() / 1000)).toBeLessThan(60);
    const summaries = records.filter(({ kind }) => kind === "summary").map(({ body }) => itemsIn(body));
    expect(Object.assign({}, ...summaries)).toMatchObject({
      ...{ "loss/l1": 0.25, "eval/success": 1, updates: 3 },
      nlac_finished: "4 episodes, 3 updates.",
    });
    expect(records.at(-1)).toMatchObject({ kind: "exit" });
    expect(records.at(-1)!.body.get(1)).toEqual([0]);
  }));

test("a crash and a stop have wandb's exit codes, and a collapse ends nothing", () =>
  inDirectory(async (directory) => {
    const sink = await open(directory);
    await sink.metrics!([row(0)], signal);
    await sink.event!({ kind: "collapsed", time: 1005, message: "fell" }, signal);
    await sink.metrics!([row(1)], signal);
    await sink.event!({ kind: "crashed", time: 1010, message: "ERR_NOT_FINITE: ten" }, signal);
    const records = recordsIn(directory);
    expect(steps(records)).toEqual([0, 1]);
    expect(records.at(-1)!.body).toEqual(
      new Map([
        [1, [1]],
        [2, [10]], // seconds
      ]),
    );
    expect(itemsIn(records.at(-2)!.body)).toEqual({ nlac_crashed: "ERR_NOT_FINITE: ten" });
    const stopped = await open(directory);
    await stopped.event!({ kind: "stopped", time: 1002, message: "Ctrl-C" }, signal);
    expect(recordsIn(directory).at(-1)!.body.get(1)).toEqual([255]);
  }));

test("records cross the blocks of the file as its format wants, whatever their sizes", () => {
  for (const sizes of [[32_754], [32_755, 1], [32_749, 5, 9], [32_760, 70_000, 3], [0, 0, 40_000]]) {
    const file: Buffer[] = [Buffer.from("3a572642e1be00", "hex")];
    let offset = 7;
    for (const [i, size] of sizes.entries()) {
      // A summary record with one text, of `size` bytes in all if that is possible.
      const data = Buffer.from([8, i + 1, 26, ...[0x80, 0x80, 0]]);
      const padded = Buffer.concat([data, Buffer.from([210, 1, ...varint(size)]), Buffer.alloc(size, 7)]);
      const chunks = inChunks(padded, offset);
      file.push(chunks);
      offset += chunks.length;
    }
    const records = readWandb(Buffer.concat(file));
    expect(records.map(({ number }) => number)).toEqual(sizes.map((_, i) => i + 1));
  }
});

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))];
}

test("a resumed run continues its file at the checkpoint, from metrics.jsonl", () =>
  inDirectory(async (directory) => {
    const first = await open(directory);
    await first.metrics!([row(0), row(1), row(2), row(3), row(4)], signal);
    const file = fileIn(directory);
    truncateSync(file, readFileSync(file).length - 3); // killed while it wrote
    expect(steps(recordsIn(directory))).toEqual([0, 1, 2, 3, 4]); // only the summary is torn
    writeFileSync(`${file}.synced`, "");

    recordRows(directory, 3); // the checkpoint had three rows
    const second = await open(directory);
    await second.metrics!([row(3, { "loss/l1": 7 })], signal);
    await second.metrics!([row(4), row(5)], signal);
    expect(fileIn(directory)).toBe(file);
    const records = recordsIn(directory);
    expect(steps(records)).toEqual([0, 1, 2, 3, 4, 5]);
    expect(historyOf(records)[3]).toMatchObject({ "loss/l1": 7 });
    expect(historyOf(records)[2]).toMatchObject({
      "loss/l1": 1 / 3,
      updates: 1,
      _timestamp: 1002,
      _runtime: 2,
    });
    expect(existsSync(`${file}.synced`)).toBe(false);

    // One that had ended: the exit makes way for what follows.
    await second.event!({ kind: "finished", time: 1009, message: "" }, signal);
    recordRows(directory, 6);
    const third = await open(directory);
    await third.metrics!([row(6)], signal);
    const last = recordsIn(directory);
    expect(steps(last)).toEqual([0, 1, 2, 3, 4, 5, 6]);
    expect(last.some(({ kind }) => kind === "exit")).toBe(false);
  }));

test("a service that rolls its run back takes the rows back", () =>
  inDirectory(async (directory) => {
    const sink = await open(directory);
    await sink.metrics!([row(0), row(1), row(2)], signal);
    recordRows(directory, 1);
    await sink.metrics!([row(1, { a: 5 }), row(2)], signal);
    expect(steps(recordsIn(directory))).toEqual([0, 1, 2]);
    expect(historyOf(recordsIn(directory))[1]).toMatchObject({ a: 5 });
  }));

test("lost rows come back from metrics.jsonl, and a failed write leaves a whole file", () =>
  inDirectory(async (directory) => {
    const sink = await open(directory);
    await sink.metrics!([row(0)], signal);
    const root = join(directory, "wandb");
    rmSync(root, { recursive: true }); // `wandb sync --clean` in the middle of a run
    writeFileSync(root, "in the way");
    expect(() => sink.metrics!([row(1)], signal)).toThrow(expect.objectContaining({ code: "ERR_IO" }));
    rmSync(root);
    recordRows(directory, 3);
    await sink.metrics!([row(3)], signal);
    expect(steps(recordsIn(directory))).toEqual([0, 1, 2, 3]);
  }));

test("a run of many rows stays readable wherever it is cut", () =>
  inDirectory(async (directory) => {
    const sink = await open(directory);
    for (let from = 0; from < 600; from += 50)
      await sink.metrics!(
        Array.from({ length: 50 }, (_, i) =>
          row(
            from + i,
            Object.fromEntries(Array.from({ length: 20 }, (_, k) => [`group/metric_${k}`, k + i])),
          ),
        ),
        signal,
      );
    const whole = readFileSync(fileIn(directory));
    expect(whole.length).toBeGreaterThan(10 * 32_768);
    expect(steps(readWandb(whole))).toEqual(Array.from({ length: 600 }, (_, i) => i));
    let before = -1;
    for (let bytes = 7; bytes < whole.length; bytes += 997) {
      const found = steps(readWandb(whole.subarray(0, bytes)));
      expect(found).toEqual(Array.from({ length: found.length }, (_, i) => i));
      expect(found.length).toBeGreaterThanOrEqual(before);
      before = found.length;
    }
    expect(before).toBeGreaterThan(595);
  }));
