// The attention mixer: projections, norms of queries and keys, rotary positions, causal attention
// (attention.h), over all tokens or a window, and the output's projection. Its inference state is
// the keys and values in a KvStore. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include "core/model/adapter.h"
#include "core/model/attention.h"
#include "core/model/config.h"
#include "core/model/linear.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

// Tensors that the model lacks (a bias, q_norm, …) are undefined.
struct AttentionWeights {
  // Without the values' rows where they come from the keys, and without both where they are borrowed.
  at::Tensor qkv;             // [(heads + 2 * kv_heads) * head_dim, hidden]
  at::Tensor qkv_bias;        // [(heads + 2 * kv_heads) * head_dim]
  at::Tensor q_norm, k_norm;  // [head_dim], or of all heads, [heads * head_dim] and [kv_heads * head_dim]
  at::Tensor sinks;           // [heads]
  at::Tensor output;          // [hidden, heads * head_dim]
  at::Tensor output_bias;     // [hidden]
  Adapter qkv_adapter, output_adapter;

  std::vector<at::Tensor*> tensors() {
    return {&qkv, &qkv_bias, &q_norm, &k_norm, &sinks, &output, &output_bias};
  }
  std::vector<AdaptedMatrix> adapted() { return {{&qkv, &qkv_adapter}, {&output, &output_adapter}}; }
};

// The parameters of the attention of a layer of `config`'s, in the order of tensors().
std::vector<Parameter> attention_parameters(const ModelConfig& config, const LayerKind& kind,
                                            AttentionWeights& weights);

// What backward needs. `qkv` is normalised and rotated; `raw_qkv` is before that, and defined only
// where queries and keys are normalised.
struct AttentionTape {
  at::Tensor qkv, raw_qkv;  // [tokens, (heads + 2 kv_heads) head_dim], or without borrowed parts
  Attended attended;
};

// x [tokens, hidden], normed → [tokens, hidden], plus `residual` (undefined: none).
at::Tensor attention_forward(const AttentionWeights& weights, const ModelConfig& config,
                             const LayerKind& kind, const PackedPass& pass, const at::Tensor& x,
                             const at::Tensor& residual, AttentionTape& tape);
// `grad` is the gradient at attention_forward's result. Returns the gradient at x, and adds the
// others to `into`.
at::Tensor attention_backward(const AttentionWeights& weights, const ModelConfig& config,
                              const LayerKind& kind, const PackedPass& pass, const at::Tensor& x,
                              const AttentionTape& tape, const at::Tensor& grad, AttentionWeights& into);

// The output's projection is added to `sum` [tokens, hidden] f32. The layer's own keys and values are
// written to its blocks.
void attention_infer(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind,
                     InferencePass& pass, int64_t layer, const at::Tensor& x, const at::Tensor& sum);

}  // namespace nlac
