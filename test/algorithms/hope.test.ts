import { describe, expect, test, vi } from "vitest";
import { type HopeConfigInput, hopeConfig, trainHope } from "../../lib/algorithms/hope.ts";
import { uniform } from "../../lib/base/random.ts";
import { type Environment, type Message, nothingUsed } from "../../lib/contract/environment.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { mean } from "../../lib/statistics/mean.ts";
import { branchPlaces, branchTurns } from "../../lib/training/branch-places.ts";
import { hopeState } from "../../lib/training/hope-config.ts";
import { returnsFrom } from "../../lib/training/returns.ts";
import { countActions, type Errand, errandEnvironment } from "../support/errand.ts";
import { ScriptedJudge, ScriptedPreferences } from "../support/scripted-preferences.ts";

const small: HopeConfigInput = {
  iterations: 1,
  episodesPerTask: 4,
  branchedEpisodes: 2,
  branchRange: { turns: [0, 0] },
  rewardBatchSize: 8,
  rewardLearningRate: 1,
  batchSize: 4,
  learningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 100_000,
  maxTokens: 100_000,
  maxProposalTokens: 2000,
  seed: 3,
};

const heldOut = (values: Record<string, number>) =>
  Object.fromEntries(Object.entries(values).filter(([name]) => name.startsWith("held_out/")));
const isSummary = (prompt: string) => prompt.includes("You review what an agent did");
const isProposal = (prompt: string) => prompt.includes("You teach an agent");

/** A desk that tells what it wants to the summarizer only. */
function silentDesk(turns = 3): Environment<Errand> {
  const plain = errandEnvironment({ turns });
  return {
    ...plain,
    start: async (task, options) => {
      const episode = await plain.start(task, options);
      let right = false;
      return {
        ...episode,
        step: async (action) => {
          const result = await episode.step(action);
          right ||= result.reward === 1;
          const content = right ? "OBSERVED thanks" : "OBSERVED no";
          return { ...result, observation: [{ role: "user" as const, content }] };
        },
        privileged: () => ({
          secret: task.word,
          ...(right ? {} : { failureReason: "It was never brought." }),
        }),
      };
    },
  };
}

/** Says a random thing, and as proposer what `propose` says to the summary's secret. */
function replies(propose: (secret: string) => unknown = () => [], words = ["soap", "rope", "tape"]) {
  return (prompt: string, _weights: unknown, _i: number, request: { seed?: number | bigint }): string => {
    if (isSummary(prompt)) {
      const secret = /# The secret\n(\w+)/.exec(prompt)![1]!;
      return `It never brought the ${secret}.`;
    }
    if (isProposal(prompt)) {
      const secret = /It never brought the (\w+)/.exec(prompt)![1]!;
      return JSON.stringify(propose(secret));
    }
    const word = words[Math.floor(uniform(Number(request.seed), 0, 1) * words.length)]!;
    return `Thought:\nhm\nAction:\n${word}`;
  };
}

const proposed = (action: string, player_reason = "One more thing.") => ({
  ...{ teacher_reason: "I know it.", action, player_reason },
});

async function train(
  config: HopeConfigInput = {},
  options: {
    model?: ScriptedPreferences;
    environment?: Environment<never> | Environment<Errand>;
    judge?: ScriptedJudge;
  } = {},
) {
  const model =
    options.model ??
    new ScriptedPreferences(
      replies(() => [proposed("a cup"), proposed("a bell")], ["soap", "key", "lamp", "map"]),
    );
  const judge =
    options.judge ??
    new ScriptedJudge((response) => (Buffer.from(response).reduce((a, b) => a + b) % 97) / 97);
  const run = memoryRun();
  const environment = (options.environment ?? silentDesk()) as Environment<unknown>;
  const result = await trainHope({
    ...{ model, rewardModel: judge, environment, run },
    config: { ...small, ...config },
  });
  const rows = (key: string) => run.rows.filter(({ values }) => key in values).map(({ values }) => values);
  return { model, judge, run, result, rows };
}

