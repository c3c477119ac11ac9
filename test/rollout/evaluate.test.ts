import { describe, expect, test } from "vitest";
import { derivedSeed, uniform } from "../../lib/random.ts";
import {
  evaluate,
  figuresOf,
  grouped,
  meanInterval,
  shareInterval,
  summarize,
  wilsonInterval,
} from "../../lib/rollout/evaluate.ts";
import { idlePlayer } from "../../lib/rollout/idle-player.ts";
import { passHatK } from "../../lib/rollout/pass-k.ts";
import type { Trajectory } from "../../lib/rollout/trajectory.ts";
import { toRecord } from "../../lib/run/episodes.ts";
import { errandEnvironment } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const single = (values: readonly number[]) => values.map((value) => [value]);
const ones = (count: number, of: number) => Array.from({ length: of }, (_, i) => (i < count ? 1 : 0));

describe("intervals over groups", () => {
  test("groups are what has the same key, in order", () => {
    expect(grouped([1, 2, 3, 4], ["a", "b", "a", "c"])).toEqual([[1, 3], [2], [4]]);
  });

  test("one value a group: Wilson's interval, and Student's standard error", () => {
    for (const [count, of] of [
      [0, 7],
      [3, 7],
      [7, 7],
      [1, 1],
    ] as const) {
      const { estimate, low, high } = shareInterval(single(ones(count, of)));
      const wilson = wilsonInterval(count / of, of);
      expect(estimate).toBe(count / of);
      expect(low).toBeCloseTo(wilson.low, 12);
      expect(high).toBeCloseTo(wilson.high, 12);
    }
    // 2, 4, 4, 4, 5, 5, 7, 9: mean 5, squares 32, so the variance of the mean is 32 / 7 / 8.
    const { estimate, low, high } = meanInterval(single([2, 4, 4, 4, 5, 5, 7, 9]));
    expect(estimate).toBe(5);
    expect(high - low).toBeCloseTo(2 * 1.959964 * Math.sqrt(32 / 56), 12);
  });

  test("repeats that all end alike tell no more than one of them", () => {
    const repeated = ones(3, 10).map((value) => [value, value, value, value]);
    const { low, high } = shareInterval(repeated);
    const wilson = wilsonInterval(0.3, 10);
    expect(low).toBeCloseTo(wilson.low, 12);
    expect(high).toBeCloseTo(wilson.high, 12);
    expect(shareInterval([ones(0, 8), ones(0, 8)])).toEqual(wilsonInterval(0, 2));
    expect(shareInterval([ones(4, 8)])).toEqual(wilsonInterval(0.5, 1));
  });

  test("groups of one size: the interval of their means", () => {
    const groups = [
      [1, 4, 1],
      [5, 9, 2],
      [6, 5, 3],
    ];
    const ofMeans = meanInterval(single([2, 16 / 3, 14 / 3]));
    const { estimate, low, high } = meanInterval(groups);
    expect(estimate).toBeCloseTo(ofMeans.estimate, 12);
    expect(low).toBeCloseTo(ofMeans.low, 12);
    expect(high).toBeCloseTo(ofMeans.high, 12);
  });

  test("nothing and a single group have no interval of a mean", () => {
    expect(meanInterval([])).toEqual({ estimate: Number.NaN, low: Number.NaN, high: Number.NaN });
    expect(meanInterval([[1, 2]])).toEqual({ estimate: 1.5, low: Number.NaN, high: Number.NaN });
    expect(shareInterval([])).toEqual({ estimate: Number.NaN, low: 0, high: 1 });
  });

  test("95 % of the intervals cover the truth, where trials of a task go together; one a trial would not", () => {
    // Half of the tasks are solved in 9 of 10 trials, half in 1 of 10: the truth is 0.5.
    const covers = ({ low, high }: { low: number; high: number }) => (low <= 0.5 && 0.5 <= high ? 1 : 0);
    const experiments = 1000;
    let [share, mean, naive] = [0, 0, 0];
    for (let i = 0; i < experiments; i++) {
      const seed = derivedSeed(11, 1, i);
      const groups = Array.from({ length: 40 }, (_, task) => {
        const p = uniform(seed, 2, task) < 0.5 ? 0.9 : 0.1;
        // Some trials are lost to faults, so groups differ in size.
        const trials = 4 + Math.floor(uniform(seed, 3, task) * 5);
        return Array.from({ length: trials }, (_, j) => (uniform(seed, 4, task * 10 + j) < p ? 1 : 0));
      });
      share += covers(shareInterval(groups));
      mean += covers(meanInterval(groups));
      naive += covers(shareInterval(single(groups.flat())));
    }
    expect(share / experiments).toBeGreaterThan(0.93);
    expect(share / experiments).toBeLessThan(0.97);
    expect(mean / experiments).toBeGreaterThan(0.92);
    expect(mean / experiments).toBeLessThan(0.97);
    expect(naive / experiments).toBeLessThan(0.75);
  });
});

