/**
 * Reads files that come from others, such as a downloaded model: regular files only, and only up to
 * a size. Symbolic links are followed, because the hub's cache consists of them.
 */

import { open } from "node:fs/promises";
import { NlacError } from "../base/errors.ts";
import { notRegular, readFlags } from "./disk.ts";

/** Most bytes and values of a file. */
export interface FileLimit {
  bytes: number;
  values: number;
}

/** The largest published tokenizer.json has 33 MB and 2.5 million values. */
export const tokenizerLimit: FileLimit = { bytes: 64 << 20, values: 4_000_000 };
/** Configurations and chat templates. */
export const settingsLimit: FileLimit = { bytes: 16 << 20, values: 1_000_000 };
/** The list of a model's shards; the core reads no larger one (native/core/io/safetensors.cc). */
export const indexLimit: FileLimit = { bytes: 100_000_000, values: 500_000 };

/**
 * The text of a file; undefined if there is none.
 *
 * @throws NlacError ERR_IO if it cannot be read or is no regular file, ERR_MODEL_FORMAT if it has
 *   more than `maxBytes`
 */
export async function readModelFile(path: string, maxBytes: number): Promise<string | undefined> {
  try {
    const file = await open(path, readFlags);
    try {
      const info = await file.stat();
      if (!info.isFile()) throw notRegular(path);
      if (info.size > maxBytes) {
        throw new NlacError(
          "ERR_MODEL_FORMAT",
          `${path} has ${info.size} bytes; at most ${maxBytes} are read.`,
        );
      }
      return await file.readFile("utf8");
    } finally {
      await file.close();
    }
  } catch (error) {
    if (error instanceof NlacError) throw error;
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new NlacError("ERR_IO", `${path} cannot be read.`, { cause: error });
  }
}

/** Objects, lists and commas of a JSON text: no fewer than its values. */
function countValues(text: string): number {
  let count = 1;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit === comma || unit === brace || unit === bracket) count++;
  }
  return count;
}

const [comma, brace, bracket] = [0x2c, 0x7b, 0x5b];

/**
 * The value that a JSON file contains; undefined if there is no file.
 *
 * @param limit most bytes, and most values, which limits memory; commas in strings count, too
 * @throws NlacError as `readModelFile`, and ERR_MODEL_FORMAT if the file is not JSON
 */
export async function readModelJson(path: string, limit: FileLimit): Promise<unknown> {
  const text = await readModelFile(path, limit.bytes);
  if (text === undefined) return undefined;
  if (countValues(text) > limit.values) {
    throw new NlacError("ERR_MODEL_FORMAT", `${path} has more than ${limit.values} values.`);
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `${path} is not JSON: ${(error as Error).message}`, {
      cause: error,
    });
  }
}
