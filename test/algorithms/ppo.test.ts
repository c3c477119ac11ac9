import { describe, expect, test } from "vitest";
import { generalizedAdvantages, type PpoConfigInput, ppoConfig, trainPpo } from "../../lib/algorithms/ppo.ts";
import { uniform } from "../../lib/base/random.ts";
import type { SurrogateText } from "../../lib/model/language-model.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { deviation, mean } from "../../lib/statistics/mean.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { desk } from "../support/job-desk.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const small: PpoConfigInput = {
  iterations: 1,
  episodesPerIteration: 8,
  epochs: 1,
  batchSize: 8,
  klCoefficient: 0,
  whiten: false,
  learningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  seed: 3,
};

async function train(
  config: PpoConfigInput = {},
  environment = errandEnvironment({ turns: 2 }),
  model = new ScriptedPolicy(luckyReply(() => 0.5)),
) {
  const run = memoryRun();
  const result = await trainPpo({ model, environment, config: { ...small, ...config }, run });
  const updates = run.rows.filter(({ values }) => "loss/policy" in values).map(({ values }) => values);
  const texts = model.surrogates.flatMap((call) => call.texts);
  return { model, run, result, updates, texts };
}

/** The values of a list at the policy's tokens. */
const own = ({ weight }: SurrogateText, list: ArrayLike<number>) =>
  Array.from(list).filter((_, t) => (weight as number[])[t]! > 0);

test("defaults are those of PPO on Monte-Carlo returns", () => {
  expect(ppoConfig.parse({})).toMatchObject({
    discount: 1,
    lambda: 1,
    clip: 0.2,
    valueClip: 0.2,
    epochs: 4,
    whiten: true,
  });
});

describe("generalized advantages", () => {
  /** Σ_l (γλ)^l δ_{t+l}, term by term. */
  function naive(rewards: number[], values: number[], discount: number, lambda: number): number[] {
    const surprise = (t: number) =>
      rewards[t]! + (t + 1 < values.length ? discount * values[t + 1]! : 0) - values[t]!;
    return rewards.map((_, t) => {
      let sum = 0;
      for (let l = 0; t + l < rewards.length; l++) sum += (discount * lambda) ** l * surprise(t + l);
      return sum;
    });
  }

  test.each([
    [1, 1],
    [0.99, 0.95],
    [0.9, 0],
    [0, 1],
  ])("γ %f and λ %f: the double sum", (discount, lambda) => {
    for (const length of [0, 1, 2, 17]) {
      const rewards = Array.from({ length }, (_, t) => uniform(1, length, t) - 0.5);
      const values = Array.from({ length }, (_, t) => uniform(2, length, t) - 0.5);
      const { advantages, returns } = generalizedAdvantages(rewards, values, discount, lambda);
      const expected = naive(rewards, values, discount, lambda);
      expect(advantages).toHaveLength(length);
      for (const [t, advantage] of advantages.entries()) {
        expect(advantage).toBeCloseTo(expected[t]!, 12);
        expect(returns[t]).toBeCloseTo(expected[t]! + values[t]!, 12);
      }
    }
  });

  test("with γ = λ = 1 the returns are the remaining rewards, for any values", () => {
    const { returns } = generalizedAdvantages([0, 1, 0, 0.5], [9, -3, 2, 7], 1, 1);
    for (const [t, expected] of [1.5, 1.5, 0.5, 0.5].entries()) expect(returns[t]).toBeCloseTo(expected, 12);
  });
});

