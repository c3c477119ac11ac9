/** How a run meets the file system: what it refuses is a coded error, and what it holds is checked. */

import {
  closeSync,
  existsSync,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readFileSync,
  writeSync,
} from "node:fs";
import { z } from "zod";
import { type ErrorCode, fromFileSystem, NlacError } from "../base/errors.ts";

/** Runs `use`, which works on `path`. What the file system refuses is ERR_IO that names the file. */
export function onDisk<T>(path: string, use: () => T): T {
  try {
    return use();
  } catch (error) {
    throw fromFileSystem(error, path);
  }
}

/** The JSON value in `path`. Throws `code` when it cannot be read, is not JSON, or is not as `schema` has it. */
export function readJson<T>(path: string, schema: z.ZodType<T>, code: ErrorCode): T {
  try {
    return schema.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch (error) {
    throw new NlacError(code, `${path} cannot be read: ${whyNot(error)}`, { cause: error });
  }
}

/** In one line: the parser's own message quotes the file, line ends and all. */
function whyNot(error: unknown): string {
  if (error instanceof SyntaxError) return "it is not JSON.";
  if (!(error instanceof z.ZodError)) return (error as Error).message;
  const { path, message } = error.issues[0]!;
  return `${[...path, message].join(": ")}.`;
}

/** Holds `path` to be a new or empty directory. Throws `code` with `advice` when it is not empty, ERR_IO. */
export function requireEmpty(path: string, code: ErrorCode, advice: string): void {
  const entries = onDisk(path, () => (existsSync(path) ? readdirSync(path) : []));
  if (entries.length > 0) throw new NlacError(code, `${path} is not empty. ${advice}`);
}

/** A file that only grows. Its directory must be there. Every method throws ERR_IO, naming it. */
export class AppendOnlyFile {
  readonly path: string;
  readonly #fd: number;
  #bytes: number;
  /** Whether a part of what could not be written whole may stand behind them. */
  #torn = false;

  /**
   * Opens `path`, cut to `bytes` when given (what a checkpoint knew of it).
   * @throws NlacError ERR_RUN when it is shorter than that
   */
  constructor(path: string, bytes?: number) {
    this.path = path;
    this.#fd = onDisk(path, () => openSync(path, "a+"));
    const { size } = fstatSync(this.#fd);
    if (bytes !== undefined && bytes > size) {
      closeSync(this.#fd);
      throw new NlacError("ERR_RUN", `${path} has ${size} bytes; the checkpoint was made with ${bytes}.`);
    }
    this.#bytes = bytes ?? size;
    if (this.#bytes !== size) onDisk(path, () => ftruncateSync(this.#fd, this.#bytes));
  }

  /** Its length. */
  get bytes(): number {
    return this.#bytes;
  }

  /** All of `data` or nothing: what a full disk cut short goes before anything else is written. */
  append(data: Uint8Array): void {
    onDisk(this.path, () => {
      if (this.#torn) ftruncateSync(this.#fd, this.#bytes);
      this.#torn = true;
      for (let offset = 0; offset < data.length; ) offset += writeSync(this.#fd, data, offset);
      this.#torn = false;
    });
    this.#bytes += data.length;
  }

  /** Bytes so far, all of them on disk when this returns. */
  sync(): number {
    onDisk(this.path, () => fsyncSync(this.#fd));
    return this.#bytes;
  }

  close(): void {
    closeSync(this.#fd);
  }
}
