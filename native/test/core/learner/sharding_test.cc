// Several ranks against one learner with all texts.
#include <c10/core/CPUAllocator.h>

#include <mutex>

#include "test/core/learner/examples.h"
#include "test/core/ranks/run_ranks.h"

using namespace learner_test;
using namespace nlac;
using nlac::test::run_ranks;

using Group = std::shared_ptr<RankGroup>;

namespace {

LearnerOptions on_ranks(LearnerOptions options, const Group& group, int sharding) {
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

std::vector<SurrogateText> some_surrogates() {
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

enum class Kind { plain, value, q, adapter, experts };  // the last: adapters of experts

LearnerOptions options_for(Kind kind, at::ScalarType dtype) {
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
    default: return options_of(dtype, 24);
  }
}

Figures update(Learner& learner, Kind kind, const RankGroup* group) {
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

std::unique_ptr<Learner> make(Kind kind, at::ScalarType dtype, const Group& group = nullptr,
                              int sharding = 0) {
  const LearnerOptions options = options_for(kind, dtype);
  const Family family = kind == Kind::q         ? Family::qwen3
                        : kind == Kind::experts ? Family::qwen3_moe
                                                : Family::qwen2;
  ModelConfig config = tiny_config(family);
  // With sharding 2 all layers must have as many parameters.
  if (kind == Kind::experts) config.layer_kinds[0] = config.layer_kinds[1];
  auto learner = Learner::create(config, 7, group ? on_ranks(options, group, sharding) : options);
  learner->update_target(1);
  return learner;
}

struct State {
  std::vector<at::Tensor> masters, targets;
  std::vector<Figures> figures;
  std::vector<std::vector<float>> log_probs;  // of θ and θ̄
};

State state_of(const std::optional<Weights>& masters, const std::optional<Weights>& targets) {
  return {copies(*masters), copies(*targets), {}, {}};
}

void score(Learner& learner, State& state) {
  for (WeightSet which : {WeightSet::online, WeightSet::target})
    for (auto& list : learner.log_probs(some_texts(), which)) state.log_probs.push_back(list);
}

State alone(Kind kind, at::ScalarType dtype, int updates) {
  const auto learner = make(kind, dtype);
  std::vector<Figures> figures;
  for (int i = 0; i < updates; ++i) figures.push_back(update(*learner, kind, nullptr));
  State state = state_of(learner->masters(), *learner->target_masters());
  state.figures = figures;
  score(*learner, state);
  return state;
}

State of_ranks(int ranks, int sharding, Kind kind, at::ScalarType dtype, int updates) {
  State state;
  std::vector<std::vector<std::vector<float>>> scored(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const Group& group) {
    const auto learner = make(kind, dtype, group, sharding);
    std::vector<Figures> figures;
    for (int i = 0; i < updates; ++i) figures.push_back(update(*learner, kind, group.get()));
    const auto masters = learner->whole_masters(), targets = learner->whole_target_masters();
    State own;
    score(*learner, own);
    scored[static_cast<size_t>(group->rank())] = own.log_probs;
    if (group->rank() != 0) return;
    state = state_of(masters, targets);
    state.figures = figures;
    state.log_probs = own.log_probs;
  });
  // Each rank computes with the same parameters.
  for (const auto& lists : scored) CHECK(lists == scored[0]);
  return state;
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
thread_local int64_t FailingAllocator::left = -1;

}  // namespace

TEST_CASE("one rank equals a learner without ranks, bit for bit, at every stage, for all parameters") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (Kind kind : {Kind::plain, Kind::value, Kind::q, Kind::adapter, Kind::experts}) {
      const State expected = alone(kind, dtype, 3);
      for (int sharding : {0, 1, 2}) {
        CAPTURE(sharding);
        CAPTURE(static_cast<int>(kind));
        const State state = of_ranks(1, sharding, kind, dtype, 3);
        CHECK(equal(state.masters, expected.masters));
        CHECK(equal(state.targets, expected.targets));
        CHECK(state.log_probs == expected.log_probs);
        for (size_t i = 0; i < state.figures.size(); ++i) {
          // Sharding 2 sums the layers' gradients of micro-batches in another order.
          const double within = sharding == 2 ? 1e-6 : 0;
          CHECK(std::abs(state.figures[i].policy_norm / expected.figures[i].policy_norm - 1) <= within);
          CHECK(std::abs(state.figures[i].critic_norm / expected.figures[i].critic_norm - 1) <= within);
        }
      }
    }
  }
}

