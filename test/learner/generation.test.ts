import { setTimeout } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Learner } from "../../lib/learner/learner.ts";
import type { Generation } from "../../lib/model/language-model.ts";
import { turnsBetween } from "../support/event-loop-turns.ts";
import { codeOf, expectClose, ids, referenceNll, vocab } from "../support/learner-checks.ts";
import { endOfTurn } from "../support/scripted-model.ts";
import { endless, logSoftmax, longConfig, tinyConfig, tinyLearner } from "../support/tiny.ts";

let learner: Learner;

beforeAll(async () => {
  learner = await tinyLearner({ seed: 7 });
});

afterAll(() => learner.dispose());

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

  it("finishes many texts with turns of the event loop between them", async () => {
    const finished = vi.spyOn(learner.tokenizer!, "withoutFirstSpace");
    const requests = Array.from({ length: 8 }, () => ({ tokens: prompt, maxNewTokens: 2 }));
    const { turns } = await turnsBetween(finished, () => learner.generate(requests));
    expect(turns).toBeGreaterThan(6);
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
    await using model = await tinyLearner({}, longConfig);
    const controller = new AbortController();
    let tokens = 0;
    const running = model.generate([endless, endless], {
      signal: controller.signal,
      onToken: () => {
        if (++tokens === 5) controller.abort(new Error("enough"));
      },
    });
    const error = (await running.catch((reason: unknown) => reason)) as NlacError;
    expect(error).toBeInstanceOf(NlacError);
    expect(error.code).toBe("ERR_ABORTED");
    expect((error.cause as Error).message).toBe("enough");
    expect(tokens).toBeLessThan(2 * endless.maxNewTokens);
    expect(await model.generate([{ tokens: prompt, maxNewTokens: 2 }])).toHaveLength(1);
  });

  it("rejects with what onToken threw", async () => {
    const running = learner.generate([{ tokens: prompt, maxNewTokens: 200 }], {
      onToken: () => {
        throw new RangeError("no more");
      },
    });
    await expect(running).rejects.toThrowError(new RangeError("no more"));
  });

  it("waits for an asynchronous onToken, and rejects with what it rejects with", async () => {
    let answered = 0;
    const slow = async () => {
      await setTimeout(5);
      answered++;
    };
    const [done] = await learner.generate([{ tokens: prompt, maxNewTokens: 3 }], { onToken: slow });
    expect(answered).toBe(done!.tokens.length);

    let called = 0;
    const running = learner.generate([{ tokens: prompt, maxNewTokens: 200 }], {
      onToken: async () => {
        called++;
        await setTimeout(1);
        throw new RangeError("no more");
      },
    });
    await expect(running).rejects.toThrowError(new RangeError("no more"));
    expect(called).toBeLessThan(200);
  });
});

describe("concurrent generate calls", () => {
  const prompt = ids("Once upon a time");
  const long = (seed: number) => ({ tokens: prompt, maxNewTokens: 200, seed, temperature: 2, topK: 200 });

  it("joins running requests: a short completion does not wait for a long one, and both have the same bits as alone", async () => {
    await using model = await tinyLearner({}, longConfig);
    const [longAlone] = await model.generate([long(1)]);
    const [shortAlone] = await model.generate([{ ...long(2), maxNewTokens: 3 }]);
    expect(longAlone!.tokens.length).toBeGreaterThan(30);
    const controller = new AbortController();
    let begun: () => void = () => {};
    const started = new Promise<void>((resolve) => {
      begun = resolve;
    });
    const running = model.generate([endless], { signal: controller.signal, onToken: () => begun() });
    const code = codeOf(running);
    await started;
    const joined = [model.generate([long(1)]), model.generate([{ ...long(2), maxNewTokens: 3 }])];
    const [[a], [b]] = (await Promise.all(joined)) as [Generation[], Generation[]];
    controller.abort();
    expect(await code).toBe("ERR_ABORTED");
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
    await using model = await tinyLearner({}, longConfig);
    const [alone] = await model.generate([long(5)]);
    const controller = new AbortController();
    let tokens = 0;
    const stopped = model.generate([long(6), endless], {
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
    const options = { device: "cpu", dtype: "bfloat16", seed: 3 } as const;
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
    expect(Math.max(...moved)).toBeGreaterThan(0.2); // a completion by the old weights would fail above
  });
});
