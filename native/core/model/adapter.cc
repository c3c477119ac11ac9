#include "core/model/adapter.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/model/weights.h"
#include "core/random.h"

namespace nlac {
namespace {

constexpr uint64_t adapter_stream = 0x6C6F7261;  // "lora" in ASCII; a projection's number lies above it

bool of_feed_forward(const std::string& projection) {
  return projection == "gate_proj" || projection == "up_proj" || projection == "down_proj";
}

// The adapter of a matrix [rows, in], uninitialised, for those of its projections that are targets.
Adapter allocate(const Parameter& matrix, const AdapterOptions& options) {
  Adapter adapter;
  int64_t row = 0, begin = 0;
  for (const auto& [full_name, rows] : matrix.rows) {
    const std::string name = projection_name(full_name);
    if (std::find(options.targets.begin(), options.targets.end(), name) != options.targets.end()) {
      adapter.parts.push_back({name, row, begin, rows});
      begin += rows;
    }
    row += rows;
  }
  if (adapter.parts.empty()) return adapter;
  adapter.a =
      at::empty({static_cast<int64_t>(adapter.parts.size()) * options.rank, matrix.shape.back()}, at::kFloat);
  adapter.b = at::empty({begin, options.rank}, at::kFloat);
  adapter.scale = options.alpha / static_cast<double>(options.rank);
  return adapter;
}

void fill_uniform(const at::Tensor& tensor, double bound, uint64_t seed, uint64_t stream) {
  float* data = tensor.mutable_data_ptr<float>();
  at::parallel_for(0, tensor.numel(), 16384, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      data[i] = static_cast<float>(bound * (2 * uniform(seed, stream, static_cast<uint64_t>(i)) - 1));
  });
}

void initialise(const Adapter& adapter, uint64_t seed, uint64_t layer) {
  if (!adapter.a.defined()) return;
  const auto& names = projection_names();
  const double bound = 1 / std::sqrt(static_cast<double>(adapter.a.size(1)));
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const auto place = std::find(names.begin(), names.end(), adapter.parts[i].name) - names.begin();
    // Names after the first seven have their own numbers, so that the others keep theirs.
    constexpr uint64_t first = 7, more = 64, beyond = uint64_t{1} << 31;
    const auto at = static_cast<uint64_t>(place);
    const uint64_t number = at < first ? layer * first + at : beyond + layer * more + at;
    fill_uniform(adapter.part_a(i), bound, seed, number << 32 | adapter_stream);
  }
  adapter.b.zero_();
}

at::Tensor merge(const at::Tensor& weight, const Adapter& adapter) {
  if (!adapter.a.defined()) return weight;
  const auto type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = weight.to(at::kCPU, type, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const Adapter::Part& part = adapter.parts[i];
    sum.narrow(0, part.row, part.rows)
        .addmm_(adapter.part_b(i).to(at::kCPU, type), adapter.part_a(i).to(at::kCPU, type), 1, adapter.scale);
  }
  return sum.to(weight.scalar_type());
}

}  // namespace

const std::vector<std::string>& projection_names() {
  static const std::vector<std::string> names = {"q_proj",    "k_proj",    "v_proj",    "o_proj",
                                                 "gate_proj", "up_proj",   "down_proj", "in_proj_qkv",
                                                 "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"};
  return names;
}

void check_adapter(const AdapterOptions& options) {
  NLAC_REQUIRE(options.rank >= 1, "ERR_VALUE", "an adapter's rank must be at least 1, got ", options.rank);
  NLAC_REQUIRE(std::isfinite(options.alpha) && options.alpha > 0, "ERR_VALUE",
               "an adapter's alpha must be finite and positive, got ", options.alpha);
  NLAC_REQUIRE(!options.targets.empty(), "ERR_VALUE", "an adapter needs at least one target");
  for (const std::string& target : options.targets) {
    const auto& names = projection_names();
    NLAC_REQUIRE(std::find(names.begin(), names.end(), target) != names.end(), "ERR_VALUE",
                 "an adapter cannot target ", printable(target));
    NLAC_REQUIRE(std::count(options.targets.begin(), options.targets.end(), target) == 1, "ERR_VALUE",
                 "an adapter targets ", target, " twice");
  }
}

Weights make_adapters(const ModelConfig& config, const AdapterOptions& options, at::Device device) {
  check_adapter(options);
  Weights weights;
  const bool all = options.targets == projection_names();  // that can be adapted
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    for (const std::string& target : options.targets)
      NLAC_REQUIRE(all || config.kind(i).feed_forward != FeedForward::experts || config.experts.shared > 0 ||
                       !of_feed_forward(target),
                   "ERR_VALUE", "an adapter cannot target ", target,
                   " of a mixture of experts; its attention can be adapted");
    for (const Parameter& parameter : layer_parameters(config, i, layer)) {
      if (parameter.adapter == nullptr) continue;
      *parameter.adapter = allocate(parameter, options);
      initialise(*parameter.adapter, options.seed, static_cast<uint64_t>(i));
    }
  }
  return device.is_cpu() ? weights : weights.copy_as(at::kFloat, device);
}

Weights with_adapters(Weights base, const Weights& adapters) {
  for (size_t i = 0; i < base.layers.size(); ++i) {
    const auto to = base.layers[i].adapters();
    const auto from = adapters.layers[i].adapters();
    for (size_t j = 0; j < to.size(); ++j) *to[j] = *from[j];
  }
  base.take_heads(adapters);
  return base;
}

Weights merge_adapters(const Weights& weights) {
  Weights merged = weights;
  for (LayerWeights& layer : merged.layers) {
    for (const auto& [matrix, adapter] : layer.adapted()) {
      *matrix = merge(*matrix, *adapter);
      *adapter = {};
    }
  }
  return merged;
}

void export_adapter(const std::string& directory, const ModelConfig& config, const AdapterOptions& options,
                    const Weights& adapters, const std::string& base) {
  const std::filesystem::path root(directory);
  std::vector<std::string> present;  // the targets that the model has
  for (const std::string& target : options.targets) {
    const bool has =
        std::any_of(adapters.layers.begin(), adapters.layers.end(), [&](const LayerWeights& layer) {
          const auto all = layer.adapters();
          return std::any_of(all.begin(), all.end(), [&](const Adapter* adapter) {
            return std::any_of(adapter->parts.begin(), adapter->parts.end(),
                               [&](const auto& part) { return part.name == target; });
          });
        });
    if (has) present.push_back(target);
  }
  write_tensors(root / adapter_file, adapters.without_heads().named_views(config));
  const nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                       {"task_type", "CAUSAL_LM"},
                                       {"base_model_name_or_path", base},
                                       {"r", options.rank},
                                       {"lora_alpha", options.alpha},
                                       {"target_modules", present},
                                       {"lora_dropout", 0.0},
                                       {"bias", "none"},
                                       {"fan_in_fan_out", false},
                                       {"inference_mode", true}};
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  write_file_atomically((root / "adapter_config.json").string(), text.data(), text.size());
}

}  // namespace nlac
