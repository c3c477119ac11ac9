#include "core/model/delta_part.h"

namespace nlac {
namespace {

GatedDeltaWeights inner(const DeltaWeights& weights) {
  return {weights.convolution.defined() ? weights.convolution.squeeze(1) : at::Tensor(), weights.decay_log,
          weights.decay_bias, weights.norm};
}

}  // namespace

std::vector<Parameter> delta_parameters(const ModelConfig& config, DeltaWeights& weights) {
  const GatedDeltaShape& delta = config.delta;
  const int64_t hidden = config.hidden_size;
  return {
      {&weights.input,
       {delta.projected(), hidden},
       {{"linear_attn.in_proj_qkv.weight", delta.channels()},
        {"linear_attn.in_proj_z.weight", delta.values()},
        {"linear_attn.in_proj_b.weight", delta.heads},
        {"linear_attn.in_proj_a.weight", delta.heads}},
       &weights.input_adapter},
      {&weights.convolution,
       {delta.channels(), 1, delta.kernel},
       {{"linear_attn.conv1d.weight", delta.channels()}}},
      {&weights.decay_log, {delta.heads}, {{"linear_attn.A_log", delta.heads}}},
      {&weights.decay_bias, {delta.heads}, {{"linear_attn.dt_bias", delta.heads}}},
      {&weights.norm, {delta.value_dim}, {{"linear_attn.norm.weight", delta.value_dim}}},
      {&weights.output,
       {hidden, delta.values()},
       {{"linear_attn.out_proj.weight", hidden}},
       &weights.output_adapter},
  };
}

at::Tensor delta_forward(const DeltaWeights& weights, const ModelConfig& config, const PackedPass& pass,
                         const at::Tensor& x, const at::Tensor& residual, DeltaTape& tape) {
  tape.projected = linear_forward(x, weights.input, {}, weights.input_adapter);
  tape.mixed = gated_delta(config.delta, inner(weights), tape.projected, pass.sequences.lengths);
  tape.mixed.rule.last.clear();  // views that would keep the states of whole steps
  return linear_forward(tape.mixed.output, weights.output, {}, weights.output_adapter, residual);
}

at::Tensor delta_backward(const DeltaWeights& weights, const ModelConfig& config, const PackedPass& pass,
                          const at::Tensor& x, const DeltaTape& tape, const at::Tensor& grad,
                          DeltaWeights& into) {
  const at::Tensor at_mixed = linear_backward(grad, tape.mixed.output, weights.output, into.output, {},
                                              weights.output_adapter, into.output_adapter);
  const at::Tensor at_projected = gated_delta_backward(at_mixed, config.delta, inner(weights), tape.projected,
                                                       pass.sequences.lengths, tape.mixed.rule, inner(into));
  return linear_backward(at_projected, x, weights.input, into.input, {}, weights.input_adapter,
                         into.input_adapter);
}

void delta_infer(const DeltaWeights& weights, const ModelConfig& config, InferencePass& pass, int64_t layer,
                 const at::Tensor& x, const at::Tensor& sum) {
  std::vector<DeltaSlice> slices;
  for (const KvSlice& slice : pass.slices)
    slices.push_back({slice.fresh, pass.states.state(layer, slice.state)});
  const at::Tensor projected = pass.matrices.of(weights.input).forward(x, {}, weights.input_adapter);
  const at::Tensor mixed = gated_delta_steps(config.delta, inner(weights), projected, slices);
  pass.matrices.of(weights.output).add(mixed, {}, sum, weights.output_adapter);
}

}  // namespace nlac
