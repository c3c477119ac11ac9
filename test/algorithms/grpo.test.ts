import { describe, expect, test } from "vitest";
import { type GrpoConfigInput, grpoConfig, trainGrpo } from "../../lib/algorithms/grpo.ts";
import { memoryRun, newCounters } from "../../lib/run/training-run.ts";
import { deviation, mean } from "../../lib/statistics/mean.ts";
import { groupAdvantages } from "../../lib/training/group-advantages.ts";
import { returnsFrom } from "../../lib/training/returns.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { likeQwq } from "../support/reasoning-templates.ts";
import { entropy, ScriptedPolicy } from "../support/scripted-policy.ts";

const small: GrpoConfigInput = {
  iterations: 2,
  episodesPerIteration: 8,
  groupSize: 4,
  batchSize: 8,
  klCoefficient: 0,
  learningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  seed: 3,
};

async function train(
  config: GrpoConfigInput = {},
  environment = errandEnvironment({ turns: 2 }),
  model = new ScriptedPolicy(luckyReply(() => 0.5)),
) {
  const run = memoryRun();
  const result = await trainGrpo({ model, environment, config: { ...small, ...config }, run });
  const updates = run.rows.filter(({ values }) => "loss/policy" in values).map(({ values }) => values);
  const rounds = run.rows.filter(({ values }) => "reward" in values).map(({ values }) => values);
  return { model, run, result, updates, rounds };
}

const sum = (values: ArrayLike<number>) => Array.from(values).reduce((a, b) => a + b, 0);

describe("the configuration", () => {
  test("defaults are GRPO's, with groups of four", () => {
    expect(grpoConfig.parse({})).toMatchObject({
      groupSize: 4,
      epochs: 1,
      advantage: "std",
      credit: "episode",
      normalization: "sequence",
      clipLow: 0.2,
      clipHigh: 0.2,
      klCoefficient: 0.04,
    });
  });

  test("an invalid field is an error that names it", async () => {
    await expect(train({ episodesPerIteration: 6 })).rejects.toThrow(
      expect.objectContaining({
        code: "ERR_CONFIG",
        message: expect.stringMatching(/multiple of groupSize/),
      }),
    );
    await expect(train({ futures: 2 } as never)).rejects.toThrow(/futures/);
    await expect(train({ actionTemperature: 0 })).rejects.toThrow(/actionTemperature/);
    await expect(train({ discount: 0.9 })).rejects.toThrow(/credit "turn".*discount/s);
  });
});

test("the reference is θ at the start of the run, also if steps on corrections came before its episodes", async () => {
  const model = new ScriptedPolicy(luckyReply(() => 0.5));
  await model.keepReference();
  model.theta = 0.5; // corrections of a served run, which was then stopped
  const saved = { state: newCounters(), trajectories: [], replay: "" };
  const run = { ...memoryRun(), restore: async () => saved };
  const config = { ...small, iterations: 1, klCoefficient: 0.1 };
  await trainGrpo({ model, environment: errandEnvironment({ turns: 2 }), config, run });
  expect(model.reference).toBe(0);
});

