/**
 * The core's losses, AdamW and moving average without a model: native tensors and the operations on them,
 * synchronous. For tests, benchmarks, and training loops of one's own.
 */

import { NlacError } from "../base/errors.ts";
import {
  checkBoolean,
  checkChoice,
  checkInteger,
  checkKeys,
  checkNumber,
  checkSeed,
  shown,
} from "../base/validation.ts";
import type {
  Addon,
  NativeLossOptions,
  NativeLossTensors,
  NativeTensor,
  NativeTokenLossOptions,
} from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";
import {
  type AdamWOptions,
  checkAdamWOptions,
  checkDivergence,
  checkSupport,
  type Divergence,
  type StepResult,
  type Support,
} from "./options.ts";

export type DType = "float32" | "float64" | "bfloat16" | "int64" | "int32";
export type TensorData = Float32Array | Float64Array | BigInt64Array | Int32Array;

export interface TensorOptions {
  /** Default: the array's own type. A Float32Array may become "bfloat16", rounded to nearest. */
  dtype?: DType | undefined;
  /** "cpu", "cuda" or "cuda:N". Default "cpu". */
  device?: string | undefined;
}

const dtypes = ["float32", "float64", "bfloat16", "int64", "int32"] as const;

/** For learner.ts, which takes and gives tensors too; not part of the public API. */
export let nativeOf: (tensor: Tensor) => NativeTensor;
export let fromNativeTensor: (native: NativeTensor) => Tensor;

/** A native tensor behind a handle. `dispose` it: garbage collection is only the backup. */
export class Tensor implements Disposable {
  readonly #native: NativeTensor;

  static {
    nativeOf = (tensor) => tensor.#native;
    fromNativeTensor = (native) => new Tensor(native);
  }

  private constructor(native: NativeTensor) {
    this.#native = native;
  }

  /**
   * Copies an array.
   *
   * @param data row-major elements
   * @param shape sizes; [] is a scalar of one element
   * @throws NlacError ERR_SHAPE if the sizes do not multiply to the array's length, ERR_VALUE, ERR_DEVICE
   */
  static from(data: TensorData, shape: readonly number[], options: TensorOptions = {}): Tensor {
    const own = elementType(data);
    const dtype = checkChoice(options.dtype ?? own, "dtype", dtypes);
    const device = options.device ?? "cpu";
    let count = 1;
    for (const [i, size] of shape.entries()) {
      if (!Number.isSafeInteger(size) || size < 0) {
        throw new NlacError(
          "ERR_SHAPE",
          `shape[${i}] must be an integer of at least 0; it is ${shown(size)}.`,
        );
      }
      count *= size;
    }
    if (count !== data.length) {
      throw new NlacError(
        "ERR_SHAPE",
        `The shape [${shape}] takes ${count} elements, the array has ${data.length}.`,
      );
    }
    return new Tensor(callNative(() => loadAddon({ device }).tensorFrom(data, [...shape], dtype, device)));
  }

