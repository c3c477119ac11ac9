import { describe, expect, test } from "vitest";
import { uniform } from "../../lib/base/random.ts";
import { type EpisodeFigures, figuresOf, summarize } from "../../lib/episodes/figures.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { type CollectOptions, collectTrajectories } from "../../lib/playing/collect.ts";
import { evaluate } from "../../lib/playing/evaluate.ts";
import { noopPlayer } from "../../lib/playing/noop-player.ts";
import { wilsonInterval } from "../../lib/statistics/intervals.ts";
import { passHatK } from "../../lib/statistics/pass-k.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { act, words } from "../support/errand-play.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

test("a task that is played more than once has different seeds, and counts as one task", async () => {
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

test("an evaluation draws other random numbers than training with the same seed", async () => {
  const seedsOf = async (run: (options: CollectOptions<Errand>) => Promise<unknown>) => {
    const model = new ScriptedModel(() => act("soap"));
    await run({
      ...{ model, environment: errandEnvironment({ turns: 2 }), seed: 1, concurrency: 3 },
      ...{ maxActionTokens: 50, maxPromptTokens: 1000, temperature: 1 },
      episodes: words.map((word, id) => ({ id, task: { word } })),
    });
    return model.calls.map(({ request }) => Number(request.seed));
  };
  const played = await seedsOf(collectTrajectories);
  const evaluated = await seedsOf(({ concurrency = 1, ...options }) =>
    evaluate({ ...options, concurrency, tasks: options.episodes.map(({ task }) => task) }),
  );
  expect(evaluated).toHaveLength(2 * words.length);
  expect(played).toHaveLength(2 * words.length);
  expect(new Set([...played, ...evaluated]).size).toBe(4 * words.length);
});

describe("an episode's statistics", () => {
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

  test("are the same for a played and a recorded episode", async () => {
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

  test("count tool calls, failed ones, and success without a reward of 1", async () => {
    // Each turn calls a tool; every second call fails; all but "map" succeed with half a reward.
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
              terminated: turn === 4,
              truncated: false,
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

    // A faulty episode says nothing of the policy, but its tokens count.
    const [one] = trajectories.map(figuresOf);
    const broken = { ...one!, outcome: "service-fault" as const, readable: 0, toolErrors: 4 };
    const { parseRate, toolCalls, toolErrors, tokens } = summarize([one!, broken]);
    expect({ parseRate, toolCalls, toolErrors }).toEqual({
      parseRate: 1,
      toolCalls: 4,
      toolErrors: { share: 0.5, perEpisode: 2 },
    });
    expect(tokens).toBe(2 * one!.tokens);

    // A server's episodes may each have a task of their own.
    const many = Array.from({ length: 200_000 }, (_, id) => ({ ...one!, id, task: String(id) }));
    expect(summarize(many, 2)).toMatchObject({ tasks: 200_000, passHatK: [] });
  });

  test("do not depend on which episodes were already played", async () => {
    // Sums of these rewards depend on their order.
    const environment = errandEnvironment();
    const start = environment.start;
    environment.start = async (task, settings) => {
      const episode = await start(task, settings);
      const reward = uniform(settings.seed, 0, 0) * 10 ** (9 * uniform(settings.seed, 1, 0));
      return { ...episode, step: async (action) => ({ ...(await episode.step(action)), reward }) };
    };
    const figures = async (played: readonly EpisodeFigures[]) => {
      const evaluation = await evaluate({ ...options, model: scripted(), environment, tasks, played });
      return { ...evaluation, trajectories: evaluation.trajectories.map(figuresOf) };
    };
    const { trajectories, ...whole } = await figures([]);
    const played = trajectories.slice(3).reverse();
    const { trajectories: rest, ...resumed } = await figures(played);
    expect(rest).toEqual(trajectories.slice(0, 3));
    expect(resumed).toEqual(whole);
    expect(summarize([...played, ...rest]).reward).not.toEqual(whole.reward);
  });

  test("of a stopped and resumed evaluation are those of an uninterrupted one", async () => {
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
    "plays in an environment of %s",
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
      const model = noopPlayer(environment);
      const tasks = [{ word: "key" }];
      const { success, trajectories, tokens } = await evaluate({ ...settings, model, environment, tasks });
      expect([success.estimate, tokens]).toEqual([0, 0]);
      expect(figuresOf(JSON.parse(JSON.stringify(toRecord(trajectories[0]!)))).tokens).toBe(0);
      expect(actions).toHaveLength(3);
      for (const action of actions) expect(action).toMatchObject(idle);
    },
  );

  test("is rejected in an environment without an idle action", () => {
    expect(() => noopPlayer(errandEnvironment())).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
  });
});