describe("a truncated episode", () => {
  /** The last state's value, which the scripted policy computes from the position only. */
  const bootstrapped = (model: ScriptedPolicy) => Math.fround(model.phi * 0.1);
  const soap = () => new ScriptedPolicy(() => "Thought:\nhm\nAction:\nsoap");
  const cut = () => errandEnvironment({ turns: 2, turnLimitEnds: false });

  test("is bootstrapped from its final state; a terminated one is not", async () => {
    for (const environment of [cut(), errandEnvironment({ turns: 2 })]) {
      const model = soap();
      const read: number[][] = [];
      const values = model.values.bind(model);
      model.values = (texts) => {
        read.push(...texts.map(({ prompt }) => [...prompt]));
        return values(texts);
      };
      const before = bootstrapped(model);
      const { texts, run } = await train({ lambda: 0, discount: 0.9 }, environment, model);
      expect(texts).toHaveLength(8);
      const truncated = environment.turnLimitEnds === false;
      for (const text of texts)
        expect(own(text, text.returns!).at(-1)).toBeCloseTo(truncated ? 0.9 * before : 0, 6);
      const states = run.trajectories.map(({ conversation }) => String(conversation.prompt()));
      expect(states.filter((state) => read.map(String).includes(state))).toHaveLength(truncated ? 8 : 0);
    }
  });

  test("has Monte-Carlo returns of that value if there are no rewards", async () => {
    const model = soap();
    const before = bootstrapped(model);
    const { texts } = await train({}, cut(), model);
    for (const text of texts)
      for (const value of own(text, text.returns!)) expect(value).toBeCloseTo(before, 6);
  });

  test("has that value in place of its score, not beside it", async () => {
    const call = JSON.stringify({ name: "find", arguments: { item: "pen" } });
    const model = new ScriptedPolicy(() => `Thought:\nhm\nAction:\n${call}`);
    const before = bootstrapped(model);
    const environment = desk({ maxTurns: 2, score: () => 0.5 }) as never;
    const { texts, run } = await train({}, environment, model);
    for (const { reward, turns } of run.trajectories)
      expect([reward, turns.length, turns.at(-1)!.truncated]).toEqual([0.5, 2, true]);
    for (const text of texts)
      for (const value of own(text, text.returns!)) expect(value).toBeCloseTo(before, 6);
  });

  test("whose final state does not fit into the context is learned from up to the turn before", async () => {
    const long = await train({}, cut(), soap());
    const { conversation, turns } = long.run.trajectories[0]!;
    const model = soap();
    Object.assign(model, { maxPositions: conversation.prompt().length });
    const { texts, run } = await train({ lambda: 0, discount: 0.9 }, cut(), model);
    expect(run.trajectories[0]!.turns).toHaveLength(2);
    for (const text of texts) expect(text.response).toEqual(turns[0]!.tokens);
  });
});

