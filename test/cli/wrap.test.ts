import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { fitted, wrap } from "../../lib/cli/wrap.ts";

const { columns } = process.stdout;
afterEach(() => {
  process.stdout.columns = columns;
});

const word = fc.stringMatching(/^[a-zA-Zä-ü.,{}":]{1,12}$/);

test("lines break between words, are filled, and lose nothing", () => {
  fc.assert(
    fc.property(
      fc.array(word, { minLength: 1 }),
      fc.nat(4),
      fc.integer({ min: 8, max: 40 }),
      (words, margin, columns) => {
        const lines = wrap(" ".repeat(margin) + words.join(" "), columns).split("\n");
        expect(lines.flatMap((line) => line.trim().split(" "))).toEqual(words);
        for (const [i, line] of lines.entries()) {
          expect(line.search(/\S/)).toBe(margin);
          if (line.trim().includes(" ")) expect(line.length).toBeLessThanOrEqual(columns);
          const [next] = lines[i + 1]?.trim().split(" ") ?? [];
          if (next !== undefined) expect(`${line} ${next}`.length).toBeGreaterThan(columns);
        }
      },
    ),
  );
});

test("existing line breaks stay, and continuation lines are indented after a label", () => {
  expect(wrap("one two\n\n  three four five\n", 12)).toBe("one two\n\n  three four\n  five\n");
  expect(wrap("label  one two three", 12, 7)).toBe("label  one\n       two\n       three");
  expect(wrap("label  much-too-long one", 12, 7)).toBe("label  much-too-long\n       one");
});

test("wraps to a terminal's width, and not in a pipe", () => {
  const text = `${"word ".repeat(30)}end`;
  process.stdout.columns = 60;
  const lines = fitted(text).split("\n");
  expect(lines.map(({ length }) => length)).toEqual([59, 59, 33]);
  // A sentence that is too long for it is cut anew, and what may be a list is left as it is.
  const long = `It ${"goes on and ".repeat(6)}\n`.trimEnd();
  expect(fitted(`${long}\nends here.\n- of\nNext`)).toBe(`${wrap(`${long} ends here.`, 60)}\n- of\nNext`);
  expect(fitted("one,\ntwo")).toBe("one,\ntwo");
  process.stdout.columns = undefined as never;
  expect(fitted(text)).toBe(text);
});
