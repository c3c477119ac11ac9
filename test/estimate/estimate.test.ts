import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import { errandsModel } from "../../lib/environments/errands/model.ts";
import { cpu, type Device, gpus, thisMachine } from "../../lib/estimate/devices.ts";
import { type Estimate, estimate } from "../../lib/estimate/estimate.ts";
import { cacheCapacity, memoryOf, microBatchTokens, total } from "../../lib/estimate/memory.ts";
import { findShape, publicModels } from "../../lib/estimate/shape.ts";
import { seconds } from "../../lib/estimate/time.ts";
import { atLimits, type GenerationCall, workOf } from "../../lib/estimate/work.ts";
import { loadRecipe, parseRecipe, type Recipe } from "../../lib/recipe/recipe.ts";

test("a text's keys and values take whole blocks", () => {
  for (const [prompt, generated, room] of [
    [1, 1, 16],
    [15, 2, 16],
    [16, 1, 32],
    [10, 300, 320],
    [200, 57, 256],
    [200, 58, 272],
    [8192, 24_576, 32_768],
  ] as const) {
    expect(cacheCapacity({ prompt, generated })).toBe(room);
  }
});

test("no assumed length exceeds the limits or the context", () => {
  const recipe = parseRecipe(
    {
      name: "test",
      model: errandsModel(),
      environment: { name: "./desk.ts" },
      config: { maxPromptTokens: 256, maxActionTokens: 8, maxCriticTokens: 16, batchSize: 16 },
    },
    "a test",
  );
  const shape = findShape(errandsModel());
  const work = workOf(recipe, shape, { turns: 5 });
  expect(work.lengths.opening).toBe(work.limits.prompt);
  for (const { prompt, generated } of [...work.playing, ...work.generation])
    expect(prompt + generated).toBeLessThanOrEqual(shape.maxPositions);
  const { assumed, atLimits } = estimate(recipe, { turns: 5 }, small).fits[0]!;
  const kept = (held: { name: string; bytes: number }[]) =>
    held.find(({ name }) => name === "keys and values")!.bytes;
  expect(kept(assumed.held)).toBeLessThanOrEqual(kept(atLimits.held));
});

test("a run that a number of environment steps ends has as many iterations as they take", () => {
  const workWith = (config: object) => {
    const recipe = parseRecipe(
      {
        ...{ name: "test", model: errandsModel(), environment: { name: "./desk.ts" } },
        config: { episodesPerIteration: 4, iterations: 100, evaluation: { every: 2 }, ...config },
      },
      "a test",
    );
    const { iterations, evaluation } = workOf(recipe, findShape(errandsModel()), { turns: 5 });
    return [iterations, evaluation.times];
  };
  expect(workWith({})).toEqual([100, 51]);
  // 20 steps an iteration; the one that reaches the number is completed.
  expect(workWith({ environmentSteps: 41 })).toEqual([3, 3]);
  expect(workWith({ environmentSteps: 41, iterations: 2 })).toEqual([2, 2]);
  expect(workWith({ environmentSteps: 41, iterations: Number.MAX_SAFE_INTEGER })).toEqual([3, 3]);
});

const small = cpu("two cores", 2, 25e9);

function estimated(changes: Record<string, unknown> = {}, learner: object = {}): Estimate {
  const recipe = parseRecipe(
    {
      name: "test",
      model: "Qwen2.5-1.5B-Instruct",
      learner: { device: "cuda", ...learner },
      environment: { name: "twentyQuestions" },
      config: {
        episodesPerIteration: 4,
        batchSize: 32,
        maxPromptTokens: 2048,
        maxActionTokens: 128,
        maxCriticTokens: 128,
        ...changes,
      },
    },
    "a test",
  );
  return estimate(recipe, { turns: 10 }, small);
}

/** Room for the keys and values of any batch. */
const allAtOnce = { cacheBytes: 1e15 };

const peak = ({ fits }: Estimate) => fits.at(-1)!.atLimits.peak;

const update = ({ fits }: Estimate) => seconds(fits.at(-1)!.time.update);

