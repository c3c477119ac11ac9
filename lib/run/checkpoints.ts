/**
 * Lists a run's checkpoints, checks whether one is complete, and chooses the one to resume from.
 *
 * A checkpoint is undamaged if its files have their checksums (files/checksums.ts), it belongs to
 * this run, and the episodes begin as they did when it was written.
 */

import { createHash } from "node:crypto";
import { existsSync, readdirSync, renameSync, rmSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { hashPrefix, requireChecksums } from "../files/checksums.ts";
import { type FileStart, onDisk, type RunningHash, readJson, syncDirectory } from "../files/disk.ts";
import { readDescription, requireRun } from "./description.ts";

const fileState = z.strictObject({ bytes: z.int().min(0), sha256: z.string() });

/** Contents of state.json: the algorithm's counters, and the state of every record file. */
export const savedState = z.strictObject({
  format: z.literal(1),
  /** `id` in run.json. */
  run: z.string(),
  state: z.record(z.string(), z.unknown()),
  /** Steps of the warm-up, over all models, if it has not ended: `state` is empty then. */
  warmup: z.int().min(0).optional(),
  files: z.strictObject({
    metrics: fileState,
    trajectories: fileState,
    samples: fileState,
    // Checkpoints of earlier versions do not have these.
    draws: fileState.optional(),
    probes: fileState.optional(),
    evaluations: fileState.optional(),
    events: fileState.extend({ name: z.string().regex(/^events\.out\.tfevents\.[\w.-]+$/) }),
  }),
});

export type SavedState = z.infer<typeof savedState>;
export type RecordFile = keyof SavedState["files"];

/** A complete checkpoint. */
export interface WholeCheckpoint {
  number: number;
  path: string;
  saved: SavedState;
  /** The record files up to the checkpoint. */
  starts: Partial<Record<RecordFile, FileStart>>;
}

export const emptyStart = (): FileStart => ({ bytes: 0, hash: createHash("sha256") });

/**
 * Numbers of the checkpoints, the newest first. A checkpoint gets its name when it is complete.
 * Throws ERR_IO.
 */
export function checkpointNumbers(run: string): number[] {
  const root = join(run, "checkpoints");
  if (!existsSync(root)) return [];
  const names = onDisk(root, () => readdirSync(root));
  return names.flatMap((name) => (/^\d{6,}$/.test(name) ? [Number(name)] : [])).sort((a, b) => b - a);
}

export function checkpointPath(run: string, number: number): string {
  return join(run, "checkpoints", String(number).padStart(6, "0"));
}

/** The first number that no checkpoint has used, including those set aside. Throws ERR_IO. */
export function nextNumber(run: string): number {
  const root = join(run, "checkpoints");
  const names = onDisk(root, () => readdirSync(root));
  return Math.max(-1, ...names.map((name) => Number(/^\d+/.exec(name)?.[0] ?? -1))) + 1;
}

/** Whether a run has, or had, a checkpoint. Throws ERR_IO. */
export function hasCheckpoint(run: string): boolean {
  return existsSync(join(run, "latest")) || checkpointNumbers(run).length > 0;
}

/**
 * Removes checkpoints. They lose their names first, durably, so that a kill or a crash leaves none
 * in part. Throws ERR_IO.
 */
export function removeCheckpoints(run: string, numbers: readonly number[]): void {
  if (numbers.length === 0) return;
  const root = join(run, "checkpoints");
  for (const number of numbers) {
    const path = checkpointPath(run, number);
    onDisk(path, () => renameSync(path, join(root, `.${basename(path)}`)));
  }
  syncDirectory(root);
  removeUnfinished(run);
}

/** Removes what a killed process was writing or removing. Throws ERR_IO. */
export function removeUnfinished(run: string): void {
  const root = join(run, "checkpoints");
  for (const name of onDisk(root, () => readdirSync(root))) {
    if (!/^\.\d{6,}$/.test(name)) continue;
    const path = join(root, name);
    onDisk(path, () => rmSync(path, { recursive: true, force: true }));
  }
}

/** The newest checkpoint of a run, not checked. Throws ERR_RUN, ERR_CHECKPOINT. */
export function newestCheckpoint(run: string): string {
  requireRun(run);
  const [newest] = checkpointNumbers(run);
  if (newest !== undefined) return checkpointPath(run, newest);
  throw new NlacError("ERR_CHECKPOINT", `${run} has no checkpoint yet: delete it and start again.`);
}

/** The directory for `Learner.resume`. Throws ERR_RUN, ERR_CHECKPOINT. */
export function learnerDirectory(run: string): string {
  return join(newestCheckpoint(run), "learner");
}

/** The directory of a checkpoint's reward model. */
export const rewardModelName = "reward-model";

/**
 * The directory for `Learner.resume` of the run's reward model.
 * @throws NlacError ERR_RUN if the run has none, ERR_CHECKPOINT
 */
export function rewardModelDirectory(run: string): string {
  const path = join(newestCheckpoint(run), rewardModelName);
  if (existsSync(path)) return path;
  throw new NlacError("ERR_RUN", `${run} has no reward model: it is not a run of hope.`);
}

/**
 * The checkpoint to resume from: number `number`, or the newest undamaged one. Take the run's
 * lock first.
 *
 * @param warn called with one line per file that is damaged but not needed
 * @throws NlacError ERR_CHECKPOINT that names the damaged files, ERR_RUN, ERR_IO
 */
export async function chooseCheckpoint(
  run: string,
  {
    number,
    warn = () => {},
  }: { number?: number | undefined; warn?: ((line: string) => void) | undefined } = {},
): Promise<WholeCheckpoint> {
  newestCheckpoint(run);
  const numbers = checkpointNumbers(run);
  if (number !== undefined && !numbers.includes(number)) {
    const known = numbers.toReversed().join(", ");
    throw new NlacError("ERR_CHECKPOINT", `${run} has no checkpoint ${number}. It has: ${known}.`);
  }
  const faults: string[] = [];
  for (const candidate of number === undefined ? numbers : [number]) {
    try {
      const whole = await openCheckpoint(run, candidate, warn);
      if (faults.length > 0) warn(`${faults.join(" ")} Resuming from checkpoint ${candidate}.`);
      return whole;
    } catch (error) {
      if (!(error instanceof NlacError) || error.code !== "ERR_CHECKPOINT") throw error;
      faults.push(error.message);
    }
  }
  const others =
    numbers.length > 1 && number !== undefined
      ? ` Other checkpoints: ${numbers.filter((n) => n !== number).join(", ")}.`
      : "";
  throw new NlacError("ERR_CHECKPOINT", `${faults.join(" ")}${others}`);
}

/** Checks one checkpoint. Throws ERR_CHECKPOINT that names the damaged file, ERR_RUN, ERR_IO. */
export async function openCheckpoint(
  run: string,
  number: number,
  warn: (line: string) => void,
): Promise<WholeCheckpoint> {
  const path = checkpointPath(run, number);
  await requireChecksums(path, "ERR_CHECKPOINT");
  const saved = readJson(join(path, "state.json"), savedState, "ERR_CHECKPOINT");
  if (saved.run !== readDescription(run).id)
    throw new NlacError("ERR_CHECKPOINT", `${path} belongs to another run.`);
  const starts: WholeCheckpoint["starts"] = {};
  for (const name of Object.keys(saved.files) as RecordFile[]) {
    const file = recordPath(run, saved, name);
    const { bytes, sha256 } = saved.files[name]!;
    const hash = await hashStart(file, bytes, path);
    starts[name] = { bytes, hash };
    if (hash.copy().digest("hex") === sha256) continue;
    const fault = `${file} is damaged: it differs from what it was at checkpoint ${number}.`;
    if (name === "trajectories") throw new NlacError("ERR_CHECKPOINT", fault);
    warn(`${fault} Training does not need it; nlac verify shows the details.`);
  }
  return { number, path, saved, starts };
}

function recordPath(run: string, saved: SavedState, name: RecordFile): string {
  return join(run, name === "events" ? saved.files.events.name : `${name}.jsonl`);
}

async function hashStart(file: string, bytes: number, checkpoint: string): Promise<RunningHash> {
  const found = onDisk(file, () => statSync(file, { throwIfNoEntry: false }));
  if (found === undefined && bytes === 0) return emptyStart().hash;
  if (!found?.isFile())
    throw new NlacError("ERR_CHECKPOINT", `${file} is ${found === undefined ? "missing" : "not a file"}.`);
  if (found.size >= bytes) return hashPrefix(file, bytes);
  throw new NlacError(
    "ERR_CHECKPOINT",
    `${file} has ${found.size} bytes; at checkpoint ${basename(checkpoint)} it had ${bytes}.`,
  );
}

/**
 * Renames the checkpoints after `number` to `….aside`: the record files are truncated to `number`,
 * so that a run cannot continue from them any more. Returns their new names.
 */
export function setAsideAfter(run: string, number: number): string[] {
  const root = join(run, "checkpoints");
  return checkpointNumbers(run)
    .filter((other) => other > number)
    .map((other) => {
      const path = checkpointPath(run, other);
      onDisk(root, () => renameSync(path, `${path}.aside`));
      return `${path}.aside`;
    });
}
