import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type DryRun, renderDryRun } from "../../lib/cli/dry-run.ts";
import { errandsModel } from "../../lib/environments/errands/model.ts";
import { cpu, gpus } from "../../lib/estimate/devices.ts";
import { type Estimate, estimate } from "../../lib/estimate/estimate.ts";
import { cacheCapacity, total } from "../../lib/estimate/memory.ts";
import {
  activeParameterCount,
  adapterCount,
  findShape,
  layerMatrices,
  parameterCount,
  publicModels,
} from "../../lib/estimate/shape.ts";
import { seconds } from "../../lib/estimate/time.ts";
import type { Writing } from "../../lib/estimate/work.ts";
import { cachedModel, isCached, KNOWN_MODELS } from "../../lib/hub/resolve-model.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { loadRecipe, parseRecipe, type Recipe, recipeNames } from "../../lib/recipe/recipe.ts";
import { nlac } from "../support/command-line.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

const fixtures = join(import.meta.dirname, "../fixtures");
const folders = ["models", "io"].flatMap((kind) =>
  readdirSync(join(fixtures, kind), { withFileTypes: true })
    .map((entry) => join(fixtures, kind, entry.name))
    .filter((path) => existsSync(join(path, "config.json"))),
);

/** Elements of every tensor that a folder's safetensors files hold, by their headers. */
function storedTensors(folder: string): Map<string, number> {
  const sizes = new Map<string, number>();
  for (const file of readdirSync(folder).filter((name) => /^model.*\.safetensors$/.test(name))) {
    const bytes = readFileSync(join(folder, file));
    const length = Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.subarray(8, 8 + length).toString()) as Record<
      string,
      { shape?: number[] }
    >;
    for (const [name, { shape }] of Object.entries(header)) {
      // Of a vision-language model, the text part is loaded.
      if (shape !== undefined && !/^(model\.visual|mtp)\./.test(name))
        sizes.set(
          name,
          shape.reduce((product, side) => product * side, 1),
        );
    }
  }
  return sizes;
}

const sum = (values: Iterable<number>) => [...values].reduce((a, b) => a + b, 0);