describe("an estimate", () => {
  test.each<[string, Record<string, unknown>]>([
    ["a larger batch", { batchSize: 128 }],
    ["longer actions", { maxActionTokens: 4096 }],
    ["longer prompts", { maxPromptTokens: 8192 }],
    ["a second set of moments", { optimizerState: "separate" }],
    ["more futures", { futures: 4 }],
    ["a model that reasons", { reasoning: true, maxActionTokens: 4096, maxCriticTokens: 4096 }],
  ])("grows with %s", (_, changes) => {
    // With room for the keys and values of any batch: cacheBytes would bound them.
    expect(peak(estimated(changes, allAtOnce))).toBeGreaterThan(peak(estimated({}, allAtOnce)));
    expect(update(estimated(changes))).toBeGreaterThanOrEqual(update(estimated()));
  });

  test("has more time with more rounds of refinement", () => {
    expect(update(estimated({ refinements: 3 }))).toBeGreaterThan(1.2 * update(estimated()));
  });

  test("has less memory and more time with gradient checkpointing", () => {
    const long = { batchSize: 4, maxPromptTokens: 8192 };
    expect(peak(estimated(long, { gradientCheckpointing: true }))).toBeLessThan(0.85 * peak(estimated(long)));
    expect(update(estimated(long, { gradientCheckpointing: true }))).toBeGreaterThan(update(estimated(long)));
  });

  test("has less time and more memory if completions of several updates are generated together", () => {
    const [one, many] = [1, 16].map((updatesAhead) => estimated({ batchSize: 1, updatesAhead }, allAtOnce));
    expect(update(many!)).toBeLessThan(update(one!) / 2);
    expect(peak(many!)).toBeGreaterThan(peak(one!));
    const generated = ({ work }: Estimate) =>
      work.generation.reduce((sum, { texts, times, generated }) => sum + texts * times * generated, 0);
    expect(generated(many!)).toBeCloseTo(generated(one!), 6);
  });

  test("has less memory and time with int8 generation on a CPU", () => {
    const [int8, whole] = [true, false].map(
      (int8Generation) => estimated({ batchSize: 1 }, { device: "cpu", int8Generation }).fits[0]!,
    );
    expect(int8!.assumed.peak).toBeLessThan(whole!.assumed.peak);
    expect(int8!.time.update.generation).toBeLessThan(whole!.time.update.generation);
  });

  test("grows with the model, and less than doubles with float32", () => {
    const names = Object.keys(publicModels);
    const sizes = names.map((model) => {
      const recipe = parseRecipe({ name: "x", model, environment: { name: "math" } }, "a test");
      return peak(estimate(recipe, { turns: 1 }, small));
    });
    expect(sizes).toEqual([...sizes].sort((a, b) => a - b));
    const [half, whole] = ["bfloat16", "float32"].map((dtype) => peak(estimated({}, { dtype })));
    expect(whole!).toBeLessThan(2 * half!);
  });
});

test("resident memory equals a count by hand", () => {
  const { fits, parameters } = estimated({ optimizerState: "separate" }, { cacheBytes: 0 });
  // Masters, gradients, two sets of two moments and θ̄ in float32; two copies in bfloat16.
  expect(total(fits.at(-1)!.assumed.held)).toBe(parameters * (4 + 4 + 16 + 4 + 2 + 2));
  const policy = parseRecipe(
    { name: "x", model: "QwQ-32B", environment: { name: "math" }, algorithm: "grpo" },
    "a test",
  );
  const [here, gpu] = [estimate(policy, { turns: 1 }, small).fits[0]!, estimate(policy).fits.at(-1)!];
  const weights = here.assumed.held.filter(({ name }) => !/keys|packed|libtorch/.test(name));
  expect(total(weights)).toBe(32_763_876_352 * (4 + 4 + 8 + 2 + 2)); // the last is the reference
  expect(total(gpu.assumed.held)).toBeLessThan(total(here.assumed.held)); // no Node on a GPU
});

