import { describe, expect, test } from "vitest";
import { type ArcherConfigInput, archerConfig, trainArcher } from "../../lib/algorithms/archer.ts";
import type { Turn } from "../../lib/episodes/trajectory.ts";
import type { ScoredText } from "../../lib/model/language-model.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";
import { tinyLearner } from "../support/tiny.ts";

const small: ArcherConfigInput = {
  iterations: 1,
  episodesPerIteration: 8,
  criticUpdatesPerIteration: 2,
  policyUpdatesPerIteration: 1,
  criticIterations: 0,
  batchSize: 6,
  discount: 0.5,
  criticLearningRate: 1,
  policyLearningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  seed: 3,
};

/** The value head of the scripted policy: phi times this, before the token at `t` of a response. */
const feature = (t: number) => 0.1 + (t % 7) / 10;
const phi = 0.5;

async function train(
  config: ArcherConfigInput = {},
  environment = errandEnvironment({ turns: 2 }),
  model = new ScriptedPolicy(luckyReply(() => 0.5)),
) {
  const run = memoryRun();
  const phis: number[] = [];
  const thetas: number[] = [];
  const operations: string[] = [];
  model.before = (operation) => {
    operations.push(operation);
    if (operation !== "step") return;
    phis.push(model.phi);
    thetas.push(model.theta);
  };
  const result = await trainArcher({ model, environment, config: { ...small, ...config }, run });
  const updates = run.rows.filter(({ values }) => "tokens/gradient" in values).map(({ values }) => values);
  const steps = model.events.flatMap((event) => (event.kind === "step" ? [event.options] : []));
  return { model, run, result, updates, steps, phis, thetas, operations };
}

/** The losses of each update, joined: those of the critic have a value coefficient. */
function textsOf(model: ScriptedPolicy, critic: boolean) {
  return model.surrogates
    .filter(({ options }) => options.withGradient !== false && (options.value !== undefined) === critic)
    .flatMap(({ texts }) => texts);
}

describe("the configuration", () => {
  test("defaults are those of the published code where it has one", () => {
    expect(archerConfig.parse({})).toMatchObject({
      criticUpdatesPerIteration: 50,
      policyUpdatesPerIteration: 3,
      discount: 0.95,
      replayCapacity: 100_000,
      criticLearningRate: 1e-5,
      policyLearningRate: 1e-5,
    });
  });

  test.each([
    [{ targetRate: 0.1 }, /targetRate/],
    [{ constrainActions: true }, /the policy's choice/],
    [{ discount: 1.5 }, /discount/],
    [{ baselineCoefficient: -1 }, /baselineCoefficient/],
  ])("%j is refused", async (config, message) => {
    await expect(train(config as never)).rejects.toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringMatching(message) }),
    );
  });
});

