import { expect, test } from "vitest";
import { exact, roundedAlike, roundsTo } from "../../../lib/environments/math/exact.ts";
import { tokenize } from "../../../lib/environments/math/latex.ts";
import type { Node } from "../../../lib/environments/math/node.ts";
import { parse } from "../../../lib/environments/math/parse.ts";

const read = (text: string): Node => parse(tokenize(text, "list")!)!;
const exactly = (text: string, left = 10_000) => exact(read(text), { left })?.toFraction();

test.each([
  ["1/3 + 1/6", "1/2"],
  ["2\\frac{5}{8}", "21/8"],
  ["-2^{-3}", "-1/8"],
  ["15\\%", "3/20"],
  ["\\binom{5}{2}", "10"],
  ["5!", "120"],
  ["\\gcd(12, 18)", "6"],
  ["0.1666", "833/5000"],
])("%s is %s", (text, value) => {
  expect(exactly(text)).toBe(value);
});

test.each(["x", "\\sqrt{2}", "\\pi", "1/0", "4^{1/2}", "10^{100000}", "1000!"])(
  "%s has no exact value",
  (text) => {
    expect(exactly(text)).toBeUndefined();
  },
);

test("work is bounded", () => {
  expect(() => exactly("1+2+3+4+5", 3)).toThrow();
});

test("a decimal stands for a fraction only with six places, for an irrational number with four digits", () => {
  const third = exact(read("1/3"), { left: 100 })!;
  const rounds = (literal: string, irrational = false) => roundsTo(third, irrational, read(literal));
  expect([rounds("0.333333"), rounds("0.3333334"), rounds("0.33333")]).toEqual([true, false, false]);
  expect([rounds("0.3333", true), rounds("0.333", true), rounds("333", true)]).toEqual([true, false, false]);
  const half = exact(read("1/2"), { left: 100 })!;
  expect(roundsTo(half, false, read("0.4999999"))).toBe(false);
});

test("two decimals are alike if one rounds to the other at six places", () => {
  expect(roundedAlike(read("0.3333333"), read("0.333333"))).toBe(true);
  expect(roundedAlike(read("0.33333"), read("0.3333"))).toBe(false);
  expect(roundedAlike(read("-3.33333333 \\cdot 10^{-1}"), read("-0.333333"))).toBe(true);
});
