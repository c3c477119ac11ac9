/** Configuration fields on how the policy acts, shared by the methods. "Paper" is NLAC's. */

import { z } from "zod";

const count = z.int().min(1);

export const actingConfig = z.strictObject({
  /** Softmax temperature at which actions are sampled. Default 1. Paper: not given. */
  actionTemperature: z.number().min(0).default(1),
  /** Longest prompt of the policy, in tokens. Default and paper: 8192. */
  maxPromptTokens: count.default(8192),
  /** Longest action, in tokens. Default 24,576. Paper: 24,576 for any response. */
  maxActionTokens: count.default(24_576),
});

/** For methods that imitate actions, which may be constrained. */
export const imitatedConfig = z.strictObject({
  ...actingConfig.shape,
  /**
   * Constrains actions of the format "tool" to the form and the tools' schemas. Default false.
   * Paper: not mentioned.
   */
  constrainActions: z.boolean().default(false),
});

/**
 * For methods whose loss treats every token as the policy's choice. A token sampled under a mask is
 * not: where the mask left only one token, nothing was chosen, yet the loss would change its
 * probability.
 */
export const sampledConfig = z.strictObject({
  ...actingConfig.shape,
  /** Must be false: the loss treats every token as the policy's choice. Paper: not mentioned. */
  constrainActions: z
    .boolean()
    .refine((held) => !held, {
      error:
        "the loss of this method treats every token as the policy's choice, which constrained tokens are not. " +
        "Train with nlac or rft, or constrain actions in evaluation only (nlac eval --constrain-actions)",
    })
    .default(false),
});

/** For methods that train on recorded actions only. */
export const unsampledConfig = z.strictObject({
  /** Must be 1: training samples no actions. Evaluation has `evaluation.temperature`. */
  actionTemperature: z
    .number()
    .refine((temperature): boolean => temperature === 1, {
      error: "training samples no actions: set evaluation.temperature, that of evaluation",
    })
    .default(1),
});
