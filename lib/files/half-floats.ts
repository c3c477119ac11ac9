/** Figures per token in records: base64 of little-endian float16, with about three digits. */

const scratch = new DataView(new ArrayBuffer(4));

/** The bits of the float16 nearest to `value`, ties to even; too large values become infinite. */
function toHalf(value: number): number {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00; // NaN
  if (rest >= 0x477ff000) return sign | 0x7c00; // 65,520 or more rounds to infinity
  // Below 2^-14, float16 counts in steps of 2^-24; larger numbers have 10 bits of fraction.
  if (rest < 0x38800000) return sign | tiesToEven(Math.abs(value) * 2 ** 24);
  return sign | tiesToEven((rest - 0x38000000) / 2 ** 13);
}

function tiesToEven(value: number): number {
  const below = Math.floor(value);
  const over = value - below;
  return over > 0.5 || (over === 0.5 && below % 2 === 1) ? below + 1 : below;
}

function fromHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

export function halvesToBase64(values: ArrayLike<number>): string {
  const bytes = Buffer.alloc(values.length * 2);
  for (let i = 0; i < values.length; i++) bytes.writeUInt16LE(toHalf(values[i]!), i * 2);
  return bytes.toString("base64");
}

/** What `halvesToBase64` encoded. */
export function halvesFromBase64(text: string): number[] {
  const bytes = Buffer.from(text, "base64");
  return Array.from({ length: bytes.length >> 1 }, (_, i) => fromHalf(bytes.readUInt16LE(i * 2)));
}
