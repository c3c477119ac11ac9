import { describe, expect, test } from "vitest";
import { type RftConfigInput, rftConfig, trainRft } from "../../lib/algorithms/rft.ts";
import type { Action, Message } from "../../lib/contract/environment.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { succeeded } from "../../lib/episodes/trajectory.ts";
import { parseAction } from "../../lib/prompts/policy.ts";
import { type Checkpoint, memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const small: RftConfigInput = {
  iterations: 1,
  episodesPerIteration: 12,
  updatesPerIteration: 2,
  batchSize: 16,
  learningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  seed: 3,
};

async function train(
  config: RftConfigInput = {},
  environment = errandEnvironment({ turns: 2 }),
  model = new ScriptedPolicy(luckyReply(() => 0.5)),
) {
  const run = memoryRun();
  const result = await trainRft({ model, environment, config: { ...small, ...config }, run });
  const texts = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
  const rounds = run.rows.filter(({ values }) => "buffer/kept" in values).map(({ values }) => values);
  const updates = run.rows.filter(({ values }) => "loss/nll" in values).map(({ values }) => values);
  return { model, run, result, texts, rounds, updates };
}

test("defaults are the paper's, and unknown keys are errors", async () => {
  expect(rftConfig.parse({})).toMatchObject({
    iterations: 30,
    updatesPerIteration: 1024,
    batchSize: 1, // docs/decisions/0016
    balance: "actions",
    learningRate: 5e-6,
  });
  await expect(train({ targetRate: 0.1 } as never)).rejects.toThrow(/targetRate/);
  await expect(train({ imitate: "hindsight", successReward: 1 })).rejects.toThrow(/successReward/);
});

test("restart begins each iteration's updates at the initial weights, with the buffer so far", async () => {
  const model = new ScriptedPolicy(luckyReply(() => 0.5));
  const initial = model.theta;
  const thetas: number[] = [];
  const { step } = model;
  model.step = async (options) => {
    thetas.push(model.theta);
    const result = await step.call(model, options);
    model.theta += 1;
    return result;
  };
  const { rounds } = await train({ iterations: 3, restart: true }, undefined, model);
  expect(thetas).toHaveLength(6);
  for (const [i, theta] of thetas.entries()) {
    if (i % 2 === 0) expect(theta).toBe(initial);
    else expect(theta).not.toBe(initial);
  }
  expect(rounds[2]!["buffer/actions"]).toBeGreaterThan(rounds[0]!["buffer/actions"]!);
  const plain = Object.assign(new ScriptedPolicy(luckyReply(() => 0.5)), { restoreReference: undefined });
  await expect(train({ restart: true }, undefined, plain as never)).rejects.toMatchObject({
    code: "ERR_CONFIG",
  });
});

test("restart does not go back within an iteration that is resumed", async () => {
  const states: Record<string, unknown>[] = [];
  const begun = {
    ...memoryRun(),
    checkpoint: async ({ state }: Checkpoint) => void states.push(structuredClone(state)),
  };
  const environment = errandEnvironment({ turns: 2 });
  const config = { ...small, restart: true };
  await trainRft({ model: new ScriptedPolicy(luckyReply(() => 0.5)), environment, config, run: begun });
  const state = states.find(({ updatesDone }) => updatesDone === 1)!;
  const saved = { state, trajectories: begun.trajectories, replay: "" };
  const model = new ScriptedPolicy(luckyReply(() => 0.5));
  model.reference = 0;
  model.theta = 3; // after the first update
  const before: number[] = [];
  model.before = (operation) => {
    if (operation === "step") before.push(model.theta);
  };
  await trainRft({ model, environment, config, run: { ...memoryRun(), restore: async () => saved } });
  expect(before).toEqual([3]);
});

test("restart begins the schedule again too: every iteration is a training of its own", async () => {
  const { updates } = await train({
    iterations: 3,
    updatesPerIteration: 4,
    restart: true,
    schedule: { shape: "linear", warmupSteps: 2 },
  });
  expect(updates.map(({ learning_rate: rate }) => rate)).toEqual(
    [0, 1, 2].flatMap(() => [0.5, 0.75, 0.5, 0.25]),
  );
});

test("progress goes on in iterations without a success, which have no updates", async () => {
  const shares: number[] = [];
  const progress = { ...silentProgress, overall: (share: number) => void shares.push(share) };
  const run = Object.assign(memoryRun(), { progress });
  const model = new ScriptedPolicy(luckyReply(() => 0));
  const environment = errandEnvironment({ turns: 2 });
  const result = await trainRft({ model, environment, config: { ...small, iterations: 4 }, run });
  expect(result.updates).toBe(0);
  expect([...new Set(shares)]).toEqual([0, 0.25, 0.5, 0.75, 1]);
});

describe("the buffer", () => {
  test("holds only the actions of successful episodes, each trained on after its own state", async () => {
    const { texts, run, rounds } = await train({ batchSize: 200 });
    const solved = run.trajectories.filter(({ reward }) => reward === 1);
    expect(solved.length).toBeGreaterThan(2);
    expect(solved.length).toBeLessThan(12);
    const expected = solved.flatMap(({ turns }) =>
      turns.map(({ state, tokens }) => String([...state.prompt(), ...tokens])),
    );
    const trained = texts.map(({ prompt, response }) => String([...prompt, ...response]));
    expect(new Set(trained)).toEqual(new Set(expected));
    expect(rounds[0]).toMatchObject({
      "buffer/kept": solved.length,
      "buffer/actions": 2 * solved.length,
      "buffer/tasks": new Set(solved.map(({ task }) => task)).size,
      environment_steps: 24,
    });
  });

  test("in hindsight: for every action that an observation judges, the action that should have been taken", async () => {
    const environment = {
      ...errandEnvironment({ turns: 2 }),
      // The desk's answer to a wrong word names the right one; after the second action it is
      // silent.
      hindsight: (action: Action, observation: readonly Message[]) => {
        const wanted = /wants (?:the )?(\w+)/.exec(observation[0]?.content ?? "")?.[1];
        return wanted === undefined ? undefined : { ...action, text: wanted };
      },
    };
    const { texts, run, rounds, model } = await train({ batchSize: 300, imitate: "hindsight" }, environment);
    const turns = run.trajectories.flatMap((trajectory) => trajectory.turns);
    const told = turns.flatMap((turn) => {
      const better = environment.hindsight(turn.action!, turn.observation);
      return better === undefined ? [] : [{ turn, better }];
    });
    expect(told.length).toBeGreaterThan(4);
    expect(rounds[0]).toMatchObject({
      "buffer/kept": run.trajectories.length,
      "buffer/actions": told.length,
    });
    for (const { prompt, response } of texts) {
      const action = parseAction(model.decode(response.slice(0, -1)), "text");
      const from = told.filter(({ turn }) => String(turn.state.prompt()) === String(prompt));
      expect(from.length).toBeGreaterThan(0);
      expect(from.map(({ better }) => better.text)).toContain(action.ok && action.action.text);
      expect(response.at(-1)).toBe(model.endOfTurn);
    }
    // An action that does not fit after its state is left out.
    const long = { ...environment, hindsight: () => ({ text: "x".repeat(model.maxPositions) }) };
    const none = await train({ batchSize: 300, imitate: "hindsight" }, long);
    expect(none.rounds[0]).toMatchObject({ "buffer/actions": 0 });
    await expect(train({ imitate: "hindsight" })).rejects.toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining("hindsight") }),
    );
  });

  test("in hindsight of the whole episode: all later observations are read", async () => {
    const read: number[][] = [];
    const environment = {
      ...errandEnvironment({ turns: 3 }),
      hindsight: (
        action: Action,
        observation: readonly Message[],
        later: readonly (readonly Message[])[],
      ) => {
        read.push([observation.length, later.length]);
        return action;
      },
    };
    const { run } = await train({ imitate: "hindsight-episode" }, environment);
    expect(read).toEqual(
      run.trajectories.flatMap(({ turns }) => turns.map((_, i) => [1, turns.length - 1 - i])),
    );
    read.length = 0;
    await train({ imitate: "hindsight" }, environment);
    expect(new Set(read.map(([, later]) => later))).toEqual(new Set([0]));
  });

  test("rehearsed examples are added to every step on request", async () => {
    const environment = twentyQuestions({ turns: 3 });
    const config = { rehearsal: 6, successReward: -100, batchSize: 4 };
    const { texts, updates } = await train(config, environment as never);
    expect(updates).toHaveLength(2);
    expect(texts).toHaveLength(2 * (4 + 6));
    for (const values of updates) {
      expect(values["loss/rehearsal"]).toBeGreaterThan(0);
      expect(values["tokens/gradient"]).toBe(values["tokens/nll"]! + values["tokens/rehearsal"]!);
    }
  });

  test("an unreadable action of a successful episode is not imitated", async () => {
    const model = new ScriptedPolicy((prompt) =>
      prompt.includes("OBSERVED") || prompt.includes("could not be read")
        ? luckyReply(() => 1)(prompt, undefined, 0, { seed: 1 })
        : "no form at all",
    );
    const { texts, run } = await train({ batchSize: 100, successReward: 0 }, undefined, model);
    const turns = run.trajectories.flatMap((trajectory) => trajectory.turns);
    expect(turns.some(({ action }) => action === undefined)).toBe(true);
    expect(texts.length).toBeGreaterThan(0);
    for (const { response } of texts) expect(model.decode(response)).not.toContain("no form at all");
  });

  test("the environment may define success", async () => {
    const plain = errandEnvironment({ turns: 2 });
    const costly: typeof plain = {
      ...plain,
      rewardRange: [-2, 0],
      start: async (...asked) => {
        const episode = await plain.start(...asked);
        return {
          ...episode,
          step: async (action) => {
            const { reward, ...result } = await episode.step(action);
            return { ...result, reward: reward - 1, info: { success: reward === 1 } };
          },
        };
      },
    };
    const { run, rounds } = await train({ batchSize: 100 }, costly);
    const solved = run.trajectories.filter(({ turns }) => turns.at(-1)!.info.success);
    expect(run.trajectories.every(({ reward }) => reward < 0)).toBe(true);
    expect(solved.length).toBeGreaterThan(2);
    expect(rounds[0]!["buffer/kept"]).toBe(solved.length);
  });

  test("successReward sets the threshold", async () => {
    const { run, rounds } = await train({ successReward: 0 });
    expect(rounds[0]!["buffer/kept"]).toBe(run.trajectories.length);
  });

  test("takes no steps until an episode succeeds", async () => {
    const { model, result, run } = await train(
      { iterations: 2 },
      undefined,
      new ScriptedPolicy(luckyReply(() => 0)),
    );
    expect(result).toEqual({ updates: 0, episodes: 24, environmentSteps: 48, stopped: false });
    expect(model.events).toEqual([]);
    expect(run.rows.map(({ values }) => values["rollout/success"])).toEqual([0, 0]);
  });

  test("a fault is not a success, even after rewards", async () => {
    const environment = errandEnvironment({ turns: 2 });
    const start = environment.start;
    let started = 0;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      if (++started === 1) return episode;
      let steps = 0;
      const step = async () =>
        steps++ === 0
          ? {
              observation: [{ role: "user" as const, content: "more" }],
              reward: 1,
              terminated: false,
              truncated: false,
              info: {},
            }
          : Promise.reject(new Error("closed"));
      return { ...episode, step };
    };
    const { run, rounds } = await train({}, environment);
    const [whole, ...faulty] = run.trajectories;
    expect(faulty.every(({ reward }) => reward === 1)).toBe(true);
    expect(rounds[0]!["buffer/kept"]).toBe(Number(succeeded(whole!)));
  });

  test.each(["actions", "tasks"] as const)(
    "stores only the newest actions within its capacity, balanced over %s",
    async (balance) => {
      const { run, texts, rounds } = await train({ capacity: 3, batchSize: 200, balance });
      const newest = run.trajectories
        .filter(({ reward }) => reward === 1)
        .flatMap(({ task, turns }) => turns.map((turn) => ({ task, ...turn })))
        .slice(-3);
      expect(rounds[0]!["buffer/actions"]).toBe(3);
      expect(rounds[0]!["buffer/tasks"]).toBe(new Set(newest.map(({ task }) => task)).size);
      expect(new Set(texts.map(({ prompt, response }) => String([...prompt, ...response])))).toEqual(
        new Set(newest.map(({ state, tokens }) => String([...state.prompt(), ...tokens]))),
      );
    },
  );

  test("balanced over tasks, a rarely solved task is drawn as often as one that is always solved", async () => {
    // The key always succeeds, the lamp once, the map never.
    let lamps = 0;
    const reply = (prompt: string) => {
      const asked = /OBSERVED wants (\w+)/.exec(prompt)?.[1];
      const right = asked === "key" || (asked === "lamp" && lamps++ === 0);
      return `Thought:\nhm\nAction:\n${right ? asked : "soap"}`;
    };
    const share = async (balance: "actions" | "tasks") => {
      lamps = 0;
      const { texts } = await train({ balance, batchSize: 400 }, undefined, new ScriptedPolicy(reply));
      const last = texts.flatMap(
        ({ prompt }) => /OBSERVED wants (\w+)/.exec(reader.decode(prompt))?.[1] ?? [],
      );
      return last.filter((task) => task === "lamp").length / last.length;
    };
    const reader = new ScriptedPolicy(() => "");
    expect(await share("tasks")).toBeCloseTo(1 / 2, 1);
    expect(await share("actions")).toBeCloseTo(1 / 5, 1);
  });

  test("grows from iteration to iteration", async () => {
    const { rounds } = await train({ iterations: 3 });
    const kept = rounds.map((values) => values["buffer/kept"]!);
    expect(rounds.map((values) => values["buffer/actions"])).toEqual(
      kept.map((_, i) => 2 * kept.slice(0, i + 1).reduce((a, b) => a + b, 0)),
    );
  });
});

