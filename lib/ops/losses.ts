/** The core's losses without a model: fused with the vocabulary matrix, synchronous. */

import { NlacError } from "../base/errors.ts";
import { checkBoolean, checkInteger, checkKeys, checkNumber } from "../base/validation.ts";
import type { Addon, NativeLossOptions, NativeLossTensors, NativeTokenLossOptions } from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { checkDivergence, checkSupport, type Divergence, type Support } from "./options.ts";
import { addonOf, checkShape, checkTensor, fromNativeTensor, nativeOf, Tensor } from "./tensor.ts";

/** Results by row; 0 in rows of weight 0. Real results are f32, or f64 for f64 inputs. */
export interface Losses {
  /** [rows] real, unweighted, nats. */
  losses: Tensor;
}

/** The gradients of Σ rowWeights·losses. */
export interface LossGradients {
  /** [rows, H] of the (student's) hidden type. */
  gradHidden: Tensor;
  /** [V, H] f32, or f64 for f64 inputs. The input `gradHead`, if one was given. */
  gradHead: Tensor;
}

/** Losses, and their gradients. */
export interface LossTensors extends Losses, LossGradients {}

/** Log probabilities of given tokens. */
export interface TokenLogProbs {
  /** [rows] real: log q(target), q = softmax(logits / temperature). */
  logProbs: Tensor;
  /** [rows] real: H(q) in nats; with `withEntropies` only. */
  entropies?: Tensor;
}

/** What `ops.linearTokenSurrogate` returns besides losses. */
export interface SurrogateDetails {
  /** [rows] real: exp(logProbs - oldLogProbs). */
  ratios: Tensor;
  /** [rows] i32: 1 where the upper bound was active, -1 where the lower one was, else 0. */
  clipped: Tensor;
}

/** Options of all losses. */
export interface LossOptions {
  /** Divides the logits before every softmax. Default 1. */
  temperature?: number | undefined;
  /** Default true; false omits the gradients and their matrix products. */
  withGradient?: boolean | undefined;
  /**
   * [V, H] f32 (f64 for f64 inputs): the gradient of the matrix is added into it. Default: a new
   * tensor of zeros. If the call fails after its arguments were checked, its content is undefined.
   */
  gradHead?: Tensor | undefined;
  /**
   * Bytes for logits and their gradient, whatever the number of rows. More is faster where V·H is
   * large. Default: 0, which is 1 GiB on CUDA, and on the CPU 76 MiB with a teacher and 56 MiB
   * without one. There is always room for 32 rows of logits.
   */
  workspaceBytes?: number | undefined;
}

/** Inputs of `ops.linearTokenKl`. */
export interface LinearTokenKlInputs extends LossOptions {
  /** [rows, H] f32, bf16 or f64. */
  studentHidden: Tensor;
  /** [V, H]; logits are hidden · headᵀ. */
  studentHead: Tensor;
  /** [rows, H'], H' may differ from H. */
  teacherHidden: Tensor;
  /** [V, H']. */
  teacherHead: Tensor;
  /** [rows] f32. A row of weight 0 costs nothing. */
  rowWeights: Tensor;
  /** Default "forwardKl". */
  divergence?: Divergence | undefined;
  /** Default "full". Every divergence goes with "full" and { topK }. */
  support?: Support | undefined;
  /** [rows] i64, the sampled tokens; for support "sampled" only. */
  targets?: Tensor | undefined;
}

/** Inputs of losses on given tokens. */
export interface TargetInputs extends LossOptions {
  /** [rows, H] f32, bf16 or f64. */
  hidden: Tensor;
  /** [V, H]; logits are hidden · headᵀ. */
  head: Tensor;
  /** [rows] i64 in [0, V). */
  targets: Tensor;
  /** Also gives the entropies. Default false. */
  withEntropies?: boolean | undefined;
}

/** Inputs of `ops.linearTokenNll`. */
export interface LinearTokenNllInputs extends TargetInputs {
  /** [rows] f32. A row of weight 0 costs nothing, and its other inputs are not read. */
  rowWeights: Tensor;
  /** Adds zLoss·(log Σ exp(logits / temperature))², at least 0. Default 0. */
  zLoss?: number | undefined;
  /** Subtracts entropyCoefficient·H(q). Default 0. */
  entropyCoefficient?: number | undefined;
}

