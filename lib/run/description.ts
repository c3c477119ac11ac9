/** run.json: what a run was started with. Its `sha256` is that of the other fields. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { hashText } from "../files/checksums.ts";
import { readJson, requireEmpty } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";

/** Throws ERR_RUN unless `path` is new or empty; ERR_IO. */
export function requireNewRun(path: string): void {
  requireEmpty(path, "ERR_RUN", "Choose another directory, or continue with --resume.");
}

export function isRun(path: string): boolean {
  return existsSync(join(path, "run.json"));
}

/** Throws ERR_RUN unless `path` has a run.json. */
export function requireRun(path: string): void {
  if (isRun(path)) return;
  throw new NlacError("ERR_RUN", `${path} is not a run directory: it has no run.json.`);
}

/** The contents of run.json. Throws ERR_RUN, also if it is damaged. */
export function readDescription(path: string): Record<string, unknown> {
  requireRun(path);
  const file = join(path, "run.json");
  const { sha256, ...description } = readJson(file, z.record(z.string(), z.unknown()), "ERR_RUN");
  if (sha256 === undefined || sha256 === hashOf(description)) return description;
  const advice = "If you edited it, delete its field sha256.";
  throw new NlacError("ERR_RUN", `${file} is damaged or was edited: its SHA-256 differs. ${advice}`);
}

/** Writes run.json. Throws ERR_IO. */
export function writeDescription(path: string, description: Record<string, unknown>): void {
  // As it will be read: without the fields that JSON drops.
  const plain = JSON.parse(JSON.stringify(description, withoutKeys)) as Record<string, unknown>;
  const sealed = { ...plain, sha256: hashOf(plain) };
  writeAtomically(join(path, "run.json"), `${JSON.stringify(sealed, null, 2)}\n`);
}

/** Appends `entry` to a list in run.json unless it is the last one. Throws ERR_RUN, ERR_IO. */
export function note(path: string, list: "builds" | "numerics", entry: object): void {
  const description = readDescription(path);
  const known: unknown[] = Array.isArray(description[list]) ? description[list] : [null];
  if (isDeepStrictEqual(known.at(-1), entry)) return;
  writeDescription(path, { ...description, [list]: [...known, entry] });
}

/** A JSON replacer that drops API keys, because run files may be shared. */
export function withoutKeys(key: string, value: unknown): unknown {
  return key === "apiKey" ? undefined : value;
}

function hashOf(description: Record<string, unknown>): string {
  return hashText(JSON.stringify(description));
}
