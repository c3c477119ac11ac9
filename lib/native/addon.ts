/** The addon's surface, as native/binding implements it. Everything else reaches C++ through these types. */

import type { InstructionSet } from "../base/dtype.ts";

export type WeightSet = "online" | "target";

export interface NativeAdapterOptions {
  rank: number;
  alpha: number;
  targets: string[];
  seed: bigint; // unsigned, 64 bits
}

export interface NativeLearnerOptions {
  device: string; // "cpu", "cuda", "cuda:1"
  dtype: "float32" | "bfloat16";
  int8Generation: boolean;
  gradientCheckpointing: boolean;
  microBatchTokens: number;
  cacheBytes: number;
  heads: "none" | "value" | "q"; // of load and create
  adapter: NativeAdapterOptions | undefined;
}

export interface NativeGenerateRequest {
  tokens: Int32Array;
  maxNewTokens: number;
  temperature: number;
  topP: number;
  topK: number;
  minP: number;
  repetitionPenalty: number;
  forbidden: Int32Array;
  grammar: string; // as native/core/generate/grammar.h has it; "": none
  forced: Int32Array;
  seed: bigint; // unsigned, 64 bits
  stopTokenIds: Int32Array;
  stop: string[];
  keepHidden: boolean;
  topLogProbs: number; // 0: none
}

export interface NativeGenerateResult {
  tokens: Int32Array;
  logProbs: Float32Array;
  finishReason: "stop" | "length" | "stuck" | "cancelled";
  cachedTokens: number;
  hidden?: NativeTensor; // [new tokens, hidden], where it was to be kept
  topTokens: Int32Array; // [new tokens, request's topLogProbs]
  topLogProbs: Float32Array;
}

export interface NativeGeneration {
  done: Promise<NativeGenerateResult[]>;
  /** Stops at the next token, also before it began: unfinished results are then "cancelled". */
  cancel(): void;
}

export interface NativeScoredText {
  prompt: Int32Array;
  response: Int32Array;
  weights: Float32Array; // one for all of the response, or one a token
}

/** Every list is [response tokens], or empty where it is not needed. */
export interface NativeSurrogateText extends NativeScoredText {
  oldLogProbs: Float32Array;
  advantages: Float32Array;
  referenceLogProbs: Float32Array;
  returns: Float32Array;
  oldValues: Float32Array;
}

export interface NativeSurrogateOptions {
  temperature: number;
  clipLow: number;
  clipHigh: number;
  klCoefficient: number;
  entropyCoefficient: number;
  value: { coefficient: number; clip: number } | undefined;
  withGradient: boolean;
}

export interface NativeSurrogateResult {
  losses: Float32Array;
  logProbs: Float32Array;
  entropies: Float32Array;
  ratios: Float32Array;
  clipped: Int32Array;
  values?: Float32Array;
  valueLosses?: Float32Array;
}

export interface NativeDistilledText {
  student: Int32Array;
  teacher: Int32Array;
  response: Int32Array;
  weight: number;
  teacherHidden: NativeTensor | undefined; // [response tokens, hidden]
}

export interface NativeSoftQText extends NativeScoredText {
  rewards: Float32Array; // one a token of the response
}

export interface NativeSoftQOptions {
  temperature: number;
  discount: number;
  qCoefficient: number;
  policyCoefficient: number;
  withGradient: boolean;
}

/** Of one text, [response tokens] each. */
export interface NativeSoftQResult {
  qLosses: Float32Array;
  policyLosses: Float32Array;
  q: Float32Array;
  targets: Float32Array;
  entropies: Float32Array;
}

export interface NativeSupport {
  kind: "full" | "top_k" | "sampled";
  k: number;
}

export interface NativeDivergence {
  kind: "forward_kl" | "cross_entropy" | "reverse_kl" | "jensen_shannon";
  beta: number; // of jensen_shannon
}

