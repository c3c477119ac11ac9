/**
 * Parts of a learner for policy gradients: a weight per token, the clipped surrogate, the value
 * head, the reference.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type { LearnerOptions } from "../../lib/learner/options.ts";
import type { ScoredText, SurrogateOptions, SurrogateText } from "../../lib/model/language-model.ts";
import { testDevice } from "../support/device.ts";
import { expectGradients, learnerWithValueHead, readSafetensors } from "../support/safetensors.ts";
import { inDirectory, logSoftmax, tinyConfig, tinyLearner } from "../support/tiny.ts";

const fixtures = fileURLToPath(new URL("../fixtures", import.meta.url));
const vocab = tinyConfig.vocab_size;

type Lists = "losses" | "logProbs" | "entropies" | "ratios" | "values" | "valueLosses";

/** Recorded by scripts/fixtures/policy_gradient.py. */
const recorded = JSON.parse(readFileSync(`${fixtures}/training/policy-gradient.json`, "utf8")) as {
  model: string;
  valueHead: { weight: number[]; bias: number[] };
  batches: Record<
    "ppo" | "grpo",
    {
      texts: (SurrogateText & { weight: number[]; advantages: number[]; response: number[] })[];
      options: SurrogateOptions & { clipLow: number; clipHigh: number };
      total: number;
      expected: Partial<Record<Lists, number[]>>[];
    }
  >;
};

async function refusal(promise: Promise<unknown>): Promise<NlacError> {
  const error = await promise.then(
    () => "no error",
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(NlacError);
  return error as NlacError;
}

function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, within = 1e-5) {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++)
    expect(Math.abs(actual[i]! - expected[i]!)).toBeLessThan(within * Math.max(1, Math.abs(expected[i]!)));
}

/** The recorded model, with the recorded value head for PPO. */
function recordedLearner(batch: "ppo" | "grpo", options: LearnerOptions): Promise<Learner> {
  const path = `${fixtures}/models/${recorded.model}`;
  if (batch === "grpo") return Learner.load(path, { dtype: "float32", device: testDevice, ...options });
  return learnerWithValueHead(path, recorded.valueHead, options);
}

describe.each(["ppo", "grpo"] as const)("a recorded batch of %s", (batch) => {
  const { texts, options, total, expected } = recorded.batches[batch];

  it.each([
    ["at once", {}],
    ["in micro-batches, recomputed", { microBatchTokens: 16, gradientCheckpointing: true }],
  ])("has the losses and gradients of float64 autograd, %s", async (_, learnerOptions) => {
    await using learner = await recordedLearner(batch, learnerOptions);
    const results = await learner.tokenSurrogate(texts, options);
    let sum = 0;
    const held = new Set<number>();
    for (const [i, text] of texts.entries()) {
      const result = results[i]!;
      for (const [name, list] of Object.entries(expected[i]!) as [Lists, number[]][])
        expectClose(
          result[name]!,
          list.map((value, t) => (text.weight[t] === 0 ? 0 : value)),
        );
      expect("values" in result).toBe(batch === "ppo");
      for (const [t, weight] of text.weight.entries()) {
        const advantage = text.advantages[t]!;
        const ratio = expected[i]!.ratios![t]!;
        const above = weight !== 0 && advantage > 0 && ratio > 1 + options.clipHigh;
        const below = weight !== 0 && advantage < 0 && ratio < 1 - options.clipLow;
        expect(result.clipped[t]).toBe(above ? 1 : below ? -1 : 0);
        held.add(result.clipped[t]!);
        sum +=
          weight * (result.losses[t]! + (options.value?.coefficient ?? 0) * (result.valueLosses?.[t] ?? 0));
      }
    }
    expect(held).toEqual(new Set([-1, 0, 1]));
    expect(Math.abs(sum - total)).toBeLessThan(1e-5);

    await expectGradients(learner, `${fixtures}/training/policy-gradient.safetensors`, batch);
  });
});

it("a detached value trains its head and leaves the policy alone, bit for bit", async () => {
  await using learner = await tinyLearner({ heads: "value" });
  const zeros = [0, 0, 0];
  const text = { prompt: [1, 2], response: [3, 4, 5], oldLogProbs: zeros, advantages: zeros };
  const valued = { ...text, returns: [1, -2, 3], oldValues: zeros };
  const step = async (detached: boolean) => {
    await learner.tokenSurrogate([valued], { value: { coefficient: 1, detached } });
    await learner.step({ learningRate: 1e-2 });
    return { logProbs: await learner.logProbs([text]), values: await learner.values([text]) };
  };
  const before = await learner.logProbs([text]);
  const first = await step(true); // the head's weights are no longer 0
  const second = await step(true);
  expect([first.logProbs, second.logProbs]).toEqual([before, before]);
  expect(second.values).not.toEqual(first.values);
  expect((await step(false)).logProbs).not.toEqual(before);
});