describe("a step", () => {
  test("the loss is averaged over the tokens of an action and then over the batch", async () => {
    const { texts, updates, model } = await train({ updatesPerIteration: 1 });
    expect(texts).toHaveLength(16);
    for (const { response, weight } of texts) expect(weight).toBeCloseTo(1 / (response.length * 16), 12);
    const nll = texts.map(
      ({ response }) => response.reduce((sum, id) => sum - model.logProb(id, 0), 0) / response.length,
    );
    expect(updates[0]!["loss/nll"]).toBeCloseTo(nll.reduce((a, b) => a + b, 0) / 16, 6);
    expect(updates[0]).toMatchObject({ learning_rate: 1, skipped: 0 });
    expect(updates[0]!["tokens/nll"]).toBe(texts.reduce((sum, { response }) => sum + response.length, 0));
  });

  test("makes successful actions more likely", async () => {
    const { updates } = await train({ updatesPerIteration: 30, learningRate: 20 });
    expect(updates.at(-1)!["loss/nll"]!).toBeLessThan(updates[0]!["loss/nll"]!);
  });

  test("the learning rate follows the schedule over all steps of the run, even if iterations had none", async () => {
    // Nothing succeeds in the first of three iterations.
    let solving = false;
    const model = new ScriptedPolicy(luckyReply(() => (solving ? 1 : 0)));
    const environment = errandEnvironment({ turns: 2 });
    const start = environment.start;
    let episodes = 0;
    environment.start = (task, options) => {
      solving = episodes++ >= 12;
      return start(task, options);
    };
    const { updates } = await train({ iterations: 3, schedule: { shape: "linear" } }, environment, model);
    expect(updates.map(({ learning_rate }) => learning_rate)).toEqual(
      [2, 3, 4, 5].map((step) => 1 - step / 6),
    );
  });

  test("too many consecutive skipped steps stop the run", async () => {
    const model = new ScriptedPolicy(luckyReply(() => 1));
    model.skip = () => true;
    await expect(
      train({ updatesPerIteration: 9, maxSkippedSteps: 4 }, undefined, model),
    ).rejects.toMatchObject({ code: "ERR_NOT_FINITE" });
  });

  test("its samples are actions, with the places of their states", async () => {
    const { run } = await train({ updatesPerIteration: 1 });
    expect(run.samples).toHaveLength(4);
    for (const { texts, facts, turn } of run.samples) {
      expect(Object.keys(texts)).toEqual(["action"]);
      expect([0, 1]).toContain(turn);
      expect(facts.nll).toBeGreaterThan(0);
    }
  });
});