describe("an iteration", () => {
  test("plays each task four times and compares the four", async () => {
    const { run, model, rounds, result } = await train({ iterations: 1 });
    expect(result).toEqual({ updates: 1, episodes: 8, environmentSteps: 16, stopped: false });
    const groups = [run.trajectories.slice(0, 4), run.trajectories.slice(4)];
    const expected = groups.flatMap((group) => {
      expect(new Set(group.map(({ task }) => task)).size).toBe(1);
      return groupAdvantages(
        group.map(({ reward }) => reward),
        "std",
      );
    });
    expect(new Set(expected).size).toBeGreaterThan(2);
    // One advantage for all tokens of an episode, in any order of the batch.
    const texts = model.surrogates.flatMap((call) => call.texts);
    expect(texts).toHaveLength(8);
    for (const { advantages, response } of texts) {
      expect(advantages).toHaveLength(response.length);
      expect(new Set(Array.from(advantages)).size).toBe(1);
    }
    const byEpisode = new Map(
      run.trajectories.map((trajectory, i) => [String(trajectory.conversation.tokens), expected[i]]),
    );
    for (const { prompt, response, advantages } of texts) {
      const whole = [...byEpisode].find(([tokens]) => tokens.startsWith(String([...prompt, ...response])))!;
      expect(advantages[0]).toBe(whole[1]);
    }
    expect(rounds[0]).toMatchObject({ episodes: 8, environment_steps: 16, "completions/clipped_ratio": 0 });
  });

  test("logs how groups differ", async () => {
    const { rounds, run } = await train();
    expect(rounds).toHaveLength(2);
    for (const [i, values] of rounds.entries()) {
      const rewards = run.trajectories.slice(8 * i, 8 * i + 8).map(({ reward }) => reward);
      const deviations = [rewards.slice(0, 4), rewards.slice(4)].map((group) => {
        const solved = sum(group);
        return Math.sqrt((solved * (1 - solved / 4)) / 3);
      });
      expect(values.reward).toBeCloseTo(sum(rewards) / 8, 12);
      expect(values.reward_std).toBeCloseTo(sum(deviations) / 2, 12);
      expect(values.frac_reward_zero_std).toBe(deviations.filter((value) => value === 0).length / 2);
    }
  });

  test("groups of equal rewards give no gradient", async () => {
    const { rounds, updates, model } = await train(
      { klCoefficient: 0 },
      undefined,
      new ScriptedPolicy(luckyReply(() => 1)),
    );
    expect(rounds[0]).toMatchObject({ reward: 1, reward_std: 0, frac_reward_zero_std: 1 });
    expect(updates[0]).toMatchObject({ grad_norm: 0 });
    expect(model.theta).toBe(0);
  });

  test("an episode that a fault of the environment ended is left out of its group", async () => {
    const environment = errandEnvironment({ turns: 2 });
    const start = environment.start;
    let episodes = 0;
    environment.start = async (task, options) => {
      const broken = episodes++ % 4 === 0;
      const episode = await start(task, options);
      return broken ? { ...episode, step: () => Promise.reject(new Error("closed")) } : episode;
    };
    const { model, run, updates } = await train({ iterations: 1 }, environment);
    expect(run.trajectories.filter(({ fault }) => fault !== undefined)).toHaveLength(2);
    const texts = model.surrogates.flatMap((call) => call.texts);
    expect(texts).toHaveLength(6);
    expect(sum(texts.map(({ advantages }) => advantages[0]!))).toBeCloseTo(0, 9);
    expect(updates).toHaveLength(1);
    // If later all episodes fail there is no step, and the run goes on.
    let started = 0;
    environment.start = (task, options) =>
      ++started > 8 ? Promise.reject(new Error("closed")) : start(task, options);
    const { result, model: unchanged } = await train({}, environment);
    expect(result).toMatchObject({ updates: 2, episodes: 16, environmentSteps: 16 });
    expect(unchanged.events.filter(({ kind }) => kind === "step")).toHaveLength(1);
  });
});

