import { expect, test } from "vitest";
import { mergesOfScores, sentencePieceJson } from "../../lib/tokens/sentencepiece.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";

test("merges are the splits of pieces into pieces, the best score first", () => {
  const pieces = [
    ...["a", "b", "c"].map((token) => ({ token, score: -9 })),
    ...[
      { token: "bc", score: -1 },
      { token: "ab", score: -2 },
      { token: "abc", score: -2 },
    ],
  ];
  expect(mergesOfScores(pieces)).toEqual({
    merges: [
      ["b", "c"],
      ["a", "b"],
      ["a", "bc"],
      ["ab", "c"],
    ],
    ranks: [0, 1, 1, 1],
  });
});

test("pieces that are too long are refused, after bounded work", () => {
  // Comparing all splits of one such piece would take days.
  const pieces = [{ token: "ab".repeat(4_000_000), score: 0 }];
  expect(() => mergesOfScores(pieces)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
});

test.each([true, false])("the tokenizer merges by score and falls back to bytes (prefix %s)", (prefix) => {
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const texts = ["▁", "a", "b", "ab", "▁a"];
  const vocab = Object.fromEntries([...bytes, ...texts].map((token, id) => [token, id]));
  const { merges } = mergesOfScores(texts.map((token, i) => ({ token, score: i })));
  const json = sentencePieceJson({ vocab, merges, added: [], unknown: undefined, prefix });
  const tokenizer = new Tokenizer({ json, config: {} });
  const idOf = (token: string) => vocab[token]!;
  const first = prefix ? ["▁a", "b"] : ["ab"];
  expect(tokenizer.encode("ab ab")).toEqual([...first, "▁a", "b"].map(idOf));
  const text = "ab é";
  expect(tokenizer.encode(text).slice(-2)).toEqual([0xc3, 0xa9]);
  expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
});
