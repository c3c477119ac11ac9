/**
 * A training step of a small language model: the NLL of some texts, its gradient, and an AdamW step
 * on all parameters. nlac's trained parameters are float32, the other libraries' have the model's
 * type.
 */

import { DEFAULT_MODEL, KNOWN_MODELS } from "../../hub/resolve-model.ts";
import { Learner } from "../../learner/learner.ts";
import type { Case, CaseOptions, Job, Row, Subject, Suite } from "../suite.ts";
import { type TrainingParameters, trainingStep } from "../training-step.ts";
import { cudaCases, prepareCuda } from "./training-cuda.ts";

type Parameters = TrainingParameters & {
  /** The model's file in the cache, for the other libraries. */
  file: string;
};

const dtypes = ["bfloat16", "float32"] as const;

export const training: Suite = {
  name: "training",
  summary: "a training step of a small language model, in bfloat16 and float32",

  cases({ device, quick }: CaseOptions): Case[] {
    if (device !== "cpu" && !quick) return cudaCases();
    const { file } = KNOWN_MODELS.find(({ name }) => name === DEFAULT_MODEL)!;
    const [texts, tokens] = quick ? [2, 16] : [4, 512];
    const parameters: Parameters = { file, texts, tokens, learningRate: 1e-6 };
    const ours: Row[] = dtypes.map((dtype) => ({
      ...{ name: `nlac, ${dtype}`, role: "ours", implementation: dtype, resultBytes: null },
    }));
    const peers: Row[] = dtypes.map((dtype) => ({
      ...{ name: `transformers, ${dtype}`, role: "peer", implementation: dtype, resultBytes: null },
      script: "training.py",
    }));
    return [
      {
        id: `${texts}x${tokens}`,
        title: `${DEFAULT_MODEL} · ${texts} texts of ${tokens} tokens, forward, backward and AdamW`,
        parameters,
        timing: { warmup: 1, calls: quick ? 1 : 3, seconds: 0 },
        work: { amount: texts * tokens, unit: "tokens/s" },
        // Hidden states in bfloat16 are rounded in every layer.
        tolerance: 0.02,
        rows: [...ours, ...peers],
      },
    ];
  },

  async prepare(job: Job): Promise<Subject> {
    const { implementation, parameters, device, threads } = job;
    if (implementation === "random") return prepareCuda(job);
    const dtype = dtypes.find((known) => known === implementation)!;
    const learner = await Learner.load(DEFAULT_MODEL, { device, threads, dtype });
    return trainingStep(learner, parameters as Parameters);
  },
};