describe("the chain of an episode's tokens", () => {
  test("Monte-Carlo: every token's return is the episode's reward, and its advantage is that minus the value", async () => {
    const { texts, run } = await train();
    expect(texts).toHaveLength(8);
    const rewards = new Set<number>();
    for (const text of texts) {
      const trajectory = run.trajectories.find(({ conversation }) =>
        String(conversation.tokens).startsWith(String([...text.prompt, ...text.response])),
      )!;
      rewards.add(trajectory.reward);
      for (const value of own(text, text.returns!)) expect(value).toBeCloseTo(trajectory.reward, 6);
      const [advantages, values] = [own(text, text.advantages), own(text, text.oldValues!)];
      for (const [t, advantage] of advantages.entries())
        expect(advantage).toBeCloseTo(trajectory.reward - values[t]!, 6);
    }
    expect(rewards).toEqual(new Set([0, 1]));
  });

  test("across turns the next token is the first of the next turn: observations are skipped", async () => {
    const { texts } = await train({ lambda: 0, discount: 0.9 });
    for (const text of texts) {
      const values = own(text, text.oldValues!);
      const returns = own(text, text.returns!);
      // λ = 0: the reward of one step, and the next action token's value.
      for (const [t, value] of returns.slice(0, -1).entries())
        expect(value).toBeCloseTo(0.9 * values[t + 1]!, 6);
      expect([0, 1]).toContain(Math.round(returns.at(-1)! * 1e6) / 1e6); // terminal: only the reward
      // Observation tokens do not contribute.
      const masked = (list: ArrayLike<number>) =>
        Array.from(list).filter((_, t) => (text.weight as number[])[t] === 0);
      for (const list of [text.advantages, text.returns!, text.oldValues!, text.oldLogProbs])
        expect(masked(list).every((value) => value === 0)).toBe(true);
      expect(masked(text.returns!).length).toBeGreaterThan(10);
    }
  });

  test("a reward in the middle is received at the end of its turn", async () => {
    const environment = errandEnvironment({ turns: 3 });
    const start = environment.start;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      let turn = 0;
      return {
        ...episode,
        step: async (action) => ({ ...(await episode.step(action)), reward: [0.25, 0, 0.5][turn++]! }),
      };
    };
    const { texts } = await train({}, environment, new ScriptedPolicy(luckyReply(() => 0)));
    for (const text of texts) {
      const turn = own(text, text.returns!).length / 3;
      const returns = own(text, text.returns!);
      for (const [t, value] of returns.entries()) expect(value).toBeCloseTo(t < turn ? 0.75 : 0.5, 6);
    }
  });

  test("the KL to the reference is a penalty on every token's reward", async () => {
    const model = new ScriptedPolicy(luckyReply(() => 0.5));
    const beta = 0.1;
    const { texts, updates } = await train(
      { klCoefficient: beta, lambda: 0, discount: 0, iterations: 2, learningRate: 5 },
      undefined,
      model,
    );
    expect(model.reference).toBe(0);
    let far = 0;
    for (const text of texts.slice(8)) {
      const [old, reference] = [own(text, text.oldLogProbs), own(text, text.referenceLogProbs!)];
      // With γ = 0 the return of a token is its own reward.
      for (const [t, value] of own(text, text.returns!).slice(0, -1).entries()) {
        expect(value).toBeCloseTo(-beta * (old[t]! - reference[t]!), 6);
        far = Math.max(far, Math.abs(value));
      }
    }
    expect(far).toBeGreaterThan(1e-5);
    expect(updates[1]!.kl).toBeGreaterThan(0);
    // The KL is part of the rewards, so it must not be in the loss too.
    expect(model.surrogates[0]!.options.klCoefficient ?? 0).toBe(0);
  });

  test("whitened advantages have mean 0 and deviation 1 over the iteration's tokens, also in several batches", async () => {
    const plain = await train({ batchSize: 3 });
    const { texts } = await train({ batchSize: 3, whiten: true });
    const advantages = texts.flatMap((text) => own(text, text.advantages));
    expect(mean(advantages)).toBeCloseTo(0, 9);
    expect(deviation(advantages)).toBeCloseTo(1, 6);
    // An affine map: the order and the returns stay the same.
    const before = plain.texts.flatMap((text) => own(text, text.advantages));
    const scale = deviation(before);
    for (const [t, advantage] of advantages.entries())
      expect(advantage).toBeCloseTo((before[t]! - mean(before)) / scale, 5);
    expect(texts.map(({ returns }) => returns)).toEqual(plain.texts.map(({ returns }) => returns));
  });

  test("errors of the values far below 1e-4 stay small: equal returns are no reason to step", async () => {
    const model = new ScriptedPolicy(luckyReply(() => 0)); // no episode succeeds
    model.phi = 1e-7;
    const { texts } = await train({ whiten: true }, undefined, model);
    const advantages = texts.flatMap((text) => own(text, text.advantages));
    expect(deviation(advantages)).toBeGreaterThan(0);
    expect(Math.max(...advantages.map(Math.abs))).toBeLessThan(0.01);
  });

  test("an iteration of one token is not whitened: a single value has no deviation", async () => {
    const config = { episodesPerIteration: 1, batchSize: 1, whiten: true };
    const { texts } = await train(config, errandEnvironment({ turns: 1 }), new ScriptedPolicy(() => ""));
    const [text] = texts as [SurrogateText];
    const lists = [text.advantages, text.returns!, text.oldValues!].map((list) => own(text, list));
    expect(lists.map((list) => list.length)).toEqual([1, 1, 1]);
    const [advantage, value, predicted] = lists.map((list) => list[0]!);
    expect(advantage).toBeCloseTo(value! - predicted!, 6);
  });

  test("an episode that ended in a fault is left out", async () => {
    const environment = errandEnvironment({ turns: 2 });
    const start = environment.start;
    let episodes = 0;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      if (episodes++ % 4 !== 0) return episode;
      let turns = 0;
      const step: typeof episode.step = (action) =>
        turns++ === 0 ? episode.step(action) : Promise.reject(new Error("closed"));
      return { ...episode, step };
    };
    const { texts, result, run } = await train({ batchSize: 3 }, environment);
    expect(run.trajectories.filter(({ fault }) => fault !== undefined)).toHaveLength(2);
    expect(texts).toHaveLength(6);
    expect(result.updates).toBe(3); // the third batch of the epoch is empty
  });
});