describe("a critic step", () => {
  test.each([true, false])(
    "has the targets of J_Q and J_V; a turn limit that ends: %s",
    async (turnLimitEnds) => {
      const { model, run, updates } = await train({}, errandEnvironment({ turns: 2, turnLimitEnds }));
      const turns = new Map<string, Turn[]>();
      for (const turn of run.trajectories.flatMap((trajectory) => trajectory.turns)) {
        const key = String([...turn.state.prompt(), -1, ...turn.tokens]);
        turns.set(key, [...(turns.get(key) ?? []), turn]);
      }
      const texts = textsOf(model, true);
      expect(texts).toHaveLength(12);
      const actions = model.calls.slice(16, -6); // after the episodes, before the policy's step
      let bootstrapped = 0;
      for (const { prompt, response, returns, weight, advantages } of texts) {
        const last = response.length - 1;
        const [turn] = turns.get(String([...prompt, -1, ...response.slice(0, last)]))!;
        const next = turn!.terminated ? 0 : 0.5 * phi * feature(0);
        if (next > 0) bootstrapped++;
        // Both critic steps have targets under the θ before the first of them.
        expect(returns![last]).toBeCloseTo(turn!.reward + next, 6);
        const fresh = actions
          .filter((call) => call.prompt === model.decode(prompt))
          .map(({ prompt: text, request }) => {
            const reply = model.reply(text, "online", 0, request);
            return phi * feature(model.encode(reply).length + 1);
          });
        expect(fresh.some((value) => Math.abs(value - returns![0]!) < 1e-6)).toBe(true);
        expect(Array.from(weight as number[])).toEqual(
          response.map((_, t) => (t === 0 || t === last ? 1 / 6 : 0)),
        );
        expect(new Set(Array.from(advantages))).toEqual(new Set([0]));
      }
      expect(bootstrapped).toBeGreaterThan(0);
      const ends = texts.filter(({ prompt }) => model.decode(prompt).includes("OBSERVED"));
      expect(ends.length).toBeGreaterThan(0);
      expect(updates).toHaveLength(3);
    },
  );

  test("has the gradient of both losses, and leaves the policy alone", async () => {
    const { model, phis, thetas, updates } = await train({ criticUpdatesPerIteration: 1 });
    const texts = textsOf(model, true);
    const loss = (value: number) =>
      texts.reduce((sum, { response, returns }) => {
        const at = (t: number) => (value * feature(t) - returns![t]!) ** 2 / 2;
        return sum + (at(0) + at(response.length - 1)) / texts.length;
      }, 0);
    const gradient = (loss(phi + 1e-4) - loss(phi - 1e-4)) / 2e-4;
    expect(Math.abs(gradient)).toBeGreaterThan(1e-3);
    expect(phis).toHaveLength(2); // before the critic's step, and before the policy's
    expect(phis[1]).toBeCloseTo(phi - gradient, 6);
    expect(thetas).toEqual([0, 0]);
    expect(updates[0]!["loss/critic"]).toBeCloseTo(loss(phi), 6);
    expect(updates[0]!["loss/q"]! + updates[0]!["loss/v"]!).toBeCloseTo(loss(phi), 6);
  });

  test("has targets under a copy of θ that is renewed every criticUpdatesPerTarget steps", async () => {
    const { model, run, phis } = await train({ criticUpdatesPerIteration: 5, criticUpdatesPerTarget: 2 });
    const rewards = new Map(
      run.trajectories.flatMap(({ turns }) =>
        turns.map(({ state, tokens, reward, terminated }) => [
          String([...state.prompt(), -1, ...tokens]),
          { reward, terminated },
        ]),
      ),
    );
    const texts = textsOf(model, true);
    expect(texts).toHaveLength(30);
    let bootstrapped = 0;
    for (const [i, { prompt, response, returns }] of texts.entries()) {
      const last = response.length - 1;
      const turn = rewards.get(String([...prompt, -1, ...response.slice(0, last)]))!;
      if (turn.terminated) continue;
      const copied = [0, 0, 2, 2, 4][Math.floor(i / 6)]!;
      expect(returns![last]).toBeCloseTo(turn.reward + 0.5 * phis[copied]! * feature(0), 6);
      bootstrapped++;
    }
    expect(bootstrapped).toBeGreaterThan(5);
    expect(new Set(phis.slice(0, 5)).size).toBe(5);
    // Each step has a batch of its own, also of those with the same copy.
    const batches = [0, 6, 12, 18, 24].map((from) =>
      String(texts.slice(from, from + 6).map(({ prompt, response }) => [prompt, response])),
    );
    expect(new Set(batches).size).toBe(5);
  });

  test("can leave the layers that the policy uses alone", async () => {
    for (const sharedCritic of [true, false]) {
      const { model } = await train({ sharedCritic, baselineCoefficient: 0.3 });
      const trained = model.surrogates.filter(({ options }) => options.withGradient !== false);
      expect(trained.map(({ options }) => options.value!.detached)).toEqual(Array(3).fill(!sharedCritic));
    }
  });

  test("draws only what the replay buffer holds, also of earlier iterations", async () => {
    const drawn = async (replayCapacity: number) => {
      const { run } = await train({ iterations: 3, criticUpdatesPerIteration: 8, replayCapacity });
      const last = run.samples.filter(({ facts, update }) => "qTarget" in facts && update >= 18);
      return last.map(({ trajectory }) => trajectory);
    };
    expect(Math.min(...(await drawn(1000)))).toBeLessThan(8);
    expect(Math.min(...(await drawn(16)))).toBeGreaterThanOrEqual(16);
  });
});