describe("a model's shape", () => {
  test.each(folders)("counts the parameters that are stored in %s", (folder) => {
    const stored = storedTensors(folder);
    const shape = findShape(folder);
    expect(parameterCount(shape)).toBe(sum(stored.values()));
    const matrices = [...stored].filter(([name]) => /(_proj(_\w+)?|mlp\.gate)\.weight$/.test(name));
    expect(shape.layers * layerMatrices(shape)).toBe(sum(matrices.map(([, size]) => size)));
  });

  // What the models' own pages say, and so do their safetensors files.
  test.each([
    ["SmolLM2-135M-Instruct", 134_515_008],
    ["Qwen2.5-0.5B-Instruct", 494_032_768],
    ["Qwen2.5-1.5B-Instruct", 1_543_714_304],
    ["Llama-3.2-3B-Instruct", 3_212_749_824],
    ["Qwen2.5-3B-Instruct", 3_085_938_688],
    ["Qwen2.5-7B-Instruct", 7_615_616_512],
    ["QwQ-32B", 32_763_876_352],
  ])("counts the parameters of %s", (name, count) => {
    expect(parameterCount(publicModels[name]!)).toBe(count);
    expect(findShape(`models/${name}`)).toBe(publicModels[name]);
  });

  test("counts the parameters of a mixture of experts, and those that a token uses", () => {
    const config = {
      ...{ model_type: "qwen3_moe", hidden_size: 2048, intermediate_size: 6144, num_hidden_layers: 48 },
      ...{ num_attention_heads: 32, num_key_value_heads: 4, head_dim: 128, vocab_size: 151_936 },
      ...{ max_position_embeddings: 40_960, num_experts: 128, num_experts_per_tok: 8 },
      ...{ moe_intermediate_size: 768, mlp_only_layers: [], decoder_sparse_step: 1 },
    };
    // Qwen3-30B-A3B's page: 30.5B parameters, 3.3B activated.
    const shape = findShape({ config });
    expect(parameterCount(shape)).toBe(30_532_122_624);
    expect(activeParameterCount(shape)).toBe(3_353_032_704);
    const dense = findShape({ config: { ...config, mlp_only_layers: [0, 1], decoder_sparse_step: 2 } });
    expect(dense.experts?.layers).toBe(23);
    // Adapters are those of attention, and of the layers without experts.
    const attention = 48 * (2048 + 4096 + 2 * (2048 + 512) + 4096 + 2048);
    expect(adapterCount(shape, { rank: 2 })).toBe(2 * attention);
    expect(adapterCount(dense, { rank: 2 })).toBe(2 * (attention + 25 * 3 * (2048 + 6144)));
    const llama = publicModels["SmolLM2-135M-Instruct"]!;
    expect(activeParameterCount(llama)).toBe(parameterCount(llama));
  });

  test("counts what a learner counts", async () => {
    for (const config of [{ ...tinyConfig }, errandsModel().config]) {
      const learner = await Learner.create(config, { dtype: "float32" });
      expect(parameterCount(findShape({ config }))).toBe(learner.info.parameters);
      await learner.dispose();
    }
  });

  test.skipIf(!isCached(KNOWN_MODELS[0]!))("counts SmolLM2's parameters as its file has them", async () => {
    const learner = await Learner.load(cachedModel(KNOWN_MODELS[0]!));
    expect(parameterCount(publicModels["SmolLM2-135M-Instruct"]!)).toBe(learner.info.parameters);
    await learner.dispose();
  });

  test("counts the adapters as peft does", () => {
    expect(adapterCount(publicModels["Qwen2.5-7B-Instruct"]!, { rank: 8 })).toBe(20_185_088);
    const targets = ["q_proj", "v_proj"] as const;
    expect(adapterCount(publicModels["SmolLM2-135M-Instruct"]!, { rank: 8, targets })).toBe(460_800);
  });

  test("is rejected if config.json lacks a field or there is no model", async () => {
    await inDirectory((directory) => {
      mkdirSync(join(directory, "model"));
      const { hidden_size: _, ...config } = tinyConfig;
      writeFileSync(join(directory, "model", "config.json"), JSON.stringify(config));
      expect(() => findShape(join(directory, "model"))).toThrow(
        expect.objectContaining({
          code: "ERR_MODEL_FORMAT",
          message: expect.stringContaining("hidden_size"),
        }),
      );
      writeFileSync(join(directory, "model", "config.json"), '{"hidden_size": 3');
      expect(() => findShape(join(directory, "model"))).toThrow(
        expect.objectContaining({ code: "ERR_MODEL_FORMAT", message: expect.stringContaining(directory) }),
      );
      expect(() => findShape(join(directory, "none"))).toThrow(
        expect.objectContaining({ code: "ERR_MODEL_NOT_FOUND" }),
      );
    });
  });
});

