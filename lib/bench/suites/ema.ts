/** The moving average (EMA) over all parameters of a model, with the paper's tau. */

import { ops, type Tensor } from "../../ops/index.ts";
import { spreadTensor } from "../inputs.ts";
import { countElements, type ModelName, modelShapes } from "../model-shapes.ts";
import type { Case, CaseOptions, Job, Subject, Suite } from "../suite.ts";

type Parameters = {
  shapes: number[][];
  online: "float32" | "bfloat16";
  /** Whether the same call also writes a bfloat16 copy of the target. */
  shadow: boolean;
  tau: number;
};

export const ema: Suite = {
  name: "ema",
  summary: "moving average of a model's parameters, float32 target",

  cases({ device, quick }: CaseOptions): Case[] {
    const model: ModelName = device === "cpu" ? "SmolLM2-135M" : "Qwen2.5-7B";
    const shapes = quick ? [[512, 300], [300]] : modelShapes(model);
    const elements = countElements(shapes);
    const size = quick ? `${elements} elements` : `${model}'s ${(elements / 1e6).toFixed(0)} M parameters`;
    return (["bfloat16", "float32"] as const).map((online) => {
      const shadow = online === "bfloat16";
      const parameters: Parameters = { shapes, online, shadow, tau: 0.005 };
      // Read and write the target, read the online parameters, write the copy.
      const bytes = elements * (8 + (online === "float32" ? 4 : 2) + (shadow ? 2 : 0));
      return {
        id: `${online}-${quick ? "quick" : model}`,
        title: `${size} · float32 ← ${online}${shadow ? ", with a bfloat16 copy" : ""}`,
        parameters: { ...parameters, bytes },
        timing: { warmup: 2, calls: quick ? 2 : 10, seconds: quick ? 0 : 1 },
        work: { amount: bytes, unit: "GB/s" as const },
        tolerance: 1e-4,
        rows: [
          { name: "nlac", role: "ours", implementation: "ema", resultBytes: 0 },
          {
            ...{ name: "torch _foreach_lerp_", role: "peer", implementation: "foreach-lerp" },
            ...{ script: "ema.py", resultBytes: 0 },
          },
          {
            ...{ name: "copying as many bytes", role: "limit", implementation: "copy" },
            ...{ script: "limits.py", resultBytes: 0 },
          },
        ],
      };
    });
  },

  prepare({ parameters, device }: Job): Subject {
    const { shapes, online, shadow: shadowed, tau } = parameters as Parameters;
    const target = shapes.map((shape) => spreadTensor(1, shape, 1, "float32", device));
    const source = shapes.map((shape) => spreadTensor(2, shape, 1, online, device));
    const shadow = shadowed
      ? shapes.map((shape) => spreadTensor(1, shape, 1, "bfloat16", device))
      : undefined;
    const smallest = smallestOf(target);
    return {
      call: () => {
        ops.ema(target, source, tau, { shadow });
        if (device !== "cpu") smallest.toArray(); // waits for the device
      },
      check: () => mean(target[1]!),
    };
  },
};

/** The smallest tensor, which is the fastest to read. */
export function smallestOf(tensors: readonly Tensor[]): Tensor {
  const elements = (tensor: Tensor) => countElements([tensor.shape]);
  return tensors.reduce((least, tensor) => (elements(tensor) < elements(least) ? tensor : least));
}

export function mean(tensor: Tensor): number {
  const values = tensor.toArray() as Float32Array;
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
