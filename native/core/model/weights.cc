#include "core/model/weights.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"
#include "core/model/weight_names.h"
#include "core/random.h"

namespace nlac {
namespace {

constexpr std::pair<Heads, const char*> names_of_heads[] = {
    {Heads::none, "none"}, {Heads::value, "value"}, {Heads::q, "q"}};
// Approximate standard deviation of a new Q head's values.
constexpr double initial_value = 0.1;

// The fields of a layer, in the order of Weights::list().
constexpr std::array layer_fields = {
    &LayerWeights::input_norm,   &LayerWeights::qkv,       &LayerWeights::qkv_bias,
    &LayerWeights::q_norm,       &LayerWeights::k_norm,    &LayerWeights::output,
    &LayerWeights::output_bias,  &LayerWeights::post_norm, &LayerWeights::gate_up,
    &LayerWeights::gate_up_bias, &LayerWeights::down,      &LayerWeights::down_bias,
};

template <typename Make>
Weights transform(const Weights& from, Make make) {
  const auto each = [&](const at::Tensor& tensor) { return tensor.defined() ? make(tensor) : at::Tensor(); };
  Weights to;
  to.embedding = each(from.embedding);
  for (const LayerWeights& layer : from.layers) {
    LayerWeights& made = to.layers.emplace_back();
    for (const auto field : layer_fields) made.*field = each(layer.*field);
    for (const auto field : layer_adapters) {
      const Adapter& adapter = layer.*field;
      made.*field = {adapter.parts, each(adapter.a), each(adapter.b), adapter.scale};
    }
  }
  to.norm = each(from.norm);
  to.head = from.head.is_same(from.embedding) ? to.embedding : each(from.head);
  to.value = each(from.value);
  to.value_bias = each(from.value_bias);
  for (size_t i = 0; i < from.q.size(); ++i) to.q[i] = {each(from.q[i].advantage), each(from.q[i].value)};
  return to;
}

}  // namespace

bool Weights::adapted() const {
  return std::any_of(layer_adapters.begin(), layer_adapters.end(), [&](const auto field) {
    return !layers.empty() && (layers.front().*field).a.defined();
  });
}

const char* heads_name(Heads heads) {
  for (const auto& [known, name] : names_of_heads)
    if (heads == known) return name;
  fail("ERR_INTERNAL", "unnamed heads");
}

std::optional<Heads> heads_named(std::string_view wanted) {
  for (const auto& [heads, name] : names_of_heads)
    if (wanted == name) return heads;
  return std::nullopt;
}

std::vector<at::Tensor> Weights::list() const {
  std::vector<at::Tensor> tensors;
  if (adapted()) {
    for (const LayerWeights& layer : layers) {
      for (const auto field : layer_adapters) {
        const Adapter& adapter = layer.*field;
        if (adapter.a.defined()) tensors.insert(tensors.end(), {adapter.a, adapter.b});
      }
    }
  } else {
    tensors.push_back(embedding);
    for (const LayerWeights& layer : layers) {
      for (const auto field : layer_fields) {
        if ((layer.*field).defined()) tensors.push_back(layer.*field);
      }
    }
    tensors.push_back(norm);
    if (!head.is_same(embedding)) tensors.push_back(head);
  }
  for (const at::Tensor& tensor : {value, value_bias}) {
    if (tensor.defined()) tensors.push_back(tensor);
  }
  if (heads() == Heads::q) {
    for (const QHead& twin : q) tensors.insert(tensors.end(), {twin.advantage, twin.value});
  }
  return tensors;
}

Weights Weights::like(at::ScalarType dtype, at::Device device) const {
  return transform(*this, [&](const at::Tensor& from) {
    return at::empty(from.sizes(), from.options().dtype(dtype).device(device));
  });
}

Weights Weights::zeros_like(at::ScalarType dtype) const {
  return transform(
      *this, [&](const at::Tensor& from) { return at::zeros(from.sizes(), from.options().dtype(dtype)); });
}

Weights Weights::copy_as(at::ScalarType dtype, at::Device device) const {
  return transform(*this, [&](const at::Tensor& from) {
    return from.to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
  });
}

static NamedTensors named_adapters(const std::vector<LayerWeights>& layers) {
  NamedTensors views;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto field : layer_adapters) {
      const Adapter& adapter = layers[i].*field;
      const bool attention = field == &LayerWeights::qkv_adapter || field == &LayerWeights::output_adapter;
      const std::string prefix =
          "base_model.model.model.layers." + std::to_string(i) + (attention ? ".self_attn." : ".mlp.");
      for (size_t p = 0; p < adapter.parts.size(); ++p) {
        views.emplace_back(prefix + adapter.parts[p].name + ".lora_A.weight", adapter.part_a(p));
        views.emplace_back(prefix + adapter.parts[p].name + ".lora_B.weight", adapter.part_b(p));
      }
    }
  }
  return views;
}

