#include "core/model/decoder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/model/attention.h"
#include "core/model/elementwise.h"
#include "core/model/linear.h"

namespace nlac {
namespace {

// This file does not use torch's autograd: its dispatch keys are excluded from every call.
using WithoutAutograd = at::AutoDispatchBelowADInplaceOrView;

// Views of the three parts of qkv [tokens, (heads + 2 kv_heads) head_dim], each [tokens, heads,
// head_dim].
struct Split {
  at::Tensor q, k, v;
};
Split split_qkv(const at::Tensor& qkv, const ModelConfig& config) {
  const int64_t d = config.head_dim, q = config.heads * d, kv = config.kv_heads * d;
  const auto part = [&](int64_t start, int64_t width) {
    return qkv.narrow(1, start, width).unflatten(1, {-1, d});
  };
  return {part(0, q), part(q, kv), part(q + kv, kv)};
}

// q and k of a fused qkv: they are rotated together.
at::Tensor queries_and_keys(const at::Tensor& qkv, const ModelConfig& config) {
  return qkv.narrow(1, 0, (config.heads + config.kv_heads) * config.head_dim)
      .unflatten(1, {-1, config.head_dim});
}

// A layer's activations up to attention. `qkv` is normalised and rotated; `raw_qkv` is before that,
// and defined only if backward needs it (q and k norms).
struct Projected {
  at::Tensor qkv, raw_qkv;
};
// `product` is linear_forward, or its replacement in inference.
template <typename Product>
Projected project(const LayerWeights& layer, const ModelConfig& config, const Rope& rope,
                  const at::Tensor& positions, const at::Tensor& x, const Product& product) {
  Projected result;
  result.qkv = product(rms_norm(x, layer.input_norm, config.rms_norm_eps), layer.qkv, layer.qkv_bias,
                       layer.qkv_adapter);
  if (config.qk_norm) {
    result.raw_qkv = result.qkv;
    const Split raw = split_qkv(result.raw_qkv, config);
    result.qkv = at::empty_like(result.raw_qkv);
    const Split normed = split_qkv(result.qkv, config);
    normed.q.copy_(rms_norm(raw.q, layer.q_norm, config.rms_norm_eps));
    normed.k.copy_(rms_norm(raw.k, layer.k_norm, config.rms_norm_eps));
    normed.v.copy_(raw.v);
  }
  rotate(queries_and_keys(result.qkv, config), rope, positions, false);
  return result;
}

// The second half of a layer, from the residual stream after attention.
at::Tensor gate_and_up(const LayerWeights& layer, const ModelConfig& config, const at::Tensor& middle) {
  return linear_forward(rms_norm(middle, layer.post_norm, config.rms_norm_eps), layer.gate_up,
                        layer.gate_up_bias, layer.gate_up_adapter);
}
at::Tensor layer_output(const LayerWeights& layer, const at::Tensor& middle, const at::Tensor& gate_up) {
  return linear_forward(gated_silu(gate_up), layer.down, layer.down_bias, layer.down_adapter, middle);
}
at::Tensor after_attention(const LayerWeights& layer, const at::Tensor& x, const at::Tensor& attended) {
  return linear_forward(attended.flatten(1), layer.output, layer.output_bias, layer.output_adapter, x);
}

at::ScalarType residual_type(const Weights& weights) {
  return weights.embedding.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void require_ids(const Weights& weights, const ModelConfig& config, const at::Tensor& ids) {
  NLAC_REQUIRE(ids.dim() == 1 && ids.scalar_type() == at::kLong, "ERR_SHAPE",
               "ids must be [tokens] int64, got ", ids.toString(), " of ", ids.dim(), " dimensions");
  NLAC_REQUIRE(ids.size(0) > 0, "ERR_SHAPE", "ids must hold at least one token");
  NLAC_REQUIRE(ids.device() == weights.embedding.device(), "ERR_DEVICE", "ids are on ", ids.device().str(),
               ", the weights on ", weights.embedding.device().str());
  NLAC_REQUIRE(static_cast<int64_t>(weights.layers.size()) == config.layers, "ERR_SHAPE", "the weights have ",
               weights.layers.size(), " layers, the config ", config.layers);
  if (!ids.is_cpu()) return;  // a GPU reports a bad id itself; a check would wait for it
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i)
    NLAC_REQUIRE(id[i * ids.stride(0)] >= 0 && id[i * ids.stride(0)] < config.vocab_size, "ERR_VALUE",
                 "token id ", id[i * ids.stride(0)], " is outside the vocabulary of ", config.vocab_size);
}

// 0, 1, …, lengths[0] - 1, 0, 1, …
at::Tensor packed_positions(const std::vector<int64_t>& lengths, at::Device device) {
  std::vector<int64_t> positions;
  for (const int64_t length : lengths)
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
  return at::tensor(positions, at::kLong).to(device);
}

}  // namespace

const Rope& Decoder::rope(int64_t positions, at::Device device) {
  const int64_t held = rope_.cos.defined() && rope_.cos.device() == device ? rope_.cos.size(0) : 0;
  if (positions > held) rope_ = Rope::make(config_, std::max({positions, 2 * held, int64_t{1024}}), device);
  return rope_;
}

const PackedMatrix& Decoder::packed(const at::Tensor& weight) {
  const auto [entry, fresh] = packed_.try_emplace(weight.unsafeGetTensorImpl());
  if (fresh) entry->second = PackedMatrix(weight, int8_);
  return entry->second;
}

void Decoder::forget_packed(const Weights& weights) {
  for (const at::Tensor& tensor : weights.list()) packed_.erase(tensor.unsafeGetTensorImpl());
  cuda_.forget();
}

at::Tensor Decoder::infer(const Weights& weights, const at::Tensor& ids, const KvStore& store,
                          const std::vector<KvSlice>& slices) {
  WithoutAutograd guard;
  require_ids(weights, config_, ids);
  std::vector<int64_t> position_list;
  int64_t longest = 0;
  for (const KvSlice& slice : slices) {
    NLAC_REQUIRE(slice.fresh > 0, "ERR_SHAPE", "a slice must have at least one new token, got ", slice.fresh);
    const int64_t end = slice.past + slice.fresh;
    NLAC_REQUIRE(end <= static_cast<int64_t>(slice.blocks->size()) * kBlockTokens, "ERR_SHAPE", "a slice of ",
                 end, " tokens has ", slice.blocks->size(), " blocks");
    for (int64_t i = slice.past; i < end; ++i) position_list.push_back(i);
    longest = std::max(longest, end);
  }
  NLAC_REQUIRE(static_cast<int64_t>(position_list.size()) == ids.size(0), "ERR_SHAPE", "the slices have ",
               position_list.size(), " tokens, ids ", ids.size(0));
  const Rope& table = rope(longest, ids.device());
  if (CudaInference::takes(weights, config_, store))
    return cuda_.infer(weights, config_, table, ids, store, slices);
  const at::Tensor positions = at::tensor(position_list, at::kLong).to(ids.device());

  const CachedAttention attention(store, slices, ids.device());

  // The residual stream is float32: batches are small, and each layer would round it twice.
  at::Tensor x = weights.embedding.index_select(0, ids).to(residual_type(weights));
  for (int64_t l = 0; l < config_.layers; ++l) {
    const LayerWeights& layer = weights.layers[l];
    const auto product = [&](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                             const Adapter& adapter) { return packed(weight).forward(input, bias, adapter); };
    const Split now = split_qkv(project(layer, config_, table, positions, x, product).qkv, config_);
    at::Tensor attended =
        at::empty({ids.size(0), config_.heads, config_.head_dim}, weights.embedding.options());
    attention.run(l, now.q, now.k, now.v, attended);
    packed(layer.output).add(attended.flatten(1), layer.output_bias, x, layer.output_adapter);
    const at::Tensor gate_up = product(rms_norm(x, layer.post_norm, config_.rms_norm_eps), layer.gate_up,
                                       layer.gate_up_bias, layer.gate_up_adapter);
    packed(layer.down).add(gated_silu(gate_up), layer.down_bias, x, layer.down_adapter);
  }
  return rms_norm(x, weights.norm, config_.rms_norm_eps);
}

at::Tensor Decoder::infer_logits(const Weights& weights, const at::Tensor& hidden) {
  WithoutAutograd guard;
  return packed(weights.head).in_float(hidden);
}

// One layer's activations. With `recompute` backward computes all but the input again, by the same
// code.
struct LayerTape {
  at::Tensor input;  // [tokens, hidden]
  Projected projected;
  Attended attended;
  at::Tensor middle;   // [tokens, hidden], the residual stream after attention
  at::Tensor gate_up;  // [tokens, 2 intermediate]
};

struct Decoder::Tape {
  at::Tensor ids, positions;
  std::vector<int64_t> lengths;
  Rope rope;
  bool recompute = false;
  std::vector<LayerTape> layers;
  at::Tensor last;  // [tokens, hidden], before the final norm
};

namespace {

LayerTape run_layer(const LayerWeights& layer, const ModelConfig& config, const Rope& rope,
                    const at::Tensor& positions, const std::vector<int64_t>& lengths,
                    const at::Tensor& input) {
  LayerTape tape;
  tape.input = input;
  const auto product = [](const auto&... arguments) { return linear_forward(arguments...); };
  tape.projected = project(layer, config, rope, positions, input, product);
  const Split parts = split_qkv(tape.projected.qkv, config);
  tape.attended = packed_attention(parts.q, parts.k, parts.v, lengths);
  tape.middle = after_attention(layer, input, tape.attended.output);
  tape.gate_up = gate_and_up(layer, config, tape.middle);
  return tape;
}

// `grad` is the gradient at the layer's output; returns the gradient at its input.
at::Tensor run_layer_backward(const LayerWeights& layer, const ModelConfig& config, const Rope& rope,
                              const at::Tensor& positions, const std::vector<int64_t>& lengths,
                              const LayerTape& tape, const at::Tensor& grad, LayerWeights& into) {
  const double eps = config.rms_norm_eps;
  at::Tensor inner = linear_backward(grad, gated_silu(tape.gate_up), layer.down, into.down, into.down_bias,
                                     layer.down_adapter, into.down_adapter);
  inner = gated_silu_backward(inner, tape.gate_up);
  inner = linear_backward(inner, rms_norm(tape.middle, layer.post_norm, eps), layer.gate_up, into.gate_up,
                          into.gate_up_bias, layer.gate_up_adapter, into.gate_up_adapter);
  const at::Tensor at_middle =
      rms_norm_backward(inner, tape.middle, layer.post_norm, eps, into.post_norm, grad);

  inner = linear_backward(at_middle, tape.attended.output.flatten(1), layer.output, into.output,
                          into.output_bias, layer.output_adapter, into.output_adapter);
  at::Tensor at_qkv = at::empty_like(tape.projected.qkv);
  const Split parts = split_qkv(tape.projected.qkv, config), gradients = split_qkv(at_qkv, config);
  packed_attention_backward(inner.unflatten(1, {-1, config.head_dim}), parts.q, parts.k, parts.v,
                            tape.attended, lengths, gradients.q, gradients.k, gradients.v);
  rotate(queries_and_keys(at_qkv, config), rope, positions, true);
  if (config.qk_norm) {
    const Split raw = split_qkv(tape.projected.raw_qkv, config);
    gradients.q.copy_(rms_norm_backward(gradients.q, raw.q, layer.q_norm, eps, into.q_norm, {}));
    gradients.k.copy_(rms_norm_backward(gradients.k, raw.k, layer.k_norm, eps, into.k_norm, {}));
  }
  inner = linear_backward(at_qkv, rms_norm(tape.input, layer.input_norm, eps), layer.qkv, into.qkv,
                          into.qkv_bias, layer.qkv_adapter, into.qkv_adapter);
  return rms_norm_backward(inner, tape.input, layer.input_norm, eps, into.input_norm, at_middle);
}

void require_lengths(const at::Tensor& ids, const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (const int64_t length : lengths) {
    NLAC_REQUIRE(length > 0, "ERR_SHAPE", "a sequence must have at least one token, got ", length);
    total += length;
  }
  NLAC_REQUIRE(total == ids.size(0), "ERR_SHAPE", "the lengths sum to ", total, ", ids has ", ids.size(0));
}

}  // namespace

at::Tensor Decoder::forward(const Weights& weights, const at::Tensor& ids,
                            const std::vector<int64_t>& lengths, bool recompute,
                            std::shared_ptr<Tape>& tape) {
  WithoutAutograd guard;
  require_ids(weights, config_, ids);
  require_lengths(ids, lengths);
  tape = std::make_shared<Tape>();
  tape->ids = ids;
  tape->lengths = lengths;
  tape->recompute = recompute;
  tape->positions = packed_positions(lengths, ids.device());
  tape->rope = rope(*std::max_element(lengths.begin(), lengths.end()), ids.device());
  at::Tensor x = weights.embedding.index_select(0, ids);
  for (const LayerWeights& layer : weights.layers) {
    LayerTape now = run_layer(layer, config_, tape->rope, tape->positions, lengths, x);
    x = layer_output(layer, now.middle, now.gate_up);
    if (recompute) {
      LayerTape kept;
      kept.input = now.input;
      now = kept;
    }
    tape->layers.push_back(std::move(now));
  }
  tape->last = x;
  return rms_norm(x, weights.norm, config_.rms_norm_eps);
}

at::Tensor Decoder::forward(const Weights& weights, const at::Tensor& ids,
                            const std::vector<int64_t>& lengths) {
  WithoutAutograd guard;
  require_ids(weights, config_, ids);
  require_lengths(ids, lengths);
  const at::Tensor positions = packed_positions(lengths, ids.device());
  const Rope& table = rope(*std::max_element(lengths.begin(), lengths.end()), ids.device());
  at::Tensor x = weights.embedding.index_select(0, ids);
  for (const LayerWeights& layer : weights.layers) {
    const LayerTape now = run_layer(layer, config_, table, positions, lengths, x);
    x = layer_output(layer, now.middle, now.gate_up);
  }
  return rms_norm(x, weights.norm, config_.rms_norm_eps);
}

// gradient[ids[t]] += rows[t] in the order of t, so that runs are deterministic. index_put_ sorts
// on a GPU, but on a CPU its threads add atomically in any order.
static void add_embedding_gradient(at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows) {
  const at::Tensor added = rows.to(gradient.scalar_type()).contiguous();
  if (!gradient.is_cpu()) {
    gradient.index_put_({ids}, added, true);
    return;
  }
  const int64_t tokens = added.size(0), hidden = added.size(1);
  const at::Tensor index = ids.contiguous();
  const int64_t* id = index.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(added.scalar_type(), "add_embedding_gradient", [&] {
    const scalar_t* from = added.const_data_ptr<scalar_t>();
    scalar_t* to = gradient.mutable_data_ptr<scalar_t>();
    // Each thread has its own columns.
    at::parallel_for(0, hidden, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = begin; c < end; ++c) to[id[t] * hidden + c] += from[t * hidden + c];
    });
  });
}

