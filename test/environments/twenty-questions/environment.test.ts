import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import { attributeNames, attributes } from "../../../lib/environments/twenty-questions/attributes.ts";
import { statement, withArticle } from "../../../lib/environments/twenty-questions/guesser.ts";
import { scriptedGuesser, twentyQuestions } from "../../../lib/environments/twenty-questions/index.ts";
import { Names } from "../../../lib/environments/twenty-questions/names.ts";
import { scriptedOracle } from "../../../lib/environments/twenty-questions/oracle.ts";
import {
  answerFrom,
  guessedPhrase,
  namedPhrase,
  readQuestion,
} from "../../../lib/environments/twenty-questions/questions.ts";
import { byName, objectNamed, table, tableNames } from "../../../lib/environments/twenty-questions/table.ts";
import { readThings } from "../../../lib/environments/twenty-questions/words.ts";
import { openService } from "../../../lib/services/open-service.ts";
import { dataFile } from "../data.ts";

const oracle = scriptedOracle(tableNames);
const ask = async (word: string, question: string): Promise<string> =>
  (await oracle.answer(word, question, { seed: 0 })).verdict;

describe("the table", () => {
  it("knows the objects of other lists, which the embedded game does not use", async () => {
    expect(byName.has("tree")).toBe(false);
    expect(objectNamed("tree")!.answers.tree).toBe("yes");
    expect(objectNamed("volleyball")!.answers.ball).toBe("yes");
    expect(objectNamed("headphone")).toBe(byName.get("headphones"));
    expect(objectNamed("flux capacitor")).toBeUndefined();
    const names = new Names(["tree", "boat", "ship"].map((name) => ({ name, aliases: [] })));
    const oracle = scriptedOracle(names);
    expect((await oracle.answer("tree", "Is it a tree?", { seed: 0 })).verdict).toBe("found");
    expect((await oracle.answer("ship", "Is it a ship?", { seed: 0 })).verdict).toBe("found");
    expect((await oracle.answer("ship", "Is it a boat?", { seed: 0 })).verdict).toBe("yes");
    expect((await oracle.answer("tree", "Is it a boat?", { seed: 0 })).verdict).toBe("no");
  });

  it("has enough objects and attributes", () => {
    expect(table.length).toBeGreaterThanOrEqual(300);
    expect(attributeNames.length).toBeGreaterThanOrEqual(60);
  });

  it("distinguishes every two objects", () => {
    expect(new Set(table.map((object) => JSON.stringify(object.answers))).size).toBe(table.length);
  });

  it("has no contradictions", () => {
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

describe("twentyQuestions", () => {
  it("satisfies the contract", async () => {
    expect(await checkEnvironment(twentyQuestions(), scriptedGuesser())).toEqual([]);
    expect(await checkEnvironment(twentyQuestions({ turns: 3 }), () => ({ text: "Is it alive?" }))).toEqual(
      [],
    );
  });

  it("opens with the rules, without the word", async () => {
    const episode = await twentyQuestions().start({ word: "dog" }, { seed: 0 });
    expect(episode.observation.messages.map((message) => message.role)).toEqual(["system", "user"]);
    expect(JSON.stringify(episode.observation)).not.toMatch(/\bdog\b/);
  });

  it("answers, counts, rejects a wrong guess and rewards a right one", async () => {
    const episode = await twentyQuestions().start({ word: "dog" }, { seed: 0 });
    const say = async (text: string) => episode.step({ text });
    expect(await say("Is it alive?")).toMatchObject({
      observation: [{ role: "user", content: "Yes." }],
      reward: 0,
      terminated: false,
      info: { remaining: 19 },
    });
    expect((await say("Is it a plant?")).observation[0]!.content).toBe("No.");
    expect((await say("Is it loved?")).observation[0]!.content).toBe("I can't tell.");
    expect((await say("Is it a cat?")).observation[0]!.content).toBe("No.");
    expect(await say("Give me a hint")).toMatchObject({
      reward: 0,
      terminated: false,
      info: { verdict: "invalid", remaining: 15 },
    });
    const found = await say("Is it a dog?");
    expect(found).toMatchObject({ reward: 1, terminated: true, info: { verdict: "found", word: "dog" } });
    expect(found.observation[0]!.content).toContain("Yes! You found it");
    await expect(say("Is it a dog?")).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
  });

  it.each([
    [undefined, "No. That was the last question."],
    [false, "No. That was the last question."],
    [true, 'No. That was the last question. The word was "dog".'],
  ])("ends after the last question with reward 0; revealAtEnd %s", async (revealAtEnd, ending) => {
    const environment = twentyQuestions({ turns: 4, ...(revealAtEnd !== undefined && { revealAtEnd }) });
    expect(environment.maxTurns).toBe(4);
    const episode = await environment.start({ word: "dog" }, { seed: 0 });
    for (let turn = 0; turn < 3; turn++) {
      const result = await episode.step({ text: "Is it a cat?" });
      expect(result.terminated).toBe(false);
      expect(JSON.stringify(result)).not.toMatch(/\bdog\b/);
    }
    const last = await episode.step({ text: "Is it a cat?" });
    expect(last).toMatchObject({ reward: 0, terminated: true });
    expect(last.observation[0]!.content).toBe(ending);
    expect(last.info).toMatchObject({ word: "dog", success: false }); // for the log, which no model reads
  });

  it("names the word of a won game only if the end reveals it", async () => {
    const ending = async (revealAtEnd: boolean) => {
      const episode = await twentyQuestions({ revealAtEnd }).start({ word: "sofa" }, { seed: 0 });
      return (await episode.step({ text: "Is it a settee?" })).observation[0]!.content;
    };
    expect(await ending(false)).toBe("Yes! You found it.");
    expect(await ending(true)).toBe('Yes! You found it. The word was "sofa".');
    expect(() => twentyQuestions({ revealAtEnd: 1 as never })).toThrow(/revealAtEnd/);
  });

  it("demonstrates no word at the end of a lost game, unless the end reveals it", async () => {
    const endings = async (revealAtEnd: boolean) => {
      const environment = twentyQuestions({ revealAtEnd, turns: 2 });
      const demonstration = await environment.demonstrate!({ word: "dog" }, { seed: 0 });
      return JSON.stringify(demonstration.turns.at(-1)!.judged.map(({ outcome }) => outcome));
    };
    expect(await endings(false)).toContain("That was the last question.");
    expect(await endings(false)).not.toMatch(/\bdog\b/);
    expect(await endings(true)).toMatch(/The word was \\"dog\\"/);
  });

  it("can still be won with the last question", async () => {
    const episode = await twentyQuestions({ turns: 1 }).start({ word: "dog" }, { seed: 0 });
    expect(await episode.step({ text: "Is it a dog?" })).toMatchObject({ reward: 1, terminated: true });
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
      { words: "thnigs" },
      { words: "things", data: "/nowhere" },
      { words: "things", data: "/nowhere", oracle: "recorded" },
      { words: ["dog", " "], oracle: () => "yes" },
      { testSplit: "validation" },
      { words: "lmrl", trainWords: 5, data: "/nowhere" },
      { rules: "hoep" },
      { reward: 1 },
      { testSplit: "train" },
      { splitSeed: -1 },
      { splitSeed: 0.5 },
    ]) {
      expect(() => twentyQuestions(options as never)).toThrowError(
        expect.objectContaining({ code: "ERR_CONFIG" }),
      );
    }
  });

  it("has an action that does nothing", async () => {
    for (const [rules, reward] of [
      ["nlac", undefined],
      ["nlac", "turns"],
      ["hope", undefined],
      ["hope", "success"],
    ] as const) {
      const environment = twentyQuestions({
        rules,
        ...(reward === undefined ? {} : { reward }),
        turns: 3,
        words: ["dog", "cat", "cow"],
      });
      const costs = (reward ?? (rules === "hope" ? "turns" : "success")) === "turns";
      const episode = await environment.start({ word: "dog" }, { seed: 0 });
      let total = 0;
      for (let turn = 0; turn < 3; turn++) {
        const result = await episode.step(environment.idle!);
        expect(result.info.verdict).toBe("invalid");
        total += result.reward;
      }
      expect(total).toBe(costs ? -3 : 0);
      expect(environment.rewardRange).toEqual(costs ? [-3, 0] : [0, 1]);
    }
  });

  it("plays by the rules of HOPE", async () => {
    const few = twentyQuestions({ rules: "hope", words: table.slice(0, 30).map(({ name }) => name) });
    expect(await checkEnvironment(few, scriptedGuesser())).toEqual([]);
    const environment = twentyQuestions({ rules: "hope", words: ["dog", "cat", "cow"], turns: 3 });
    const play = async (...texts: string[]) => {
      const episode = await environment.start({ word: "dog" }, { seed: 0 });
      expect(episode.observation.messages[0]!.content).toMatch(/one of these: cat, cow, dog\.$/);
      const results = [];
      for (const text of texts) results.push(await episode.step({ text }));
      return results;
    };
    const won = await play("Is it a cat?", "Is it a pet?", "Is it a dog?");
    expect(won.map(({ reward }) => reward)).toEqual([-1, -1, 0]);
    expect(won.map(({ observation }) => observation[0]!.content)).toEqual([
      "No.",
      "Yes. One question is left: name the word.",
      "Yes! You found it.",
    ]);
    expect(won[2]!.info).toMatchObject({ success: true });
    const lost = await play("Is it alive?", "Is it a cow?", "Is it a cat?");
    expect(lost.map(({ reward }) => reward)).toEqual([-1, -1, -1]);
    expect(lost[2]!.info).toMatchObject({ success: false });
    expect(lost[1]!.info).not.toHaveProperty("success");
  });

  it("changes the split with its seed", async () => {
    const words = async (splitSeed: number) =>
      (await twentyQuestions({ splitSeed }).tasks("train")).map(({ word }) => word);
    expect(await words(0)).toEqual((await twentyQuestions().tasks("train")).map(({ word }) => word));
    expect(await words(1)).not.toEqual(await words(0));
    expect(await words(1)).toEqual(await words(1));
  });

  it("counts its oracle's requests, and closes it", async () => {
    expect(twentyQuestions().usage).toBeUndefined();
    let closed = 0;
    const service = { ...openService(() => "no"), close: async () => void closed++ };
    const environment = twentyQuestions({ oracle: service });
    const episode = await environment.start({ word: "dog" }, { seed: 0 });
    await episode.step({ text: "Is it alive?" });
    expect(environment.usage!().requests).toBe(1);
    await environment.close();
    // The caller made it.
    expect(closed).toBe(0);
    const local = twentyQuestions({ oracle: { local: "no-such-model" } });
    await local.close();
    await expect(
      (await local.start({ word: "dog" }, { seed: 0 })).step({ text: "Is it alive?" }),
    ).rejects.toMatchObject({ code: "ERR_DISPOSED" });
  });

  it("cannot be won at a judge by a list of words", async () => {
    const environment = twentyQuestions({ oracle: () => "yes" });
    const step = async (text: string) =>
      (await environment.start({ word: "dog" }, { seed: 0 }).then((episode) => episode.step({ text })))
        .reward;
    expect(await step("Is it a cat cow horse?")).toBe(0);
    expect(await step("Is it a cat, cow, horse?")).toBe(0);
    expect(await step("Is it a hound dog?")).toBe(1);
  });

  it.each([
    "Is it the hidden word?",
    "Is it the answer?",
    "Is it it?",
    "Is it your word?",
    "Is it that thing?",
    "Is it the same as it?",
    "Is it what you are thinking of?",
    "Is it yes?",
    "I guess the secret word.",
  ])("cannot be won at a lenient judge by %j", async (text) => {
    const episode = await twentyQuestions({ oracle: () => "yes" }).start({ word: "dog" }, { seed: 0 });
    expect(await episode.step({ text })).toMatchObject({ reward: 0, terminated: false });
    // The judge works: another name of the thing is accepted.
    expect((await episode.step({ text: "Is it a pooch?" })).reward).toBe(1);
  });

  it("asks its service with the episode's seed", async () => {
    const seeds: unknown[] = [];
    const environment = twentyQuestions({
      oracle: (messages, options) => {
        seeds.push(options?.seed);
        return messages.length > 2 ? "yes" : "hm";
      },
    });
    const episode = await environment.start({ word: "dog" }, { seed: 42 });
    await episode.step({ text: "Is it a pooch?" });
    expect(seeds).toEqual([42, 42, 42, 42]); // the oracle, then the judge, two attempts each
  });

  it("accepts the caller's oracle, for other words", async () => {
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
          if (!result.terminated) continue;
          wins += result.reward;
          turns += history.length;
          break;
        }
      }
      expect(wins / tasks.length).toBeGreaterThanOrEqual(0.97);
      expect(turns / tasks.length).toBeLessThan(10);
    }
  });

  it("continues with an oracle that contradicts the table", async () => {
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
    expect(history.at(-1)!.result.terminated).toBe(true);
  });

  it("states facts in sentences", () => {
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