static NamedTensors named_model(const Weights& weights, const ModelConfig& config) {
  NamedTensors views;
  const auto add = [&](std::string name, at::Tensor tensor) {
    if (tensor.defined()) views.emplace_back(std::move(name), std::move(tensor));
  };
  const auto add_split = [&](const std::string& prefix, const char* kind, const at::Tensor& fused,
                             std::initializer_list<std::pair<const char*, int64_t>> parts) {
    if (!fused.defined()) return;
    int64_t begin = 0;
    for (const auto& [name, rows] : parts) {
      add(prefix + name + kind, fused.narrow(0, begin, rows));
      begin += rows;
    }
  };
  const int64_t q_rows = config.heads * config.head_dim, kv_rows = config.kv_heads * config.head_dim;

  add("model.embed_tokens.weight", weights.embedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    add(prefix + "input_layernorm.weight", layer.input_norm);
    for (const auto& [kind, fused] : {std::pair{".weight", layer.qkv}, std::pair{".bias", layer.qkv_bias}}) {
      add_split(attention, kind, fused, {{"q_proj", q_rows}, {"k_proj", kv_rows}, {"v_proj", kv_rows}});
    }
    add(attention + "q_norm.weight", layer.q_norm);
    add(attention + "k_norm.weight", layer.k_norm);
    add(attention + "o_proj.weight", layer.output);
    add(attention + "o_proj.bias", layer.output_bias);
    add(prefix + "post_attention_layernorm.weight", layer.post_norm);
    for (const auto& [kind, fused] :
         {std::pair{".weight", layer.gate_up}, std::pair{".bias", layer.gate_up_bias}}) {
      add_split(mlp, kind, fused,
                {{"gate_proj", config.intermediate_size}, {"up_proj", config.intermediate_size}});
    }
    add(mlp + "down_proj.weight", layer.down);
    add(mlp + "down_proj.bias", layer.down_bias);
  }
  add("model.norm.weight", weights.norm);
  if (!weights.head.is_same(weights.embedding)) add("lm_head.weight", weights.head);
  return views;
}

NamedTensors Weights::named_views(const ModelConfig& config) const {
  NamedTensors views = adapted() ? named_adapters(layers) : named_model(*this, config);
  if (value.defined()) views.insert(views.end(), {{value_name, value}, {value_bias_name, value_bias}});
  for (size_t i = 0; i < q.size() && heads() == Heads::q; ++i) {
    const std::string prefix = std::string(q_prefix) + std::to_string(i);
    views.insert(views.end(), {{prefix + ".advantage", q[i].advantage}, {prefix + ".value", q[i].value}});
  }
  return views;
}

Weights Weights::without_heads() const {
  Weights plain = *this;
  plain.value.reset();
  plain.value_bias.reset();
  plain.q = {};
  return plain;
}

void Weights::take_heads(const Weights& other) {
  value = other.value;
  value_bias = other.value_bias;
  q = other.q;
}

void Weights::add_heads(Heads wanted) {
  if (wanted == heads()) return;
  const auto real = norm.options().dtype(at::kFloat);
  if (wanted == Heads::value) {
    value = at::zeros({1, norm.size(0)}, real);
    value_bias = at::zeros({1}, real);
  }
  if (wanted == Heads::q) {
    for (QHead& twin : q) twin = {at::empty(head.sizes(), real), at::empty({1, head.size(1)}, real)};
    reset_q_heads(*this);
  }
}

void Weights::reset_q_heads(const Weights& model) const {
  // The length of a final-normed hidden state is about that of the norm's weight.
  const double size = initial_value / model.norm.norm().item<double>();
  for (size_t i = 0; i < q.size(); ++i) {
    q[i].advantage.copy_(model.head);
    // Random signs, the same in every model; they only need to make the twins differ.
    std::vector<float> value;
    for (int64_t j = 0; j < model.head.size(1); ++j)
      value.push_back(static_cast<float>(philox(0, i, static_cast<uint64_t>(j))[0] % 2 ? size : -size));
    q[i].value.copy_(at::tensor(value, at::kFloat).unsqueeze(0));
  }
}

Weights allocate_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device, Heads heads) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  const auto make = [&](bool wanted, std::initializer_list<int64_t> shape) {
    return wanted ? at::empty(at::IntArrayRef(shape), options) : at::Tensor();
  };
  const auto make_head = [&](bool wanted, std::initializer_list<int64_t> shape) {
    return wanted ? at::empty(at::IntArrayRef(shape), options.dtype(at::kFloat)) : at::Tensor();
  };
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_rows = config.heads * config.head_dim;
  const int64_t qkv_rows = q_rows + 2 * config.kv_heads * config.head_dim;

  Weights weights;
  weights.embedding = make(true, {config.vocab_size, hidden});
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    layer.input_norm = make(true, {hidden});
    layer.qkv = make(true, {qkv_rows, hidden});
    layer.qkv_bias = make(config.qkv_bias, {qkv_rows});
    layer.q_norm = make(config.qk_norm, {config.head_dim});
    layer.k_norm = make(config.qk_norm, {config.head_dim});
    layer.output = make(true, {hidden, q_rows});
    layer.output_bias = make(config.output_bias, {hidden});
    layer.post_norm = make(true, {hidden});
    layer.gate_up = make(true, {2 * intermediate, hidden});
    layer.gate_up_bias = make(config.mlp_bias, {2 * intermediate});
    layer.down = make(true, {hidden, intermediate});
    layer.down_bias = make(config.mlp_bias, {hidden});
  }
  weights.norm = make(true, {hidden});
  weights.head = config.tied_embeddings ? weights.embedding : make(true, {config.vocab_size, hidden});
  weights.value = make_head(heads == Heads::value, {1, hidden});
  weights.value_bias = make_head(heads == Heads::value, {1});
  for (QHead& twin : weights.q)
    twin = {make_head(heads == Heads::q, {config.vocab_size, hidden}),
            make_head(heads == Heads::q, {1, hidden})};
  return weights;
}

}  // namespace nlac
