/** Writes fields of protocol buffers. A message is its fields, one after the other. */

/** A field of type int32, int64, bool or enum. `value`: a whole number from 0 to 2^53. */
export function integer(field: number, value: number): Buffer {
  return Buffer.from([...varint(field * 8), ...varint(value)]);
}

/** A field of type string, bytes or message. */
export function delimited(field: number, data: Uint8Array | string): Buffer {
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  return Buffer.concat([Buffer.from([...varint(field * 8 + 2), ...varint(bytes.length)]), bytes]);
}

function varint(value: number): number[] {
  const bytes: number[] = [];
  let rest = value;
  while (rest >= 0x80) {
    bytes.push((rest % 0x80) | 0x80);
    rest = Math.floor(rest / 0x80);
  }
  bytes.push(rest);
  return bytes;
}
