import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Names } from "../../../lib/environments/twenty-questions/names.ts";
import { namedPhrase } from "../../../lib/environments/twenty-questions/questions.ts";
import { table } from "../../../lib/environments/twenty-questions/table.ts";
import { readThings } from "../../../lib/environments/twenty-questions/words.ts";
import { dataFile } from "../data.ts";

describe("names", () => {
  const words = (...all: string[]) => new Names(all.map((name) => ({ name, aliases: [] })));

  it.each([
    ["breadbox", "bread", false],
    ["bread", "breadbox", false],
    ["bread", "bread", true],
    ["bread", "  Bread ", true],
    ["bread", "a loaf", false],
    ["water wheel", "water  wheel", true],
    ["t-shirt", "T shirt", true],
    ["t-shirt", "tee-shirt", true],
    ["yo-yo", "yoyo", true],
    ["ice-cream cone", "an ice cream cone", true],
    ["donut", "doughnuts", true],
    ["jewelry", "jewellery", true],
    ["aluminum foil", "aluminium foil", true],
    ["éclair", "eclair", true],
    ["eclair", "éclair", true],
    ["cherry", "cherries", true],
    ["shelf", "shelves", true],
    ["foot", "feet", true],
    ["pants", "a pair of pants", true],
    ["headphones", "headphone", true],
    ["bat (animal)", "bat", true],
    ["glasses", "glass", false],
    ["glass", "glasses", false],
    ["dog", "hot dog", false],
    ["dog", "", false],
    ["dog", "?!", false],
    ["conductor's baton", "conductors baton", true],
    // A property of every object in JavaScript.
    ["dog", "a constructor", false],
    ["constructor", "the constructors", true],
  ])("%j is called %j: %s", (hidden, phrase, same) => {
    expect(words(hidden).names(phrase, hidden)).toBe(same);
    expect(words("abacus").names(phrase, hidden)).toBe(same);
  });

  it("prefers the exact name of another word", () => {
    expect(words("chip", "chips").names("chips", "chip")).toBe(false);
    expect(words("chip", "abacus").names("chips", "chip")).toBe(true);
    expect(words("glass", "glasses").names("glass", "glasses")).toBe(false);
    const aliased = new Names([
      { name: "soccer ball", aliases: ["football"] },
      { name: "football", aliases: [] },
    ]);
    expect(aliased.names("football", "soccer ball")).toBe(false);
    expect(aliased.names("football", "football")).toBe(true);
  });

  it("identifies every word by its own name only", () => {
    const things = dataFile("dialogue/things_1823.txt");
    const lists = [table.map(({ name }) => name)];
    if (things !== undefined) lists.push(readThings(things).map(({ name }) => name));
    for (const list of lists) {
      const names = words(...list);
      for (const word of list) {
        for (const spelling of [word, word.toUpperCase(), ` the ${word}  `, word.replace(/[ -]/g, "")]) {
          expect(names.meaning(spelling), spelling).toBe(word);
        }
      }
    }
  });

  it("cannot be won by a list of words", () => {
    const list = table.map(({ name }) => name);
    const names = words(...list);
    const word = fc.constantFrom(...list);
    const glue = fc.constantFrom(", ", " or ", " and ", "/", "; ", ", a ", " or a ", " | ", " & ", "? ", " ");
    fc.assert(
      fc.property(fc.array(word, { minLength: 2, maxLength: 8 }), glue, (listed, between) => {
        fc.pre(names.meaning(listed.join(" ")) === undefined);
        for (const opening of ["Is it a ", "I guess ", "", "Are you thinking of a "]) {
          const named = namedPhrase(`${opening}${listed.join(between)}?`);
          if (named !== undefined && listed.includes(names.meaning(named) ?? "")) return false;
        }
        return true;
      }),
      { numRuns: 3000 },
    );
  });
});

describe("the phrase that a text names", () => {
  it.each([
    ["Is it a bird?", "bird"],
    ["Could the hidden object be a bird, by any chance?", "bird"],
    ["Okay, so I think it is a bird.", "bird"],
    ["Is it a piñata?", "pinata"],
    ["Is it not a bird?", undefined],
    ["Is it a cat, fish?", undefined],
    ["Is it a cat/fish?", undefined],
    ["Is it a cat or a fish?", undefined],
    ["Does it look like a bird?", undefined],
    ["bird", undefined],
    ["", undefined],
  ])("%j: %s", (text, phrase) => {
    expect(namedPhrase(text)).toBe(phrase);
  });
});