/** Inputs of `ops.linearTokenLogProbs`. */
export interface LinearTokenLogProbsInputs extends TargetInputs {
  /**
   * [rows] f32; multiplies the gradients. A row of weight 0 is not computed. Default: 1 everywhere.
   */
  rowWeights?: Tensor | undefined;
  /**
   * [rows] f32: the gradient of a loss at each log probability. Default: none, and no gradients.
   */
  gradLogProbs?: Tensor | undefined;
}

/** Inputs of `ops.linearTokenSurrogate`. */
export interface LinearTokenSurrogateInputs extends LinearTokenNllInputs {
  /** [rows] f32: the targets' log probabilities when they were sampled. */
  oldLogProbs: Tensor;
  /** [rows] f32. */
  advantages: Tensor;
  /** The ratio counts from 1 - clipLow on, 0 to 1. Default 0.2. */
  clipLow?: number | undefined;
  /** The ratio counts up to 1 + clipHigh, at least 0. Default 0.2. */
  clipHigh?: number | undefined;
  /** Of the KL from the reference policy, at least 0. Default 0. */
  klCoefficient?: number | undefined;
  /** [rows] f32: the targets' log probabilities under the reference policy; needed for a KL. */
  referenceLogProbs?: Tensor | undefined;
}

export const optionNames = ["temperature", "withGradient", "gradHead", "workspaceBytes"];
const targetNames = ["hidden", "head", "targets", "withEntropies", ...optionNames];
const tokenLossNames = ["rowWeights", "zLoss", "entropyCoefficient", ...targetNames];

/**
 * A divergence of softmax(student logits / T) from softmax(teacher logits / T) per row, fused with
 * both vocabulary matrices: by default KL(teacher ‖ student). Gradients are the student's only.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_DEVICE for tensors on different devices, ERR_DISPOSED
 */
export function linearTokenKl(inputs: LinearTokenKlInputs & { withGradient: false }): Losses;
export function linearTokenKl(inputs: LinearTokenKlInputs): LossTensors;
export function linearTokenKl(inputs: LinearTokenKlInputs): Losses & Partial<LossGradients> {
  checkKeys(
    inputs,
    "linearTokenKl",
    [
      ...["studentHidden", "studentHead", "teacherHidden", "teacherHead", "rowWeights", "targets"],
      ...["divergence", "support", ...optionNames],
    ],
    "ERR_VALUE",
  );
  const { support = "full", divergence = "forwardKl", targets } = inputs;
  const [rows] = checkShape(inputs, "studentHidden", ["rows", "H"]);
  checkShape(inputs, "studentHead", ["V", inputs.studentHidden.shape[1]!]);
  checkShape(inputs, "teacherHidden", [rows!, "H'"]);
  checkShape(inputs, "teacherHead", [inputs.studentHead.shape[0]!, inputs.teacherHidden.shape[1]!]);
  checkShape(inputs, "rowWeights", [rows!]);
  if (targets !== undefined) checkShape(inputs, "targets", [rows!]);
  const chosen = checkSupport(support);
  if (chosen.kind === "sampled" && targets === undefined) {
    throw new NlacError("ERR_VALUE", 'The support "sampled" needs targets.');
  }
  const { losses, gradHidden, gradHead } = callLoss(inputs, (addon) =>
    addon.linearTokenKl({
      ...lossOptions(inputs, inputs.studentHead),
      studentHidden: nativeOf(inputs.studentHidden),
      studentHead: nativeOf(inputs.studentHead),
      teacherHidden: nativeOf(inputs.teacherHidden),
      teacherHead: nativeOf(inputs.teacherHead),
      rowWeights: nativeOf(inputs.rowWeights),
      targets: targets && nativeOf(targets),
      divergence: checkDivergence(divergence, support),
      support: chosen,
    }),
  );
  return { losses: losses!, ...present({ gradHidden, gradHead }) };
}

/**
 * -log q(target) per row, q = softmax(logits / T), fused with the vocabulary matrix; plus the terms
 * of `zLoss` and `entropyCoefficient`. There is no label smoothing.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary,
 *   ERR_DEVICE, ERR_DISPOSED
 */
