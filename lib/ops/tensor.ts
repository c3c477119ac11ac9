/** Native tensors, and the checks that every operation on them makes. */

import { NlacError } from "../base/errors.ts";
import { checkChoice, checkKeys, shown } from "../base/validation.ts";
import type { Addon, NativeTensor } from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";

/** The type of the elements of a tensor. */
export type DType = "float32" | "float64" | "bfloat16" | "int64" | "int32";
/** Elements of a tensor in JavaScript. */
export type TensorData = Float32Array | Float64Array | BigInt64Array | Int32Array;

/** Where a tensor is stored, and in which type. */
export interface TensorOptions {
  /** Default: the array's own type. A Float32Array may become "bfloat16", rounded to nearest. */
  dtype?: DType | undefined;
  /** "cpu", "cuda" or "cuda:N". Default "cpu". */
  device?: string | undefined;
}

const dtypes = ["float32", "float64", "bfloat16", "int64", "int32"] as const;

/** For lib/ops and lib/learner; not part of the public API. */
export let nativeOf: (tensor: Tensor) => NativeTensor;
export let fromNativeTensor: (native: NativeTensor) => Tensor;

/**
 * A handle on a native tensor. Call `dispose`: garbage collection frees it only at some later time.
 */
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
   * @throws NlacError ERR_SHAPE if the sizes do not multiply to the array's length, ERR_VALUE,
   *   ERR_DEVICE
   */
  static from(data: TensorData, shape: readonly number[], options: TensorOptions = {}): Tensor {
    const own = elementType(data);
    if (!Array.isArray(shape))
      throw new NlacError("ERR_VALUE", `shape must be an array of sizes; it is ${shown(shape)}.`);
    checkKeys(options, "The options of Tensor.from", ["dtype", "device"], "ERR_VALUE");
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

/** The addon that created `tensor`. */
export function addonOf(tensor: Tensor): Addon {
  return loadAddon({ device: tensor.device });
}

/** The native tensors of a list. Throws ERR_SHAPE unless there are `count`; default: any number. */
export function nativesOf(list: readonly Tensor[], where: string, count?: number): NativeTensor[] {
  if (!Array.isArray(list)) {
    throw new NlacError("ERR_VALUE", `${where} must be a list of tensors; it is ${shown(list)}.`);
  }
  if (count !== undefined && list.length !== count) {
    throw new NlacError("ERR_SHAPE", `${where} must have ${count} tensors; it has ${list.length}.`);
  }
  return list.map((tensor, i) => nativeOf(checkTensor(tensor, `${where}[${i}]`)));
}

export function checkTensor(value: unknown, where: string): Tensor {
  if (value instanceof Tensor) return value;
  throw new NlacError("ERR_VALUE", `${where} must be a Tensor; it is ${shown(value)}.`);
}

/** Throws ERR_SHAPE unless the named tensor's sizes are `sizes`; a name stands for any size. */
export function checkShape<Name extends string>(
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
