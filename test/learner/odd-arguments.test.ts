/** Any value in the place of any argument: a call works, or throws an error with a code. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Learner } from "../../lib/learner/learner.ts";
import { ops, PrioritizedSampler, Tensor } from "../../lib/ops/index.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

const odd: readonly unknown[] = [
  ...[undefined, null, 5, Number.NaN, 1n, "", true, Symbol("odd")],
  ...[[], [null], {}, { nonsense: 1 }, new Map(), () => 1],
];

/** Puts each odd value in the place of each argument. Returns how many calls were refused. */
async function attack(call: (...args: unknown[]) => unknown, good: readonly unknown[]): Promise<number> {
  let refused = 0;
  for (const i of good.keys()) {
    for (const value of odd) {
      try {
        const result = await call(...good.with(i, value));
        if (result instanceof Tensor || result instanceof PrioritizedSampler) result.dispose();
      } catch (error) {
        expect(error, `argument ${i}, ${typeof value}`).toBeInstanceOf(NlacError);
        expect((error as NlacError).code, (error as NlacError).message).not.toBe("ERR_INTERNAL");
        refused++;
      }
    }
  }
  return refused;
}

describe("a learner", () => {
  let learner: Learner;
  beforeAll(async () => {
    learner = await tinyLearner({ heads: "value" });
  });
  afterAll(() => learner.dispose());

  const text = { prompt: [1], response: [2] };
  const kl = { student: [1], teacher: [1], response: [1] };
  const surrogate = { ...text, oldLogProbs: [0], advantages: [0] };
  const calls: Partial<Record<keyof Learner, readonly unknown[]>> = {
    generate: [[{ tokens: [1], maxNewTokens: 1 }], {}],
    generateTogether: [[], {}, "online"],
    prepareRequests: [[]],
    logProbs: [[text], {}],
    gatherWeights: ["online"],
    values: [[text]],
    logits: [[[1]], {}],
    tokenNll: [[text], {}],
    tokenKl: [[kl], {}],
    tokenSurrogate: [[surrogate], {}],
    tokenPreference: [[], { beta: 1 }],
    rewards: [[text]],
    rewardLoss: [[{ ...text, label: 1 }], {}],
    softQ: [[], { temperature: 1, qCoefficient: 1, policyCoefficient: 1 }],
    step: [{ learningRate: 0 }],
    discardMoments: ["a"],
    updateTarget: [1],
    encode: ["a"],
    decode: [[1]],
    render: [[{ role: "user", content: "a" }], {}],
    conversation: [[{ role: "user", content: "a" }], {}],
    restoreConversation: [{}],
  };
  it.each(Object.entries(calls))("%s", async (name, good) => {
    const method = learner[name as "logits"] as (...args: unknown[]) => unknown;
    expect(await attack((...args) => method.apply(learner, args), good)).toBeGreaterThan(4);
  });

  it.each(["save", "exportHuggingFace", "exportRewardModel", "exportAdapter"] as const)("%s", (name) =>
    inDirectory(async (directory) => {
      const refused = await attack((path) => learner[name](path as string), [join(directory, "out")]);
      expect(refused).toBe(odd.length);
      expect(existsSync(join(directory, "out"))).toBe(false);
    }),
  );

  it("refuses misspelt options", async () => {
    const misspelt: [call: Promise<unknown>, message: RegExp][] = [
      [
        learner.logProbs([text], { weigths: "target" } as never),
        /logProbs has no "weigths"; it takes weights/,
      ],
      [learner.logits([[1]], { weight: "target" } as never), /logits has no "weight"/],
      [learner.tokenNll([text], { gradient: false } as never), /tokenNll has no "gradient"/],
      [learner.tokenKl([kl], { topK: 5 } as never), /tokenKl has no "topK"; it takes .*support/],
      [learner.tokenKl([kl], { support: { topk: 5 } as never }), /support has no "topk"/],
      [learner.tokenSurrogate([surrogate], { clip: 0.1 } as never), /tokenSurrogate has no "clip"/],
      [learner.step({ lr: 1 } as never), /step has no "lr"; it takes learningRate/],
    ];
    for (const [call, message] of misspelt)
      await expect(call).rejects.toMatchObject({
        code: "ERR_VALUE",
        message: expect.stringMatching(message),
      });
    for (const call of [
      learner.tokenNll([text], { withGradient: "no" as never }),
      learner.tokenKl([kl], { withGradient: 0 as never }),
    ])
      await expect(call).rejects.toThrow(/withGradient must be true or false/);
  });
});

describe("operations", () => {
  const calls = Object.entries(ops as unknown as Record<string, (...args: unknown[]) => unknown>);
  it.each(calls)("%s", async (name, call) => {
    using tensor = Tensor.from(Float32Array.of(1), [1]);
    const good = name === "ema" ? [[tensor], [tensor], 1, {}] : [{}];
    expect(await attack(call, good)).toBeGreaterThan(10);
  });

  it("a tensor", async () => {
    const call = (...args: unknown[]) => Tensor.from(...(args as Parameters<typeof Tensor.from>));
    expect(await attack(call, [Float32Array.of(1), [1], {}])).toBeGreaterThan(30);
  });

  it("a sampler", () =>
    inDirectory(async (directory) => {
      const path = join(directory, "sampler");
      using sampler = new PrioritizedSampler({ capacity: 4 });
      const calls: [method: "set" | "get" | "sample" | "save" | "load", ...good: unknown[]][] = [
        ["set", [0], [1]],
        ["get", [0]],
        ["sample", 1, {}],
        ["save", path],
        ["load", path],
      ];
      for (const [name, ...good] of calls) {
        const method = sampler[name] as (...args: unknown[]) => unknown;
        expect(await attack((...args) => method.apply(sampler, args), good), name).toBeGreaterThan(8);
      }
      const create = (options: unknown) => new PrioritizedSampler(options as { capacity: number });
      expect(await attack(create, [{ capacity: 4 }])).toBe(odd.length);
      sampler.save(path);
      const load = (...args: unknown[]) => PrioritizedSampler.load(...(args as [string]));
      expect(await attack(load, [path, {}])).toBeGreaterThan(18);

      sampler.set([0, 1], [1, 2]);
      expect(() => sampler.set([0], [null as never])).toThrow(/priorities\[0\] must be a number; it is null/);
      expect([...sampler.get([0, 1])]).toEqual([1, 2]);
    }));
});
