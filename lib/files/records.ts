/**
 * Append-only record files: one JSON object a line, each with a checksum.
 *
 *   {"checksum":"9ab3…","record":{…}}        CRC-32 of the record's JSON text, eight hex digits
 *
 * A last line that a crash left unfinished, which begins as a record does, is dropped; any other damage is an error that
 * names the line.
 */

import { closeSync, existsSync, openSync, readSync } from "node:fs";
import { crc32 } from "node:zlib";
import { NlacError } from "../base/errors.ts";
import { AppendOnlyFile, onDisk } from "./disk.ts";

function checksum(text: string | Uint8Array): string {
  return crc32(text).toString(16).padStart(8, "0");
}

/** What stands before the record: ASCII, of one length. */
function opening(checksum: string): string {
  return `{"checksum":"${checksum}","record":`;
}

const openingBytes = opening("00000000").length;

export class RecordWriter {
  readonly #file: AppendOnlyFile;

  /** Opens `path` for appending, cut to `bytes` when given. Throws ERR_RUN when it is shorter, ERR_IO. */
  constructor(path: string, bytes?: number) {
    this.#file = new AppendOnlyFile(path, bytes);
  }

  /**
   * Opens `path`, if it is there, to go on with: a last record that a crash left unfinished is cut off.
   * @throws NlacError ERR_RUN for a file that holds anything but records, which stays as it is; ERR_IO
   */
  static resume(path: string): RecordWriter {
    return new RecordWriter(path, existsSync(path) ? recordedBytes(path) : 0);
  }

  append(record: unknown): void {
    const text = JSON.stringify(record);
    this.#file.append(Buffer.from(`${opening(checksum(text))}${text}}\n`));
  }

  /** Bytes so far, all of them on disk when this returns. */
  sync(): number {
    return this.#file.sync();
  }

  close(): void {
    this.#file.close();
  }
}

/**
 * The records of a file in order, one in memory at a time: a run's files may be larger than any string.
 *
 * @param chunkBytes what is read at once, bytes
 * @throws NlacError ERR_RUN with the line's number for damage that is not an unfinished last line, ERR_IO
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

/** The records of a file, and where their lines end, bytes. */
function* wholeRecords(path: string, chunkBytes: number): Generator<{ record: unknown; end: number }> {
  const fd = onDisk(path, () => openSync(path, "r"));
  try {
    const chunk = Buffer.alloc(chunkBytes);
    let begun: Buffer[] = []; // what earlier chunks held of the line
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
    // A complete file ends in a newline; what stands after the last one was never finished.
    if (!beginsAsRecord(Buffer.concat(begun)))
      throw new NlacError("ERR_RUN", `${path}: line ${lines + 1} is not a record.`);
  } finally {
    closeSync(fd);
  }
}

/** Whether a line may become a record: it begins as one, as far as it goes. */
function beginsAsRecord(line: Buffer): boolean {
  const begins = line.toString("latin1", 0, openingBytes);
  const digits = /^\{"checksum":"([0-9a-f]*)/.exec(begins)?.[1] ?? "";
  return opening(digits.padEnd(8, "0")).startsWith(begins);
}

/** The record of a line, whose checksum is over bytes: they become text when they are known to be whole. */
function parseLine(line: Buffer, where: string): unknown {
  const record = line.subarray(openingBytes, -1);
  const begins = line.toString("latin1", 0, openingBytes) === opening(checksum(record));
  if (!begins || line.at(-1) !== "}".charCodeAt(0)) {
    throw new NlacError("ERR_RUN", `${where} is damaged (its checksum does not fit).`);
  }
  try {
    return JSON.parse(record.toString("utf8"));
  } catch (error) {
    throw new NlacError("ERR_RUN", `${where} is not a record.`, { cause: error });
  }
}
