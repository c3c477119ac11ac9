import { rmSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type NlacConfigInput, nlacConfig, parseConfig, trainNlac } from "../../lib/algorithms/nlac.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";
import type { DistilledText } from "../../lib/model/language-model.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment } from "../support/errand.ts";
import { act, roleOf, scriptedRoles as script, target } from "../support/roles.ts";
import { endOfTurn, type ScriptedModel } from "../support/scripted-model.ts";
import { inDirectory } from "../support/tiny.ts";

const small: NlacConfigInput = {
  iterations: 1,
  episodesPerIteration: 1,
  updatesPerIteration: 1,
  batchSize: 8,
  maxActionTokens: 100,
  maxCriticTokens: 100,
  maxPromptTokens: 50_000,
};

async function train(model: ScriptedModel, config: NlacConfigInput = {}, environment = errandEnvironment()) {
  const run = memoryRun();
  const result = await trainNlac({ model, environment, config: { ...small, ...config }, run });
  return { run, result, events: model.events };
}

const kls = (model: ScriptedModel): DistilledText[] =>
  model.events.flatMap((event) => (event.kind === "kl" ? event.texts : []));

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

  test("incompatible options are rejected with a reason", () => {
    expect(() => parseConfig({ refinements: 0, attempt: "stored" })).toThrow(/must be fresh/);
    for (const config of [
      { episodesPerIteration: 0 },
      { episodesPerIteration: 0, recorded: ["a.jsonl"], replayIterations: 1 },
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
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      return { ...episode, step: async () => Promise.reject(new Error("the desk is closed")) };
    };
    const { run, result } = await train(script(), { episodesPerIteration: 2 }, environment);
    expect(run.trajectories.map(({ outcome }) => outcome)).toEqual([
      "environment-fault",
      "environment-fault",
    ]);
    expect(run.trajectories[0]!.fault).toEqual({ code: "ERR_ENVIRONMENT", message: "the desk is closed" });
    expect(result.updates).toBe(0); // nothing is learned from turns without an outcome
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
      expect(model.decode(response)).toBe(`<think>\nI believe so.\n</think>${target}<|im_end|>`);
    }
    const texts = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    expect(texts).toHaveLength(8);
    for (const { response } of texts) {
      expect(model.decode(response)).toBe(`<think>\nI believe so.\n</think>${act("key")}<|im_end|>`);
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

describe("the order of an update", () => {
  test("θ̄ starts as θ; L1, its step, L2, its step, then θ̄ by τ; each with its own rate", async () => {
    const model = script();
    await train(model, {
      updatesPerIteration: 2,
      targetRate: 0.25,
      criticLearningRate: 1e-3,
      policyLearningRate: 1e-4,
      betas: [0.9, 0.98],
    });
    const kinds = model.events.map(({ kind }) => kind).filter((kind, i, all) => kind !== all[i - 1]);
    const update = ["kl", "step", "nll", "step", "target"];
    expect(kinds).toEqual(["target", ...update, ...update]);
    const rates = model.events.flatMap((event) =>
      event.kind === "step" ? [event.options.learningRate] : [],
    );
    expect(rates).toEqual([1e-3, 1e-4, 1e-3, 1e-4]);
    for (const event of model.events)
      if (event.kind === "step") expect(event.options.betas).toEqual([0.9, 0.98]);
    expect(model.events.filter((event) => event.kind === "target")).toMatchObject([
      { targetRate: 1 },
      { targetRate: 0.25 },
      { targetRate: 0.25 },
    ]);
    const together = model.events.flatMap((event) =>
      event.kind === "step" ? [event.options.targetRate] : [],
    );
    expect(together).toEqual([undefined, 0.25, undefined, 0.25]); // θ̄ moves with the second step of an update
  });

  test("θ̄ moves at the configured interval: with τ = 1 it is a copy that is fixed in between", async () => {
    const model = script();
    await train(model, { iterations: 2, updatesPerIteration: 5, targetRate: 1, targetEvery: 3 });
    const moves: number[] = [];
    let steps = 0;
    for (const event of model.events) {
      if (event.kind === "step") steps++;
      if (event.kind === "target") {
        expect(event.targetRate).toBe(1);
        moves.push(steps / 2);
      }
    }
    expect(steps).toBe(20);
    expect(moves).toEqual([0, 3, 6, 9]); // after the start, counted over the run, not per iteration
  });

  test("both learning rates follow the schedule over the updates of the run", async () => {
    const model = script();
    const { run } = await train(model, {
      iterations: 2,
      updatesPerIteration: 2,
      criticLearningRate: 1,
      policyLearningRate: 2,
      schedule: { shape: "linear" },
    });
    const rates = model.events.flatMap((event) =>
      event.kind === "step" ? [event.options.learningRate] : [],
    );
    expect(rates).toEqual([1, 2, 0.75, 1.5, 0.5, 1, 0.25, 0.5]);
    expect(run.rows.at(-1)!.values).toMatchObject({
      "learning_rate/critic": 0.25,
      "learning_rate/policy": 0.5,
    });
  });

  test("moments are shared, or separate on request", async () => {
    const states = async (optimizerState: "shared" | "separate") => {
      const model = script();
      await train(model, { optimizerState });
      return model.events.flatMap((event) => (event.kind === "step" ? [event.options.moments] : []));
    };
    expect(await states("shared")).toEqual(["", ""]);
    expect(await states("separate")).toEqual(["critic", "policy"]);
  });

  test("a transition's priority becomes its L1, and sampling follows its power α", async () => {
    // Turn 1's target is almost certain, turn 2's and 3's are not: with α = 1 draws are
    // proportional.
    const model = script();
    const turnOf = (text: DistilledText) => model.decode(text.student).split("OBSERVED").length - 1;
    model.kl = (text) => [0.01, 1, 3][turnOf(text)]!;
    await train(model, { priorityExponent: 1, updatesPerIteration: 400, batchSize: 4 });
    const drawn = kls(model).slice(200).map(turnOf);
    const share = (turn: number) => drawn.filter((t) => t === turn).length / drawn.length;
    expect(share(0)).toBeLessThan(0.02);
    expect(share(1)).toBeGreaterThan(0.2);
    expect(share(1)).toBeLessThan(0.3);
    expect(share(2)).toBeGreaterThan(0.7);
    const uniform = script();
    uniform.kl = model.kl;
    await train(uniform, { priorityExponent: 0, updatesPerIteration: 400, batchSize: 4 });
    const even = kls(uniform).map((text) => uniform.decode(text.student).split("OBSERVED").length - 1);
    for (const turn of [0, 1, 2]) {
      expect(even.filter((t) => t === turn).length / even.length).toBeCloseTo(1 / 3, 1);
    }
  });

  test("importance weights correct the bias of prioritized sampling, to the degree of β", async () => {
    const model = script();
    const turnOf = (text: DistilledText) => model.decode(text.student).split("OBSERVED").length - 1;
    model.kl = (text) => [0.5, 1, 2][turnOf(text)]!;
    await train(model, { priorityExponent: 1, importanceExponent: 1, updatesPerIteration: 20 });
    const later = kls(model).slice(-8 * 10); // by then every transition has its own L1
    expect(new Set(later.map(turnOf))).toEqual(new Set([0, 1, 2]));
    for (const text of later) {
      const share = (text.weight as number) * text.response.length * 8;
      expect(share).toBeCloseTo([1, 1 / 2, 1 / 4][turnOf(text)]!, 5);
    }
  });

  test("ten consecutive skipped steps on one of the losses stop the run; fewer do not", async () => {
    const model = script();
    model.skip = () => true;
    await expect(train(model, { updatesPerIteration: 20 })).rejects.toMatchObject({ code: "ERR_NOT_FINITE" });
    expect(model.events.filter(({ kind }) => kind === "step")).toHaveLength(19); // ten of them the critic's
    // Good steps of the policy do not reset the critic's count.
    const halved = script();
    let taken = 0;
    halved.skip = () => ++taken % 2 === 1;
    await expect(train(halved, { updatesPerIteration: 20 })).rejects.toMatchObject({
      code: "ERR_NOT_FINITE",
    });
    const recovering = script();
    let steps = 0;
    recovering.skip = () => ++steps % 9 !== 0;
    const { run } = await train(recovering, { updatesPerIteration: 20 });
    expect(run.rows.at(-1)!.values["skipped/critic"]).toBe(1);
  });
});

test("rehearsed examples are added to the critic's step on request, and change nothing else", async () => {
  const environment = twentyQuestions({ turns: 3 });
  const play = async (rehearsal?: number) => {
    const model = script();
    const run = memoryRun();
    await trainNlac({ model, environment, config: { ...small, batchSize: 2, rehearsal }, run });
    // Long batches are passed to the model in several calls.
    const steps = model.events.flatMap((event, i) => (event.kind === "step" ? [i] : []));
    const nll = (from: number, to: number) =>
      model.events.slice(from, to).flatMap((event) => (event.kind === "nll" ? event.texts : []));
    return {
      critic: nll(0, steps[0]!),
      policy: nll(steps[0]!, steps[1]!),
      kls: kls(model),
      loss: run.rows.at(-1)!.values["loss/rehearsal"],
    };
  };
  const without = await play();
  expect(without.critic).toEqual([]);
  expect(without.loss).toBeNaN();
  const rehearsing = await play(6);
  expect(rehearsing.critic).toHaveLength(6);
  expect(rehearsing.loss).toBeCloseTo(0.5, 12);
  expect(rehearsing.kls).toEqual(without.kls);
  expect(rehearsing.policy).toEqual(without.policy);
  expect(without.policy).toHaveLength(2);
});

test("with weight 0 L1 trains nothing: the critic's step is rehearsal only", async () => {
  const [model, whole] = [script(), script()];
  await train(model, { criticWeight: 0 });
  await train(whole);
  const unweighted = (texts: DistilledText[]) => texts.map(({ weight: _, ...text }) => text);
  expect(kls(model).map(({ weight }) => weight)).toEqual(Array(8).fill(0));
  expect(kls(whole).every(({ weight }) => weight! > 0)).toBe(true);
  expect(unweighted(kls(model))).toEqual(unweighted(kls(whole)));
});

test("shuffled outcomes: every target uses another transition's outcome, the student's prompt is unchanged", async () => {
  const config = { episodesPerIteration: 2, batchSize: 6 };
  const [model, whole] = [script(), script()];
  await train(model, { ...config, shuffleOutcomes: true });
  await train(whole, config);
  const observed = (texts: DistilledText[]) =>
    texts.map(({ teacher, student }) =>
      model.decode(teacher).slice(model.decode(student).lastIndexOf("<|im_start|>user")),
    );
  const [shuffled, own] = [kls(model), kls(whole)];
  expect(shuffled.map(({ student }) => student)).toEqual(own.map(({ student }) => student));
  expect(observed(shuffled).sort()).toEqual(observed(own).sort());
  expect(observed(shuffled)).not.toEqual(observed(own));
});

test("rehearsed examples are stepped on even if no target is usable", async () => {
  const model = script({ backup: "whatever" });
  const config = { ...small, batchSize: 2, rehearsal: 2, targets: "parsed" as const };
  await trainNlac({ model, environment: twentyQuestions({ turns: 3 }), config });
  const kinds = model.events.map(({ kind }) => kind).filter((kind, i, all) => kind !== all[i - 1]);
  expect(kinds.slice(1, 5)).toEqual(["nll", "step", "nll", "step"]);
});

describe("what replay draws from", () => {
  const many: NlacConfigInput = {
    iterations: 3,
    episodesPerIteration: 2,
    updatesPerIteration: 6,
    batchSize: 4,
  };

  /** The episodes that the updates of each iteration train on. */
  async function drawn(config: NlacConfigInput) {
    const { run } = await train(script(), { ...many, ...config });
    const all = [0, 1, 2].map(() => new Set<number>());
    for (const { update, trajectory } of run.samples) all[Math.floor(update / 6)]!.add(trajectory);
    return all.map((episodes) => [...episodes].sort());
  }

  test("all episodes, those of the latest iterations, or only of the last one", async () => {
    expect(await drawn({})).toEqual([
      [0, 1],
      [0, 1, 2, 3],
      [0, 1, 2, 3, 4, 5],
    ]);
    expect(await drawn({ replayIterations: 2 })).toEqual([
      [0, 1],
      [0, 1, 2, 3],
      [2, 3, 4, 5],
    ]);
    expect(await drawn({ replayIterations: 1 })).toEqual([
      [0, 1],
      [2, 3],
      [4, 5],
    ]);
  });

  test("an iteration without drawable transitions has no updates", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    let started = 0;
    environment.start = (...args) =>
      ++started > 2 ? Promise.reject(new Error("the office is closed")) : start(...args);
    const { result } = await train(script(), { ...many, replayIterations: 1 }, environment);
    expect(result).toMatchObject({ episodes: 6, updates: 6 });
  });
});

describe("recorded episodes", () => {
  /** A file of three episodes of an earlier run. */
  async function record(directory: string): Promise<string> {
    const { run } = await train(script({ policy: act("lamp") }), { episodesPerIteration: 3 });
    const path = join(directory, "earlier.jsonl");
    const writer = new RecordWriter(path);
    for (const trajectory of run.trajectories)
      writer.append(toRecord({ ...trajectory, id: trajectory.id + 7 }));
    writer.close();
    return path;
  }

  test("on their own, they are learned from and nothing is played", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const model = script();
      const environment = errandEnvironment();
      environment.start = async () => Promise.reject(new Error("must not be played"));
      const { run, result } = await train(
        model,
        { recorded: [path], episodesPerIteration: 0, iterations: 2, updatesPerIteration: 3 },
        environment,
      );
      expect(result).toMatchObject({ updates: 6, episodes: 0, environmentSteps: 0 });
      expect(run.trajectories.map(({ id }) => id)).toEqual([0, 1, 2]);
      expect(new Set(run.samples.map(({ trajectory }) => trajectory))).toEqual(new Set([0, 1, 2]));
      for (const { trajectory, turn } of run.samples)
        expect(run.trajectories[trajectory]!.turns[turn!]!.text).toContain("lamp");
    });
  });

  test("with others, they come first, and are not counted as played", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const { run, result } = await train(script(), { recorded: [path, path], episodesPerIteration: 2 });
      expect(run.trajectories.map(({ id }) => id)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
      expect(result.episodes).toBe(2);
      expect(run.rows[0]!.values).toMatchObject({ episodes: 2, environment_steps: 6 });
    });
  });

  test("a run stores them itself: it resumes without their file", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const config: NlacConfigInput = { ...small, recorded: [path], updatesPerIteration: 4 };
      const environment = errandEnvironment();
      const train_ = async (name: string, stopAfter: number, forget: boolean) => {
        const at = join(directory, name);
        for (const resumed of [false, true]) {
          const model = script();
          const controller = new AbortController();
          let updates = -1; // the first is θ̄'s beginning
          model.updateTarget = async () => {
            if (++updates === stopAfter && !resumed) controller.abort();
          };
          const options = { signal: controller.signal, progress: memoryRun().progress, description: {} };
          const run = resumed
            ? await RunDirectory.resume(at, model, options)
            : RunDirectory.create(at, options);
          await trainNlac({ model, environment, config, run });
          run.close();
          if (forget) rmSync(path, { force: true });
        }
        return [...readRecords<{ trajectory: number; texts: object }>(join(at, "samples.jsonl"))];
      };
      const whole = await train_("whole", -1, false);
      const cut = await train_("cut", 2, true);
      expect(whole).toHaveLength(16);
      expect(cut).toEqual(whole);
      expect(new Set(whole.map(({ trajectory }) => trajectory)).size).toBe(4);
    });
  });

  test("a control token within an action is not mistaken for another tokenizer", async () => {
    await inDirectory(async (directory) => {
      const model = script({ policy: act("lamp") });
      const generate = model.generate.bind(model);
      model.generate = async (...given) =>
        (await generate(...given)).map(({ tokens, logProbs, ...rest }) => {
          const opening = model.tokenizer.idOf("<|im_start|>")!; // which the text does not show
          return {
            ...rest,
            tokens: tokens.toSpliced(3, 0, opening),
            logProbs: Float32Array.of(-1, ...logProbs),
          };
        });
      const { run } = await train(model, { episodesPerIteration: 1 });
      const path = join(directory, "earlier.jsonl");
      const writer = new RecordWriter(path);
      for (const trajectory of run.trajectories) writer.append(toRecord(trajectory));
      writer.close();
      const { result } = await train(script(), { recorded: [path], episodesPerIteration: 0 });
      expect(result.updates).toBeGreaterThan(0);
    });
  });

  test("ids of another tokenizer are rejected", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const model = script();
      const decode = model.decode.bind(model);
      model.decode = (ids) => decode(ids.map((id) => (id + 1) % 256));
      await expect(train(model, { recorded: [path] })).rejects.toMatchObject({
        code: "ERR_RUN",
        message: expect.stringContaining("episode 7"),
      });
    });
  });
});

