/** Preference pairs and reward models, against runs recorded by scripts/fixtures/preferences.py. */

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type { JudgedText, PreferenceLoss, PreferencePair } from "../../lib/model/language-model.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { testDevice } from "../support/device.ts";
import { peersPython } from "../support/peers.ts";
import { expectGradients, learnerWithValueHead } from "../support/safetensors.ts";
import { byteTokenizer, byteTokenizerParts } from "../support/scripted-model.ts";
import { inDirectory, tinyConfig, tinyLearner } from "../support/tiny.ts";

const fixtures = fileURLToPath(new URL("../fixtures", import.meta.url));
const recorded = JSON.parse(readFileSync(`${fixtures}/training/preferences.json`, "utf8")) as {
  model: string;
  valueHead: number[];
  pairs: (PreferencePair & { weight: number })[];
  losses: Record<PreferenceLoss, { beta: number; expected: number[]; logProbs: [number, number][] }>;
  reward: { texts: (JudgedText & { weight: number })[]; logits: number[]; losses: number[] };
};
const gradients = `${fixtures}/training/preferences.safetensors`;
const model = `${fixtures}/models/${recorded.model}`;

const ways = [
  ["at once", {}],
  ["in micro-batches, recomputed", { microBatchTokens: 16, gradientCheckpointing: true }],
] as const;

function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, within = 1e-5) {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++)
    expect(Math.abs(actual[i]! - expected[i]!)).toBeLessThan(within * Math.max(1, Math.abs(expected[i]!)));
}

