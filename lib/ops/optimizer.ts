/** AdamW and the EMA without a model: fused, in place, synchronous. */

import { NlacError } from "../base/errors.ts";
import { checkInteger, checkKeys, checkNumber, checkSeed } from "../base/validation.ts";
import { callNative } from "../native/call-native.ts";
import { type AdamWOptions, adamWOptionNames, checkAdamWOptions, type StepResult } from "./options.ts";
import { addonOf, nativesOf, type Tensor } from "./tensor.ts";

/** Options of `ops.ema`. */
export interface EmaOptions {
  /**
   * Tensors of the targets' shapes, which get the targets rounded to their own type. Default: none.
   */
  shadow?: readonly Tensor[] | undefined;
  /** With `step`, determines how a bfloat16 target is rounded. Default 0. */
  seed?: number | bigint | undefined;
  /** Must differ from call to call. Default: the number of calls in this process. */
  step?: number | bigint | undefined;
}

/** Inputs of `ops.adamw`, which changes the tensors in place. */
export interface AdamWInputs extends AdamWOptions {
  /** f32 or bf16, in place. Weight decay applies to tensors of two or more dimensions only. */
  parameters: readonly Tensor[];
  /** f32, of the parameters' shapes, as are all other lists. 0 afterwards. */
  gradients: readonly Tensor[];
  /** f32, the first moments, in place: 0 before the first step. */
  m: readonly Tensor[];
  /** f32, the second moments, in place: 0 before the first step. */
  v: readonly Tensor[];
  /**
   * f32, the values that the step changes; `parameters` get them rounded. Required for a bf16
   * parameter. Default: the parameters.
   */
  masters?: readonly Tensor[] | undefined;
  /**
   * Number of the step, from 1, for the bias correction of the moments. Skipped steps do not count.
   */
  step: number;
  /**
   * A moving average that the same pass updates: `ema(target, masters, targetRate, { shadow })`,
   * with targets in f32. Not updated if the step is skipped.
   */
  ema?: { target: readonly Tensor[]; targetRate: number; shadow?: readonly Tensor[] | undefined } | undefined;
}

let emaCalls = 0;

/**
 * target ← τ·online + (1 - τ)·target, in place. With τ = 0.005 the change is below half a bfloat16
 * ulp: such targets are rounded stochastically, so that they move on average.
 *
 * One pass over the memory of all tensors; float32 and bfloat16 may be mixed. A tensor may be its own
 * online tensor or shadow. Otherwise no tensor that changes may be given twice (ERR_VALUE).
 *
 * @param target, online lists of tensors of equal shapes, on one device: float32, bfloat16 or
 *   float64
 * @param targetRate τ, in [0, 1]
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_DEVICE, ERR_DISPOSED
 */
export function ema(
  target: readonly Tensor[],
  online: readonly Tensor[],
  targetRate: number,
  options: EmaOptions = {},
): void {
  checkNumber(targetRate, "targetRate", 0, 1);
  checkKeys(options, "ema", ["shadow", "seed", "step"], "ERR_VALUE");
  const seed = checkSeed(options.seed ?? 0, "seed");
  const step = checkSeed(options.step ?? emaCalls, "step");
  const targets = nativesOf(target, "target");
  const count = targets.length;
  const onlines = nativesOf(online, "online", count);
  const shadows = options.shadow === undefined ? [] : nativesOf(options.shadow, "shadow", count);
  if (count === 0) return;
  callNative(() => addonOf(target[0]!).ema(targets, onlines, shadows, targetRate, seed, step));
  emaCalls++;
}

/**
 * One AdamW step (Loshchilov and Hutter, 2019), in place and fused: one pass reads the gradients
 * for their global norm, one updates masters, moments, parameters and `ema`, and zeroes the
 * gradients. Gradients whose norm exceeds `maxGradNorm` are scaled down to it. If a gradient is not
 * finite, the step is skipped and only the gradients are zeroed. No tensor may be given twice
 * (ERR_VALUE), except masters as parameters and targets as shadow.
 *
 * @returns the norm before clipping, and whether the step was skipped
 * @throws NlacError ERR_SHAPE, also for tensors of another type, ERR_VALUE, ERR_DEVICE,
 *   ERR_DISPOSED
 */
export function adamw(inputs: AdamWInputs): StepResult {
  const names = ["parameters", "gradients", "m", "v", "masters", "step", "ema"];
  checkKeys(inputs, "adamw", [...names, ...adamWOptionNames], "ERR_VALUE");
  const { parameters, masters = parameters, step, ema: average } = inputs;
  if (average !== undefined) checkKeys(average, "ema", ["target", "targetRate", "shadow"], "ERR_VALUE");
  const natives = nativesOf(parameters, "parameters");
  const count = natives.length;
  const native = {
    ...checkAdamWOptions(inputs),
    parameters: natives,
    masters: nativesOf(masters, "masters", count),
    gradients: nativesOf(inputs.gradients, "gradients", count),
    m: nativesOf(inputs.m, "m", count),
    v: nativesOf(inputs.v, "v", count),
    step: checkInteger(step, "step", 1),
    target: average === undefined ? [] : nativesOf(average.target, "ema.target", count),
    shadow: average?.shadow === undefined ? [] : nativesOf(average.shadow, "ema.shadow", count),
    targetRate: average === undefined ? 0 : checkNumber(average.targetRate, "ema.targetRate", 0, 1),
  };
  if (count === 0) return { gradNorm: 0, skipped: false };
  for (const [i, master] of masters.entries()) {
    if (master.dtype === "float32") continue;
    throw new NlacError(
      "ERR_SHAPE",
      inputs.masters === undefined
        ? `parameters[${i}] is ${master.dtype}: it needs a float32 tensor in masters.`
        : `masters[${i}] must be float32; it is ${master.dtype}.`,
    );
  }
  return callNative(() => addonOf(parameters[0]!).adamw(native));
}
