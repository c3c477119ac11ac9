import { describe, expect, test } from "vitest";
import type { Environment } from "../../lib/contract/environment.ts";
import { guessMyCity } from "../../lib/environments/guess-my-city/index.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import { transitionsOf } from "../../lib/episodes/trajectory.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { callAction } from "../../lib/prompts/calls.ts";
import { actionText } from "../../lib/prompts/policy.ts";
import { returnsFrom } from "../../lib/training/returns.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { act, changed, play } from "../support/errand-play.ts";
import { type Desk, desk } from "../support/job-desk.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

describe("an episode that is cut short", () => {
  /** Costs 1 per turn, and does not end the episode at the turn limit. */
  const costly = (rewardRange: [number, number], turnLimitEnds = true) => ({
    ...changed((step) => async (action) => ({ ...(await step(action)), reward: -1, terminated: false })),
    rewardRange,
    turnLimitEnds,
    maxTurns: 4,
  });
  const one = [{ id: 0, task: { word: "key" } }];
  /** The replies turn by turn; "?" cannot be parsed. */
  const writing = (...texts: string[]) => {
    let turn = 0;
    return new ScriptedModel(() => texts[turn++ % texts.length]!);
  };

  test.each([
    ["malformed", writing("?"), {}, [0, 0, -9]],
    ["malformed", writing(act("soap"), "?"), { maxMalformed: 1 }, [-1, -8]],
    ["turn-limit", writing(act("soap"), "?"), {}, [-1, 0, -1, -7]],
    ["turn-limit", writing(act("soap")), {}, [-1, -1, -1, -6]],
  ] as const)(
    "by unreadable actions or a rule, with costs per turn, ends at the low end: %s",
    async (outcome, model, options, rewards) => {
      const [played] = await play({ model, environment: costly([-9, 0]), episodes: one, ...options });
      expect(played).toMatchObject({ outcome, reward: -9 });
      expect(played!.turns.map(({ reward }) => reward)).toEqual(rewards);
      expect(played!.turns.at(-1)).toMatchObject({ terminated: true, truncated: false });
    },
  );

  test.each([
    ["turn-limit", writing(act("soap")), {}, [-1, -1, -1, -1]],
    ["turn-limit", writing(act("soap"), "?"), {}, [-1, 0, -1, 0]],
    ["context-limit", writing(act("soap".repeat(99))), { maxPromptTokens: 500 }, [-1]],
  ] as const)(
    "by a limit, counts with the low end, which is part of no turn: %s",
    async (outcome, model, options, rewards) => {
      const [played] = await play({ model, environment: costly([-9, 0], false), episodes: one, ...options });
      expect(played).toMatchObject({ outcome, reward: -9 });
      expect(played!.turns.map(({ reward }) => reward)).toEqual(rewards);
      const endings = played!.turns.map(({ terminated, truncated }) => [terminated, truncated]);
      expect(endings).toEqual([...rewards.slice(1).map(() => [false, false]), [false, true]]);
      expect(transitionsOf(played!).at(-1)).toMatchObject({ terminated: false, truncated: true });
      expect(toRecord(played!).reward).toBe(-9);
    },
  );

  test("by its environment is marked as truncated, and has the environment's reward", async () => {
    for (const [at, outcome] of [
      [1, "truncated"],
      [3, "turn-limit"],
    ] as const) {
      const environment = {
        ...changed((step, _, turn) => async (action) => ({
          ...(await step(action)),
          reward: -1,
          terminated: false,
          truncated: turn === at,
        })),
        ...{ rewardRange: [-9, 0] as const, maxTurns: 4 },
      };
      const [played] = await play({ model: writing(act("soap")), environment, episodes: one });
      expect(played).toMatchObject({ outcome, reward: -1 - at });
      expect(played!.turns).toHaveLength(at + 1);
      expect(played!.turns.at(-1)).toMatchObject({ terminated: false, truncated: true });
    }
  });

  test("by its environment with a score: it is part of the total and of no turn", async () => {
    const scored = (more: object) => ({
      ...changed((step, _, turn) => async (action) => ({
        ...(await step(action)),
        ...{ reward: 0.125, terminated: false, truncated: turn === 1, score: turn === 1 ? 0.5 : 9, ...more },
      })),
      maxTurns: 4,
    });
    const [played] = await play({ model: writing(act("soap")), environment: scored({}), episodes: one });
    expect(played).toMatchObject({ outcome: "truncated", reward: 0.75 });
    expect(played!.turns.map(({ reward }) => reward)).toEqual([0.125, 0.125]);
    // With γ = 1 the first return is the episode's reward.
    expect(returnsFrom(played!, 1)).toEqual([0.75, 0.625]);
    const [bad] = await play({
      ...{ model: writing(act("soap")), environment: scored({ score: Number.NaN }), episodes: one },
    });
    expect(bad).toMatchObject({ outcome: "environment-fault", fault: { code: "ERR_ENVIRONMENT" } });
  });

  test("by the last of 20 Questions has terminated, even if that could not be parsed", async () => {
    const environment = twentyQuestions();
    const [task] = await environment.tasks("train");
    const ask = act("Is it blue?");
    const model = () => new ScriptedModel((prompt) => (prompt.split(ask).length < 20 ? ask : "?"));
    for (const [model_, outcome] of [
      [model(), "turn-limit"],
      [new ScriptedModel(() => ask), "done"],
    ] as const) {
      const [trajectory] = await collectTrajectories({
        ...{ model: model_, environment, episodes: [{ id: 0, task: task! }], seed: 0, temperature: 1 },
        ...{ maxActionTokens: 200, maxPromptTokens: 100_000 },
      });
      expect(trajectory).toMatchObject({ outcome, reward: 0 });
      expect(trajectory!.turns).toHaveLength(20);
      expect(trajectory!.turns.at(-1)).toMatchObject({ terminated: true, truncated: false });
    }
  });

  test("by the limit of a single-step task has terminated: there is no second answer", async () => {
    const environment = errandEnvironment({ turns: 1 });
    const { turnLimitEnds: _, ...silent } = environment;
    const [played] = await play({ model: writing(" "), environment: silent, episodes: one });
    expect(played!.outcome).toBe("turn-limit");
    expect(played!.turns.at(-1)).toMatchObject({ terminated: true, truncated: false });
  });

  test.each([
    [{ turnLimitEnds: true }, { terminated: true, reward: 0.5 }],
    [{ turnLimitEnds: false }, { terminated: false, reward: 0 }],
  ])(
    "by the limit of a defined environment has its score, though turns were unreadable: %o",
    async (limit, last) => {
      const find = actionText(callAction("find", { item: "pen" }, "I look."), "tool");
      for (const texts of [
        [find, "?"],
        ["?", find],
      ]) {
        let scored = 0;
        const score = ({ sent }: Desk) => {
          scored++;
          return sent.length + 0.5;
        };
        const environment = desk({ maxTurns: 2, score, ...limit });
        const [played] = await collectTrajectories({
          ...{
            model: writing(...texts),
            environment,
            episodes: [{ id: 0, task: (await environment.tasks("train"))[0]! }],
          },
          ...{ seed: 0, temperature: 1, maxActionTokens: 200, maxPromptTokens: 100_000 },
        });
        expect(played).toMatchObject({ outcome: "turn-limit", reward: 0.5 });
        expect(played!.turns.map(({ malformed }) => malformed !== undefined)).toEqual(
          texts.map((text) => text === "?"),
        );
        expect(played!.turns.map(({ reward }) => reward)).toEqual([0, last.reward]);
        expect(played!.turns.at(-1)).toMatchObject(last);
        expect(scored).toBe(1);
      }
    },
  );

  test("by the limit with a score that fails or is no number is a fault of its environment", async () => {
    for (const score of [
      () => 7,
      () => {
        throw new Error("no score");
      },
    ]) {
      const environment = desk({ maxTurns: 1, score });
      const [played] = await collectTrajectories({
        ...{
          model: writing("?"),
          environment,
          episodes: [{ id: 0, task: (await environment.tasks("train"))[0]! }],
        },
        ...{ seed: 0, temperature: 1, maxActionTokens: 200, maxPromptTokens: 100_000 },
      });
      expect(played).toMatchObject({ outcome: "environment-fault", fault: { code: "ERR_ENVIRONMENT" } });
    }
  });

  test("also before its first turn", async () => {
    const [played] = await play({ environment: costly([-9, 0]), episodes: one, maxPromptTokens: 1 });
    expect(played).toMatchObject({ outcome: "context-limit", turns: [], reward: -9 });
  });

  test("without possible losses, or after the largest loss, keeps its reward", async () => {
    const soap = () => writing(act("soap"));
    const [lost] = await play({ model: soap(), environment: costly([-4, 0]), episodes: one });
    expect(lost).toMatchObject({ outcome: "turn-limit", reward: -4 });
    const earning = changed((step) => async (action) => ({
      ...(await step(action)),
      reward: 0.2,
      terminated: false,
    }));
    for (const rewardRange of [undefined, [0, 1]] as const) {
      const environment = { ...earning, maxTurns: 2, ...(rewardRange && { rewardRange }) };
      const [kept] = await play({ model: soap(), environment, episodes: one });
      expect(kept).toMatchObject({ outcome: "turn-limit", reward: 0.4 });
    }
  });

  test.each([
    ["guessMyCity", guessMyCity({ turns: 6 }), "What is the climate like?"],
    ["twentyQuestions", twentyQuestions({ turns: 6, reward: "turns" }), "Is it alive?"],
  ] as const)("in %s is worth no more than asking in vain", async (_, game, question) => {
    const environment = game as Environment;
    const [task] = await environment.tasks("test");
    const reward = async (...texts: string[]) => {
      const episodes = [{ id: 0, task: task as Errand }];
      const [played] = await play({ model: writing(...texts), environment: environment as never, episodes });
      return played!.reward;
    };
    expect(await reward(act(question))).toBe(-6);
    expect(await reward("?")).toBe(-6);
    expect(await reward(act(question), "?")).toBe(-6);
    expect(await reward("?", act(question))).toBe(-6);
  });
});
