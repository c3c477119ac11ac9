import { describe, expect, it } from "vitest";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import { scriptedGuesser, twentyQuestions } from "../../../lib/environments/twenty-questions/index.ts";
import { table } from "../../../lib/environments/twenty-questions/table.ts";
import { openService } from "../../../lib/services/open-service.ts";

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

  it("demonstrates no outcome of a premature guess that is lucky", async () => {
    const demonstration = await twentyQuestions().demonstrate!({ word: "violin" }, { seed: 354 });
    const { judged } = demonstration.turns[1]!;
    expect(judged[1]!.action.text).toBe("Is it a violin?"); // "No, because it is premature"
    expect(judged[1]!.advice).toMatch(/^Ask /);
    expect(judged.map(({ outcome }) => outcome !== undefined)).toEqual([true, false]);
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

  it.each(["Yes", "toString", undefined])("faults a verdict of the caller's oracle: %s", async (verdict) => {
    const oracle = { answer: async () => ({ verdict: verdict as "yes", info: {} }) };
    const episode = await twentyQuestions({ oracle }).start({ word: "dog" }, { seed: 0 });
    await expect(episode.step({ text: "Is it alive?" })).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
  });
});
