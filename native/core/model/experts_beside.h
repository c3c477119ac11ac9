// Experts beside a gated feed-forward part (Gemma 4's mixture of experts). With the layer's stream x
// and the gated part's output g, the branch's output is
//
//   after_gated(g) + after_experts(experts(before_experts(x)))
//
// where the four are norms, and the router reads x too. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/model/config.h"
#include "core/model/experts_part.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

struct BesideNorms {
  at::Tensor after_gated, before_experts, after_experts;  // [hidden]

  std::vector<at::Tensor*> tensors() { return {&after_gated, &before_experts, &after_experts}; }
};
// In the order of tensors().
std::vector<Parameter> beside_parameters(const ModelConfig& config, BesideNorms& norms);

// What backward needs, besides the experts' tape.
struct BesideTape {
  at::Tensor of_gated, of_experts;  // [tokens, hidden], before their norms
};

// stream, gated [tokens, hidden] → [tokens, hidden].
at::Tensor beside_forward(const BesideNorms& norms, const ExpertsWeights& experts, const ModelConfig& config,
                          const at::Tensor& stream, const at::Tensor& gated, BesideTape& tape,
                          ExpertsTape& experts_tape);
// Returns the gradient at `gated`, sets `at_stream`, and adds the others to `into` and `into_experts`.
at::Tensor beside_backward(const BesideNorms& norms, const ExpertsWeights& experts, const ModelConfig& config,
                           const PackedPass& pass, const at::Tensor& stream, const BesideTape& tape,
                           const ExpertsTape& experts_tape, const at::Tensor& grad, BesideNorms& into,
                           ExpertsWeights& into_experts, at::Tensor& at_stream);
// `sum` [tokens, hidden] has the gated part's output and becomes the branch's. It and `stream` are f32
// (f64 for f64).
void beside_infer(const BesideNorms& norms, const ExpertsWeights& experts, const ModelConfig& config,
                  InferencePass& pass, const at::Tensor& stream, const at::Tensor& sum);

}  // namespace nlac