test("defaults are the paper's", () => {
  expect(hopeConfig.parse({})).toMatchObject({
    iterations: 2,
    ...{ episodesPerTask: 14, branchedEpisodes: 4, turnsPerEpisode: 2, proposalsPerTurn: 2 },
    ...{ branchRange: { shares: [0.3, 0.6] }, proposerTemperature: 0.3, points: 10_000, branchShare: 0.4 },
    ...{ rewardBatchSize: 64, rewardEpochs: 1, rewardLearningRate: 5e-6, schedule: { shape: "linear" } },
    ...{ batchSize: 12, learningRate: 8e-8, candidateTemperature: 0.7, proposalShare: 0, maxTokens: 2048 },
    rewardEvaluation: { bestOf: 15, temperature: 0.7 },
  });
  expect(() => hopeConfig.parse({ actor: "imitate", branchedEpisodes: 0 })).toThrow(/imitate/);
  expect(() => hopeConfig.parse({ rewardEvaluation: { every: 40 } })).toThrow(/nothing is measured/);
  expect(hopeConfig.parse({ schedule: { warmupSteps: 5 } }).schedule.shape).toBe("linear");
});

test("turns are drawn from the range, never twice", () => {
  for (let seed = 0; seed < 30; seed++) {
    const twenty = branchTurns(20, { shares: [0.3, 0.6] }, 2, seed);
    expect(twenty).toHaveLength(2);
    expect(new Set(twenty).size).toBe(2);
    for (const turn of twenty) expect(turn >= 6 && turn < 12).toBe(true);
    for (const turn of branchTurns(8, { turns: [2, 1] }, 3, seed)) expect(turn >= 2 && turn < 7).toBe(true);
  }
  expect(branchTurns(2, { turns: [2, 0] }, 2, 1)).toEqual([]);
  expect(branchTurns(1, { shares: [0, 1] }, 2, 1)).toEqual([0]);
});

test("turns are drawn of episodes that no fault ended", () => {
  const episodes = ["done", "service-fault", "turn-limit", "environment-fault"].map((outcome, id) => ({
    ...{ id, outcome, turns: [{}, {}] },
  })) as unknown as Trajectory[];
  const config = hopeConfig.parse({
    episodesPerTask: 4,
    branchedEpisodes: 4,
    branchRange: { turns: [0, 0] },
  });
  const places = branchPlaces(episodes, config);
  expect(new Set(places.map(({ trajectory }) => trajectory.id))).toEqual(new Set([0, 2]));
});

test("a branch with the same rewards is not better, in whatever order they were added up", async () => {
  const desk = silentDesk();
  const environment: Environment<Errand> = {
    ...desk,
    start: async (task, options) => {
      const episode = await desk.start(task, options);
      let turn = 0;
      const step: typeof episode.step = async (action) => {
        const result = await episode.step(action);
        turn++;
        return { ...result, reward: (4 - turn) / 10, terminated: turn === 3, truncated: false };
      };
      return { ...episode, step };
    },
  };
  const { run, rows } = await train({ actorStates: 1 }, { environment });
  const rewards = run.trajectories.map(({ reward }) => reward);
  expect(new Set(rewards).size).toBe(2); // 0.6 and 0.6000000000000001
  expect(rows("branches/better")[0]!["branches/better"]).toBe(0);
});

