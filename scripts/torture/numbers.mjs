// NaN, infinities and extreme numbers in weights, arguments, losses, rewards and priorities;
// completions that never parse; concurrent calls of one learner. Every call must succeed or reject
// with a code, and a rejected or skipped one must leave weights, moments and priorities as they
// were.
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { uniform } from "../../dist/base/random.js";
import { errandsModel } from "../../dist/environments/index.js";
import * as nlac from "../../dist/index.js";
import { PrioritizedSampler } from "../../dist/ops/index.js";
import { ending, expect, randomOf, stateOf, within } from "./support/in-process.mjs";
import { recipe, trainings } from "./support/recipes.mjs";
import { inDirectory } from "./support/sandbox.mjs";

export const about = "NaN, infinities and concurrency in weights, losses, rewards and priorities";

const { Learner } = nlac;
const model = fileURLToPath(new URL("../../models/errands-base", import.meta.url));
const bad = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
const options = { dtype: "float32", seed: 3 };
const text = { prompt: [5, 6, 7, 8], response: [9, 10, 11] };
const step = { learningRate: 1e-3 };

const attacks = { weights, argument, overflow, priorities, unparsed, rewards, concurrent };

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const names = Object.keys(attacks);
    for (let number = first; number < first + runs; number++) {
      const name = names[number % names.length];
      const began = performance.now();
      let failure;
      try {
        const attack = attacks[name](randomOf(uniform, seed, number), directory, number);
        await within(120, name, attack);
      } catch (error) {
        failure = { number, message: `${name}: ${error.stack}` };
      }
      const seconds = (performance.now() - began) / 1000;
      report({ runs: 1, counts: { [name]: 1 }, worst: { "s a run": seconds }, ...(failure && { failure }) });
    }
  });
}

async function withLearner(learner, body) {
  const opened = await learner;
  try {
    return await body(opened);
  } finally {
    await opened.dispose();
  }
}

/** Settles `promise`, which must succeed or reject with a code. */
async function coded(what, promise) {
  const result = await ending(promise);
  expect(result.uncoded === undefined, `${what} ended without a code: ${result.uncoded}`);
  return result;
}

/**
 * A model with some weights that are not finite: its steps are skipped, and it generates nothing
 * silently.
 */
async function weights({ random, pick }, directory) {
  const path = join(directory, "model");
  mkdirSync(path);
  for (const file of readdirSync(model)) copyFileSync(join(model, file), join(path, file));
  const file = join(path, "model.safetensors");
  const bytes = readFileSync(file);
  const start = 8 + Number(bytes.readBigUInt64LE());
  for (let i = 0; i < 1 + Math.floor(random() * 20); i++) {
    const at = start + 4 * Math.floor((random() * (bytes.length - start)) / 4);
    bytes.writeFloatLE(pick([...bad, 3e38, -3e38]), at);
  }
  writeFileSync(file, bytes);
  const opened = await coded("load", Learner.load(path, options));
  rmSync(path, { recursive: true });
  if (opened.value === undefined) return;
  await withLearner(opened.value, async (learner) => {
    const request = { tokens: text.prompt, maxNewTokens: 4, seed: 1 };
    await coded("generate", learner.generate([request]));
    const before = await stateOf(learner, directory);
    const [losses] = (await coded("tokenNll", learner.tokenNll([text]))).value ?? [[]];
    const { value: stepped } = await coded("step", learner.step(step));
    const finite = [...losses].every(Number.isFinite) && Number.isFinite(stepped?.gradNorm);
    expect(finite || stepped?.skipped !== false, "a step on numbers that are not finite was taken");
    if (stepped?.skipped)
      expect(before === (await stateOf(learner, directory)), "a skipped step changed the state");
  });
}

/**
 * One argument that is not a proper number: the call is refused and does not affect the next step.
 */