export interface NativeAdamWOptions {
  learningRate: number;
  beta1: number;
  beta2: number;
  epsilon: number;
  weightDecay: number;
  maxGradNorm: number;
}

export interface NativeStepOptions extends NativeAdamWOptions {
  moments: string; // the name of the moments to use
}

export interface NativeModelInfo {
  family: "llama" | "qwen2" | "qwen3";
  vocabSize: number;
  hiddenSize: number;
  layers: number;
  maxPositions: number;
  /** Heads included, and with an adapter the base's, which are not trainable. */
  parameters: number;
  trainableParameters: number;
  heads: "none" | "value" | "q";
  eosTokenIds: number[];
  bosTokenId: number; // -1: none
  padTokenId: number; // -1: none
}

/**
 * One learner and its native thread. Calls queue up and run in order, but for neighbouring `generate` calls, which run
 * together; every promise settles.
 */
export interface NativeLearner {
  info(): NativeModelInfo;
  generate(
    requests: NativeGenerateRequest[],
    which: WeightSet,
    onToken: ((request: number, token: number) => void) | undefined,
  ): NativeGeneration;
  /** The bytes each id decodes to, and which ids no grammar may use; needed once before stop strings or grammars are used. */
  setTokenBytes(bytes: Uint8Array[], controls: Int32Array): void;
  logProbs(
    texts: NativeScoredText[],
    which: WeightSet | "reference",
    temperature: number,
  ): Promise<Float32Array[]>;
  values(texts: NativeScoredText[]): Promise<Float32Array[]>;
  /** Logits of every sequence, [time × vocab] float32, row-major. */
  logits(sequences: Int32Array[], which: WeightSet): Promise<Float32Array[]>;
  tokenNll(texts: NativeScoredText[], withGradient: boolean): Promise<Float32Array[]>;
  tokenKl(
    texts: NativeDistilledText[],
    temperature: number,
    support: NativeSupport,
    withGradient: boolean,
    divergence: NativeDivergence,
  ): Promise<Float32Array[]>;
  tokenSurrogate(
    texts: NativeSurrogateText[],
    options: NativeSurrogateOptions,
  ): Promise<NativeSurrogateResult[]>;
  softQ(texts: NativeSoftQText[], options: NativeSoftQOptions): Promise<NativeSoftQResult[]>;
  resetQHeads(): Promise<void>;
  discardGradients(): Promise<void>;
  discardMoments(moments: string): Promise<void>;
  dropCaches(): Promise<void>;
  step(
    options: NativeStepOptions,
    targetRate: number | undefined,
  ): Promise<{ gradNorm: number; skipped: boolean }>;
  updateTarget(tau: number): Promise<void>;
  targetDistance(): Promise<number>;
  keepReference(): Promise<void>;
  save(directory: string): Promise<void>;
  exportHuggingFace(directory: string): Promise<void>;
  exportAdapter(directory: string, base: string): Promise<void>;
  /** Finishes what has begun, rejects queued calls with ERR_DISPOSED, frees everything. Idempotent. */
  dispose(): Promise<void>;
}

export interface NativeSampler {
  readonly capacity: number;
  readonly alpha: number;
  readonly beta: number;
  set(indices: Int32Array, priorities: Float32Array): void;
  get(indices: Int32Array): Float32Array;
  total(): number;
  min(): number;
  max(): number;
  draws(): number;
  sample(
    count: number,
    stratified: boolean,
    indices: Int32Array,
    probabilities: Float32Array,
    weights: Float32Array,
  ): void;
  save(path: string): void;
  dispose(): void;
}

/** A handle on a native tensor. */
export interface NativeTensor {
  readonly shape: number[];
  readonly dtype: string;
  readonly device: string;
  toArray(): Float32Array | Float64Array | BigInt64Array | Int32Array;
  dispose(): void;
}

