/** The messages between rank 0 and the other ranks. */

import type { Learner } from "../learner/learner.ts";
import type { CreateOptions, LearnerOptions, ResumeOptions } from "../learner/options.ts";
import type { TokenizerParts } from "../tokens/tokenizer.ts";

/** Milliseconds between the pings that rank 0 sends to every rank. */
export const pingMs = 5000;

/** Where every rank's learner comes from. Paths are the same on every machine. */
export type LearnerSource =
  | { kind: "load"; model: string; options: Omit<LearnerOptions, "ranks"> }
  | {
      kind: "create";
      config: object | string;
      tokenizer: TokenizerParts | undefined;
      options: Omit<CreateOptions, "ranks" | "tokenizer">;
    }
  | { kind: "resume"; directory: string; options: Omit<ResumeOptions, "ranks"> };

/** Calls whose first argument is a list that is split over the ranks. */
export type SplitMethod = keyof Pick<
  Learner,
  | "generate"
  | "generateTogether"
  | "logProbs"
  | "values"
  | "tokenNll"
  | "tokenKl"
  | "tokenSurrogate"
  | "tokenPreference"
  | "rewards"
  | "rewardLoss"
  | "softQ"
>;

/** Calls that every rank makes with the same arguments. */
export type CommonMethod = keyof Pick<
  Learner,
  | "gatherWeights"
  | "step"
  | "discardGradients"
  | "discardMoments"
  | "dropCaches"
  | "updateTarget"
  | "targetDistance"
  | "keepReference"
  | "restoreReference"
  | "resetQHeads"
  | "save"
  | "exportHuggingFace"
  | "exportAdapter"
  | "exportRewardModel"
>;

/** From rank 0. `open` comes first, `end` last. Each but `cancel` and `end` is answered. */
export type Request =
  | { id: number; call: "open"; source: LearnerSource }
  | { id: number; call: SplitMethod | CommonMethod; args: unknown[] }
  | { call: "cancel"; id: number }
  | { call: "ping" }
  | { call: "end" };

export type Reply =
  | { id: number; value: unknown }
  | { id: number; code: string; message: string }
  | { call: "pong" };
