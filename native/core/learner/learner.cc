// Construction of a learner, and its weights.
#include "core/learner.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <filesystem>
#include <numbers>
#include <sstream>
#include <utility>

#include "core/learner/internal.h"
#include "core/learner/sharding.h"
#include "core/random.h"

namespace nlac {

using namespace learner;
namespace fs = std::filesystem;

namespace {

constexpr double kInitialStd = 0.02;

void fill_normal(const at::Tensor& tensor, uint64_t seed, uint64_t stream) {
  float* data = tensor.mutable_data_ptr<float>();
  const int64_t n = tensor.numel();
  // One counter gives four words, two Box-Muller pairs.
  at::parallel_for(0, (n + 3) / 4, 4096, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) {
      const auto words = philox(seed, stream, static_cast<uint64_t>(block));
      for (int64_t i = 0; i < 4 && 4 * block + i < n; ++i) {
        const size_t pair = static_cast<size_t>(i & ~int64_t{1});
        const double radius = std::sqrt(-2 * std::log((words[pair] + 1.0) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * words[pair + 1] * 0x1p-32;
        data[4 * block + i] =
            static_cast<float>(kInitialStd * radius * (i % 2 ? std::sin(angle) : std::cos(angle)));
      }
    }
  });
}

int64_t count_of(const Weights& weights) {
  int64_t count = 0;
  for (const at::Tensor& tensor : weights.list()) count += tensor.numel();
  return count;
}

}  // namespace

std::string learner::checksum_of(const std::string& model) {
  std::ostringstream text;
  text << std::hex << model_checksum(model);
  return text.str();
}

Learner::Learner(LoadedModel model, const LearnerOptions& options)
    : options_(options), config_(std::move(model.config)), decoder_(config_, options.int8_generation) {
  NLAC_REQUIRE(options.heads != Heads::q || config_.logit_cap == 0, "ERR_CONFIG",
               "Q heads are not supported for a model with capped logits (final_logit_softcapping)");
  if (options.adapter) {
    base_ = model.weights.without_heads();
    master_ = make_adapters(config_, *options.adapter, options.device);
    master_.take_heads(model.weights);
    master_ = master_.copy_as(at::kFloat, options.device);
  } else {
    master_ = std::move(model.weights);
  }
  skipped_ = model.skipped;
  if (options_.ranks) options_.ranks->connect(options_.device);
  if (options_.ranks && options_.sharding > 0) {
    shard();
  } else {
    online_ = computing(master_);
  }
  for (auto* engine : {&online_engine_, &target_engine_})
    *engine = std::make_unique<Engine>(decoder_, options.cache_bytes, options.dtype, options.device);
}

std::unique_ptr<Learner> Learner::load(const std::string& path, const LearnerOptions& options) {
  check_options(options);
  return guarded([&] {
    std::unique_ptr<Learner> learner(
        new Learner(load_model(path, loaded_type(options), loading_device(options), options.heads), options));
    // Later checkpoints may replace this one, so a base from a checkpoint is saved with this
    // learner.
    if (options.adapter && !fs::exists(fs::path(path) / "learner.json"))
      learner->base_checksum_ = checksum_of(path);
    return learner;
  });
}

std::unique_ptr<Learner> Learner::create(const ModelConfig& config, uint64_t seed,
                                         const LearnerOptions& options) {
  check_options(options);
  return guarded([&] {
    Weights weights = allocate_weights(config, at::kFloat, at::kCPU);
    uint64_t stream = 0;
    for (const auto& [name, tensor] : weights.named_views(config)) {
      if (name.find("norm") != std::string::npos) {
        const bool plus_one = config.norm_plus_one && name.find("linear_attn.") == std::string::npos;
        tensor.fill_(plus_one ? 0 : 1);
      } else if (name.ends_with("layer_scalar") || name.ends_with("scale")) {
        tensor.fill_(1);
      } else if (name.ends_with(".bias")) {
        tensor.zero_();
      } else {
        fill_normal(tensor, seed, stream);
      }
      ++stream;
    }
    const at::ScalarType type = loaded_type(options);
    const at::Device device = loading_device(options);
    if (!device.is_cpu() || type != at::kFloat) weights = weights.copy_as(type, device);
    weights.add_heads(options.heads);
    return std::unique_ptr<Learner>(new Learner({config, std::move(weights), 0}, options));
  });
}

int64_t Learner::trainable_parameters() const { return count_of(master_); }

int64_t Learner::parameters() const { return trainable_parameters() + (base_ ? count_of(*base_) : 0); }

Weights Learner::on_base(Weights own) const { return base_ ? with_adapters(*base_, own) : own; }

Weights Learner::computing(const Weights& master) const {
  return on_base(options_.dtype == at::kFloat ? master : master.copy_as(options_.dtype, options_.device));
}

void Learner::make_target() {
  if (target_) return;
  if (shards_) return make_sharded_target();
  Weights master = master_.copy_as(at::kFloat, options_.device);
  target_ = computing(master);
  target_master_ = std::move(master);
}

void Learner::agree_on_target() {
  if (!options_.ranks || moved_) return;
  if (options_.ranks->max(target_.has_value()) != 0) options_.ranks->together([&] { make_target(); });
}

void Learner::require_origin() const {
  NLAC_REQUIRE(
      target_ || !moved_, "ERR_VALUE",
      "θ̄ does not exist and steps have changed θ: call updateTarget with τ = 1 before the first step, or now "
      "to start θ̄ at the current θ");
}

void Learner::require_q_heads() const {
  NLAC_REQUIRE(master_.heads() == Heads::q, "ERR_CONFIG",
               "the learner has no Q heads: create it with heads \"q\"");
}

const Weights& Learner::weights(WeightSet which) {
  if (which == WeightSet::online) return online_;
  if (which == WeightSet::reference) {
    NLAC_REQUIRE(reference_, "ERR_VALUE", "there is no reference: call keepReference first");
    return *reference_;
  }
  require_origin();
  make_target();
  return *target_;
}

void Learner::require_value_head() const {
  NLAC_REQUIRE(master_.value.defined(), "ERR_CONFIG",
               "the learner has no value head: create it with heads \"value\"");
}

Weights& Learner::make_gradients() {
  if (gradients_) return *gradients_;
  if (shards_) {
    make_sharded_gradients();
  } else {
    gradients_ = master_.zeros_like(at::kFloat);
  }
  return *gradients_;
}

}  // namespace nlac
