/**
 * `nlac/ops`: native tensors, and the core's losses, AdamW, EMA and prioritized sampling without a
 * model, for tests, benchmarks and custom training loops. All calls are synchronous.
 */

import { linearTokenKl, linearTokenLogProbs, linearTokenNll, linearTokenSurrogate } from "./losses.ts";
import { adamw, ema } from "./optimizer.ts";
import { linearTokenPreference } from "./preference.ts";

// Tensors are Disposable, a type that a project's own target may lack.
/// <reference lib="esnext.disposable" preserve="true" />

/** The operations of the core. All are synchronous. */
export const ops = {
  linearTokenKl,
  linearTokenNll,
  linearTokenLogProbs,
  linearTokenSurrogate,
  linearTokenPreference,
  ema,
  adamw,
};

export type {
  LinearTokenKlInputs,
  LinearTokenLogProbsInputs,
  LinearTokenNllInputs,
  LinearTokenSurrogateInputs,
  Losses,
  LossGradients,
  LossOptions,
  LossTensors,
  SurrogateDetails,
  TargetInputs,
  TokenLogProbs,
} from "./losses.ts";
export type { AdamWInputs, EmaOptions } from "./optimizer.ts";
export type {
  AdamWOptions,
  Divergence,
  PreferenceLoss,
  PreferenceLossOptions,
  StepResult,
  Support,
} from "./options.ts";
export type { LinearTokenPreferenceInputs, PreferenceTensors } from "./preference.ts";
export { type Draws, PrioritizedSampler, type SampleOptions, type SamplerOptions } from "./sampler.ts";
export { type DType, Tensor, type TensorData, type TensorOptions } from "./tensor.ts";
