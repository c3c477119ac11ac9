import { describe, expect, test } from "vitest";
import { type NlacConfigInput, nlacConfig, parseConfig } from "../../lib/algorithms/nlac.ts";
import { errandEnvironment } from "../support/errand.ts";
import { kls, train } from "../support/nlac-training.ts";
import { act, roleOf, scriptedRoles as script, target } from "../support/roles.ts";
import { endOfTurn } from "../support/scripted-model.ts";

describe("the configuration", () => {
  test("defaults are the paper's", () => {
    expect(nlacConfig.parse({})).toMatchObject({
      iterations: 30,
      updatesPerIteration: 1024,
      batchSize: 1, // docs/decisions/0016
      futures: 1,
      refinements: 1,
      targetRate: 0.005,
      priorityExponent: 0.1,
      criticLearningRate: 5e-6,
      policyLearningRate: 5e-6,
      maxPromptTokens: 8192,
      maxActionTokens: 24_576,
      support: "full",
    });
  });

  test("unknown keys and invalid values are errors that name the field", () => {
    expect(() => parseConfig({ tau: 0.1 } as never)).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining("tau") }),
    );
    expect(() => parseConfig({ targetRate: 2 })).toThrow(/targetRate/);
    expect(() => parseConfig({ batchSize: 0 })).toThrow(/batchSize/);
  });

  test("incompatible options are rejected with a reason", async () => {
    expect(() => parseConfig({ refinements: 0, attempt: "stored" })).toThrow(/must be fresh/);
    // With the default batch of one, the ablation would remove nothing.
    expect(() => parseConfig({ shuffleOutcomes: true })).toThrow(/batchSize above 1/);
    expect(parseConfig({ shuffleOutcomes: true, batchSize: 2 }).shuffleOutcomes).toBe(true);
    for (const config of [
      { episodesPerIteration: 0 },
      { episodesPerIteration: 0, recorded: ["a.jsonl"], diagnostics: { every: 1 } },
    ]) {
      expect(() => parseConfig(config)).toThrow(
        expect.objectContaining({
          code: "ERR_CONFIG",
          message: expect.stringContaining("nothing is played"),
        }),
      );
    }
    expect(parseConfig({ episodesPerIteration: 0, recorded: ["a.jsonl"] }).recorded).toEqual(["a.jsonl"]);
    const solutions = errandEnvironment({ turns: 1 });
    await expect(train(script(), { futures: 2 }, solutions)).rejects.toThrow(/^futures: /);
    for (const episodesPerIteration of [0, 1]) {
      const config = { episodesPerIteration, recorded: ["a.jsonl"], replayIterations: 2 };
      expect(() => parseConfig(config)).toThrow(/would not be sampled.*replayIterations/s);
    }
  });
});

describe("acting (lines 3 to 6)", () => {
  test("the policy acts under θ, and every turn becomes a transition", async () => {
    const { run, result } = await train(script());
    expect(result).toMatchObject({ episodes: 1, environmentSteps: 3, updates: 1, stopped: false });
    expect(run.trajectories[0]!.turns.map(({ terminated }) => terminated)).toEqual([false, false, true]);
    expect(run.rows[0]!.values).toMatchObject({
      "rollout/success": 0,
      "parse/action": 1,
      environment_steps: 3,
    });
  });

  test("an unreadable action gets a reason, counts as a turn, and three in a row end the episode", async () => {
    const { run } = await train(script({ policy: "soap please" }), {}, errandEnvironment({ turns: 10 }));
    const [trajectory] = run.trajectories;
    expect(trajectory!.outcome).toBe("malformed");
    expect(trajectory!.turns).toHaveLength(3);
    expect(trajectory!.turns[0]!.observation[0]!.content).toContain('"Thought:" is missing');
    expect(trajectory!.turns[2]!.terminated).toBe(true);
    expect(run.rows[0]!.values["parse/action"]).toBe(0);
  });

  test("an exception in the environment ends only its episode, with a reason", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    let started = 0;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      if (++started === 2) return episode;
      return { ...episode, step: async () => Promise.reject(new Error("the desk is closed")) };
    };
    const { run } = await train(script(), { episodesPerIteration: 2 }, environment);
    expect(run.trajectories.map(({ outcome }) => outcome)).toEqual(["environment-fault", "done"]);
    expect(run.trajectories[0]!.fault).toEqual({ code: "ERR_ENVIRONMENT", message: "the desk is closed" });
    // Nothing is learned from turns without an outcome.
    expect(new Set(run.drawn.flatMap(({ trajectory }) => trajectory))).toEqual(new Set([1]));
  });
});