describe("credit per turn", () => {
  const turn = (reward: number) => ({ reward });
  const returns = (rewards: number[], total: number, discount: number) =>
    returnsFrom({ turns: rewards.map(turn), reward: total } as never, discount);

  test("a return is the discounted sum of the rewards from its turn on", () => {
    expect(returns([1, 2, 4], 7, 1)).toEqual([7, 6, 4]);
    expect(returns([1, 2, 4], 7, 0.5)).toEqual([3, 4, 4]);
    expect(returns([1, 2, 4], 7, 0)).toEqual([1, 2, 4]);
    // An episode that was cut short counts with a cost that no turn has.
    expect(returns([1, 2], -5, 0.5)).toEqual([-2, -6]);
  });

  /** Pays for the first right word only, at any turn, and goes on to its turn limit. */
  function paying() {
    const environment = errandEnvironment({ turns: 3 });
    const { start } = environment;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      let turns = 0;
      return {
        ...episode,
        step: async (action) => {
          const result = await episode.step(action);
          return { ...result, reward: result.reward + 0.25 * turns++ };
        },
      };
    };
    return environment;
  }

  test.each(["turn", "turn-batch"] as const)("%s: advantages equal an independent count", async (credit) => {
    const config = { iterations: 1, credit, discount: 0.5, advantage: "mean-only" } as const;
    const { model, run } = await train(config, paying());
    const groups = [run.trajectories.slice(0, 4), run.trajectories.slice(4)];
    const expected = run.trajectories.map(() => [] as number[]);
    for (const [g, group] of groups.entries()) {
      for (let j = 0; j < 3; j++) {
        const reached = group.filter(({ turns }) => turns.length > j);
        const g_j = reached.map(({ turns }) =>
          turns.slice(j).reduce((total, { reward }, l) => total + 0.5 ** l * reward, 0),
        );
        for (const [i, trajectory] of reached.entries())
          expected[4 * g + group.indexOf(trajectory)]!.push(reached.length < 2 ? 0 : g_j[i]! - mean(g_j));
      }
    }
    const all = expected.flat();
    const whole = credit === "turn-batch";
    const [centre, scale] = whole ? [mean(all), deviation(all) + 1e-4] : [0, 1];
    expect(new Set(all).size).toBeGreaterThan(3);
    for (const { prompt, response, advantages, weight } of model.surrogates.flatMap((call) => call.texts)) {
      const i = run.trajectories.findIndex(({ conversation }) =>
        String(conversation.tokens).startsWith(String([...prompt, ...response])),
      );
      // One advantage per run of the policy's tokens.
      const runs: number[] = [];
      for (const [t, share] of (weight as number[]).entries()) {
        if (share === 0) continue;
        if (t === 0 || (weight as number[])[t - 1] === 0) runs.push(advantages[t]!);
        else expect(advantages[t]).toBe(runs.at(-1));
      }
      expect(runs).toHaveLength(expected[i]!.length);
      for (const [j, one] of runs.entries()) expect(one).toBeCloseTo((expected[i]![j]! - centre) / scale, 9);
    }
  });

  test("with the reward at the end and episodes of equal length it is credit per episode", async () => {
    const environment = () => errandEnvironment({ turns: 2 });
    const flat = await train({ iterations: 1 }, environment());
    const turns = await train({ iterations: 1, credit: "turn" }, environment());
    const advantagesOf = ({ model }: typeof flat) =>
      model.surrogates.flatMap(({ texts }) =>
        texts.map(({ advantages, weight }) =>
          Array.from(advantages).filter((_, t) => (weight as number[])[t]! > 0),
        ),
      );
    expect(turns.run.trajectories.every(({ turns }) => turns.length === 2)).toBe(true);
    expect(advantagesOf(turns)).toEqual(advantagesOf(flat));
    expect(turns.run.samples[0]!.facts.advantages).toMatch(/^-?\d\.\d{3} -?\d\.\d{3}$/);
  });
});