describe("metrics that explain", () => {
  test("entropy and truncation share of each role's tokens, readable attempts, changed refinements", async () => {
    // Half of the attempts cannot be parsed, and half of the others are refined into themselves.
    let attempts = 0;
    const model = script();
    const speak = model.reply;
    model.reply = (prompt, weights, i, request) => {
      if (roleOf(prompt) !== "policy" || request.seed === undefined)
        return speak(prompt, weights, i, request);
      return ["key", "soap", "", ""].map((word) => (word === "" ? "hm" : act(word)))[attempts++ % 4]!;
    };
    const generate = model.generate.bind(model);
    model.generate = async (requests, options) => {
      const texts = await generate(requests, options);
      for (const [i, { logProbs }] of texts.entries()) {
        const prompt = model.decode(requests[i]!.tokens!);
        logProbs.fill(roleOf(prompt) === "policy" ? -0.25 : -2);
      }
      return texts;
    };
    const { run } = await train(model, { episodesPerIteration: 4, batchSize: 8 });
    const { values } = run.rows[1]!;
    expect(values).toMatchObject({
      "entropy/attempt": 0.25,
      "entropy/critique": 2,
      "entropy/target": 2,
      "parse/attempt": 0.5,
      "refinements/changed": 0.5,
    });
    const shares = ["future", "target", "attempt", "critique", "refinement"].map((role) => {
      const share = values[`share/${role}`] ?? 0;
      expect(share).toBeCloseTo((values[`tokens/${role}`] ?? 0) / values["tokens/generated"]!, 12);
      return share;
    });
    expect(shares.reduce((sum, share) => sum + share, 0)).toBeCloseTo(1, 12);
  });

  test("draws: number, age and weights", async () => {
    const { run } = await train(script(), {
      iterations: 2,
      episodesPerIteration: 2,
      priorityExponent: 0,
      replayIterations: 1,
    });
    for (const { values } of run.rows.filter(({ values }) => "loss/l1" in values)) {
      expect(values["replay/effective"]).toBeCloseTo(6, 4); // two episodes of three turns
      expect(values["replay/weight"]).toBe(1);
      expect(values["replay/age"]).toBeGreaterThanOrEqual(0);
      expect(values["replay/age"]).toBeLessThanOrEqual(1); // episodes, of the two that count
    }
    expect(run.rows.at(-1)!.values["replay/size"]).toBe(12);
  });

  test("held-out success and diagnostics are logged on request, and do not affect training", async () => {
    const long: NlacConfigInput = { iterations: 3, updatesPerIteration: 2, episodesPerIteration: 2 };
    const plain = script();
    const { run: without } = await train(plain, long);
    const model = script();
    const { run } = await train(model, {
      ...long,
      evaluation: { every: 2, episodes: 3 },
      diagnostics: { every: 2, transitions: 3 },
    });
    const stepsWith = (name: string) =>
      run.rows.flatMap(({ step, values }) => (name in values ? [step] : []));
    expect(stepsWith("eval/success")).toEqual([0, 4, 6]);
    expect(stepsWith("calibration/difference")).toEqual([0, 4]);
    expect(stepsWith("time/diagnose")).toEqual([0, 4]);
    expect(without.rows.some(({ values }) => "gain/refined" in values || "eval/success" in values)).toBe(
      false,
    );
    expect(model.events).toEqual(plain.events);
    expect(run.samples).toEqual(without.samples);
    expect(run.trajectories.map(({ seed }) => seed)).toEqual(without.trajectories.map(({ seed }) => seed));
  });

  test("a diagnosis has its own random streams", async () => {
    const model = script();
    await train(model, { iterations: 2, diagnostics: { every: 1, transitions: 3 } });
    const seeds = model.calls.map(({ request }) => request.seed);
    expect(new Set(seeds).size).toBe(seeds.length);
  });

  test("a stop during a diagnosis discards the episodes too", async () => {
    const model = script();
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    const speak = model.reply;
    model.reply = (prompt, weights, i, request) => {
      if (roleOf(prompt) === "critic") controller.abort();
      return speak(prompt, weights, i, request);
    };
    const config = { ...small, diagnostics: { every: 1 } };
    const result = await trainNlac({ model, environment: errandEnvironment(), config, run });
    expect(result).toMatchObject({ stopped: true, episodes: 0, updates: 0 });
    expect(run.trajectories).toEqual([]);
    expect(run.checkpoints.at(-1)).toMatchObject({ collected: false, episodes: 0 });
  });
});