export function linearTokenNll(
  inputs: LinearTokenNllInputs & { withGradient: false },
): Losses & TokenLogProbs;
export function linearTokenNll(inputs: LinearTokenNllInputs): LossTensors & TokenLogProbs;
export function linearTokenNll(
  inputs: LinearTokenNllInputs,
): Losses & TokenLogProbs & Partial<LossGradients> {
  checkKeys(inputs, "linearTokenNll", tokenLossNames, "ERR_VALUE");
  checkTargetInputs(inputs);
  const { losses, logProbs, entropies, gradHidden, gradHead } = callLoss(inputs, (addon) =>
    addon.linearTokenNll(tokenLossOptions(inputs, inputs.rowWeights)),
  );
  return { losses: losses!, logProbs: logProbs!, ...present({ entropies, gradHidden, gradHead }) };
}

/**
 * log q(target) per row, q = softmax(logits / T), fused with the vocabulary matrix. With
 * `gradLogProbs`, the gradient of any loss at them, also that loss's gradients: compute the log
 * probabilities, the loss from them, and call again.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary,
 *   ERR_DEVICE, ERR_DISPOSED
 */
export function linearTokenLogProbs(
  inputs: LinearTokenLogProbsInputs & { gradLogProbs: Tensor },
): TokenLogProbs & LossGradients;
export function linearTokenLogProbs(inputs: LinearTokenLogProbsInputs): TokenLogProbs;
export function linearTokenLogProbs(
  inputs: LinearTokenLogProbsInputs,
): TokenLogProbs & Partial<LossGradients> {
  checkKeys(inputs, "linearTokenLogProbs", ["rowWeights", "gradLogProbs", ...targetNames], "ERR_VALUE");
  const rows = checkTargetInputs(inputs);
  const { gradLogProbs } = inputs;
  if (gradLogProbs !== undefined) checkShape(inputs, "gradLogProbs", [rows]);
  const ones = inputs.rowWeights
    ? undefined
    : Tensor.from(new Float32Array(rows).fill(1), [rows], { device: inputs.hidden.device });
  try {
    const { logProbs, entropies, gradHidden, gradHead } = callLoss(inputs, (addon) =>
      addon.linearTokenLogProbs({
        ...tokenLossOptions(inputs, inputs.rowWeights ?? ones!),
        gradLogProbs: gradLogProbs && nativeOf(gradLogProbs),
      }),
    );
    return { logProbs: logProbs!, ...present({ entropies, gradHidden, gradHead }) };
  } finally {
    ones?.dispose();
  }
}

/**
 * The policy gradient's clipped surrogate per row, fused with the vocabulary matrix:
 *
 *   -min(r·A, clip(r, 1 - clipLow, 1 + clipHigh)·A) + klCoefficient·(exp(d) - d - 1)
 *
 * r = exp(log q(target) - oldLogProbs), A = advantages, d = referenceLogProbs - log q(target); plus
 * the terms of `zLoss` and `entropyCoefficient`. Schulman et al., "Proximal policy optimization
 * algorithms", 2017, equation 7; the KL's estimate from Shao et al., "DeepSeekMath", 2024, equation
 * 4. A ratio beyond float32 gives a loss that is not finite.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary,
 *   ERR_DEVICE, ERR_DISPOSED
 */