describe("an iteration", () => {
  test("plays, branches with proposals, trains the reward model by Monte-Carlo labels, then the actor", async () => {
    const { model, judge, run, rows, result } = await train();
    const own = run.trajectories.filter(({ branch }) => branch === undefined);
    const branches = run.trajectories.filter(({ branch }) => branch !== undefined);
    expect(own).toHaveLength(12);
    expect(result).toMatchObject({ episodes: 12, stopped: false });
    expect(rows("branches/played")[0]).toMatchObject({
      "branches/played": branches.length,
      "proposals/kept": branches.length,
      "proposals/leaked": 0,
    });
    // Two episodes of each of three tasks, two turns where there are two, two proposals each.
    expect(branches.length).toBeGreaterThan(12);
    for (const { branch, turns, task } of branches) {
      expect(own[branch!.trajectory]).toMatchObject({ id: branch!.trajectory, task });
      expect(turns.slice(0, branch!.turn)).toEqual(own[branch!.trajectory]!.turns.slice(0, branch!.turn));
      expect(["a cup", "a bell"]).toContain(turns[branch!.turn]!.action!.text);
      expect(turns[branch!.turn]!.action!.thought).toBe("One more thing.");
    }
    // Equation 3 once more, over all episodes through the same ids.
    const returns = new Map<string, number[]>();
    for (const trajectory of run.trajectories)
      for (const [t, { state, tokens }] of trajectory.turns.entries()) {
        const key = String([...state.prompt(), -1, ...tokens]);
        returns.set(key, [...(returns.get(key) ?? []), returnsFrom(trajectory, 1)[t]!]);
      }
    expect(judge.labels.length).toBeGreaterThan(4);
    for (const { prompt, response, label } of judge.labels) {
      const through = returns.get(String([...prompt, -1, ...response]))!;
      expect(label).toBeCloseTo(through.reduce((a, b) => a + b, 0) / through.length, 12);
    }
    const high = judge.labels.filter(({ label }) => label >= 0.5).length;
    expect(2 * high).toBe(judge.labels.length);
    // The actor: the better of two samples by the reward model, in states of the data.
    const states = new Set(judge.labels.map(({ prompt }) => String(prompt)));
    const pairs = model.preferences.flatMap((call) => call.pairs);
    for (const { chosen, rejected } of pairs) {
      expect(states.has(String(chosen.prompt))).toBe(true);
      expect(chosen.prompt).toEqual(rejected.prompt);
      const [better, worse] = await judge.rewards([chosen, rejected]);
      expect(better).toBeGreaterThan(worse!);
    }
    expect(rows("loss/reward").map(({ "reward/learning_rate": rate }) => rate)).toEqual(
      rows("loss/reward").map((_, i, all) => 1 - i / all.length),
    );
  });

  test("numbers its branches after those of earlier iterations", async () => {
    const { run } = await train({ iterations: 2 });
    const branches = run.trajectories.filter(({ branch }) => branch !== undefined);
    expect(branches.some(({ branch }) => branch!.trajectory >= 12)).toBe(true);
    expect(new Set(run.trajectories.map(({ id }) => id)).size).toBe(run.trajectories.length);
  });

  test("counts the steps of branches with actions that cannot be read, as in other episodes", async () => {
    const reply = replies(() => [proposed("a cup"), proposed("a bell")]);
    const afterProposal = (prompt: string) =>
      /\na (cup|bell)<\|im_end\|>/.test(prompt) && !isSummary(prompt) && !isProposal(prompt);
    const model = new ScriptedPreferences((...args) =>
      afterProposal(args[0]) ? "whatever" : reply(...args),
    );
    const environment = silentDesk(4);
    const taken = countActions(environment);
    const { result } = await train({ actorStates: 1, rewardHeldOut: 0 }, { model, environment });
    const unreadable = model.calls.filter(
      ({ prompt, request }) => afterProposal(prompt) && request.temperature === 1,
    );
    expect(unreadable.length).toBeGreaterThan(0);
    expect(result.environmentSteps).toBe(taken.actions + unreadable.length);
  });

  test("without branches is PRM+RL, and needs no proposer", async () => {
    const { model, run, rows } = await train({ branchedEpisodes: 0, branchShare: 0 });
    expect(run.trajectories.every(({ branch }) => branch === undefined)).toBe(true);
    expect(model.calls.some(({ prompt }) => isSummary(prompt) || isProposal(prompt))).toBe(false);
    expect(rows("data/branched")[0]!["data/branched"]).toBe(0);
  });

  test("that imitates learns the proposals after their states, without a reward model (LEAP)", async () => {
    const model = new ScriptedPreferences(replies(() => [proposed("a cup"), proposed("a bell")]));
    const run = memoryRun();
    await trainHope({ model, environment: silentDesk(), run, config: { ...small, actor: "imitate" } });
    expect(run.trajectories).toHaveLength(12);
    const texts = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    expect(texts.length).toBeGreaterThan(8);
    for (const { prompt, response } of texts) {
      expect(model.decode(response)).toMatch(
        /^Thought:\nOne more thing\.\nAction:\na (cup|bell)<\|im_end\|>$/,
      );
      const found = run.trajectories.some(({ turns }) =>
        turns.some(({ state }) => String(state.prompt()) === String(prompt)),
      );
      expect(found).toBe(true);
    }
  });

  test.each(["imitate", "preference"] as const)(
    "is saved (%s) with empty caches, as a resumed run has them",
    async (actor) => {
      const model = new ScriptedPreferences(replies(() => [proposed("a cup"), proposed("a bell")]));
      let warm = false;
      const generate = model.generate.bind(model);
      model.generate = async (...request) => {
        warm = true;
        return generate(...request);
      };
      model.dropCaches = async () => {
        warm = false;
      };
      const saved: boolean[] = [];
      const run = { ...memoryRun(), checkpoint: async () => void saved.push(warm) };
      const rewardModel = new ScriptedJudge((response) => (response.length % 7) / 7);
      const config = { ...small, actor };
      await trainHope({ model, rewardModel, environment: silentDesk(), run, config });
      expect(saved.length).toBeGreaterThan(4);
      expect(saved).not.toContain(true);
    },
  );

  test("that imitates takes the proposals of all tasks in random order, each once", async () => {
    let made = 0;
    const numbered = () => [proposed(`cup ${made++}`), proposed(`cup ${made++}`)];
    const model = new ScriptedPreferences(replies(numbered));
    const run = memoryRun();
    await trainHope({ model, environment: silentDesk(), run, config: { ...small, actor: "imitate" } });
    const texts = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    const order = texts.map(({ response }) => Number(/cup (\d+)/.exec(model.decode(response))![1]));
    const sorted = [...order].sort((a, b) => a - b);
    expect(sorted).toEqual(Array.from({ length: made }, (_, i) => i));
    // They were made task by task: in this order the last tasks would have the lowest learning rate.
    expect(order).not.toEqual(sorted);
    const place = mean(order.slice(0, made / 2));
    expect(place).toBeGreaterThan(made / 4 + 1); // about (made - 1) / 2, not (made / 2 - 1) / 2
  });

  test("that imitates and restarts begins each iteration at the initial weights", async () => {
    const model = new ScriptedPreferences(replies(() => [proposed("a cup"), proposed("a bell")]));
    const initial = model.theta;
    const thetas: number[] = [];
    const { step } = model;
    model.step = async (options) => {
      thetas.push(model.theta);
      const result = await step.call(model, options);
      model.theta += 1;
      return result;
    };
    const config = { ...small, iterations: 2, actor: "imitate" as const, restart: true };
    const run = memoryRun();
    await trainHope({ model, environment: silentDesk(), run, config });
    const perIteration = thetas.length / 2;
    expect(perIteration).toBeGreaterThan(1);
    for (const first of [thetas[0], thetas[perIteration]]) expect(first).toBe(initial);
    for (const later of [thetas[1], thetas[perIteration + 1]]) expect(later).not.toBe(initial);
    expect(() => hopeConfig.parse({ restart: true })).toThrow(/imitate/);
  });

  test("has actions of another model in the agent's place (Oracle-Explore)", async () => {
    const asked: { messages: readonly Message[]; maxTokens: number | undefined }[] = [];
    const proposer = {
      model: "oracle",
      usage: () => nothingUsed,
      close: vi.fn(async () => {}),
      complete: async (messages: readonly Message[], options?: { maxTokens?: number }) => {
        asked.push({ messages, maxTokens: options?.maxTokens });
        return `Thought:\nI know.\nAction:\na kite ${asked.length}`;
      },
    };
    const model = new ScriptedPreferences(replies());
    const { run, rows } = await train({ proposer, hindsight: false }, { model });
    const branches = run.trajectories.filter(({ branch }) => branch !== undefined);
    expect(branches.length).toBe(asked.length);
    expect(proposer.close).not.toHaveBeenCalled();
    for (const { branch, turns } of branches)
      expect(turns[branch!.turn]!.action).toMatchObject({
        thought: "I know.",
        text: expect.stringMatching(/^a kite \d+$/),
      });
    // It sees the episode so far and no more, and has the policy's limit.
    for (const { messages, maxTokens } of asked) {
      expect(maxTokens).toBe(small.maxActionTokens);
      expect(messages[0]!.content).toContain("Write every turn in exactly this form");
      expect(JSON.stringify(messages)).not.toMatch(/You teach an agent|The secret/);
      expect(messages.at(-1)!.role).toBe("user");
    }
    expect(asked.some(({ messages }) => messages.length > 3)).toBe(true);
    expect(model.calls.some(({ prompt }) => isSummary(prompt) || isProposal(prompt))).toBe(false);
    expect(rows("branches/places")[0]!["proposals/kept"]).toBe(asked.length);
    expect(() => hopeConfig.parse({ hindsight: false, proposer: "different" })).toThrow(/hindsight/);
  });

  test("explores with proposals in the actor's pairs with probability β", async () => {
    const { model } = await train({ proposalShare: 1 });
    const pairs = model.preferences.flatMap((call) => call.pairs);
    expect(pairs.length).toBeGreaterThan(0);
    const texts = pairs.flatMap(({ chosen, rejected }) =>
      [chosen, rejected].map((one) => model.decode(one.response)),
    );
    expect(texts.some((text) => /a (cup|bell)/.test(text))).toBe(true);
  });

  test("leaves out pairs whose rewards are nearly equal", async () => {
    const minGap = 0.1;
    const { model, judge, rows } = await train({ minGap });
    const places = 4;
    let gaps = 0;
    for (const { pairs } of model.preferences)
      for (const { chosen, rejected } of pairs) {
        const [better, worse] = await judge.rewards([chosen, rejected]);
        expect(better! - worse!).toBeGreaterThanOrEqual(minGap);
        gaps++;
      }
    const updates = rows("pairs/left_out");
    expect(gaps).toBeGreaterThan(0);
    expect(updates.some((values) => values["pairs/left_out"]! > 0)).toBe(true);
    // All but the last update have four states.
    for (const values of updates.slice(0, -1))
      expect(values["pairs/left_out"]).toBeCloseTo(1 - values.pairs! / places, 12);
    // Before the first step the policy is its own reference.
    expect(rows("objective/kl")[0]!["objective/kl"]).toBeCloseTo(0, 6);
    const all = await train();
    const left = (of: typeof updates) => of.reduce((sum, { pairs }) => sum + pairs!, 0);
    expect(left(all.rows("pairs/left_out"))).toBeGreaterThan(gaps);
    // Without any pair no step is taken: by its moments, AdamW would move the policy all the same.
    const equal = await train({}, { judge: new ScriptedJudge(() => 0.5) });
    const { length } = equal.rows("pairs/left_out");
    expect(length).toBeGreaterThan(0);
    expect(left(equal.rows("pairs/left_out"))).toBe(0);
    expect(equal.model.events.filter(({ kind }) => kind === "step")).toEqual([]);
  });

  test("that is stopped while it trains the reward model forgets the gradients of both models", async () => {
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    const judge = new ScriptedJudge(() => 0.5);
    const { rewardLoss } = judge;
    judge.rewardLoss = async (texts) => {
      controller.abort();
      return rewardLoss.call(judge, texts);
    };
    const model = new ScriptedPreferences(replies(() => [proposed("a cup")], ["soap", "key", "lamp", "map"]));
    const environment = silentDesk() as Environment<unknown>;
    const result = await trainHope({ model, rewardModel: judge, environment, run, config: small });
    expect(result.stopped).toBe(true);
    for (const { events } of [model, judge]) expect(events.at(-1)).toEqual({ kind: "discard" });
  });

  test("measures the reward model on episodes that it was not trained on, after every epoch", async () => {
    const { run, judge, rows } = await train({ rewardHeldOut: 0.5, rewardEpochs: 2 });
    const keyOf = (prompt: readonly number[], response: readonly number[]) =>
      String([...prompt, -1, ...response]);
    const trained = new Set(judge.labels.map(({ prompt, response }) => keyOf(prompt, response)));
    // The episodes, counting branches as the episode that they left, that an action occurs in.
    const owners = new Map<string, Set<number>>();
    for (const { id, branch, turns } of run.trajectories)
      for (const { state, tokens } of turns) {
        const key = keyOf(state.prompt(), tokens);
        owners.set(key, (owners.get(key) ?? new Set()).add(branch?.trajectory ?? id));
      }
    const only = [...owners].filter(([key, ids]) => ids.size === 1 && trained.has(key));
    const seen = new Set(only.map(([, ids]) => [...ids][0]!));
    // Six of the twelve episodes are held out; balancing may leave out more.
    expect(seen.size).toBeLessThanOrEqual(6);
    expect(seen.size).toBeGreaterThan(2);
    // A scripted judge does not learn: both epochs are measured alike.
    const [first, second, ...more] = rows("held_out/auc").map(heldOut);
    expect(first!["held_out/brier"]).toBeGreaterThan(0);
    expect(second).toEqual(first);
    expect(more).toEqual([]);
    expect(rows("data/held_out")[0]!["data/held_out"]).toBeGreaterThan(6);
  });

  test("measures the reward model by the best of several actions", async () => {
    const { model } = await train({
      rewardEvaluation: { episodes: 3, bestOf: 5, temperature: 0.7, split: "train" },
    });
    const seeds = model.calls
      .filter(({ request }) => request.temperature === 0.7)
      .map(({ request }) => request.seed);
    expect(new Set(seeds).size).toBe(seeds.length);
  });

  test("uses the reward model's weights that were measured best", async () => {
    // One state and two actions, so that an update is an epoch. Which one is scored higher changes.
    const successes = [0, 1, 1, 0];
    let updates = 0;
    const judge = new ScriptedJudge((response) =>
      response.includes("key") === (successes[updates - 1] === 1) ? 0.9 : 0.1,
    );
    judge.step = async () => {
      updates++;
      return { gradNorm: 1, skipped: false };
    };
    const model = new ScriptedPreferences(replies(() => [], ["soap", "key"]));
    const rewardEvaluation = { every: 1, episodes: 2, bestOf: 20, split: "train" as const };
    const { run, rows } = await train(
      { branchedEpisodes: 0, branchShare: 0, rewardEvaluation, rewardBatchSize: 2, rewardEpochs: 4 },
      { model, judge, environment: errandEnvironment({ words: ["key"], turns: 1, singleStep: false }) },
    );
    const measured = rows("best_of/success").map((values) => values["best_of/success"]);
    expect(measured).toEqual(successes);
    // The first, the second, and the third, which is as good; the last is worse.
    expect(judge.references).toEqual(["keep", "keep", "keep", "restore"]);
    const last = run.rows.findLastIndex(({ values }) => "best_of/success" in values);
    const actor = run.rows.findIndex(({ values }) => "loss/preference" in values);
    expect(last).toBeLessThan(actor === -1 ? run.rows.length : actor);
  });

  test("with keepBest undoes an iteration that made the policy worse", async () => {
    // Greedy evaluations succeed before and after the first iteration, and fail after the second.
    let iterations = 0;
    const said = replies(() => [], ["soap", "key"]);
    const model = new ScriptedPreferences((prompt, weights, i, request) =>
      request.temperature === 0
        ? `Thought:\nhm\nAction:\n${iterations === 2 ? "soap" : "key"}`
        : said(prompt, weights, i, request),
    );
    const calls: string[] = [];
    const { keepReference, restoreReference } = model;
    model.keepReference = async () => {
      calls.push(`keep ${model.theta}`);
      if (calls.length > 1) iterations++;
      await keepReference.call(model);
    };
    model.restoreReference = async () => {
      calls.push("restore");
      await restoreReference.call(model);
    };
    const { rows } = await train(
      {
        ...{ iterations: 3, branchedEpisodes: 0, branchShare: 0, keepBest: true },
        evaluation: { every: 1, episodes: 2, split: "train" },
      },
      { model, environment: errandEnvironment({ words: ["key"], turns: 1, singleStep: false }) },
    );
    expect(rows("eval/success").map((values) => values["eval/success"])).toEqual([1, 1, 0, 1]);
    // Before all; in each iteration; after the second the policy before it is the reference again.
    expect(calls.map((call) => call.split(" ")[0])).toEqual(["keep", "keep", "keep", "restore", "keep"]);
    expect(calls[4]).toBe(calls[2]);
    expect(() => hopeConfig.parse({ keepBest: true })).toThrow(/evaluation.every/);
  });

  test("nothing is chosen by an evaluation whose episodes all fail", async () => {
    const plain = errandEnvironment({ words: ["key"], turns: 1, singleStep: false });
    const environment: Environment<Errand> = {
      ...plain,
      start: async (task, options) => {
        if (task.word === "keys") throw new Error("no test tasks today");
        return plain.start(task, options);
      },
    };
    const { judge, run } = await train(
      {
        ...{ iterations: 2, branchedEpisodes: 0, branchShare: 0, keepBest: true },
        evaluation: { every: 1, episodes: 2, split: "test" },
        rewardEvaluation: { every: 1, episodes: 2, bestOf: 2, split: "test" },
      },
      { environment, model: new ScriptedPreferences(replies(() => [], ["soap", "key"])) },
    );
    expect(judge.references).toEqual([]);
    for (const state of run.checkpoints)
      expect(hopeState.safeParse(JSON.parse(JSON.stringify(state))).error).toBeUndefined();
  });

  test("a judge that knows the answer brings it, one that does not never does", async () => {
    const success = async (score: (response: string, prompt: string) => number) => {
      const model = new ScriptedPreferences(replies(() => [], ["soap", "key"]));
      const rewardEvaluation = { episodes: 3, bestOf: 20, temperature: 0.7, split: "train" };
      const config = { branchedEpisodes: 0, branchShare: 0, rewardEvaluation };
      const { rows } = await train(config as HopeConfigInput, {
        ...{ model, environment: errandEnvironment({ words: ["key"] }) },
        judge: new ScriptedJudge(score),
      });
      return rows("best_of/success")[0]!["best_of/success"];
    };
    expect(await success((response) => (response.includes("key") ? 0.9 : 0.1))).toBe(1);
    expect(await success((response) => (response.includes("key") ? 0.1 : 0.9))).toBe(0);
  });

  test("asks for an action that differs from five samples (Explore-Prompt)", async () => {
    const model = new ScriptedPreferences((prompt, _w, _i, request) =>
      prompt.includes("Take one that differs")
        ? "Thought:\nhm\nAction:\na kite"
        : replies()(prompt, _w, _i, request),
    );
    const { run } = await train({ proposer: "different" }, { model });
    const branches = run.trajectories.filter(({ branch }) => branch !== undefined);
    expect(branches.length).toBeGreaterThan(0);
    for (const { branch, turns } of branches) expect(turns[branch!.turn]!.action!.text).toBe("a kite");
    expect(model.calls.some(({ prompt }) => isSummary(prompt))).toBe(false);
  });

  test("goes on without the proposals of a reply that cannot be used", async () => {
    const model = new ScriptedPreferences((prompt, weights, i, request) =>
      isProposal(prompt) ? "I would rather not." : replies()(prompt, weights, i, request),
    );
    const { rows, result } = await train({}, { model });
    expect(rows("branches/played")[0]).toMatchObject({ "branches/played": 0, "proposals/kept": 0 });
    expect(rows("branches/played")[0]!["proposals/malformed"]).toBeGreaterThan(0);
    expect(result.stopped).toBe(false);
  });
});

