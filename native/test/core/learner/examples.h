// Models small enough for finite differences and full forwards per token, and sequences for them.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/cpu/bf16_kernels.h"
#include "core/error.h"
#include "core/learner.h"
#include "test/core/fixtures.h"
#include "test/core/loss/soft_q_reference.h"

namespace learner_test {

using namespace nlac;
using nlac::test::code_of;
namespace fs = std::filesystem;
using nlac::test::Scratch;

using Ids = std::vector<int64_t>;

// The contents of a directory's files by name.
inline std::map<std::string, nlac::test::Bytes> files_of(const Scratch& directory) {
  std::map<std::string, nlac::test::Bytes> files;
  for (const auto& entry : fs::directory_iterator(directory.path()))
    files[entry.path().filename().string()] = nlac::test::read_bytes(entry.path().string());
  return files;
}

inline ModelConfig tiny_config(Family family = Family::llama) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.max_positions = 96;
  config.tied_embeddings = family != Family::qwen3;
  config.qkv_bias = family == Family::qwen2;
  config.qk_norm = family == Family::qwen3 || family == Family::qwen3_moe;
  if (family == Family::qwen3_moe) {
    config.experts = {.count = 4, .per_token = 2, .intermediate = 12, .normalised = true};
    config.layer_kinds.assign(2, LayerKind{});
    config.layer_kinds[1].feed_forward = FeedForward::experts;
  }
  return config;
}

inline LearnerOptions options_of(at::ScalarType dtype = at::kFloat, int64_t micro_batch_tokens = 2048) {
  LearnerOptions options;
  options.dtype = dtype;
  options.micro_batch_tokens = micro_batch_tokens;
  return options;
}

// A float32 learner whose weights are far enough from zero that its predictions differ from token
// to token.
inline std::unique_ptr<Learner> tiny_learner(const LearnerOptions& options = options_of(),
                                             Family family = Family::llama, uint64_t seed = 1) {
  auto learner = Learner::create(tiny_config(family), seed, options);
  at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : learner->masters().list()) {
    if (tensor.dim() == 2) tensor.mul_(10);
  }
  return learner;
}

inline Ids random_ids(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  Ids ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int64_t>(engine() % 53));
  return ids;
}

inline std::vector<ScoredText> some_texts() {
  return {{random_ids(5, 1), random_ids(7, 2), {1.0}},
          {random_ids(1, 3), random_ids(1, 4), {-0.5}},
          {random_ids(12, 5), random_ids(3, 6), {2.0}},
          {random_ids(3, 7), random_ids(20, 8), {0.25}}};
}

inline std::vector<DistilledText> some_distilled() {
  return {{random_ids(5, 1), random_ids(9, 11), random_ids(7, 2), 1.0},
          {random_ids(8, 3), random_ids(1, 12), random_ids(1, 4), 0.5},
          {random_ids(12, 5), random_ids(14, 13), random_ids(10, 6), 2.0}};
}

inline double weight_of(const ScoredText& text, size_t token) {
  return text.weights.size() == 1 ? text.weights[0] : text.weights[token];
}
inline double weight_of(const DistilledText& text, size_t) { return text.weight; }

template <typename Text>
double weighted_sum(const std::vector<Text>& texts, const LossOutput& output) {
  double sum = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < output.losses[i].size(); ++j) sum += weight_of(texts[i], j) * output.losses[i][j];
  }
  return sum;
}

inline std::vector<at::Tensor> copies(const Weights& weights) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : weights.list()) list.push_back(tensor.clone());
  return list;
}

inline bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i].view(at::kInt), b[i].view(at::kInt))) return false;  // bit for bit, NaNs too
  }
  return true;
}

// Compares every parameter's gradient with a central difference along that gradient, and the whole
// with one along a random direction.
inline void check_gradient(Learner& learner, const std::function<double(bool)>& loss) {
  at::NoGradGuard no_grad;
  loss(true);
  REQUIRE(learner.gradients() != nullptr);
  const std::vector<at::Tensor> parameters = learner.masters().list(),
                                gradients = copies(*learner.gradients());
  const auto difference = [&](const std::vector<at::Tensor>& direction, double size) {
    const std::vector<at::Tensor> saved = copies(learner.masters());
    const auto at_offset = [&](double offset) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].copy_(saved[i]);
        if (direction[i].defined()) parameters[i].add_(direction[i], offset);
      }
      return loss(false);
    };
    const double slope = (at_offset(size) - at_offset(-size)) / (2 * size);
    at_offset(0);
    return slope;
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(i);
    const double norm = gradients[i].norm().item<double>();
    REQUIRE(norm > 0);
    std::vector<at::Tensor> direction(parameters.size());
    direction[i] = gradients[i] / norm;
    CHECK(difference(direction, 1e-2) == doctest::Approx(norm).epsilon(0.02));
  }
  at::manual_seed(3);
  std::vector<at::Tensor> direction;
  double slope = 0;
  for (const at::Tensor& gradient : gradients) {
    direction.push_back(gradient / gradient.norm() + at::randn_like(gradient) * 0.05);
    slope += (direction.back() * gradient).sum().item<double>();
  }
  CHECK(difference(direction, 3e-3) == doctest::Approx(slope).epsilon(0.02));
}

