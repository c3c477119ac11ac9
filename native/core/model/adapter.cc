#include "core/model/adapter.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"
#include "core/model/weights.h"
#include "core/random.h"

namespace nlac {
namespace {

constexpr uint64_t adapter_stream = 0x6C6F7261;  // "lora" in ASCII; a projection's number lies above it

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether the projection of a parameter like "mlp.experts.7.gate_proj.weight" is a target: by its
// name or as "experts.gate_proj".
bool targeted(const std::string& parameter_name, const std::vector<std::string>& targets) {
  const std::string projection = projection_name(parameter_name);
  if (contains(targets, projection)) return true;
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
    const size_t point = target.find('.');
    return point != std::string::npos && target.substr(point + 1) == projection &&
           ("." + parameter_name).find("." + target.substr(0, point + 1)) != std::string::npos;
  });
}

// The adapter of a matrix [rows, in] or of a stack [matrices, rows, in], uninitialised, for those
// of its projections that are targets.
Adapter allocate(const Parameter& matrix, const AdapterOptions& options) {
  Adapter adapter;
  int64_t row = 0, begin = 0;
  const size_t projections = matrix.rows.size() / static_cast<size_t>(matrices_of(matrix));
  for (size_t i = 0; i < projections; ++i) {
    const auto& [name, rows] = matrix.rows[i];
    if (targeted(name, options.targets)) {
      adapter.parts.push_back({projection_name(name), row, begin, rows});
      begin += rows;
    }
    row += rows;
  }
  if (adapter.parts.empty()) return adapter;
  const int64_t ranks = static_cast<int64_t>(adapter.parts.size()) * options.rank;
  std::vector<int64_t> of_a{ranks, matrix.shape.back()}, of_b{begin, options.rank};
  if (matrix.shape.size() > 2)
    for (auto* shape : {&of_a, &of_b}) shape->insert(shape->begin(), matrix.shape[0]);
  adapter.a = at::empty(of_a, at::kFloat);
  adapter.b = at::empty(of_b, at::kFloat);
  adapter.scale = options.alpha / static_cast<double>(options.rank);
  return adapter;
}

// Fills with the numbers of `stream` from `start` on.
void fill_uniform(const at::Tensor& tensor, double bound, uint64_t seed, uint64_t stream, int64_t start) {
  float* data = tensor.mutable_data_ptr<float>();
  at::parallel_for(0, tensor.numel(), 16384, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      data[i] = static_cast<float>(bound * (2 * uniform(seed, stream, static_cast<uint64_t>(start + i)) - 1));
  });
}

void initialise(const Adapter& adapter, uint64_t seed, uint64_t layer) {
  if (!adapter.a.defined()) return;
  const auto& names = projection_names();
  const double bound = 1 / std::sqrt(static_cast<double>(adapter.a.size(-1)));
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const auto place = std::find(names.begin(), names.end(), adapter.parts[i].name) - names.begin();
    // Names after the first seven have their own numbers, so that the others keep theirs. So have
    // experts, because a shared expert has projections of the same names.
    constexpr uint64_t first = 7, more = 64, of_experts = 32, beyond = uint64_t{1} << 31;
    const auto at = static_cast<uint64_t>(place);
    const at::Tensor a = adapter.part_a(i);
    if (a.dim() == 2) {
      const uint64_t number = at < first ? layer * first + at : beyond + layer * more + at;
      fill_uniform(a, bound, seed, number << 32 | adapter_stream, 0);
      continue;
    }
    const uint64_t number = beyond + layer * more + of_experts + at;
    for (int64_t e = 0; e < a.size(0); ++e)
      fill_uniform(a[e], bound, seed, number << 32 | adapter_stream, e * a[e].numel());
  }
  adapter.b.zero_();
}

at::Tensor merge(const at::Tensor& weight, const Adapter& adapter) {
  if (!adapter.a.defined()) return weight;
  const auto type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = weight.to(at::kCPU, type, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 0; i < adapter.parts.size(); ++i) {
    const Adapter::Part& part = adapter.parts[i];
    const at::Tensor a = adapter.part_a(i).to(at::kCPU, type), b = adapter.part_b(i).to(at::kCPU, type);
    const at::Tensor rows = sum.narrow(-2, part.row, part.rows);
    const int64_t matrices = sum.dim() == 2 ? 1 : sum.size(0);
    const auto matrix = [](const at::Tensor& of, int64_t m) { return of.dim() == 2 ? of : of[m]; };
    for (int64_t m = 0; m < matrices; ++m)
      matrix(rows, m).addmm_(matrix(b, m), matrix(a, m), 1, adapter.scale);
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

const std::vector<std::string>& qualified_names() {
  static const std::vector<std::string> names = {"experts.gate_proj",     "experts.up_proj",
                                                 "experts.down_proj",     "shared_expert.gate_proj",
                                                 "shared_expert.up_proj", "shared_expert.down_proj"};
  return names;
}

void check_adapter(const AdapterOptions& options) {
  NLAC_REQUIRE(options.rank >= 1 && options.rank <= int64_t{1} << 20, "ERR_VALUE",
               "an adapter's rank must be from 1 to 2^20, got ", options.rank);
  NLAC_REQUIRE(std::isfinite(options.alpha) && options.alpha > 0, "ERR_VALUE",
               "an adapter's alpha must be finite and positive, got ", options.alpha);
  NLAC_REQUIRE(!options.targets.empty(), "ERR_VALUE", "an adapter needs at least one target");
  for (const std::string& target : options.targets) {
    NLAC_REQUIRE(contains(projection_names(), target) || contains(qualified_names(), target), "ERR_VALUE",
                 "an adapter cannot target ", printable(target));
    NLAC_REQUIRE(std::count(options.targets.begin(), options.targets.end(), target) == 1, "ERR_VALUE",
                 "an adapter targets ", target, " twice");
  }
}

Weights make_adapters(const ModelConfig& config, const AdapterOptions& options, at::Device device) {
  check_adapter(options);
  Weights weights;
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    for (const Parameter& parameter : layer_parameters(config, i, layer)) {
      if (parameter.adapter == nullptr) continue;
      *parameter.adapter = allocate(parameter, options);
      initialise(*parameter.adapter, options.seed, static_cast<uint64_t>(i));
    }
  }
  NLAC_REQUIRE(weights.adapted(), "ERR_VALUE", "the model has none of the adapter's targets, like ",
               options.targets.front());
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

}  // namespace nlac
