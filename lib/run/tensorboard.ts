/**
 * TensorBoard event files: TFRecords of Event protocol buffers with scalar summaries.
 * Each record: length (u64), its masked CRC-32C, data, its masked CRC-32C; all little-endian.
 */

import { readFileSync } from "node:fs";
import { AppendOnlyFile, type FileStart, onDisk } from "../files/disk.ts";
import { delimited, integer } from "../files/protobuf.ts";

const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  return value;
});

/** CRC-32C (Castagnoli). */
export function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) crc = (crc >>> 8) ^ table[(crc ^ byte) & 0xff]!;
  return (crc ^ 0xffffffff) >>> 0;
}

function masked(data: Uint8Array): number {
  const crc = crc32c(data);
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

function event(wallTime: number, step: number, body: Buffer): Buffer {
  const time = Buffer.alloc(9);
  time[0] = (1 << 3) | 1;
  time.writeDoubleLE(wallTime, 1);
  return Buffer.concat([time, integer(2, step), body]);
}

function record(data: Buffer): Buffer {
  const header = Buffer.alloc(12);
  header.writeBigUInt64LE(BigInt(data.length));
  header.writeUInt32LE(masked(header.subarray(0, 8)), 8);
  const footer = Buffer.alloc(4);
  footer.writeUInt32LE(masked(data));
  return Buffer.concat([header, data, footer]);
}

/** The first damage in an event file; undefined if there is none. Throws ERR_IO. */
export function eventFault(path: string): string | undefined {
  const data = onDisk(path, () => readFileSync(path));
  for (let at = 0; at < data.length; ) {
    const header = data.subarray(at, at + 12);
    if (header.length < 12) return undefined; // left unfinished
    if (header.readUInt32LE(8) !== masked(header.subarray(0, 8))) return `${path} is damaged at byte ${at}.`;
    const end = at + 12 + Number(header.readBigUInt64LE());
    if (end + 4 > data.length) return undefined;
    if (data.readUInt32LE(end) !== masked(data.subarray(at + 12, end)))
      return `${path} is damaged at byte ${at}.`;
    at = end + 4;
  }
  return undefined;
}

export class EventWriter {
  readonly #file: AppendOnlyFile;

  /**
   * Opens `path` for appending, truncated to `start` if given. Writes the version record to a new
   * file. Throws ERR_RUN, ERR_IO.
   */
  constructor(path: string, start?: number | FileStart) {
    this.#file = new AppendOnlyFile(path, start);
    if (this.#file.bytes === 0) this.#write(event(Date.now() / 1000, 0, delimited(3, "brain.Event:2")));
  }

  /** One event with all `values` at `step`. */
  scalars(step: number, values: Record<string, number>): void {
    const summary = Object.entries(values).map(([tag, value]) => {
      const simple = Buffer.alloc(5);
      simple[0] = (2 << 3) | 5;
      simple.writeFloatLE(value, 1);
      return delimited(1, Buffer.concat([delimited(1, tag), simple]));
    });
    this.#write(event(Date.now() / 1000, step, delimited(5, Buffer.concat(summary))));
  }

  /** As `AppendOnlyFile.seal`. */
  seal(): { bytes: number; sha256: string } {
    return this.#file.seal();
  }

  close(): void {
    this.#file.close();
  }

  #write(data: Buffer): void {
    this.#file.append(record(data));
  }
}
