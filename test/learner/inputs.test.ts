import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { fastestDtype } from "../../lib/base/dtype.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { loadAddon } from "../../lib/native/load.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { codeOf, vocab } from "../support/learner-checks.ts";
import { byteTokenizerParts, withControlTokens } from "../support/scripted-model.ts";
import { inDirectory, tinyConfig, tinyLearner } from "../support/tiny.ts";

let learner: Learner;

beforeAll(async () => {
  learner = await tinyLearner({ seed: 7 });
});

afterAll(() => learner.dispose());

describe("bad arguments", () => {
  const good = { prompt: [1], response: [2] };
  const long = new Array(257).fill(1);
  const cases: [name: string, call: (model: Learner) => Promise<unknown>, message: RegExp][] = [
    ["no options", (m) => m.generate([{ tokens: [1] }], null as never), /The options must be an object/],
    [
      "a signal",
      (m) => m.generate([{ tokens: [1] }], { signal: {} as never }),
      /signal must be an AbortSignal/,
    ],
    [
      "onToken",
      (m) => m.generate([{ tokens: [1] }], { onToken: "x" as never }),
      /onToken must be a function/,
    ],
    ["wait", (m) => m.generate([{ tokens: [1] }], { wait: "no" as never }), /wait must be true or false/],
    ["neither tokens nor messages", (m) => m.generate([{}]), /requests\[0\] needs either/],
    [
      "a misspelt field",
      (m) => m.generate([{ tokens: [1], temprature: 0 } as never]),
      /requests\[0\] has no "temprature"; it takes .*temperature/,
    ],
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
      await expect(Learner.load(directory)).rejects.toMatchObject({
        code: "ERR_MODEL_FORMAT",
        message: `${directory} is not the directory of a model: it has no config.json.`,
      });
      writeFileSync(join(directory, "config.json"), JSON.stringify(tinyConfig));
      expect(["ERR_MODEL_FORMAT", "ERR_IO"]).toContain(await codeOf(Learner.load(directory)));
    });
  });

  it("a tokenizer may have control tokens that the model does not, as Gemma 3 1B's", async () => {
    const images = Array.from({ length: 31 }, (_, i) => `<image_${i}>`);
    const parts = withControlTokens(byteTokenizerParts(), images);
    const tokenizer = new Tokenizer({ ...parts, eosTokenIds: [257, 288] });
    const small = await tinyLearner({ tokenizer }, { ...tinyConfig, vocab_size: 258 });
    expect(small.endOfTurnIds).toEqual([257]);
    const [written] = await small.generate([
      { tokens: [1], maxNewTokens: 20, grammar: { regex: "[ab]{5}" }, stop: ["<image_3>"] },
    ]);
    expect(written!.text).toMatch(/^[ab]{5}$/);
    expect(await codeOf(small.generate([{ tokens: [258] }]))).toBe("ERR_VALUE");
    await small.dispose();
  });
});