async function argument({ pick, random }, directory) {
  const heads = pick(["none", "value", "q"]);
  const wrong = pick([...bad, "1", null, 1e39, -1e39, {}]);
  const list = [0.5, wrong, 0.5];
  const kl = { student: text.prompt, teacher: text.prompt, response: text.response };
  const scored = { ...text, oldLogProbs: [-1, -1, -1], advantages: [1, 1, 1] };
  const calls = {
    none: [
      (learner) => learner.tokenNll([{ ...text, weight: wrong === null ? Number.NaN : wrong }]),
      (learner) => learner.tokenNll([{ ...text, weight: list }]),
      (learner) => learner.tokenKl([kl], { temperature: wrong ?? Number.NaN }),
      (learner) => learner.step({ learningRate: wrong === 1e39 ? Number.NaN : wrong }),
      (learner) => learner.step({ ...step, betas: [0.9, wrong ?? Number.NaN] }),
      (learner) => learner.step({ ...step, targetRate: wrong ?? Number.NaN }),
      (learner) => learner.updateTarget(wrong),
      (learner) => learner.generate([{ tokens: text.prompt, maxNewTokens: 2, temperature: wrong ?? "hot" }]),
      (learner) => learner.generate([{ tokens: [1, wrong], maxNewTokens: 2 }]),
      (learner) => learner.tokenSurrogate([{ ...scored, advantages: list }]),
      (learner) => learner.tokenSurrogate([{ ...scored, oldLogProbs: list }]),
      (learner) => learner.logProbs([{ ...text, response: [9, wrong, 11] }]),
    ],
    value: [
      (learner) =>
        learner.tokenSurrogate([{ ...scored, returns: list, oldValues: [0, 0, 0] }], {
          value: { coefficient: 1 },
        }),
      (learner) =>
        learner.tokenSurrogate([{ ...scored, returns: [0, 0, 0], oldValues: list }], {
          value: { coefficient: 1 },
        }),
    ],
    q: [
      (learner) =>
        learner.softQ([{ ...text, rewards: list }], {
          temperature: 0.1,
          qCoefficient: 1,
          policyCoefficient: 1,
        }),
      (learner) =>
        learner.softQ([{ ...text, rewards: [0, 0, 0] }], {
          ...{ temperature: wrong ?? Number.NaN, qCoefficient: 1, policyCoefficient: 1 },
        }),
    ],
  };
  const call = pick(calls[heads]);
  await withLearner(Learner.load(model, { ...options, heads }), async (learner) => {
    if (random() < 0.5) await learner.tokenNll([text]);
    const before = await stateOf(learner, directory);
    const { code, value } = await coded(String(call), call(learner));
    // A large temperature is allowed: it only makes a distribution uniform.
    const allowed = wrong === 1e39 && String(call).includes("temperature");
    expect(code !== undefined || allowed, `${call} accepted ${String(wrong)}: ${JSON.stringify(value)}`);
    if (code !== undefined)
      expect(
        before === (await stateOf(learner, directory)),
        `${call} with ${String(wrong)} changed the state`,
      );
  });
}

/** Finite arguments whose gradients are not: the step is skipped and changes nothing. */
async function overflow({ pick, random }, directory) {
  await withLearner(Learner.load(model, { ...options, heads: "value" }), async (learner) => {
    if (random() < 0.5) {
      await learner.tokenNll([text]);
      await learner.step(step);
    }
    const before = await stateOf(learner, directory);
    const huge = pick([3e38, -3e38, 1e30]);
    const list = [huge, -huge, huge];
    const scored = { ...text, oldLogProbs: [-1, -1, -1], advantages: list };
    const valued = { ...scored, returns: list, oldValues: list };
    const made = await coded(
      "an overflowing loss",
      pick([
        () => learner.tokenNll([{ ...text, weight: huge }]),
        () => learner.tokenSurrogate([scored]),
        () => learner.tokenSurrogate([{ ...text, oldLogProbs: list, advantages: [1, 1, 1] }]),
        () => learner.tokenSurrogate([valued], { value: { coefficient: 1 } }),
      ])(),
    );
    if (made.value === undefined) return;
    const { value } = await coded("step", learner.step(step));
    if (value?.skipped) {
      expect(before === (await stateOf(learner, directory)), "a skipped step changed the state");
      return;
    }
    const [after] = await learner.logits([text.prompt]);
    expect(Number.isFinite(value?.gradNorm) && after.every(Number.isFinite), "a step broke the weights");
  });
}

/** Random priorities, some refused: the sampler stays equal to a plain list. */
async function priorities({ random, pick }) {
  const capacity = 1 + Math.floor(random() * 200);
  const sampler = new PrioritizedSampler({ capacity, alpha: pick([0, 0.1, 1]), seed: 1 });
  const plain = new Float32Array(capacity);
  for (let i = 0; i < 200; i++) {
    const index = Math.floor(random() * (capacity + 1));
    const priority = pick([...bad, -1, 0, 0, 1e-40, 1, random(), 1e30]);
    const { code } = await coded("set", (async () => sampler.set([0, index], [0.5, priority]))());
    const refused = index >= capacity || !(priority >= 0 && priority < Number.POSITIVE_INFINITY);
    expect(refused === (code !== undefined), `set(${index}, ${priority}) gave ${code}`);
    if (!refused) {
      plain[0] = 0.5;
      plain[index] = priority;
    }
    if (random() < 0.1) {
      sampler.set([...plain.keys()], new Float32Array(capacity));
      plain.fill(0);
    }
    const { value, code: empty } = await coded("sample", (async () => sampler.sample(4))());
    const drawable = plain.some((p) => p > 0);
    expect(drawable ? value !== undefined : empty === "ERR_EMPTY", `sample gave ${empty} of ${plain}`);
    for (const drawn of value?.indices ?? []) expect(plain[drawn] > 0, `index ${drawn} has priority 0`);
    expect(
      sampler.get([...plain.keys()]).every((p, at) => p === plain[at]),
      "the sampler has other priorities than were set",
    );
  }
  sampler.dispose();
}

