/**
 * The options of a learner. Everything that takes or checks them reads these schemas: `Learner`, a
 * recipe's `learner`, local services and the command line.
 */

import { z } from "zod";
import { dtypeOptions } from "../base/dtype.ts";
import { checkConfig } from "../base/validation.ts";
import type { NativeRanks } from "../native/addon.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";

/**
 * Hugging Face's names of a layer's projections, in the order in which a layer computes them, then
 * those of a gated delta net.
 */
export const projections = [
  "q_proj",
  "k_proj",
  "v_proj",
  "o_proj",
  "gate_proj",
  "up_proj",
  "down_proj",
  "in_proj_qkv",
  "in_proj_z",
  "in_proj_b",
  "in_proj_a",
  "out_proj",
] as const;

/** Projections of experts, or of shared experts, without the others of their names. */
export const qualifiedProjections = [
  "experts.gate_proj",
  "experts.up_proj",
  "experts.down_proj",
  "shared_expert.gate_proj",
  "shared_expert.up_proj",
  "shared_expert.down_proj",
] as const;

const adapterOptions = z.strictObject({
  /** Rows of A and columns of B; at least 1. */
  rank: z.int().min(1),
  /** The adapter's part of a projection is scaled by alpha / rank; above 0. */
  alpha: z.number().positive(),
  /**
   * The projections that get an adapter. Default: all that the model has. In a mixture of experts,
   * gate_proj, up_proj and down_proj stand for those of each expert, of shared experts and of
   * layers without experts; experts.gate_proj and shared_expert.gate_proj name some of them.
   */
  targets: z
    .array(z.enum([...projections, ...qualifiedProjections]))
    .min(1)
    .readonly()
    .optional(),
});

/**
 * Low-rank adapters (LoRA; Hu et al., 2021): a projection's W [out, in] is frozen and computes W x
 * + (alpha / rank) · B A x. Only A [rank, in] and B [out, rank] are trained; B is initialized with
 * zeros.
 */
export type AdapterOptions = z.input<typeof adapterOptions>;

/** The options that a recipe has too. */
export const recipeFields = {
  /** "cpu", "cuda" or "cuda:N". Default "cpu". */
  device: z.string().default("cpu"),
  /**
   * Type of the computation; parameters, moments and gradients are float32. "auto" is the faster
   * type on the device: bfloat16, or float32 on a CPU without AVX2. A run records what "auto" was.
   * Default "auto".
   */
  dtype: z.enum(dtypeOptions).default("auto"),
  /**
   * Generates with weights rounded to int8: faster for a few requests at once, slower for dozens,
   * and slightly less accurate (docs/decisions/0014). Completions, `logProbs` and `hidden` are the
   * rounded model's; all other calls use the exact weights. CPU only. Default false.
   */
  int8Generation: z.boolean().default(false),
  /** Recomputes activations in the backward pass: less memory, a third more time. Default false. */
  gradientCheckpointing: z.boolean().default(false),
  /**
   * Coefficient of the load-balance loss of a mixture of experts, as transformers computes it;
   * "model" takes the model's own (`router_aux_loss_coef`). Each loss adds the gradient of its
   * micro-batches' load-balance losses, each times the sum of the absolute weights of its tokens,
   * preference pairs or judged texts. Models without experts ignore it. Default: no such loss.
   */
  expertBalance: z.union([z.literal("model"), z.number().min(0)]).optional(),
  /** Packed tokens of one forward and backward pass. Default 2048. */
  microBatchTokens: z.int().min(1).default(2048),
  /**
   * Bytes of the KV cache in generation, for running requests and for finished ones that may be
   * continued, for θ and θ̄ each. Requests that do not fit wait; a single request may take more.
   * Default 2 GiB.
   */
  cacheBytes: z
    .int()
    .min(0)
    .default(2 ** 31),
  /**
   * Trains low-rank adapters (LoRA) on a frozen model, which is held once, in `dtype`, for θ and θ̄
   * together. Default: all parameters are trained.
   */
  adapter: adapterOptions.optional(),
  /**
   * What the ranks of a distributed training divide among them. 1: θ's float32 copy, AdamW's
   * moments and θ̄'s float32 copy. 2: the layers' gradients too. 3: also the layers of the copies
   * to compute with, which are gathered before they are used. With an adapter, only the adapter is
   * divided: every rank holds the whole model. Ignored without ranks (docs/scaling.md). Default
   * "none".
   */
  sharding: z
    .union([z.literal("none"), z.literal(1), z.literal(2), z.literal(3)], {
      error: 'sharding must be "none", 1, 2 or 3',
    })
    .default("none"),
  /**
   * With `sharding: 3`: generation collects the layers one at a time, again for each token, instead
   * of the whole model once after a change of the weights. It saves the memory of the model's layers
   * and sends as many bytes per token (docs/scaling.md). Ignored with other shardings. Default
   * false.
   */
  layerwiseGeneration: z.boolean().default(false),
};

