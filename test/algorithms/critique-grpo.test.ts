import { describe, expect, test } from "vitest";
import {
  type CritiqueGrpoConfigInput,
  critiqueGrpoConfig,
  shapingSlope,
  trainCritiqueGrpo,
} from "../../lib/algorithms/critique-grpo.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { groupAdvantages } from "../../lib/training/group-advantages.ts";
import { countActions, errandEnvironment, luckyReply } from "../support/errand.ts";
import { act, roleOf, target } from "../support/roles.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const small: CritiqueGrpoConfigInput = {
  iterations: 1,
  episodesPerIteration: 8,
  groupSize: 4,
  batchSize: 12,
  learningRate: 1,
  maxActionTokens: 100,
  maxCriticTokens: 200,
  maxPromptTokens: 10_000,
  seed: 3,
};

/** A policy that finds the word in half of its episodes, and a refiner that says `refined`. */
function policy(refined: string, share = 0.5) {
  const lucky = luckyReply(() => share);
  return new ScriptedPolicy((prompt, weights, i, request) => {
    const role = roleOf(prompt);
    if (role === "backup") return target;
    return role === "refiner" ? refined : lucky(prompt, weights, i, request);
  });
}

async function train(
  config: CritiqueGrpoConfigInput = {},
  model = policy(act("key")),
  environment = errandEnvironment({ turns: 2, words: ["key"] }),
) {
  const run = memoryRun();
  const result = await trainCritiqueGrpo({ model, environment, config: { ...small, ...config }, run });
  const updates = run.rows.filter(({ values }) => "loss/policy" in values).map(({ values }) => values);
  const refining = run.rows.filter(({ values }) => "time/refine" in values).map(({ values }) => values);
  // Refinements are not clipped.
  const texts = (refinements: boolean) =>
    model.surrogates
      .filter(({ options }) => (options.clipLow === 1) === refinements)
      .flatMap(({ texts }) => texts);
  return { model, run, result, updates, refining, episodes: texts(false), refinements: texts(true) };
}

describe("the configuration", () => {
  test("defaults are those of the published code where it has one", () => {
    expect(critiqueGrpoConfig.parse({})).toMatchObject({
      refinementsPerGroup: 1,
      shaping: 0.1,
      advantage: "mean-only",
      normalization: "constant",
      klCoefficient: 0,
    });
  });

  test.each([
    [{ episodesPerIteration: 6 }, /multiple of groupSize/],
    [{ refinedPerGroup: 5 }, /must not exceed groupSize/],
    [{ refinedPerGroup: 2, refinementsPerGroup: 3 }, /must not exceed refinedPerGroup/],
    [{ shaping: 0 }, /shaping/],
    [{ constrainActions: true }, /the policy's choice/],
  ])("%j is refused", async (config, message) => {
    await expect(train(config)).rejects.toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringMatching(message) }),
    );
  });
});

test("the slope of the shaping is the derivative of p / (p + γ) by log p, and largest at p = γ", () => {
  const f = (logProb: number, shaping: number) => Math.exp(logProb) / (Math.exp(logProb) + shaping);
  for (const shaping of [0.01, 0.1, 0.5, 3]) {
    for (const p of [1e-12, 1e-3, 0.02, 0.1, 0.5, 0.9, 1]) {
      const x = Math.log(p);
      const numeric = (f(x + 1e-5, shaping) - f(x - 1e-5, shaping)) / 2e-5;
      expect(shapingSlope(x, shaping)).toBeCloseTo(numeric, 8);
    }
    const peak = shapingSlope(Math.log(shaping), shaping);
    expect(peak).toBeCloseTo(1 / 4, 12);
    for (const factor of [0.5, 0.9, 1.1, 2])
      expect(shapingSlope(Math.log(shaping * factor), shaping)).toBeLessThan(peak);
  }
  expect(shapingSlope(Number.NEGATIVE_INFINITY, 0.1)).toBe(0);
});