/** A training of a model with random weights, whose completions never parse. */
async function unparsed({ pick }, directory) {
  const name = pick(trainings.filter((training) => training !== "lora"));
  const { config, tokenizer } = errandsModel();
  const given = { ...recipe(name), model: { config, tokenizer } };
  const path = join(directory, "unparsed");
  await coded(`${name} without a parse`, nlac.trainRecipe(given, { directory: path }));
  rmSync(path, { recursive: true, force: true });
}

/** A training whose environment gives extreme or improper rewards. */
async function rewards({ random, pick }, directory) {
  const train = pick([nlac.trainNlac, nlac.trainPpo, nlac.trainGrpo, nlac.trainRft, nlac.trainSac]);
  const heads = train === nlac.trainPpo ? "value" : train === nlac.trainSac ? "q" : "none";
  const improper = [...bad, "1", null, undefined, 10n];
  const extreme = [1e308, -1e308, 3e38, -3e38, 1e20, 5e-324, -0];
  const values = random() < 0.5 ? extreme : [...extreme, ...improper];
  const given = [];
  const base = nlac.environments.errands();
  const environment = {
    ...base,
    rewardRange: pick([
      [0, 1],
      [-1e308, 1e308],
    ]),
    start: async (task, startOptions) => {
      const episode = await base.start(task, startOptions);
      return {
        observation: episode.observation,
        close: () => episode.close(),
        step: async (action) => {
          const reward = pick(values);
          given.push(reward);
          return { ...(await episode.step(action)), reward };
        },
      };
    },
  };
  const rate = train === nlac.trainNlac ? {} : { learningRate: 1e-4 };
  const { seed, ...config } = recipe("sac").config;
  const common = Object.fromEntries(
    Object.entries(config).filter(([key]) => !["targetRate", "temperature", "learningRate"].includes(key)),
  );
  const perUpdate = [nlac.trainPpo, nlac.trainGrpo].includes(train);
  if (perUpdate) delete common.updatesPerIteration;
  await withLearner(Learner.load(model, { ...options, heads }), async (learner) => {
    const run = nlac.memoryRun();
    const result = await coded(
      `${train.name} with rewards ${values.map(String)}`,
      train({ model: learner, environment, run, config: { ...common, ...rate, seed } }),
    );
    expect(result.code !== "ERR_CONFIG", result.error?.message);
    const [after] = await learner.logits([text.prompt]);
    expect(
      after.every(Number.isFinite),
      `${train.name}: the weights are not finite after ${given.map(String)}`,
    );
    for (const { turns } of run.trajectories)
      expect(
        turns.every(({ reward }) => Number.isFinite(reward)),
        "a recorded reward is not finite",
      );
  });
  void directory;
}

/**
 * Calls of one learner that are not awaited, then dispose: each settles, in the order of the calls.
 */
async function concurrent({ random, pick }, directory) {
  const disposeEarly = random() < 0.5;
  const kinds = Array.from({ length: 3 + Math.floor(random() * 20) }, () => [
    pick(["generate", "tokenNll", "step", "updateTarget", "discardGradients", "logProbs", "dropCaches"]),
    random(),
  ]);
  const call = (learner, [kind, number], signal) => {
    const signals = signal === undefined ? {} : { signal };
    switch (kind) {
      case "generate":
        return learner.generate(
          [{ tokens: text.prompt, maxNewTokens: 1 + Math.floor(number * 40), seed: 1 }],
          signals,
        );
      case "tokenNll":
        return learner.tokenNll([{ ...text, weight: number }]);
      case "step":
        return learner.step({ learningRate: 1e-3 * number });
      case "updateTarget":
        return learner.updateTarget(1);
      case "logProbs":
        return learner.logProbs([text]);
      default:
        return learner[kind]();
    }
  };
  let expected;
  await withLearner(Learner.load(model, options), async (learner) => {
    for (const each of kinds) await call(learner, each);
    expected = await stateOf(learner, directory);
  });
  await withLearner(Learner.load(model, options), async (learner) => {
    const stopping = new AbortController();
    const calls = kinds.map((each) => coded(each[0], call(learner, each, stopping.signal)));
    if (random() < 0.5) setTimeout(() => stopping.abort(), random() * 20);
    const state = disposeEarly ? undefined : stateOf(learner, directory);
    const closing = disposeEarly ? learner.dispose() : state;
    const results = await within(60, "concurrent calls", Promise.all(calls));
    await within(60, "dispose", closing);
    for (const [i, { code }] of results.entries())
      expect(
        code === undefined ||
          (disposeEarly && code === "ERR_DISPOSED") ||
          (kinds[i][0] === "generate" && code === "ERR_ABORTED"),
        `${kinds[i][0]} rejected with ${code}`,
      );
    if (!disposeEarly)
      expect((await state) === expected, "concurrent calls ended in another state than sequential ones");
  });
}
