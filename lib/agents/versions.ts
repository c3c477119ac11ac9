/** The stored versions of a served run: its checkpoints, each with its name and measurements. */

import { existsSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { onDisk, readJson } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { checkpointNumbers, checkpointPath, setAsideAfter } from "../run/checkpoints.ts";
import { requireRun } from "../run/description.ts";
import { lockRun } from "../run/directory.ts";

/** The file that counts the starts of a run's server. */
const startsName = "starts.json";

/** What a checkpoint of a served run has besides the algorithm's state. */
const servedState = z.strictObject({
  /** Name of the weights: the start of the server, and the weight changes so far. */
  start: z.int().min(1),
  changes: z.int().min(0),
  /** How often each correction was imitated, by its id. */
  corrections: z.record(z.string(), z.int().min(0)),
  /** Metrics of the latest episodes, for the guard rails; empty if there were too few. */
  quality: z.record(z.string(), z.number()),
});

export type ServedState = z.infer<typeof servedState>;

/** State of a served run's checkpoint. */
export const savedServed = z.strictObject({
  training: z.record(z.string(), z.unknown()),
  served: servedState,
});

/** A stored version of the weights of a served run. */
export interface Version {
  /** The name that answers carry, for example "1.96". */
  name: string;
  /** Number of its checkpoint. */
  checkpoint: number;
  /** When it was saved, in milliseconds since 1970. */
  time: number;
  /** Metrics of the latest episodes before it was saved; empty if there were too few. */
  quality: Record<string, number>;
}

/**
 * The kept versions of a served run, the newest first.
 *
 * @param onDamaged called with the error of each version whose state cannot be read; it is left
 *   out. Default: the error is thrown
 * @throws NlacError ERR_RUN for a directory without a run, ERR_CHECKPOINT for a damaged checkpoint
 *   or one of a run that was not served; ERR_IO
 */
export function listVersions(run: string, onDamaged?: (error: NlacError) => void): Version[] {
  requireRun(run);
  return checkpointNumbers(run).flatMap((checkpoint) => {
    const served = servedStateOf(run, checkpoint, onDamaged);
    if (served === undefined) return [];
    const { start, changes, quality } = served;
    const path = stateFileOf(run, checkpoint);
    const time = onDisk(path, () => statSync(path)).mtimeMs;
    return [{ name: `${start}.${changes}`, checkpoint, time, quality }];
  });
}

const stateFile = z.looseObject({ state: z.unknown(), warmup: z.int().optional() });

/**
 * What a checkpoint of a served run has besides the algorithm's state. Undefined for one of its
 * warm-up. Throws ERR_CHECKPOINT, ERR_IO. See `listVersions` for `onDamaged`.
 */
export function servedStateOf(
  run: string,
  checkpoint: number,
  onDamaged?: (error: NlacError) => void,
): ServedState | undefined {
  let read: z.infer<typeof stateFile>;
  try {
    read = readJson(stateFileOf(run, checkpoint), stateFile, "ERR_CHECKPOINT");
  } catch (error) {
    if (onDamaged === undefined) throw error;
    onDamaged(error as NlacError);
    return undefined;
  }
  const { state, warmup } = read;
  if (warmup !== undefined) return undefined;
  const parsed = savedServed.safeParse(state);
  if (parsed.success) return parsed.data.served;
  throw new NlacError(
    "ERR_CHECKPOINT",
    `${run} was not made by nlac serve --train: its checkpoints have no version.`,
  );
}

function stateFileOf(run: string, checkpoint: number): string {
  return join(checkpointPath(run, checkpoint), "state.json");
}

/**
 * The version of this name, however damaged others are. Throws ERR_CHECKPOINT that lists the kept
 * ones.
 */
export function findVersion(run: string, name: string): Version {
  const versions = listVersions(run, () => {});
  const found = versions.find((version) => version.name === name);
  if (found !== undefined) return found;
  const kept = versions.map((version) => version.name).join(", ");
  throw new NlacError("ERR_CHECKPOINT", `${run} has no version ${name}. It has: ${kept || "none"}.`);
}

/**
 * Makes a version the one from which a stopped server continues. Later checkpoints are renamed to
 * `….aside`; episodes that they were trained on are trained on again.
 *
 * @param name default: the second newest version
 * @throws NlacError ERR_RUN, also if a server uses the run; ERR_CHECKPOINT; ERR_IO
 */
export function rollBackVersion(run: string, name?: string): Version {
  requireRun(run);
  const lock = lockRun(run);
  try {
    const version = name === undefined ? listVersions(run)[1] : findVersion(run, name);
    if (version === undefined) throw new NlacError("ERR_CHECKPOINT", `${run} has no earlier version.`);
    setAsideAfter(run, version.checkpoint);
    noteRollback(run, undefined);
    writeAtomically(join(run, "latest"), String(version.checkpoint).padStart(6, "0"));
    return version;
  } finally {
    lock.release();
  }
}

const rollbackFile = z.strictObject({ version: z.string() });

/**
 * Notes durably which version a server restores, until a checkpoint with its weights is saved, or
 * removes the note. Throws ERR_IO.
 */
export function noteRollback(run: string, version: string | undefined): void {
  const path = join(run, "rollback.json");
  if (version === undefined) onDisk(path, () => rmSync(path, { force: true }));
  else writeAtomically(path, JSON.stringify({ version } satisfies z.infer<typeof rollbackFile>));
}

/** The version that a server was restoring when it ended. Throws ERR_RUN. */
export function notedRollback(run: string): string | undefined {
  const path = join(run, "rollback.json");
  return existsSync(path) ? readJson(path, rollbackFile, "ERR_RUN").version : undefined;
}

const startsFile = z.strictObject({ starts: z.int().min(0) });

/** Whether `nlac serve --train` made the run: `nlac train --resume` cannot continue it. */
export function isServed(run: string): boolean {
  return existsSync(join(run, startsName));
}

/**
 * Counts the starts of a run's server, durably: names of versions are never used twice, even if a
 * server is killed and repeats updates. Throws ERR_RUN, ERR_IO.
 */
export function nextStart(run: string): number {
  const path = join(run, startsName);
  const earlier = existsSync(path) ? readJson(path, startsFile, "ERR_RUN").starts : 0;
  writeAtomically(path, JSON.stringify({ starts: earlier + 1 }));
  return earlier + 1;
}