async function refusal(promise: Promise<unknown>): Promise<NlacError> {
  const error = await promise.then(
    () => "no error",
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(NlacError);
  return error as NlacError;
}

describe.each(["sigmoid", "hinge", "ipo"] as const)("the loss %s", (loss) => {
  const { beta, expected, logProbs } = recorded.losses[loss];

  it.each(ways)("equals TRL's, and its gradients float64 autograd's, %s", async (_, options) => {
    await using learner = await Learner.load(model, { dtype: "float32", device: testDevice, ...options });
    const results = await learner.tokenPreference(recorded.pairs, { beta, loss });
    expectClose(
      results.map((result) => result.loss),
      expected,
    );
    expectClose(
      results.flatMap((result) => [result.chosenLogProb, result.rejectedLogProb]),
      logProbs.flat(),
    );
    expectClose(
      results.flatMap((result) => [result.chosenReward, result.rejectedReward]),
      recorded.pairs.flatMap((pair, i) => [
        beta * (logProbs[i]![0] - pair.referenceChosen),
        beta * (logProbs[i]![1] - pair.referenceRejected),
      ]),
    );
    await expectGradients(learner, gradients, loss);
  });
});

describe("tokenPreference", () => {
  it("with label smoothing mixes the losses of the pair and of the reversed pair", async () => {
    await using learner = await Learner.load(model, { dtype: "float32" });
    const options = { beta: 0.3, withGradient: false };
    const turned = recorded.pairs.map((pair) => ({
      ...{ chosen: pair.rejected, rejected: pair.chosen },
      ...{ referenceChosen: pair.referenceRejected, referenceRejected: pair.referenceChosen },
    }));
    const [plain, reverse, smooth] = await Promise.all([
      learner.tokenPreference(recorded.pairs, options),
      learner.tokenPreference(turned, options),
      learner.tokenPreference(recorded.pairs, { ...options, labelSmoothing: 0.2 }),
    ]);
    expectClose(
      smooth.map((result) => result.loss),
      plain.map((result, i) => 0.8 * result.loss + 0.2 * reverse[i]!.loss),
    );
  });

  it("has log probabilities that sum those of `logProbs`, and can use them as references", async () => {
    await using learner = await tinyLearner();
    const chosen = { prompt: [1, 2], response: [3, 4, 5], weight: [1, 0, 1] };
    const rejected = { prompt: [1, 2], response: [9] };
    await learner.keepReference();
    const scores = await learner.logProbs([chosen, rejected], { weights: "reference" });
    const [up, down] = scores.map((list) => list.reduce((a, b) => a + b, 0)) as [number, number];
    const pair = { chosen, rejected, referenceChosen: up, referenceRejected: down };
    const [result] = await learner.tokenPreference([pair], { beta: 0.1 });
    expectClose([result!.chosenLogProb, result!.rejectedLogProb], [up, down]);
    expectClose([result!.loss, result!.chosenReward, result!.rejectedReward], [Math.LN2, 0, 0]);
    await learner.step({ learningRate: 1e-2 });
    const [after] = await learner.tokenPreference([pair], { beta: 0.1 });
    expect(after!.loss).toBeLessThan(result!.loss);
    expect(after!.chosenReward).toBeGreaterThan(after!.rejectedReward);
    expect(await learner.tokenPreference([], { beta: 0.1 })).toEqual([]);
  });

  const good: PreferencePair = {
    chosen: { prompt: [1], response: [2, 3] },
    rejected: { prompt: [1], response: [4] },
    referenceChosen: -1,
    referenceRejected: -1,
  };
  const pair = (own: object) => [good, { ...good, ...own }];
  const cases: [name: string, pairs: PreferencePair[], options: object, message: RegExp][] = [
    ["no pair", [undefined as never], {}, /pairs\[0\] must be an object/],
    ["no rejected response", pair({ rejected: undefined }), {}, /pairs\[1\]\.rejected/],
    [
      "an empty response",
      pair({ chosen: { prompt: [1], response: [] } }),
      {},
      /pairs\[1\]\.chosen\.response is empty/,
    ],
    [
      "a foreign id",
      pair({ rejected: { prompt: [1], response: [264] } }),
      {},
      /pairs\[1\]\.rejected\.response\[0\]/,
    ],
    [
      "half a weight",
      pair({ chosen: { ...good.chosen, weight: [1, 0.5] } }),
      {},
      /chosen\.weight must be 0 or 1/,
    ],
    [
      "no token",
      pair({ chosen: { ...good.chosen, weight: [0, 0] } }),
      {},
      /chosen\.weight is 0 for every token/,
    ],
    ["no reference", pair({ referenceChosen: undefined }), {}, /pairs\[1\]\.referenceChosen/],
    ["an infinite reference", pair({ referenceRejected: -Infinity }), {}, /pairs\[1\]\.referenceRejected/],
    ["a NaN weight", pair({ weight: Number.NaN }), {}, /pairs\[1\]\.weight/],
    ["a beta of 0", [good], { beta: 0 }, /beta/],
    ["another loss", [good], { loss: "kto" }, /loss/],
    ["too much smoothing", [good], { labelSmoothing: 0.5 }, /labelSmoothing/],
    ["smoothing of the hinge", [good], { labelSmoothing: 0.1, loss: "hinge" }, /labelSmoothing .*"hinge"/],
  ];
  it.each(cases)("%s: refused", async (_, pairs, options, message) => {
    await using learner = await tinyLearner();
    const error = await refusal(learner.tokenPreference(pairs, { beta: 0.1, ...options }));
    expect(error.code).toBe("ERR_VALUE");
    expect(error.message).toMatch(message);
  });
});

describe("a reward model", () => {
  const { texts, logits, losses } = recorded.reward;
  const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));

  it.each(ways)("equals transformers' classifier in float64, %s", async (_, options) => {
    // The bias must not count.
    await using learner = await learnerWithValueHead(
      model,
      { weight: recorded.valueHead, bias: [3] },
      options,
    );
    expectClose(await learner.rewards(texts), logits.map(sigmoid));
    expectClose(await learner.rewardLoss(texts, { withGradient: false }), losses);
    expectClose(await learner.rewardLoss(texts), losses);
    await expectGradients(learner, gradients, "reward");
  });

  it("resumes exactly, in the middle of a batch", async () => {
    await inDirectory(async (directory) => {
      await using learner = await Learner.load(model, { dtype: "float32", heads: "value" });
      await learner.rewardLoss(texts);
      await learner.step({ learningRate: 1e-2 });
      await learner.rewardLoss(texts);
      await learner.save(directory);
      await using resumed = await Learner.resume(directory, { dtype: "float32" });
      const [kept, restored] = await Promise.all(
        [learner, resumed].map(async (each) => {
          await each.step({ learningRate: 1e-2 });
          return each.rewards(texts);
        }),
      );
      expect(restored).toEqual(kept);
      expect(new Set(kept).size).toBe(texts.length);
    });
  });

  describe("bad arguments", () => {
    let learner: Learner;
    beforeAll(async () => {
      learner = await tinyLearner({ heads: "value" });
    });
    afterAll(() => learner.dispose());
    const good = { prompt: [1], response: [2], label: 1 };
    it.each<[string, object, RegExp]>([
      ["a label above 1", { label: 1.5 }, /texts\[1\]\.label/],
      ["a negative label", { label: -0.1 }, /texts\[1\]\.label/],
      ["a NaN label", { label: Number.NaN }, /texts\[1\]\.label/],
      ["no label", { label: undefined }, /texts\[1\]\.label/],
      ["an infinite weight", { weight: Infinity }, /texts\[1\]\.weight/],
      ["an empty response", { response: [] }, /texts\[1\]\.response is empty/],
      ["an empty prompt", { prompt: [] }, /texts\[1\]\.prompt is empty/],
      ["too long a text", { response: new Array(256).fill(1) }, /texts\[1\]\.prompt and \.response/],
    ])("%s: refused", async (_, own, message) => {
      const error = await refusal(learner.rewardLoss([good, { ...good, ...own }]));
      expect(error.code).toBe("ERR_VALUE");
      expect(error.message).toMatch(message);
    });

    it("takes a text that fills the context, and none at all", async () => {
      const full = { prompt: [1], response: new Array(255).fill(1), label: 0 };
      expect(await learner.rewardLoss([full])).toHaveLength(1);
      expect(await learner.rewards([])).toHaveLength(0);
    });

    it("needs a value head", async () => {
      await using plain = await tinyLearner();
      const calls = [
        () => plain.rewards([good]),
        () => plain.rewardLoss([good]),
        () => plain.exportRewardModel("/nonexistent"),
      ];
      for (const call of calls) {
        const error = await refusal(call());
        expect(error.code).toBe("ERR_CONFIG");
        expect(error.message).toContain('heads "value"');
      }
    });
  });
});