export interface NativeLossOptions {
  temperature: number;
  withGradient: boolean;
  workspaceBytes: number; // 0: the device's default
  gradHead: NativeTensor | undefined; // added into; undefined: made, and handed back
}

export interface NativeTokenLossOptions extends NativeLossOptions {
  hidden: NativeTensor;
  head: NativeTensor; // the vocabulary matrix
  targets: NativeTensor;
  rowWeights: NativeTensor;
  zLoss: number;
  entropyCoefficient: number;
  withEntropies: boolean;
}

/** What was not asked for, or was the caller's already, is not there. */
export interface NativeLossTensors {
  losses?: NativeTensor;
  gradHidden?: NativeTensor;
  gradHead?: NativeTensor;
  logProbs?: NativeTensor;
  entropies?: NativeTensor;
  ratios?: NativeTensor;
  clipped?: NativeTensor;
}

export interface Addon {
  torchVersion(): string;
  cudaAvailable(): boolean;
  /** The largest set that this processor runs, within NLAC_INSTRUCTION_SET. */
  instructionSet(): InstructionSet;
  setThreads(count: number): void;
  /** By interface of this file, each member's number of parameters; null: a property. scripts/check-binding.mjs compares. */
  signatures(): Record<string, Record<string, number | null>>;
  loadLearner(path: string, options: NativeLearnerOptions): Promise<NativeLearner>;
  /** A randomly initialised model of a Hugging Face config.json. */
  createLearner(configJson: string, seed: bigint, options: NativeLearnerOptions): Promise<NativeLearner>;
  /** `base`: the path of the model that a checkpoint's adapter belongs to, "" where it is not needed. */
  resumeLearner(directory: string, options: NativeLearnerOptions, base: string): Promise<NativeLearner>;
  /** GGUF metadata: numbers, bigints beyond 2^53, booleans, strings and flat arrays of one of these. */
  ggufMetadata(path: string): Record<string, unknown>;
  createSampler(capacity: number, alpha: number, beta: number, seed: bigint, device: string): NativeSampler;
  loadSampler(path: string, device: string): NativeSampler;
  tensorFrom(
    data: Float32Array | Float64Array | BigInt64Array | Int32Array,
    shape: number[],
    dtype: string,
    device: string,
  ): NativeTensor;
  linearTokenKl(
    inputs: NativeLossOptions & {
      studentHidden: NativeTensor;
      studentHead: NativeTensor;
      teacherHidden: NativeTensor;
      teacherHead: NativeTensor;
      rowWeights: NativeTensor;
      targets: NativeTensor | undefined;
      divergence: NativeDivergence;
      support: NativeSupport;
    },
  ): NativeLossTensors;
  linearTokenNll(inputs: NativeTokenLossOptions): NativeLossTensors;
  linearTokenLogProbs(
    inputs: NativeTokenLossOptions & { gradLogProbs: NativeTensor | undefined },
  ): NativeLossTensors;
  linearTokenSurrogate(
    inputs: NativeTokenLossOptions & {
      oldLogProbs: NativeTensor;
      advantages: NativeTensor;
      referenceLogProbs: NativeTensor | undefined;
      clipLow: number;
      clipHigh: number;
      klCoefficient: number;
    },
  ): NativeLossTensors;
  /** `seed` and `step`, unsigned 64 bits, determine the stochastic rounding of bfloat16 targets. */
  ema(
    target: NativeTensor[],
    online: NativeTensor[],
    shadow: NativeTensor[], // empty: none
    tau: number,
    seed: bigint,
    step: bigint,
  ): void;
  adamw(
    inputs: NativeAdamWOptions & {
      parameters: NativeTensor[];
      masters: NativeTensor[];
      gradients: NativeTensor[];
      m: NativeTensor[];
      v: NativeTensor[];
      step: number;
      target: NativeTensor[]; // empty: no moving average
      shadow: NativeTensor[]; // empty: none
      tau: number;
    },
  ): { gradNorm: number; skipped: boolean };
}
