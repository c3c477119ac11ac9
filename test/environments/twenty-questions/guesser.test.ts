import { describe, expect, it } from "vitest";
import { attributeNames, attributes } from "../../../lib/environments/twenty-questions/attributes.ts";
import { statement, withArticle } from "../../../lib/environments/twenty-questions/guesser.ts";
import { scriptedGuesser, twentyQuestions } from "../../../lib/environments/twenty-questions/index.ts";

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

  it.each([undefined, 1])("guesses on if the word is none of its own (seed %s)", async (seed) => {
    const episode = await twentyQuestions().start({ word: "dog" }, { seed: 0 });
    const policy = scriptedGuesser({ words: ["cat", "sofa", "apple"], seed });
    const history = [];
    for (let turn = 0; turn < 20; turn++) {
      const action = policy({ observation: episode.observation, history });
      history.push({ action, result: await episode.step(action) });
    }
    expect(history.at(-1)!.action.text).toMatch(/^Is it an? (cat|sofa|apple)\?$/);
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
