import { describe, expect, test, vi } from "vitest";
import { type NlacConfigInput, trainNlac } from "../../lib/algorithms/nlac.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import type { DistilledText } from "../../lib/model/language-model.ts";
import { ReplayBuffer } from "../../lib/replay/buffer.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment } from "../support/errand.ts";
import { kls, small, train } from "../support/nlac-training.ts";
import { act, roleOf, scriptedRoles as script } from "../support/roles.ts";

test("a draw says whether a refinement changed its attempt; stored actions are not compared", async () => {
  const refinements = async (config: NlacConfigInput, refiner: string) => {
    const { run } = await train(script({ refiner }), { batchSize: 2, ...config });
    return run.drawn.flatMap(({ refinement }) => refinement);
  };
  expect(await refinements({}, act("key"))).toEqual(["changed", "changed"]);
  expect(await refinements({}, act("soap"))).toEqual(["same", "same"]);
  // The stored action is "soap", too.
  expect(await refinements({ attempt: "stored" }, act("soap"))).toEqual(["kept", "kept"]);
  expect(await refinements({ attempt: "stored" }, "no form")).toEqual(["unreadable", "unreadable"]);
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

  test("completions of several updates are generated together, and each update uses its own", async () => {
    const model = script();
    const order: string[] = [];
    const generate = model.generate.bind(model);
    model.generate = async (requests, options) => {
      if (roleOf(model.decode([...requests[0]!.tokens!])) === "refiner")
        order.push(`refine ${requests.length}`);
      return generate(requests, options);
    };
    const step = model.step.bind(model);
    model.step = async (options) => {
      order.push("step");
      return step(options);
    };
    const { run } = await train(model, { updatesPerIteration: 3, updatesAhead: 2, batchSize: 4 });
    const update = ["step", "step"];
    expect(order).toEqual(["refine 8", ...update, ...update, "refine 4", ...update]);
    // Each update trains on the transitions that it drew.
    const turns = kls(model).map((text) => model.decode(text.student).split("OBSERVED").length - 1);
    expect(turns).toEqual(run.drawn.flatMap(({ turn }) => turn));
    expect(new Set(run.drawn.map(({ turn }) => turn.join()))).toHaveProperty("size", 3);
    // What was generated together is counted once.
    const generated = run.rows.flatMap(({ values }) =>
      "loss/l1" in values ? [values["tokens/generated"]] : [],
    );
    expect(generated).toEqual([expect.any(Number), undefined, expect.any(Number)]);
    expect(generated[0]).toBe(2 * generated[2]!);
    expect(run.checkpoints.at(-1)).toMatchObject({ drawn: [], prepared: [] });
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

  test("θ̄ moves also in an update that no refinement can be trained on", async () => {
    const model = script({ refiner: "no form" });
    await train(model, { updatesPerIteration: 2, targetRate: 0.25 });
    const kinds = model.events.map(({ kind }) => kind).filter((kind, i, all) => kind !== all[i - 1]);
    const update = ["kl", "step", "target"];
    expect(kinds).toEqual(["target", ...update, ...update]);
    expect(model.events.at(-1)).toMatchObject({ targetRate: 0.25 });
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

  test("an L1 that is not finite, or below 0 by rounding, does not end the run", async () => {
    const model = script();
    model.kl = ({ student }) => (model.decode(student).includes("OBSERVED") ? Number.NaN : -1e-9);
    const { run } = await train(model, { updatesPerIteration: 2 });
    const l1 = run.drawn.flatMap((drawn) => drawn.l1);
    expect(l1).toContain(null);
    expect(l1.some((value) => value !== null && value < 0)).toBe(true);
    expect(run.rows.at(-1)!.values["replay/untaught"]).toBe(0);
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

  test("a target has the importance weight of its own draw, also if an earlier draw has no target", async () => {
    const model = script();
    const { reply } = model;
    const observed = (prompt: string) => prompt.split("OBSERVED").length - 1;
    model.reply = (prompt, ...rest) =>
      roleOf(prompt) === "backup" && observed(prompt) === 1 ? "no form" : reply(prompt, ...rest);
    const draw = { indices: [0, 1, 2], probabilities: [0.2, 0.4, 0.4], weights: [1, 0.5, 0.25] };
    const sample = vi.spyOn(ReplayBuffer.prototype, "sample").mockReturnValue(draw);
    await train(model, { importanceExponent: 1, targets: "parsed", batchSize: 3 });
    sample.mockRestore();
    const shares = kls(model).map(({ student, response, weight }) => [
      observed(model.decode(student)),
      (weight as number) * response.length,
    ]);
    expect(shares).toEqual([
      [1, expect.closeTo(0.5 / 2, 12)],
      [2, expect.closeTo(0.25 / 2, 12)],
    ]);
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

test("with weight 0 L1 trains nothing, but is measured and sets the priorities", async () => {
  const [model, whole] = [script(), script()];
  const config = { updatesPerIteration: 3, episodesPerIteration: 4, priorityExponent: 1, seed: 3 };
  for (const one of [model, whole]) one.kl = ({ student }) => student.length % 7;
  const { run } = await train(model, { ...config, criticWeight: 0 });
  const { run: trained } = await train(whole, config);
  const unweighted = (texts: DistilledText[]) => texts.map(({ weight: _, ...text }) => text);
  expect(unweighted(kls(model))).toEqual(unweighted(kls(whole)));
  expect(run.drawn).toEqual(trained.drawn);
  const gradients = (one: typeof model) =>
    one.events.flatMap((event) => (event.kind === "kl" ? [event.options?.withGradient] : []));
  expect(new Set(gradients(model))).toEqual(new Set([false]));
  expect(new Set(gradients(whole))).toEqual(new Set([true]));
  // Only the policy's steps remain, and only tokens with a gradient count as such.
  const moments = ({ events }: typeof model) => events.filter(({ kind }) => kind === "step").length;
  expect([moments(model), moments(whole)]).toEqual([3, 6]);
  for (const [i, { values }] of run.rows.slice(1).entries()) {
    expect(values["loss/l1"]).toBe(trained.rows[i + 1]!.values["loss/l1"]);
    expect(values["loss/l1"]).toBeGreaterThan(0);
    expect(values["tokens/gradient"]).toBe(values["tokens/l2"]);
  }
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
