import { expect, test } from "vitest";
import { AddedTokenMatcher, type TextPiece } from "../../lib/tokens/added-tokens.ts";
import type { AddedToken } from "../../lib/tokens/format.ts";

const trusted = (text: string): TextPiece => ({ text, trusted: true });
const other = (text: string): TextPiece => ({ text, trusted: false });
/** Ids, and the texts between them. */
const split = (tokens: readonly AddedToken[], ...pieces: TextPiece[]) =>
  new AddedTokenMatcher(tokens)
    .split(pieces)
    .map((part) => (typeof part === "number" ? part : part.map(({ text }) => text)));

const start = { id: 1, content: "<s>", special: true };
const longer = { id: 2, content: "<s>>", special: true };

test("the leftmost token is found, and the longest of several", () => {
  expect(split([start, longer], trusted("a<s>b<s>>>"))).toEqual([["a"], 1, ["b"], 2, [">"]]);
  const matches = [...new AddedTokenMatcher([start, longer]).find("<s>> <s>")];
  expect(matches.map(({ token, start, end }) => [token.id, start, end])).toEqual([
    [2, 0, 4],
    [1, 5, 8],
  ]);
});

test("a token is found only if all of its characters are trusted", () => {
  expect(split([start], other("<s>"))).toEqual([["<s>"]]);
  expect(split([start], trusted("<"), other("s"), trusted(">"))).toEqual([["<", "s", ">"]]);
  expect(split([start], other("x<s>"), trusted("<"), trusted("s>"))).toEqual([["x<s>"], 1]);
});

test("tokens of whitespace are found in any text", () => {
  const space = { id: 3, content: "  ", special: false };
  expect(split([start, space], other("a  <s>"))).toEqual([["a"], 3, ["<s>"]]);
  expect(new AddedTokenMatcher([space]).findsIn([other("")])).toBe(true);
  expect(new AddedTokenMatcher([start]).findsIn([other("")])).toBe(false);
  expect(new AddedTokenMatcher([]).findsIn([trusted("")])).toBe(false);
});

test("lstrip and rstrip remove whitespace around, single_word keeps words whole", () => {
  const strips = { ...start, lstrip: true, rstrip: true };
  expect(split([strips], trusted("a "), trusted(" <s> \n"), trusted(" b"))).toEqual([["a"], 1, ["b"]]);
  const word = { id: 4, content: "cat", single_word: true };
  expect(split([word], trusted("cat concat cats (cat)"))).toEqual([4, [" concat cats ("], 4, [")"]]);
});
