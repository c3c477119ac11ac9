/**
 * checksums.json: length and SHA-256 of the files of a directory, and of the list itself.
 *
 *   { "format": 1, "sha256": "…", "files": { "model.safetensors": { "bytes": 8, "sha256": "…" } } }
 *
 * A subdirectory with its own checksums.json is listed by that file. Covered are the kinds of files
 * that nlac reads (.json, .jinja, .safetensors, .bin); others may lie beside them.
 */

import { createHash, type Hash } from "node:crypto";
import { createReadStream, existsSync, readdirSync, rmSync, statSync } from "node:fs";
import { dirname, isAbsolute, join, normalize } from "node:path";
import { z } from "zod";
import { type ErrorCode, fromFileSystem, NlacError } from "../base/errors.ts";
import { onDisk, readText } from "./disk.ts";
import { writeAtomically } from "./write-atomically.ts";

const checksumsName = "checksums.json";

const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
const checksumsSchema = z.strictObject({
  format: z.literal(1),
  sha256,
  files: z.record(z.string(), z.strictObject({ bytes: z.int().min(0), sha256 })),
});

type Files = z.infer<typeof checksumsSchema>["files"];

/**
 * Writes checksums.json for the covered files in `directory` and in its subdirectories `below`.
 * Throws ERR_IO.
 */
export async function writeChecksums(directory: string, below: readonly string[] = []): Promise<void> {
  const files: Files = {};
  for (const name of covered(directory, below).sort()) {
    const path = join(directory, name);
    files[name] = { bytes: onDisk(path, () => statSync(path).size), sha256: await hashFile(path) };
  }
  writeAtomically(join(directory, checksumsName), render(files));
}

/** Removes checksums.json before the files are changed. Throws ERR_IO. */
export function removeChecksums(directory: string): void {
  const path = join(directory, checksumsName);
  onDisk(path, () => rmSync(path, { force: true }));
}

export function hasChecksums(directory: string): boolean {
  return existsSync(join(directory, checksumsName));
}

/**
 * Compares the files with their checksums, every length first. Throws `code` that names the first
 * file that differs, is missing or is not listed.
 */
export async function requireChecksums(directory: string, code: ErrorCode): Promise<void> {
  for await (const fault of checksumFaults(directory)) throw new NlacError(code, fault);
}

/**
 * One line per file that differs from checksums.json, is missing or is not listed. Throws ERR_IO
 * for a file that cannot be read: it may be undamaged.
 */
export async function* checksumFaults(directory: string): AsyncGenerator<string> {
  const list = join(directory, checksumsName);
  let files: Files;
  try {
    files = parse(readText(list));
  } catch (error) {
    yield `${list} ${(error as NodeJS.ErrnoException).code === "ENOENT" ? "is missing." : whyNot(error)}`;
    return;
  }
  const wrongLength = new Set<string>();
  for (const [name, { bytes }] of Object.entries(files)) {
    const fault = lengthFault(join(directory, name), bytes);
    if (fault === undefined) continue;
    wrongLength.add(name);
    yield fault;
  }
  const below = new Set(Object.keys(files).map((name) => dirname(name)));
  below.delete(".");
  for (const name of covered(directory, [...below]))
    if (!(name in files)) yield `${join(directory, name)} is not listed in ${checksumsName}.`;
  for (const [name, { sha256 }] of Object.entries(files)) {
    if (wrongLength.has(name)) continue;
    const path = join(directory, name);
    const fault = await contentFault(path, sha256);
    if (fault !== undefined) yield fault;
    else if (name.endsWith(`/${checksumsName}`)) yield* checksumFaults(dirname(path));
  }
}

function lengthFault(path: string, bytes: number): string | undefined {
  let found: ReturnType<typeof statSync>;
  try {
    found = statSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return `${path} is missing.`;
    throw fromFileSystem(error, path);
  }
  if (!found.isFile()) return `${path} is not a file.`;
  return found.size === bytes ? undefined : `${path} is damaged: it has ${found.size} bytes, not ${bytes}.`;
}

async function contentFault(path: string, expected: string): Promise<string | undefined> {
  return (await hashFile(path)) === expected ? undefined : `${path} is damaged: its SHA-256 differs.`;
}

/** SHA-256 in hexadecimal. Throws ERR_IO. */
export async function hashFile(path: string): Promise<string> {
  return (await hashPrefix(path)).digest("hex");
}

/** The SHA-256 of the file's first `bytes`, or of all of it. Throws ERR_IO. */
export async function hashPrefix(path: string, bytes: number = Number.POSITIVE_INFINITY): Promise<Hash> {
  const hash = createHash("sha256");
  if (bytes === 0) return hash;
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20, end: bytes - 1 }))
      hash.update(chunk as Buffer);
  } catch (error) {
    throw fromFileSystem(error, path);
  }
  return hash;
}

/** SHA-256 of a text, in hexadecimal. */
export function hashText(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

/** Covered files, relative to `directory`. */
function covered(directory: string, below: readonly string[]): string[] {
  const entries = onDisk(directory, () => readdirSync(directory, { withFileTypes: true }));
  const names = entries
    .filter((entry) => !entry.isDirectory() && /\.(json|jinja|safetensors|bin)$/.test(entry.name))
    .map(({ name }) => name)
    .filter((name) => name !== checksumsName);
  for (const name of below) {
    const path = join(directory, name);
    if (!existsSync(path)) continue;
    const inner = hasChecksums(path) ? [checksumsName] : covered(path, []);
    names.push(...inner.map((file) => `${name}/${file}`));
  }
  return names;
}

function render(files: Files): string {
  return `${JSON.stringify({ format: 1, sha256: hashText(JSON.stringify(files)), files }, null, 2)}\n`;
}

/** Every byte of the text counts: it must be as `render` writes it. */
function parse(text: string): Files {
  const { files } = checksumsSchema.parse(JSON.parse(text));
  if (text !== render(files)) throw new Error("its own SHA-256 differs");
  for (const name of Object.keys(files))
    if (isAbsolute(name) || normalize(name) !== name || name.startsWith(".."))
      throw new Error(`it names ${name}`);
  return files;
}

function whyNot(error: unknown): string {
  if (error instanceof SyntaxError || error instanceof z.ZodError)
    return "is damaged: it is not a list of checksums.";
  return `is damaged: ${(error as Error).message}.`;
}