describe("the critic's step (line 8)", () => {
  test("a transition without a target does not end the run", async () => {
    const model = script();
    model.kl = () => 0;
    const { result } = await train(model, { updatesPerIteration: 4, priorityExponent: 1 });
    expect(result.updates).toBe(4);
  });

  test("y is scored with the sampled ids including the stop id, averaged over tokens and batch", async () => {
    const model = script();
    await train(model);
    for (const { response, weight } of kls(model)) {
      expect(response).toEqual([...model.encode(target), endOfTurn]);
      expect(weight).toBeCloseTo(1 / (response.length * 8), 12);
    }
  });

  test("the support reaches the loss", async () => {
    const model = script();
    await train(model, { support: { topK: 5 } });
    expect(model.events.find((event) => event.kind === "kl")).toMatchObject({
      options: { support: { topK: 5 } },
    });
  });
});

describe("the policy's step (line 9)", () => {
  test("the refined action is scored after s only, token for token", async () => {
    const model = script();
    await train(model);
    const texts = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    expect(texts).toHaveLength(8);
    for (const { prompt, response, weight } of texts) {
      const text = model.decode(prompt);
      expect(roleOf(text)).toBe("policy");
      expect(text).not.toContain("foreseen");
      expect(response).toEqual([...model.encode(act("key")), endOfTurn]);
      expect(weight).toBeCloseTo(1 / (response.length * 8), 12);
    }
  });

  test("unreadable and truncated refinements are dropped and counted", async () => {
    for (const refiner of ["just bring the key", `${act("key")}…`]) {
      const model = script({ refiner });
      const { run } = await train(model);
      expect(run.rows[1]!.values).toMatchObject({ "refinements/kept": 0, "refinements/dropped": 8 });
      expect(model.events.some(({ kind }) => kind === "nll")).toBe(false);
      expect(model.events.some(({ kind }) => kind === "target")).toBe(true); // without the policy's step
      expect(run.samples[0]!.facts.refinementDropped).toBeDefined();
    }
  });
});

describe("reasoning models", () => {
  const corrected = "<corrected_think>I believe so.</corrected_think>";

  test("a rewritten thought replaces the original; L1 is the sampled token's cross entropy", async () => {
    const model = script({
      backup: `<think>It said so.</think>${target}`,
      refiner: `<think>The critique says key.</think>${act("key")}`,
      correction: corrected,
    });
    await train(model, { reasoning: true });
    const kl = model.events.find((event) => event.kind === "kl")!;
    expect(kl).toMatchObject({ options: { support: "sampled" } });
    for (const { response } of kls(model)) {
      expect(model.decode(response)).toBe(`<think>I believe so.</think>${target}<|im_end|>`);
    }
    const texts = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    expect(texts).toHaveLength(8);
    for (const { response } of texts) {
      expect(model.decode(response)).toBe(`<think>I believe so.</think>${act("key")}<|im_end|>`);
    }
  });
});

