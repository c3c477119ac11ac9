/** Checks the options of losses and of AdamW, and converts them for the addon. */

import { NlacError } from "../base/errors.ts";
import { checkChoice, checkInteger, checkKeys, checkNumber, shown } from "../base/validation.ts";
import type {
  NativeAdamWOptions,
  NativeDivergence,
  NativePreferenceLoss,
  NativeSupport,
} from "../native/addon.ts";

/**
 * The tokens over which the KL is computed: all, the teacher's k most probable with a tail bucket,
 * or the sampled one.
 */
export type Support = "full" | "sampled" | { topK: number };

/**
 * The divergence of the student's distribution q from the teacher's p: KL(p ‖ q), the paper's; its
 * part -Σ p log q, with the same gradient; KL(q ‖ p); or β·KL(p ‖ m) + (1 - β)·KL(q ‖ m) with m =
 * β·p + (1 - β)·q, β from 1e-6 to 1 - 1e-6 (Agarwal et al., "On-policy distillation of language
 * models", 2024). The last two need more than a sampled token.
 */
export type Divergence = "forwardKl" | "crossEntropy" | "reverseKl" | { jensenShannon: number };

/**
 * A loss of a pair's margin d, which is the chosen response's log (π / reference) less the rejected
 * one's. "sigmoid" is DPO, -log σ(β·d) (Rafailov et al., "Direct preference optimization", 2023,
 * equation 7). "hinge" is SLiC's max(0, 1 - β·d) (Zhao et al., "SLiC-HF", 2023, on ratios). "ipo"
 * is (d - 1 / (2β))² (Azar et al., "A general theoretical paradigm to understand learning from
 * human preferences", 2023, equation 17), with means over tokens in place of sums in d, as in TRL.
 */
export type PreferenceLoss = "sigmoid" | "hinge" | "ipo";

/** Settings of a preference loss. */
export interface PreferenceLossOptions {
  /** β, above 0. */
  beta: number;
  /** Default "sigmoid". */
  loss?: PreferenceLoss | undefined;
  /**
   * Probability ε that a pair's preference is wrong, from 0 to below 0.5; "sigmoid" only:
   * -(1 - ε)·log σ(β·d) - ε·log σ(-β·d). Default 0.
   */
  labelSmoothing?: number | undefined;
}

/** Settings of an AdamW step. */
export interface AdamWOptions {
  learningRate: number;
  /** Default [0.9, 0.999]. */
  betas?: readonly [number, number];
  /** Default 1e-8. */
  epsilon?: number;
  /** Decoupled. Default 0. */
  weightDecay?: number;
  /** Global norm; 0 is no clipping. Default 1. */
  maxGradNorm?: number;
}

/** Result of an optimizer step. */
export interface StepResult {
  /** Global norm before clipping. */
  gradNorm: number;
  /** True if a gradient was not finite; nothing was changed then. */
  skipped: boolean;
}

/** A support in the addon's form. Throws ERR_VALUE. */
export function checkSupport(support: Support): NativeSupport {
  if (support === "full" || support === "sampled") return { kind: support, k: 0 };
  if (typeof support !== "object" || support === null) {
    throw new NlacError(
      "ERR_VALUE",
      `support must be "full", "sampled" or { topK }; it is ${shown(support)}.`,
    );
  }
  checkKeys(support, "support", ["topK"], "ERR_VALUE");
  return { kind: "top_k", k: checkInteger(support.topK, "support.topK", 1) };
}

const divergences: ReadonlyMap<unknown, NativeDivergence["kind"]> = new Map([
  ["forwardKl", "forward_kl"],
  ["crossEntropy", "cross_entropy"],
  ["reverseKl", "reverse_kl"],
]);

/** A divergence in the addon's form. Throws ERR_VALUE. */
export function checkDivergence(divergence: Divergence, support: Support): NativeDivergence {
  const kind = divergences.get(divergence);
  if (kind === undefined && (typeof divergence !== "object" || divergence === null)) {
    throw new NlacError(
      "ERR_VALUE",
      `divergence must be "forwardKl", "crossEntropy", "reverseKl" or { jensenShannon }; it is ${shown(divergence)}.`,
    );
  }
  if (support === "sampled" && kind !== "forward_kl" && kind !== "cross_entropy") {
    throw new NlacError(
      "ERR_VALUE",
      'The support "sampled" gives the cross entropy on the sampled token; this divergence needs "full" or { topK }.',
    );
  }
  if (kind !== undefined) return { kind, beta: 0 };
  const { jensenShannon } = divergence as { jensenShannon: number };
  checkKeys(divergence as object, "divergence", ["jensenShannon"], "ERR_VALUE");
  return {
    kind: "jensen_shannon",
    beta: checkNumber(jensenShannon, "divergence.jensenShannon", 1e-6, 1 - 1e-6),
  };
}

const preferenceLosses: readonly PreferenceLoss[] = ["sigmoid", "hinge", "ipo"];

/** A preference loss in the addon's form. Throws ERR_VALUE. */
export function checkPreferenceLoss(options: PreferenceLossOptions): NativePreferenceLoss {
  const loss = checkChoice(options.loss ?? "sigmoid", "loss", preferenceLosses);
  const labelSmoothing = checkNumber(options.labelSmoothing ?? 0, "labelSmoothing", 0, 0.5);
  if (labelSmoothing === 0.5) throw new NlacError("ERR_VALUE", "labelSmoothing must be below 0.5.");
  if (labelSmoothing !== 0 && loss !== "sigmoid") {
    throw new NlacError("ERR_VALUE", `labelSmoothing cannot be used with the loss "${loss}".`);
  }
  return { beta: checkNumber(options.beta, "beta", Number.MIN_VALUE), loss, labelSmoothing };
}

export const adamWOptionNames = ["learningRate", "betas", "epsilon", "weightDecay", "maxGradNorm"] as const;

/** AdamW's options in the addon's form. Throws ERR_VALUE. */
export function checkAdamWOptions(options: AdamWOptions): NativeAdamWOptions {
  const { betas = [0.9, 0.999] } = options;
  if (!Array.isArray(betas) || betas.length !== 2)
    throw new NlacError("ERR_VALUE", `betas must be two numbers; it is ${shown(betas)}.`);
  const [beta1, beta2] = betas as readonly [number, number];
  return {
    learningRate: checkNumber(options.learningRate, "learningRate", 0),
    beta1: checkBeta(beta1, "betas[0]"),
    beta2: checkBeta(beta2, "betas[1]"),
    epsilon: checkNumber(options.epsilon ?? 1e-8, "epsilon", Number.MIN_VALUE),
    weightDecay: checkNumber(options.weightDecay ?? 0, "weightDecay", 0),
    maxGradNorm: checkNumber(options.maxGradNorm ?? 1, "maxGradNorm", 0),
  };
}

function checkBeta(beta: unknown, where: string): number {
  if (checkNumber(beta, where, 0, 1) === 1) throw new NlacError("ERR_VALUE", `${where} must be below 1.`);
  return beta as number;
}
