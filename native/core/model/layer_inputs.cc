#include "core/model/layer_inputs.h"

#include <cmath>

#include "core/model/elementwise.h"
#include "core/model/embedding.h"

namespace nlac {
namespace {

double inverse_root(int64_t n) { return 1 / std::sqrt(static_cast<double>(n)); }
double row_scale(const ModelConfig& config) {
  return std::sqrt(static_cast<double>(config.layer_input_size));
}

// project(e) / √hidden as [tokens, layers, n], given the product.
at::Tensor scaled(at::Tensor product, const ModelConfig& config) {
  return product.mul_(inverse_root(config.hidden_size)).unflatten(1, {config.layers, -1});
}

at::Tensor joined(const LayerInputTables& tables, const ModelConfig& config, const at::Tensor& ids,
                  const at::Tensor& product) {
  at::Tensor sum = rms_norm(scaled(product, config), tables.norm, config);
  sum.add_(embedded_rows(tables.rows, ids, row_scale(config)).view(sum.sizes()));
  return sum.mul_(inverse_root(2));
}

}  // namespace

std::vector<Parameter> layer_table_parameters(const ModelConfig& config, LayerInputTables& tables) {
  const int64_t n = config.layer_input_size, all = config.layers * n, vocab = config.layer_input_vocab;
  return {{&tables.rows, {vocab, all}, {{"embed_tokens_per_layer.weight", vocab}}},
          {&tables.project, {all, config.hidden_size}, {{"per_layer_model_projection.weight", all}}},
          {&tables.norm, {n}, {{"per_layer_projection_norm.weight", n}}}};
}

at::Tensor layer_inputs(const LayerInputTables& tables, const ModelConfig& config, const at::Tensor& ids,
                        const at::Tensor& embedded) {
  return joined(tables, config, ids, linear_forward(embedded, tables.project, {}));
}

at::Tensor infer_layer_inputs(const LayerInputTables& tables, const ModelConfig& config,
                              PackedMatrices& matrices, const at::Tensor& ids, const at::Tensor& embedded) {
  return joined(tables, config, ids, matrices.of(tables.project).forward(embedded, {}));
}

at::Tensor layer_inputs_backward(const LayerInputTables& tables, const ModelConfig& config,
                                 const at::Tensor& ids, const at::Tensor& embedded, const at::Tensor& grad,
                                 LayerInputTables& into) {
  const at::Tensor at_sum = grad * inverse_root(2);
  add_embedding_gradient(into.rows, ids, at_sum.flatten(1), row_scale(config));
  const at::Tensor raw = scaled(linear_forward(embedded, tables.project, {}), config);
  const at::Tensor at_product = rms_norm_backward(at_sum, raw, tables.norm, config, into.norm, {})
                                    .flatten(1)
                                    .mul_(inverse_root(config.hidden_size));
  return linear_backward(at_product, embedded, tables.project, into.project, {});
}

std::vector<Parameter> layer_input_parameters(const ModelConfig& config, LayerInputWeights& weights) {
  const int64_t hidden = config.hidden_size, n = config.layer_input_size;
  return {{&weights.gate, {n, hidden}, {{"per_layer_input_gate.weight", n}}},
          {&weights.projection, {hidden, n}, {{"per_layer_projection.weight", hidden}}},
          {&weights.norm, {hidden}, {{"post_per_layer_input_norm.weight", hidden}}}};
}

at::Tensor layer_input_forward(const LayerInputWeights& weights, const ModelConfig& config,
                               const at::Tensor& x, const at::Tensor& inputs, LayerInputTape& tape) {
  tape.x = x;
  tape.gate_input = at::cat({linear_forward(x, weights.gate, {}), inputs}, 1);
  tape.projected = linear_forward(gated(tape.gate_input, config.activation), weights.projection, {});
  return rms_norm(tape.projected, weights.norm, config).add_(x);
}

at::Tensor layer_input_backward(const LayerInputWeights& weights, const ModelConfig& config,
                                const LayerInputTape& tape, const at::Tensor& grad, at::Tensor at_inputs,
                                LayerInputWeights& into) {
  const int64_t n = config.layer_input_size;
  const at::Tensor at_projected =
      rms_norm_backward(grad, tape.projected, weights.norm, config, into.norm, {});
  const at::Tensor at_gated = linear_backward(at_projected, gated(tape.gate_input, config.activation),
                                              weights.projection, into.projection, {});
  const at::Tensor at_both = gated_backward(at_gated, tape.gate_input, config.activation);
  if (at_inputs.defined()) at_inputs.copy_(at_both.narrow(1, n, n));
  return linear_backward(at_both.narrow(1, 0, n).contiguous(), tape.x, weights.gate, into.gate, {})
      .add_(grad);
}

void layer_input_infer(const LayerInputWeights& weights, const ModelConfig& config, InferencePass& pass,
                       int64_t layer, at::Tensor x) {
  const at::Tensor gate = pass.matrices.of(weights.gate).forward(x.to(pass.type), {});
  const at::Tensor both = at::cat({gate, pass.layer_inputs.select(1, layer)}, 1);
  const at::Tensor projected = at::zeros(x.sizes(), x.options());
  pass.matrices.of(weights.projection).add(gated(both, config.activation), {}, projected);
  x.add_(rms_norm(projected, weights.norm, config));
}

}  // namespace nlac
