/**
 * Single parts of tokenizer.json against the Rust library `tokenizers`;
 * scripts/fixtures/tokenizer_parts.py made the answers and states its version.
 */

import { describe, expect, it } from "vitest";
import type { AddedToken, TokenizerJson } from "../../lib/tokens/format.ts";
import { compileNormalizer } from "../../lib/tokens/normalizer.ts";
import { compilePreTokenizer } from "../../lib/tokens/pretokenizer.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { fixtureJson } from "./fixtures.ts";

type Cases = { text: string; ids: number[] }[];
const { texts, bytes, splits, normalizers, added, models, starts } = fixtureJson<{
  texts: string[];
  bytes: string[];
  splits: { rule: Record<string, unknown>; texts?: string[]; pieces: string[][] }[];
  normalizers: { rule: Record<string, unknown>; texts: string[] }[];
  added: { added: Omit<AddedToken, "id">[]; cases: Cases }[];
  models: { vocab: string[]; changes: object; cases: Cases }[];
  starts: { vocab: string[]; changes: object; added: Omit<AddedToken, "id">[]; cases: Cases }[];
}>("parts.json");

it.each(splits.map(({ rule, ...answers }) => [JSON.stringify(rule), rule, answers] as const))(
  "%s cuts texts into the same pieces",
  (_, rule, answers) => {
    const cut = compilePreTokenizer(rule);
    expect((answers.texts ?? texts).map((text) => cut(text))).toEqual(answers.pieces);
  },
);

it.each(normalizers.map(({ rule, texts }) => [JSON.stringify(rule), rule, texts] as const))(
  "%s changes texts alike",
  (_, rule, normalized) => {
    const normalize = compileNormalizer(rule);
    expect(texts.map((text) => normalize(text, "start"))).toEqual(normalized);
  },
);

function byteTokenizer(
  vocab: string[],
  changes: object,
  tokens: Omit<AddedToken, "id">[] = [],
  parts: object = {},
): Tokenizer {
  const json: TokenizerJson = {
    added_tokens: tokens.map((token, i) => ({ normalized: false, ...token, id: vocab.length + i })),
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, use_regex: false },
    model: {
      type: "BPE",
      vocab: Object.fromEntries(vocab.map((token, id) => [token, id])),
      merges: [],
      ...changes,
    },
    ...parts,
  };
  return new Tokenizer({ json, config: {} });
}

it.each(added)("added tokens $added take the same spaces, and the same words", ({ added, cases }) => {
  const tokenizer = byteTokenizer(bytes, {}, added);
  for (const { text, ids } of cases)
    expect(tokenizer.encodeTemplate(text), JSON.stringify(text)).toEqual(ids);
});

it.each(models)("bytes without a token become the same ids with $changes", ({ vocab, changes, cases }) => {
  const tokenizer = byteTokenizer(vocab, changes);
  for (const { text, ids } of cases) expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(ids);
});

it.each(starts)(
  "the same texts get a first mark with $changes.normalizer",
  ({ vocab, changes, added, cases }) => {
    const decoder = { type: "Sequence", decoders: [] };
    const tokenizer = byteTokenizer(vocab, { unk_token: "<unk>" }, added, { ...changes, decoder });
    for (const { text, ids } of cases)
      expect(tokenizer.encodeTemplate(text), JSON.stringify(text)).toEqual(ids);
  },
);

it("finds added tokens of spaces in linear time", () => {
  const tokens = [{ content: " ", lstrip: true, rstrip: true }];
  const tokenizer = byteTokenizer(bytes, {}, tokens);
  expect(tokenizer.encode(`a${" ".repeat(300_000)}b`)).toHaveLength(3);
});

describe("what has no equal is refused", () => {
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, use_regex: true };
  const split = (Regex: string) => ({
    type: "Split",
    pattern: { Regex },
    behavior: "Isolated",
    invert: false,
  });
  it.each([
    ["a step after ByteLevel", { type: "Sequence", pretokenizers: [byteLevel, { type: "Digits" }] }],
    // In other cases ß is ss, and σ also ς.
    ["letters that are one in another case", split("(?i:ss)")],
    ["a letter beyond ASCII where case is ignored", split("(?i:\u03c3)")],
    ["a class beyond ASCII where case is ignored", split("(?i:[\u03b1-\u03c9])")],
    ["a property where case is ignored", split("(?i:\\p{Lu})")],
    ["65 atomic groups", split("a++".repeat(65))],
    ["101 steps", { type: "Sequence", pretokenizers: new Array(101).fill({ type: "Digits" }) }],
    ["an atomic group beside a reference", split("(a)\\1(?>b+)")],
    ["a group that is not closed", split("(a++")],
    ["a class that is not closed", split("[a")],
    ["a behavior that is none", { ...split("a"), behavior: "Merged" }],
  ])("%s", (_, rule) => {
    expect(() => compilePreTokenizer(rule)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
  });

  it.each([
    { type: "Precompiled", precompiled_charsmap: "" },
    { type: "Prepend", prepend: "x".repeat(17) },
    { type: "Replace", pattern: { Regex: "(?i:ss)" }, content: "" },
    { type: "Replace", pattern: { String: "a" } },
  ])("normalizer %j", (rule) => {
    expect(() => compileNormalizer(rule)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
  });
});
