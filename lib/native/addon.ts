/** The types of the addon, as native/binding implements it. All access to C++ goes through them. */

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
  expertBalance?: number; // absent: none; below 0: the model's own coefficient
  microBatchTokens: number;
  cacheBytes: number;
  heads: "none" | "value" | "q"; // of load and create
  adapter: NativeAdapterOptions | undefined;
  ranks: NativeRanks | undefined; // that train together
  sharding: number; // with ranks: 0, 1, 2 or 3
  layerwiseGeneration: boolean; // with sharding 3
}

export interface NativeRankPlace {
  rank: number;
  ranks: number;
  address: string; // of the store
  port: number;
  serves: boolean; // whether this rank hosts the store
  prefix: string; // of the store's keys
  timeoutMs: number; // of joining, `get` and every collective
}

/** This process's place among the ranks of a training. Calls reject with ERR_PEER. */
export interface NativeRanks {
  /** Stores a text under a key, for all ranks. */
  set(key: string, value: string): Promise<void>;
  /** Waits until some rank has set the key. */
  get(key: string): Promise<string>;
  dispose(): Promise<void>;
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
  grammar: string; // in the form of native/core/generate/grammar.h; "": none
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
  hidden?: NativeTensor; // [new tokens, hidden], with keepHidden
  topTokens: Int32Array; // [new tokens, request's topLogProbs]
  topLogProbs: Float32Array;
}

export interface NativeGeneration {
  done: Promise<NativeGenerateResult[]>;
  /** Stops at the next token, or before the first one. Unfinished results become "cancelled". */
  cancel(): void;
}

export interface NativeScoredText {
  prompt: Int32Array;
  response: Int32Array;
  weights: Float32Array; // one for the whole response, or one per token
}

/** Every list is [response tokens], or empty if not needed. */
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
  value: { coefficient: number; clip: number; detached: boolean } | undefined;
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

export interface NativePreferencePair {
  chosen: NativeScoredText;
  rejected: NativeScoredText;
  referenceChosen: number;
  referenceRejected: number;
  weight: number;
}

export interface NativePreferenceLoss {
  beta: number;
  loss: "sigmoid" | "hinge" | "ipo";
  labelSmoothing: number;
}

export interface NativePreferenceResult {
  loss: number;
  chosenLogProb: number;
  rejectedLogProb: number;
  chosenReward: number;
  rejectedReward: number;
}

export interface NativeJudgedText {
  prompt: Int32Array;
  response: Int32Array;
  label: number; // not read by `rewards`, nor is the weight
  weight: number;
}

export interface NativeDistilledText {
  student: Int32Array;
  teacher: Int32Array;
  response: Int32Array;
  weight: number;
  teacherHidden: NativeTensor | undefined; // [response tokens, hidden]
}

export interface NativeSoftQText extends NativeScoredText {
  rewards: Float32Array; // one per response token
}

export interface NativeSoftQOptions {
  temperature: number;
  discount: number;
  qCoefficient: number;
  policyCoefficient: number;
  withGradient: boolean;
  detached: boolean;
}

/** For one sequence; each array is [response tokens]. */
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
  moments: string; // name of the set of moments to use
}

export interface ModelInfo {
  readonly family:
    | "llama"
    | "qwen2"
    | "qwen3"
    | "qwen3_5_text"
    | "qwen3_5_moe_text"
    | "qwen3_moe"
    | "smollm3"
    | "mistral"
    | "ministral3"
    | "olmo3"
    | "gemma3_text"
    | "gemma4_text"
    | "gpt_oss";
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly layers: number;
  readonly maxPositions: number;
  /** Includes heads and, with an adapter, the frozen base model. */
  readonly parameters: number;
  readonly trainableParameters: number;
  /** Tensors of other parts of the model, like a vision tower, that were not loaded. */
  readonly skippedTensors: number;
  readonly heads: "none" | "value" | "q";
  readonly eosTokenIds: readonly number[];
  readonly bosTokenId: number; // -1: none
  readonly padTokenId: number; // -1: none
}

export interface NativeKlDetail {
  losses: Float32Array;
  online: NativeKlSide;
  target: NativeKlSide;
}

/** [response tokens], and twice [response tokens × detail], row-major. */
export interface NativeKlSide {
  logProbs: Float32Array;
  top: Int32Array;
  topLogProbs: Float32Array;
}

/**
 * One learner and its native thread. Calls are queued and run in order; adjacent `generate` calls
 * run together. Every promise settles.
 */
