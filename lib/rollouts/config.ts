/** `rollouts` of a recipe: the inference servers that play its episodes. */

import { z } from "zod";

const urls = z
  .array(
    z
      .url({ protocol: /^https?$/, error: "an http:// or https:// address" })
      .transform((url) => url.replace(/\/+$/, "")),
  )
  .min(1)
  .refine((all) => new Set(all).size === all.length, { error: "an address is named twice" });

/** Servers that take the learner's weights. */
const trained = {
  /** Addresses of servers, as "http://10.0.0.2:8000". Each has the model that the recipe loads. */
  urls,
  /**
   * A directory that the learner and all servers see under this path. The run locks it, and removes
   * its versions when they are no longer needed.
   */
  shared: z.string().startsWith("/", { error: "an absolute path, which servers read too" }),
  /**
   * Optimizer steps after which episodes need new weights: before an episode's action, the weights
   * are sent if θ has taken so many steps since. Default 1: servers always have θ.
   */
  every: z.int().min(1).default(1),
};

const noWeights = (field: string) =>
  z
    .never({
      error: `${field}: OpenAI's API has no call that changes a server's weights; use vllm or sglang`,
    })
    .optional();

/** The inference servers that generate a recipe's episodes. */
export const rolloutsConfig = z.discriminatedUnion("engine", [
  z.strictObject({ engine: z.literal("vllm"), ...trained }),
  z.strictObject({ engine: z.literal("sglang"), ...trained }),
  /**
   * Any server with OpenAI's completions that takes and returns token ids. Its weights stay as they
   * are, so it plays the training's episodes as a fixed policy; the learner evaluates itself.
   */
  z.strictObject({
    engine: z.literal("openai"),
    urls,
    shared: noWeights("shared"),
    every: noWeights("every"),
  }),
]);

/** `rollouts` of a recipe. */
export type RolloutsConfig = z.output<typeof rolloutsConfig>;