describe("a context that is too short for what the proposer reads", () => {
  class ShortContext extends ScriptedPreferences {
    override maxPositions = 1200;

    override async generate(...[requests, options]: Parameters<ScriptedPreferences["generate"]>) {
      for (const { tokens, maxNewTokens } of requests)
        expect(tokens!.length + maxNewTokens!).toBeLessThanOrEqual(this.maxPositions);
      return super.generate(requests, options);
    }
  }

  test.each(["policy", "different"])("costs only the proposals of %s", async (proposer) => {
    const model = new ShortContext(replies(() => [proposed("a cup"), proposed("a bell")]));
    // The prompts of "different" are shorter.
    if (proposer === "different") model.maxPositions = 260;
    const { rows, result } = await train({ proposer, proposalShare: 0.5, maxActionTokens: 30 } as never, {
      model,
    });
    const [values] = rows("branches/places");
    expect(values!["branches/places"]).toBeGreaterThan(0);
    expect(values!["proposals/too_long"]).toBe(2 * values!["branches/places"]!);
    expect(values!["branches/played"]).toBe(0);
    expect(result.stopped).toBe(false);
  });
});

test("the reference is the policy before the iteration, or before the first", async () => {
  const references = async (reference: "previous" | "initial") => {
    const { model } = await train({ iterations: 2, reference });
    return model.reference;
  };
  expect(await references("initial")).toBe(0);
  expect(await references("previous")).not.toBe(0);
});