describe("refinements", () => {
  test("are generated after a critique that knows the outcome, and trained after the plain state", async () => {
    const { model, refinements } = await train();
    const critiques = model.calls.filter(({ prompt }) => roleOf(prompt) === "backup");
    expect(critiques).toHaveLength(8);
    for (const { prompt } of critiques) expect(prompt).toContain("Final score: ");
    const refiners = model.calls.filter(({ prompt }) => roleOf(prompt) === "refiner");
    expect(refiners).toHaveLength(8);
    for (const { prompt } of refiners) {
      expect(prompt).toContain(target);
      expect(prompt).not.toContain("Final score");
    }
    expect(refinements).toHaveLength(2);
    const plain = model.calls.filter(({ prompt }) => roleOf(prompt) === "policy").map(({ prompt }) => prompt);
    for (const { prompt, response } of refinements) {
      const text = model.decode(prompt);
      expect(plain).toContain(text);
      expect(text).not.toMatch(/judge|Optimality|score/);
      expect(model.decode(response)).toBe(`${act("key")}<|im_end|>`);
    }
  });

  test.each(["mean-only", "std"] as const)("join their group's %s advantages", async (advantage) => {
    const { model, run, episodes, refinements } = await train({ advantage });
    const logProb = (id: number) => model.logProb(id, 0);
    for (const group of [run.trajectories.slice(0, 4), run.trajectories.slice(4)]) {
      // Refined to "key", an episode succeeds.
      const expected = groupAdvantages([...group.map(({ reward }) => reward), 1], advantage);
      for (const [i, { conversation }] of group.entries()) {
        const whole = String(conversation.tokens);
        const own = episodes.filter(({ prompt, response }) =>
          whole.startsWith(String([...prompt, ...response])),
        );
        expect(own.map(({ advantages }) => advantages[0])).toContain(expected[i]);
      }
      const shaped = refinements.map(({ advantages, response }) =>
        Array.from(advantages, (a, t) => a / shapingSlope(logProb(response[t]!), 0.1)),
      );
      expect(shaped.some((list) => list.every((a) => Math.abs(a - expected[4]!) < 1e-6))).toBe(true);
    }
  });

  test("bad ones lose: their advantage is negative", async () => {
    const one = errandEnvironment({ turns: 1, words: ["key"], singleStep: false });
    const right = new ScriptedPolicy((prompt) => {
      const role = roleOf(prompt);
      if (role === "backup") return target;
      return act(role === "refiner" ? "soap" : "key");
    });
    const { model, refinements, episodes } = await train({}, right, one);
    for (const { advantages, response } of refinements)
      for (const [t, a] of Array.from(advantages).entries())
        expect(a).toBeCloseTo(-0.8 * shapingSlope(model.logProb(response[t]!, 0), 0.1), 6);
    for (const { advantages } of episodes) expect(advantages[0]).toBeCloseTo(0.2, 12);
  });

  test("that cannot be parsed or played are left out, and counted", async () => {
    const unreadable = await train({}, policy("whatever"));
    expect(unreadable.refinements).toEqual([]);
    expect(unreadable.refining[0]).toMatchObject({
      "refinements/dropped_unreadable": 8,
      "refinements/trained": 0,
    });
    expect(unreadable.updates).toHaveLength(1);
    // The second start of a task fails: every episode is played, none can be repeated.
    const environment = errandEnvironment({ turns: 2, words: ["key"] });
    const { start } = environment;
    let starts = 0;
    environment.start = (task, options) =>
      starts++ < 8 ? start(task, options) : Promise.reject(new Error("closed"));
    const unplayed = await train({}, undefined, environment);
    expect(unplayed.refining[0]).toMatchObject({ "refinements/unplayed": 8, "refinements/trained": 0 });
  });

  test("are left out if a limit cut their episode short, and the critic is told no score of such episodes", async () => {
    const cut = errandEnvironment({ turns: 2, words: ["key"], turnLimitEnds: false });
    // Nothing is ever right: every episode and every refined one reaches the limit.
    const { model, refining, episodes, refinements } = await train({}, policy(act("soap"), 0), cut);
    expect(refining[0]).toMatchObject({ "refinements/unplayed": 8, "refinements/trained": 0 });
    expect(refinements).toEqual([]);
    expect(episodes.length).toBeGreaterThan(0);
    const critic = model.calls.filter(({ prompt }) => roleOf(prompt) === "backup");
    expect(critic).toHaveLength(8);
    for (const { prompt } of critic) {
      expect(prompt).toContain("Nobody knows how it would have ended");
      expect(prompt).not.toContain("Final score");
    }
  });

  test("count as environment steps, with the actions before them", async () => {
    const { result, run, refining } = await train({ refinedPerGroup: 1, refinementsPerGroup: 1 });
    const turns = run.trajectories.reduce((sum, { turns }) => sum + turns.length, 0);
    // One refined episode per group: refined at its first action it takes one step, at its second
    // two.
    const more = result.environmentSteps - turns;
    expect(more).toBeGreaterThanOrEqual(2);
    expect(more).toBeLessThanOrEqual(4);
    expect(refining[0]).toMatchObject({
      environment_steps: result.environmentSteps,
      "refinements/reward": 1,
      "refinements/trained": 2,
    });
  });

  test("count as environment steps with actions that cannot be read, as in other episodes", async () => {
    const lucky = luckyReply(() => 0);
    const model = new ScriptedPolicy((prompt, weights, i, request) => {
      const role = roleOf(prompt);
      if (role === "backup") return target;
      if (role === "refiner") return act("rope");
      // After the refined action nothing can be read.
      return prompt.includes("rope") ? "whatever" : lucky(prompt, weights, i, request);
    });
    const environment = errandEnvironment({ turns: 3, words: ["key"] });
    const taken = countActions(environment);
    const { result } = await train({}, model, environment);
    const unreadable = model.calls.filter(
      ({ prompt }) => roleOf(prompt) === "policy" && prompt.includes("rope"),
    );
    expect(unreadable.length).toBeGreaterThan(0);
    expect(result.environmentSteps).toBe(taken.actions + unreadable.length);
  });
});