// --- export --------------------------------------------------------------------------------------

const python = peersPython(["torch", "transformers"], "loading reward models with transformers");

/** Loads each directory, scores the texts in one padded batch, and prints the logits. */
const scores = `
import json, sys
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
requests = json.loads(sys.stdin.read())
found = []
for directory, texts in requests:
    model, info = AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info[problem], f"{problem}: {info[problem]}"
    assert model.config.num_labels == 1
    pad = model.config.pad_token_id
    assert AutoTokenizer.from_pretrained(directory).pad_token_id == pad
    width = max(len(text) for text in texts)
    ids = torch.tensor([text + [pad] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    with torch.no_grad():
        found.append(model.eval()(ids, attention_mask=mask).logits[:, 0].tolist())
print(json.dumps(found))
`;

const exported: [name: string, config: object, options: object][] = [
  ["Llama", tinyConfig, {}],
  ["Llama with an adapter", tinyConfig, { adapter: { rank: 2, alpha: 4 } }],
  [
    "Qwen2",
    { ...tinyConfig, model_type: "qwen2", architectures: ["Qwen2ForCausalLM"], tie_word_embeddings: true },
    {},
  ],
  ["Qwen3", { ...tinyConfig, model_type: "qwen3", architectures: ["Qwen3ForCausalLM"], head_dim: 8 }, {}],
];
// Texts of different lengths that end a turn, as a policy's do: the end of a turn must not count as
// padding.
const turns: JudgedText[] = [
  { prompt: [256, 70, 71], response: [72, 257], label: 1 },
  { prompt: [256, 70], response: [90, 91, 92, 93, 257], label: 0 },
  { prompt: [256, 75], response: [80], label: 0.2 },
];

it.runIf(python)(
  "transformers loads an exported reward model and gives its logits",
  async () => {
    await inDirectory(async (directory) => {
      const expected: number[][] = [];
      for (const [name, config, options] of exported) {
        const tokenizer = name === "Qwen2" ? padsWithEndOfTurn() : byteTokenizer();
        await using learner = await Learner.create(config, {
          ...{ dtype: "float32", tokenizer, heads: "value", seed: 3 },
          ...options,
        });
        for (let i = 0; i < 5; i++) {
          await learner.rewardLoss(turns);
          await learner.step({ learningRate: 0.02 });
        }
        const rewards = [...(await learner.rewards(turns))];
        expect(Math.max(...rewards) - Math.min(...rewards)).toBeGreaterThan(0.01);
        expected.push(rewards.map((reward) => Math.log(reward / (1 - reward))));
        await learner.exportRewardModel(join(directory, name));
        const tokens = JSON.parse(readFileSync(join(directory, name, "tokenizer_config.json"), "utf8"));
        expect(tokens.pad_token).toBe("<|im_start|>");
      }
      const requests = exported.map(([name]) => [
        join(directory, name),
        turns.map(({ prompt, response }) => [...prompt, ...response]),
      ]);
      const printed = execFileSync(python!, ["-c", scores], {
        input: JSON.stringify(requests),
        encoding: "utf8",
        stdio: ["pipe", "pipe", "inherit"],
      });
      const found = JSON.parse(printed) as number[][];
      for (const [i, logits] of found.entries()) expectClose(logits, expected[i]!, 1e-4);
    });
  },
  120_000,
);

function padsWithEndOfTurn(): Tokenizer {
  const parts = byteTokenizerParts();
  return new Tokenizer({ ...parts, config: { ...parts.config, pad_token: "<|im_end|>" } });
}
