/**
 * The core's losses and moving average without a model: native tensors and the operations on them, synchronous.
 * For tests, benchmarks, and training loops of one's own.
 */

import { callNative, checkChoice, checkNumber, checkSeed, checkSupport, shown } from "./checks.ts";
import { NlacError } from "./errors.ts";
import type { Support } from "./model.ts";
import type { NativeTensor } from "./native/addon.ts";
import { loadAddon } from "./native/load.ts";

export type DType = "float32" | "float64" | "bfloat16" | "int64" | "int32";
export type TensorData = Float32Array | Float64Array | BigInt64Array | Int32Array;

export interface TensorOptions {
  /** Default: the array's own type. A Float32Array may become "bfloat16", rounded to nearest. */
  dtype?: DType | undefined;
  /** "cpu", "cuda" or "cuda:N". Default "cpu". */
  device?: string | undefined;
}

const dtypes = ["float32", "float64", "bfloat16", "int64", "int32"] as const;

let nativeOf: (tensor: Tensor) => NativeTensor;
let fromNativeTensor: (native: NativeTensor) => Tensor;

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

export interface LossTensors {
  /** [rows] f32, unweighted, nats; 0 where the weight is 0. */
  losses: Tensor;
  /** [rows, H] of the (student's) hidden type: the gradient of Σ weights·losses. */
  gradHidden: Tensor;
  /** [V, H] f32, or f64 for f64 matrices. */
  gradWeight: Tensor;
}

export interface LinearTokenKlInputs {
  /** [rows, H] f32, bf16 or f64. */
  studentHidden: Tensor;
  /** [V, H]; logits are hidden · weightᵀ. */
  studentWeight: Tensor;
  /** [rows, H'], H' may differ from H. */
  teacherHidden: Tensor;
  /** [V, H']. */
  teacherWeight: Tensor;
  /** [rows] f32. */
  weights: Tensor;
  /** Of both softmaxes. Default 1. */
  temperature?: number | undefined;
  /** Default "full". */
  support?: Support | undefined;
  /** [rows] i64, the sampled tokens; for support "sampled" only. */
  targets?: Tensor | undefined;
}

export interface LinearTokenNllInputs {
  /** [rows, H] f32, bf16 or f64. */
  hidden: Tensor;
  /** [V, H]; logits are hidden · weightᵀ. */
  weight: Tensor;
  /** [rows] i64 in [0, V). */
  targets: Tensor;
  /** [rows] f32. */
  weights: Tensor;
  /** Default 1. */
  temperature?: number | undefined;
}

export interface EmaOptions {
  /** With `step`, determines how a bfloat16 target is rounded. Default 0. */
  seed?: number | bigint | undefined;
  /** Must differ from call to call. Default: the number of calls in this process. */
  step?: number | bigint | undefined;
}

let emaCalls = 0;

/**
 * KL(softmax(teacher logits / T) ‖ softmax(student logits / T)) per row, fused with both vocabulary matrices.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_DEVICE for tensors on different devices, ERR_DISPOSED
 */
function linearTokenKl(inputs: LinearTokenKlInputs): LossTensors {
  const { temperature = 1, support = "full", targets } = inputs;
  const [rows] = checkShape(inputs, "studentHidden", ["rows", "H"]);
  checkShape(inputs, "studentWeight", ["V", inputs.studentHidden.shape[1]!]);
  checkShape(inputs, "teacherHidden", [rows!, "H'"]);
  checkShape(inputs, "teacherWeight", [inputs.studentWeight.shape[0]!, inputs.teacherHidden.shape[1]!]);
  checkShape(inputs, "weights", [rows!]);
  if (targets !== undefined) checkShape(inputs, "targets", [rows!]);
  checkNumber(temperature, "temperature", Number.MIN_VALUE);
  const chosen = checkSupport(support);
  if (chosen.kind === "sampled" && targets === undefined) {
    throw new NlacError("ERR_VALUE", 'The support "sampled" needs targets.');
  }
  return toLossTensors(() =>
    addonOf(inputs.studentHidden).linearTokenKl(
      nativeOf(inputs.studentHidden),
      nativeOf(inputs.studentWeight),
      nativeOf(inputs.teacherHidden),
      nativeOf(inputs.teacherWeight),
      nativeOf(inputs.weights),
      temperature,
      chosen,
      targets && nativeOf(targets),
    ),
  );
}

/**
 * -log softmax(logits / T)[target] per row, fused with the vocabulary matrix.
 *
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_INDEX for a target outside the vocabulary, ERR_DEVICE,
 *   ERR_DISPOSED
 */
function linearTokenNll(inputs: LinearTokenNllInputs): LossTensors {
  const { temperature = 1 } = inputs;
  const [rows] = checkShape(inputs, "hidden", ["rows", "H"]);
  checkShape(inputs, "weight", ["V", inputs.hidden.shape[1]!]);
  checkShape(inputs, "targets", [rows!]);
  checkShape(inputs, "weights", [rows!]);
  checkNumber(temperature, "temperature", Number.MIN_VALUE);
  return toLossTensors(() =>
    addonOf(inputs.hidden).linearTokenNll(
      nativeOf(inputs.hidden),
      nativeOf(inputs.weight),
      nativeOf(inputs.targets),
      nativeOf(inputs.weights),
      temperature,
    ),
  );
}

/**
 * target ← tau·online + (1 - tau)·target, in place. With tau = 0.005 the change is below half a bfloat16 ulp:
 * such targets are rounded stochastically, so that they move on average.
 *
 * @param target, online lists of tensors of equal shapes
 * @param tau in [0, 1]
 * @throws NlacError ERR_SHAPE, ERR_VALUE, ERR_DEVICE, ERR_DISPOSED
 */
function ema(
  target: readonly Tensor[],
  online: readonly Tensor[],
  tau: number,
  options: EmaOptions = {},
): void {
  checkNumber(tau, "tau", 0, 1);
  const seed = checkSeed(options.seed ?? 0, "seed");
  const step = checkSeed(options.step ?? emaCalls, "step");
  if (target.length !== online.length) {
    throw new NlacError(
      "ERR_SHAPE",
      `There are ${target.length} targets for ${online.length} online tensors.`,
    );
  }
  if (target.length === 0) return;
  const natives = (list: readonly Tensor[], where: string) =>
    list.map((tensor, i) => nativeOf(checkTensor(tensor, `${where}[${i}]`)));
  const targets = natives(target, "target");
  const onlines = natives(online, "online");
  callNative(() => addonOf(target[0]!).ema(targets, onlines, tau, seed, step));
  emaCalls++;
}

export const ops = { linearTokenKl, linearTokenNll, ema };

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

function toLossTensors(
  call: () => { losses: NativeTensor; gradHidden: NativeTensor; gradWeight: NativeTensor },
): LossTensors {
  const { losses, gradHidden, gradWeight } = callNative(call);
  return {
    losses: fromNativeTensor(losses),
    gradHidden: fromNativeTensor(gradHidden),
    gradWeight: fromNativeTensor(gradWeight),
  };
}