TEST_CASE("several ranks train what one learner trains, and repeat bit for bit") {
  for (Kind kind : {Kind::plain, Kind::value, Kind::q, Kind::adapter, Kind::experts}) {
    const State expected = alone(kind, at::kFloat, 6);
    for (int ranks : {2, 3, 4}) {
      if (ranks == 4 && kind != Kind::plain) continue;
      for (int sharding : {0, 1, 2}) {
        CAPTURE(ranks);
        CAPTURE(sharding);
        CAPTURE(static_cast<int>(kind));
        const State state = of_ranks(ranks, sharding, kind, at::kFloat, 6);
        CHECK(relative_difference(state.masters, expected.masters) < 1e-5);
        CHECK(relative_difference(state.targets, expected.targets) < 1e-5);
        for (size_t i = 0; i < state.figures.size(); ++i) {
          CHECK(state.figures[i].critic_norm ==
                doctest::Approx(expected.figures[i].critic_norm).epsilon(1e-4));
          CHECK(state.figures[i].policy_norm ==
                doctest::Approx(expected.figures[i].policy_norm).epsilon(1e-4));
          CHECK(state.figures[i].distance == doctest::Approx(expected.figures[i].distance).epsilon(1e-4));
        }
        if (ranks != 3) continue;
        const State again = of_ranks(ranks, sharding, kind, at::kFloat, 6);
        CHECK(equal(again.masters, state.masters));
        CHECK(equal(again.targets, state.targets));
      }
    }
  }
}

TEST_CASE("a checkpoint of two ranks is resumed by one, three and none, bit for bit") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (Kind kind : {Kind::plain, Kind::value, Kind::q, Kind::adapter, Kind::experts}) {
      if (dtype == at::kBFloat16 && kind != Kind::value) continue;
      for (int sharding : {0, 1, 2}) {
        for (const bool pending : {false, true}) {
          CAPTURE(sharding);
          CAPTURE(pending);
          CAPTURE(static_cast<int>(kind));
          test::Scratch saved, again;
          State at_save;
          run_ranks(2, [&](const Group& group) {
            const auto learner = make(kind, dtype, group, sharding);
            for (int i = 0; i < 2; ++i) update(*learner, kind, group.get());
            learner->keep_reference();
            if (pending) learner->token_nll(share(some_texts(), group.get()), true);
            learner->save(saved.path());
            const auto masters = learner->whole_masters(), targets = learner->whole_target_masters();
            if (group->rank() == 0) at_save = state_of(masters, targets);
          });
          CHECK(fs::exists(saved / "gradients.safetensors") == pending);
          const auto same_files = [&] {
            for (const auto& entry : fs::directory_iterator(saved.path())) {
              if (!entry.is_regular_file()) continue;
              const std::string name = entry.path().filename();
              CAPTURE(name);
              CHECK(test::read_bytes(again / name) == test::read_bytes(saved / name));
            }
          };
          const auto lone = Learner::resume(saved.path(), options_for(kind, dtype));
          CHECK(equal(lone->masters().list(), at_save.masters));
          CHECK(equal(lone->target_masters()->list(), at_save.targets));
          lone->save(again.path());
          same_files();
          for (int ranks : {1, 3}) {
            run_ranks(ranks, [&](const Group& group) {
              Learner::resume(saved.path(), on_ranks(options_for(kind, dtype), group, sharding))
                  ->save(again.path());
            });
            same_files();
          }
        }
      }
    }
  }
}

TEST_CASE("a saved pending gradient is counted once") {
  const auto lone = make(Kind::plain, at::kFloat);
  lone->token_nll(some_texts(), true);
  test::Scratch saved;
  lone->save(saved.path());
  lone->step(quick_step(), "");
  for (int sharding : {0, 1, 2}) {
    std::vector<at::Tensor> masters;
    run_ranks(3, [&](const Group& group) {
      const auto learner = Learner::resume(saved.path(), on_ranks(options_of(), group, sharding));
      learner->step(quick_step(), "");
      const auto whole = learner->whole_masters();
      if (group->rank() == 0) masters = copies(*whole);
    });
    CHECK(relative_difference(masters, lone->masters().list()) < 1e-6);
  }
}