  get shape(): readonly number[] {
    return callNative(() => this.#native.shape);
  }

  get dtype(): DType {
    return callNative(() => this.#native.dtype as DType);
  }

  get device(): string {
    return callNative(() => this.#native.device);
  }

  /** A copy of the elements, row-major; bfloat16 as a Float32Array. Throws ERR_DISPOSED. */
  toArray(): TensorData {
    return callNative(() => this.#native.toArray());
  }

  /** Frees the memory. May be called again. */
  dispose(): void {
    this.#native.dispose();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

/** Results by row; 0 in every one where the weight is 0. Real results are f32, or f64 for f64 inputs. */
export interface Losses {
  /** [rows] real, unweighted, nats. */
  losses: Tensor;
}

/** The gradients of Σ rowWeights·losses. */
export interface LossGradients {
  /** [rows, H] of the (student's) hidden type. */
  gradHidden: Tensor;
  /** [V, H] f32, or f64 for f64 inputs. What was given as `gradHead`, if it was. */
  gradHead: Tensor;
}

export interface LossTensors extends Losses, LossGradients {}

export interface TokenLogProbs {
  /** [rows] real: log q(target), q = softmax(logits / temperature). */
  logProbs: Tensor;
  /** [rows] real: H(q) in nats; with `withEntropies` only. */
  entropies?: Tensor;
}

export interface SurrogateDetails {
  /** [rows] real: exp(logProbs - oldLogProbs). */
  ratios: Tensor;
  /** [rows] i32: 1 where the upper bound holds the loss, -1 where the lower one does, else 0. */
  clipped: Tensor;
}

export interface LossOptions {
  /** Divides the logits before every softmax. Default 1. */
  temperature?: number | undefined;
  /** Default true; false leaves the gradients out, and their products with them. */
  withGradient?: boolean | undefined;
  /**
   * [V, H] f32 (f64 for f64 inputs): the gradient of the matrix is added into it. Default: a new tensor of zeros.
   * If the call throws for anything but its arguments, what it holds is undefined.
   */
  gradHead?: Tensor | undefined;
  /**
   * Bytes for logits and their gradient, whatever the number of rows. More is faster where V·H is large. Default: 0,
   * which is 272 MiB on CUDA, and on the CPU 76 MiB with a teacher and 56 MiB without one. There is always room for 32 rows of logits.
   */
  workspaceBytes?: number | undefined;
}

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

interface TargetInputs extends LossOptions {
  /** [rows, H] f32, bf16 or f64. */
  hidden: Tensor;
  /** [V, H]; logits are hidden · headᵀ. */
  head: Tensor;
  /** [rows] i64 in [0, V). */
  targets: Tensor;
  /** Also gives the entropies. Default false. */
  withEntropies?: boolean | undefined;
}

interface TokenLossInputs extends TargetInputs {
  /** [rows] f32. A row of weight 0 costs nothing, and its other inputs are not looked at. */
  rowWeights: Tensor;
  /** Adds zLoss·(log Σ exp(logits / temperature))², at least 0. Default 0. */
  zLoss?: number | undefined;
  /** Subtracts entropyCoefficient·H(q). Default 0. */
  entropyCoefficient?: number | undefined;
}

export interface LinearTokenNllInputs extends TokenLossInputs {}

export interface LinearTokenLogProbsInputs extends TargetInputs {
  /** [rows] f32; what is not 0 counts as given, and multiplies the gradients. Default: 1 everywhere. */
  rowWeights?: Tensor | undefined;
  /** [rows] f32: the gradient of a loss at each log probability. Default: none, and no gradients. */
  gradLogProbs?: Tensor | undefined;
}

export interface LinearTokenSurrogateInputs extends TokenLossInputs {
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

export interface EmaOptions {
  /** Of the targets' shapes: get the targets, rounded to their own type. Default: none. */
  shadow?: readonly Tensor[] | undefined;
  /** With `step`, determines how a bfloat16 target is rounded. Default 0. */
  seed?: number | bigint | undefined;
  /** Must differ from call to call. Default: the number of calls in this process. */
  step?: number | bigint | undefined;
}

export interface AdamWInputs extends AdamWOptions {
  /** f32 or bf16, in place. Only those of two dimensions and more decay. */
  parameters: readonly Tensor[];
  /** f32, of the parameters' shapes, as are all other lists. 0 afterwards. */
  gradients: readonly Tensor[];
  /** f32, the first moments, in place: 0 before the first step. */
  m: readonly Tensor[];
  /** f32, the second moments, in place: 0 before the first step. */
  v: readonly Tensor[];
  /** f32, what is stepped; `parameters` get it rounded. A bf16 parameter needs one. Default: the parameters. */
  masters?: readonly Tensor[] | undefined;
  /** The number of the step, from 1: how far the moments have come. A step that was skipped does not count. */
  step: number;
  /**
   * A moving average to take along in the same pass: `ema(target, masters, targetRate, { shadow })`, with targets in
   * f32. Not when the step is skipped.
   */
  ema?: { target: readonly Tensor[]; targetRate: number; shadow?: readonly Tensor[] | undefined } | undefined;
}

let emaCalls = 0;

const optionNames = ["temperature", "withGradient", "gradHead", "workspaceBytes"];
const targetNames = ["hidden", "head", "targets", "withEntropies", ...optionNames];
const tokenLossNames = ["rowWeights", "zLoss", "entropyCoefficient", ...targetNames];

/**
 * A divergence of softmax(student logits / T) from softmax(teacher logits / T) per row, fused with both vocabulary
 * matrices: by default KL(teacher ‖ student). The gradient reaches the student's side only.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_DEVICE for tensors on different devices, ERR_DISPOSED
 */
function linearTokenKl(inputs: LinearTokenKlInputs & { withGradient: false }): Losses;
function linearTokenKl(inputs: LinearTokenKlInputs): LossTensors;
function linearTokenKl(inputs: LinearTokenKlInputs): Losses & Partial<LossGradients> {
  const { support = "full", divergence = "forwardKl", targets } = inputs;
  checkKeys(
    inputs,
    "linearTokenKl",
    [
      ...["studentHidden", "studentHead", "teacherHidden", "teacherHead", "rowWeights", "targets"],
      ...["divergence", "support", ...optionNames],
    ],
    "ERR_VALUE",
  );
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
 * -log q(target) per row, q = softmax(logits / T), fused with the vocabulary matrix; with `zLoss` and
 * `entropyCoefficient` also their parts. There is no label smoothing.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary, ERR_DEVICE,
 *   ERR_DISPOSED
 */
function linearTokenNll(inputs: LinearTokenNllInputs & { withGradient: false }): Losses & TokenLogProbs;
function linearTokenNll(inputs: LinearTokenNllInputs): LossTensors & TokenLogProbs;
function linearTokenNll(inputs: LinearTokenNllInputs): Losses & TokenLogProbs & Partial<LossGradients> {
  checkKeys(inputs, "linearTokenNll", tokenLossNames, "ERR_VALUE");
  checkTargetInputs(inputs);
  const { losses, logProbs, entropies, gradHidden, gradHead } = callLoss(inputs, (addon) =>
    addon.linearTokenNll(tokenLossOptions(inputs, inputs.rowWeights)),
  );
  return { losses: losses!, logProbs: logProbs!, ...present({ entropies, gradHidden, gradHead }) };
}

/**
 * log q(target) per row, q = softmax(logits / T), fused with the vocabulary matrix. With `gradLogProbs`, the gradient
 * of any loss at them, also that loss's gradients: compute the log probabilities, the loss from them, and call again.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary, ERR_DEVICE,
 *   ERR_DISPOSED
 */
function linearTokenLogProbs(
  inputs: LinearTokenLogProbsInputs & { gradLogProbs: Tensor },
): TokenLogProbs & LossGradients;
function linearTokenLogProbs(inputs: LinearTokenLogProbsInputs): TokenLogProbs;
function linearTokenLogProbs(inputs: LinearTokenLogProbsInputs): TokenLogProbs & Partial<LossGradients> {
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
 * r = exp(log q(target) - oldLogProbs), A = advantages, d = referenceLogProbs - log q(target); with `zLoss` and
 * `entropyCoefficient` also their parts. Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7;
 * the KL's estimate from Shao et al., "DeepSeekMath", 2024, equation 4. A ratio beyond float32 gives a loss that is not
 * finite.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary, ERR_DEVICE,
 *   ERR_DISPOSED
 */
function linearTokenSurrogate(
  inputs: LinearTokenSurrogateInputs & { withGradient: false },
): Losses & TokenLogProbs & SurrogateDetails;
function linearTokenSurrogate(
  inputs: LinearTokenSurrogateInputs,
): LossTensors & TokenLogProbs & SurrogateDetails;
function linearTokenSurrogate(
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

/**
 * target ← τ·online + (1 - τ)·target, in place. With τ = 0.005 the change is below half a bfloat16 ulp:
 * such targets are rounded stochastically, so that they move on average.
 *
 * One pass over the memory of all of them, whatever mix of float32 and bfloat16 they are.
 *
 * @param target, online lists of tensors of equal shapes, on one device: float32, bfloat16 or float64
 * @param targetRate τ, in [0, 1]
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_DEVICE, ERR_DISPOSED
 */
function ema(
  target: readonly Tensor[],
  online: readonly Tensor[],
  targetRate: number,
  options: EmaOptions = {},
): void {
  checkNumber(targetRate, "targetRate", 0, 1);
  checkKeys(options, "ema", ["shadow", "seed", "step"], "ERR_VALUE");
  const seed = checkSeed(options.seed ?? 0, "seed");
  const step = checkSeed(options.step ?? emaCalls, "step");
  const targets = nativesOf(target, "target", target.length);
  const onlines = nativesOf(online, "online", target.length);
  const shadows = nativesOf(options.shadow ?? [], "shadow", options.shadow === undefined ? 0 : target.length);
  if (target.length === 0) return;
  callNative(() => addonOf(target[0]!).ema(targets, onlines, shadows, targetRate, seed, step));
  emaCalls++;
}

/**
 * One AdamW step (Loshchilov and Hutter, 2019), in place and fused: one pass reads the gradients for their global
 * norm, one moves masters, moments and parameters, zeroes the gradients and takes `ema` along. Gradients whose norm
 * is above `maxGradNorm` are scaled down to it. Where one is not finite nothing but the gradients is changed.
 *
 * @returns the norm before clipping, and whether the step was skipped because it is not finite
 * @throws NlacError ERR_SHAPE, also for tensors of another type, ERR_VALUE, ERR_DEVICE, ERR_DISPOSED
 */
function adamw(inputs: AdamWInputs): StepResult {
  const names = ["parameters", "gradients", "m", "v", "masters", "step", "ema"];
  const options = ["learningRate", "betas", "epsilon", "weightDecay", "maxGradNorm"];
  checkKeys(inputs, "adamw", [...names, ...options], "ERR_VALUE");
  const { parameters, masters = parameters, step, ema: average } = inputs;
  if (average !== undefined) checkKeys(average, "ema", ["target", "targetRate", "shadow"], "ERR_VALUE");
  const count = parameters.length;
  const native = {
    ...checkAdamWOptions(inputs),
    parameters: nativesOf(parameters, "parameters", count),
    masters: nativesOf(masters, "masters", count),
    gradients: nativesOf(inputs.gradients, "gradients", count),
    m: nativesOf(inputs.m, "m", count),
    v: nativesOf(inputs.v, "v", count),
    step: checkInteger(step, "step", 1),
    target: average === undefined ? [] : nativesOf(average.target, "ema.target", count),
    shadow: average?.shadow === undefined ? [] : nativesOf(average.shadow, "ema.shadow", count),
    tau: average === undefined ? 0 : checkNumber(average.targetRate, "ema.targetRate", 0, 1),
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

export const ops = { linearTokenKl, linearTokenNll, linearTokenLogProbs, linearTokenSurrogate, ema, adamw };

// --- helpers -------------------------------------------------------------------------------------------------

function elementType(data: TensorData): DType {
  if (data instanceof Float32Array) return "float32";
  if (data instanceof Float64Array) return "float64";
  if (data instanceof BigInt64Array) return "int64";
  if (data instanceof Int32Array) return "int32";
  throw new NlacError(
    "ERR_VALUE",
    `data must be a Float32Array, Float64Array, BigInt64Array or Int32Array; it is ${shown(data)}.`,
  );
}

/** The addon that made `tensor`: one a process, found again by its device. */
function addonOf(tensor: Tensor) {
  return loadAddon({ device: tensor.device });
}

/** A list's tensors as the addon has them. Throws ERR_SHAPE unless there are `count`. */
function nativesOf(list: readonly Tensor[], where: string, count: number): NativeTensor[] {
  if (!Array.isArray(list)) {
    throw new NlacError("ERR_VALUE", `${where} must be a list of tensors; it is ${shown(list)}.`);
  }
  if (list.length !== count) {
    throw new NlacError("ERR_SHAPE", `${where} must have ${count} tensors; it has ${list.length}.`);
  }
  return list.map((tensor, i) => nativeOf(checkTensor(tensor, `${where}[${i}]`)));
}

function checkTensor(value: unknown, where: string): Tensor {
  if (value instanceof Tensor) return value;
  throw new NlacError("ERR_VALUE", `${where} must be a Tensor; it is ${shown(value)}.`);
}

/** Throws ERR_SHAPE unless the named tensor's sizes are `sizes`; a name stands for any size. */
function checkShape<Name extends string>(
  inputs: { readonly [name in Name]?: Tensor | undefined },
  name: Name,
  sizes: readonly (number | string)[],
): readonly number[] {
  const { shape } = checkTensor(inputs[name], name);
  if (
    shape.length === sizes.length &&
    sizes.every((size, i) => typeof size === "string" || size === shape[i])
  ) {
    return shape;
  }
  throw new NlacError("ERR_SHAPE", `${name} must be [${sizes.join(", ")}]; it is [${shape.join(", ")}].`);
}

/** The number of rows. */
function checkTargetInputs(inputs: TargetInputs & { rowWeights?: Tensor | undefined }): number {
  const [rows] = checkShape(inputs, "hidden", ["rows", "H"]);
  checkShape(inputs, "head", ["V", inputs.hidden.shape[1]!]);
  checkShape(inputs, "targets", [rows!]);
  if (inputs.rowWeights !== undefined) checkShape(inputs, "rowWeights", [rows!]);
  return rows!;
}

function lossOptions(inputs: LossOptions, head: Tensor): NativeLossOptions {
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
  inputs: TargetInputs & Pick<TokenLossInputs, "zLoss" | "entropyCoefficient">,
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

/** What a loss gives, as tensors; the caller's own `gradHead` with a gradient among them. */
type LossResults = { [name in keyof NativeLossTensors]?: Tensor };

/** Calls a loss of the addon. */
function callLoss(
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

/** Without what is undefined. */
function present<T extends object>(values: T): { [name in keyof T]: Exclude<T[name], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as never;
}