describe("a secret never enters the policy's context unless the environment said it", () => {
  /** Prompts and responses that the policy generated from, or was trained on. */
  const contexts = (model: ScriptedPreferences) => [
    ...model.calls
      .filter(({ prompt }) => !isSummary(prompt) && !isProposal(prompt))
      .map(({ prompt }) => prompt),
    ...model.preferences.flatMap(({ pairs }) =>
      pairs.flatMap(({ chosen, rejected }) =>
        [chosen, rejected].map((one) => model.decode([...one.prompt, ...one.response])),
      ),
    ),
    ...model.events.flatMap((event) =>
      event.kind === "nll" ? event.texts.map((one) => model.decode([...one.prompt, ...one.response])) : [],
    ),
  ];
  const hostile = (secret: string) => [
    proposed(secret),
    proposed("a cup", `Surely it is the ${secret.toUpperCase()}.`),
    proposed("a bell"),
    proposed(`two ${secret}s`),
  ];

  test.each(["preference", "imitate"] as const)("with a hostile proposer and the actor %s", async (actor) => {
    const model = new ScriptedPreferences(replies(hostile));
    const { run, rows, judge } = await train({ actor, proposalsPerTurn: 4, proposalShare: 0.5 }, { model });
    expect(rows("branches/places")[0]!["proposals/leaked"]).toBeGreaterThan(10);
    expect(rows("branches/places")[0]!["proposals/kept"]).toBeGreaterThan(0);
    const all = contexts(model);
    expect(all.length).toBeGreaterThan(20);
    for (const text of [
      ...all,
      ...judge.labels.map(({ prompt, response }) => judge.decode([...prompt, ...response])),
    ])
      expect(text).not.toMatch(/\b(key|lamp|map)s?\b/i);
    // The summarizer did see it, and the records have it, apart from what the policy reads.
    expect(model.calls.some(({ prompt }) => isSummary(prompt) && /\b(key|lamp|map)\b/.test(prompt))).toBe(
      true,
    );
    for (const { conversation, privileged } of run.trajectories) {
      expect(privileged!.secret).toMatch(/^(key|lamp|map)$/);
      expect(model.decode(conversation.tokens)).not.toContain(privileged!.secret!);
    }
  });

  test("in 20 Questions, whose secret is the word", async () => {
    const environment = twentyQuestions({
      words: ["cat", "hammer", "apple", "car"],
      trainWords: 3,
      turns: 4,
    });
    const model = new ScriptedPreferences((prompt) => {
      if (isSummary(prompt)) return `The word was ${/# The secret\n(\w+)/.exec(prompt)![1]}.`;
      if (isProposal(prompt)) return JSON.stringify(hostile(/The word was (\w+)/.exec(prompt)![1]!));
      return "Thought:\nhm\nAction:\nIs it alive?";
    });
    const config = { branchRange: { shares: [0.2, 0.8] as [number, number] }, proposalsPerTurn: 4 };
    const { run } = await train(config, { model, environment: environment as never });
    expect(run.trajectories.some(({ branch }) => branch !== undefined)).toBe(true);
    for (const text of contexts(model)) expect(text).not.toMatch(/\b(hammer|apple)s?\b/i);
    for (const { privileged } of run.trajectories)
      expect(privileged).toMatchObject({ secret: expect.any(String), failureReason: expect.any(String) });
  });
});

test("what cannot be trained is refused before anything is played", async () => {
  const model = new ScriptedPreferences(replies());
  const refused = (config: HopeConfigInput) =>
    expect(trainHope({ model, environment: errandEnvironment(), config: { ...small, ...config } })).rejects;
  await refused({}).toMatchObject({ code: "ERR_CONFIG", message: expect.stringContaining("reward model") });
  await refused({ actor: "imitate", proposer: "environment" }).toMatchObject({ code: "ERR_CONFIG" });
  expect(model.calls).toHaveLength(0);
});