test("a task that is played more than once has other seeds, and counts as one task", async () => {
  // The key is brought once the desk has asked for it, the lamp never.
  const seeds = new Set<unknown>();
  const model = new ScriptedModel((prompt, _weights, _i, { seed }) => {
    seeds.add(seed);
    return `Thought:\nhm\nAction:\n${prompt.includes("wants key") ? "key" : "soap"}`;
  });
  const options = {
    model,
    environment: errandEnvironment({ turns: 2 }),
    seed: 1,
    concurrency: 3,
    maxActionTokens: 50,
    maxPromptTokens: 1000,
    temperature: 1,
  };
  const tasks = ["key", "lamp", "key", "lamp"].map((word) => ({ word }));
  const repeated = await evaluate({ ...options, tasks });
  expect(repeated).toMatchObject({ episodes: 4, tasks: 2 });
  expect(repeated.success).toEqual(wilsonInterval(0.5, 2));
  expect(new Set(repeated.trajectories.map(({ seed }) => seed)).size).toBe(4);
  expect(seeds.size).toBe(8);
  const once = await evaluate({ ...options, tasks: tasks.slice(0, 2) });
  expect(once).toMatchObject({ episodes: 2, tasks: 2, success: repeated.success });
});

describe("what figures are made of", () => {
  const options = {
    seed: 1,
    concurrency: 2,
    maxActionTokens: 50,
    maxPromptTokens: 1000,
    temperature: 1,
  };
  const tasks = ["key", "lamp", "map", "key", "lamp", "map"].map((word) => ({ word }));
  const scripted = () =>
    new ScriptedModel((prompt, _weights, _i, { seed }) => {
      const asked = /wants (\w+)/.exec(prompt)?.[1] ?? "soap";
      return uniform(Number(seed), 0, 0) < 0.6 ? `Thought:\nhm\nAction:\n${asked}` : "soap!";
    });

  test("is the same of an episode as it was played and as it was recorded", async () => {
    const { trajectories } = await evaluate({
      ...options,
      model: scripted(),
      environment: errandEnvironment(),
      tasks,
    });
    for (const trajectory of trajectories) {
      const figures = figuresOf(trajectory);
      expect(figuresOf(JSON.parse(JSON.stringify(toRecord(trajectory))))).toEqual(figures);
      expect(figures.tokens).toBe(trajectory.turns.reduce((sum, turn) => sum + turn.tokens.length, 0));
      expect(figures.success).toBe(trajectory.reward === 1);
    }
  });

  test("calls of tools, those that failed, and success that is not a reward of 1", async () => {
    // Each turn calls a tool; every second call fails; all but "map" end well, with half a reward.
    const environment = {
      ...errandEnvironment(),
      actionFormat: "tool" as const,
      start: async ({ word }: { word: string }) => {
        let turn = 0;
        return {
          observation: { messages: [{ role: "user" as const, content: "Begin." }] },
          step: async () => {
            turn++;
            return {
              observation: [{ role: "user" as const, content: "Go on." }],
              reward: turn === 4 ? 0.5 : 0,
              done: turn === 4,
              info: { toolError: turn % 2 === 0, ...(turn === 4 ? { success: word !== "map" } : {}) },
            };
          },
          close: async () => undefined,
        };
      },
      maxTurns: 4,
    };
    const call = 'Thought:\nhm\nAction:\n{"name": "fetch", "arguments": {}}';
    const model = new ScriptedModel(() => call);
    const { trajectories, ...figures } = await evaluate({ ...options, model, environment, tasks, trials: 2 });
    expect(figures).toMatchObject({
      success: { estimate: 2 / 3 },
      reward: { estimate: 0.5 },
      toolCalls: 24,
      toolErrors: { share: 0.5, perEpisode: 2 },
      tokens: 24 * (model.encode(call).length + 1),
    });
    const tried = [
      { successes: 2, trials: 2 },
      { successes: 2, trials: 2 },
      { successes: 0, trials: 2 },
    ];
    expect(figures.passHatK).toEqual([passHatK(tried, 1), passHatK(tried, 2)]);
    expect(summarize(trajectories.map(figuresOf)).passHatK).toEqual([]);
  });

  test("of an evaluation that was stopped and goes on they are those of one that was not", async () => {
    const environment = errandEnvironment();
    const whole = await evaluate({ ...options, model: scripted(), environment, tasks, trials: 2 });
    const controller = new AbortController();
    const kept: Trajectory[] = [];
    const stopped = evaluate({
      ...{ ...options, model: scripted(), environment, tasks, trials: 2, signal: controller.signal },
      onEpisode: (trajectory) => {
        if (kept.push(trajectory) === 2) controller.abort();
      },
    });
    await expect(stopped).rejects.toMatchObject({ code: "ERR_ABORTED" });
    const played = kept.map(figuresOf);
    expect(played.length).toBeLessThan(tasks.length);
    const shown: number[] = [];
    const rest = await evaluate({
      ...{ ...options, model: scripted(), environment, tasks, trials: 2, played },
      onProgress: (finished) => shown.push(finished),
    });
    const { trajectories, ...figures } = rest;
    expect({ ...figures, trajectories: [] }).toEqual({ ...whole, trajectories: [] });
    expect(trajectories).toHaveLength(tasks.length - played.length);
    expect([Math.min(...shown) >= played.length, shown.at(-1)]).toEqual([true, tasks.length]);

    for (const changed of [{ seed: 2 }, { tasks: tasks.toReversed() }, { tasks: tasks.slice(0, 1) }]) {
      const other = evaluate({ ...options, model: scripted(), environment, tasks, played, ...changed });
      await expect(other).rejects.toMatchObject({ code: "ERR_CONFIG" });
    }
  });
});

