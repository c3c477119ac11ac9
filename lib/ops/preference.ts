/** The loss of preference pairs without a model, fused with the vocabulary matrix. */

import { NlacError } from "../base/errors.ts";
import { checkKeys } from "../base/validation.ts";
import {
  callLoss,
  type LossGradients,
  type LossOptions,
  lossOptions,
  optionNames,
  present,
} from "./losses.ts";
import { checkPreferenceLoss, type PreferenceLossOptions } from "./options.ts";
import { checkShape, nativeOf, Tensor } from "./tensor.ts";

/** Inputs of `ops.linearTokenPreference`. */
export interface LinearTokenPreferenceInputs extends LossOptions, PreferenceLossOptions {
  /**
   * [rows, H] f32, bf16 or f64: the states before the tokens of all responses, one after another.
   */
  hidden: Tensor;
  /** [V, H]; logits are hidden · headᵀ. */
  head: Tensor;
  /** [rows] i64 in [0, V): the tokens. */
  targets: Tensor;
  /**
   * [2·pairs + 1], increasing from 0 to the number of rows: response k has the rows from
   * `offsets[k]` to before `offsets[k + 1]`. Pair i consists of the responses 2i, the chosen one,
   * and 2i + 1, the rejected one.
   */
  offsets: readonly number[];
  /** [2·pairs] f32 or f64: log probabilities of the responses under the reference policy, nats. */
  referenceLogProbs: Tensor;
  /**
   * [pairs] f32 or f64, multiply the gradients. A pair of weight 0 costs nothing and has results of
   * 0. Default: 1.
   */
  pairWeights?: Tensor | undefined;
}

/** Real results are f32, or f64 for f64 inputs. */
export interface PreferenceTensors {
  /** [pairs] real, unweighted. */
  losses: Tensor;
  /** [2·pairs] real: log probabilities of the responses, summed over their tokens, nats. */
  logProbs: Tensor;
}

/**
 * The loss of preference pairs (`PreferenceLoss`), fused with the vocabulary matrix. The gradients
 * are those of Σ pairWeights·losses.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary,
 *   ERR_DEVICE, ERR_DISPOSED
 */
export function linearTokenPreference(
  inputs: LinearTokenPreferenceInputs & { withGradient: false },
): PreferenceTensors;
export function linearTokenPreference(inputs: LinearTokenPreferenceInputs): PreferenceTensors & LossGradients;
export function linearTokenPreference(
  inputs: LinearTokenPreferenceInputs,
): PreferenceTensors & Partial<LossGradients> {
  checkKeys(
    inputs,
    "linearTokenPreference",
    [
      ...["hidden", "head", "targets", "offsets", "referenceLogProbs", "pairWeights"],
      ...["beta", "loss", "labelSmoothing", ...optionNames],
    ],
    "ERR_VALUE",
  );
  const [rows] = checkShape(inputs, "hidden", ["rows", "H"]);
  checkShape(inputs, "head", ["V", inputs.hidden.shape[1]!]);
  checkShape(inputs, "targets", [rows!]);
  const offsets = checkOffsets(inputs.offsets, rows!);
  checkShape(inputs, "referenceLogProbs", [offsets.length - 1]);
  const pairs = (offsets.length - 1) / 2;
  if (inputs.pairWeights !== undefined) checkShape(inputs, "pairWeights", [pairs]);
  const ones = inputs.pairWeights ? undefined : Tensor.from(new Float32Array(pairs).fill(1), [pairs]);
  try {
    const { losses, logProbs, gradHidden, gradHead } = callLoss(inputs, (addon) =>
      addon.linearTokenPreference({
        ...lossOptions(inputs, inputs.head),
        ...checkPreferenceLoss(inputs),
        hidden: nativeOf(inputs.hidden),
        head: nativeOf(inputs.head),
        targets: nativeOf(inputs.targets),
        offsets,
        referenceLogProbs: nativeOf(inputs.referenceLogProbs),
        pairWeights: nativeOf(inputs.pairWeights ?? ones!),
      }),
    );
    return { losses: losses!, logProbs: logProbs!, ...present({ gradHidden, gradHead }) };
  } finally {
    ones?.dispose();
  }
}

/**
 * Throws ERR_SHAPE for offsets that do not divide the rows into pairs of responses that are not
 * empty.
 */
function checkOffsets(offsets: readonly number[], rows: number): Int32Array {
  const list = Array.isArray(offsets) ? (offsets as readonly number[]) : [];
  const rising = list.every((offset, k) => Number.isInteger(offset) && offset > (list[k - 1] ?? -1));
  if (list.length % 2 === 1 && list[0] === 0 && list.at(-1) === rows && rising) return Int32Array.from(list);
  throw new NlacError(
    "ERR_SHAPE",
    `offsets must be increasing integers from 0 to the number of rows (${rows}), two for each pair and one for the end.`,
  );
}