describe("weights of single tokens", () => {
  let learner: Learner;
  beforeAll(async () => {
    learner = await tinyLearner({ heads: "value" });
  });
  afterAll(() => learner.dispose());

  it("decide which tokens are computed, in every call", async () => {
    const whole = { prompt: [1, 2, 3], response: [4, 5, 6, 7] };
    const part = { ...whole, weight: [1, 0, -0.5, 0] };
    const calls: ((texts: ScoredText[]) => Promise<Float32Array[]>)[] = [
      (texts) => learner.logProbs(texts),
      (texts) => learner.tokenNll(texts, { withGradient: false }),
    ];
    for (const call of calls) {
      const [all, some, none] = await call([whole, part, { ...whole, weight: 0 }]);
      expect([some![1], some![3]]).toEqual([0, 0]);
      expectClose([some![0]!, some![2]!], [all![0]!, all![2]!]);
      expect(none).toEqual(new Float32Array(4));
    }
    expect(await learner.values([whole, part])).toEqual([new Float32Array(4), new Float32Array(4)]);
  });

  it("scale the gradient of their tokens alone", async () => {
    const norm = async (...texts: ScoredText[]) => {
      await learner.tokenNll(texts);
      return (await learner.step({ learningRate: 0 })).gradNorm;
    };
    const prompt = [9, 8];
    const listed = await norm({ prompt, response: [7, 6, 5], weight: Float32Array.of(0, 2, 0.5) });
    const single = await norm(
      { prompt: [...prompt, 7], response: [6], weight: 2 },
      { prompt: [...prompt, 7, 6], response: [5], weight: [0.5] },
    );
    expect(listed / single).toBeCloseTo(1, 5);
    expect(await norm({ prompt, response: [7, 6], weight: [0, 0] })).toBe(0);
  });
});

describe("the reference", () => {
  const texts = [{ prompt: [1, 2, 3], response: [4, 5, 6] }];
  const step = async (model: Learner) => {
    await model.tokenNll(texts);
    await model.step({ learningRate: 0.01 });
  };

  it("must have been copied, and does not change", async () => {
    await using model = await tinyLearner();
    const error = await refusal(model.logProbs(texts, { weights: "reference" }));
    expect(error.code).toBe("ERR_VALUE");
    expect(error.message).toContain("reference");
    await model.keepReference();
    const [before] = await model.logProbs(texts, { temperature: 0.5 });
    await step(model);
    expect((await model.logProbs(texts, { temperature: 0.5 }))[0]).not.toEqual(before);
    expect((await model.logProbs(texts, { weights: "reference", temperature: 0.5 }))[0]).toEqual(before);
    await model.keepReference();
    expect(await model.logProbs(texts, { weights: "reference" })).toEqual(await model.logProbs(texts));
  });

  it.each(["float32", "bfloat16"] as const)("can take the place of θ in %s", async (dtype) => {
    await using model = await tinyLearner({ dtype });
    expect((await refusal(model.restoreReference())).code).toBe("ERR_VALUE");
    const before = await model.logProbs(texts);
    await model.keepReference();
    await step(model);
    expect(await model.logProbs(texts)).not.toEqual(before);
    await model.tokenNll(texts); // pending gradients are dropped
    await model.restoreReference();
    expect(await model.logProbs(texts)).toEqual(before);
    expect((await model.step({ learningRate: 0.01 })).gradNorm).toBe(0);
  });

  it("is measured at the given temperature", async () => {
    await using model = await tinyLearner();
    const { prompt, response } = texts[0]!;
    const [logits] = await model.logits([[...prompt, ...response]]);
    const [logProbs] = await model.logProbs(texts, { temperature: 1.7 });
    expectClose(
      logProbs!,
      response.map((id, i) => logSoftmax(logits!, prompt.length + i - 1, vocab, 1.7)[id]!),
    );
  });
});

