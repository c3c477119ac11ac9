#include "core/model/attention_part.h"

#include <cmath>

#include "core/model/elementwise.h"

namespace nlac {
namespace {

// Views of the three parts of qkv [tokens, (heads + 2 kv_heads) head_dim], each [tokens, heads,
// head_dim].
struct Split {
  at::Tensor q, k, v, gate;
};
Split split_qkv(const at::Tensor& qkv, const ModelConfig& config) {
  const int64_t d = config.head_dim, q = config.heads * d, kv = config.kv_heads * d;
  const auto part = [&](int64_t start, int64_t width) {
    return qkv.narrow(1, start, width).unflatten(1, {-1, d});
  };
  return {part(0, q), part(q, kv), part(q + kv, kv), {}};
}

// The same of the product with the qkv matrix. Of gated attention it holds a gate beside each query
// head: [tokens, (2 heads + 2 kv_heads) head_dim].
Split split_product(const at::Tensor& product, const ModelConfig& config) {
  if (!config.gated_attention) return split_qkv(product, config);
  const int64_t d = config.head_dim, q = config.heads * d, kv = config.kv_heads * d;
  const at::Tensor pairs = product.narrow(1, 0, 2 * q).unflatten(1, {config.heads, 2, d});
  return {pairs.select(2, 0), product.narrow(1, 2 * q, kv).unflatten(1, {-1, d}),
          product.narrow(1, 2 * q + kv, kv).unflatten(1, {-1, d}), pairs.select(2, 1)};
}

// q and k of a fused qkv: they are rotated together.
at::Tensor queries_and_keys(const at::Tensor& qkv, const ModelConfig& config) {
  return qkv.narrow(1, 0, (config.heads + config.kv_heads) * config.head_dim)
      .unflatten(1, {-1, config.head_dim});
}

// The rows that are normalised: each head's, or all heads' of a token.
at::Tensor normed_rows(const at::Tensor& heads, const ModelConfig& config) {
  return config.whole_qk_norm ? heads.flatten(1) : heads;
}

Sight sight_of(const ModelConfig& config, const LayerKind& kind) {
  return {kind.window, config.attention_scalar > 0 ? 1 / std::sqrt(config.attention_scalar) : 0};
}

// Multiplies queries by their factor of growth, forward and backward.
void grow_queries(const at::Tensor& qkv, const ModelConfig& config, const at::Tensor& positions) {
  const RopeConfig& rope = config.rope;
  if (rope.query_growth == 0) return;
  const at::Tensor turns = positions.div(rope.original_max_positions, "floor").to(at::kDouble);
  const at::Tensor factors = turns.log1p_().mul_(rope.query_growth).add_(1).to(qkv.scalar_type());
  split_qkv(qkv, config).q.mul_(factors.view({-1, 1, 1}));
}

void rotate_qkv(const at::Tensor& qkv, const ModelConfig& config, const LayerKind& kind,
                const RopeTables& ropes, const at::Tensor& positions, bool inverse) {
  if (const Rope* rope = ropes.of(kind.rotary))
    rotate(queries_and_keys(qkv, config), *rope, positions, inverse);
  grow_queries(qkv, config, positions);
}

// From the product to what attention reads. `tape.raw_qkv` is set if there are norms.
void norm_and_rotate(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind,
                     const RopeTables& ropes, const at::Tensor& positions, AttentionTape& tape) {
  if (config.qk_norm) {
    tape.raw_qkv = tape.qkv;
    const Split raw = split_product(tape.raw_qkv, config);
    tape.qkv = at::empty({tape.raw_qkv.size(0), (config.heads + 2 * config.kv_heads) * config.head_dim},
                         tape.raw_qkv.options());
    const Split normed = split_qkv(tape.qkv, config);
    for (const auto& [from, to, weight] :
         {std::tuple{raw.q, normed.q, weights.q_norm}, std::tuple{raw.k, normed.k, weights.k_norm}})
      to.copy_(rms_norm(normed_rows(from, config), weight, config).reshape(to.sizes()));
    normed.v.copy_(raw.v);
  }
  rotate_qkv(tape.qkv, config, kind, ropes, positions, false);
}

// The input of the output's projection, [tokens, heads · head_dim].
at::Tensor gated_output(const AttentionTape& tape, const at::Tensor& attended, const ModelConfig& config) {
  if (!config.gated_attention) return attended.flatten(1);
  return gate_by_sigmoid(attended, split_product(tape.raw_qkv, config).gate).flatten(1);
}

}  // namespace

std::vector<Parameter> attention_parameters(const ModelConfig& config, AttentionWeights& weights) {
  const int64_t hidden = config.hidden_size, q = config.heads * config.head_dim,
                kv = config.kv_heads * config.head_dim;
  using Shape = std::vector<int64_t>;
  const auto if_has = [](bool has, Shape shape) { return has ? shape : Shape{}; };
  const int64_t q_rows = config.gated_attention ? 2 * q : q;
  const Shape q_norm{config.whole_qk_norm ? q : config.head_dim},
      k_norm{config.whole_qk_norm ? kv : config.head_dim};
  return {
      {&weights.qkv,
       {q_rows + 2 * kv, hidden},
       {{"self_attn.q_proj.weight", q_rows},
        {"self_attn.k_proj.weight", kv},
        {"self_attn.v_proj.weight", kv}},
       &weights.qkv_adapter},
      {&weights.qkv_bias,
       if_has(config.qkv_bias, {q_rows + 2 * kv}),
       {{"self_attn.q_proj.bias", q_rows}, {"self_attn.k_proj.bias", kv}, {"self_attn.v_proj.bias", kv}}},
      {&weights.q_norm, if_has(config.qk_norm, q_norm), {{"self_attn.q_norm.weight", q_norm[0]}}},
      {&weights.k_norm, if_has(config.qk_norm, k_norm), {{"self_attn.k_norm.weight", k_norm[0]}}},
      {&weights.output, {hidden, q}, {{"self_attn.o_proj.weight", hidden}}, &weights.output_adapter},
      {&weights.output_bias, if_has(config.output_bias, {hidden}), {{"self_attn.o_proj.bias", hidden}}},
  };
}

at::Tensor attention_forward(const AttentionWeights& weights, const ModelConfig& config,
                             const LayerKind& kind, const PackedPass& pass, const at::Tensor& x,
                             const at::Tensor& residual, AttentionTape& tape) {
  tape.qkv = linear_forward(x, weights.qkv, weights.qkv_bias, weights.qkv_adapter);
  norm_and_rotate(weights, config, kind, pass.ropes, pass.positions, tape);
  const Split parts = split_qkv(tape.qkv, config);
  tape.attended = packed_attention(parts.q, parts.k, parts.v, pass.lengths, sight_of(config, kind));
  return linear_forward(gated_output(tape, tape.attended.output, config), weights.output, weights.output_bias,
                        weights.output_adapter, residual);
}

at::Tensor attention_backward(const AttentionWeights& weights, const ModelConfig& config,
                              const LayerKind& kind, const PackedPass& pass, const at::Tensor& x,
                              const AttentionTape& tape, const at::Tensor& grad, AttentionWeights& into) {
  const at::Tensor at_output =
      linear_backward(grad, gated_output(tape, tape.attended.output, config), weights.output, into.output,
                      into.output_bias, weights.output_adapter, into.output_adapter);
  at::Tensor at_attended = at_output.unflatten(1, {-1, config.head_dim}), at_gate;
  if (config.gated_attention) {
    const at::Tensor gate = split_product(tape.raw_qkv, config).gate;
    at_gate = gate_by_sigmoid_backward(at_attended, tape.attended.output, gate);
    at_attended = gate_by_sigmoid(at_attended, gate);
  }
  const at::Tensor at_qkv = at::empty_like(tape.qkv);
  const Split parts = split_qkv(tape.qkv, config), gradients = split_qkv(at_qkv, config);
  packed_attention_backward(at_attended, parts.q, parts.k, parts.v, tape.attended, pass.lengths, gradients.q,
                            gradients.k, gradients.v, sight_of(config, kind));
  rotate_qkv(at_qkv, config, kind, pass.ropes, pass.positions, true);
  const at::Tensor at_product = config.gated_attention ? at::empty_like(tape.raw_qkv) : at_qkv;
  if (config.qk_norm) {
    const Split raw = split_product(tape.raw_qkv, config), to = split_product(at_product, config);
    const auto back = [&](const at::Tensor& at, const at::Tensor& from, const at::Tensor& result,
                          const at::Tensor& weight, const at::Tensor& into_weight) {
      result.copy_(rms_norm_backward(normed_rows(at, config), normed_rows(from, config), weight, config,
                                     into_weight, {})
                       .reshape(at.sizes()));
    };
    back(gradients.q, raw.q, to.q, weights.q_norm, into.q_norm);
    back(gradients.k, raw.k, to.k, weights.k_norm, into.k_norm);
    if (config.gated_attention) {
      to.v.copy_(gradients.v);
      to.gate.copy_(at_gate);
    }
  }
  return linear_backward(at_product, x, weights.qkv, into.qkv, into.qkv_bias, weights.qkv_adapter,
                         into.qkv_adapter);
}

void attention_infer(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind,
                     InferencePass& pass, int64_t layer, const at::Tensor& x, const at::Tensor& sum) {
  AttentionTape tape;
  tape.qkv = pass.matrices.of(weights.qkv).forward(x, weights.qkv_bias, weights.qkv_adapter);
  norm_and_rotate(weights, config, kind, pass.ropes, pass.positions, tape);
  const Split now = split_qkv(tape.qkv, config);
  const at::Tensor attended = at::empty(now.q.sizes(), x.options());
  pass.attention.run(layer, now.q, now.k, now.v, attended, sight_of(config, kind));
  pass.matrices.of(weights.output)
      .add(gated_output(tape, attended, config), weights.output_bias, sum, weights.output_adapter);
}

}  // namespace nlac
