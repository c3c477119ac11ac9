/** Rewritten patterns match the same texts as the originals; JavaScript's RegExp reads both. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { corePattern, strictPattern } from "../../lib/model/pattern.ts";

const atoms = fc.constantFrom(
  ...["a", "[b-e]", "\\d", "[^a]", ".", "é", "\\w", "[\\s,]", "\\S", "\\u00e4", "\\ud83d\\ude00", "\\."],
  ...["[\\^a]", "[a^]", "[\\]\\-x]", '[^\\n"]', "\\x41", "\\cJ", "[\\b\\t]", "\\u{1F600}", "[^-b]"],
);
const times = fc.constantFrom("", "", "?", "??", "{2}", "{1,3}", "{0}", "{0,2}", "{2,}", "*", "+", "*?");
const alternatives = (part: fc.Arbitrary<string>) =>
  fc
    .array(
      fc.array(part, { maxLength: 3 }).map((parts) => parts.join("")),
      { minLength: 1, maxLength: 2 },
    )
    .map((branches) => branches.join("|"));
const repeated = fc.tuple(atoms, times).map(([atom, count]) => atom + count);
const group = fc
  .tuple(fc.constantFrom("(", "(?:"), alternatives(repeated), fc.constantFrom("", "?", "{2,}", "*"))
  .map(([open, inner, count]) => `${open}${inner})${count}`);
const pattern = alternatives(fc.oneof(repeated, group, fc.constant("(?:a|b(?:c+|d)?)?")));
const texts = fc.array(
  fc
    .array(fc.constantFrom(...'abcexAZ019_.,^]- \n\t\b"\\éä😀\u2003\u2028<'), { maxLength: 4 })
    .map((letters) => letters.join("")),
  { minLength: 8, maxLength: 8 },
);

/** The rewritten pattern; undefined if no text matches it. */
function rewritten(from: string, use: Parameters<typeof corePattern>[1]): RegExp | undefined {
  try {
    const text = corePattern(strictPattern(from), use);
    // xgrammar misreads these.
    expect(text).not.toMatch(/\)\?|\{\d+,\}|\[\^|\\[dDsSwW]/);
    return new RegExp(`^(?:${text})$`, "u");
  } catch (error) {
    expect((error as Error).message).toMatch(/^no text /);
    return undefined;
  }
}

describe("a rewritten pattern", () => {
  it.each(["(", "a\\", "[", "a{2", ")"])("must be a regular expression: %s", (from) => {
    expect(() => corePattern(from, { in: "tags" })).toThrow(SyntaxError);
  });

  it("matches a whole text as the original does", () => {
    fc.assert(
      fc.property(pattern, texts, (from, several) => {
        const original = new RegExp(`^(?:${from})$`, "su");
        const made = rewritten(from, { in: "text" });
        for (const text of several)
          expect([from, text, made?.test(text) ?? false]).toEqual([from, text, original.test(text)]);
      }),
      { numRuns: 200 },
    );
  });

  it("matches a value of a schema as the original does, unless it needs escapes or tags", () => {
    fc.assert(
      fc.property(
        pattern,
        fc.constantFrom("", "^"),
        fc.constantFrom("", "$"),
        texts,
        (inner, start, end, several) => {
          const from = `${start}(?:${inner})${end}`;
          const original = new RegExp(from, "u");
          const json = rewritten(from, { in: "json" });
          const tags = rewritten(from, { in: "tags" });
          for (const text of several) {
            const isMatch = original.test(text);
            expect([from, text, json?.test(text) ?? false]).toEqual([
              from,
              text,
              isMatch && !/["\\\n\t\b]/.test(text),
            ]);
            expect([from, text, tags?.test(text) ?? false]).toEqual([
              from,
              text,
              isMatch && !text.includes("<"),
            ]);
          }
        },
      ),
      { numRuns: 200 },
    );
  });

  it("has the anchors of its alternatives", () => {
    for (const from of [
      "^a|b$",
      "^a$|^b$",
      "(^a)|(b$)",
      "(?<start>^a)|(b$)",
      "(?:^a$|b)",
      "^$|^a$",
      "a|",
      "^",
      "$",
      "^^a$$",
    ]) {
      const made = rewritten(from, { in: "json" })!;
      for (const text of ["", "a", "b", "ab", "ba", "xa", "ax", "xb", "bx"])
        expect([from, text, made.test(text)]).toEqual([from, text, new RegExp(from, "u").test(text)]);
    }
  });

  it("has limits of its length", () => {
    const cases = [
      ["^[a-z]+$", 2, 4],
      ["^x[a-z]*y$", 2, 3],
      ["^[a-z]{2,9}$", 0, 5],
      ["^(?:[a-z]*)$", 3, 3],
      ["^(ab|cd)$", 1, 2],
      ["a", 0, Infinity],
    ] as const;
    for (const [from, minLength, maxLength] of cases) {
      const made = rewritten(from, { in: "json", minLength, maxLength })!;
      for (const text of ["", "a", "ab", "xy", "xay", "abc", "xaay", "abcd", "abcde", "abcdef"]) {
        const expected =
          new RegExp(from, "u").test(text) && text.length >= minLength && text.length <= maxLength;
        expect([from, text, made.test(text)]).toEqual([from, text, expected]);
      }
    }
  });

  it("may have escapes that only JavaScript without the flag u, or Python, allows", () => {
    for (const [from, same] of [
      ["\\d\\-\\@", "\\d-@"],
      ["[\\w-.]", "[\\w.\\-]"],
      ["[\\w\\-.]", "[\\w.\\-]"],
      ["\\\\d-", "\\\\d-"],
      ["\\'\\ \\#\\_", "' #_"],
    ] as const)
      for (const text of ["1-@", "a", "-", ".", ",", "\\d-", "' #_"])
        expect([from, text, rewritten(from, { in: "text" })!.test(text)]).toEqual([
          from,
          text,
          new RegExp(`^(?:${same})$`, "u").test(text),
        ]);
  });
});
