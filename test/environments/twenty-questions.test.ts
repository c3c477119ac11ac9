import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { attributeNames, attributes } from "../../lib/environments/twenty-questions/attributes.ts";
import { statement, withArticle } from "../../lib/environments/twenty-questions/guesser.ts";
import { scriptedGuesser, twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { scriptedOracle } from "../../lib/environments/twenty-questions/oracle.ts";
import {
  answerFrom,
  guessedPhrase,
  names,
  readQuestion,
} from "../../lib/environments/twenty-questions/questions.ts";
import { byName, table } from "../../lib/environments/twenty-questions/table.ts";

const ask = async (word: string, question: string): Promise<string> =>
  (await scriptedOracle.answer(word, question)).verdict;

describe("the table", () => {
  it("holds enough objects and attributes", () => {
    expect(table.length).toBeGreaterThanOrEqual(300);
    expect(attributeNames.length).toBeGreaterThanOrEqual(60);
  });

  it("can tell every two objects apart", () => {
    expect(new Set(table.map((object) => JSON.stringify(object.answers))).size).toBe(table.length);
  });

  it("contradicts itself nowhere", () => {
    const implies: [string, string][] = [
      ["mammal", "animal"],
      ["bird", "animal"],
      ["fish", "animal"],
      ["insect", "animal"],
      ["reptile", "animal"],
      ["animal", "movesItself"],
      ["bird", "feathers"],
      ["bird", "wings"],
      ["fish", "swims"],
      ["fourLegs", "legs"],
      ["tree", "plant"],
      ["flower", "plant"],
      ["fruit", "edible"],
      ["vegetable", "edible"],
      ["fruit", "food"],
      ["meat", "food"],
      ["dessert", "sweet"],
      ["boat", "vehicle"],
      ["aircraft", "vehicle"],
      ["clothing", "worn"],
      ["jewelry", "worn"],
      ["footwear", "worn"],
      ["ball", "round"],
      ["ball", "sports"],
      ["cuts", "sharp"],
      ["house", "car"],
      ["car", "person"],
      ["person", "breadbox"],
      ["pocket", "hand"],
      ["weapon", "dangerous"],
      ["electronic", "electricity"],
      ["appliance", "electricity"],
      ["kitchenware", "kitchen"],
      ["ocean", "water"],
    ];
    const excludes: [string, string][] = [
      ["animal", "plant"],
      ["animal", "manMade"],
      ["plant", "manMade"],
      ["alive", "electricity"],
      ["mammal", "bird"],
      ["fruit", "vegetable"],
      ["food", "furniture"],
      ["vehicle", "building"],
      ["pocket", "breadbox"],
      ["hand", "person"],
      ["soft", "stone"],
    ];
    const faults: string[] = [];
    for (const { name, answers } of table) {
      const value = answers as Record<string, string>;
      for (const [a, b] of implies)
        if (value[a] === "yes" && value[b] === "no") faults.push(`${name}: ${a}, not ${b}`);
      for (const [a, b] of excludes)
        if (value[a] === "yes" && value[b] === "yes") faults.push(`${name}: ${a} and ${b}`);
    }
    expect(faults).toEqual([]);
  });

  it.each([
    ["dog", "Is it alive?", "yes"],
    ["dog", "Is it a pet?", "yes"],
    ["dog", "Can it fly?", "no"],
    ["penguin", "Can it fly?", "no"],
    ["penguin", "Is it a bird?", "yes"],
    ["bat", "Is it a bird?", "no"],
    ["bat", "Can it fly?", "yes"],
    ["whale", "Is it a fish?", "no"],
    ["whale", "Does it live in the ocean?", "yes"],
    ["shark", "Is it dangerous?", "yes"],
    ["tomato", "Is it a fruit?", "unknown"],
    ["banana", "Is it yellow?", "yes"],
    ["banana", "Can you eat it?", "yes"],
    ["hammer", "Is it made of metal?", "yes"],
    ["hammer", "Is it edible?", "no"],
    ["car", "Does it have wheels?", "yes"],
    ["car", "Is it bigger than a breadbox?", "yes"],
    ["bicycle", "Does it have an engine?", "no"],
    ["piano", "Is it too heavy for one person to lift?", "yes"],
    ["refrigerator", "Is it used in the kitchen?", "yes"],
    ["coin", "Does it fit in a pocket?", "yes"],
    ["sun", "Does it give off light?", "yes"],
    ["chair", "Is it made of wood?", "unknown"],
    ["mountain", "Is it man-made?", "no"],
    ["spider", "Is it an insect?", "no"],
    ["snake", "Does it have legs?", "no"],
  ])("%s: %s %s", async (word, question, answer) => {
    expect(await ask(word, question)).toBe(answer);
  });
});

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
  ])("takes %j for a right guess", async (text) => {
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

  it("tells the fruit from the colour by the article", async () => {
    expect(await ask("orange", "Is it an orange?")).toBe("found");
    expect(await ask("basketball", "Is it an orange?")).toBe("no");
    expect(await ask("basketball", "Is it orange?")).toBe("yes");
  });

  it("turns answers round for negations", async () => {
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
  ])("cannot tell %j", async (text) => {
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
  ])("asks for a question after %j", async (text) => {
    expect(await ask("dog", text)).toBe("invalid");
  });

  it("finds no word by containing it, listing many or quoting", async () => {
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
    expect(names("fire hydrants", "fire hydrant")).toBe(true);
    expect(names("hydrant", "fire hydrant")).toBe(false);
  });

  it("never throws and is never won by noise", () => {
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

describe("twentyQuestions", () => {
  it("keeps the contract", async () => {
    expect(await checkEnvironment(twentyQuestions(), scriptedGuesser())).toEqual([]);
    expect(await checkEnvironment(twentyQuestions({ turns: 3 }), () => ({ text: "Is it alive?" }))).toEqual(
      [],
    );
  });

  it("opens with the rules, and does not tell the word", async () => {
    const episode = await twentyQuestions().start({ word: "dog" }, { seed: 0 });
    expect(episode.observation.messages.map((message) => message.role)).toEqual(["system", "user"]);
    expect(JSON.stringify(episode.observation)).not.toMatch(/\bdog\b/);
  });

  it("answers, counts, refuses a wrong guess and rewards a right one", async () => {
    const episode = await twentyQuestions().start({ word: "dog" }, { seed: 0 });
    const say = async (text: string) => episode.step({ text });
    expect(await say("Is it alive?")).toMatchObject({
      observation: [{ role: "user", content: "Yes." }],
      reward: 0,
      done: false,
      info: { remaining: 19 },
    });
    expect((await say("Is it a plant?")).observation[0]!.content).toBe("No.");
    expect((await say("Is it loved?")).observation[0]!.content).toBe("I can't tell.");
    expect((await say("Is it a cat?")).observation[0]!.content).toBe("No.");
    expect(await say("Give me a hint")).toMatchObject({
      reward: 0,
      done: false,
      info: { verdict: "invalid", remaining: 15 },
    });
    const found = await say("Is it a dog?");
    expect(found).toMatchObject({ reward: 1, done: true, info: { verdict: "found", word: "dog" } });
    expect(found.observation[0]!.content).toContain("Yes! You found it");
    await expect(say("Is it a dog?")).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
  });

  it("ends after the last question with reward 0, and tells the word only then", async () => {
    const environment = twentyQuestions({ turns: 4 });
    expect(environment.maxTurns).toBe(4);
    const episode = await environment.start({ word: "dog" }, { seed: 0 });
    for (let turn = 0; turn < 3; turn++) {
      const result = await episode.step({ text: "Is it a cat?" });
      expect(result.done).toBe(false);
      expect(JSON.stringify(result)).not.toMatch(/\bdog\b/);
    }
    const last = await episode.step({ text: "Is it a cat?" });
    expect(last).toMatchObject({ reward: 0, done: true });
    expect(last.observation[0]!.content).toBe('No. That was the last question. The word was "dog".');
  });

  it("can still be won with the last question", async () => {
    const episode = await twentyQuestions({ turns: 1 }).start({ word: "dog" }, { seed: 0 });
    expect(await episode.step({ text: "Is it a dog?" })).toMatchObject({ reward: 1, done: true });
  });

  it("splits words by a hash that does not depend on their order", async () => {
    const environment = twentyQuestions();
    const [train, test] = [await environment.tasks("train"), await environment.tasks("test")];
    expect(train.length + test.length).toBe(table.length);
    expect(train.length).toBe(Math.round((table.length * 2) / 3));
    const reversed = twentyQuestions({ words: table.map((object) => object.name).reverse() });
    expect(await reversed.tasks("train")).toEqual(train);
    const small = twentyQuestions({ trainWords: 20, testWords: 10 });
    expect(await small.tasks("train")).toEqual(train.slice(0, 20));
    expect(await small.tasks("test")).toHaveLength(10);
  });

  it("validates its options", () => {
    for (const options of [
      { turns: 0 },
      { words: ["dog"] },
      { words: ["dog", "flux capacitor"] },
      { trainWords: 100_000 },
      { oracel: "x" },
      { oracle: 3 },
    ]) {
      expect(() => twentyQuestions(options as never)).toThrowError(
        expect.objectContaining({ code: "ERR_CONFIG" }),
      );
    }
  });

  it("takes an oracle of the caller's, for other words", async () => {
    const environment = twentyQuestions({
      words: ["flux capacitor", "lightsaber"],
      trainWords: 1,
      oracle: {
        answer: async (hidden, question) => ({
          verdict: question.includes(hidden) ? "found" : "no",
          info: {},
        }),
      },
    });
    const episode = await environment.start({ word: "lightsaber" }, { seed: 0 });
    expect((await episode.step({ text: "Is it a flux capacitor?" })).reward).toBe(0);
    expect((await episode.step({ text: "Is it a lightsaber?" })).reward).toBe(1);
  });
});

describe("scriptedGuesser", () => {
  it.each([undefined, 1])("wins nearly every game (seed %s)", async (seed) => {
    const environment = twentyQuestions();
    for (const split of ["train", "test"] as const) {
      const tasks = await environment.tasks(split);
      let wins = 0;
      let turns = 0;
      for (const task of tasks) {
        const episode = await environment.start(task, { seed: 0 });
        const policy = scriptedGuesser({ seed });
        const history = [];
        for (;;) {
          const action = policy({ observation: episode.observation, history });
          expect(action.text.includes("\n") || action.thought!.includes("\n")).toBe(false);
          const result = await episode.step(action);
          history.push({ action, result });
          if (!result.done) continue;
          wins += result.reward;
          turns += history.length;
          break;
        }
      }
      expect(wins / tasks.length).toBeGreaterThanOrEqual(0.97);
      expect(turns / tasks.length).toBeLessThan(10);
    }
  });

  it("does not give up against an oracle that contradicts the table", async () => {
    const environment = twentyQuestions({
      oracle: { answer: async () => ({ verdict: "unknown", info: {} }) },
    });
    const episode = await environment.start({ word: "dog" }, { seed: 0 });
    const policy = scriptedGuesser();
    const history = [];
    for (let turn = 0; turn < 20; turn++) {
      const action = policy({ observation: episode.observation, history });
      expect(action.text).toMatch(/\?$/);
      history.push({ action, result: await episode.step(action) });
    }
    expect(history.at(-1)!.result.done).toBe(true);
  });

  it("speaks of facts in sentences", () => {
    expect(statement("Is it an animal?", true)).toBe("it is an animal");
    expect(statement("Does it have wheels?", false)).toBe("it does not have wheels");
    expect(statement("Does it need electricity?", true)).toBe("it needs electricity");
    expect(statement("Can you wear it?", false)).toBe("you cannot wear it");
    expect(withArticle("owl")).toBe("an owl");
    expect(withArticle("scissors")).toBe("scissors");
    for (const name of attributeNames) {
      for (const yes of [true, false])
        expect(statement(attributes[name].question, yes)).toMatch(/^(it|you|people|children) \w+/);
    }
  });
});