describe("the agent that does nothing", () => {
  const settings = { seed: 1, concurrency: 2, maxActionTokens: 50, maxPromptTokens: 10_000, temperature: 0 };
  const watched = (environment: ReturnType<typeof errandEnvironment>) => {
    const actions: unknown[] = [];
    const start = environment.start;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      const step = async (action: Parameters<typeof episode.step>[0]) => {
        actions.push(action);
        return episode.step(action);
      };
      return { ...episode, step };
    };
    return actions;
  };

  test.each(["text", "solution", "tool", "call"] as const)(
    "does so in an environment of %s",
    async (format) => {
      const idle =
        format === "tool" || format === "call"
          ? {
              text: '{"name": "wait", "arguments": {"minutes": 1.0}}',
              tool: { name: "wait", arguments: { minutes: 1 } },
            }
          : { text: "nothing" };
      const environment = { ...errandEnvironment(), actionFormat: format, idle };
      const actions = watched(environment);
      const model = idlePlayer(environment);
      const tasks = [{ word: "key" }];
      const { success, trajectories, tokens } = await evaluate({ ...settings, model, environment, tasks });
      expect([success.estimate, tokens]).toEqual([0, 0]);
      expect(figuresOf(JSON.parse(JSON.stringify(toRecord(trajectories[0]!)))).tokens).toBe(0);
      expect(actions).toHaveLength(3);
      for (const action of actions) expect(action).toMatchObject(idle);
    },
  );

  test("is refused where nobody says what that is", () => {
    expect(() => idlePlayer(errandEnvironment())).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
  });
});
