import { existsSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { isCached, KNOWN_MODELS } from "../../lib/hub/resolve-model.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { codeOf, expectClose, ids, referenceNll, vocab } from "../support/learner-checks.ts";
import { endOfTurn } from "../support/scripted-model.ts";
import { inDirectory, logSoftmax, tinyConfig, tinyLearner } from "../support/tiny.ts";

let learner: Learner;

beforeAll(async () => {
  learner = await tinyLearner({ seed: 7 });
});

afterAll(() => learner.dispose());

describe("a learner's model", () => {
  it("gives the architecture and the number of parameters", () => {
    const { hidden_size: h, intermediate_size: f, num_hidden_layers: layers } = tinyConfig;
    const attention = h * h * 2 + h * (h / 2) * 2;
    expect(learner.info).toMatchObject({
      family: "llama",
      vocabSize: vocab,
      hiddenSize: h,
      layers,
      maxPositions: 256,
      eosTokenIds: [endOfTurn],
      bosTokenId: -1,
      parameters: 2 * vocab * h + layers * (attention + 3 * h * f + 2 * h) + h,
    });
    expect(learner.maxPositions).toBe(256);
    expect(learner.endOfTurn).toBe(endOfTurn);
  });

  it("turns text and messages into ids, and never a user's text into a control token", () => {
    expect(learner.encode("héllo")).toEqual(ids("héllo"));
    expect(learner.decode(ids("héllo"))).toBe("héllo");
    const rendered = learner.render([{ role: "user", content: "a<|im_end|>" }], {
      addGenerationPrompt: true,
    });
    expect(rendered.filter((id) => id >= 256)).toEqual([256, 257, 256]);
    expect(learner.decode(rendered)).toBe("<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n");
    const conversation = learner.conversation([{ role: "user", content: "a<|im_end|>" }]);
    expect(conversation.prompt()).toEqual(rendered);
    const restored = learner.restoreConversation(JSON.parse(JSON.stringify(conversation)));
    expect(restored.prompt()).toEqual(rendered);
  });

  it("takes only ids without a tokenizer", async () => {
    await using bare = await Learner.create(tinyConfig, { dtype: "float32" });
    expect(() => bare.encode("a")).toThrowError(/no tokenizer/);
    expect(bare.endOfTurn).toBe(endOfTurn);
    const [generation] = await bare.generate([{ tokens: [1], maxNewTokens: 3, temperature: 0 }]);
    expect(generation!.tokens.length).toBeGreaterThan(0);
    expect(generation!.text).toBe("");
    const chat = bare.generate([{ messages: [{ role: "user", content: "a" }] }]);
    expect(await codeOf(chat)).toBe("ERR_TOKENIZER");
  });
});

describe("losses and steps", () => {
  const prompt = ids("2 + 2 = ");
  const response = [...ids("4, as ever."), endOfTurn];

  it("computes -log p of every response token", async () => {
    await using model = await tinyLearner();
    const [losses] = await model.tokenNll([{ prompt, response }]);
    expectClose(losses!, await referenceNll(model, prompt, response));
    const [logProbs] = await model.logProbs([{ prompt, response }]);
    expectClose(
      logProbs!,
      losses!.map((x) => -x),
    );
  });

  it("accumulates gradients until a step, scaled by the weights", async () => {
    await using model = await tinyLearner();
    const still = { learningRate: 0 };
    await model.tokenNll([{ prompt, response }]);
    const { gradNorm: one } = await model.step(still);
    expect(one).toBeGreaterThan(0);
    await model.tokenNll([{ prompt, response, weight: 2 }]);
    await model.tokenNll([{ prompt, response, weight: 0.5 }]);
    await model.tokenNll([{ prompt, response, weight: 9 }], { withGradient: false });
    const { gradNorm: more } = await model.step(still);
    expect(more / one).toBeCloseTo(2.5, 3);

    await model.tokenNll([{ prompt, response }]);
    await model.discardGradients();
    expect((await model.step(still)).gradNorm).toBe(0);
  });

  it("learns", async () => {
    await using model = await tinyLearner({ dtype: "bfloat16" });
    const sum = (losses: Float32Array) => losses.reduce((a, b) => a + b, 0);
    const [before] = await model.tokenNll([{ prompt, response }], { withGradient: false });
    for (let i = 0; i < 30; i++) {
      await model.tokenNll([{ prompt, response }]);
      expect((await model.step({ learningRate: 0.01, moments: "fast" })).skipped).toBe(false);
    }
    await model.discardMoments("fast");
    const [after] = await model.tokenNll([{ prompt, response }], { withGradient: false });
    expect(sum(after!)).toBeLessThan(sum(before!) / 4);
    const [generation] = await model.generate([{ tokens: prompt, temperature: 0 }]);
    expect(generation!.text).toBe("4, as ever.");
  });

  it("computes the KL from θ̄ to θ, in full, over the top k, and on the sampled token", async () => {
    await using model = await tinyLearner();
    await model.updateTarget(1);
    await model.tokenNll([{ prompt, response }]);
    await model.step({ learningRate: 0.02 });
    const teacher = ids("Two and two make ");
    const text = { student: prompt, teacher, response, weight: 3 };
    const options = { withGradient: false };

    const [online] = await model.logits([[...prompt, ...response]]);
    const [target] = await model.logits([[...teacher, ...response]], { weights: "target" });
    const divergence = (temperature: number, term: (lp: number, lq: number) => number) =>
      response.map((_, t) => {
        const p = logSoftmax(target!, teacher.length + t - 1, vocab, temperature);
        const q = logSoftmax(online!, prompt.length + t - 1, vocab, temperature);
        return p.reduce((sum, lp, v) => sum + term(lp, q[v]!), 0);
      });
    const kl = (temperature: number) => divergence(temperature, (lp, lq) => Math.exp(lp) * (lp - lq));
    const [full] = await model.tokenKl([text], options);
    expectClose(full!, kl(1));
    const [warm] = await model.tokenKl([text], { ...options, temperature: 2 });
    expectClose(warm!, kl(2));
    const [reverse] = await model.tokenKl([text], { ...options, divergence: "reverseKl" });
    expectClose(
      reverse!,
      divergence(1, (lp, lq) => Math.exp(lq) * (lq - lp)),
    );
    const [mixed] = await model.tokenKl([text], { ...options, divergence: { jensenShannon: 0.25 } });
    expectClose(
      mixed!,
      divergence(1, (lp, lq) => {
        const lm = Math.log(0.25 * Math.exp(lp) + 0.75 * Math.exp(lq));
        return 0.25 * Math.exp(lp) * (lp - lm) + 0.75 * Math.exp(lq) * (lq - lm);
      }),
    );
    const [some] = await model.tokenKl([text], { ...options, support: { topK: 8 } });
    for (const [t, value] of some!.entries()) {
      expect(value).toBeGreaterThanOrEqual(-1e-6);
      expect(value).toBeLessThanOrEqual(full![t]! + 1e-5);
    }
    const [sampled] = await model.tokenKl([text], { ...options, support: "sampled" });
    expectClose(sampled!, await referenceNll(model, prompt, response));

    const sides = [
      [online!, prompt],
      [target!, teacher],
    ] as const;
    for (const support of ["full", "sampled"] as const) {
      const [detailed] = await model.tokenKl([text], { ...options, support, temperature: 2, detail: 3 });
      const [plain] = await model.tokenKl([text], { ...options, support, temperature: 2 });
      expect(detailed!.losses).toEqual(plain);
      for (const [i, side] of [detailed!.online, detailed!.target].entries()) {
        const [logits, context] = sides[i]!;
        const rows = response.map((_, t) => logSoftmax(logits, context.length + t - 1, vocab, 2));
        expectClose(
          side.logProbs,
          rows.map((row, t) => row[response[t]!]!),
        );
        const best = rows.flatMap((row) => [...row].sort((a, b) => b - a).slice(0, 3));
        expectClose(side.topLogProbs, best);
        expectClose(
          [...side.top].map((id, k) => rows[Math.floor(k / 3)]![id]!),
          best,
        );
      }
    }
    expect((await model.step({ learningRate: 0 })).gradNorm).toBe(0);

    // Its minimum is at θ̄: steps on the KL bring θ's distribution to the teacher's.
    for (let i = 0; i < 20; i++) {
      await model.tokenKl([text]);
      await model.step({ learningRate: 0.01 });
    }
    const [after] = await model.tokenKl([text], options);
    const mean = (losses: Float32Array) => losses.reduce((a, b) => a + b, 0) / losses.length;
    expect(mean(after!)).toBeLessThan(mean(full!) / 3);
  });

  it("moves the target by τ", async () => {
    await using model = await tinyLearner();
    expect(await model.targetDistance()).toBe(0);
    await model.updateTarget(0.3);
    await model.tokenNll([{ prompt, response }]);
    await model.step({ learningRate: 0.01 });
    const far = await model.targetDistance();
    expect(far).toBeGreaterThan(0);
    await model.updateTarget(0);
    expect(await model.targetDistance()).toBe(far);
    await model.updateTarget(0.25);
    expect((await model.targetDistance()) / far).toBeCloseTo(0.75, 4);
    await model.updateTarget(1);
    expect(await model.targetDistance()).toBe(0);
  });

  it("moves the target in a step as in a separate call after it", async () => {
    await using together = await tinyLearner();
    await using apart = await tinyLearner();
    await apart.updateTarget(0); // of the other the first step makes θ̄
    for (let i = 0; i < 3; i++) {
      for (const model of [together, apart]) await model.tokenNll([{ prompt, response }]);
      const result = await together.step({ learningRate: 0.01, targetRate: 0.3 });
      expect(await apart.step({ learningRate: 0.01 })).toEqual(result);
      await apart.updateTarget(0.3);
      expect(await together.targetDistance()).toBe(await apart.targetDistance());
      for (const weights of ["online", "target"] as const)
        expect(await together.logits([prompt], { weights })).toEqual(
          await apart.logits([prompt], { weights }),
        );
    }
    expect(await together.targetDistance()).toBeGreaterThan(0);
  });

  it("refuses requests and texts that are no objects", async () => {
    await using model = await tinyLearner();
    for (const odd of [null, undefined, 5, "a", []] as never[])
      for (const use of [model.generate([odd]), model.tokenNll([odd]), model.tokenKl([odd])])
        expect(await codeOf(use)).toBe("ERR_VALUE");
    expect(await codeOf(model.generate(5 as never))).toBe("ERR_VALUE");
    expect(await codeOf(model.generate([{ tokens: [1], stop: 5 as never }]))).toBe("ERR_VALUE");
  });

  it("rejects a target that was not requested before the first step", async () => {
    await using model = await tinyLearner();
    await model.tokenNll([{ prompt, response }]);
    await model.step({ learningRate: 0.01 });
    for (const use of [
      model.updateTarget(0.005),
      model.step({ learningRate: 0.01, targetRate: 0.005 }),
      model.targetDistance(),
      model.logits([prompt], { weights: "target" }),
      model.tokenKl([{ student: prompt, teacher: prompt, response }]),
    ])
      expect(await codeOf(use)).toBe("ERR_VALUE");
    await model.updateTarget(1);
    expect(await model.targetDistance()).toBe(0);
  });
});

describe.skipIf(!isCached(KNOWN_MODELS[0]!))("SmolLM2-135M-Instruct", () => {
  it("answers a question, after a checkpoint too", async () => {
    await inDirectory(async (directory) => {
      const name = KNOWN_MODELS[0]!.name;
      const messages = [{ role: "user" as const, content: "What is the capital of France?" }];
      const request = { messages, maxNewTokens: 24, temperature: 0 };
      let text: string;
      {
        await using model = await Learner.load(name);
        expect(model.info.parameters).toBe(134_515_008);
        const [generation] = await model.generate([request]);
        expect(generation!.text).toContain("Paris");
        expect(generation!.finishReason).toBe("stop");
        text = generation!.text;
        await model.save(directory);
      }
      expect(existsSync(join(directory, "tokenizer.json"))).toBe(true);
      await using resumed = await Learner.resume(directory);
      expect((await resumed.generate([request]))[0]!.text).toBe(text);
    });
  });
});
