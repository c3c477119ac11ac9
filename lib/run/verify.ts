/** Checks every file of a run: checksums, record by record, and schemas. */

import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import { readEpisodeRecords, readEvaluations, trajectoriesPath } from "../episodes/records.ts";
import { notRegular, onDisk, readText } from "../files/disk.ts";
import { readRecords, readRecordsOf } from "../files/records.ts";
import { checkpointNumbers, checkpointPath, openCheckpoint } from "./checkpoints.ts";
import { readDescription } from "./description.ts";
import { metricsPath, readMetrics } from "./metrics.ts";
import { drawsRecord, probeRecord, sampleRecordSchema } from "./samples.ts";
import { eventFault } from "./tensorboard.ts";

/** A part of a run, and its faults; none if it is undamaged. */
export interface Verified {
  path: string;
  faults: string[];
}

/**
 * Checks run.json, the record files and every checkpoint of a run. A record that a crash left
 * unfinished at the end of a file is no damage.
 */
export async function* verifyRun(run: string): AsyncGenerator<Verified> {
  const check = async (path: string, body: (path: string) => unknown): Promise<Verified> => {
    try {
      requireFile(path);
      const fault = await body(path);
      return { path, faults: typeof fault === "string" ? [fault] : [] };
    } catch (error) {
      return { path, faults: [(error as Error).message] };
    }
  };
  const description = await check(join(run, "run.json"), () => void readDescription(run));
  yield description;
  yield await check(metricsPath(run), () => drain(readMetrics(run)));
  yield await check(trajectoriesPath(run), (path) => drain(readEpisodeRecords(path)));
  yield await check(join(run, "samples.jsonl"), (path) => drain(readRecordsOf(path, sampleRecordSchema)));
  // Runs of earlier versions have none of these.
  const further = { "draws.jsonl": drawsRecord, "probes.jsonl": probeRecord };
  for (const [name, schema] of Object.entries(further))
    if (existsSync(join(run, name)))
      yield await check(join(run, name), (path) => drain(readRecordsOf<unknown>(path, schema)));
  const others = {
    "evaluations.jsonl": readEvaluations,
    // Of a run of nlac serve --train.
    "episodes.jsonl": readEpisodeRecords,
    "open.jsonl": readRecords,
    "corrections.jsonl": readRecords,
  };
  for (const [name, read] of Object.entries(others))
    if (existsSync(join(run, name))) yield await check(join(run, name), (path) => drain(read(path)));
  const events = new Set<string>();
  const numbers = checkpointNumbers(run);
  for (const number of numbers.toReversed()) {
    const faults: string[] = [];
    const whole = await check(checkpointPath(run, number), async () => {
      const { saved } = await openCheckpoint(run, number, (line) => faults.push(line));
      events.add(saved.files.events.name);
    });
    if (!existsSync(whole.path)) continue; // a training has replaced it meanwhile
    yield { ...whole, faults: [...whole.faults, ...faults] };
  }
  for (const name of events) yield await check(join(run, name), eventFault);
  if (existsSync(join(run, "latest")))
    yield await check(join(run, "latest"), (path) => {
      const named = onDisk(path, () => readText(path)).trim();
      const exists = numbers.some((number) => checkpointPath(run, number).endsWith(`/${named}`));
      return exists ? undefined : `${path} names ${JSON.stringify(named)}, which is not a checkpoint.`;
    });
}

/** Throws ERR_IO for a pipe or a device, which would be waited for. */
function requireFile(path: string): void {
  const found = onDisk(path, () => statSync(path, { throwIfNoEntry: false }));
  if (found !== undefined && !found.isFile() && !found.isDirectory()) throw notRegular(path);
}

function drain(records: Iterable<unknown>): void {
  for (const _ of records);
}
