#include "core/model/weights.h"

#include <algorithm>
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

template <typename Make>
Weights transform(const Weights& from, Make make) {
  const auto each = [&](const at::Tensor& tensor) { return tensor.defined() ? make(tensor) : at::Tensor(); };
  Weights to;
  to.embedding = each(from.embedding);
  to.layer_inputs = {each(from.layer_inputs.rows), each(from.layer_inputs.project),
                     each(from.layer_inputs.norm)};
  for (const LayerWeights& layer : from.layers) {
    LayerWeights& made = to.layers.emplace_back();
    const auto tensors = layer.tensors();
    const auto made_tensors = made.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) *made_tensors[i] = each(*tensors[i]);
    const auto adapters = layer.adapters();
    const auto made_adapters = made.adapters();
    for (size_t i = 0; i < adapters.size(); ++i) {
      const Adapter& adapter = *adapters[i];
      *made_adapters[i] = {adapter.parts, each(adapter.a), each(adapter.b), adapter.scale};
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
  return std::any_of(layers.begin(), layers.end(), [](const LayerWeights& layer) {
    const auto adapters = layer.adapters();
    return std::any_of(adapters.begin(), adapters.end(),
                       [](const Adapter* adapter) { return adapter->a.defined(); });
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
      for (const Adapter* adapter : layer.adapters())
        if (adapter->a.defined()) tensors.insert(tensors.end(), {adapter->a, adapter->b});
    }
  } else {
    tensors.push_back(embedding);
    for (const at::Tensor& table : {layer_inputs.rows, layer_inputs.project, layer_inputs.norm})
      if (table.defined()) tensors.push_back(table);
    for (const LayerWeights& layer : layers) {
      for (const at::Tensor* tensor : layer.tensors())
        if (tensor->defined()) tensors.push_back(*tensor);
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

Weights Weights::map(const std::function<at::Tensor(const at::Tensor&)>& make) const {
  return transform(*this, make);
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

static std::string layer_prefix(size_t layer) { return "model.layers." + std::to_string(layer) + "."; }

static NamedTensors named_adapters(const std::vector<LayerWeights>& layers, const ModelConfig& config) {
  NamedTensors views;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerWeights layer = layers[i];
    for (const Parameter& parameter : layer_parameters(config, static_cast<int64_t>(i), layer)) {
      if (parameter.adapter == nullptr) continue;
      const Adapter& adapter = *parameter.adapter;
      const auto matrices = static_cast<size_t>(matrices_of(parameter));
      for (size_t r = 0; r < parameter.rows.size(); ++r) {
        const std::string& name = parameter.rows[r].first;
        const std::string projection = projection_name(name);
        const auto part = std::find_if(adapter.parts.begin(), adapter.parts.end(),
                                       [&](const auto& candidate) { return candidate.name == projection; });
        if (part == adapter.parts.end()) continue;
        const auto p = static_cast<size_t>(part - adapter.parts.begin());
        const std::string module = "base_model.model." + layer_prefix(i) + name.substr(0, name.rfind('.'));
        const auto matrix = static_cast<int64_t>(r / (parameter.rows.size() / matrices));
        const auto one = [&](const at::Tensor& part) { return part.dim() == 2 ? part : part[matrix]; };
        views.emplace_back(module + ".lora_A.weight", one(adapter.part_a(p)));
        views.emplace_back(module + ".lora_B.weight", one(adapter.part_b(p)));
      }
    }
  }
  return views;
}

static NamedTensors named_model(const Weights& weights, const ModelConfig& config, bool stacks) {
  NamedTensors views{{"model.embed_tokens.weight", weights.embedding}};
  LayerInputTables tables = weights.layer_inputs;
  if (config.layer_input_size > 0)
    for (const Parameter& parameter : layer_table_parameters(config, tables))
      views.emplace_back("model." + parameter.rows[0].first, *parameter.tensor);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerWeights layer = weights.layers[i];
    for (const Parameter& parameter : layer_parameters(config, static_cast<int64_t>(i), layer)) {
      if (!parameter.tensor->defined()) continue;
      if (stacks && !parameter.stack.empty()) {
        views.emplace_back(layer_prefix(i) + parameter.stack, *parameter.tensor);
        continue;
      }
      int64_t begin = 0;
      for (size_t r = 0; r < parameter.rows.size(); ++r) {
        const auto& [name, rows] = parameter.rows[r];
        views.emplace_back(layer_prefix(i) + name, rows_of(parameter, *parameter.tensor, r, begin));
        begin += rows;
      }
    }
  }
  views.emplace_back("model.norm.weight", weights.norm);
  if (!weights.head.is_same(weights.embedding)) views.emplace_back("lm_head.weight", weights.head);
  return views;
}

NamedTensors Weights::named_views(const ModelConfig& config, bool stacks) const {
  NamedTensors views = adapted() ? named_adapters(layers, config) : named_model(*this, config, stacks);
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
  const int64_t hidden = config.hidden_size;
  Weights weights;
  weights.embedding = make(true, {config.vocab_size, hidden});
  if (config.layer_input_size > 0)
    for (const Parameter& parameter : layer_table_parameters(config, weights.layer_inputs))
      *parameter.tensor = at::empty(parameter.shape, options);
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    for (const Parameter& parameter : layer_parameters(config, i, layer))
      if (!parameter.shape.empty()) *parameter.tensor = at::empty(parameter.shape, options);
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