test("activations equal a count by hand, with and without norms after a layer's parts", () => {
  const perLayer = (name: string) => {
    const model = join(import.meta.dirname, "../fixtures/models", name);
    const recipe = parseRecipe(
      { name: "x", model, environment: { name: "math" }, algorithm: "rft", learner: { device: "cuda" } },
      "a test",
    );
    const { shape, fits } = estimate(recipe, { turns: 1 });
    const { name: part, bytes } = fits.at(-1)!.assumed.training[0]!;
    const tokens = Number(/of ([\d,]+) tokens/.exec(part)![1]!.replaceAll(",", ""));
    return bytes / tokens / shape.layers;
  };
  // The fields of LayerTape in bfloat16: hidden states are 32 wide, queries 4 · d, keys 2 · d, the MLP 40.
  const d = 8;
  const qkv = 8 * d;
  expect(perLayer("llama")).toBe(2 * (2 * 32 + qkv + 4 * d + 2 * 40) + 4 * 4);
  // OLMo 3 and Gemma 3 normalise queries and keys, and the outputs of both parts.
  expect(perLayer("olmo3")).toBe(2 * (4 * 32 + 2 * qkv + 4 * d + 2 * 40) + 4 * 4);
  expect(perLayer("gemma3")).toBe(2 * (4 * 32 + 2 * 8 * 12 + 4 * 12 + 2 * 40) + 4 * 4);
});

test("a diagnosis is counted: its completions, how often it runs, and the memory of its largest call", () => {
  const every = (diagnostics: object, more = {}) =>
    estimated({ iterations: 5, attempt: "stored", diagnostics, ...more });
  const none = every({});
  const often = every({ every: 2, transitions: 32, branches: 0 });
  expect(none.work.diagnosis).toEqual({ times: 0, generation: [] });
  expect(often.work.diagnosis.times).toBe(3); // iterations 0, 2 and 4
  const told = often.work.diagnosis.generation.map(({ what, texts }) => ({ what, texts }));
  expect(told.filter(({ what }) => what !== "futures")).toEqual([
    { what: "critiques", texts: 32 },
    { what: "refinements", texts: 32 },
  ]);
  // What an update writes for as many transitions, three times in the run.
  const batch = often.work.generation.find(({ what }) => what === "critiques")!.texts;
  const refined = (estimate: Estimate) =>
    estimate.work.generation
      .filter(({ weights }) => weights === "θ")
      .reduce((generated, { texts, generated: tokens }) => generated + texts * tokens, 0);
  const more = often.fits[0]!.time.run.generated - none.fits[0]!.time.run.generated;
  const futures = often.work.diagnosis.generation
    .filter(({ what }) => what === "futures")
    .reduce((generated, { texts, generated: tokens }) => generated + texts * tokens, 0);
  expect(more).toBeCloseTo(3 * ((refined(often) * 32) / batch + futures), 3);
  // Branches play on, and a diagnosis of more transitions than a batch has needs more room.
  const branching = every({ every: 2, transitions: 32, branches: 4 });
  const turns = branching.work.lengths.turns;
  const played = branching.fits[0]!.time.run.generated - often.fits[0]!.time.run.generated;
  expect(played).toBeCloseTo(3 * 32 * 4 * ((turns - 1) / 2) * branching.work.lengths.action, 3);
  const room = { cacheBytes: 1e15 };
  const wide = { every: 1, transitions: 4096, branches: 0 };
  const [small_, large] = [{}, wide].map((diagnostics) =>
    peak(estimated({ diagnostics, episodesPerIteration: 512, batchSize: 8 }, room)),
  );
  expect(large!).toBeGreaterThan(small_!);
});