test("a text's keys and values take whole blocks", () => {
  for (const [prompt, written, room] of [
    [1, 1, 16],
    [15, 2, 16],
    [16, 1, 32],
    [10, 300, 320],
    [200, 57, 256],
    [200, 58, 272],
    [8192, 24_576, 32_768],
  ] as const) {
    expect(cacheCapacity({ prompt, written })).toBe(room);
  }
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

describe("an estimate grows", () => {
  test.each<[string, Record<string, unknown>]>([
    ["with the batch", { batchSize: 128 }],
    ["with the longest action", { maxActionTokens: 4096 }],
    ["with the longest prompt", { maxPromptTokens: 8192 }],
    ["with a second set of moments", { optimizerState: "separate" }],
    ["with futures", { futures: 4 }],
    ["with a model that reasons", { reasoning: true, maxActionTokens: 4096, maxCriticTokens: 4096 }],
  ])("%s", (_, changes) => {
    // With room for the keys and values of any batch: cacheBytes would bound them.
    expect(peak(estimated(changes, allAtOnce))).toBeGreaterThan(peak(estimated({}, allAtOnce)));
    expect(update(estimated(changes))).toBeGreaterThanOrEqual(update(estimated()));
  });

  test("with rounds of refinement, in time", () => {
    expect(update(estimated({ refinements: 3 }))).toBeGreaterThan(1.2 * update(estimated()));
  });

  test("and falls with gradient checkpointing, which takes time for it", () => {
    const long = { batchSize: 4, maxPromptTokens: 8192 };
    expect(peak(estimated(long, { gradientCheckpointing: true }))).toBeLessThan(0.85 * peak(estimated(long)));
    expect(update(estimated(long, { gradientCheckpointing: true }))).toBeGreaterThan(update(estimated(long)));
  });

  test("and decreases on a CPU with generation in int8", () => {
    const [int8, whole] = [true, false].map(
      (int8Generation) => estimated({ batchSize: 1 }, { device: "cpu", int8Generation }).fits[0]!,
    );
    expect(int8!.assumed.peak).toBeLessThan(whole!.assumed.peak);
    expect(int8!.time.update.writing).toBeLessThan(whole!.time.update.writing);
  });

  test("with the model, and less with float32 than twice", () => {
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

test("a diagnosis is counted: its completions, how often it runs, and the memory of its largest call", () => {
  const every = (diagnostics: object, more = {}) =>
    estimated({ iterations: 5, attempt: "stored", diagnostics, ...more });
  const none = every({});
  const often = every({ every: 2, transitions: 32, branches: 0 });
  expect(none.work.diagnosis).toEqual({ times: 0, writing: [] });
  expect(often.work.diagnosis.times).toBe(3); // iterations 0, 2 and 4
  const told = often.work.diagnosis.writing.map(({ what, texts }) => ({ what, texts }));
  expect(told.filter(({ what }) => what !== "futures")).toEqual([
    { what: "critiques", texts: 32 },
    { what: "refinements", texts: 32 },
  ]);
  // What an update writes for as many transitions, three times in the run.
  const batch = often.work.writing.find(({ what }) => what === "critiques")!.texts;
  const refined = (estimate: Estimate) =>
    estimate.work.writing
      .filter(({ weights }) => weights === "θ")
      .reduce((written, { texts, written: tokens }) => written + texts * tokens, 0);
  const more = often.fits[0]!.time.run.written - none.fits[0]!.time.run.written;
  const futures = often.work.diagnosis.writing
    .filter(({ what }) => what === "futures")
    .reduce((written, { texts, written: tokens }) => written + texts * tokens, 0);
  expect(more).toBeCloseTo(3 * ((refined(often) * 32) / batch + futures), 3);
  // Branches play on, and a diagnosis of more transitions than a batch has needs more room.
  const branching = every({ every: 2, transitions: 32, branches: 4 });
  const turns = branching.work.lengths.turns;
  const played = branching.fits[0]!.time.run.written - often.fits[0]!.time.run.written;
  expect(played).toBeCloseTo(3 * 32 * 4 * ((turns - 1) / 2) * branching.work.lengths.action, 3);
  const room = { cacheBytes: 1e15 };
  const wide = { every: 1, transitions: 4096, branches: 0 };
  const [small_, large] = [{}, wide].map((diagnostics) =>
    peak(estimated({ diagnostics, episodesPerIteration: 512, batchSize: 8 }, room)),
  );
  expect(large!).toBeGreaterThan(small_!);
});

describe("the estimate of hope", () => {
  const hope = (changes: Record<string, unknown> = {}) => {
    const recipe = parseRecipe(
      {
        name: "test",
        model: "Qwen2.5-1.5B-Instruct",
        learner: { device: "cuda" },
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
    const add = (calls: readonly Writing[], times: number) => {
      for (const { what, texts } of calls) counts[what] = (counts[what] ?? 0) + times * texts;
    };
    add(work.playing, 1);
    add(work.writing, work.updates);
    return counts;
  };

  test("counts what the proposer writes", () => {
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
    expect(measured.work.diagnosis.writing.map(({ what, texts, times }) => [what, texts, times])).toEqual([
      ["actions", 28 * 15, 10],
    ]);
    const time = ({ fits }: Estimate) => seconds(fits.at(-1)!.time.run);
    expect(time(measured)).toBeGreaterThan(time(hope()));
    const often = hope({ rewardEvaluation: { episodes: 28, every: 10 } });
    const updates = Math.ceil((often.work.updates * often.work.steps - often.work.updates) / 10);
    expect(often.work.diagnosis.times).toBe(3 * updates);
    expect(often.work.references).toBe(measured.work.references + 1);
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

describe("nlac train --dry-run", () => {
  test.each(recipeNames())("%s", async (name) => {
    const { code, output, errors } = await nlac("train", name, "--dry-run");
    expect(errors).toBe("");
    expect(code).toBe(0);
    for (const line of output.split("\n")) expect(line.length).toBeLessThanOrEqual(100);
    const { model } = await loadRecipe(name);
    const unmade = typeof model === "string" && model.startsWith("runs/") && !existsSync(model);
    expect(/^No estimate: /m.test(output)).toBe(unmade);
  });

  test("what the paper writes stands in every recipe of it", async () => {
    const names = recipeNames().filter((name) => name.startsWith("paper/"));
    expect(names).toHaveLength(30); // two models, three tasks, five methods
    for (const name of names) {
      const { name: own, config, model, algorithm } = await loadRecipe(name);
      expect(`paper/${own}`).toBe(name);
      expect(model).toBe(own.startsWith("qwq") ? "QwQ-32B" : "Qwen2.5-7B-Instruct");
      expect(config).toMatchObject({ iterations: 30, maxPromptTokens: 8192, maxActionTokens: 24_576 });
      if (algorithm === "nlac") {
        const rates = { criticLearningRate: 5e-6, policyLearningRate: 5e-6, targetRate: 0.005 };
        const sizes = { futures: 1, refinements: 1, priorityExponent: 0.1, rehearsal: 0 };
        expect(config).toMatchObject({ ...rates, ...sizes, refinementsKept: "all" });
      } else {
        expect(config).toMatchObject({ learningRate: 5e-6 });
      }
      // docs/decisions/0016: 30,720 samples for all; Algorithm 1 takes a step for each, PPO and
      // GRPO step on verl's mini-batches.
      const batchSize = algorithm === "ppo" || algorithm === "grpo" ? 256 : 1;
      expect(config).toMatchObject({ episodesPerIteration: 1024, batchSize });
      const { work } = estimate(await loadRecipe(name));
      expect(work.iterations * work.updates * batchSize).toBe(30_720);
      expect(work.iterations * work.episodes).toBe(30_720);
    }
  });

  test("--json gives the recipe as it was resolved, and the estimate", async () => {
    const { output } = await nlac(
      "train",
      "quickstart",
      "--dry-run",
      "--json",
      "--set",
      "config.batchSize=8",
    );
    const { recipe, environment, estimate: told } = JSON.parse(output) as DryRun;
    const changed = await loadRecipe("quickstart", ["config.batchSize=8"]);
    expect(recipe).toEqual(JSON.parse(JSON.stringify(changed)));
    expect(environment).toMatchObject({ turns: 6 });
    expect(told).toEqual(JSON.parse(JSON.stringify(estimate(changed, { turns: 6 }))));
  });

  test("reports a missing item in one line", async () => {
    await inDirectory(async (directory) => {
      const path = join(directory, "mine.json");
      writeFileSync(path, JSON.stringify({ name: "mine", model: "none", environment: { name: "nowhere" } }));
      const { code, output } = await nlac("train", path, "--dry-run");
      expect(code).toBe(0);
      expect(output).toMatch(/cannot be opened here: ERR_CONFIG: There is no environment "nowhere"/);
      expect(output).toMatch(/^No estimate: ERR_MODEL_NOT_FOUND: none is not a directory/m);
    });
  });

  test("prints memory, devices, remedies and assumptions", () => {
    const recipe = parseRecipe(
      {
        name: "layout",
        model: "Qwen2.5-1.5B-Instruct",
        learner: { device: "cuda" },
        environment: { name: "math" },
        config: {
          iterations: 10,
          updatesPerIteration: 16,
          batchSize: 2048,
          maxActionTokens: 2048,
          maxCriticTokens: 512,
        },
      },
      "a test",
    );
    const text = renderDryRun({
      recipe,
      environment: { trainingTasks: 12_000, turns: 1 },
      estimate: estimate(recipe, { turns: 1 }, small),
    });
    expect(text).toContain("environment  math\n             12,000 training tasks, 1 turn per episode\n");
    // The resolved recipe before it has whatever fields an algorithm has.
    expect(text.slice(text.indexOf("\nmemory "))).toMatchSnapshot();
  });

  test.each([
    ["errands", undefined, undefined],
    ["paper/qwen2.5-7b-math", undefined, "; no directory of this name exists yet"],
    [
      "paper/qwen2.5-7b-math",
      "Qwen/Qwen2.5-7B-Instruct",
      "; it is downloaded from the hub unless it is in the cache",
    ],
  ])("of %s says whether its model must be downloaded", async (name, model, told) => {
    const recipe = { ...(await loadRecipe(name)), ...(model && { model }) };
    const shaped = { ...recipe, model: errandsModel() } as Recipe;
    const text = renderDryRun({
      recipe,
      environment: { trainingTasks: 8, turns: 6 },
      estimate: estimate(shaped, { turns: 6 }, small),
    });
    const [line] = /model .*?learner/.exec(text.replaceAll(/\s+/g, " "))!;
    expect(line.includes(";")).toBe(told !== undefined);
    expect(line).toContain(told ?? "");
  });
});
