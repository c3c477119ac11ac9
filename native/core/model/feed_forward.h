// The gated feed-forward part: down(act(gate x) · up x). Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include "core/model/adapter.h"
#include "core/model/config.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

// Biases that the model lacks are undefined.
struct FeedForwardWeights {
  at::Tensor gate_up;       // [2 * intermediate, hidden], gate first
  at::Tensor gate_up_bias;  // [2 * intermediate]
  at::Tensor down;          // [hidden, intermediate]
  at::Tensor down_bias;     // [hidden]
  Adapter gate_up_adapter, down_adapter;

  std::vector<at::Tensor*> tensors() { return {&gate_up, &gate_up_bias, &down, &down_bias}; }
  std::vector<AdaptedMatrix> adapted() { return {{&gate_up, &gate_up_adapter}, {&down, &down_adapter}}; }
};

// The parameters of a feed-forward part `width` wide, in the order of tensors(). `prefix` opens the
// names.
std::vector<Parameter> feed_forward_parameters(const ModelConfig& config, FeedForwardWeights& weights,
                                               const std::string& prefix, int64_t width);

// What backward needs.
struct FeedForwardTape {
  at::Tensor gate_up;  // [tokens, 2 intermediate]
};

// As those of attention_part.h. With `tape_only` the last product is left out.
at::Tensor feed_forward(const FeedForwardWeights& weights, const ModelConfig& config, const at::Tensor& x,
                        const at::Tensor& residual, FeedForwardTape& tape, bool tape_only);
at::Tensor feed_forward_backward(const FeedForwardWeights& weights, const ModelConfig& config,
                                 const at::Tensor& x, const FeedForwardTape& tape, const at::Tensor& grad,
                                 FeedForwardWeights& into);
void feed_forward_infer(const FeedForwardWeights& weights, const ModelConfig& config, InferencePass& pass,
                        const at::Tensor& x, const at::Tensor& sum);

}  // namespace nlac