export function linearTokenSurrogate(
  inputs: LinearTokenSurrogateInputs & { withGradient: false },
): Losses & TokenLogProbs & SurrogateDetails;
export function linearTokenSurrogate(
  inputs: LinearTokenSurrogateInputs,
): LossTensors & TokenLogProbs & SurrogateDetails;
export function linearTokenSurrogate(
  inputs: LinearTokenSurrogateInputs,
): Losses & TokenLogProbs & SurrogateDetails & Partial<LossGradients> {
  const own = ["oldLogProbs", "advantages", "clipLow", "clipHigh", "klCoefficient", "referenceLogProbs"];
  checkKeys(inputs, "linearTokenSurrogate", [...own, ...tokenLossNames], "ERR_VALUE");
  const rows = checkTargetInputs(inputs);
  checkShape(inputs, "oldLogProbs", [rows]);
  checkShape(inputs, "advantages", [rows]);
  const { clipLow = 0.2, clipHigh = 0.2, klCoefficient = 0, referenceLogProbs } = inputs;
  checkNumber(clipLow, "clipLow", 0, 1);
  checkNumber(clipHigh, "clipHigh", 0);
  checkNumber(klCoefficient, "klCoefficient", 0);
  if (referenceLogProbs !== undefined) {
    checkShape(inputs, "referenceLogProbs", [rows]);
  } else if (klCoefficient !== 0) {
    throw new NlacError("ERR_VALUE", "klCoefficient needs referenceLogProbs.");
  }
  const { losses, logProbs, ratios, clipped, entropies, gradHidden, gradHead } = callLoss(inputs, (addon) =>
    addon.linearTokenSurrogate({
      ...tokenLossOptions(inputs, inputs.rowWeights),
      oldLogProbs: nativeOf(inputs.oldLogProbs),
      advantages: nativeOf(inputs.advantages),
      referenceLogProbs: referenceLogProbs && nativeOf(referenceLogProbs),
      clipLow,
      clipHigh,
      klCoefficient,
    }),
  );
  return {
    ...{ losses: losses!, logProbs: logProbs!, ratios: ratios!, clipped: clipped! },
    ...present({ entropies, gradHidden, gradHead }),
  };
}

/** The number of rows. */
function checkTargetInputs(inputs: TargetInputs & { rowWeights?: Tensor | undefined }): number {
  const [rows] = checkShape(inputs, "hidden", ["rows", "H"]);
  checkShape(inputs, "head", ["V", inputs.hidden.shape[1]!]);
  checkShape(inputs, "targets", [rows!]);
  if (inputs.rowWeights !== undefined) checkShape(inputs, "rowWeights", [rows!]);
  return rows!;
}

export function lossOptions(inputs: LossOptions, head: Tensor): NativeLossOptions {
  const { temperature = 1, withGradient = true, gradHead, workspaceBytes = 0 } = inputs;
  if (gradHead !== undefined) checkShape(inputs, "gradHead", head.shape);
  return {
    temperature: checkNumber(temperature, "temperature", Number.MIN_VALUE),
    withGradient: checkBoolean(withGradient, "withGradient"),
    workspaceBytes: checkInteger(workspaceBytes, "workspaceBytes", 0),
    gradHead: gradHead && nativeOf(gradHead),
  };
}

function tokenLossOptions(
  inputs: TargetInputs & Pick<LinearTokenNllInputs, "zLoss" | "entropyCoefficient">,
  rowWeights: Tensor,
): NativeTokenLossOptions {
  const { zLoss = 0, entropyCoefficient = 0, withEntropies = false } = inputs;
  return {
    ...lossOptions(inputs, inputs.head),
    hidden: nativeOf(inputs.hidden),
    head: nativeOf(inputs.head),
    targets: nativeOf(inputs.targets),
    rowWeights: nativeOf(checkTensor(rowWeights, "rowWeights")),
    zLoss: checkNumber(zLoss, "zLoss", 0),
    entropyCoefficient: checkNumber(entropyCoefficient, "entropyCoefficient", -Number.MAX_VALUE),
    withEntropies: checkBoolean(withEntropies, "withEntropies"),
  };
}

/** The results of a loss as tensors; with gradients, also the caller's `gradHead`. */
export type LossResults = { [name in keyof NativeLossTensors]?: Tensor };

/** Calls a loss of the addon. */
export function callLoss(
  inputs: LossOptions & { readonly hidden?: Tensor; readonly studentHidden?: Tensor },
  call: (addon: Addon) => NativeLossTensors,
): LossResults {
  const natives = callNative(() => call(addonOf((inputs.hidden ?? inputs.studentHidden)!)));
  const tensors: LossResults = Object.fromEntries(
    Object.entries(natives).map(([name, native]) => [name, fromNativeTensor(native)]),
  );
  if (tensors.gradHidden !== undefined) tensors.gradHead ??= inputs.gradHead;
  return tensors;
}

/** A copy without undefined fields. */
export function present<T extends object>(values: T): { [name in keyof T]: Exclude<T[name], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as never;
}
