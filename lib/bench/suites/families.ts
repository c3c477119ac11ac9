/**
 * A training step and generation with a random model of each family, of about SmolLM2's size. The
 * models are written by bench/peers/random_models.py, so that all rows read the same weights.
 */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { NlacError } from "../../base/errors.ts";
import { Learner } from "../../learner/learner.ts";
import { cacheRoot } from "../../native/paths.ts";
import type { Case, CaseOptions, Job, Row, Subject, Suite } from "../suite.ts";
import { type TrainingParameters, trainingStep } from "../training-step.ts";
import { type GenerationParameters, generateTexts } from "./generation.ts";

/** The first is the one to compare with. */
const names = [
  ...["llama", "qwen3_5", "gemma3", "smollm3", "ministral3", "olmo3"],
  ...["qwen3_moe", "qwen3_5_moe", "gemma4", "gemma4_moe", "gpt_oss"],
] as const;

type Parameters = { family: string } & (TrainingParameters | GenerationParameters);

const ours: Row = { name: "nlac", role: "ours", implementation: "nlac", resultBytes: null };
const peer = (dtype: string, script: string, implementation: string): Row => ({
  ...{ name: `transformers, ${dtype}`, role: "peer", implementation, script, resultBytes: null },
});
const trainingRows = [
  ours,
  peer("bfloat16", "training.py", "bfloat16"),
  peer("float32", "training.py", "float32"),
];
const generationRows = [
  ours,
  peer("bfloat16", "generation.py", "transformers"),
  peer("float32", "generation.py", "transformers-float32"),
];

export const families: Suite = {
  name: "families",
  summary: "training and generation with a random model of each family",

  cases({ quick }: CaseOptions): Case[] {
    const timing = { warmup: 1, calls: quick ? 1 : 2, seconds: 0 };
    const unit = "tokens/s";
    const training = (family: string): Case => {
      const [texts, tokens] = quick ? [2, 16] : [2, 512];
      const parameters: Parameters = { family, texts, tokens, learningRate: 1e-6 };
      return {
        ...{ id: `${family}-training`, parameters, timing, rows: trainingRows },
        title: `${family} · ${texts} texts of ${tokens} tokens, forward, backward and AdamW`,
        work: { amount: texts * tokens, unit },
        // Hidden states in bfloat16 are rounded in every layer.
        tolerance: 0.002,
      };
    };
    const generation = (family: string, count: number): Case => {
      const [own, written] = quick ? [20, 4] : [200, 100];
      const parameters: Parameters = { family, groups: count, texts: 1, shared: 0, own, written };
      return {
        ...{ id: `${family}-generation-${count}`, parameters, timing, rows: generationRows, tolerance: 0 },
        title: `${family} · ${count} at once, prompt ${own}, ${written} generated`,
        work: { amount: count * written, unit },
      };
    };
    return names.flatMap((family) => [training(family), generation(family, 1), generation(family, 8)]);
  },

  async prepare({ parameters, device, threads }: Job): Promise<Subject> {
    const given = parameters as Parameters;
    const directory = join(cacheRoot(), "peers", "models", given.family);
    if (!existsSync(directory)) {
      throw new NlacError("ERR_CONFIG", `There is no ${directory}. Run \`scripts/peers.sh families\`.`);
    }
    const learner = await Learner.load(directory, { device, threads, dtype: "bfloat16" });
    return "written" in given ? generateTexts(learner, given) : trainingStep(learner, given);
  },
};