describe("no part of a training is left out:", () => {
  const of = (algorithm: Recipe["algorithm"], config: object = {}, more: object = {}) => {
    const recipe = parseRecipe(
      {
        ...{ name: "test", model: "Qwen2.5-1.5B-Instruct", environment: { name: "twentyQuestions" } },
        algorithm,
        config: { maxPromptTokens: 2048, maxActionTokens: 128, ...config },
        ...more,
      },
      "a test",
    );
    return { ...estimate(recipe, { turns: 10, tasks: 20 }, small), recipe };
  };
  const run = ({ fits }: Estimate) => fits[0]!.time.run;
  const named = (calls: readonly GenerationCall[], name: GenerationCall["what"]) =>
    calls.filter(({ what }) => what === name).map(({ texts }) => texts);

  test("evaluation, in the run's time and in the memory, also of a method that plays nothing", () => {
    const evaluation = { every: 2, episodes: 32 };
    const [without, evaluated] = [{}, { evaluation }].map((changes) =>
      of("nlac", { iterations: 5, episodesPerIteration: 4, ...changes }),
    );
    expect(evaluated!.work.evaluation.times).toBe(4); // iterations 0, 2 and 4, and the final policy
    const { action, turns } = evaluated!.work.lengths;
    expect(run(evaluated!).generated - run(without!).generated).toBeCloseTo(4 * 32 * turns * action, 3);
    expect(evaluated!.fits[0]!.time.iteration).toEqual(without!.fits[0]!.time.iteration);
    const data = { recorded: ["games.jsonl"], epochs: 1 };
    const [plain, measured] = [{}, { evaluation }].map((changes) => of("sft", { ...data, ...changes }));
    const packed = ({ fits }: Estimate) =>
      fits[0]!.assumed.held.find(({ name }) => name.startsWith("matrices packed"))!.bytes;
    expect(packed(plain!)).toBe(0);
    expect(packed(measured!)).toBeGreaterThan(1e9);
    expect(of("sft", { ...data, evaluation: { every: 9 } }).work.evaluation.times).toBe(2);
  });

  test("the rehearsal of RFT", () => {
    const [without, rehearsed] = [0, 8].map((rehearsal) => of("rft", { rehearsal, batchSize: 8 }));
    expect(run(rehearsed!).flops / run(without!).flops).toBeGreaterThan(1.3);
  });

  test("the warm-up of HOPE's reward model", () => {
    const warmup = { warmup: { steps: 10 } };
    expect(of("rft", {}, warmup).work.warmup.steps).toBe(10);
    expect(of("hope", {}, warmup).work.warmup.steps).toBe(20);
    expect(of("hope", { actor: "imitate" }, warmup).work.warmup.steps).toBe(10);
  });

  test("NLAC's critiques without refinements, if these must approve the attempts", () => {
    const approving = { refinements: 0, refinementsKept: "approved", reasoning: true, batchSize: 8 };
    const { generation } = of("nlac", approving).work;
    expect(named(generation, "critiques")).toEqual([8]);
    const two = of("nlac", { ...approving, futures: 2 }).work.generation;
    expect(two.filter(({ what, weights }) => what === "futures" && weights === "θ")).toMatchObject([
      { texts: 16 },
    ]);
    for (const refinementsKept of ["all", "approved"])
      for (const name of ["refinements", "corrected refinements"] as const)
        expect(named(of("nlac", { ...approving, refinementsKept }).work.generation, name)).toEqual([]);
    expect(named(of("nlac", { ...approving, refinementsKept: "all" }).work.generation, "critiques")).toEqual(
      [],
    );
  });

  test("Critique-GRPO's rewritten thoughts, and the probabilities of its refinements", () => {
    const config = { episodesPerIteration: 64, groupSize: 4, refinedPerGroup: 2, batchSize: 40 };
    const { playing, passes } = of("critique-grpo", { ...config, reasoning: true }).work;
    expect(named(playing, "corrected refinements")).toEqual([32]);
    expect(named(of("critique-grpo", config).work.playing, "corrected refinements")).toEqual([]);
    // A step of 40 has half of the 16 refinements.
    expect(passes.find(({ what }) => what === "refinements")).toMatchObject({ texts: 8, backward: false });
  });

  test("at the limits, what other roles than the policy read and write", () => {
    const longest = ({ work, recipe, shape }: ReturnType<typeof of>, name: GenerationCall["what"]) =>
      atLimits(work, recipe, shape).playing.find(({ what }) => what === name)!;
    const critics = of("critique-grpo", { maxCriticTokens: 256, maxRestTokens: 500 });
    const { observation, request } = critics.work.lengths;
    expect(longest(critics, "critiques")).toMatchObject({
      prompt: 2048 + 128 + observation + 500 + request,
      generated: 256,
    });
    expect(longest(critics, "refinements").prompt).toBe(2048 + 128 + 256 + 2 * request);
    const hope = of("hope", { maxSummaryTokens: 700, maxProposalTokens: 300 });
    expect(longest(hope, "summaries").generated).toBe(700);
    expect(longest(hope, "proposals").generated).toBe(300);
    expect(longest(hope, "branches")).toMatchObject({ prompt: 2048, generated: 128 });
  });
});

