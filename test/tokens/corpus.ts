/**
 * Generates the corpus whose ids scripts/fixtures/tokens.py recorded: the same draws, character for
 * character.
 */

import { fixtureText } from "./fixtures.ts";

export const documents = 256;
const characters = 3600;

/** xorshift32. */
class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = Number((BigInt(seed) * 2654435761n + 1n) & 0xffffffffn) || 1;
  }

  below(bound: number): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.#state = x >>> 0;
    return this.#state % bound;
  }
}

const ranges: readonly (readonly [number, number])[] = [
  [0x00, 0x20],
  [0x20, 0x7f],
  [0x7f, 0xa1],
  [0xa1, 0x250],
  [0x300, 0x340],
  [0x391, 0x3c9],
  [0x410, 0x450],
  [0x5d0, 0x5eb],
  [0x621, 0x64b],
  [0x660, 0x66a],
  [0x905, 0x93a],
  [0xe01, 0xe2f],
  [0x1e00, 0x1f00],
  [0x2000, 0x2070],
  [0x2150, 0x2190],
  [0x2200, 0x2300],
  [0x3000, 0x3040],
  [0x3041, 0x3097],
  [0x4e00, 0x9fa6],
  [0xac00, 0xd7a4],
  [0xf900, 0xfa2e],
  [0xfe00, 0xfe10],
  [0xff01, 0xff5f],
  [0x1d400, 0x1d455],
  [0x1f300, 0x1f650],
];
const spaces = [
  " ",
  "  ",
  "\n",
  "\n\n",
  "\t",
  "\r\n",
  "\r",
  "\u00a0",
  "\u3000",
  "\u0085",
  "\ufeff",
  "\u200b",
  " \n ",
  "\u2028",
];

export function corpusDocument(number: number): string {
  const sample = [...fixtureText("sample.txt")];
  const random = new Random(number + 1);
  const out: string[] = [];
  const character = (range: readonly [number, number]) =>
    String.fromCodePoint(range[0] + random.below(range[1] - range[0]));
  const times = (count: number, make: () => string) => {
    for (let i = 0; i < count; i++) out.push(...make());
  };
  while (out.length < characters) {
    const kind = random.below(16);
    if (kind < 9) {
      const start = random.below(sample.length);
      out.push(...sample.slice(start, start + 20 + random.below(400)));
    } else if (kind < 12) {
      const range = ranges[random.below(ranges.length)]!;
      times(1 + random.below(24), () => character(range));
    } else if (kind === 12) {
      times(1 + random.below(6), () => spaces[random.below(spaces.length)]!);
    } else if (kind === 13) {
      times(1 + random.below(30), () => String.fromCharCode(0x30 + random.below(10)));
    } else if (kind === 14) {
      const letters = 1 + random.below(26);
      times(1 + random.below(600), () => String.fromCharCode(0x61 + random.below(letters)));
    } else {
      times(1 + random.below(12), () => character(ranges[random.below(ranges.length)]!));
    }
  }
  return out.join("");
}

export function randomIds(number: number, size: number): number[] {
  const random = new Random(1000 + number);
  return Array.from({ length: 200 }, () => random.below(size));
}
