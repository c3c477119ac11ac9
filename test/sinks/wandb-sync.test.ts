/**
 * What wandb itself reads in a file that nlac wrote. With NLAC_REPORT_PYTHON, the Python of a
 * virtual environment with wandb, `wandb sync` uploads to a scripted server; NLAC_RECORD=1 then
 * records the fixtures. Without, the file is compared with the recorded one, which wandb 0.31.0 has
 * read.
 */

import { execFile } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { RecordWriter } from "../../lib/files/records.ts";
import type { ReportedRow } from "../../lib/sinks/sink.ts";
import { wandbSink } from "../../lib/sinks/wandb.ts";
import { inDirectory } from "../support/tiny.ts";
import { historyOf, itemsIn, messageOf, readWandb } from "../support/wandb-reader.ts";
import { type WandbUploads, wandbServer } from "../support/wandb-server.ts";

const fixtures = fileURLToPath(new URL("../fixtures/sinks", import.meta.url));
const python = process.env.NLAC_REPORT_PYTHON;
if (python === undefined) console.warn("skipped: NLAC_REPORT_PYTHON names no Python with wandb");

const id = "7c1e7a2e-0000-4000-8000-000000000001";
const recipe = { name: "mine", model: "tiny", config: { batchSize: 8, betas: [0.9, 0.98] } };
const rows: ReportedRow[] = Array.from({ length: 300 }, (_, number) => ({
  ...{ number, step: Math.floor(number / 2), time: 1_790_000_000 + number },
  values: Object.fromEntries(
    number % 2 === 0
      ? [
          ["loss/l1", 1 / (number + 1)],
          ["parse/action", 0.5],
        ]
      : [["eval/success", number / 300]],
  ),
}));

/** Writes `rows` and perhaps an end as a sink does; returns the run's offline directory. */
function writeRun(directory: string, part: readonly ReportedRow[], isOver: boolean): string {
  const sink = wandbSink({ project: "p" });
  const { signal } = new AbortController();
  void sink.start!({ id, name: "mine", directory, recipe }, signal);
  for (let from = 0; from < part.length; from += 100)
    void sink.metrics!(part.slice(from, from + 100), signal);
  if (isOver)
    void sink.event!({ kind: "finished", time: 1_790_000_400, message: "4 episodes, 150 updates." }, signal);
  return join(directory, "wandb", readdirSync(join(directory, "wandb"))[0]!);
}

async function sync(offline: string): Promise<{ uploads: WandbUploads; output: string }> {
  const server = await wandbServer();
  try {
    const output = await promisify(execFile)(join(dirname(python!), "wandb"), ["sync", offline], {
      cwd: dirname(offline),
      env: {
        PATH: process.env.PATH,
        HOME: offline,
        WANDB_BASE_URL: server.url,
        WANDB_API_KEY: "a".repeat(40),
      },
    }).catch((error: { stdout: string; stderr: string }) => error); // it may fail, and say why
    return { uploads: server.uploads, output: output.stdout + output.stderr };
  } finally {
    await server.close();
  }
}

const expectedRows = rows.map(({ number, step, time, values }) => ({
  ...values,
  ...{ updates: step, _step: number, _timestamp: time, _runtime: number },
}));

test("a run's file is the one that wandb has read, and holds what wandb found in it", () =>
  inDirectory((directory) => {
    const offline = writeRun(directory, rows, true);
    const bytes = readFileSync(join(offline, `run-${id}.wandb`));
    const recorded = join(fixtures, "offline-run.wandb");
    expect(bytes.equals(readFileSync(recorded)), `${recorded}: repeat with NLAC_RECORD=1`).toBe(true);
    const uploads: WandbUploads = JSON.parse(readFileSync(join(fixtures, "uploads.json"), "utf8"));
    expect(historyOf(readWandb(bytes))).toEqual(uploads.history);
    expect(uploads.history).toEqual(expectedRows);
    expect(uploads.summary).toMatchObject({ "loss/l1": 1 / 299, nlac_finished: "4 episodes, 150 updates." });
    expect(uploads).toMatchObject({ run: { name: id, project: "p", displayName: "mine" }, exitCode: 0 });
    expect(uploads.config).toMatch(/betas:\s+- 0.9\s+- 0.98/);
  }));

test("the reader of these tests reads a file that wandb wrote", () => {
  const records = readWandb(readFileSync(join(fixtures, "written-by-wandb.wandb")));
  expect(historyOf(records)).toMatchObject([
    { "loss/l1": 0.5, updates: 0, _step: 0 },
    { "loss/l1": 0.25, updates: 3, _step: 1 },
  ]);
  const run = records.find(({ kind }) => kind === "run")!;
  expect(String(run.body.get(3)![0])).toBe("p");
  expect(itemsIn(messageOf(run.body.get(4)![0] as Buffer))).toMatchObject({ batchSize: 8, nested: { a: 1 } });
  expect(records.at(-1)!.kind).toBe("exit");
});

test.skipIf(python === undefined)(
  "wandb sync uploads a run",
  () =>
    inDirectory(async (directory) => {
      const offline = writeRun(directory, rows, true);
      const { uploads, output } = await sync(offline);
      expect(output).toContain("Finished syncing");
      expect(uploads.history).toEqual(expectedRows);
      expect(uploads).toMatchObject({ run: { name: id, project: "p", displayName: "mine" }, exitCode: 0 });
      if (process.env.NLAC_RECORD) {
        mkdirSync(fixtures, { recursive: true });
        writeFileSync(join(fixtures, "offline-run.wandb"), readFileSync(join(offline, `run-${id}.wandb`)));
        const { name, project, displayName } = uploads.run;
        writeFileSync(
          join(fixtures, "uploads.json"),
          JSON.stringify({ ...uploads, run: { name, project, displayName } }),
        );
      }
    }),
  120_000,
);

test.skipIf(python === undefined)(
  "wandb sync uploads what a killed run has, and all of it after a resume",
  () =>
    inDirectory(async (directory) => {
      const offline = writeRun(directory, rows.slice(0, 200), false);
      const killed = await sync(offline);
      expect(killed.uploads.history).toEqual(expectedRows.slice(0, 200));
      expect(killed.uploads.exitCode).toBe(1); // a run without an end counts as failed
      // The checkpoint had 150 rows.
      const metrics = new RecordWriter(join(directory, "metrics.jsonl"));
      for (const { step, time, values } of rows.slice(0, 150)) metrics.append({ step, time, values });
      metrics.close();
      expect(writeRun(directory, rows.slice(150), true)).toBe(offline);
      const resumed = await sync(offline);
      expect(resumed.uploads.history).toEqual(expectedRows);
      expect(resumed.uploads.exitCode).toBe(0);
      // Cut off within its last record, as after a power failure.
      const file = join(offline, `run-${id}.wandb`);
      rmSync(`${file}.synced`);
      truncateSync(file, statSync(file).size - 1);
      const cut = await sync(offline);
      expect(cut.output).toContain("incomplete record");
      expect(cut.uploads.history).toEqual(expectedRows);
    }),
  120_000,
);
