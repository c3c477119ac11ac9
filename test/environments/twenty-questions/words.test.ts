import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import { scriptedGuesser, twentyQuestions } from "../../../lib/environments/twenty-questions/index.ts";
import { Names } from "../../../lib/environments/twenty-questions/names.ts";
import {
  RecordedAnswers,
  type RecordedGames,
  readGames,
  recordedOracle,
} from "../../../lib/environments/twenty-questions/recorded.ts";
import { splitCategories } from "../../../lib/environments/twenty-questions/words.ts";
import { dataFile } from "../data.ts";

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "nlac-words-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const write = (name: string, content: string) => {
  const path = join(directory, name);
  writeFileSync(path, content);
  return path;
};
const word = (name: string) => ({ name, aliases: [] });

describe("recorded games", () => {
  const games = {
    "dog ": [
      ["Is it an animal?", "YES"],
      ["Is it made of metal?", "NO"],
      ["Is the object commonly kept as a pet?", "YES."],
      ["Is it edible?", "It depends"],
      ["Can it fly?", "No, it cann"],
    ],
    cat: [
      ["Is it an animal?", "YES"],
      ["Is it made of metal?", "NO"],
      ["Is the object commonly kept as a pet?", "YES"],
      ["Does it have whiskers?", "YES"],
    ],
    wrench: [
      ["Is it an animal?", "NO"],
      ["Is it made of metal?", "YES"],
      ["Is it used in a garage?", "YES"],
    ],
  };
  const answers = () => new RecordedAnswers([readGames(write("games.json", JSON.stringify(games)))]);
  const words = ["dog", "cat", "wrench"].map(word);
  const ask = async (hidden: string, question: string) =>
    (await recordedOracle(answers(), words, new Names(words)).answer(hidden, question, { seed: 0 })).verdict;

  it("are read with their mistakes corrected, and without answers other than yes and no", () => {
    const read = readGames(write("games.json", JSON.stringify(games)));
    expect([...read.keys()]).toEqual(["dog", "cat", "wrench"]);
    expect(read.get("dog")!.map(([, yes]) => yes)).toEqual([true, false, true, false]);
    expect(() => readGames(write("other.json", '{"dog": "yes"}'))).toThrow(/no recorded games/);
    expect(() => readGames(write("other.json", "yes"))).toThrow(/no recorded games/);
  });

  it.each([
    ["dog", "Is it an animal?", "yes"],
    ["wrench", "Is it an animal?", "no"],
    ["dog", "Is the object an animal", "yes"],
    ["dog", "Is it not an animal?", "no"],
    ["dog", "Is it kept as a pet?", "yes"],
    ["dog", "Is it made of porcelain?", "unknown"],
    // Not recorded for the dog, but for a similar thing.
    ["dog", "Does it have whiskers?", "yes"],
    ["wrench", "Does it have whiskers?", "unknown"],
    ["dog", "Is it a dog?", "found"],
    ["dog", "I guess DOGS!", "found"],
    ["dog", "Is it a cat?", "no"],
    ["dog", "Is it a platypus?", "unknown"],
    ["dog", "What is it?", "invalid"],
    ["dog", "x".repeat(400), "invalid"],
  ])("%s: %j %s", async (hidden, question, verdict) => {
    expect(await ask(hidden, question)).toBe(verdict);
  });

  it("must be about the words of the game", () => {
    const open = (...list: string[]) => recordedOracle(answers(), list.map(word), new Names(list.map(word)));
    expect(() => open("dogs", "cat")).not.toThrow();
    expect(() => open("dog", "narwhal")).toThrow(/narwhal/);
    expect(() => open("dog", "narwhal")).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
  });
});

describe("a split by categories", () => {
  const categories = (sizes: readonly number[]) =>
    new Map(
      sizes.map(
        (size, c) => [`category ${c}`, Array.from({ length: size }, (_, i) => word(`${c}.${i}`))] as const,
      ),
    );

  it("needs two categories of twenty words together", () => {
    const split = splitCategories(categories([10, 30, 10, 30]), 0);
    expect([split.train, split.validation, split.test].map((words) => words.length)).toEqual([32, 28, 20]);
    expect(() => splitCategories(categories([11, 30, 10, 30]), 0)).toThrow(/no two categories/);
  });
});

const things = dataFile("dialogue/things_1823.txt");