describe("a step", () => {
  test("scores the policy's tokens under the policy that generated them", async () => {
    const { model, updates } = await train({ iterations: 1, epochs: 3, learningRate: 10 });
    const texts = model.surrogates.flatMap((call) => call.texts);
    expect(texts).toHaveLength(24);
    for (const { response, oldLogProbs, weight } of texts) {
      for (const [t, id] of response.entries()) {
        const own = (weight as number[])[t]! > 0;
        expect(oldLogProbs[t]).toBe(own ? Math.fround(model.logProb(id, 0)) : 0);
      }
    }
    for (const call of [texts.slice(0, 8), texts.slice(8, 16)])
      expect(sum(call.map(({ weight }) => sum(weight as number[])))).toBeCloseTo(1, 12);
    // Before the first step the policy is the one that generated the tokens.
    expect(updates[0]!.approx_kl).toBeCloseTo(0, 9);
    expect(updates[0]!["clip_ratio/region_mean"]).toBe(0);
    expect(updates[2]!.approx_kl).toBeGreaterThan(1e-6);
    for (const { grad_norm } of updates) expect(grad_norm).toBeGreaterThan(0);
  });

  test("the next iteration's episodes are scored under the policy that generated them too", async () => {
    const { updates } = await train({ iterations: 3, learningRate: 10 });
    expect(updates).toHaveLength(3);
    for (const { approx_kl } of updates) expect(approx_kl).toBeCloseTo(0, 9);
  });

  test("metrics agree with an independent count of the tokens", async () => {
    const { model, updates } = await train({
      iterations: 1,
      epochs: 4,
      learningRate: 100,
      clipLow: 0.1,
      clipHigh: 0.12,
      klCoefficient: 0.1,
    });
    const again = new ScriptedPolicy(() => "");
    let [lows, highs] = [0, 0];
    for (const [epoch, values] of updates.entries()) {
      const texts = model.surrogates.flatMap((call) => call.texts).slice(8 * epoch, 8 * epoch + 8);
      let [tokens, low, high, kl, loss] = [0, 0, 0, 0, 0];
      const results = await again.tokenSurrogate(texts, model.surrogates[0]!.options);
      for (const [i, text] of texts.entries()) {
        for (const [t, id] of text.response.entries()) {
          const weight = (text.weight as number[])[t]!;
          if (weight === 0) continue;
          tokens++;
          const ratio = Math.exp(again.logProb(id) - text.oldLogProbs[t]!);
          const advantage = text.advantages[t]!;
          if (advantage > 0 && ratio > 1.12) high++;
          if (advantage < 0 && ratio < 0.9) low++;
          const difference = again.logProb(id, 0) - again.logProb(id);
          kl += Math.exp(difference) - difference - 1;
          loss += weight * results[i]!.losses[t]!;
        }
      }
      expect(values["tokens/policy"]).toBe(tokens);
      expect(values["clip_ratio/low_mean"]).toBeCloseTo(low / tokens, 9);
      expect(values["clip_ratio/high_mean"]).toBeCloseTo(high / tokens, 9);
      expect(values["clip_ratio/region_mean"]).toBeCloseTo((low + high) / tokens, 9);
      expect(values.kl).toBeCloseTo(kl / tokens, 5);
      expect(values["loss/policy"]).toBeCloseTo(loss, 6);
      expect(values.entropy).toBeCloseTo(entropy, 9);
      lows += low;
      highs += high;
      await again.step({ learningRate: 100 });
    }
    expect(Math.min(lows, highs)).toBeGreaterThan(0);
    expect(again.theta).toBe(model.theta);
  });

  test("the reference is θ at the start of training, and is computed only if needed", async () => {
    const without = await train();
    expect(without.model.reference).toBeUndefined();
    expect(without.updates[0]).not.toHaveProperty("kl");
    const started = new ScriptedPolicy(luckyReply(() => 0.5));
    started.theta = 0.25;
    const { model } = await train({ klCoefficient: 0.1 }, undefined, started);
    expect(model.reference).toBe(0.25);
    for (const { texts } of model.surrogates)
      for (const { referenceLogProbs, response, weight } of texts)
        for (const [t, id] of response.entries())
          if ((weight as number[])[t]! > 0)
            expect(referenceLogProbs![t]).toBe(Math.fround(model.logProb(id, 0.25)));
  });

  test("options reach the loss", async () => {
    const { model } = await train({
      clipLow: 0.1,
      clipHigh: 0.28,
      klCoefficient: 0.5,
      entropyCoefficient: 0.01,
      actionTemperature: 0.7,
    });
    expect(model.surrogates[0]!.options).toEqual({
      clipLow: 0.1,
      clipHigh: 0.28,
      klCoefficient: 0.5,
      entropyCoefficient: 0.01,
      temperature: 0.7,
    });
    expect(model.calls[0]!.request.temperature).toBe(0.7);
  });

  test("the learning rate follows the schedule over all steps of the run", async () => {
    const { updates } = await train({
      epochs: 2,
      batchSize: 4,
      learningRate: 2,
      schedule: { shape: "linear", warmupSteps: 2 },
    });
    expect(updates.map(({ learning_rate }) => learning_rate)).toEqual([
      1, // half of it, during the warm-up
      ...[1, 2, 3, 4, 5, 6, 7].map((step) => 2 * (1 - step / 8)),
    ]);
  });

  test("too many consecutive skipped steps stop the run", async () => {
    const model = new ScriptedPolicy(luckyReply(() => 0.5));
    model.skip = () => true;
    await expect(train({ epochs: 4, maxSkippedSteps: 3 }, undefined, model)).rejects.toMatchObject({
      code: "ERR_NOT_FINITE",
    });
    expect(model.events.filter(({ kind }) => kind === "step")).toHaveLength(3);
  });
});

