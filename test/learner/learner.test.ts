import { execFile } from "node:child_process";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { fastestDtype } from "../../lib/base/dtype.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { isCached, KNOWN_MODELS } from "../../lib/hub/resolve-model.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { loadAddon } from "../../lib/native/load.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { endOfTurn } from "../support/scripted-model.ts";
import { inDirectory, logSoftmax, tinyConfig, tinyLearner } from "../support/tiny.ts";

const vocab = tinyConfig.vocab_size;
const ids = (text: string) => [...Buffer.from(text)];

async function codeOf(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    expect(error).toBeInstanceOf(NlacError);
    return (error as NlacError).code;
  }
  return "no error";
}

let learner: Learner;
beforeAll(async () => {
  learner = await tinyLearner({ seed: 7 });
});
afterAll(() => learner.dispose());

/** -log p of each token of `response`, from the logits of the whole text. */
async function referenceNll(model: Learner, prompt: number[], response: number[], weights?: "target") {
  const [logits] = await model.logits([[...prompt, ...response]], weights && { weights });
  return response.map((id, i) => -logSoftmax(logits!, prompt.length + i - 1, vocab)[id]!);
}

function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, within = 1e-4) {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) expect(Math.abs(actual[i]! - expected[i]!)).toBeLessThan(within);
}

