import { describe, expect, test } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { memoryRun, newCounters } from "../../lib/run/training-run.ts";
import { deviation } from "../../lib/statistics/mean.ts";
import {
  collectEpisodes,
  completionMetrics,
  episodesFrom,
  minibatch,
  stepsOf,
  updatesPerRound,
} from "../../lib/training/rounds.ts";
import { errandEnvironment, play } from "../support/errand.ts";
import { act } from "../support/roles.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";

const model = new ScriptedModel(() => "");

describe("an iteration's episodes", () => {
  const config = {
    episodesPerIteration: 6,
    actionTemperature: 1,
    maxActionTokens: 100,
    maxPromptTokens: 10_000,
    constrainActions: false,
    seed: 4,
  };
  const collect = async (first: number, perTask?: number) => {
    const run = memoryRun();
    const environment = errandEnvironment();
    const tasks = await environment.tasks("train");
    const scripted = new ScriptedModel(() => act("soap"));
    const trajectories = await collectEpisodes(
      { model: scripted, environment, tasks, config, run },
      first,
      perTask,
    );
    expect(run.trajectories).toEqual(trajectories);
    return trajectories;
  };

  test("play every task once before any repeats", async () => {
    const trajectories = await collect(6);
    expect(trajectories.map(({ id }) => id)).toEqual([6, 7, 8, 9, 10, 11]);
    const names = trajectories.map(({ task }) => task);
    expect(new Set(names.slice(0, 3)).size).toBe(3);
    expect(new Set(names.slice(3)).size).toBe(3);
    expect(stepsOf(trajectories)).toBe(18);
  });

  test("in groups, play a task several times in a row, with different seeds", async () => {
    const trajectories = await collect(0, 3);
    const names = trajectories.map(({ task }) => task);
    expect(new Set(names.slice(0, 3)).size).toBe(1);
    expect(new Set(names.slice(3)).size).toBe(1);
    expect(names[0]).not.toBe(names[3]);
    expect(new Set(trajectories.map(({ seed }) => seed)).size).toBe(6);
  });

  test.each([
    ["these did", 0, Number.POSITIVE_INFINITY, "ERR_SERVICE"],
    ["all but one did", 0, 5, undefined],
    ["later ones did", 6, Number.POSITIVE_INFINITY, undefined],
  ])("end the run only if all of the first ones failed: %s", async (_, first, failures, code) => {
    const environment = errandEnvironment();
    const { start } = environment;
    let started = 0;
    environment.start = (task, options) =>
      started++ < failures ? Promise.reject(new NlacError("ERR_SERVICE", "busy")) : start(task, options);
    const run = memoryRun();
    const tasks = await environment.tasks("train");
    const scripted = new ScriptedModel(() => act("soap"));
    const collected = collectEpisodes({ model: scripted, environment, tasks, config, run }, first);
    if (code === undefined) return expect(await collected).toHaveLength(6);
    await expect(collected).rejects.toMatchObject({
      code,
      message: expect.stringMatching(/^All 6 episodes of the first iteration failed.+: busy$/),
    });
    expect(run.trajectories).toEqual([]);
  });

  test("end the run if no first prompt fits", async () => {
    const environment = errandEnvironment();
    const tasks = await environment.tasks("train");
    const collect = (maxPromptTokens: number, first: number) =>
      collectEpisodes(
        {
          ...{ environment, tasks, model: new ScriptedModel(() => act("soap")), run: memoryRun() },
          config: { ...config, maxPromptTokens },
        },
        first,
      );
    await expect(collect(3, 0)).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringMatching(/first prompts have more than 3 tokens, .+ config\.maxPromptTokens/),
    });
    expect(await collect(3, 6)).toHaveLength(6); // later iterations have something to train on
    const fitting = await collect(10_000, 0);
    const longest = Math.min(...fitting.map(({ turns }) => turns[0]!.state.prompt().length));
    const cut = await collect(longest, 0);
    expect(cut.map(({ turns }) => turns.length)).toContain(1);
  });

  test("are the last of the run when it is resumed", async () => {
    const all = [...(await collect(0)), ...(await collect(6))];
    expect((await episodesFrom(all, 6)).map(({ id }) => id)).toEqual([6, 7, 8, 9, 10, 11]);
  });
});

test("minibatches: every epoch visits each episode once, in its own order", () => {
  const config = { episodesPerIteration: 10, epochs: 3, batchSize: 4, seed: 5 };
  expect(updatesPerRound(config)).toBe(9);
  const round = (iteration: number, episodes: number) =>
    Array.from({ length: 9 }, (_, updatesDone) =>
      minibatch(config, { ...newCounters(), iteration, updatesDone }, episodes),
    );
  const batches = round(1, 10);
  expect(batches.map(({ length }) => length)).toEqual([4, 4, 2, 4, 4, 2, 4, 4, 2]);
  const epochs = [0, 3, 6].map((from) => batches.slice(from, from + 3).flat());
  for (const order of epochs)
    expect([...order].sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  expect(new Set([...epochs, round(2, 10).slice(0, 3).flat()].map(String)).size).toBe(4);
  // With four episodes lost to faults, the last batch of each epoch is empty.
  expect(round(0, 6).map(({ length }) => length)).toEqual([4, 2, 0, 4, 2, 0, 4, 2, 0]);
});

test("metrics of completions", async () => {
  const whole = await play(() => act("key"));
  const cut = await play(() => `${act("lamp")}…`);
  const metrics = completionMetrics([...whole, ...cut], model);
  const own = (text: string) => model.encode(text).length;
  expect(metrics).toMatchObject({
    reward: 0.5,
    "completions/mean_length": (own(act("key")) + 1 + 3 * own(act("lamp"))) / 2,
    "completions/clipped_ratio": 3 / 4,
  });
  expect(metrics.reward_std).toBeCloseTo(Math.SQRT1_2, 12);
  // An episode that failed, here before its first turn, is not trained on.
  const failed = { ...whole[0]!, outcome: "environment-fault" as const, turns: [] };
  expect(completionMetrics([...whole, ...cut, failed], model)).toEqual(metrics);
  // A model may end its turns with any of several ids.
  const other = model.encode("p").at(-1)!; // lamp's
  expect(completionMetrics([...whole, ...cut], { endOfTurnIds: [other, endOfTurn] })).toMatchObject({
    "completions/clipped_ratio": 0,
  });
});

test("the standard deviation of a sample", () => {
  expect(deviation([2, 4, 4, 4, 5, 5, 7, 9])).toBeCloseTo(Math.sqrt(32 / 7), 12);
  expect(deviation([3])).toBeNaN();
});
