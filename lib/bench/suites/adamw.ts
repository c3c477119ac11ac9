/**
 * An AdamW step on all parameters of a model: global norm, clipping, float32 masters and moments, a
 * bfloat16 copy of the masters, zeroed gradients. Gradients are refilled before every call,
 * untimed.
 */

import { ops, Tensor } from "../../ops/index.ts";
import { spreadTensor } from "../inputs.ts";
import { countElements, type ModelName, modelShapes } from "../model-shapes.ts";
import type { Case, CaseOptions, Job, Row, Subject, Suite } from "../suite.ts";
import { mean, smallestOf } from "./ema.ts";

type Parameters = {
  shapes: number[][];
  options: {
    learningRate: number;
    beta1: number;
    beta2: number;
    epsilon: number;
    weightDecay: number;
    maxGradNorm: number;
  };
};

/**
 * The gradient is read twice (norm and step); the rest is read and written once; so is the copy.
 */
const bytesAParameter = 5 * 4 + 4 * 4 + 2;

export const adamw: Suite = {
  name: "adamw",
  summary: "a clipped step of AdamW on a model's parameters, float32 masters, bfloat16 copy",

  cases({ device, quick }: CaseOptions): Case[] {
    const model: ModelName = device === "cpu" ? "SmolLM2-135M" : "Qwen2.5-3B";
    const shapes = quick ? [[512, 300], [300]] : modelShapes(model);
    const elements = countElements(shapes);
    const size = quick ? `${elements} elements` : `${model}'s ${(elements / 1e6).toFixed(0)} M parameters`;
    const parameters: Parameters = {
      shapes,
      options: {
        // Large, so that a different step is visible in the first call.
        ...{ learningRate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
        ...{ weightDecay: 0.01, maxGradNorm: 1 },
      },
    };
    const bytes = bytesAParameter * elements;
    const peer = (name: string, implementation: string): Row => ({
      ...{ name, implementation, role: "peer", script: "adamw.py", resultBytes: 0 },
    });
    return [
      {
        id: quick ? "quick" : model,
        title: `${size} · clipped step, float32 masters, bfloat16 copy`,
        parameters: { ...parameters, bytes },
        timing: { warmup: 2, calls: quick ? 2 : 10, seconds: quick ? 0 : 1 },
        work: { amount: bytes, unit: "GB/s" },
        tolerance: 1e-4,
        rows: [
          { name: "nlac", role: "ours", implementation: "adamw", resultBytes: 0 },
          peer("torch AdamW, fused", "fused"),
          peer("torch AdamW, foreach", "foreach"),
          {
            ...{ name: "copying as many bytes", role: "limit", implementation: "copy" },
            ...{ script: "limits.py", resultBytes: 0 },
          },
        ],
      },
    ];
  },

  prepare({ parameters: given, device }: Job): Subject {
    const { shapes, options } = given as Parameters;
    const { beta1, beta2, ...others } = options;
    const spread = (seed: number, scale: number, dtype: "float32" | "bfloat16" = "float32") =>
      shapes.map((shape) => spreadTensor(seed, shape, scale, dtype, device));
    const zeros = () =>
      shapes.map((shape) => Tensor.from(new Float32Array(countElements([shape])), shape, { device }));
    const parameters = spread(1, 1, "bfloat16");
    const [masters, gradients, source] = [spread(1, 1), zeros(), spread(2, 1e-3)];
    const [m, v] = [zeros(), zeros()];
    const smallest = smallestOf(masters);
    return {
      before: () => {
        ops.ema(gradients, source, 1);
        if (device !== "cpu") smallest.toArray(); // waits for the device
      },
      call: (number) => {
        const step = number + 1;
        ops.adamw({ parameters, masters, gradients, m, v, step, betas: [beta1, beta2], ...others });
        if (device !== "cpu") smallest.toArray();
      },
      check: () => mean(masters[1]!),
    };
  },
};
