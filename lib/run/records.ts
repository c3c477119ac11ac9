/**
 * Append-only record files: one JSON object a line, each with a checksum.
 *
 *   {"checksum":"9ab3…","record":{…}}        CRC-32 of the record's JSON text, eight hex digits
 *
 * A last line that a crash left unfinished is dropped; any other damage is an error that names the line.
 */

import { closeSync, fstatSync, fsyncSync, ftruncateSync, openSync, readFileSync, writeSync } from "node:fs";
import { crc32 } from "node:zlib";
import { NlacError } from "../errors.ts";

function checksum(text: string): string {
  return crc32(text).toString(16).padStart(8, "0");
}

export class RecordWriter {
  readonly path: string;
  readonly #fd: number;
  #bytes: number;

  /** Opens `path` for appending, cut to `bytes` when given (what a checkpoint knew of it). */
  constructor(path: string, bytes?: number) {
    this.path = path;
    this.#fd = openSync(path, "a+");
    const size = fstatSync(this.#fd).size;
    if (bytes !== undefined && bytes > size) {
      closeSync(this.#fd);
      throw new NlacError("ERR_RUN", `${path} has ${size} bytes; the checkpoint was made with ${bytes}.`);
    }
    this.#bytes = bytes ?? size;
    if (this.#bytes !== size) ftruncateSync(this.#fd, this.#bytes);
  }

  append(record: unknown): void {
    const text = JSON.stringify(record);
    const line = Buffer.from(`{"checksum":"${checksum(text)}","record":${text}}\n`);
    for (let offset = 0; offset < line.length; ) offset += writeSync(this.#fd, line, offset);
    this.#bytes += line.length;
  }

  /** Bytes so far, all of them on disk when this returns. */
  sync(): number {
    fsyncSync(this.#fd);
    return this.#bytes;
  }

  close(): void {
    closeSync(this.#fd);
  }
}

/** All records of a file. Throws ERR_RUN with the line's number for damage that is not an unfinished last line. */
export function readRecords<T>(path: string): T[] {
  let content: string;
  try {
    content = readFileSync(path, "utf8");
  } catch (error) {
    throw new NlacError("ERR_RUN", `Cannot read ${path}: ${(error as Error).message}`, { cause: error });
  }
  const lines = content.split("\n");
  // A complete file ends in a newline; what stands after the last one was never finished.
  lines.pop();
  return lines.map((line, i) => {
    const match = /^\{"checksum":"([0-9a-f]{8})","record":(.*)\}$/.exec(line);
    if (match === null || checksum(match[2]!) !== match[1]) {
      throw new NlacError("ERR_RUN", `${path}: line ${i + 1} is damaged (its checksum does not fit).`);
    }
    return JSON.parse(match[2]!) as T;
  });
}
