/** Fields of the methods' configurations that say how the policy acts. "Paper" is NLAC's. */

import { z } from "zod";

const count = z.int().min(1);

export const actingConfig = z.strictObject({
  /** Softmax temperature at which actions are written. Paper: not given. */
  actionTemperature: z.number().min(0).default(1),
  /** Longest prompt of the policy, tokens. Paper: 8192. */
  maxPromptTokens: count.default(8192),
  /** Longest action, tokens. Paper: 24,576 for any response. */
  maxActionTokens: count.default(24_576),
});

/** Of methods that imitate actions: they may be held to a form. */
export const imitatedConfig = z.strictObject({
  ...actingConfig.shape,
  /** Holds actions of the format "tool" to their form and their tools' schemas. Default false. Paper: not mentioned. */
  constrainActions: z.boolean().default(false),
});

/**
 * Of methods whose loss takes every token for the policy's own choice. A token that was drawn while others were masked is none:
 * where a single token was left nothing was chosen, and the loss would still push it up or down.
 */
export const sampledConfig = z.strictObject({
  ...actingConfig.shape,
  /** Must be false: the loss takes every token for the policy's own choice. Paper: not mentioned. */
  constrainActions: z
    .boolean()
    .refine((held) => !held, {
      error:
        "the loss of this method takes every token for the policy's own choice, and in actions that are held to a form it is " +
        "not. Train with nlac or rft, or hold the actions in evaluation only (nlac eval --constrain-actions)",
    })
    .default(false),
});
