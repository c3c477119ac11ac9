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

test.each([{ type: "Unknown" }, { type: "Sequence", normalizers: "NFC" }, "NFC"])("%j is refused", (rule) => {
  expect(() => compileNormalizer(rule)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
});