describe("served episodes", () => {
  /** Trains on episodes that weights of θ = -0.4 generated, from θ = 0.25 on. */
  async function trainServed(config: GrpoConfigInput = {}, redacted = -1) {
    const { run: played } = await train({ iterations: 1 });
    const model = new ScriptedPolicy(() => "");
    model.theta = 0.25;
    const served = played.trajectories.map((trajectory) => ({
      ...trajectory,
      turns: trajectory.turns.map((turn) => ({
        ...turn,
        logProbs: Float32Array.from(turn.tokens, (id, t) => (t === redacted ? NaN : model.logProb(id, -0.4))),
      })),
    }));
    const run = { ...memoryRun(), nextEpisodes: async () => served };
    await trainGrpo({
      ...{ model, environment: errandEnvironment({ turns: 2 }), run },
      config: { ...small, iterations: 1, ...config },
    });
    const updates = run.rows.filter(({ values }) => "loss/policy" in values).map(({ values }) => values);
    return { model, served, updates, texts: model.surrogates.flatMap((call) => call.texts) };
  }

  test("have the policy that generated them as the old one", async () => {
    const clip = { clipLow: 0.1, clipHigh: 0.12 };
    const { model, served, texts, updates } = await trainServed(clip, 1);
    expect(texts).toHaveLength(served.length);
    // L and dL/dθ by the equations at the top of grpo.ts, with ρ from the recorded log
    // probabilities.
    let [loss, gradient, clipped, restored] = [0, 0, 0, 0];
    for (const { response, weight, advantages, oldLogProbs } of texts) {
      let t = 0; // of the turn
      for (const [i, id] of response.entries()) {
        const w = (weight as number[])[i]!;
        t = w > 0 ? t + 1 : 0;
        if (w === 0) continue;
        const isRedacted = t === 2;
        if (isRedacted) restored++;
        expect(oldLogProbs[i]).toBe(Math.fround(model.logProb(id, isRedacted ? 0.25 : -0.4)));
        const ratio = Math.exp(model.logProb(id, 0.25) - oldLogProbs[i]!);
        const advantage = advantages[i]!;
        const held = Math.min(Math.max(ratio, 0.9), 1.12) * advantage;
        loss -= w * Math.min(ratio * advantage, held);
        if (held < ratio * advantage) clipped++;
        else gradient -= w * advantage * (model.logProb(id, 1) - model.logProb(id, 0)) * ratio;
      }
    }
    expect(restored).toBe(16);
    expect(clipped).toBeGreaterThan(0);
    expect(updates[0]!["loss/policy"]).toBeCloseTo(loss, 6);
    expect(model.theta).toBeCloseTo(0.25 - gradient, 5);
  });

  test("are not trained on where a grammar chose the tokens; their rewards count all the same", async () => {
    const { run: played } = await train({ iterations: 1 });
    const serve = async (constrained: (episode: number, turn: number) => boolean) => {
      const served = played.trajectories.map((trajectory, e) => ({
        ...trajectory,
        turns: trajectory.turns.map((turn, t) => ({ ...turn, info: { constrained: constrained(e, t) } })),
      }));
      const model = new ScriptedPolicy(() => "");
      const run = { ...memoryRun(), nextEpisodes: async () => served };
      const environment = errandEnvironment({ turns: 2 });
      await trainGrpo({ model, environment, run, config: { ...small, iterations: 1 } });
      const texts = model.surrogates.flatMap((call) => call.texts);
      return { texts, served, metrics: run.rows.map(({ values }) => values) };
    };
    const advantages = (texts: readonly { advantages: ArrayLike<number> }[]) =>
      texts.map(({ advantages }) => advantages[0]);

    const all = await serve(() => false);
    expect(all.metrics[0]).not.toHaveProperty("completions/constrained");
    // The first turn of each episode: only the tokens of the second have a weight.
    const first = await serve((_, turn) => turn === 0);
    expect(advantages(first.texts)).toEqual(advantages(all.texts));
    expect(first.metrics[0]).toMatchObject({ "completions/constrained": 1 / 2 });
    for (const { weight, response } of first.texts) {
      const trained = response.filter((_, t) => (weight as number[])[t]! > 0);
      expect(first.served.map(({ turns }) => String(turns[1]!.tokens))).toContain(String(trained));
      expect(sum(weight as number[])).toBeCloseTo(1 / 8, 9);
    }
    // Two whole episodes: the others are trained on as before, relative to these too.
    const some = await serve((episode) => episode === 1 || episode === 6);
    expect(some.texts).toHaveLength(6);
    expect(advantages(all.texts)).toEqual(expect.arrayContaining(advantages(some.texts)));
    expect((await serve(() => true)).texts).toEqual([]);
  });

  test("of several sequences have each turn's weights and advantage", async () => {
    // The template drops the reasoning of the first turn, so the second is a sequence of its own.
    const lucky = luckyReply(() => 0.5);
    const reasoning = () => new ScriptedPolicy((...asked) => `why\n</think>\n\n${lucky(...asked)}`, likeQwq);
    const { run: played } = await train({ iterations: 1 }, undefined, reasoning());
    const served = played.trajectories.map((trajectory) => ({
      ...trajectory,
      turns: trajectory.turns.map((turn, t) => ({ ...turn, info: { constrained: t === 0 } })),
    }));
    const run = { ...memoryRun(), nextEpisodes: async () => served };
    const model = reasoning();
    const config = {
      ...small,
      iterations: 1,
      credit: "turn",
      advantage: "mean-only",
      discount: 0.5,
    } as const;
    await trainGrpo({ model, environment: errandEnvironment({ turns: 2 }), run, config });
    const texts = model.surrogates.flatMap((call) => call.texts);
    expect(texts).toHaveLength(16);
    let compared = 0;
    for (let i = 0; i < 16; i += 2) {
      const [first, second] = [texts[i]!, texts[i + 1]!];
      expect(sum(first.weight as number[])).toBe(0); // constrained
      expect(sum(second.weight as number[])).toBeCloseTo(1 / 8, 9);
      // The only reward is at the end, and γ is a half.
      expect(second.advantages[0]).toBeCloseTo(2 * first.advantages[0]!, 9);
      if (second.advantages[0] !== 0) compared++;
    }
    expect(compared).toBeGreaterThan(0);
  });

  test("have θ before the step as the old policy if actions are sampled at another temperature", async () => {
    const { model, texts } = await trainServed({ actionTemperature: 0.7 });
    for (const { response, weight, oldLogProbs } of texts)
      for (const [i, id] of response.entries())
        if ((weight as number[])[i]! > 0) expect(oldLogProbs[i]).toBe(Math.fround(model.logProb(id, 0.25)));
  });
});

test("the samples of an update are whole episodes", async () => {
  const { run } = await train({ iterations: 1 });
  expect(run.samples).toHaveLength(4);
  for (const { texts, facts, turn } of run.samples) {
    expect(turn).toBeUndefined();
    expect(texts.state).toBeUndefined(); // the episode's record has it
    expect(texts.episode).toContain("OBSERVED wants");
    expect(Object.keys(facts)).toEqual(["reward", "advantage"]);
  }
});

test("the policy is evaluated on held-out tasks at the configured intervals", async () => {
  const { run } = await train({ iterations: 3, evaluation: { every: 2, episodes: 3 } });
  const rows = run.rows.filter(({ values }) => "eval/success" in values);
  expect(rows.map(({ values }) => values["eval/environment_steps"])).toEqual([0, 32, 48]);
});
