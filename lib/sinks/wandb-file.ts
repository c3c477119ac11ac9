/**
 * The file of an offline run of Weights & Biases, `run-ID.wandb`: protocol buffers (`Record` of its
 * wandb_internal.proto) in the log format of LevelDB, with the CRC-32 of zlib.
 *
 *   file      = ":W&B", the number 0xbee1 (u16), version 0 (u8), then chunks
 *   chunk     = CRC-32 of type and data (u32), bytes of data (u16), type (u8), data; little-endian
 *   type      = 1 a whole record, 2 its first part, 3 a middle one, 4 its last
 *
 * A chunk does not cross a multiple of 32 KiB from the file's start; fewer than 7 bytes before one
 * are 0.
 */

import { crc32 } from "node:zlib";
import { delimited, integer } from "../files/protobuf.ts";

export const fileHeader: Buffer = Buffer.from([...Buffer.from(":W&B"), 0xe1, 0xbe, 0]);

const blockBytes = 32_768;
const headerBytes = 7;
const [whole, first, middle, last] = [1, 2, 3, 4] as const;

/** `record` as chunks that begin at byte `offset` of the file. */
export function inChunks(record: Uint8Array, offset: number): Buffer {
  const parts: Uint8Array[] = [];
  let room = blockBytes - (offset % blockBytes);
  if (room < headerBytes) {
    parts.push(Buffer.alloc(room));
    room = blockBytes;
  }
  for (let from = 0, isFirst = true; isFirst || from < record.length; isFirst = false) {
    const to = Math.min(record.length, from + room - headerBytes);
    const isLast = to === record.length;
    const type = isFirst ? (isLast ? whole : first) : isLast ? last : middle;
    const data = record.subarray(from, to);
    const header = Buffer.alloc(headerBytes);
    header.writeUInt32LE(crc32(data, crc32(Uint8Array.of(type))));
    header.writeUInt16LE(data.length, 4);
    header[6] = type;
    parts.push(header, data);
    from = to;
    room = blockBytes;
  }
  return Buffer.concat(parts);
}

/** The kinds of records that nlac writes, with their field numbers in `Record`. */
const kinds = { history: 2, summary: 3, config: 5, metric: 12, run: 17, exit: 18, header: 21 } as const;

export type RecordKind = keyof typeof kinds;

/** A record with its number, from 1. */
export function recordOf(number: number, kind: RecordKind, body: Uint8Array): Buffer {
  return Buffer.concat([integer(1, number), delimited(kinds[kind], body)]);
}

/** The items of a history, a summary (both in field 1) or a configuration. */
export function itemsOf(values: Readonly<Record<string, unknown>>): Buffer {
  return Buffer.concat(
    Object.entries(values).map(([key, value]) =>
      delimited(1, Buffer.concat([delimited(1, key), delimited(16, JSON.stringify(value) ?? "null")])),
    ),
  );
}

/** A Timestamp of `seconds` since 1970. */
export function timestampOf(seconds: number): Buffer {
  const whole = Math.floor(seconds);
  return Buffer.concat([integer(1, whole), integer(2, Math.floor((seconds - whole) * 1e9))]);
}
