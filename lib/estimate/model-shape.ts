/** Sizes of a model from which memory and time are estimated; shape.ts reads them. */

export interface ModelShape {
  layers: number;
  hidden: number;
  /** Width of the MLP. */
  intermediate: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  vocabulary: number;
  /** Embedding and head share one matrix. */
  tied: boolean;
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  /**
   * Queries and keys are normalised: each head alone (Qwen3), or all heads of a token together
   * (OLMo 3).
   */
  qkNorm: boolean | "whole";
  /** Attention has a gate beside each query (Qwen3.5). */
  gatedAttention?: boolean;
  /** The layers with a gated delta net instead of attention (Qwen3.5). */
  delta?: DeltaShape;
  /**
   * The layers with a mixture of experts, instead of the MLP (Qwen3-MoE, Qwen3.5-MoE, gpt-oss) or
   * beside it (Gemma 4).
   */
  experts?: ExpertsShape;
  /** Each head has an attention sink (gpt-oss). */
  sinks?: boolean;
  /** Attention of each layer, if layers differ (Gemma 4); `headDim` and `kvHeads` are then of some. */
  attention?: readonly LayerAttention[];
  /** Width of each layer's MLP, if layers differ. */
  intermediates?: readonly number[];
  /** Width of what each layer gets of every token besides, and the rows of its table. */
  layerInputs?: { size: number; vocabulary: number };
  /** A number multiplies each layer's output. */
  layerScalars?: boolean;
  /** Norms of a layer, besides those of queries and keys; default 2. */
  norms?: number;
  /** A norm follows each of a layer's two parts (Gemma, OLMo 3). */
  normsAfter?: boolean;
  /** Tokens that attention sees in each layer with a window; default: no layer has one. */
  windows?: readonly number[];
  /** Maximum context, tokens. */
  maxPositions: number;
}

/** Attention of one layer. */
export interface LayerAttention {
  headDim: number;
  kvHeads: number;
  /** Whether it projects keys, and values beside them. */
  keys: boolean;
  values: boolean;
}

/** Sizes of a mixture of experts. */
export interface ExpertsShape {
  layers: number;
  /** Experts of a layer. */
  count: number;
  /** Experts that a token uses. */
  perToken: number;
  /** Width of one expert. */
  intermediate: number;
  /** Width of an expert that every token uses besides; 0: none. */
  shared: number;
  /** The router and the experts have biases; such experts cannot be adapted (gpt-oss). */
  biased?: boolean;
  /** They are beside an MLP; the router has a norm, and each expert a number (Gemma 4). */
  beside?: boolean;
}

/** Sizes of a gated delta net. */
export interface DeltaShape {
  layers: number;
  keyHeads: number;
  heads: number;
  keyDim: number;
  valueDim: number;
  /** Tokens of the convolution. */
  kernel: number;
}
