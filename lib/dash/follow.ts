/**
 * Follows a record file that another process appends to: reads new records by offset, keeps a short
 * summary of each, and starts again when the file was truncated, as `--resume` does.
 */

import { type FileHandle, open } from "node:fs/promises";
import { fromFileSystem, NlacError } from "../base/errors.ts";
import { notRegular, readFlags } from "../files/disk.ts";
import { beginsAsRecord, lineAt, parseLine } from "../files/records.ts";

/** Bytes per read. Between reads the event loop answers requests. */
const chunkBytes = 2 ** 20;
/** Bytes that identify a line: its checksum and the beginning of its record. */
const headBytes = 64;

interface Head {
  start: number;
  bytes: Buffer;
}

/**
 * The summary of record `number`, from 0. Throws if the record is not of the expected kind, with a
 * message that names `where`.
 */
export type Summarize<Summary> = (record: unknown, where: string, number: number) => Summary;

export class RecordFollower<Summary> {
  /** One per record. */
  items: Summary[] = [];
  /** Increases when the file was truncated, which makes everything read before invalid. */
  generation = 0;
  readonly #path: string;
  readonly #summarize: Summarize<Summary>;
  /** Why reading has stopped: a line is not a record. */
  #damage: string | undefined;
  /** What follows the last line, if it is not the beginning of a record. It may be truncated. */
  #rest: string | undefined;
  /** Start of each record's line, and of the next one. */
  #starts: number[] = [0];
  #first: Head | undefined;
  #last: Head | undefined;
  #polling: Promise<boolean> | undefined;

  constructor(path: string, summarize: Summarize<Summary>) {
    this.#path = path;
    this.#summarize = summarize;
  }

  /** Why later records are missing, if the file is damaged. */
  get fault(): string | undefined {
    return this.#damage ?? this.#rest;
  }

  /**
   * Reads what was appended. Returns whether anything has changed. A missing file has no records.
   */
  poll(): Promise<boolean> {
    this.#polling ??= this.#read().finally(() => {
      this.#polling = undefined;
    });
    return this.#polling;
  }

  /** Record number `i`. Throws ERR_RUN if it is damaged or was truncated since. */
  async record(i: number): Promise<unknown> {
    const [start, end] = [this.#starts[i], this.#starts[i + 1]];
    if (start === undefined || end === undefined)
      throw new NlacError("ERR_RUN", `${this.#path} has no record ${i}.`);
    let line: Buffer;
    try {
      const file = await openRegular(this.#path);
      try {
        line = await bytesAt(file, start, end - start);
      } finally {
        await file.close();
      }
    } catch (error) {
      throw fromFileSystem(error, this.#path); // the run was removed, for example
    }
    return parseLine(line.subarray(0, -1), lineAt(this.#path, i + 1));
  }

  async #read(): Promise<boolean> {
    let file: FileHandle;
    try {
      file = await openRegular(this.#path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
      return this.#begun ? this.#restart() : false;
    }
    try {
      const isSame = (await isAt(file, this.#first)) && (await isAt(file, this.#last));
      const restarted = isSame ? false : this.#restart();
      if (this.#damage !== undefined) return restarted;
      return (await this.#append(file)) || restarted;
    } finally {
      await file.close();
    }
  }

  get #begun(): boolean {
    return this.#first !== undefined || this.fault !== undefined;
  }

  #restart(): true {
    this.items = [];
    this.#starts = [0];
    this.#first = undefined;
    this.#last = undefined;
    this.#damage = undefined;
    this.#rest = undefined;
    this.generation++;
    return true;
  }

  async #append(file: FileHandle): Promise<boolean> {
    const chunk = Buffer.alloc(chunkBytes);
    let rest: Buffer = Buffer.alloc(0); // a line that continues in the next chunk
    let at = this.#starts.at(-1)!;
    const before = this.#rest;
    this.#rest = undefined;
    let changed = false;
    for (;;) {
      const { bytesRead } = await file.read(chunk, 0, chunkBytes, at);
      if (bytesRead === 0) return changed || before !== this.#rest;
      at += bytesRead;
      const bytes = Buffer.concat([rest, chunk.subarray(0, bytesRead)]);
      let start = 0;
      for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, start)) {
        const line = bytes.subarray(start, end);
        if (!this.#add(line)) return true;
        changed = true;
        start = end + 1;
      }
      rest = bytes.subarray(start);
      if (!beginsAsRecord(rest)) {
        this.#rest = `${lineAt(this.#path, this.items.length + 1)} is not a record.`;
        return changed || before !== this.#rest;
      }
    }
  }

  /** Whether the line is a record. */
  #add(line: Buffer): boolean {
    const number = this.items.length;
    const start = this.#starts.at(-1)!;
    const where = lineAt(this.#path, number + 1);
    try {
      this.items.push(this.#summarize(parseLine(line, where), where, number));
    } catch (error) {
      const { message } = error as Error;
      this.#damage = error instanceof NlacError ? message : `${where} cannot be shown: ${message}`;
    }
    const head = { start, bytes: Buffer.from(line.subarray(0, headBytes)) };
    this.#first ??= head;
    this.#last = head;
    if (this.#damage !== undefined) return false;
    this.#starts.push(start + line.length + 1);
    return true;
  }
}

/** Throws Node's errors, and ERR_IO if it is not a regular file. */
async function openRegular(path: string): Promise<FileHandle> {
  const file = await open(path, readFlags);
  if ((await file.stat()).isFile()) return file;
  await file.close();
  throw notRegular(path);
}

async function bytesAt(file: FileHandle, start: number, length: number): Promise<Buffer> {
  const buffer = Buffer.alloc(length);
  const { bytesRead } = await file.read(buffer, 0, length, start);
  return buffer.subarray(0, bytesRead);
}

async function isAt(file: FileHandle, head: Head | undefined): Promise<boolean> {
  return head === undefined || (await bytesAt(file, head.start, head.bytes.length)).equals(head.bytes);
}
