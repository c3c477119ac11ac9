/**
 * Reads a .wandb file: LevelDB's log format and the protocol buffers in it, written from their
 * descriptions.
 */

import { crc32 } from "node:zlib";

export interface WandbRecord {
  number: number;
  /** The name of the field in `Record`. */
  kind: string;
  /** Numbers, texts or nested messages by field number, each in the order of the file. */
  body: Message;
}

type Message = Map<number, (number | Buffer)[]>;

const kinds: Record<number, string> = {
  ...{ 2: "history", 3: "summary", 5: "config", 11: "telemetry", 12: "metric" },
  ...{ 17: "run", 18: "exit", 21: "header" },
};

/** Every whole record; throws for a wrong checksum or order of chunks. */
export function readWandb(file: Buffer): WandbRecord[] {
  if (file.subarray(0, 7).toString("hex") !== "3a572642e1be00") throw new Error("not a .wandb file");
  const records: WandbRecord[] = [];
  let parts: Buffer[] = [];
  for (let at = 7; ; ) {
    const room = 32_768 - (at % 32_768);
    if (room < 7) {
      if (file.subarray(at, at + room).some((byte) => byte !== 0)) throw new Error(`padding at ${at}`);
      at += room;
    }
    if (at + 7 > file.length) break; // left unfinished
    const length = file.readUInt16LE(at + 4);
    const type = file[at + 6]!;
    const end = at + 7 + length;
    if (end > file.length) break;
    if (Math.ceil((at + 1) / 32_768) * 32_768 < end) throw new Error(`chunk at ${at} crosses a block`);
    if (file.readUInt32LE(at) !== crc32(file.subarray(at + 6, end))) throw new Error(`checksum at ${at}`);
    const isFirst = type === 1 || type === 2;
    if (isFirst !== (parts.length === 0) || type > 4) throw new Error(`chunk ${type} at ${at}`);
    parts.push(file.subarray(at + 7, end));
    if (type === 1 || type === 4) {
      records.push(recordOf(Buffer.concat(parts)));
      parts = [];
    }
    at = end;
  }
  return records;
}

function recordOf(data: Buffer): WandbRecord {
  const fields = messageOf(data);
  const [field, values] = [...fields].find(([field]) => field in kinds)!;
  return { number: Number(fields.get(1)?.[0]), kind: kinds[field]!, body: messageOf(values[0] as Buffer) };
}

export function messageOf(data: Buffer): Message {
  const fields: Message = new Map();
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = data[at++]!;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
  };
  while (at < data.length) {
    const tag = varint();
    const type = tag & 7;
    let value: number | Buffer;
    if (type === 0) value = varint();
    else if (type === 2) {
      const length = varint();
      value = data.subarray(at, at + length);
      at += length;
    } else throw new Error(`wire type ${type}`);
    fields.set(tag >> 3, [...(fields.get(tag >> 3) ?? []), value]);
  }
  return fields;
}

/** Keys and values of the items in a history, a summary or a configuration. */
export function itemsIn(body: Message): Record<string, unknown> {
  return Object.fromEntries(
    (body.get(1) ?? []).map((item) => {
      const fields = messageOf(item as Buffer);
      const key = fields.get(1) ?? fields.get(2)!; // wandb itself writes a path of keys, in field 2
      return [key.join("."), JSON.parse(String(fields.get(16)?.[0]))];
    }),
  );
}

/** Every row of the history. */
export function historyOf(records: readonly WandbRecord[]): Record<string, unknown>[] {
  return records.filter(({ kind }) => kind === "history").map(({ body }) => itemsIn(body));
}
