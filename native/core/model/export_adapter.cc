// Writes adapters as peft reads them.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/model/adapter.h"
#include "core/model/weights.h"

namespace nlac {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* of_shared = "mlp.shared_expert.";
constexpr const char* of_dense = "mlp.";

bool has_part(const Adapter& adapter, const std::string& name) {
  return std::any_of(adapter.parts.begin(), adapter.parts.end(),
                     [&](const Adapter::Part& part) { return part.name == name; });
}

// Whether `wanted` of a layer has the projection `name`.
template <typename Wanted>
bool any_layer(const Weights& adapters, const std::string& name, const Wanted& wanted) {
  return std::any_of(adapters.layers.begin(), adapters.layers.end(), [&](LayerWeights layer) {
    const std::vector<AdaptedMatrix> all = wanted(layer);
    return std::any_of(all.begin(), all.end(),
                       [&](const AdaptedMatrix& one) { return has_part(*one.adapter, name); });
  });
}

std::vector<AdaptedMatrix> experts_of(LayerWeights& layer) {
  return {{&layer.experts.gate_up, &layer.experts.gate_up_adapter},
          {&layer.experts.down, &layer.experts.down_adapter}};
}

// Where the projections are that peft's configuration has to name.
struct Places {
  std::vector<std::string> modules;  // outside feed-forward parts
  std::vector<std::string> dense, shared, experts;

  explicit Places(const Weights& adapters) {
    for (const std::string& name : projection_names()) {
      const auto in = [&](const auto& wanted) { return any_layer(adapters, name, wanted); };
      if (in([](LayerWeights& layer) {
            std::vector<AdaptedMatrix> all = layer.attention.adapted();
            for (const AdaptedMatrix& one : layer.delta.adapted()) all.push_back(one);
            return all;
          }))
        modules.push_back(name);
      if (in([](LayerWeights& layer) { return layer.feed_forward.adapted(); })) dense.push_back(name);
      if (in([](LayerWeights& layer) { return layer.experts.shared.adapted(); })) shared.push_back(name);
      if (in(experts_of)) experts.push_back(name);
    }
  }
};

// A stack's adapter as peft has it: A [matrices * r, in], B [out, r * matrices] with the matrices
// innermost, where r is the sum of the parts' ranks and each part has its own columns and rows of
// B.
at::Tensor stacked_a(const Adapter& adapter) { return adapter.a.flatten(0, 1); }
at::Tensor stacked_b(const Adapter& adapter, int64_t out) {
  const int64_t rank = adapter.rank(), matrices = adapter.b.size(0);
  const auto parts = static_cast<int64_t>(adapter.parts.size());
  const at::Tensor b = at::zeros({matrices, out, parts * rank}, adapter.b.options());
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const Adapter::Part& part = adapter.parts[i];
    b.narrow(1, part.row, part.rows).narrow(2, static_cast<int64_t>(i) * rank, rank).copy_(adapter.part_b(i));
  }
  return b.permute({1, 2, 0}).flatten(1, 2).contiguous();
}

// The adapters of all experts by peft's names. Its wrapper of `down_proj` encloses that of
// `gate_up_proj` if there are both.
NamedTensors stacks(const ModelConfig& config, const Weights& adapters) {
  NamedTensors tensors;
  for (size_t i = 0; i < adapters.layers.size(); ++i) {
    const ExpertsWeights& experts = adapters.layers[i].experts;
    const std::string module =
        "base_model.model.model.layers." + std::to_string(i) + "." + config.experts.prefix();
    const auto add = [&](const Adapter& adapter, int64_t out, const std::string& wrapper) {
      if (!adapter.a.defined()) return;
      tensors.emplace_back(module + wrapper + "lora_A.weight", stacked_a(adapter));
      tensors.emplace_back(module + wrapper + "lora_B.weight", stacked_b(adapter, out));
    };
    add(experts.gate_up_adapter, 2 * config.experts.intermediate,
        experts.down_adapter.a.defined() ? "base_layer." : "");
    add(experts.down_adapter, config.hidden_size, "");
  }
  return tensors;
}

// Whether peft takes each expert's matrices. It stacks them for Qwen3-MoE, but then reads no
// adapter of layers without experts, and all three projections must be there.
bool by_expert(const ModelConfig& config, const Places& places) {
  return config.family == Family::qwen3_moe && places.experts.size() == 3 && places.dense.empty();
}

void add_targets(const ModelConfig& config, const AdapterOptions& options, const Places& places, Json& json) {
  std::vector<std::string> modules = places.modules, parameters;
  if (config.experts.count == 0 || by_expert(config, places)) {
    const auto& of_parts = config.experts.count == 0 ? places.dense : places.experts;
    modules.insert(modules.end(), of_parts.begin(), of_parts.end());
  } else {
    // Bare names of feed-forward parts would stand for experts too. Those of layers without experts
    // must be parameters: for Qwen3-MoE, peft takes any module of such a name for an expert's.
    for (const std::string& name : places.dense) parameters.push_back(of_dense + name + ".weight");
    for (const std::string& name : places.shared) modules.push_back(of_shared + name);
    const std::string of_experts = config.experts.prefix(), gate_up = of_experts + "gate_up_proj";
    int64_t parts = 0;
    for (const std::string& name : places.experts) parts += name == "down_proj" ? 0 : 1;
    if (parts > 0) parameters.push_back(gate_up);
    if (static_cast<size_t>(parts) < places.experts.size()) parameters.push_back(of_experts + "down_proj");
    if (parts > 1) {
      json["rank_pattern"] = {{gate_up, parts * options.rank}};
      json["alpha_pattern"] = {{gate_up, static_cast<double>(parts) * options.alpha}};
    }
  }
  std::sort(modules.begin(), modules.end(), [](const std::string& a, const std::string& b) {
    const auto place = [](const std::string& name) {
      const auto& names = projection_names();
      return std::find(names.begin(), names.end(), name.substr(name.rfind('.') + 1)) - names.begin();
    };
    return place(a) < place(b);
  });
  json["target_modules"] = modules;
  if (!parameters.empty()) json["target_parameters"] = parameters;
}

}  // namespace

void export_adapter(const std::string& directory, const ModelConfig& config, const AdapterOptions& options,
                    const Weights& adapters, const std::string& base) {
  const std::filesystem::path root(directory);
  const Places places(adapters);
  NamedTensors tensors = adapters.without_heads().named_views(config);
  if (!places.experts.empty() && !by_expert(config, places)) {
    std::erase_if(tensors, [](const auto& one) { return one.first.find(".experts.") != std::string::npos; });
    for (auto& one : stacks(config, adapters)) tensors.push_back(std::move(one));
  }
  write_tensors(root / adapter_file, tensors);
  Json json = {{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"},    {"base_model_name_or_path", base},
               {"r", options.rank},   {"lora_alpha", options.alpha}, {"lora_dropout", 0.0},
               {"bias", "none"},      {"fan_in_fan_out", false},     {"inference_mode", true}};
  add_targets(config, options, places, json);
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  write_file_atomically((root / "adapter_config.json").string(), text.data(), text.size());
}

}  // namespace nlac