TEST_CASE("Q heads are reset on all ranks") {
  const auto lone = make(Kind::q, at::kBFloat16);
  update(*lone, Kind::q, nullptr);
  for (int sharding : {1, 2}) {
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::q, at::kBFloat16, group, sharding);
      update(*learner, Kind::q, group.get());
      learner->reset_q_heads();
      const auto masters = learner->whole_masters(), targets = learner->whole_target_masters();
      if (group->rank() != 0) return;
      Weights expected = *masters;
      expected.q = {QHead{at::empty_like(masters->q[0].advantage), at::empty_like(masters->q[0].value)},
                    QHead{at::empty_like(masters->q[0].advantage), at::empty_like(masters->q[0].value)}};
      expected.reset_q_heads(*masters);
      CHECK(equal(masters->list(), expected.list()));
      CHECK(at::equal(targets->q[1].advantage, expected.q[1].advantage));
    });
  }
}

TEST_CASE("exports of ranks are those of one learner") {
  const auto contents = [](const test::Scratch& directory) {
    return test::read_bytes(directory / "model.safetensors");
  };
  const auto lone = make(Kind::adapter, at::kFloat);
  test::Scratch expected, made;
  lone->export_huggingface(expected.path());
  lone->export_adapter(expected.path(), "base");
  run_ranks(2, [&](const Group& group) {
    const auto learner = make(Kind::adapter, at::kFloat, group, 1);
    learner->export_huggingface(made.path());
    learner->export_adapter(made.path(), "base");
  });
  CHECK(contents(made) == contents(expected));
  CHECK(test::read_bytes(made / "adapter_model.safetensors") ==
        test::read_bytes(expected / "adapter_model.safetensors"));
}

TEST_CASE("a gradient that is not finite on one rank skips the step of all") {
  for (Kind kind : {Kind::plain, Kind::adapter}) {
    for (int sharding : {0, 1, 2}) {
      std::mutex mutex;
      std::vector<bool> skipped, after;
      run_ranks(2, [&](const Group& group) {
        const auto learner = make(kind, at::kFloat, group, sharding);
        std::vector<ScoredText> texts = some_texts();
        if (group->rank() == 1) texts[0].weights = {3e38f};  // the gradient overflows
        learner->token_nll(texts, true);
        const bool first = learner->step(quick_step(), "").skipped;
        learner->token_nll(some_texts(), true);
        const bool second = learner->step(quick_step(), "").skipped;
        const std::lock_guard lock(mutex);
        skipped.push_back(first), after.push_back(second);
      });
      CHECK(skipped == std::vector<bool>{true, true});
      CHECK(after == std::vector<bool>{false, false});
    }
  }
}

TEST_CASE("a rank that runs out of memory in a loss call does not hold up the others") {
  static FailingAllocator failing;
  c10::SetCPUAllocator(&failing, 1);
  const auto lone = make(Kind::plain, at::kFloat);
  lone->token_nll(some_texts(), true);
  lone->step(quick_step(), "");
  for (int64_t allocations : {100, 200}) {
    CAPTURE(allocations);
    std::vector<std::string> codes(2);
    std::vector<at::Tensor> masters;
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::plain, at::kFloat, group, 2);
      if (group->rank() == 1) FailingAllocator::left = allocations;
      const std::string code = code_of([&] { learner->token_kl(some_distilled(), 1, {}, true); });
      FailingAllocator::left = -1;
      learner->discard_gradients();
      learner->token_nll(share(some_texts(), group.get()), true);
      learner->step(quick_step(), "");
      const auto whole = learner->whole_masters();
      codes[static_cast<size_t>(group->rank())] = code;
      if (whole) masters = copies(*whole);
    });
    CHECK(codes[1] == "ERR_OUT_OF_MEMORY");
    CHECK(relative_difference(masters, lone->masters().list()) < 1e-5);
  }
  c10::SetCPUAllocator(failing.under, 1);
}