describe("the estimate of hope", () => {
  const hope = (changes: Record<string, unknown> = {}, learner: object = {}) => {
    const recipe = parseRecipe(
      {
        name: "test",
        model: "Qwen2.5-1.5B-Instruct",
        learner: { device: "cuda", ...learner },
        environment: { name: "twentyQuestions" },
        algorithm: "hope",
        config: { iterations: 3, maxPromptTokens: 2048, maxActionTokens: 128, ...changes },
      },
      "a test",
    );
    return estimate(recipe, { turns: 10, tasks: 20 }, small);
  };
  /** Completions of each kind in an iteration, apart from episodes. */
  const completions = ({ work }: Estimate) => {
    const counts: Record<string, number> = {};
    const add = (calls: readonly GenerationCall[], times: number) => {
      for (const { what, texts } of calls) counts[what] = (counts[what] ?? 0) + times * texts;
    };
    add(work.playing, 1);
    add(work.generation, work.updates);
    return counts;
  };

  test("counts the proposer's completions", () => {
    // 20 tasks, 4 of 14 episodes at 2 turns, 2 actions each.
    const places = 20 * 4 * 2;
    expect(completions(hope())).toMatchObject({ summaries: 20 * 4, proposals: places, branches: 2 * places });
    const different = completions(hope({ proposer: "different" }));
    expect(different).toMatchObject({
      samples: 5 * places,
      "other actions": 2 * places,
      branches: 2 * places,
    });
    expect(different).not.toHaveProperty("summaries");
    expect(completions(hope({ hindsight: false }))).toMatchObject({ samples: 2 * places });
    expect(Object.keys(completions(hope({ proposer: { model: "gpt-4o" } }))).sort()).toEqual([
      "actions",
      "branches",
      "candidates",
    ]);
  });

  test("counts proposals in the actor's training, and summaries of each episode once", () => {
    const [without, half] = [0, 0.5].map((proposalShare) => completions(hope({ proposalShare })));
    const states = without!.candidates! / 2;
    expect(half!.proposals! - without!.proposals!).toBeCloseTo(states / 2, 6);
    expect(half!.summaries).toBeCloseTo(14 * 20 + 2 * 20 * 4 * 2, 6);
  });

  test("counts the measurement of the reward model, and its best weights", () => {
    const measured = hope({ rewardEvaluation: { episodes: 28 } });
    expect(measured.work.diagnosis.times).toBe(3);
    expect(measured.work.diagnosis.generation.map(({ what, texts, times }) => [what, texts, times])).toEqual([
      ["actions", 28 * 15, 10],
    ]);
    const time = ({ fits }: Estimate) => seconds(fits.at(-1)!.time.run);
    expect(time(measured)).toBeGreaterThan(time(hope()));
    const often = hope({ rewardEvaluation: { episodes: 28, every: 10 } });
    const updates = Math.ceil((often.work.updates * often.work.steps - often.work.updates) / 10);
    expect(often.work.diagnosis.times).toBe(3 * updates);
    expect(often.work.references).toBe(measured.work.references + 1);
    const held = ({ fits }: Estimate, name: RegExp) =>
      total(fits.at(-1)!.assumed.held.filter((part) => name.test(part.name)));
    expect(held(often, /^(the reference|two references),/)).toBe(
      2 * held(measured, /^(the reference|two references),/),
    );
    expect(held(measured, /^(the reference|two references),/)).toBe(2 * measured.parameters);
  });

  test("holds the frozen model twice with an adapter, for the policy and for the reward model", () => {
    const { fits, parameters } = hope({}, { adapter: { rank: 16, alpha: 32 } });
    const { held } = fits.at(-1)!.assumed;
    const bytes = (name: RegExp) => total(held.filter((part) => name.test(part.name)));
    expect(bytes(/^the model, bfloat16$/)).toBe(2 * parameters);
    expect(bytes(/^the reward model/)).toBeGreaterThan(2 * parameters);
  });
});

