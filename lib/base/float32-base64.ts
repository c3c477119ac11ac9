/** Lists of float32 as text, for JSON: base64 of their little-endian bytes. */

export function floatsToBase64(values: Float32Array): string {
  const bytes = Buffer.alloc(values.length * 4);
  for (const [i, value] of values.entries()) bytes.writeFloatLE(value, i * 4);
  return bytes.toString("base64");
}

export function floatsFromBase64(text: string): Float32Array {
  const bytes = Buffer.from(text, "base64");
  return Float32Array.from({ length: bytes.length >> 2 }, (_, i) => bytes.readFloatLE(i * 4));
}
