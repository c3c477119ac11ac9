/**
 * Append-only record files: one JSON object per line, each with a checksum.
 *
 *   {"checksum":"9ab3…","record":{…}}        CRC-32 of the record's JSON text, eight hex digits
 *
 * An unfinished last line, as a crash leaves it, is dropped if it starts like a record. Any other
 * damage is an error that names the line.
 */

import { closeSync, existsSync, openSync, readSync, realpathSync, statSync } from "node:fs";
import { crc32 } from "node:zlib";
import { NlacError } from "../base/errors.ts";
import { AppendOnlyFile, type FileStart, onDisk } from "./disk.ts";
import { type Lock, lockNow } from "./lock.ts";

function checksum(text: string | Uint8Array): string {
  return crc32(text).toString(16).padStart(8, "0");
}

/** The text before the record: ASCII, of constant length. */
function opening(checksum: string): string {
  return `{"checksum":"${checksum}","record":`;
}

const openingBytes = opening("00000000").length;

function lineOf(record: unknown): Uint8Array {
  const text = JSON.stringify(record);
  return Buffer.from(`${opening(checksum(text))}${text}}\n`);
}

export class RecordWriter {
  readonly #file: AppendOnlyFile;
  readonly #lock: Lock | undefined;

  /**
   * Opens `path` for appending, truncated to `start` if given. The caller makes sure that no other
   * process writes to it. Throws ERR_RUN when it is shorter, ERR_IO.
   */
  constructor(path: string, start?: number | FileStart, lock?: Lock) {
    this.#file = new AppendOnlyFile(path, start);
    this.#lock = lock;
  }

  /**
   * Opens `path`, or creates it, for appending, and locks it (`path`.lock). An unfinished last
   * record is removed.
   * @throws NlacError ERR_RUN for a file with anything but records, which is not changed, and for
   *   one that another process appends to; ERR_IO
   */
  static resume(path: string): RecordWriter {
    const lock = lockRecords(path);
    try {
      return new RecordWriter(path, existsSync(path) ? recordedBytes(path) : 0, lock);
    } catch (error) {
      lock?.release();
      throw error;
    }
  }

  append(record: unknown): void {
    this.#file.append(lineOf(record));
  }

  /** As `append`, and flushes the file. If that fails, the record is removed again. */
  appendDurably(record: unknown): void {
    this.#file.appendDurably(lineOf(record));
  }

  /** Flushes the file to disk. Returns its length in bytes. */
  sync(): number {
    return this.#file.sync();
  }

  /** Throws ERR_IO if the file was deleted, replaced or shortened since it was opened. */
  requireUnchanged(): void {
    this.#file.requireUnchanged();
  }

  /** As `AppendOnlyFile.seal`. */
  seal(): { bytes: number; sha256: string } {
    return this.#file.seal();
  }

  close(): void {
    this.#file.close();
    this.#lock?.release();
  }
}

/**
 * Locks a file of records for this process. Devices and pipes are not locked.
 * @throws NlacError ERR_RUN when another process appends to it, ERR_IO
 */
export function lockRecords(path: string): Lock | undefined {
  const found = onDisk(path, () => statSync(path, { throwIfNoEntry: false }));
  if (found !== undefined && !found.isFile()) return undefined;
  const file = found === undefined ? path : realpathSync(path);
  return lockNow(`${file}.lock`, path, "ERR_RUN");
}

/**
 * The records of a file in order, one in memory at a time.
 *
 * @param chunkBytes bytes per read
 * @throws NlacError ERR_RUN with the line number for damage other than an unfinished end; ERR_IO
 */
export function* readRecords<T>(path: string, chunkBytes: number = 2 ** 20): Generator<T> {
  for (const { record } of wholeRecords(path, chunkBytes)) yield record as T;
}

/** Bytes of `path` up to the end of its last whole record. Throws as `readRecords`. */
function recordedBytes(path: string): number {
  let whole = 0;
  for (const { end } of wholeRecords(path, 2 ** 20)) whole = end;
  return whole;
}

/** The records of a file, and the byte offset after each. */
function* wholeRecords(path: string, chunkBytes: number): Generator<{ record: unknown; end: number }> {
  const fd = onDisk(path, () => openSync(path, "r"));
  try {
    const chunk = Buffer.alloc(chunkBytes);
    let begun: Buffer[] = []; // the part of the line in earlier chunks
    let lines = 0;
    let read = 0;
    for (;;) {
      const bytes = chunk.subarray(
        0,
        onDisk(path, () => readSync(fd, chunk)),
      );
      if (bytes.length === 0) break;
      let start = 0;
      for (let end = bytes.indexOf("\n"); end >= 0; end = bytes.indexOf("\n", start)) {
        const line = Buffer.concat([...begun, bytes.subarray(start, end)]);
        begun = [];
        start = end + 1;
        lines++;
        yield { record: parseLine(line, `${path}: line ${lines}`), end: read + start };
      }
      begun.push(Buffer.from(bytes.subarray(start)));
      read += bytes.length;
    }
    // A complete file ends with a newline; the rest of an interrupted write may follow.
    if (!beginsAsRecord(Buffer.concat(begun)))
      throw new NlacError("ERR_RUN", `${path}: line ${lines + 1} is not a record.`);
  } finally {
    closeSync(fd);
  }
}

/** Whether an unfinished line starts like a record, as far as it goes. */
function beginsAsRecord(line: Buffer): boolean {
  const begins = line.toString("latin1", 0, openingBytes);
  const digits = /^\{"checksum":"([0-9a-f]*)/.exec(begins)?.[1] ?? "";
  return opening(digits.padEnd(8, "0")).startsWith(begins);
}

/** The record of a line. The checksum is verified on bytes, before they are decoded. */
function parseLine(line: Buffer, where: string): unknown {
  const record = line.subarray(openingBytes, -1);
  const begins = line.toString("latin1", 0, openingBytes) === opening(checksum(record));
  if (!begins || line.at(-1) !== "}".charCodeAt(0)) {
    throw new NlacError("ERR_RUN", `${where} is damaged (wrong checksum).`);
  }
  try {
    return JSON.parse(record.toString("utf8"));
  } catch (error) {
    throw new NlacError("ERR_RUN", `${where} is not a record.`, { cause: error });
  }
}