test("only a method that uses θ̄ has one, also if it ends after its warm-up", () => {
  for (const algorithm of ["nlac", "sac", "rft", "grpo", "ppo", "critique-grpo", "archer"] as const) {
    for (const iterations of [0, 1]) {
      const recipe = parseRecipe(
        {
          name: "x",
          model: "Qwen2.5-7B-Instruct",
          environment: { name: "math" },
          algorithm,
          warmup: { steps: 1 },
          config: { iterations },
        },
        "a test",
      );
      const held = estimate(recipe, { turns: 1 }, small).fits[0]!.assumed.held.map(({ name }) => name);
      const has = held.includes("θ̄, float32");
      expect([algorithm, iterations, has]).toEqual([algorithm, iterations, /nlac|sac/.test(algorithm)]);
    }
  }
});

test("on a GPU the chunks of a gated delta net exist at once", () => {
  const recipe = parseRecipe(
    { name: "x", model: "Qwen2.5-1.5B-Instruct", environment: { name: "math" }, algorithm: "rft" },
    "a test",
  );
  const { shape, work } = estimate(recipe, { turns: 1 });
  const delta = { layers: 18, keyHeads: 16, heads: 32, keyDim: 128, valueDim: 128, kernel: 4 };
  const backward = (of: typeof shape, device: "cpu" | "cuda") => {
    const { training } = memoryOf(recipe, of, work, device);
    return training.find(({ name }) => name === "one layer's backward pass")!.bytes;
  };
  const [without, onCpu, onGpu] = [
    backward(shape, "cuda"),
    backward({ ...shape, delta }, "cpu"),
    backward({ ...shape, delta }, "cuda"),
  ];
  expect(onCpu).toBe(without);
  expect((onGpu - onCpu) / microBatchTokens(recipe, work)).toBeGreaterThan(100_000);
});

test("with an adapter the model is only read", () => {
  const recipe = parseRecipe(
    {
      name: "x",
      model: "Qwen2.5-7B-Instruct",
      learner: { device: "cuda", cacheBytes: 0 },
      environment: { name: "math" },
      config: { batchSize: 8, episodesPerIteration: 8, maxActionTokens: 1024, maxCriticTokens: 1024 },
    },
    "a test",
  );
  Object.assign(recipe.learner, { adapter: { rank: 8 } });
  const held = estimate(recipe, { turns: 1 }).fits.at(-1)!.assumed.held;
  expect(total(held)).toBe(2 * 7_615_616_512 + 20_185_088 * (4 + 2 + 4 + 8 + 4 + 2));
});

test("with an adapter the model's own matrices take no gradient", () => {
  const recipe = parseRecipe(
    { name: "x", model: "Qwen2.5-7B-Instruct", environment: { name: "math" }, algorithm: "rft" },
    "a test",
  );
  const all = estimate(recipe, { turns: 1 });
  Object.assign(recipe.learner, { adapter: { rank: 8, alpha: 16 } });
  const { shape, work, fits } = estimate(recipe, { turns: 1 });
  const matrices = 28 * (3584 * (3584 + 2 * 512) + 3584 ** 2 + 3 * 3584 * 18_944);
  const products = work.passes
    .filter(({ backward }) => backward)
    .map(({ texts, tokens, scored }) => texts * (tokens * matrices + scored * shape.vocabulary * 3584));
  const saved = 2 * products.reduce((sum, count) => sum + count, 0);
  expect(saved).toBeGreaterThan(0);
  const [without, withAdapter] = [all, { fits }].map((one) => one.fits[0]!.time.update.flops);
  expect((without! - withAdapter!) / saved).toBeCloseTo(1, 9);
});

