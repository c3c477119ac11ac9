// The mixture of experts, a feed-forward part: a router chooses k experts for each token, and the
// token's output is the weighted sum of theirs, down(silu(gate x) · up x), or gpt-oss's form of it
// (ExpertsShape::clamped). The products run once per expert, over the rows of all tokens that chose
// it. A shared expert's output, times sigmoid(shared_gate x), is added for every token. Thread rule:
// the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include "core/model/adapter.h"
#include "core/model/config.h"
#include "core/model/experts_routing.h"
#include "core/model/feed_forward.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

struct ExpertsWeights {
  at::Tensor router;   // [experts, hidden]
  at::Tensor gate_up;  // [experts, 2 * intermediate, hidden], gate first or by turns
  at::Tensor down;     // [experts, hidden, intermediate]
  // [experts], [experts, 2 * intermediate] and [experts, hidden]; undefined: none
  at::Tensor router_bias, gate_up_bias, down_bias;
  Adapter gate_up_adapter, down_adapter;  // of each expert
  // With ExpertsShape::scaled_router: the weight of the router's norm [hidden], and the number of each
  // expert [experts]. Else undefined.
  at::Tensor router_scale, expert_scale;
  // Undefined without a shared expert.
  at::Tensor shared_gate;  // [1, hidden]
  FeedForwardWeights shared;

  std::vector<at::Tensor*> tensors();
  std::vector<AdaptedMatrix> adapted();
};

// The parameters of `config`'s experts, in the order of tensors(). The router, the shared expert's
// gate and the experts of gpt-oss cannot be adapted.
std::vector<Parameter> experts_parameters(const ModelConfig& config, ExpertsWeights& weights);

// What backward needs.
struct ExpertsTape {
  Routing routing;
  GroupedRows groups;
  at::Tensor gate_up;  // [tokens * k, 2 intermediate], ordered by expert
  at::Tensor share;    // [tokens, 1], sigmoid(shared_gate x); float32 (f64 for f64)
  FeedForwardTape shared;
};

// As those of feed_forward.h. The router's logits are not rounded to bfloat16. Only a scaled router reads
// `stream` [tokens, hidden], the layer's stream before the norm; others read x.
at::Tensor experts_forward(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& x,
                           const at::Tensor& stream, const at::Tensor& residual, ExpertsTape& tape,
                           bool tape_only);
// The gradient at the chosen experts' probabilities reaches the router; the choice itself has none. A
// scaled router sets `at_stream` to the gradient at `stream`.
at::Tensor experts_backward(const ExpertsWeights& weights, const ModelConfig& config, const PackedPass& pass,
                            const at::Tensor& x, const at::Tensor& stream, const ExpertsTape& tape,
                            const at::Tensor& grad, ExpertsWeights& into, at::Tensor& at_stream);
void experts_infer(const ExpertsWeights& weights, const ModelConfig& config, InferencePass& pass,
                   const at::Tensor& x, const at::Tensor& stream, const at::Tensor& sum);

// What the load-balance loss of transformers needs of the routers of all layers and tokens. With
// f_e the choices of expert e per router's row and P_e its mean probability, the loss is experts ·
// Σ_e f_e P_e. The choices are constants.
struct RouterLoad {
  at::Tensor choices, probabilities;  // [experts], sums over rows; float32 (f64 for f64)
  int64_t rows = 0;                   // tokens of all routers

  void add(const Routing& routing);
  double loss() const;                  // 0 without rows
  at::Tensor at_probabilities() const;  // [experts], the loss's gradient at each probability of a row
};

}  // namespace nlac