describe("a step", () => {
  test("has the gradient of the paper's objective", async () => {
    const config = { klCoefficient: 0, shaping: 0.3, normalization: "sequence" } as const;
    // A task per group; the critic reads what the desk wants, and the refiner brings it.
    const lucky = luckyReply(() => 0.5);
    const asking = new ScriptedPolicy((prompt, weights, i, request) => {
      const wanted = /OBSERVED wants (\w+)/g;
      if (roleOf(prompt) === "backup")
        return `Future:\nfailure\nOptimality:\nNo, bring the ${[...prompt.matchAll(wanted)].at(-1)![1]}.`;
      if (roleOf(prompt) === "refiner") return act(/bring the (\w+)\./.exec(prompt)![1]!);
      return lucky(prompt, weights, i, request);
    });
    const environment = errandEnvironment({ turns: 2, words: ["key", "lamp"] });
    const { model, run, episodes, refinements, updates } = await train(config, asking, environment);
    expect(updates).toHaveLength(1);
    expect(refinements).toHaveLength(2);
    /** L in float64 as a function of θ; the ratio's clip is not active near θ = 0. */
    const loss = (theta: number) => {
      let sum = 0;
      for (const { response, weight, advantages } of episodes)
        for (const [t, id] of response.entries()) {
          const ratio = Math.exp(model.logProb(id, theta) - model.logProb(id, 0));
          sum -= (weight as number[])[t]! * ratio * advantages[t]!;
        }
      for (const { response, weight } of refinements) {
        const task = model.decode(response).includes("key") ? "key" : "lamp";
        const group = run.trajectories.filter((trajectory) => trajectory.task === task);
        const rewards = group.map(({ reward }) => reward);
        const advantage = groupAdvantages([...rewards, 1], "mean-only")[4]!;
        for (const [t, id] of response.entries()) {
          const p = Math.exp(model.logProb(id, theta));
          sum -= (weight as number[])[t]! * advantage * (p / (p + 0.3));
        }
      }
      return sum;
    };
    const gradient = (loss(1e-5) - loss(-1e-5)) / 2e-5;
    expect(Math.abs(gradient)).toBeGreaterThan(1e-4);
    expect(model.theta).toBeCloseTo(-gradient, 7);
    expect(updates[0]!["loss/policy"]).toBeCloseTo(loss(0), 6);
  });

  test("the next iteration has refinements and scores of its own", async () => {
    const { updates, refining, refinements } = await train({ iterations: 2, learningRate: 10 });
    expect([updates.length, refining.length]).toEqual([2, 2]);
    expect(refinements.length).toBeGreaterThan(2);
    // Every episode was generated by the policy before the iteration's only step.
    for (const { approx_kl } of updates) expect(approx_kl).toBeCloseTo(0, 9);
  });

  test("samples say which of them are refinements, with the reward of the refined episode", async () => {
    const { run } = await train({ batchSize: 3 });
    const facts = run.samples.map(({ facts }) => facts);
    const refined = facts.filter(({ refinement }) => refinement);
    expect(refined).toHaveLength(2);
    for (const { reward } of refined) expect(reward).toBe(1);
    expect(facts).toHaveLength(10);
  });
});