void Decoder::backward(const Weights& weights, std::shared_ptr<Tape> tape, const at::Tensor& grad_hidden,
                       Weights& gradients) {
  WithoutAutograd guard;
  NLAC_REQUIRE(tape && tape->last.defined(), "ERR_VALUE", "the tape is missing or was already consumed");
  NLAC_REQUIRE(grad_hidden.sizes() == tape->last.sizes(), "ERR_SHAPE", "grad_hidden must be [",
               tape->last.size(0), ", ", tape->last.size(1), "]");
  at::Tensor grad =
      rms_norm_backward(grad_hidden, tape->last, weights.norm, config_.rms_norm_eps, gradients.norm, {});
  tape->last.reset();
  for (size_t l = weights.layers.size(); l-- > 0;) {
    const LayerWeights& layer = weights.layers[l];
    LayerTape now = std::exchange(tape->layers[l], {});
    if (tape->recompute)
      now = run_layer(layer, config_, tape->rope, tape->positions, tape->lengths, now.input);
    grad = run_layer_backward(layer, config_, tape->rope, tape->positions, tape->lengths, now, grad,
                              gradients.layers[l]);
  }
  if (gradients.embedding.defined()) add_embedding_gradient(gradients.embedding, tape->ids, grad);
}

at::Tensor logits(const at::Tensor& hidden, const at::Tensor& head) {
  WithoutAutograd guard;
  return linear_in_float(hidden, head);
}

}  // namespace nlac
