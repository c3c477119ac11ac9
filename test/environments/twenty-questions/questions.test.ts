import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { attributeNames, attributes } from "../../../lib/environments/twenty-questions/attributes.ts";
import { withArticle } from "../../../lib/environments/twenty-questions/guesser.ts";
import { scriptedOracle } from "../../../lib/environments/twenty-questions/oracle.ts";
import {
  answerFrom,
  guessedPhrase,
  readQuestion,
} from "../../../lib/environments/twenty-questions/questions.ts";
import { byName, table, tableNames } from "../../../lib/environments/twenty-questions/table.ts";

const oracle = scriptedOracle(tableNames);

const ask = async (word: string, question: string): Promise<string> =>
  (await oracle.answer(word, question, { seed: 0 })).verdict;

describe("reading questions", () => {
  it("reads every question of the table as its own attribute", () => {
    for (const name of attributeNames) {
      expect(readQuestion(attributes[name].question), name).toEqual({
        kind: "attribute",
        name,
        negated: false,
      });
    }
  });

  it("reads every name and other name as a guess", () => {
    for (const object of table) {
      for (const name of [object.name, ...object.aliases]) {
        for (const text of [
          `Is it ${withArticle(name)}?`,
          `I guess ${name}.`,
          `My guess is: ${withArticle(name)}`,
        ]) {
          expect(readQuestion(text), text).toMatchObject({ kind: "guess", object: { name: object.name } });
        }
      }
    }
  });

  it.each([
    "Is it a dog?",
    "is it a dog",
    "Is it dogs?",
    "Could it be a dog?",
    "dog?",
    "A dog?",
    "Is it a puppy?",
    "I guess it is a dog.",
    "Are you thinking of a dog?",
    "Is the hidden word dog?",
    'Is the word "dog"?',
    "Is the object a dog?",
    "12. Is it a dog?",
  ])("reads %j as a right guess", async (text) => {
    expect(await ask("dog", text)).toBe("found");
    expect(await ask("cat", text)).toBe("no");
  });

  it.each([
    ["Is it alive?", "alive", false],
    ["Is it a living thing?", "alive", false],
    ["Isn't it alive?", "alive", false],
    ["Is it not alive?", "alive", true],
    ["Is it inanimate?", "alive", true],
    ["Is it something you can wear?", "worn", false],
    ["Do people wear it?", "worn", false],
    ["Would you find it in a kitchen?", "kitchen", false],
    ["Is the object typically used in the kitchen?", "kitchen", false],
    ["Does it need electricity to work?", "electricity", false],
    ["Is it used to cut things?", "cuts", false],
    ["Is the object used for cleaning purposes?", "cleans", false],
    ["Okay, so is it a man-made object?", "manMade", false],
    ["Can the object be held in one hand?", "hand", false],
    ["Is it orange?", "orange", false],
    ["Is it wooden?", "wood", false],
    ["Can it be eaten?", "edible", false],
    ["Is this found in nature?", "manMade", true],
  ])("reads %j", (text, name, negated) => {
    expect(readQuestion(text)).toEqual({ kind: "attribute", name, negated });
  });

  it("distinguishes the fruit from the colour by the article", async () => {
    expect(await ask("orange", "Is it an orange?")).toBe("found");
    expect(await ask("basketball", "Is it an orange?")).toBe("no");
    expect(await ask("basketball", "Is it orange?")).toBe("yes");
  });

  it("inverts answers for negations", async () => {
    expect(await ask("dog", "Is it not alive?")).toBe("no");
    expect(await ask("hammer", "Is it not alive?")).toBe("yes");
    expect(await ask("tomato", "Is it not a fruit?")).toBe("unknown");
  });

  it("compares sizes with any object", async () => {
    expect(await ask("elephant", "Is it bigger than a dog?")).toBe("yes");
    expect(await ask("elephant", "Is it smaller than a car?")).toBe("no");
    expect(await ask("coin", "Is it larger than a person?")).toBe("no");
    expect(await ask("cup", "Is it bigger than a platypus?")).toBe("unknown");
  });

  it.each([
    "Is it a fruit or a vegetable?",
    "Is it alive and furry?",
    "Is it an animal? Is it a plant?",
    "Is it an animal that barks?",
    "Is it associated with a country?",
    "Is it a carnivore plant thing?",
    "Is it a glass?",
  ])("cannot answer %j", async (text) => {
    expect(await ask("dog", text)).toBe("unknown");
  });

  it.each([
    "",
    "   ",
    "What is it?",
    "Tell me the word.",
    "Hello there",
    "Where do I find it?",
    "42",
    "x".repeat(400),
    "Yes.",
  ])("requests a question after %j", async (text) => {
    expect(await ask("dog", text)).toBe("invalid");
  });

  it("finds no word by inclusion, long lists or quotes", async () => {
    for (const text of [
      "dog cat horse?",
      "Is it a dog, a cat, a horse?",
      "Is it a dog house?",
      "dogcat?",
      "Is it a hot dog stand?",
    ]) {
      expect(await ask("dog", text), text).not.toBe("found");
    }
  });

  it("names the guessed phrase for a judge", () => {
    expect(guessedPhrase("Is it a platypus?")).toBe("platypus");
    expect(guessedPhrase("I guess a fire hydrant")).toBe("fire hydrant");
    expect(guessedPhrase("Is it used by doctors?")).not.toBe("doctors");
    expect(guessedPhrase("Does it bark?")).toBeUndefined();
    expect(tableNames.names("fire hydrants", "fire hydrant")).toBe(true);
    expect(tableNames.names("hydrant", "fire hydrant")).toBe(false);
  });

  it("never throws and is never won by random text", () => {
    const words = fc.constantFrom(
      ...'is it a an the dog cat ? or not can you eat does have made of bigger than , . " \n used for in'.split(
        " ",
      ),
    );
    const noise = fc.oneof(
      fc.string({ unit: "binary", maxLength: 400 }),
      fc.array(words, { maxLength: 40 }).map((w) => w.join(" ")),
    );
    fc.assert(
      fc.property(noise, (text) => {
        const question = readQuestion(text);
        answerFrom(byName.get("xylophone")!, question);
        return !(question.kind === "guess" && question.object?.name === "xylophone");
      }),
      { numRuns: 20_000 },
    );
  });
});
