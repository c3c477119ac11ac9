/** Checks every file of a run: checksums, record by record, and schemas. */

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { readEpisodeRecords } from "../episodes/records.ts";
import { onDisk } from "../files/disk.ts";
import { readRecords } from "../files/records.ts";
import { checkpointNumbers, checkpointPath, openCheckpoint } from "./checkpoints.ts";
import { readDescription } from "./description.ts";
import { drawsRecord, probeRecord, sampleRecordSchema } from "./samples.ts";
import { eventFault } from "./tensorboard.ts";

/** A part of a run, and its faults; none if it is undamaged. */
export interface Verified {
  path: string;
  faults: string[];
}

const metricsRow = z.strictObject({
  step: z.int().min(0),
  time: z.number(),
  values: z.record(z.string(), z.number().nullable()),
});

/**
 * Checks run.json, the record files and every checkpoint of a run. A record that a crash left
 * unfinished at the end of a file is no damage.
 */
export async function* verifyRun(run: string): AsyncGenerator<Verified> {
  const check = async (path: string, body: (path: string) => unknown): Promise<Verified> => {
    try {
      const fault = await body(path);
      return { path, faults: typeof fault === "string" ? [fault] : [] };
    } catch (error) {
      return { path, faults: [(error as Error).message] };
    }
  };
  const description = await check(join(run, "run.json"), () => void readDescription(run));
  yield description;
  yield await check(join(run, "metrics.jsonl"), (path) => readAll(path, metricsRow));
  yield await check(join(run, "trajectories.jsonl"), (path) => drain(readEpisodeRecords(path)));
  yield await check(join(run, "samples.jsonl"), (path) => readAll(path, sampleRecordSchema));
  // Runs of earlier versions have none of these.
  const further = { "draws.jsonl": drawsRecord, "probes.jsonl": probeRecord };
  for (const [name, schema] of Object.entries(further))
    if (existsSync(join(run, name))) yield await check(join(run, name), (path) => readAll(path, schema));
  // Of a run of nlac serve --train.
  const served = {
    "episodes.jsonl": readEpisodeRecords,
    "open.jsonl": readRecords,
    "corrections.jsonl": readRecords,
  };
  for (const [name, read] of Object.entries(served))
    if (existsSync(join(run, name))) yield await check(join(run, name), (path) => drain(read(path)));
  const events = new Set<string>();
  const numbers = checkpointNumbers(run);
  for (const number of numbers.toReversed()) {
    const faults: string[] = [];
    const whole = await check(checkpointPath(run, number), async () => {
      const { saved } = await openCheckpoint(run, number, (line) => faults.push(line));
      events.add(saved.files.events.name);
    });
    yield { ...whole, faults: [...whole.faults, ...faults] };
  }
  for (const name of events) yield await check(join(run, name), eventFault);
  if (existsSync(join(run, "latest")))
    yield await check(join(run, "latest"), (path) => {
      const named = onDisk(path, () => readFileSync(path, "utf8")).trim();
      const exists = numbers.some((number) => checkpointPath(run, number).endsWith(`/${named}`));
      return exists ? undefined : `${path} names ${JSON.stringify(named)}, which is not a checkpoint.`;
    });
}

function readAll(path: string, schema: z.ZodType): string | undefined {
  let line = 0;
  for (const record of readRecords(path)) {
    line++;
    const { error } = schema.safeParse(record);
    if (error === undefined) continue;
    const { path: field, message } = error.issues[0]!;
    return `${path}: line ${line}: ${[...field, message].join(": ")}.`;
  }
  return undefined;
}

function drain(records: Iterable<unknown>): void {
  for (const _ of records);
}