test.each([true, false])(
  "no text with a value at its end exceeds the context; a turn limit that ends: %s",
  async (turnLimitEnds) => {
    const environment = () => errandEnvironment({ words: ["key"], turns: 2, turnLimitEnds });
    const policy = () => {
      let plays = true;
      const model = new ScriptedPolicy((_prompt, _weights, _i, { maxNewTokens }) => {
        // After the episodes, the policy says as much as it may.
        const text = `Thought:\nhm\nAction:\n${plays ? "soap" : "soap".repeat(100)}`;
        return text.length < maxNewTokens! ? text : `${text.slice(0, maxNewTokens)}…`;
      });
      model.dropCaches = async () => {
        plays = false;
      };
      return model;
    };
    const { run } = await train({}, environment(), policy());
    const { turns, conversation } = run.trajectories[0]!;
    expect(turns).toHaveLength(2);
    const ends = turns.map(({ state, tokens }) => state.prompt().length + tokens.length);
    const states = [turns[1]!.state.prompt().length, conversation.prompt().length];
    let checked = 0;
    for (const maxPositions of [...ends, ...states].flatMap((length) => [length, length + 1])) {
      const model = Object.assign(policy(), { maxPositions });
      const { values, tokenSurrogate } = model;
      const check = (texts: readonly ScoredText[]) => {
        for (const { prompt, response } of texts)
          expect(prompt.length + response.length).toBeLessThanOrEqual(maxPositions);
        checked += texts.length;
      };
      model.values = (texts) => {
        check(texts);
        return values.call(model, texts);
      };
      model.tokenSurrogate = (texts, options) => {
        check(texts);
        return tokenSurrogate.call(model, texts, options);
      };
      await train({}, environment(), model);
    }
    expect(checked).toBeGreaterThan(50);
  },
);

describe("a policy step", () => {
  test("has the gradient of -A log π for actions that θ itself samples", async () => {
    const { model, run, phis, thetas, updates } = await train({ criticUpdatesPerIteration: 1 });
    const texts = textsOf(model, false);
    expect(texts).toHaveLength(6);
    const now = phis[1]!; // after the critic's step
    const loss = (theta: number) =>
      texts.reduce((sum, { response }) => {
        const advantage = now * (feature(response.length) - feature(0));
        return sum - (advantage * response.reduce((all, id) => all + model.logProb(id, theta), 0)) / 6;
      }, 0);
    const gradient = (loss(1e-4) - loss(-1e-4)) / 2e-4;
    expect(Math.abs(gradient)).toBeGreaterThan(1e-3);
    expect(model.theta - thetas[1]!).toBeCloseTo(-gradient, 5);
    // ã is generated anew: the calls after those of the episodes and of the targets.
    const fresh = model.calls.slice(-6);
    for (const [i, { prompt }] of texts.entries()) expect(fresh[i]!.prompt).toBe(model.decode(prompt));
    for (const { oldLogProbs, response } of texts)
      expect(Array.from(oldLogProbs)).toEqual(response.map((id) => Math.fround(model.logProb(id, 0))));
    const samples = run.samples.filter(({ facts }) => "advantage" in facts);
    expect(samples).toHaveLength(4);
    for (const { facts } of samples)
      expect(facts.advantage).toBeCloseTo((facts.q as number) - (facts.v as number), 12);
    const policy = updates.at(-1)!;
    expect(policy["tokens/gradient"]).toBe(texts.reduce((sum, { response }) => sum + response.length, 0));
  });

  test.each([undefined, 0.3])(
    "reads Q, V and log probabilities in one pass; baseline %s",
    async (coefficient) => {
      const more = coefficient === undefined ? {} : { baselineCoefficient: coefficient };
      const { model, operations } = await train({ criticUpdatesPerIteration: 1, ...more });
      const ofPolicy = operations.slice(operations.lastIndexOf("generate") + 1);
      expect(ofPolicy).toEqual(["tokenSurrogate", "tokenSurrogate", "step"]);
      expect(model.surrogates.at(-2)!.options).toMatchObject({ withGradient: false, temperature: 1 });
    },
  );

  test("with a baseline of tokens has an advantage per token, and trains the baseline towards Q", async () => {
    const coefficient = 0.3;
    const { model, phis, thetas, updates } = await train({
      criticUpdatesPerIteration: 1,
      baselineCoefficient: coefficient,
    });
    const [{ texts }] = model.surrogates.slice(-1) as [(typeof model.surrogates)[0]];
    expect(texts).toHaveLength(6);
    const now = phis[1]!; // after the critic's step
    const q = (response: readonly number[]) => now * feature(response.length);
    const gradientOf = (loss: (at: number) => number, at: number) =>
      (loss(at + 1e-4) - loss(at - 1e-4)) / 2e-4;
    const over = (term: (id: number, t: number, response: readonly number[]) => number) =>
      texts.reduce(
        (sum, { response }) => sum + response.reduce((all, id, t) => all + term(id, t, response), 0),
        0,
      );
    const policy = gradientOf(
      (theta) => over((id, t, all) => -(q(all) - now * feature(t)) * model.logProb(id, theta)) / 6,
      0,
    );
    const baseline = gradientOf(
      (value) => over((_, t, all) => (value * feature(t) - q(all)) ** 2 / 2) / 6,
      now,
    );
    expect(Math.abs(policy)).toBeGreaterThan(1e-3);
    expect(Math.abs(baseline)).toBeGreaterThan(1e-3);
    expect(model.theta - thetas[1]!).toBeCloseTo(-policy, 5);
    expect(model.phi - now).toBeCloseTo(-coefficient * baseline, 5);
    const count = over(() => 1);
    expect(updates.at(-1)!["loss/baseline"]).toBeCloseTo(
      over((_, t, all) => (now * feature(t) - q(all)) ** 2 / 2) / count,
      6,
    );
  });

  test("begins after the iterations of the critic alone; each loss has its own moments and rate", async () => {
    const { steps, result } = await train({
      iterations: 3,
      criticIterations: 2,
      criticLearningRate: 2,
      policyLearningRate: 3,
    });
    expect(steps.map(({ moments, learningRate }) => [moments, learningRate])).toEqual([
      ...Array(4).fill(["critic", 2]),
      ...[
        ["critic", 2],
        ["critic", 2],
        ["policy", 3],
      ],
    ]);
    expect(result.updates).toBe(7);
  });

  test("has a warm-up of its own, as the critic has", async () => {
    const config = { iterations: 3, criticIterations: 1, policyUpdatesPerIteration: 2 };
    const { steps } = await train({ ...config, schedule: { warmupSteps: 4 } });
    const rates = (loss: string) =>
      steps.filter(({ moments }) => moments === loss).map(({ learningRate }) => learningRate);
    expect(rates("critic")).toEqual([0.25, 0.5, 0.75, 1, 1, 1]);
    expect(rates("policy")).toEqual([0.25, 0.5, 0.75, 1]);
  });
});

