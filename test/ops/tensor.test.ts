import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { ops, Tensor } from "../../lib/ops/index.ts";
import { array, codeOf, f32 } from "../support/tensors.ts";

describe("Tensor", () => {
  it("keeps every type's elements", () => {
    const cases = [
      Float32Array.of(1.5, -2, 3e38),
      Float64Array.of(Math.PI, -0, 1e300),
      BigInt64Array.of(1n, -(2n ** 62n), 0n),
      Int32Array.of(1, -(2 ** 31), 7),
    ];
    for (const data of cases) {
      using tensor = Tensor.from(data, [3, 1]);
      expect(tensor.toArray()).toEqual(data);
      expect(tensor.shape).toEqual([3, 1]);
      expect(tensor.device).toBe("cpu");
    }
    expect(Tensor.from(new Float32Array(0), [0, 4]).toArray()).toEqual(new Float32Array(0));
    expect(Tensor.from(Float32Array.of(4), []).shape).toEqual([]);
    // A view: its offset counts.
    expect(Tensor.from(new Float32Array([9, 1, 2]).subarray(1), [2]).toArray()).toEqual(
      Float32Array.of(1, 2),
    );
  });

  it("rounds to bfloat16, ties to even", () => {
    using tensor = Tensor.from(Float32Array.of(1, 1.00390625, 1.01171875, 3.14), [4], {
      dtype: "bfloat16",
    });
    expect(tensor.dtype).toBe("bfloat16");
    expect(array(tensor)).toEqual([1, 1, 1.015625, 3.140625]);
  });

  it("copies: later changes of the array do not show", () => {
    const data = Float32Array.of(1, 2);
    const tensor = f32(data, [2]);
    data[0] = 9;
    expect(array(tensor)).toEqual([1, 2]);
  });

  it("reads memory that threads share", () => {
    const memory = new SharedArrayBuffer(16);
    new Float32Array(memory).set([0, 1, 2, 3]);
    expect(array(f32(new Float32Array(memory, 4, 2), [2]))).toEqual([1, 2]);
  });

  it("gives back any float32 bits and any shape", () => {
    fc.assert(
      fc.property(fc.float32Array({ maxLength: 40, noNaN: true }), (data) => {
        expect(Tensor.from(data, [data.length]).toArray()).toEqual(data);
      }),
    );
  });

  it("makes the garbage collector run, so that unreferenced tensors do not accumulate", async () => {
    const data = new Float32Array(2_000_000);
    const before = process.memoryUsage.rss();
    let most = 0;
    for (let i = 0; i < 250; i++) {
      f32(data, [data.length]);
      await new Promise(setImmediate);
      most = Math.max(most, process.memoryUsage.rss() - before);
    }
    expect(most).toBeLessThan(1e9); // of 2e9 bytes in all
  });

  it("is disposed once and for all", () => {
    const tensor = f32(Float32Array.of(1), [1]);
    tensor.dispose();
    tensor.dispose();
    expect(codeOf(() => tensor.toArray())).toBe("ERR_DISPOSED");
    expect(codeOf(() => tensor.shape)).toBe("ERR_DISPOSED");
    expect(codeOf(() => ops.ema([tensor], [tensor], 0.5))).toBe("ERR_DISPOSED");
  });

  it("rejects mismatched arguments", () => {
    expect(codeOf(() => f32(Float32Array.of(1, 2), [3]))).toBe("ERR_SHAPE");
    expect(codeOf(() => f32(Float32Array.of(1, 2), [-2]))).toBe("ERR_SHAPE");
    expect(codeOf(() => f32(Float32Array.of(1, 2), [0.5, 4]))).toBe("ERR_SHAPE");
    expect(codeOf(() => f32(new Float32Array(0), [0, 2 ** 40, 2 ** 40]))).toBe("ERR_SHAPE");
    expect(codeOf(() => Tensor.from([1, 2] as never, [2]))).toBe("ERR_VALUE");
    expect(codeOf(() => Tensor.from(new Uint8Array(2) as never, [2]))).toBe("ERR_VALUE");
    expect(codeOf(() => Tensor.from(Float32Array.of(1), [1], { dtype: "float16" as never }))).toBe(
      "ERR_VALUE",
    );
    expect(codeOf(() => Tensor.from(Float32Array.of(1), [1], { device: "cuda:99" }))).toBe("ERR_DEVICE");
  });
});
