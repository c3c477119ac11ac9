/** Numbers and strings as Python writes them, and the order of its strings. */

/** `repr(value)`: the shortest text that parses to `value`, with an exponent below 1e-4 and from 1e16. */
export function pythonFloat(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0.0";
  const [digits, exponent] = value.toExponential().split("e") as [string, string];
  const power = Number(exponent);
  if (power >= -4 && power < 16) {
    const text = String(value);
    return text.includes(".") ? text : `${text}.0`;
  }
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

const printableAscii = /^[ -&(-[\]-~]*$/;
// Characters that Python considers not printable (except the space), and others that it escapes.
const escaped = /[\p{C}\p{Z}\\']/gu;
const named: Readonly<Record<string, string>> = {
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
  "\\": "\\\\",
  " ": " ",
};

/**
 * `repr(text)`.
 *
 * @param kept characters that stay as they are although Python escapes them
 */
export function pythonString(text: string, kept?: RegExp): string {
  if (printableAscii.test(text)) return `'${text}'`;
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const body = text.replace(escaped, (character) => {
    if (character === "'") return quote === "'" ? "\\'" : "'";
    if (kept?.test(character)) return character;
    return named[character] ?? codePoint(character.codePointAt(0)!);
  });
  return quote + body + quote;
}

function codePoint(code: number): string {
  const hex = code.toString(16);
  if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

const plainJson = /^[ !#-[\]-~]*$/;

/** `json.dumps(text)`, all of it in ASCII. */
export function pythonJsonString(text: string): string {
  if (plainJson.test(text)) return `"${text}"`;
  return JSON.stringify(text).replace(
    /[^ -~]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** Compares strings by code points, as Python does; JavaScript compares UTF-16 units. */
export function compareText(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x !== y) return rank(x) - rank(y);
  }
  return a.length - b.length;
}

/** Sorts surrogates after all other code units. */
function rank(unit: number): number {
  if (unit < 0xd800) return unit;
  return unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}