/** An episode without advantages or returns but for what a test gives it. */
async function episode(
  model: Learner,
  text: ScoredText,
  own: Partial<SurrogateText>,
): Promise<SurrogateText> {
  const [oldLogProbs] = await model.logProbs([text]);
  return { ...text, oldLogProbs: oldLogProbs!, advantages: text.response.map(() => 0), ...own };
}

describe("training with the surrogate", () => {
  it("makes better actions more likely, within the clip range", async () => {
    await using model = await tinyLearner();
    const prompt = [1, 2, 3];
    const texts = [
      await episode(model, { prompt, response: [4, 5, 6] }, { advantages: [1, 1, 1] }),
      await episode(model, { prompt, response: [7, 8, 9] }, { advantages: [-1, -1, -1] }),
    ];
    let results = await model.tokenSurrogate(texts);
    expectClose(results[0]!.ratios, [1, 1, 1]);
    for (let i = 0; i < 30; i++) {
      await model.step({ learningRate: 0.003 });
      results = await model.tokenSurrogate(texts);
    }
    expect(Array.from(results[0]!.clipped)).toEqual([1, 1, 1]);
    expect(Array.from(results[1]!.clipped)).toEqual([-1, -1, -1]);
  });

  it("fits values at positions with a weight only", async () => {
    await using model = await tinyLearner({ heads: "value" });
    const returns = [0.5, Number.NaN, -1];
    const text = { prompt: [1, 2, 3], response: [4, 5, 6], weight: [1, 0, 1] };
    const texts = [await episode(model, text, { returns, oldValues: [0, Number.NaN, 0] })];
    const options = { value: { coefficient: 1 } };
    for (let i = 0; i < 100; i++) {
      await model.tokenSurrogate(texts, options);
      await model.step({ learningRate: 0.01 });
    }
    const [values] = await model.values([text]);
    expectClose(values!, [0.5, 0, -1], 0.02);
    const [result] = await model.tokenSurrogate(texts, { ...options, withGradient: false });
    expectClose(result!.values!, values!, 1e-6);
    expect((await model.step({ learningRate: 0 })).gradNorm).toBe(0);
  });
});

describe("save, resume and export of heads", () => {
  const text = { prompt: [1, 2, 3], response: [4, 5, 6] };
  const train = async (model: Learner) => {
    const own = { advantages: [1, -1, 0.5], returns: [1, 2, 3], oldValues: [0, 0, 0] };
    const texts = [await episode(model, text, own)];
    for (let i = 0; i < 3; i++) {
      await model.tokenSurrogate(texts, { value: { coefficient: 0.5, clip: 0.2 } });
      await model.step({ learningRate: 0.01 });
      await model.updateTarget(0.1);
    }
  };
  const observe = async (model: Learner) => ({
    values: await model.values([text]),
    online: await model.logProbs([text]),
    target: await model.logProbs([text], { weights: "target" }),
    reference: await model.logProbs([text], { weights: "reference" }),
  });

  for (const dtype of ["float32", "bfloat16"] as const) {
    it(`continues bit for bit in ${dtype}, with the head and the reference`, async () => {
      await inDirectory(async (directory) => {
        await using model = await tinyLearner({ dtype, heads: "value" });
        await model.updateTarget(0);
        await model.keepReference();
        await train(model);
        await model.save(directory);
        await using resumed = await Learner.resume(directory, { dtype, device: testDevice });
        expect(resumed.info).toEqual(model.info);
        expect(await observe(resumed)).toEqual(await observe(model));
        await train(model);
        await train(resumed);
        expect(await observe(resumed)).toEqual(await observe(model));
      });
    });
  }

  it("keeps the saved heads, and rejects others", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner({ heads: "value" });
      await using plain = await tinyLearner();
      expect([model.info.heads, plain.info.heads]).toEqual(["value", "none"]);
      expect(model.info.parameters - plain.info.parameters).toBe(tinyConfig.hidden_size + 1);
      await model.save(directory);
      const error = await refusal(Learner.resume(directory, { heads: "none" }));
      expect(error.code).toBe("ERR_CONFIG");
      expect(error.message).toContain('heads "value"');
      await using bare = await Learner.load(directory, { dtype: "float32" });
      expect(bare.info.heads).toBe("none");
      await model.exportHuggingFace(directory);
      expect([...readSafetensors(join(directory, "model.safetensors")).keys()].join()).not.toContain(
        "head.b",
      );
    });
  });
});