describe("a step", () => {
  test("every token of a batch has the same weight", async () => {
    const { texts } = await train({ batchSize: 4 });
    for (const batch of [texts.slice(0, 4), texts.slice(4)]) {
      const weights = batch.flatMap(({ weight }) => (weight as number[]).filter((one) => one > 0));
      expect(new Set(weights).size).toBe(1);
      expect(weights[0]).toBeCloseTo(1 / weights.length, 12);
    }
  });

  test("the value head learns: its loss falls and it explains the returns better", async () => {
    const { model, updates } = await train(
      { epochs: 40, valueCoefficient: 0.5, clip: 0 },
      undefined,
      new ScriptedPolicy(luckyReply(() => 1)),
    );
    expect(model.phi).toBeGreaterThan(1); // every episode succeeds: from 0.5 towards 1 over the mean feature
    const losses = updates.map((values) => values["loss/value"]!);
    expect(losses.at(-1)!).toBeLessThan(losses[0]! / 2);
    expect(updates[0]!["value/return"]).toBeCloseTo(1, 6);
    expect(updates.at(-1)!["value/mean"]).toBeGreaterThan(updates[0]!["value/mean"]!);
  });

  test("value metrics agree with an independent computation", async () => {
    const { updates, texts } = await train();
    const targets = texts.flatMap((text) => own(text, text.returns!));
    const values = texts.flatMap((text) => own(text, text.oldValues!)); // as it was before the first step
    const errors = targets.map((target, i) => target - values[i]!);
    expect(updates[0]!["value/mean"]).toBeCloseTo(mean(values), 6);
    expect(updates[0]!["value/explained_variance"]).toBeCloseTo(
      1 - deviation(errors) ** 2 / deviation(targets) ** 2,
      6,
    );
    expect(updates[0]!["loss/value"]).toBeCloseTo(mean(errors.map((error) => error ** 2 / 2)), 6);
  });

  test("options reach the loss", async () => {
    const { model } = await train({
      clip: 0.1,
      valueClip: 0.4,
      valueCoefficient: 0.3,
      entropyCoefficient: 0.01,
    });
    expect(model.surrogates[0]!.options).toEqual({
      clipLow: 0.1,
      clipHigh: 0.1,
      entropyCoefficient: 0.01,
      temperature: 1,
      value: { coefficient: 0.3, clip: 0.4, detached: false },
    });
    const apart = await train({ sharedCritic: false });
    expect(apart.model.surrogates[0]!.options.value).toMatchObject({ detached: true });
  });

  test("the next iteration has scores and bootstrapped values of its own", async () => {
    const model = new ScriptedPolicy(luckyReply(() => 0.5));
    const phis: number[] = [];
    model.before = (operation) => {
      if (operation === "step") phis.push(model.phi);
    };
    const environment = errandEnvironment({ turns: 2, turnLimitEnds: false });
    const config = { iterations: 2, lambda: 0, discount: 0.9, learningRate: 0.1 };
    const { texts, updates } = await train(config, environment, model);
    expect(phis[1]).not.toBe(phis[0]);
    // Each iteration's episodes were generated by the policy before its only step.
    for (const { approx_kl } of updates) expect(approx_kl).toBeCloseTo(0, 9);
    for (const [iteration, phi] of phis.entries()) {
      const lasts = texts
        .slice(8 * iteration, 8 * iteration + 8)
        .map((text) => own(text, text.returns!).at(-1)!);
      const [ended, cut] = [lasts.filter((value) => value === 1), lasts.filter((value) => value < 1)];
      expect(Math.min(ended.length, cut.length)).toBeGreaterThan(0);
      for (const value of cut) expect(value).toBeCloseTo(0.9 * phi * 0.1, 6);
    }
  });

  test("old values and log probabilities stay those of the iteration's start in all epochs", async () => {
    const { model, texts, updates } = await train({ epochs: 3, learningRate: 10 });
    expect(model.theta).not.toBe(0);
    for (const { response, weight, oldLogProbs } of texts)
      for (const [t, id] of response.entries())
        if ((weight as number[])[t]! > 0) expect(oldLogProbs[t]).toBe(Math.fround(model.logProb(id, 0)));
    expect(updates[0]!.approx_kl).toBeCloseTo(0, 9);
    expect(updates[2]!.approx_kl).toBeGreaterThan(1e-6);
  });
});
