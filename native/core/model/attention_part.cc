#include "core/model/attention_part.h"

#include <cmath>

#include "core/model/elementwise.h"

namespace nlac {
namespace {

// The sizes of a layer's attention. The product with the qkv matrix has the queries (of gated attention
// each with its gate), then the layer's own keys and values; where values come from the keys'
// projection they are not in the product.
struct Sizes {
  int64_t heads, kv_heads, d;
  bool gated, own_keys, projects_values;

  Sizes(const ModelConfig& config, const LayerKind& kind)
      : heads(config.heads),
        kv_heads(config.kv_heads_of(kind)),
        d(config.head_dim_of(kind)),
        gated(config.gated_attention),
        own_keys(kind.keys != Keys::borrowed),
        projects_values(own_keys && !kind.values_from_keys) {}

  int64_t q() const { return heads * d; }
  int64_t kv() const { return kv_heads * d; }
  int64_t q_rows() const { return gated ? 2 * q() : q(); }
  int64_t product() const { return q_rows() + (own_keys ? kv() : 0) + (projects_values ? kv() : 0); }
  int64_t qkv() const { return own_keys ? q() + 2 * kv() : q(); }
};

// Views of the parts of qkv [tokens, (heads + 2 kv_heads) head_dim], each [tokens, heads, head_dim]. Keys
// and values are undefined if the layer borrows them.
struct Split {
  at::Tensor q, k, v, gate;
};
Split split_qkv(const at::Tensor& qkv, const Sizes& sizes) {
  const auto part = [&](int64_t start, int64_t width) {
    return qkv.narrow(1, start, width).unflatten(1, {-1, sizes.d});
  };
  const int64_t q = sizes.q(), kv = sizes.kv();
  if (!sizes.own_keys) return {part(0, q), {}, {}, {}};
  return {part(0, q), part(q, kv), part(q + kv, kv), {}};
}

// The same of the product with the qkv matrix.
Split split_product(const at::Tensor& product, const Sizes& sizes) {
  const int64_t d = sizes.d, q = sizes.q_rows(), kv = sizes.kv();
  Split parts;
  if (sizes.gated) {
    const at::Tensor pairs = product.narrow(1, 0, q).unflatten(1, {sizes.heads, 2, d});
    parts.q = pairs.select(2, 0);
    parts.gate = pairs.select(2, 1);
  } else {
    parts.q = product.narrow(1, 0, q).unflatten(1, {-1, d});
  }
  if (!sizes.own_keys) return parts;
  parts.k = product.narrow(1, q, kv).unflatten(1, {-1, d});
  parts.v = sizes.projects_values ? product.narrow(1, q + kv, kv).unflatten(1, {-1, d}) : parts.k;
  return parts;
}

// q and k of a fused qkv: they are rotated together.
at::Tensor queries_and_keys(const at::Tensor& qkv, const Sizes& sizes) {
  return qkv.narrow(1, 0, sizes.own_keys ? sizes.q() + sizes.kv() : sizes.q()).unflatten(1, {-1, sizes.d});
}

// The rows that are normalised: each head's, or all heads' of a token.
at::Tensor normed_rows(const at::Tensor& heads, const ModelConfig& config) {
  return config.whole_qk_norm ? heads.flatten(1) : heads;
}

// The weight of the values' norm.
at::Tensor ones_for(const at::Tensor& values) { return at::ones({values.size(-1)}, values.options()); }

Sight sight_of(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind) {
  Sight sight{kind.window, config.attention_scalar > 0 ? 1 / std::sqrt(config.attention_scalar) : 0};
  if (weights.sinks.defined())
    sight.sinks = weights.sinks.to(weights.sinks.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return sight;
}

// Multiplies queries by their factor of growth, forward and backward.
void grow_queries(const at::Tensor& queries, const ModelConfig& config, const at::Tensor& positions) {
  const RopeConfig& rope = config.rope;
  if (rope.query_growth == 0) return;
  const at::Tensor turns = positions.div(rope.original_max_positions, "floor").to(at::kDouble);
  const at::Tensor factors = turns.log1p_().mul_(rope.query_growth).add_(1).to(queries.scalar_type());
  at::Tensor(queries).mul_(factors.view({-1, 1, 1}));
}

void rotate_qkv(const at::Tensor& qkv, const ModelConfig& config, const LayerKind& kind,
                const RopeTables& ropes, const at::Tensor& positions, bool inverse) {
  const Sizes sizes(config, kind);
  if (const Rope* rope = ropes.of(kind.rotary))
    rotate(queries_and_keys(qkv, sizes), *rope, positions, inverse);
  grow_queries(split_qkv(qkv, sizes).q, config, positions);
}

// From the product to what attention reads. `tape.raw_qkv` is set if there are norms.
void norm_and_rotate(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind,
                     const RopeTables& ropes, const at::Tensor& positions, AttentionTape& tape) {
  if (config.qk_norm) {
    const Sizes sizes(config, kind);
    tape.raw_qkv = tape.qkv;
    const Split raw = split_product(tape.raw_qkv, sizes);
    tape.qkv = at::empty({tape.raw_qkv.size(0), sizes.qkv()}, tape.raw_qkv.options());
    const Split normed = split_qkv(tape.qkv, sizes);
    const auto norm = [&](const at::Tensor& from, const at::Tensor& to, const at::Tensor& weight) {
      if (config.whole_qk_norm)
        rms_norm_heads(from.flatten(1).unsqueeze(1), weight, config, to.flatten(1).unsqueeze(1));
      else
        rms_norm_heads(from, weight, config, to);
    };
    norm(raw.q, normed.q, weights.q_norm);
    if (sizes.own_keys) {
      norm(raw.k, normed.k, weights.k_norm);
      if (config.value_norm)
        rms_norm_heads(raw.v, ones_for(raw.v), config, normed.v);
      else
        at::Tensor(normed.v).copy_(raw.v);
    }
  }
  rotate_qkv(tape.qkv, config, kind, ropes, positions, false);
}

// Queries, keys and values of whole sequences; the keys may be another layer's.
Split read_by_attention(const at::Tensor& qkv, const ModelConfig& config, const LayerKind& kind,
                        const PackedPass& pass) {
  Split parts = split_qkv(qkv, Sizes(config, kind));
  if (kind.keys != Keys::borrowed) return parts;
  const LentKeys& lent = pass.lent->at(kind.keys_of);
  parts.k = lent.keys;
  parts.v = lent.values;
  return parts;
}

// The input of the output's projection, [tokens, heads · head_dim].
at::Tensor gated_output(const AttentionTape& tape, const at::Tensor& attended, const Sizes& sizes) {
  if (!sizes.gated) return attended.flatten(1);
  return gate_by_sigmoid(attended, split_product(tape.raw_qkv, sizes).gate).flatten(1);
}

// sum += part, in float32 (f64 for f64).
void add_to(at::Tensor& sum, const at::Tensor& part) {
  const auto wide = part.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  sum = sum.defined() ? sum.add_(part) : part.to(wide);
}

// The gradient at the product, given that at the normalised queries, keys and values.
at::Tensor norms_backward(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind,
                          const AttentionTape& tape, const at::Tensor& at_qkv, const at::Tensor& at_gate,
                          AttentionWeights& into) {
  const Sizes sizes(config, kind);
  const bool in_place = !sizes.gated && !config.value_norm;
  const at::Tensor at_product = in_place ? at_qkv : at::empty_like(tape.raw_qkv);
  const Split raw = split_product(tape.raw_qkv, sizes), to = split_product(at_product, sizes),
              at = split_qkv(at_qkv, sizes);
  const auto back = [&](const at::Tensor& at_normed, const at::Tensor& from, at::Tensor result,
                        const at::Tensor& weight, const at::Tensor& into_weight) {
    result.copy_(rms_norm_backward(normed_rows(at_normed, config), normed_rows(from, config), weight, config,
                                   into_weight, {})
                     .reshape(at_normed.sizes()));
  };
  back(at.q, raw.q, to.q, weights.q_norm, into.q_norm);
  if (sizes.gated) to.gate.copy_(at_gate);
  if (!sizes.own_keys) return at_product;
  back(at.k, raw.k, to.k, weights.k_norm, into.k_norm);
  if (in_place) return at_product;
  const at::Tensor at_values =
      config.value_norm ? rms_norm_backward(at.v, raw.v, ones_for(raw.v), config, {}, {}) : at.v;
  if (sizes.projects_values)
    to.v.copy_(at_values);
  else
    to.k.add_(at_values);
  return at_product;
}

}  // namespace

std::vector<Parameter> attention_parameters(const ModelConfig& config, const LayerKind& kind,
                                            AttentionWeights& weights) {
  const Sizes sizes(config, kind);
  const int64_t hidden = config.hidden_size, q = sizes.q(), kv = sizes.kv();
  using Shape = std::vector<int64_t>;
  const auto if_has = [](bool has, Shape shape) { return has ? shape : Shape{}; };
  const auto rows = [&](const char* ending) {
    const auto name = [&](const char* projection) { return std::string("self_attn.") + projection + ending; };
    std::vector<std::pair<std::string, int64_t>> all{{name("q_proj"), sizes.q_rows()}};
    if (sizes.own_keys) all.emplace_back(name("k_proj"), kv);
    if (sizes.projects_values) all.emplace_back(name("v_proj"), kv);
    return all;
  };
  const Shape q_norm{config.whole_qk_norm ? q : sizes.d}, k_norm{config.whole_qk_norm ? kv : sizes.d};
  return {
      {&weights.qkv, {sizes.product(), hidden}, rows(".weight"), &weights.qkv_adapter},
      {&weights.qkv_bias, if_has(config.qkv_bias, {sizes.product()}), rows(".bias")},
      {&weights.q_norm, if_has(config.qk_norm, q_norm), {{"self_attn.q_norm.weight", q_norm[0]}}},
      {&weights.k_norm,
       if_has(config.qk_norm && sizes.own_keys, k_norm),
       {{"self_attn.k_norm.weight", k_norm[0]}}},
      {&weights.sinks, if_has(config.attention_sinks, {config.heads}), {{"self_attn.sinks", config.heads}}},
      {&weights.output, {hidden, q}, {{"self_attn.o_proj.weight", hidden}}, &weights.output_adapter},
      {&weights.output_bias, if_has(config.output_bias, {hidden}), {{"self_attn.o_proj.bias", hidden}}},
  };
}

at::Tensor attention_forward(const AttentionWeights& weights, const ModelConfig& config,
                             const LayerKind& kind, const PackedPass& pass, const at::Tensor& x,
                             const at::Tensor& residual, AttentionTape& tape) {
  tape.qkv = linear_forward(x, weights.qkv, weights.qkv_bias, weights.qkv_adapter);
  norm_and_rotate(weights, config, kind, pass.ropes, pass.positions, tape);
  const Split parts = read_by_attention(tape.qkv, config, kind, pass);
  if (kind.keys == Keys::lent) {
    LentKeys& lent = (*pass.lent)[kind.keys_of];
    lent.keys = parts.k;
    lent.values = parts.v;
  }
  tape.attended =
      packed_attention(parts.q, parts.k, parts.v, pass.sequences, sight_of(weights, config, kind));
  return linear_forward(gated_output(tape, tape.attended.output, Sizes(config, kind)), weights.output,
                        weights.output_bias, weights.output_adapter, residual);
}

at::Tensor attention_backward(const AttentionWeights& weights, const ModelConfig& config,
                              const LayerKind& kind, const PackedPass& pass, const at::Tensor& x,
                              const AttentionTape& tape, const at::Tensor& grad, AttentionWeights& into) {
  const Sizes sizes(config, kind);
  const at::Tensor at_output =
      linear_backward(grad, gated_output(tape, tape.attended.output, sizes), weights.output, into.output,
                      into.output_bias, weights.output_adapter, into.output_adapter);
  at::Tensor at_attended = at_output.unflatten(1, {-1, sizes.d}), at_gate;
  if (sizes.gated) {
    const at::Tensor gate = split_product(tape.raw_qkv, sizes).gate;
    at_gate = gate_by_sigmoid_backward(at_attended, tape.attended.output, gate);
    at_attended = gate_by_sigmoid(at_attended, gate);
  }
  const at::Tensor at_qkv = at::empty_like(tape.qkv);
  const Split parts = read_by_attention(tape.qkv, config, kind, pass);
  Split gradients = split_qkv(at_qkv, sizes);
  if (!sizes.own_keys) {
    gradients.k = at::empty(parts.k.sizes(), parts.k.options());
    gradients.v = at::empty(parts.v.sizes(), parts.v.options());
  }
  const Sight sight = sight_of(weights, config, kind);
  packed_attention_backward(at_attended, parts.q, parts.k, parts.v, tape.attended, pass.sequences,
                            gradients.q, gradients.k, gradients.v, sight);
  if (into.sinks.defined())
    into.sinks.add_(sinks_backward(at_attended, tape.attended, pass.sequences, sight.sinks));
  if (kind.keys == Keys::borrowed) {
    LentKeys& lent = pass.lent->at(kind.keys_of);
    add_to(lent.at_keys, gradients.k);
    add_to(lent.at_values, gradients.v);
  } else if (kind.keys == Keys::lent) {
    const LentKeys lent = pass.lent->extract(kind.keys_of).mapped();
    if (lent.at_keys.defined()) gradients.k.add_(lent.at_keys);
    if (lent.at_values.defined()) gradients.v.add_(lent.at_values);
  }
  rotate_qkv(at_qkv, config, kind, pass.ropes, pass.positions, true);
  const at::Tensor at_product =
      config.qk_norm ? norms_backward(weights, config, kind, tape, at_qkv, at_gate, into) : at_qkv;
  return linear_backward(at_product, x, weights.qkv, into.qkv, into.qkv_bias, weights.qkv_adapter,
                         into.qkv_adapter);
}

void attention_infer(const AttentionWeights& weights, const ModelConfig& config, const LayerKind& kind,
                     InferencePass& pass, int64_t layer, const at::Tensor& x, const at::Tensor& sum) {
  AttentionTape tape;
  tape.qkv = pass.matrices.of(weights.qkv).forward(x, weights.qkv_bias, weights.qkv_adapter);
  norm_and_rotate(weights, config, kind, pass.ropes, pass.positions, tape);
  const Split now = split_qkv(tape.qkv, Sizes(config, kind));
  const at::Tensor attended = at::empty(now.q.sizes(), x.options());
  pass.attention.run(layer, now.q, now.k, now.v, attended, sight_of(weights, config, kind));
  pass.matrices.of(weights.output)
      .add(gated_output(tape, attended, Sizes(config, kind)), weights.output_bias, sum,
           weights.output_adapter);
}

}  // namespace nlac
