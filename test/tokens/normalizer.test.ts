import { expect, test } from "vitest";
import { compileNormalizer, prepends } from "../../lib/tokens/normalizer.ts";

const spaces = { type: "Replace", pattern: { String: " " }, content: "▁" };
const prepend = { type: "Prepend", prepend: "▁" };
const sequence = (...normalizers: unknown[]) => ({ type: "Sequence", normalizers });

test("steps run in order; a prefix is put before the text and after added tokens only", () => {
  const normalize = compileNormalizer(sequence(prepend, sequence(spaces)));
  expect(normalize("a b", "start")).toBe("▁a▁b");
  expect(normalize("a b", "after-token")).toBe("▁a▁b");
  expect(normalize("a b", "inside")).toBe("a▁b");
  expect(normalize("", "start")).toBe("");
});

test("prepends tells whether a rule has a prefix, at any depth", () => {
  expect([prepend, sequence(spaces, sequence(prepend))].map(prepends)).toEqual([true, true]);
  expect([null, spaces, sequence()].map(prepends)).toEqual([false, false, false]);
});

test("no rule and NFC", () => {
  expect(compileNormalizer(null)("e\u0301", "start")).toBe("e\u0301");
  expect(compileNormalizer({ type: "NFC" })("e\u0301", "inside")).toBe("é");
});

test("rules of other tokenizers are applied as the library does", () => {
  expect(compileNormalizer({ type: "Lowercase" })("ÄB", "start")).toBe("äb");
});

const doubling = { type: "Replace", pattern: { String: "a" }, content: "aa" };
const repeated = (count: number, step: unknown) => sequence(...new Array(count).fill(step));

test("a text that grows too much is refused before it fills the memory", () => {
  expect(compileNormalizer(repeated(6, doubling))("aaa", "start")).toBe("a".repeat(192));
  expect(() => compileNormalizer(repeated(100, doubling))("a".repeat(100), "start")).toThrow(
    expect.objectContaining({ code: "ERR_TOKENIZER", message: expect.stringContaining("12800 characters") }),
  );
});

test.each([
  { type: "Unknown" },
  { type: "Sequence", normalizers: "NFC" },
  "NFC",
  { ...doubling, content: "a".repeat(17) },
  repeated(101, { type: "NFC" }),
])("%j is refused", (rule) => {
  expect(() => compileNormalizer(rule)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
});
