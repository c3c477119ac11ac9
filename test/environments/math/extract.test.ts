import { expect, test } from "vitest";
import { answerCandidates, boxes, closingBraces } from "../../../lib/environments/math/extract.ts";

const contents = (text: string) => boxes(text).map(({ content }) => content);

test("boxes are found with nested and escaped braces, and without braces", () => {
  expect(contents("\\boxed{\\frac{1}{2}} and \\fbox{x}, \\boxed 5.")).toEqual(["\\frac{1}{2}", "x", "5"]);
  expect(contents("\\boxed{\\{1, 2\\}}")).toEqual(["\\{1, 2\\}"]);
  expect(contents("\\boxed{\\boxed{3}}")).toEqual(["\\boxed{3}"]);
  expect(contents("\\boxedx{3} \\boxed")).toEqual([]);
});

test("an unclosed box reaches to the end of its line or formula", () => {
  expect(contents("$\\boxed{12$ is right")).toEqual(["12"]);
  expect(contents("\\boxed{12\nmore")).toEqual(["12"]);
});

test("closingBraces pairs every opening brace that is closed", () => {
  expect([...closingBraces("{a{b}\\}{c")]).toEqual([[2, 4]]);
  const deep = 100_000;
  expect(closingBraces("{".repeat(deep) + "}".repeat(deep)).get(0)).toBe(2 * deep - 1);
});

test("the last box is the answer; boxes joined by a comma or a word are also a list", () => {
  expect(answerCandidates("\\boxed{1}. So it is \\boxed{2}.")).toEqual(["2"]);
  expect(answerCandidates("$\\boxed{1}$ and $\\boxed{2}$")).toEqual(["2", "1, 2"]);
  expect(answerCandidates("\\boxed{a}, \\text{ or } \\boxed{b}")).toEqual(["b", "a, b"]);
});

test("without a box the whole text counts, or the answer that its prose states", () => {
  expect(answerCandidates(" 3/4 ")).toEqual(["3/4"]);
  expect(answerCandidates("We add both numbers. The answer is $7$.")).toContain("7");
});
