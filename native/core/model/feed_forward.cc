#include "core/model/feed_forward.h"

#include "core/model/elementwise.h"
#include "core/model/linear.h"

namespace nlac {

std::vector<Parameter> feed_forward_parameters(const ModelConfig& config, FeedForwardWeights& weights,
                                               const std::string& prefix, int64_t width) {
  const int64_t hidden = config.hidden_size, n = width;
  using Shape = std::vector<int64_t>;
  const auto if_biased = [&](Shape shape) { return config.mlp_bias ? shape : Shape{}; };
  return {
      {&weights.gate_up,
       {2 * n, hidden},
       {{prefix + "gate_proj.weight", n}, {prefix + "up_proj.weight", n}},
       &weights.gate_up_adapter},
      {&weights.gate_up_bias,
       if_biased({2 * n}),
       {{prefix + "gate_proj.bias", n}, {prefix + "up_proj.bias", n}}},
      {&weights.down, {hidden, n}, {{prefix + "down_proj.weight", hidden}}, &weights.down_adapter},
      {&weights.down_bias, if_biased({hidden}), {{prefix + "down_proj.bias", hidden}}},
  };
}

at::Tensor feed_forward(const FeedForwardWeights& weights, const ModelConfig& config, const at::Tensor& x,
                        const at::Tensor& residual, FeedForwardTape& tape, bool tape_only) {
  tape.gate_up = linear_forward(x, weights.gate_up, weights.gate_up_bias, weights.gate_up_adapter);
  if (tape_only) return {};
  return linear_forward(gated(tape.gate_up, config.activation), weights.down, weights.down_bias,
                        weights.down_adapter, residual);
}

at::Tensor feed_forward_backward(const FeedForwardWeights& weights, const ModelConfig& config,
                                 const at::Tensor& x, const FeedForwardTape& tape, const at::Tensor& grad,
                                 FeedForwardWeights& into) {
  at::Tensor inner = linear_backward(grad, gated(tape.gate_up, config.activation), weights.down, into.down,
                                     into.down_bias, weights.down_adapter, into.down_adapter);
  inner = gated_backward(inner, tape.gate_up, config.activation);
  return linear_backward(inner, x, weights.gate_up, into.gate_up, into.gate_up_bias, weights.gate_up_adapter,
                         into.gate_up_adapter);
}

void feed_forward_infer(const FeedForwardWeights& weights, const ModelConfig& config, InferencePass& pass,
                        const at::Tensor& x, const at::Tensor& sum) {
  const at::Tensor gate_up =
      pass.matrices.of(weights.gate_up).forward(x, weights.gate_up_bias, weights.gate_up_adapter);
  pass.matrices.of(weights.down)
      .add(gated(gate_up, config.activation), weights.down_bias, sum, weights.down_adapter);
}

}  // namespace nlac