describe("what a learner knows of its model", () => {
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

  it("takes ids only when it came without a tokenizer", async () => {
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

describe("generate", () => {
  const prompt = ids("The quick brown fox");

  it("takes the most probable token at temperature 0", async () => {
    const [generation] = await learner.generate([{ tokens: prompt, maxNewTokens: 12, temperature: 0 }]);
    const expected: number[] = [];
    for (let i = 0; i < generation!.tokens.length; i++) {
      const [logits] = await learner.logits([[...prompt, ...expected]]);
      const row = logits!.subarray(-vocab);
      expected.push(row.indexOf(row.reduce((a, b) => Math.max(a, b))));
    }
    expect(generation!.tokens).toEqual(expected);
    expect(generation!.tokens.length === 12 ? "length" : "stop").toBe(generation!.finishReason);
  });

  it("gives the log probabilities that logProbs gives", async () => {
    const requests = [3, 9].map((seed) => ({
      tokens: prompt,
      maxNewTokens: 16,
      temperature: 1.3,
      topK: 50,
      seed,
    }));
    const generations = await learner.generate(requests);
    const scored = await learner.logProbs(generations.map(({ tokens }) => ({ prompt, response: tokens })));
    for (const [i, { logProbs, tokens }] of generations.entries()) {
      expect(logProbs.length).toBe(tokens.length);
      expectClose(logProbs, scored[i]!);
    }
    const { tokens } = generations[0]!;
    expectClose(
      generations[0]!.logProbs,
      (await referenceNll(learner, prompt, tokens)).map((x) => -x),
    );
  });

  it("gives the most probable tokens, which are the head of log softmax sorted, under θ and θ̄", async () => {
    const trained = await tinyLearner({ seed: 7 });
    await trained.tokenNll([{ prompt, response: ids("jumps") }]);
    await trained.step({ learningRate: 0.01, targetRate: 0.3 });
    for (const weights of ["online", "target"] as const) {
      const request = { tokens: prompt, maxNewTokens: 12, temperature: 1.3, topK: 50, seed: 3, weights };
      const [one, all, none] = await trained.generate([
        { ...request, topLogProbs: 7 },
        { ...request, topLogProbs: vocab },
        request,
      ]);
      expect([none!.topTokens, none!.topLogProbs]).toEqual([undefined, undefined]);
      for (const { tokens, logProbs, topTokens, topLogProbs } of [one!, all!]) {
        expect([tokens, logProbs]).toEqual([none!.tokens, none!.logProbs]);
        const most = topTokens!.length / tokens.length;
        const [logits] = await trained.logits([[...prompt, ...tokens]], { weights });
        for (const i of tokens.keys()) {
          const row = logSoftmax(logits!, prompt.length + i - 1, vocab);
          const order = [...row.keys()].sort((a, b) => row[b]! - row[a]!).slice(0, most);
          const at = [i * most, (i + 1) * most] as const;
          expect([...topTokens!.subarray(...at)]).toEqual(order);
          expectClose(
            topLogProbs!.subarray(...at),
            order.map((id) => row[id]!),
          );
        }
      }
      expect(all!.topTokens).toHaveLength(vocab * all!.tokens.length);
    }
    await trained.dispose();
  });

  it("never generates forbidden ids, and repeats itself less with a penalty", async () => {
    const request = { tokens: prompt, maxNewTokens: 60, temperature: 0, forbidden: [endOfTurn] };
    const [plain] = await learner.generate([request]);
    const forbidden = [...new Set(plain!.tokens)].slice(0, 5).concat(endOfTurn);
    const [without, penalised] = await learner.generate([
      { ...request, forbidden },
      { ...request, repetitionPenalty: 3 },
    ]);
    expect(without!.tokens.filter((id) => forbidden.includes(id))).toEqual([]);
    expect(new Set(penalised!.tokens).size).toBeGreaterThan(new Set(plain!.tokens).size);
    const [scored] = await learner.logProbs([{ prompt, response: penalised!.tokens }]);
    expectClose(penalised!.logProbs, scored!);
  });

  it("repeats with a request's own seed, and with the learner's from the start", async () => {
    const request = { tokens: prompt, maxNewTokens: 20, seed: 5n };
    const [alone] = await learner.generate([request]);
    const [other, together] = await learner.generate([{ ...request, seed: 6 }, request]);
    expect(together!.tokens).toEqual(alone!.tokens);
    expect(other!.tokens).not.toEqual(alone!.tokens);

    const drawTwice = async (seed: number) => {
      await using fresh = await tinyLearner({ seed });
      const same = { tokens: prompt, maxNewTokens: 20 };
      const first = await fresh.generate([same, same]);
      const second = await fresh.generate([same]);
      return [...first, ...second].map(({ tokens }) => tokens);
    };
    const [a, b, c] = await drawTwice(11);
    expect(a).not.toEqual(b);
    expect(b).not.toEqual(c);
    expect(await drawTwice(11)).toEqual([a, b, c]);
  });

  it("ends with a stop id, which is kept, or before a stop string, whose ids are kept", async () => {
    const request = { tokens: prompt, maxNewTokens: 30, seed: 21 };
    const [free] = await learner.generate([request]);
    const { tokens } = free!;
    expect(tokens.length).toBeGreaterThan(8);
    const at = tokens.findIndex((id, i) => i >= 4 && id >= 32 && id < 127 && tokens.indexOf(id) === i);
    expect(at).toBeGreaterThan(0);

    const [byId] = await learner.generate([{ ...request, stopTokenIds: [tokens[at]!] }]);
    expect(byId).toMatchObject({ tokens: tokens.slice(0, at + 1), finishReason: "stop" });
    expect(byId!.text).toBe(learner.tokenizer!.decode(tokens.slice(0, at), { skipSpecial: true }));

    const letter = String.fromCharCode(tokens[at]!);
    const [byText] = await learner.generate([{ ...request, stop: ["never in there", letter] }]);
    expect(byText).toMatchObject({ tokens: tokens.slice(0, at + 1), finishReason: "stop" });
    expect(byText!.text).toBe(byId!.text);

    // The model's own end of turn counts without being asked for.
    const random = Array.from({ length: 40 }, (_, seed) => ({ tokens: prompt, maxNewTokens: 60, seed }));
    const ended = (await learner.generate(random)).filter(({ tokens }) => tokens.at(-1) === endOfTurn);
    expect(ended.length).toBeGreaterThan(0);
    for (const generation of ended) {
      expect(generation.finishReason).toBe("stop");
      expect(generation.text).not.toContain("<|im_end|>");
    }
  });

  it("serves θ and θ̄ in one call, results in the order of the requests", async () => {
    await using moved = await tinyLearner();
    await moved.updateTarget(1);
    await moved.tokenNll([{ prompt, response: ids(" jumps over") }]);
    await moved.step({ learningRate: 0.05 });
    const base = { tokens: prompt, maxNewTokens: 10, seed: 1 };
    const requests = (["target", "online", "target", "online"] as const).map((weights, i) => ({
      ...base,
      weights,
      maxNewTokens: 5 + i,
    }));
    const seen: [number, number][] = [];
    const mixed = await moved.generate(requests, { onToken: (index, id) => seen.push([index, id]) });
    const separate = [];
    for (const request of requests) separate.push((await moved.generate([request]))[0]!);
    expect(mixed.map(({ tokens }) => tokens)).toEqual(separate.map(({ tokens }) => tokens));
    expect(mixed[0]!.tokens.slice(0, 5)).not.toEqual(mixed[1]!.tokens.slice(0, 5));
    for (const [index, { tokens }] of mixed.entries()) {
      expect(seen.filter(([request]) => request === index).map(([, id]) => id)).toEqual(tokens);
    }
  });

  it("takes messages, and continues a conversation from the cache", async () => {
    const conversation = learner.conversation([{ role: "user", content: "Say something." }]);
    const [byMessages] = await learner.generate([
      { messages: [{ role: "user", content: "Say something." }], maxNewTokens: 8, seed: 3 },
    ]);
    const [byIds] = await learner.generate([{ tokens: conversation.prompt(), maxNewTokens: 8, seed: 3 }]);
    expect(byIds!.tokens).toEqual(byMessages!.tokens);

    conversation.appendGeneration(byIds!);
    conversation.append({ role: "user", content: "More." });
    const [next] = await learner.generate([{ tokens: conversation.prompt(), maxNewTokens: 4 }]);
    expect(next!.cachedTokens).toBeGreaterThan(0);
  });

  it("rejects with ERR_ABORTED if the signal fires, before or during a call, and stays usable", async () => {
    expect(await codeOf(learner.generate([{ tokens: prompt }], { signal: AbortSignal.abort() }))).toBe(
      "ERR_ABORTED",
    );
    const controller = new AbortController();
    let tokens = 0;
    const running = learner.generate(
      Array.from({ length: 4 }, (_, seed) => ({ tokens: [1], maxNewTokens: 250, seed, temperature: 3 })),
      {
        signal: controller.signal,
        onToken: () => {
          if (++tokens === 5) controller.abort(new Error("enough"));
        },
      },
    );
    const error = (await running.catch((reason: unknown) => reason)) as NlacError;
    expect(error).toBeInstanceOf(NlacError);
    expect(error.code).toBe("ERR_ABORTED");
    expect((error.cause as Error).message).toBe("enough");
    expect(tokens).toBeLessThan(600);
    expect(await learner.generate([{ tokens: prompt, maxNewTokens: 2 }])).toHaveLength(1);
  });

  it("rejects with what onToken threw", async () => {
    const running = learner.generate([{ tokens: prompt, maxNewTokens: 200 }], {
      onToken: () => {
        throw new RangeError("no more");
      },
    });
    await expect(running).rejects.toThrowError(new RangeError("no more"));
  });
});

describe("generate calls side by side", () => {
  const prompt = ids("Once upon a time");
  const long = (seed: number) => ({ tokens: prompt, maxNewTokens: 200, seed, temperature: 2, topK: 200 });

  it("joins running requests: a short completion does not wait for a long one, and both are as alone", async () => {
    await using model = await tinyLearner();
    const [longAlone] = await model.generate([long(1)]);
    const [shortAlone] = await model.generate([{ ...long(2), maxNewTokens: 3 }]);
    expect(longAlone!.tokens.length).toBeGreaterThan(30);
    const order: string[] = [];
    let begun: () => void = () => {};
    const started = new Promise<void>((resolve) => {
      begun = resolve;
    });
    const first = model.generate([long(1)], { onToken: () => begun() }).finally(() => order.push("long"));
    await started;
    const second = model.generate([{ ...long(2), maxNewTokens: 3 }]).finally(() => order.push("short"));
    const [[a], [b]] = await Promise.all([first, second]);
    expect(order).toEqual(["short", "long"]);
    expect(a!.tokens).toEqual(longAlone!.tokens);
    expect(b!.tokens).toEqual(shortAlone!.tokens);
  });

  it("keeps program order with steps: calls before one see the old weights, those after it the new", async () => {
    await using model = await tinyLearner();
    await using moved = await tinyLearner();
    const train = (learner: Learner) => [
      learner.tokenNll([{ prompt, response: ids(" there was") }]),
      learner.step({ learningRate: 0.05 }),
    ];
    const [before] = await model.generate([long(3)]);
    await Promise.all(train(moved));
    const [after] = await moved.generate([long(3)]);
    expect(after!.tokens).not.toEqual(before!.tokens);
    const calls = [model.generate([long(3)]), model.generate([long(3), long(4)])];
    const trained = train(model);
    calls.push(model.generate([long(3)]), model.generate([long(4), long(3)]));
    const [one, two, three, four] = await Promise.all(calls);
    await Promise.all(trained);
    expect(one![0]!.tokens).toEqual(before!.tokens);
    expect(two![0]!.tokens).toEqual(before!.tokens);
    expect(three![0]!.tokens).toEqual(after!.tokens);
    expect(four![1]!.tokens).toEqual(after!.tokens);
  });

  it("stops one call by its signal and leaves the others", async () => {
    await using model = await tinyLearner();
    const [alone] = await model.generate([long(5)]);
    const controller = new AbortController();
    let tokens = 0;
    const stopped = model.generate([long(6), long(7)], {
      signal: controller.signal,
      onToken: () => {
        if (++tokens === 4) controller.abort();
      },
    });
    const other = model.generate([long(5)]);
    expect(await codeOf(stopped)).toBe("ERR_ABORTED");
    expect((await other)[0]!.tokens).toEqual(alone!.tokens);
  });

  it("generates more completions than fit into its memory at once, and one larger than all of it", async () => {
    await using model = await tinyLearner();
    await using small = await tinyLearner({ cacheBytes: 40_000 });
    await using none = await tinyLearner({ cacheBytes: 0 });
    const requests = Array.from({ length: 24 }, (_, i) => ({ ...long(i), maxNewTokens: 60 }));
    const texts = (await model.generate(requests)).map(({ tokens }) => tokens);
    expect((await small.generate(requests)).map(({ tokens }) => tokens)).toEqual(texts);
    expect((await none.generate(requests.slice(0, 3))).map(({ tokens }) => tokens)).toEqual(
      texts.slice(0, 3),
    );
  });

  it("waits without limit, or rejects with ERR_BUSY on request", async () => {
    await using model = await tinyLearner({ maxQueued: 3 });
    const running = model.generate([long(1), long(2)]);
    expect(await codeOf(model.generate([long(3), long(4)], { wait: false }))).toBe("ERR_BUSY");
    const fits = model.generate([{ ...long(3), maxNewTokens: 1 }], { wait: false });
    const waits = model.generate([long(4), long(5)]);
    expect(await codeOf(model.generate([long(6)], { wait: false }))).toBe("ERR_BUSY");
    expect((await fits).length + (await waits).length + (await running).length).toBe(5);
    expect(await model.generate([{ ...long(6), maxNewTokens: 1 }], { wait: false })).toHaveLength(1);
  });
});

describe("kept hidden states", () => {
  const student = ids("What comes?");
  const teacher = ids("It was a rabbit. What comes?");

  for (const [dtype, within] of [
    ["float32", 1e-4],
    ["bfloat16", 0.05],
  ] as const) {
    it(`give the KL that reading the text again gives, in ${dtype}`, async () => {
      await using model = await tinyLearner({ dtype });
      await model.updateTarget(1);
      await model.tokenNll([{ prompt: student, response: ids(" A rabbit.") }]);
      await model.step({ learningRate: 0.05 });
      const [kept, other] = await model.generate(
        [1, 2].map((seed) => ({
          ...{ tokens: teacher, maxNewTokens: 12, seed, weights: "target" as const },
          keepHidden: seed === 1,
        })),
      );
      expect(other!.hidden).toBeUndefined();
      using hidden = kept!.hidden!;
      expect(hidden.shape).toEqual([kept!.tokens.length, tinyConfig.hidden_size]);
      expect(hidden.dtype).toBe(dtype);
      const text = { student, teacher, response: kept!.tokens };
      const beside = { student, teacher, response: other!.tokens };
      const fresh = await model.tokenKl([beside, text, beside], { withGradient: false });
      const from = [beside, { ...text, teacherHidden: hidden }, beside];
      const again = await model.tokenKl(from, { withGradient: false });
      for (const i of [0, 1, 2]) expectClose(again[i]!, fresh[i]!, within);
      expect(again[0]).toEqual(fresh[0]);
      const [alone] = await model.tokenKl([from[1]!], { withGradient: false });
      expectClose(alone!, fresh[1]!, within);

      const wrong = model.tokenKl([{ ...beside, response: [1], teacherHidden: hidden }]);
      expect(await codeOf(wrong)).toBe("ERR_VALUE");
      hidden.dispose();
      expect(await codeOf(model.tokenKl(from))).toBe("ERR_DISPOSED");
    });
  }
});

describe("generation in int8", () => {
  it("generates almost like θ, also after a step, and trains unchanged", async ({ skip }) => {
    const options = { dtype: "bfloat16", seed: 3 } as const;
    const made = await tinyLearner({ ...options, int8Generation: true }).catch((error: NlacError) => error);
    if (made instanceof NlacError) {
      expect(made).toMatchObject({ code: "ERR_CONFIG", message: expect.stringContaining("AVX-512 BF16") });
      return skip("this processor has no AVX-512 BF16");
    }
    await using model = made;
    await using exact = await tinyLearner(options);
    const [prompt, response] = [ids("What is"), ids(" an answer?")];
    const both = <T>(call: (learner: Learner) => Promise<T>) => Promise.all([call(model), call(exact)]);
    const write = async (learner: Learner) => {
      const request = { tokens: prompt, forced: response, maxNewTokens: response.length };
      return (await learner.generate([request]))[0]!.logProbs;
    };
    const score = async (learner: Learner) => (await learner.logProbs([{ prompt, response }]))[0]!;

    const scores: Float32Array[] = [];
    for (let steps = 0; steps < 2; steps++) {
      const [written, exactly] = await both(write);
      expect(written).not.toEqual(exactly);
      expectClose(written, exactly, 0.05);
      const [scored, expected] = await both(score);
      scores.push(scored);
      expect(scored).toEqual(expected);
      expectClose(written, scored, 0.05);
      await both((learner) => learner.tokenNll([{ prompt, response }]));
      const [stepped, twin] = await both((learner) => learner.step({ learningRate: 0.02 }));
      expect(stepped).toEqual(twin);
    }
    const moved = scores[1]!.map((logProb, i) => Math.abs(logProb - scores[0]![i]!));
    expect(Math.max(...moved)).toBeGreaterThan(0.2); // what was written by the old weights would be seen above
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

  it("adds gradients up until a step, scaled by the weights", async () => {
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

  it("moves the target in a step as it does after one", async () => {
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

describe("save, resume and export", () => {
  const text = { prompt: ids("ab"), response: ids("cdef") };
  const train = async (model: Learner, rounds: number) => {
    await model.updateTarget(0); // θ̄ begins before the first step
    for (let i = 0; i < rounds; i++) {
      await model.tokenNll([text]);
      await model.step({ learningRate: 0.01, weightDecay: 0.1 });
      await model.tokenKl([{ student: text.prompt, teacher: ids("xy"), response: text.response }]);
      await model.step({ learningRate: 0.01, moments: "kl" });
      await model.updateTarget(0.1);
    }
  };
  const observe = async (model: Learner) => {
    const request = { tokens: ids("ab"), maxNewTokens: 12 };
    const generations = await model.generate([request, { ...request, weights: "target" }]);
    return {
      tokens: generations.map(({ tokens }) => tokens),
      logits: [
        ...(await model.logits([ids("abcd")])),
        ...(await model.logits([ids("abcd")], { weights: "target" })),
      ],
      distance: await model.targetDistance(),
      norm: (await model.step({ learningRate: 0 })).gradNorm,
    };
  };

  for (const dtype of ["float32", "bfloat16"] as const) {
    it(`continues bit for bit in ${dtype}`, async () => {
      await inDirectory(async (directory) => {
        await using model = await tinyLearner({ dtype, seed: 3 });
        await train(model, 2);
        await model.generate([{ tokens: ids("ab"), maxNewTokens: 3 }]);
        await model.tokenNll([text]); // left pending
        const path = join(directory, "deep", "er");
        await model.save(path);
        await using resumed = await Learner.resume(path, { dtype });
        expect(resumed.seed).toBe(3);
        expect(resumed.encode("a")).toEqual([97]);
        await train(model, 2);
        await train(resumed, 2);
        expect(await observe(resumed)).toEqual(await observe(model));
      });
    });
  }

  it("saves what was asked for before it, whatever is asked for after", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner();
      const [before] = await model.logits([ids("abc")]);
      const saving = model.save(directory);
      const training = train(model, 1);
      await Promise.all([saving, training]);
      await using resumed = await Learner.resume(directory, { dtype: "float32" });
      expect(await resumed.logits([ids("abc")])).toEqual([before]);
    });
  });

  it("refuses a directory that is no checkpoint, or a torn one", async () => {
    await inDirectory(async (directory) => {
      expect(await codeOf(Learner.resume(join(directory, "nowhere")))).toBe("ERR_CHECKPOINT");
      expect(await codeOf(Learner.resume(directory))).toBe("ERR_CHECKPOINT");
      await using model = await tinyLearner();
      await model.save(directory);
      for (const file of ["sampling.json", "tokenizer.json", "learner.json", "model.safetensors"]) {
        const path = join(directory, file);
        const content = readFileSync(path);
        for (const damaged of [content.subarray(0, content.length / 2), undefined]) {
          if (damaged) writeFileSync(path, damaged);
          else rmSync(path);
          expect([file, await codeOf(Learner.resume(directory))]).toEqual([file, "ERR_CHECKPOINT"]);
        }
        writeFileSync(path, content);
      }
      await using whole = await Learner.resume(directory);
      expect(whole.info.parameters).toBe(model.info.parameters);
    });
  });

  it("exports a directory that loads again, tokenizer and all", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner();
      await train(model, 1);
      await model.exportHuggingFace(directory);
      const config = JSON.parse(readFileSync(join(directory, "tokenizer_config.json"), "utf8"));
      expect(config.chat_template).toContain("<|im_start|>");
      expect((await Tokenizer.fromDirectory(directory)).encode("abc")).toEqual(ids("abc"));
      await using loaded = await Learner.load(directory, { dtype: "float32" });
      expect(await loaded.logits([ids("abcdef")])).toEqual(await model.logits([ids("abcdef")]));
      const messages = [{ role: "user" as const, content: "hello" }];
      expect(loaded.render(messages)).toEqual(model.render(messages));
    });
  });

  it("says ERR_IO when a directory cannot be written", async () => {
    await inDirectory(async (directory) => {
      writeFileSync(join(directory, "file"), "");
      expect(await codeOf(learner.save(join(directory, "file")))).toBe("ERR_IO");
      expect(await codeOf(learner.exportHuggingFace(join(directory, "file", "below")))).toBe("ERR_IO");
    });
  });
});

describe("bad arguments", () => {
  const good = { prompt: [1], response: [2] };
  const long = new Array(257).fill(1);
  const cases: [name: string, call: (model: Learner) => Promise<unknown>, message: RegExp][] = [
    ["neither tokens nor messages", (m) => m.generate([{}]), /requests\[0\] needs either/],
    ["both", (m) => m.generate([{ tokens: [1], messages: [{ role: "user", content: "a" }] }]), /either/],
    [
      "an empty prompt",
      (m) => m.generate([{ tokens: [1] }, { tokens: [] }]),
      /requests\[1\]\.tokens is empty/,
    ],
    ["an id past the vocabulary", (m) => m.generate([{ tokens: [1, vocab] }]), /requests\[0\]\.tokens\[1\]/],
    ["a negative id", (m) => m.logits([[1], [-1]]), /sequences\[1\]\[0\]/],
    ["a fractional id", (m) => m.logits([[0.5]]), /sequences\[0\]\[0\]/],
    ["an id that is text", (m) => m.logits([["1"] as never]), /sequences\[0\]\[0\].*"1"/],
    ["a prompt longer than the context", (m) => m.generate([{ tokens: long }]), /257 tokens/],
    ["no array", (m) => m.generate({ tokens: [1] } as never), /requests must be an array/],
    ["no ids", (m) => m.logits(["abc" as never]), /sequences\[0\] must be an array/],
    ["a stop string without a character", (m) => m.generate([{ tokens: [1], stop: [""] }]), /stop\[0\]/],
    [
      "a stop id past the vocabulary",
      (m) => m.generate([{ tokens: [1], stopTokenIds: [999] }]),
      /stopTokenIds/,
    ],
    ["a NaN temperature", (m) => m.generate([{ tokens: [1], temperature: Number.NaN }]), /temperature/],
    ["a negative temperature", (m) => m.generate([{ tokens: [1], temperature: -1 }]), /temperature/],
    ["topP of 0", (m) => m.generate([{ tokens: [1], topP: 0 }]), /topP/],
    ["topP above 1", (m) => m.generate([{ tokens: [1], topP: 1.1 }]), /topP/],
    ["no penalty at all", (m) => m.generate([{ tokens: [1], repetitionPenalty: 0 }]), /repetitionPenalty/],
    [
      "a forbidden id past the vocabulary",
      (m) => m.generate([{ tokens: [1], forbidden: [999] }]),
      /forbidden\[0\]/,
    ],
    ["a fractional topK", (m) => m.generate([{ tokens: [1], topK: 1.5 }]), /topK/],
    [
      "more most probable tokens than there are",
      (m) => m.generate([{ tokens: [1] }, { tokens: [1], topLogProbs: vocab + 1 }]),
      /requests\[1\]\.topLogProbs must be an integer from 0 to 264/,
    ],
    ["minP above 1", (m) => m.generate([{ tokens: [1], minP: 2 }]), /minP/],
    ["no new tokens", (m) => m.generate([{ tokens: [1], maxNewTokens: 0 }]), /maxNewTokens/],
    ["a negative seed", (m) => m.generate([{ tokens: [1], seed: -1 }]), /requests\[0\]\.seed/],
    ["a seed of 65 bits", (m) => m.generate([{ tokens: [1], seed: 1n << 64n }]), /seed/],
    ["other weights", (m) => m.generate([{ tokens: [1], weights: "both" as never }]), /weights.*"both"/],
    ["other weights to score", (m) => m.logProbs([good], { weights: "" as never }), /weights/],
    ["an empty response", (m) => m.logProbs([good, { prompt: [1], response: [] }]), /texts\[1\]\.response/],
    [
      "texts longer than the context",
      (m) => m.tokenNll([{ prompt: long.slice(1), response: [1] }]),
      /texts\[0\]/,
    ],
    ["an infinite weight", (m) => m.tokenNll([{ ...good, weight: 1 / 0 }]), /texts\[0\]\.weight/],
    [
      "an empty teacher",
      (m) => m.tokenKl([{ student: [1], teacher: [], response: [1] }]),
      /texts\[0\]\.teacher/,
    ],
    ["a KL at temperature 0", (m) => m.tokenKl([], { temperature: 0 }), /temperature/],
    ["another support", (m) => m.tokenKl([], { support: "some" as never }), /support/],
    ["another divergence", (m) => m.tokenKl([], { divergence: "kl" as never }), /divergence/],
    [
      "a divergence on a sampled token",
      (m) => m.tokenKl([], { divergence: "reverseKl", support: "sampled" }),
      /sampled/,
    ],
    ["a negative detail", (m) => m.tokenKl([], { detail: -1 }), /detail/],
    ["a detail beyond the vocabulary", (m) => m.tokenKl([], { detail: 1e6 }), /detail/],
    ["a top k of 0", (m) => m.tokenKl([], { support: { topK: 0 } }), /topK/],
    ["no learning rate", (m) => m.step({} as never), /learningRate/],
    ["a beta of 1", (m) => m.step({ learningRate: 0, betas: [0.9, 1] }), /betas\[1\]/],
    ["an epsilon of 0", (m) => m.step({ learningRate: 0, epsilon: 0 }), /epsilon/],
    ["a negative weight decay", (m) => m.step({ learningRate: 0, weightDecay: -1 }), /weightDecay/],
    ["a NaN clip", (m) => m.step({ learningRate: 0, maxGradNorm: Number.NaN }), /maxGradNorm/],
    ["a target rate above 1", (m) => m.updateTarget(1.1), /targetRate/],
    ["target rate above 1", (m) => m.step({ learningRate: 1, targetRate: 1.1 }), /targetRate/],
  ];
  it.each(cases)("%s is refused", async (_, call, message) => {
    const error = (await call(learner).catch((reason: unknown) => reason)) as NlacError;
    expect(error).toBeInstanceOf(NlacError);
    expect(error.code).toBe("ERR_VALUE");
    expect(error.message).toMatch(message);
  });

  it("a rejected call uses no seed", async () => {
    const draw = async (spoil: boolean) => {
      await using model = await tinyLearner();
      if (spoil) await codeOf(model.generate([{ tokens: [1] }, { tokens: [] }]));
      return (await model.generate([{ tokens: [1], maxNewTokens: 9 }]))[0]!.tokens;
    };
    expect(await draw(true)).toEqual(await draw(false));
  });

  it("empty lists are fine", async () => {
    expect(await learner.generate([])).toEqual([]);
    expect(await learner.logProbs([])).toEqual([]);
    expect(await learner.logits([])).toEqual([]);
    expect(await learner.tokenNll([])).toEqual([]);
    expect(await learner.tokenKl([])).toEqual([]);
  });

  it("options are checked", async () => {
    const load = (options: object) => codeOf(Learner.create(tinyConfig, options));
    expect(await load({ learningRate: 1 })).toBe("ERR_CONFIG");
    expect(await load({ dtype: "float16" })).toBe("ERR_CONFIG");
    expect(await load({ seed: -1 })).toBe("ERR_CONFIG");
    expect(await load({ microBatchTokens: 0 })).toBe("ERR_CONFIG");
    expect(await load({ cacheBytes: 0.5 })).toBe("ERR_CONFIG");
    expect(await load({ threads: 0 })).toBe("ERR_CONFIG");
    expect(await load({ gradientCheckpointing: 1 })).toBe("ERR_CONFIG");
    expect(await load({ int8Generation: "yes" })).toBe("ERR_CONFIG");
    expect(await load({ int8Generation: true, device: "cuda" })).toBe("ERR_CONFIG");
    const named = Learner.load("organisation/model", { int8Generation: true, device: "cuda" });
    await expect(named).rejects.toMatchObject({ code: "ERR_CONFIG" }); // and nothing was looked for on the hub
    expect(await load({ device: "tpu" })).toBe("ERR_DEVICE");
    expect(await load({ device: "cuda:99" })).toBe("ERR_DEVICE");
    await using same = await Learner.create(JSON.stringify(tinyConfig), {
      dtype: undefined,
      seed: undefined,
    });
    expect([same.dtype, same.seed]).toEqual([fastestDtype("cpu", loadAddon().instructionSet()), 0]);
  });

  it("is float32 by default only if bfloat16 is not faster", () => {
    expect(fastestDtype("cpu", "baseline")).toBe("float32");
    for (const set of ["avx2", "avx512", "avx512_bf16", "amx_bf16"] as const)
      expect(fastestDtype("cpu", set)).toBe("bfloat16");
    expect(fastestDtype("cuda:1", "baseline")).toBe("bfloat16");
  });

  it("a request for more memory than any machine has is an error, not a crash", async () => {
    const huge = { ...tinyConfig, vocab_size: 2 ** 24, hidden_size: 2 ** 20 };
    expect(await codeOf(Learner.create(huge))).toBe("ERR_OUT_OF_MEMORY");
  });

  it("models are checked", async () => {
    expect(await codeOf(Learner.load("no-such-model"))).toBe("ERR_MODEL_NOT_FOUND");
    expect(await codeOf(Learner.create("{"))).toBe("ERR_MODEL_FORMAT");
    expect(await codeOf(Learner.create({ ...tinyConfig, model_type: "mamba", architectures: ["M"] }))).toBe(
      "ERR_MODEL_FORMAT",
    );
    expect(await codeOf(tinyLearner().then((m) => m.dispose()))).toBe("no error");
    const small = { ...tinyConfig, vocab_size: 100, eos_token_id: 2 };
    const { tokenizer } = learner;
    expect(await codeOf(Learner.create(small, { tokenizer }))).toBe("ERR_MODEL_FORMAT");
    await inDirectory(async (directory) => {
      writeFileSync(join(directory, "model.gguf"), "GGUF, or is it?");
      expect(await codeOf(Learner.load(join(directory, "model.gguf")))).toBe("ERR_MODEL_FORMAT");
      writeFileSync(join(directory, "config.json"), JSON.stringify(tinyConfig));
      expect(["ERR_MODEL_FORMAT", "ERR_IO"]).toContain(await codeOf(Learner.load(directory)));
    });
  });
});

describe("dispose", () => {
  it("finishes what runs, rejects what waits, and is idempotent", async () => {
    const model = await tinyLearner();
    const started = new Promise<void>((resolve) => {
      model.generate([{ tokens: [1], maxNewTokens: 1 }], { onToken: () => resolve() });
    });
    await started;
    let first: () => void = () => {};
    const begun = new Promise<void>((resolve) => {
      first = resolve;
    });
    const running = model.generate(
      Array.from({ length: 8 }, (_, seed) => ({ tokens: [1], maxNewTokens: 100, seed })),
      { onToken: () => first() },
    );
    await begun;
    const waiting = [model.targetDistance(), model.logits([[1]]), model.step({ learningRate: 1 })];
    const codes = Promise.all(waiting.map(codeOf));
    const disposing = [model.dispose(), model.dispose()];
    expect(await codes).toEqual(["ERR_DISPOSED", "ERR_DISPOSED", "ERR_DISPOSED"]);
    expect(await running).toHaveLength(8);
    await Promise.all(disposing);
    await model.dispose();
    await model[Symbol.asyncDispose]();
    expect(await codeOf(model.generate([{ tokens: [1] }]))).toBe("ERR_DISPOSED");
    expect(await codeOf(model.updateTarget(1))).toBe("ERR_DISPOSED");
    expect(model.encode("a")).toEqual([97]);
  });

  it("settles every call before dispose resolves, however many wait", async () => {
    for (let round = 0; round < 5; round++) {
      const model = await tinyLearner();
      const settled: string[] = [];
      const note = (name: string) => (outcome: unknown) => {
        settled.push(outcome instanceof NlacError ? outcome.code : name);
      };
      const text = new Array(200).fill(1);
      const calls = Array.from({ length: 300 }, () =>
        model.logits([text]).then(note("done"), note("failed")),
      );
      await calls[0];
      const disposed = model.dispose().then(note("disposed"));
      await Promise.all([...calls, disposed]);
      expect(settled).toHaveLength(301);
      expect(settled).toContain("ERR_DISPOSED");
      expect(settled).not.toContain("failed");
      expect(settled.at(-1)).toBe("disposed");
    }
  });

  it("leaves other learners alone", async () => {
    const [a, b] = await Promise.all([tinyLearner(), tinyLearner()]);
    await a.dispose();
    expect(await b.logits([[1]])).toHaveLength(1);
    await b.dispose();
  });
});

describe("processes and threads", () => {
  const root = new URL("../..", import.meta.url).pathname;
  /** Runs `body` in a process of its own, with a learner in `model`. */
  const inChild = async (body: string, make = "await Learner.create(config, { dtype: 'float32' })") => {
    const script = `
      import { createJiti } from "jiti";
      import { Worker } from "node:worker_threads";
      const config = ${JSON.stringify({ ...tinyConfig, max_position_embeddings: 100_000 })};
      const { Learner } = await createJiti(${JSON.stringify(`${root}x.js`)}).import("./lib/learner/learner.ts");
      const model = ${make};
      const endless = () =>
        new Promise((resolve) => {
          model.generate([{ tokens: [1], maxNewTokens: 90_000, temperature: 5, topK: 200 }], { onToken: resolve });
        });
      ${body}`;
    const run = promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd: root });
    return run.then(
      ({ stdout }) => ({ code: 0, stdout, signal: undefined }),
      (error) => ({ code: error.code, stdout: error.stdout + error.stderr, signal: error.signal }),
    );
  };

  it("process.exit amid a computation ends at once, with its code", async () => {
    const exited = await inChild("await endless(); model.targetDistance(); process.exit(7);");
    expect(exited).toMatchObject({ code: 7, signal: null });
  });

  it("an uncaught error amid a computation ends the process as it would anyhow", async () => {
    const exited = await inChild("await endless(); throw new Error('that was it');");
    expect(exited).toMatchObject({ code: 1, signal: null });
    expect(exited.stdout).toContain("that was it");
  });

  it("a busy learner keeps its process alive, an idle one does not", async () => {
    const idle = await inChild("model.logits([[1, 2]]).then(() => console.log('done'));");
    expect(idle).toMatchObject({ code: 0, stdout: "done\n" });
  });

  it("a worker thread can be ended amid a computation, again and again", async () => {
    const body = `
      const source = "(" + (async (root, config) => {
        const { parentPort } = require("node:worker_threads");
        const { createJiti } = require("jiti");
        const { Learner } = await createJiti(root + "x.js").import("./lib/learner/learner.ts");
        const model = await Learner.create(config, { dtype: "float32" });
        const started = () => parentPort.postMessage("started");
        let once = () => { once = () => {}; started(); };
        model.generate([{ tokens: [1], maxNewTokens: 90000, temperature: 5 }], { onToken: () => once() });
        model.targetDistance();
      }) + ")(" + ${JSON.stringify(JSON.stringify(root))} + "," + JSON.stringify(config) + ")";
      for (let i = 0; i < 2; i++) {
        const worker = new Worker(source, { eval: true, execArgv: [] });
        await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
        await worker.terminate();
      }
      const [logits] = await model.logits([[1]]);
      console.log(logits.length);
      await model.dispose();`;
    expect(await inChild(body)).toMatchObject({ code: 0, stdout: `${vocab}\n` });
  });

  it("a worker thread can be ended amid calls that throw", async () => {
    const body = `
      const source = "(" + (async (root) => {
        const { parentPort } = require("node:worker_threads");
        const { createJiti } = require("jiti");
        const { PrioritizedSampler } = await createJiti(root + "x.js").import("./lib/replay/sampler.ts");
        const sampler = new PrioritizedSampler({ capacity: 1 });
        parentPort.postMessage("started");
        for (;;) {
          try {
            sampler.get(Int32Array.of(1));
          } catch {}
        }
      }) + ")(" + ${JSON.stringify(JSON.stringify(root))} + ")";
      for (let i = 0; i < 8; i++) {
        const worker = new Worker(source, { eval: true, execArgv: [] });
        await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
        await new Promise((resolve) => setTimeout(resolve, 5 * i));
        await worker.terminate();
      }
      console.log("ended");
      await model.dispose();`;
    expect(await inChild(body)).toMatchObject({ code: 0, stdout: "ended\n" });
  });

  it("a process in which only Workers load nlac ends without a fault, one after another too", async () => {
    const script = `
      import { Worker } from "node:worker_threads";
      const source = "(" + (async (root) => {
        const { createJiti } = require("jiti");
        const { PrioritizedSampler } = await createJiti(root + "x.js").import("./lib/replay/sampler.ts");
        const sampler = new PrioritizedSampler({ capacity: 1 });
        sampler.set(Int32Array.of(0), Float32Array.of(1));
        console.log(sampler.sample(2).indices.length);
        sampler.dispose();
      }) + ")(" + ${JSON.stringify(JSON.stringify(root))} + ")";
      for (let i = 0; i < 2; i++) {
        const worker = new Worker(source, { eval: true, execArgv: [] });
        await new Promise((resolve, reject) => worker.once("exit", resolve).once("error", reject));
      }`;
    const ended = promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd: root });
    await expect(ended).resolves.toMatchObject({ stdout: "2\n2\n", stderr: "" });
  });

  it("a learner that is garbage gives its thread back", async () => {
    const body = `
      const threads = async () => (await import("node:fs")).readdirSync("/proc/self/task").length;
      const one = async () => { await (await Learner.create(config, { dtype: "float32", threads: 1 })).logits([[1]]); };
      await one();
      const before = await threads();
      for (let i = 0; i < 5; i++) await one();
      const held = await threads();
      const { setFlagsFromString } = await import("node:v8");
      setFlagsFromString("--expose-gc");
      const gc = (await import("node:vm")).runInNewContext("gc");
      for (let i = 0; i < 50 && (await threads()) >= before; i++) {
        gc();
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      console.log(held > before, (await threads()) <= before);
      await model.dispose();`;
    expect(await inChild(body)).toMatchObject({ code: 0, stdout: "true true\n" });
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
