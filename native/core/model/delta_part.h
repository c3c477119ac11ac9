// The gated delta net mixer (gated_delta.h) with its projections. Its inference state is a slot of
// a StateStore. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include "core/model/adapter.h"
#include "core/model/config.h"
#include "core/model/gated_delta.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

struct DeltaWeights {
  at::Tensor input;                  // [delta.projected(), hidden]: q, k, v, z, b, a
  at::Tensor convolution;            // [delta.channels(), 1, delta.kernel]
  at::Tensor decay_log, decay_bias;  // [delta.heads]
  at::Tensor norm;                   // [delta.value_dim]
  at::Tensor output;                 // [hidden, delta.values()]
  Adapter input_adapter, output_adapter;

  std::vector<at::Tensor*> tensors() {
    return {&input, &convolution, &decay_log, &decay_bias, &norm, &output};
  }
  std::vector<AdaptedMatrix> adapted() { return {{&input, &input_adapter}, {&output, &output_adapter}}; }
};

// The parameters of `config`'s gated delta net, in the order of tensors().
std::vector<Parameter> delta_parameters(const ModelConfig& config, DeltaWeights& weights);

// What backward needs.
struct DeltaTape {
  at::Tensor projected;  // [tokens, delta.projected()]
  GatedDelta mixed;
};

// As those of attention_part.h.
at::Tensor delta_forward(const DeltaWeights& weights, const ModelConfig& config, const PackedPass& pass,
                         const at::Tensor& x, const at::Tensor& residual, DeltaTape& tape);
at::Tensor delta_backward(const DeltaWeights& weights, const ModelConfig& config, const PackedPass& pass,
                          const at::Tensor& x, const DeltaTape& tape, const at::Tensor& grad,
                          DeltaWeights& into);
// Advances the states of the pass's texts in `layer`.
void delta_infer(const DeltaWeights& weights, const ModelConfig& config, InferencePass& pass, int64_t layer,
                 const at::Tensor& x, const at::Tensor& sum);

}  // namespace nlac