describe("measurements on two cores of an AMD EPYC (docs/paper-recipes.md)", () => {
  const here = cpu("two cores", 2, 24.7e9);
  const within = (value: number, measured: number, factor: number) => {
    expect(value).toBeGreaterThan(measured / factor);
    expect(value).toBeLessThan(measured * factor);
  };

  test("an hour of 20 Questions: 10.0 GB, 29.1 s an update", async () => {
    const [fit] = estimate(await loadRecipe("twenty-questions"), { turns: 20 }, here).fits;
    within(fit!.atLimits.peak, 10.0e9, 1.25);
    expect(fit!.assumed.peak).toBeLessThan(10.0e9);
    within(seconds(fit!.time.update), 29.1, 1.5);
  });

  test("two updates of it on short games: 4.82 GB", async () => {
    const changes = ["config.optimizerState=shared", "config.episodesPerIteration=4"]; // no policy step was taken
    const [fit] = estimate(await loadRecipe("twenty-questions", changes), { turns: 6 }, here).fits;
    within(fit!.assumed.peak, 4.82e9, 1.25);
  });

  test("training by SmolLM2: 950 tokens/s with products of bfloat16, 165 with AVX2", () => {
    const bfloat16 = new Set(["avx2", "avx512_bf16"]);
    const perCore = (device: Device) => device.flops.bfloat16 / availableParallelism();
    const [best, avx2] = [thisMachine(bfloat16, undefined), thisMachine(new Set(["avx2"]), undefined)];
    within(perCore(best) / perCore(avx2), 950 / 165, 1.1);
    within(best.bandwidth / avx2.bandwidth, 118 / 65, 1.1);
    expect([best.cores, avx2.cores]).toEqual([
      "an AMD EPYC with AVX-512 and bfloat16",
      "an AMD EPYC with AVX2",
    ]);
    expect(thisMachine(bfloat16, "avx2")).toEqual(avx2);
    expect(thisMachine(bfloat16, "amx_bf16")).toEqual(best);
  });

  test("this machine has the memory that its container may use", () => {
    const limit = vi.spyOn(process, "constrainedMemory");
    const memory = (bytes: number) => {
      limit.mockReturnValue(bytes);
      return thisMachine(new Set(), undefined).memory;
    };
    expect(memory(2 ** 30)).toBe(2 ** 30);
    for (const none of [0, 2 ** 64]) expect(memory(none)).toBe(totalmem());
    limit.mockRestore();
  });

  test("errands with SmolLM2 have longer texts than with the model made for them", async () => {
    const recipe = await loadRecipe("composed-errands");
    const { lengths } = estimate(recipe, { turns: 5 }, here).work;
    expect(lengths.opening).toBeGreaterThan(100);
    const own = { ...recipe, model: errandsModel() } as Recipe;
    expect(estimate(own, { turns: 5 }, here).work.lengths.opening).toBeLessThan(30);
  });

  test("errands, a model too small to fill the processor: 108 s", async () => {
    const recipe = { ...(await loadRecipe("errands")), model: errandsModel() } as Recipe;
    const [fit] = estimate(recipe, { turns: 6 }, here).fits;
    within(seconds(fit!.time.run), 108, 4);
  });
});

test("remedies are changes that a recipe takes, each of which helps, and the last of which fits if any does", () => {
  const { remedies, fits } = estimated({ batchSize: 2048, optimizerState: "separate" }, allAtOnce);
  expect(remedies.map(({ change }) => change.split("=")[0])).toEqual([
    "config.optimizerState",
    "config.batchSize",
  ]);
  const needs = [peak({ fits } as Estimate), ...remedies.map(({ atLimits }) => atLimits)];
  expect(needs).toEqual([...needs].sort((a, b) => b - a));
  expect(needs.at(-1)).toBeLessThan(Math.max(...gpus.map(({ memory }) => memory)));
  expect(estimated().remedies).toEqual([]);
});

test("a batch that is too large is reported with the numbers that its remedy reduces", () => {
  const { remedies } = estimated({ batchSize: 4096 }, allAtOnce);
  const batchSize = Number(remedies.at(-1)!.change.split("=")[1]);
  expect(peak(estimated({ batchSize }, allAtOnce))).toBe(remedies.at(-1)!.atLimits);
});
