#include "core/model/experts_beside.h"

#include "core/model/elementwise.h"

namespace nlac {

std::vector<Parameter> beside_parameters(const ModelConfig& config, BesideNorms& norms) {
  const int64_t hidden = config.hidden_size;
  return {{&norms.after_gated, {hidden}, {{"post_feedforward_layernorm_1.weight", hidden}}},
          {&norms.before_experts, {hidden}, {{"pre_feedforward_layernorm_2.weight", hidden}}},
          {&norms.after_experts, {hidden}, {{"post_feedforward_layernorm_2.weight", hidden}}}};
}

at::Tensor beside_forward(const BesideNorms& norms, const ExpertsWeights& experts, const ModelConfig& config,
                          const at::Tensor& stream, const at::Tensor& gated, BesideTape& tape,
                          ExpertsTape& experts_tape) {
  tape.of_gated = gated;
  tape.of_experts = experts_forward(experts, config, rms_norm(stream, norms.before_experts, config), stream,
                                    {}, experts_tape, false);
  return rms_norm(gated, norms.after_gated, config)
      .add_(rms_norm(tape.of_experts, norms.after_experts, config));
}

at::Tensor beside_backward(const BesideNorms& norms, const ExpertsWeights& experts, const ModelConfig& config,
                           const PackedPass& pass, const at::Tensor& stream, const BesideTape& tape,
                           const ExpertsTape& experts_tape, const at::Tensor& grad, BesideNorms& into,
                           ExpertsWeights& into_experts, at::Tensor& at_stream) {
  const at::Tensor at_experts =
      rms_norm_backward(grad, tape.of_experts, norms.after_experts, config, into.after_experts, {});
  const at::Tensor at_input =
      experts_backward(experts, config, pass, rms_norm(stream, norms.before_experts, config), stream,
                       experts_tape, at_experts, into_experts, at_stream);
  at_stream =
      rms_norm_backward(at_input, stream, norms.before_experts, config, into.before_experts, at_stream);
  return rms_norm_backward(grad, tape.of_gated, norms.after_gated, config, into.after_gated, {});
}

void beside_infer(const BesideNorms& norms, const ExpertsWeights& experts, const ModelConfig& config,
                  InferencePass& pass, const at::Tensor& stream, const at::Tensor& sum) {
  const at::Tensor of_experts = at::zeros(sum.sizes(), sum.options());
  experts_infer(experts, config, pass, rms_norm(stream, norms.before_experts, config), stream, of_experts);
  sum.copy_(rms_norm(sum, norms.after_gated, config));
  at::Tensor(sum).add_(rms_norm(of_experts, norms.after_experts, config));
}

}  // namespace nlac
