// Learners on several ranks, and what they train.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <memory>
#include <vector>

#include "test/core/learner/examples.h"
#include "test/core/ranks/run_ranks.h"

namespace learner_test {

using nlac::test::run_ranks;

using Group = std::shared_ptr<RankGroup>;

inline LearnerOptions on_ranks(LearnerOptions options, const Group& group, int sharding) {
  options.ranks = group;
  options.sharding = sharding;
  return options;
}

// The texts of a rank: every ranks-th. Without a group, all.
template <typename Text>
std::vector<Text> share(const std::vector<Text>& all, const RankGroup* group) {
  std::vector<Text> own;
  for (size_t i = 0; i < all.size(); ++i)
    if (!group || static_cast<int>(i % static_cast<size_t>(group->size())) == group->rank())
      own.push_back(all[i]);
  return own;
}

inline std::vector<SurrogateText> some_surrogates() {
  std::vector<SurrogateText> texts;
  for (const ScoredText& text : some_texts()) {
    SurrogateText made;
    made.prompt = text.prompt, made.response = text.response, made.weights = text.weights;
    for (size_t j = 0; j < text.response.size(); ++j) {
      const auto x = static_cast<float>(j);
      made.old_log_probs.push_back(-3 - 0.1f * x), made.advantages.push_back(0.5f - 0.2f * x);
      made.returns.push_back(0.3f * x), made.old_values.push_back(0.1f);
    }
    texts.push_back(std::move(made));
  }
  return texts;
}

// What an update reports that must be the same for one learner and for several ranks.
struct Figures {
  double critic_norm = 0, policy_norm = 0, distance = 0;
};

enum class Kind { plain, value, q, adapter, experts, deep };  // experts: adapters of experts

// Five layers of two kinds, whose sizes differ.
inline ModelConfig deep_config() {
  ModelConfig config = tiny_config(Family::qwen3);
  config.family = Family::qwen3_5;
  config.layers = 5;
  const LayerKind delta{.mixer = Mixer::delta};
  config.layer_kinds = {delta, delta, {}, delta, {}};
  config.gated_attention = true;
  config.norm_plus_one = true;
  config.rope.dimensions = config.head_dim / 2;
  config.delta = {.key_heads = 2, .heads = 4, .key_dim = 8, .value_dim = 8, .kernel = 4};
  return config;
}

inline LearnerOptions options_for(Kind kind, at::ScalarType dtype) {
  // Small, so that a rank has several micro-batches and the ranks differ in their number.
  switch (kind) {
    case Kind::value: return with_value_head(dtype, 24);
    case Kind::q: return q_options(dtype, 24);
    case Kind::adapter:
    case Kind::experts: {
      LearnerOptions options = adapted_options(dtype);
      options.micro_batch_tokens = 24;
      return options;
    }
    case Kind::deep: {
      LearnerOptions options = options_of(dtype, 24);
      options.gradient_checkpointing = true;
      return options;
    }
    default: return options_of(dtype, 24);
  }
}

inline Figures update(Learner& learner, Kind kind, const RankGroup* group) {
  Figures figures;
  AdamWOptions options = quick_step();
  // Else the rounding of a gradient that is nearly 0 would decide the sign of a whole step.
  options.epsilon = 1e-4;
  learner.token_kl(share(some_distilled(), group), 1, {}, true);
  if (kind == Kind::q) learner.soft_q(share(some_episodes(), group), some_soft_q());
  figures.critic_norm = learner.step(options, "critic").grad_norm;
  learner.token_nll(share(some_texts(), group), true);
  if (kind == Kind::value) {
    SurrogateSettings settings;
    settings.value = ValueOptions{0.5, 0.2};
    learner.token_surrogate(share(some_surrogates(), group), settings);
  }
  figures.policy_norm = learner.step(options, "policy", 0.05).grad_norm;
  figures.distance = learner.target_distance();
  return figures;
}

inline std::unique_ptr<Learner> make(const LearnerOptions& options, Kind kind, const Group& group,
                                     int sharding) {
  const Family family = kind == Kind::q         ? Family::qwen3
                        : kind == Kind::experts ? Family::qwen3_moe
                                                : Family::qwen2;
  const ModelConfig config = kind == Kind::deep ? deep_config() : tiny_config(family);
  auto learner = Learner::create(config, 7, group ? on_ranks(options, group, sharding) : options);
  learner->update_target(1);
  return learner;
}

inline std::unique_ptr<Learner> make(Kind kind, at::ScalarType dtype, const Group& group = nullptr,
                                     int sharding = 0) {
  return make(options_for(kind, dtype), kind, group, sharding);
}

// Lets one allocation of a thread fail.
class FailingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(left < 0 || left-- > 0, "not enough memory: a test's allocation fails");
    return under->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return under->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    under->copy_data(to, from, bytes);
  }

  c10::Allocator* const under = c10::GetCPUAllocator();
  static thread_local int64_t left;  // allocations before the one that fails; negative: none does
};
inline thread_local int64_t FailingAllocator::left = -1;

}  // namespace learner_test