inline double relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).pow(2).sum().item<double>();
    norm += b[i].pow(2).sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

inline AdamWOptions quick_step() {
  AdamWOptions options;
  options.learning_rate = 1e-2;
  options.weight_decay = 0.01;
  return options;
}

inline GenerateRequest request_of(Ids tokens, int64_t max_new, double temperature = 0, uint64_t seed = 0) {
  GenerateRequest request;
  request.tokens = std::move(tokens);
  request.max_new_tokens = max_new;
  request.temperature = temperature;
  request.seed = seed;
  return request;
}

inline LearnerOptions with_value_head(at::ScalarType dtype = at::kFloat, int64_t micro_batch_tokens = 2048) {
  LearnerOptions options = options_of(dtype, micro_batch_tokens);
  options.heads = Heads::value;
  return options;
}

// A learner with a non-zero value head.
inline std::unique_ptr<Learner> tiny_critic(const LearnerOptions& options = with_value_head(),
                                            Family family = Family::llama) {
  auto learner = tiny_learner(options, family);
  at::NoGradGuard no_grad;
  at::manual_seed(4);
  learner->masters().value.copy_(at::randn({1, 24}) * 0.3);
  learner->masters().value_bias.fill_(0.2);
  return learner;
}

inline LearnerOptions adapted_options(at::ScalarType dtype = at::kFloat) {
  LearnerOptions options = options_of(dtype);
  options.adapter =
      AdapterOptions{3, 6, {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, 5};
  return options;
}

// A float32 learner on a base with distinct predictions per token, with adapters that change them.
inline std::unique_ptr<Learner> adapted_learner(const LearnerOptions& options = adapted_options(),
                                                Family family = Family::llama) {
  auto learner = Learner::create(tiny_config(family), 1, options);
  at::NoGradGuard no_grad;
  at::manual_seed(2);
  for (const at::Tensor& tensor : learner->base()->list())
    if (tensor.dim() == 2) tensor.mul_(10);
  for (const at::Tensor& tensor : learner->masters().list()) tensor.normal_(0, 0.1);
  return learner;
}

inline LearnerOptions q_options(at::ScalarType dtype = at::kFloat, int64_t micro_batch_tokens = 2048) {
  LearnerOptions options = options_of(dtype, micro_batch_tokens);
  options.heads = Heads::q;
  return options;
}

// One turn; several turns with observations between them; an observation after the last action; a
// sequence without an action; negative weights.
inline std::vector<SoftQText> some_episodes() {
  std::vector<SoftQText> texts;
  for (const std::vector<float>& weights : {std::vector<float>{1},
                                            {0.5, 0.5, 0, 0, 0, 0.25, 0.25, 0, 1},
                                            {0, 2, 0, 0},
                                            {0, 0, 0},
                                            {-1, 1, 1, 0, -0.5}}) {
    const uint64_t seed = texts.size();
    SoftQText text{random_ids(3 + static_cast<int64_t>(seed), 40 + seed),
                   random_ids(static_cast<int64_t>(weights.size()), 60 + seed),
                   weights,
                   {}};
    for (size_t j = 0; j < weights.size(); ++j) text.rewards.push_back(0.3f * static_cast<float>(j) - 0.4f);
    texts.push_back(std::move(text));
  }
  return texts;
}

inline SoftQOptions some_soft_q() {
  SoftQOptions options;
  options.temperature = 0.2;
  options.discount = 0.95;
  options.q_coefficient = 0.7;
  options.policy_coefficient = 1.5;
  return options;
}

// A learner whose heads and θ̄ differ from their initial values.
inline std::unique_ptr<Learner> q_learner(const LearnerOptions& options = q_options()) {
  auto learner = Learner::create(tiny_config(Family::qwen3), 1, options);
  at::NoGradGuard no_grad;
  at::manual_seed(5);
  const auto scatter = [](const Weights& weights) {
    for (const at::Tensor& tensor : weights.list()) {
      if (tensor.dim() == 2) tensor.add_(at::randn_like(tensor) * 0.2);
    }
  };
  scatter(learner->masters());
  learner->update_target(1);
  scatter(*learner->target_masters());
  return learner;
}

inline bool same(const std::vector<SoftQOutput>& a, const std::vector<SoftQOutput>& b, double within) {
  for (auto list : {&SoftQOutput::q_losses, &SoftQOutput::policy_losses, &SoftQOutput::q,
                    &SoftQOutput::targets, &SoftQOutput::entropies}) {
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < (a[i].*list).size(); ++j)
        if (!(std::abs((a[i].*list)[j] - (b[i].*list)[j]) <= within)) return false;
    }
  }
  return true;
}

}  // namespace learner_test
