import { expect, test } from "vitest";
import { halvesFromBase64, halvesToBase64 } from "../../lib/files/half-floats.ts";

const through = (...values: number[]) => halvesFromBase64(halvesToBase64(values));

/** IEEE 754: the float16 nearest to `value`, found among all of them. */
const all = halvesFromBase64(
  Buffer.from(Uint16Array.from({ length: 0x7c00 }, (_, bits) => bits).buffer).toString("base64"),
);

test("the 31,744 finite numbers that are not negative increase, from 0 to 65,504", () => {
  expect([all[0], all[1], all[0x400], all[0x3c00], all.at(-1)]).toEqual([0, 2 ** -24, 2 ** -14, 1, 65_504]);
  expect(all.every((value, i) => i === 0 || value > all[i - 1]!)).toBe(true);
});

test("every one of them comes back, with either sign", () => {
  expect(through(...all)).toEqual(all);
  expect(through(...all.slice(1).map((value) => -value))).toEqual(all.slice(1).map((value) => -value));
});

test("numbers between two are rounded to the nearer one, ties to the even one", () => {
  for (let i = 1; i + 1 < all.length; i += 97) {
    const [low, high] = [all[i]!, all[i + 1]!];
    const middle = (low + high) / 2;
    expect(through(low + (high - low) * 0.49, middle, low + (high - low) * 0.51)).toEqual([
      ...[low, i % 2 === 0 ? low : high, high],
    ]);
  }
});

test("too large numbers are infinite; NaN stays NaN", () => {
  expect(through(65_519, 65_520, 1e9, Number.NEGATIVE_INFINITY)).toEqual([
    ...[65_504, Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY],
  ]);
  expect(through(Number.NaN)).toEqual([Number.NaN]);
});