describe("a transition without a target", () => {
  test("gets the least priority and is counted; its refinement is trained on all the same", async () => {
    // The target of one of three transitions can never be parsed: that of the last turn.
    const model = script();
    const { reply } = model;
    model.reply = (prompt, ...rest) =>
      prompt.includes("Final score") && roleOf(prompt) === "backup" ? "nothing" : reply(prompt, ...rest);
    const updates = 40;
    const { run } = await train(model, {
      targets: "parsed",
      updatesPerIteration: updates,
      batchSize: 3,
      priorityExponent: 1,
    });
    const rows = run.rows.slice(1).map(({ values }) => values);
    expect(rows).toHaveLength(updates);
    const first = rows.findIndex((row) => row["targets/dropped"]! > 0);
    expect(first).toBeGreaterThanOrEqual(0);
    // With α = 1 its share of the draws is 1e-6 from then on, down from a third.
    const later = rows.slice(first + 1);
    expect(later.length).toBeGreaterThan(updates / 2);
    for (const row of later) expect([row["targets/dropped"], row["replay/untaught"]]).toEqual([0, 0]);
    expect(rows[first]!["replay/untaught"]).toBe(1); // however often it was drawn
    for (const row of rows) expect(row["refinements/kept"]).toBe(3);
    const learned = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    expect(learned).toHaveLength(3 * updates);
  });
});

describe("long completions", () => {
  /** In the proportions of the paper's limits: an action may be three times as long as a prompt. */
  const limits = { maxPromptTokens: 1000, maxActionTokens: 3000, maxCriticTokens: 3000 };
  const long = act("soap ".repeat(400));
  const solving = () => errandEnvironment({ turns: 1, singleStep: false });
  const lost = ({ run }: Awaited<ReturnType<typeof train>>) =>
    Object.fromEntries(Object.entries(run.rows[1]!.values).filter(([name]) => name.includes("dropped")));

  test("an action longer than the prompt limit is judged, refined and learned from like a short one", async () => {
    for (const more of [{}, { futures: 2 }, { attempt: "stored" }, { refinements: 2 }] as const) {
      const model = script({ policy: long, refiner: act("key ".repeat(400)) });
      const trained = await train(model, { ...limits, ...more }, solving());
      expect(lost(trained)).toEqual({ "targets/dropped": 0, "refinements/dropped": 0 });
      for (const { student } of kls(model)) expect(student.length).toBeGreaterThan(2000);
    }
  });

  test("dropped completions are counted by cause", async () => {
    const causes = async (
      replies: Partial<Record<string, string>>,
      config: NlacConfigInput = {},
      maxPositions = 100_000,
    ) => {
      const model = script(replies);
      Object.assign(model, { maxPositions });
      return lost(await train(model, { ...limits, ...config }, solving()));
    };
    // The model's context ends after the action: nothing can judge it.
    expect(await causes({ policy: long }, {}, 2600)).toEqual({
      "targets/dropped": 8,
      "targets/dropped_context": 8,
      "refinements/dropped": 8,
      "refinements/dropped_context": 8,
    });
    expect(await causes({ backup: "whatever", refiner: "whatever" }, { targets: "parsed" })).toEqual({
      "targets/dropped": 8,
      "targets/dropped_unreadable": 8,
      "refinements/dropped": 8,
      "refinements/dropped_unreadable": 8,
    });
    expect(
      await causes({ backup: "Future:\nit …", refiner: `${act("key")}…` }, { targets: "parsed" }),
    ).toEqual({
      "targets/dropped": 8,
      "targets/dropped_cut_off": 8,
      "refinements/dropped": 8,
      "refinements/dropped_cut_off": 8,
    });
    const thinking = { backup: `<think>a</think>${target}`, refiner: `<think>a</think>${act("key")}` };
    expect(await causes({ ...thinking, correction: "no" }, { reasoning: true })).toEqual({
      "targets/dropped": 8,
      "targets/dropped_correction": 8,
      "refinements/dropped": 8,
      "refinements/dropped_correction": 8,
    });
    expect(await causes({}, { refinementsKept: "approved" })).toEqual({
      "targets/dropped": 0,
      "refinements/dropped": 8,
      "refinements/dropped_not_approved": 8,
    });
  });
});