export interface NativeLearner {
  info(): ModelInfo;
  generate(
    requests: NativeGenerateRequest[],
    weights: WeightSet,
    onToken: ((request: number, token: number) => void) | undefined,
  ): NativeGeneration;
  /**
   * Needed once for stop strings and grammars: the bytes of each id, and ids no grammar may use.
   */
  setTokenBytes(bytes: Uint8Array[], controls: Int32Array): void;
  logProbs(
    texts: NativeScoredText[],
    weights: WeightSet | "reference",
    temperature: number,
  ): Promise<Float32Array[]>;
  values(texts: NativeScoredText[]): Promise<Float32Array[]>;
  /** Logits of every sequence, [time × vocab] float32, row-major. */
  logits(sequences: Int32Array[], weights: WeightSet): Promise<Float32Array[]>;
  tokenNll(texts: NativeScoredText[], withGradient: boolean): Promise<Float32Array[]>;
  tokenKl(
    texts: NativeDistilledText[],
    temperature: number,
    support: NativeSupport,
    withGradient: boolean,
    divergence: NativeDivergence,
    detail: number, // -1: losses only
  ): Promise<Float32Array[] | NativeKlDetail[]>;
  tokenSurrogate(
    texts: NativeSurrogateText[],
    options: NativeSurrogateOptions,
  ): Promise<NativeSurrogateResult[]>;
  tokenPreference(
    pairs: NativePreferencePair[],
    options: NativePreferenceLoss & { withGradient: boolean },
  ): Promise<NativePreferenceResult[]>;
  gather(which: "online" | "target"): Promise<void>;
  rewards(texts: NativeJudgedText[]): Promise<Float32Array>;
  rewardLoss(texts: NativeJudgedText[], withGradient: boolean): Promise<Float32Array>;
  softQ(texts: NativeSoftQText[], options: NativeSoftQOptions): Promise<NativeSoftQResult[]>;
  resetQHeads(): Promise<void>;
  discardGradients(): Promise<void>;
  discardMoments(moments: string): Promise<void>;
  dropCaches(): Promise<void>;
  step(
    options: NativeStepOptions,
    targetRate: number | undefined,
  ): Promise<{ gradNorm: number; skipped: boolean }>;
  updateTarget(targetRate: number): Promise<void>;
  targetDistance(): Promise<number>;
  keepReference(): Promise<void>;
  restoreReference(): Promise<void>;
  /** The files are written by another thread; `generate` runs meanwhile, other calls wait. */
  save(directory: string): Promise<void>;
  exportHuggingFace(directory: string): Promise<void>;
  exportRewardModel(directory: string, padTokenId: number): Promise<void>; // -1: none
  exportAdapter(directory: string, base: string): Promise<void>;
  /** Finishes the running call, rejects queued ones with ERR_DISPOSED, frees memory. Idempotent. */
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
  gradHead: NativeTensor | undefined; // accumulated into; undefined: allocated and returned
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

/** Absent: outputs that were not requested, or that the caller passed in. */
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
  /** The best instruction set of this processor, limited by NLAC_INSTRUCTION_SET. */
  instructionSet(): InstructionSet;
  setThreads(count: number): void;
  /**
   * Parameter counts of the members of each interface, null for properties; for check-binding.mjs.
   */
  signatures(): Record<string, Record<string, number | null>>;
  loadLearner(path: string, options: NativeLearnerOptions): Promise<NativeLearner>;
  /** A randomly initialised model for a Hugging Face config.json. */
  createLearner(configJson: string, seed: bigint, options: NativeLearnerOptions): Promise<NativeLearner>;
  /** `base`: the path of the base model of the checkpoint's adapter; "" if not needed. */
  resumeLearner(directory: string, options: NativeLearnerOptions, base: string): Promise<NativeLearner>;
  /** Opens the ranks' store, or connects to it. */
  joinRanks(place: NativeRankPlace): Promise<NativeRanks>;
  /** GGUF metadata: numbers, bigints beyond 2^53, booleans, strings, and flat arrays of these. */
  ggufMetadata(path: string): Record<string, unknown>;
  /** The config.json of a .gguf file, from its metadata. */
  ggufConfig(path: string): string;
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
  linearTokenPreference(
    inputs: NativeLossOptions &
      NativePreferenceLoss & {
        hidden: NativeTensor;
        head: NativeTensor;
        targets: NativeTensor;
        offsets: Int32Array;
        referenceLogProbs: NativeTensor;
        pairWeights: NativeTensor;
      },
  ): NativeLossTensors;
  /** `seed` and `step`, unsigned 64 bits, determine the stochastic rounding of bfloat16 targets. */
  ema(
    target: NativeTensor[],
    online: NativeTensor[],
    shadow: NativeTensor[], // empty: none
    targetRate: number,
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
      targetRate: number;
    },
  ): { gradNorm: number; skipped: boolean };
}