/** This process's place among the ranks of a training; `joinRanks` makes it. */
export interface RankConnection {
  readonly native: NativeRanks;
  readonly rank: number;
}

const learnerOptions = withChecks(
  z.strictObject({
    ...recipeFields,
    /** Seeds every completion that is generated without a seed. Default 0. */
    seed: z.int().min(0).default(0),
    /**
     * Unfinished requests of all `generate` calls; with `wait: false` a call that exceeds it fails.
     * Default 1024.
     */
    maxQueued: z.int().min(1).default(1024),
    /**
     * Threads of one operation, for the whole process. Default: NLAC_THREADS, else OMP_NUM_THREADS,
     * else the physical cores that the process may use.
     */
    threads: z.int().min(1).max(4096).optional(),
    /**
     * What is trained besides the model: "value" adds a value head, initialized with zeros; "q"
     * adds twin soft Q heads, each as large as the vocabulary matrix, initialized from the policy.
     * Default: none, or on `resume` what was saved. `load` finds heads that `save` wrote into the
     * directory.
     */
    heads: z.enum(["none", "value", "q"]).optional(),
    /** The ranks that train together, for `DistributedLearner`. Default: none. */
    ranks: z.custom<RankConnection>((value) => typeof value === "object" && value !== null).optional(),
  }),
);

/** `learner` of a recipe. */
export const recipeLearner = withChecks(z.strictObject(recipeFields));

/** Options of `Learner.load`. */
export type LearnerOptions = z.input<typeof learnerOptions>;
/** The options with their defaults. */
export type Settings = z.output<typeof learnerOptions>;
export type Heads = NonNullable<LearnerOptions["heads"]>;

/** Options of `Learner.create`. */
export interface CreateOptions extends LearnerOptions {
  /** For encode, decode and chats; without one the learner takes ids only. */
  tokenizer?: Tokenizer | undefined;
}

/**
 * Options of `Learner.resume`. `dtype`, `seed`, `heads` and `adapter` default to what was saved, the
 * others to what they are for `Learner.load`.
 */
export interface ResumeOptions extends LearnerOptions {
  /**
   * A second place, as `load` takes it, to look for an adapter's model if it is not where `load`
   * found it.
   */
  base?: string | undefined;
  /** Whether to compare the files with their checksums first. Default true. */
  verify?: boolean | undefined;
}

/** Throws ERR_CONFIG that names every bad option. */
export function checkOptions(options: LearnerOptions): Settings {
  return checkConfig(learnerOptions, options);
}

/** Adds the checks that concern several options. */
function withChecks<Shape extends typeof recipeFields>(schema: z.ZodObject<Shape, z.core.$strict>) {
  return schema.superRefine((options, { addIssue }) => {
    const { int8Generation, device } = options as Pick<Settings, "int8Generation" | "device">;
    if (!int8Generation || device === "cpu") return;
    const message = `int8Generation needs device "cpu"; here it is "${device}".`;
    addIssue({ code: "custom", path: ["int8Generation"], message });
  });
}