test("no further iteration begins once the environment steps are reached", async () => {
  const { result, run } = await train(script(), {
    iterations: 30,
    environmentSteps: 7, // an episode takes three
    evaluation: { every: 2, episodes: 1 },
  });
  expect(result).toMatchObject({ environmentSteps: 9, episodes: 3, updates: 3 });
  const measured = run.rows.flatMap(({ values }) => values["eval/environment_steps"] ?? []);
  expect(measured).toEqual([0, 6, 9]);
});

test("no iterations: nothing is played, and earlier results stay", async () => {
  const model = script();
  const { result, run } = await train(model, { iterations: 0 });
  expect(result).toMatchObject({ updates: 0, episodes: 0, stopped: false });
  expect(model.events).toEqual([{ kind: "target", targetRate: 1 }]);
  expect(run.checkpoints.length).toBeGreaterThan(0);
});

describe("interruption", () => {
  const long: NlacConfigInput = { iterations: 2, updatesPerIteration: 3, episodesPerIteration: 2 };

  test("a stop rolls back to the last boundary, forgets gradients, and checkpoints", async () => {
    const model = script();
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    const speak = model.reply;
    model.reply = (prompt, weights, i, request) => {
      if (model.events.filter(({ kind }) => kind === "target").length === 3) controller.abort();
      return speak(prompt, weights, i, request);
    };
    const result = await trainNlac({
      model,
      environment: errandEnvironment(),
      config: { ...small, ...long },
      run,
    });
    expect(result).toMatchObject({ stopped: true, updates: 2 });
    expect(model.events.at(-1)).toEqual({ kind: "discard" });
    expect(run.checkpoints.at(-1)).toMatchObject({
      updates: 2,
      updatesDone: 2,
      iteration: 0,
      collected: true,
    });
  });

  test("a spent budget is reported, and everything it paid for is stored", async () => {
    const run = memoryRun();
    const environment = errandEnvironment();
    const { start } = environment;
    let begun = 0;
    environment.start = (...args) =>
      ++begun > 2 ? Promise.reject(new NlacError("ERR_BUDGET", "spent")) : start(...args);
    const training = trainNlac({ model: script(), environment, config: { ...small, ...long }, run });
    await expect(training).rejects.toMatchObject({ code: "ERR_BUDGET" });
    expect(run.checkpoints.at(-1)).toMatchObject({ iteration: 1, episodes: 2, updates: 3, collected: false });
  });

  test("a stop between the two steps preserves the generations of the second", async () => {
    const model = script();
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    const step = model.step.bind(model);
    model.step = async (options) => {
      const result = await step(options);
      controller.abort();
      return result;
    };
    await trainNlac({ model, environment: errandEnvironment(), config: { ...small, ...long }, run });
    const saved = run.checkpoints.at(-1) as { updates: number; pending: { texts: unknown[] } };
    expect(saved.updates).toBe(0);
    expect(saved.pending.texts).toHaveLength(8);
    expect(model.events.filter(({ kind }) => kind === "step")).toHaveLength(1);
  });
});