test("too many skipped steps of one loss stop the run", async () => {
  const model = new ScriptedPolicy(luckyReply(() => 0.5));
  let steps = 0;
  model.skip = () => ++steps % 3 === 0; // every policy step
  await expect(train({ iterations: 9, maxSkippedSteps: 3 }, undefined, model)).rejects.toMatchObject({
    code: "ERR_NOT_FINITE",
  });
  expect(steps).toBe(9);
});

test("an iteration of which every episode failed does not end the run", async () => {
  const environment = errandEnvironment({ turns: 2 });
  const { start } = environment;
  let started = 0;
  environment.start = (task, options) =>
    ++started > 8 ? Promise.reject(new Error("closed")) : start(task, options);
  const { result } = await train({ iterations: 2 }, environment);
  expect(result).toMatchObject({ episodes: 16 });
});

test("Q(s, a) of a learner is the value of the state after a, and V(s) that before it", async () => {
  const model = await tinyLearner({ dtype: "float32", threads: 1, seed: 3, heads: "value" });
  try {
    const [prompt, action] = [
      [5, 9, 2],
      [7, 1, 8, 4],
    ];
    // Gives the head weights other than 0.
    const zeros = [0, 0, 0, 0];
    const text = { prompt, response: action, oldLogProbs: zeros, advantages: zeros, oldValues: zeros };
    await model.tokenSurrogate([{ ...text, returns: [1, -2, 3, 5] }], { value: { coefficient: 1 } });
    await model.step({ learningRate: 0.1 });
    const read = async (prompt: number[], response: number[], weight: number[]) =>
      (await model.values([{ prompt, response, weight }]))[0]!;
    const both = await read(prompt, [...action, model.endOfTurn], [1, 0, 0, 0, 1]);
    const v = await read(prompt, [3], [1]);
    const q = await read([...prompt, ...action], [6], [1]);
    expect(both[0]).toBeCloseTo(v[0]!, 5);
    expect(both[4]).toBeCloseTo(q[0]!, 5);
    expect(Math.abs(both[4]! - both[0]!)).toBeGreaterThan(1e-3);
  } finally {
    await model.dispose();
  }
});