describe.skipIf(things === undefined)("the papers' words", () => {
  const data = things === undefined ? "" : dirname(things);
  const wordsOf = async (options: object) => {
    const environment = twentyQuestions({ data, oracle: () => "no", ...options });
    return {
      train: (await environment.tasks("train")).map((task) => task.word),
      test: (await environment.tasks("test")).map((task) => task.word),
    };
  };

  it("are 1,000 and 500 of THINGS, disjoint, tidy, and the same every time", async () => {
    const { train, test } = await wordsOf({ words: "things" });
    expect([train.length, test.length, new Set([...train, ...test]).size]).toEqual([1000, 500, 1500]);
    for (const name of [...train, ...test]) expect(name).toBe(name.trim().replace(/\s+/g, " "));
    // Pinned, because published numbers depend on it.
    expect(train.slice(0, 3).concat(test.slice(0, 3))).toMatchInlineSnapshot(`
      [
        "bouquet",
        "briefcase",
        "hamster",
        "pony",
        "horse",
        "salami",
      ]
    `);
    const other = await wordsOf({ words: "things", splitSeed: 1 });
    expect(other.train).not.toEqual(train);
    expect((await wordsOf({ words: "things", trainWords: 10, testWords: 5 })).train).toEqual(
      train.slice(0, 10),
    );
  });

  it("are HOPE's 110, 28 and 20, the last of categories unseen in training", async () => {
    const categories = Object.entries(
      (await import(join(data, "lmrl_twenty_questions_objects.json"), { with: { type: "json" } }))
        .default as Record<string, string[][]>,
    );
    const categoryOf = (name: string) =>
      categories.find(([, objects]) => objects.some(([first]) => first!.toLowerCase() === name))![0];
    const { train, test } = await wordsOf({ words: "lmrl" });
    const validation = (await wordsOf({ words: "lmrl", testSplit: "validation" })).test;
    expect([train.length, validation.length, test.length]).toEqual([110, 28, 20]);
    expect(new Set([...train, ...validation, ...test]).size).toBe(158);
    const seen = new Set(train.map(categoryOf));
    expect(seen.size).toBe(15);
    expect(validation.every((name) => seen.has(categoryOf(name)))).toBe(true);
    const unseen = new Set(test.map(categoryOf));
    expect([...unseen].sort()).toEqual(["Clothes", "Jewelry"]);
    expect([...unseen].some((category) => seen.has(category))).toBe(false);
  });

  it("can all be found by the scripted player, with the scripted oracle for HOPE's", async () => {
    const environment = twentyQuestions({ rules: "hope", data });
    const all = [...(await environment.tasks("train")), ...(await environment.tasks("test"))];
    const list = all.map((task) => task.word);
    for (const task of all) {
      const episode = await environment.start(task, { seed: 0 });
      const play = scriptedGuesser({ words: list });
      const history = [];
      for (;;) {
        const action = play({ observation: episode.observation, history });
        const result = await episode.step(action);
        history.push({ action, result });
        if (!result.terminated) continue;
        expect(result.info.success, task.word).toBe(true);
        break;
      }
    }
  });

  it("can be played with recorded games, whose oracle satisfies the contract and beats always answering no", async () => {
    const environment = twentyQuestions({ words: "things", oracle: "recorded", data });
    expect(await checkEnvironment(environment, () => ({ text: "Is it an animal?" }))).toEqual([]);

    // One model's games answer the other model's questions.
    const known = readGames(join(data, "selfplay_gpt4.json"));
    const asked = readGames(join(data, "selfplay_gpt35.json"));
    const objects = [...known.keys()].filter((_, i) => i % 12 === 0);
    const names = new Names([...known.keys()].map(word));
    const oracle = recordedOracle(new RecordedAnswers([known as RecordedGames]), objects.map(word), names);
    let [all, told, right, saidNo] = [0, 0, 0, 0];
    for (const object of objects) {
      for (const [question, yes] of asked.get(object)!) {
        const { verdict } = await oracle.answer(object, question, { seed: 0 });
        all++;
        if (verdict !== "yes" && verdict !== "no") continue;
        told++;
        if ((verdict === "yes") === yes) right++;
        if (!yes) saidNo++;
      }
    }
    // Measured on all: 0.51 answered, 0.81 right, 0.70 for always no.
    expect(told / all).toBeGreaterThan(0.45);
    expect(right / told).toBeGreaterThan(0.78);
    expect(right / told).toBeGreaterThan(saidNo / told + 0.07);
  });

  it("never reach the player before the end", async () => {
    const environment = twentyQuestions({ words: "things", oracle: "recorded", data });
    for (const task of (await environment.tasks("test")).slice(0, 40)) {
      const episode = await environment.start(task, { seed: 0 });
      const texts = [
        "Is it alive?",
        "Is it a tool?",
        "Tell me the word.",
        "Is it not found indoors?",
        "Is it red?",
      ];
      for (const text of texts) {
        const result = await episode.step({ text });
        if (result.terminated) break;
        expect(
          ["Yes.", "No.", "I can't tell."].some((a) => result.observation[0]!.content === a) ||
            result.info.verdict === "invalid",
        ).toBe(true);
        expect(result.info).not.toHaveProperty("word");
      }
    }
  });
});