describe("bad arguments", () => {
  let learner: Learner;
  beforeAll(async () => {
    learner = await tinyLearner({ heads: "value" });
  });
  afterAll(() => learner.dispose());

  const good = {
    ...{ prompt: [1], response: [2, 3], oldLogProbs: [-1, -1], advantages: [1, 1] },
    ...{ referenceLogProbs: [-1, -1], returns: [0, 0], oldValues: [0, 0] },
  };
  const all = { klCoefficient: 0.1, value: { coefficient: 1 } };
  const lists = ["oldLogProbs", "advantages", "referenceLogProbs", "returns", "oldValues"] as const;
  const surrogate = (own: object) => (m: Learner) => m.tokenSurrogate([good, { ...good, ...own }], all);
  const cases: [name: string, call: (model: Learner) => Promise<unknown>, message: RegExp][] = [
    [
      "weights of another length",
      (m) => m.tokenNll([{ ...good, weight: [1] }]),
      /texts\[0\]\.weight.* 2 .*has 1/,
    ],
    ["a NaN weight", (m) => m.logProbs([{ ...good, weight: [1, Number.NaN] }]), /texts\[0\]\.weight\[1\]/],
    ["a weight past float32", (m) => m.tokenNll([{ ...good, weight: 1e39 }]), /texts\[0\]\.weight/],
    ["weights that are text", (m) => m.values([{ ...good, weight: "11" as never }]), /texts\[0\]\.weight/],
    ...lists.flatMap((list): typeof cases => [
      [`no ${list}`, surrogate({ [list]: undefined }), new RegExp(`texts\\[1\\]\\.${list} must be an array`)],
      [`too few ${list}`, surrogate({ [list]: [0] }), new RegExp(`texts\\[1\\]\\.${list} .* 2 .*has 1`)],
      [`${list} past float32`, surrogate({ [list]: [0, 1e39] }), new RegExp(`texts\\[1\\]\\.${list}\\[1\\]`)],
    ]),
    ["a log probability at temperature 0", (m) => m.logProbs([good], { temperature: 0 }), /temperature/],
    ["a surrogate at temperature 0", (m) => m.tokenSurrogate([good], { temperature: 0 }), /temperature/],
    ["a lower clip above 1", (m) => m.tokenSurrogate([good], { clipLow: 1.1 }), /clipLow/],
    ["a negative upper clip", (m) => m.tokenSurrogate([good], { clipHigh: -0.1 }), /clipHigh/],
    ["a negative KL", (m) => m.tokenSurrogate([good], { klCoefficient: -1 }), /klCoefficient/],
    [
      "a NaN entropy",
      (m) => m.tokenSurrogate([good], { entropyCoefficient: Number.NaN }),
      /entropyCoefficient/,
    ],
    [
      "a negative value",
      (m) => m.tokenSurrogate([good], { value: { coefficient: -1 } }),
      /value\.coefficient/,
    ],
    [
      "a NaN value clip",
      (m) => m.tokenSurrogate([good], { value: { coefficient: 1, clip: Number.NaN } }),
      /clip/,
    ],
    ["other weights to score", (m) => m.logProbs([good], { weights: "base" as never }), /weights.*"base"/],
    ["the reference's logits", (m) => m.logits([[1]], { weights: "reference" as never }), /weights/],
  ];
  it.each(cases)("%s: refused", async (_, call, message) => {
    const error = await refusal(call(learner));
    expect(error.code).toBe("ERR_VALUE");
    expect(error.message).toMatch(message);
  });

  it("lists may contain any value at weight 0, and may be omitted if they are not needed", async () => {
    const { prompt, response } = good;
    const oldLogProbs = [-1, Number.NaN];
    const text = { prompt, response, oldLogProbs, advantages: [1, Number.POSITIVE_INFINITY], weight: [1, 0] };
    const [result] = await learner.tokenSurrogate([text], { withGradient: false });
    expect(result!.losses[1]).toBe(0);
    expect(result!.losses[0]).toBeLessThan(0);
    expect(await learner.tokenSurrogate([])).toEqual([]);
    expect(await learner.values([])).toEqual([]);
  });

  it("a missing value head is ERR_CONFIG, and so is an unknown kind of head", async () => {
    await using plain = await tinyLearner();
    for (const call of [plain.values([good]), plain.tokenSurrogate([good], all)]) {
      const error = await refusal(call);
      expect(error.code).toBe("ERR_CONFIG");
      expect(error.message).toContain('heads "value"');
    }
    expect((await refusal(tinyLearner({ heads: "both" as never }))).code).toBe("ERR_CONFIG");
  });
});
