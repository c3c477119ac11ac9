// Several ranks against one learner with all texts.
#include <functional>
#include <future>
#include <mutex>

#include "test/core/failing_new.h"
#include "test/core/learner/on_ranks.h"

using namespace learner_test;
using namespace nlac;

namespace {

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

}  // namespace

TEST_CASE("one rank equals a learner without ranks, bit for bit, at every stage, for all parameters") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (Kind kind : {Kind::plain, Kind::value, Kind::q, Kind::adapter, Kind::experts, Kind::deep}) {
      const State expected = alone(kind, dtype, 3);
      State before;  // at the previous stage
      for (int sharding : {0, 1, 2, 3}) {
        CAPTURE(sharding);
        CAPTURE(static_cast<int>(kind));
        const State state = of_ranks(1, sharding, kind, dtype, 3);
        // From sharding 2 on, the layers' gradients of micro-batches are summed in another order,
        // which changes bits in the deep model.
        if (sharding < 2 || kind != Kind::deep) {
          CHECK(equal(state.masters, expected.masters));
          CHECK(equal(state.targets, expected.targets));
          CHECK(state.log_probs == expected.log_probs);
        }
        if (sharding == 3) {
          CHECK(equal(state.masters, before.masters));
          CHECK(equal(state.targets, before.targets));
          CHECK(state.log_probs == before.log_probs);
        }
        before = state;
        for (size_t i = 0; i < state.figures.size(); ++i) {
          const double within = sharding >= 2 ? 1e-6 : 0;
          CHECK(std::abs(state.figures[i].policy_norm / expected.figures[i].policy_norm - 1) <= within);
          CHECK(std::abs(state.figures[i].critic_norm / expected.figures[i].critic_norm - 1) <= within);
        }
      }
    }
  }
}

TEST_CASE("several ranks train what one learner trains, and repeat bit for bit") {
  for (Kind kind : {Kind::plain, Kind::value, Kind::q, Kind::adapter, Kind::experts, Kind::deep}) {
    const State expected = alone(kind, at::kFloat, 6);
    for (int ranks : {2, 3, 4}) {
      if (ranks == 4 && kind != Kind::plain) continue;
      for (int sharding : {0, 1, 2, 3}) {
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
    for (Kind kind : {Kind::plain, Kind::value, Kind::q, Kind::adapter, Kind::experts, Kind::deep}) {
      if (dtype == at::kBFloat16 && kind != Kind::value) continue;
      for (int sharding : {0, 1, 2, 3}) {
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
              // Each stage also resumes what another has saved.
              const int stage = ranks == 1 ? sharding : (sharding + 1) % 4;
              Learner::resume(saved.path(), on_ranks(options_for(kind, dtype), group, stage))
                  ->save(again.path());
            });
            same_files();
          }
        }
      }
    }
  }
}

namespace {

// A learner with all that a checkpoint may hold.
std::unique_ptr<Learner> trained(LearnerOptions options, const Group& group, int sharding) {
  auto learner = make(options, Kind::value, group, sharding);
  update(*learner, Kind::value, group.get());
  learner->keep_reference();
  learner->token_nll(share(some_texts(), group.get()), true);
  return learner;
}

}  // namespace

TEST_CASE("ranks generate while a checkpoint is held up by one of them") {
  const GenerateRequest request = request_of(random_ids(10, 1), 10, 1.0, 2);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [sharding, layerwise] : {std::pair{0, false}, std::pair{1, false}, std::pair{2, false},
                                              std::pair{3, false}, std::pair{3, true}}) {
      CAPTURE(sharding);
      CAPTURE(layerwise);
      Scratch quiet, meanwhile;
      LearnerOptions options = options_for(Kind::value, dtype);
      options.layerwise_generation = layerwise;
      const int stage = sharding;
      run_ranks(3, [&](const Group& group) {
        const auto learner = trained(options, group, stage);
        const auto tokens = [&](WeightSet which) {
          if (!learner->generates_together()) learner->gather(which);
          return learner->generate({request}, which, {})[0].tokens;
        };
        const std::vector sets{WeightSet::online, WeightSet::target};
        std::vector<Ids> expected;
        for (const WeightSet which : sets) expected.push_back(tokens(which));
        learner->save(quiet.path());
        const std::function<void()> write = learner->begin_save(meanwhile.path());
        const auto start = [&] { return std::async(std::launch::async, write); };
        std::future<void> written;
        if (group->rank() != 1) written = start();
        for (int round = 0; round < 3; ++round)
          for (size_t i = 0; i < sets.size(); ++i) CHECK(tokens(sets[i]) == expected[i]);
        CHECK_FALSE(fs::exists(meanwhile / "model.safetensors"));
        group->max(0);  // the others have looked before this rank lets the files be written
        if (group->rank() == 1) written = start();
        for (size_t i = 0; i < sets.size(); ++i) CHECK(tokens(sets[i]) == expected[i]);
        written.get();
      });
      CHECK(files_of(meanwhile) == files_of(quiet));
      CHECK(files_of(quiet).contains("gradients.safetensors"));
    }
  }
}

TEST_CASE("a rank that fails in a save reports it, and the others stop and stay usable") {
  static FailingAllocator failing;
  c10::SetCPUAllocator(&failing, 1);
  for (int sharding : {1, 2, 3}) {
    for (const int victim : {0, 1}) {
      CAPTURE(sharding);
      CAPTURE(victim);
      Scratch partial, again;
      run_ranks(3, [&](const Group& group) {
        const int rank = group->rank();
        const auto learner = trained(options_for(Kind::value, at::kFloat), group, sharding);
        for (const int fails_after : {0, 1, 5}) {
          const std::function<void()> write = learner->begin_save(partial.path());
          if (rank == victim) FailingAllocator::left = fails_after;
          const std::string code = code_of(write);
          FailingAllocator::left = -1;
          CHECK(code == (rank == victim ? "ERR_OUT_OF_MEMORY" : rank == 0 ? "ERR_PEER" : "none"));
        }
        const auto missing = [&] { learner->save(partial / "missing"); };
        CHECK(code_of(missing) == (rank == 0 ? "ERR_IO" : "none"));
        learner->save(again.path());
      });
      CHECK_FALSE(fs::exists(partial / "learner.json"));
      CHECK(fs::exists(again / "learner.json"));
    }
  }
  c10::SetCPUAllocator(failing.under, 1);
}

TEST_CASE("a target network that one rank has used exists on all ranks from their next common call on") {
  const std::pair<std::string, std::function<void(Learner&, const std::string&)>> calls[] = {
      {"save", [](Learner& learner, const std::string& directory) { learner.save(directory); }},
      {"distance", [](Learner& learner, const std::string&) { CHECK(learner.target_distance() == 0); }},
      {"restore", [](Learner& learner, const std::string&) { learner.restore_reference(); }},
      {"step", [](Learner&, const std::string&) {}}};
  for (int sharding : {0, 1, 2}) {
    for (const auto& [name, call] : calls) {
      CAPTURE(sharding);
      CAPTURE(name);
      const auto& run = call;
      const int stage = sharding;
      Scratch first, last;
      run_ranks(
          2,
          [&](const Group& group) {
            const auto learner = Learner::create(tiny_config(), 7, on_ranks(options_of(), group, stage));
            learner->keep_reference();
            const auto before = learner->log_probs(some_texts(), WeightSet::online);
            if (group->rank() == 0) learner->log_probs(some_texts(), WeightSet::target);
            run(*learner, first.path());
            learner->token_nll(share(some_texts(), group.get()), true);
            learner->step(quick_step(), "");
            CHECK(learner->log_probs(some_texts(), WeightSet::target) == before);
            learner->update_target(0.5);
            learner->save(last.path());
          },
          std::chrono::seconds(10));
      CHECK(fs::exists(last / "target.safetensors"));
    }
  }
}

TEST_CASE("a saved pending gradient is counted once") {
  const auto lone = make(Kind::plain, at::kFloat);
  lone->token_nll(some_texts(), true);
  test::Scratch saved;
  lone->save(saved.path());
  lone->step(quick_step(), "");
  for (int sharding : {0, 1, 2, 3}) {
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
  for (int sharding : {1, 2, 3}) {
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
    for (int sharding : {0, 1, 2, 3}) {
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

TEST_CASE("a step that all ranks reject changes nothing, and can be repeated") {
  AdamWOptions wrong = quick_step(), right = quick_step();
  wrong.learning_rate = -1;
  right.max_grad_norm = 0;  // else clipping would hide the size of the gradient
  right.epsilon = 1;        // as would AdamW's
  const auto lone = make(Kind::plain, at::kFloat);
  lone->token_nll(some_texts(), true);
  const double norm = lone->step(right, "").grad_norm;
  for (int sharding : {0, 1, 2, 3}) {
    CAPTURE(sharding);
    std::vector<std::string> codes(2);
    std::vector<at::Tensor> masters;
    double norm_of_ranks = 0;
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::plain, at::kFloat, group, sharding);
      learner->token_nll(share(some_texts(), group.get()), true);
      codes[static_cast<size_t>(group->rank())] =
          code_of([&] { learner->step(wrong, ""); }) + " " + code_of([&] { learner->step(right, "", 2.0); });
      const StepResult result = learner->step(right, "");
      const auto whole = learner->whole_masters();
      if (group->rank() != 0) return;
      masters = copies(*whole);
      norm_of_ranks = result.grad_norm;
    });
    CHECK(codes == std::vector<std::string>(2, "ERR_VALUE ERR_VALUE"));
    CHECK(norm_of_ranks == doctest::Approx(norm).epsilon(1e-5));
    CHECK(relative_difference(masters, lone->masters().list()) < 1e-6);
  }
}

TEST_CASE("a step that fails once ranks have summed gradients does not leave their sums behind") {
  const auto lone = make(Kind::plain, at::kFloat);
  lone->token_nll(some_texts(), true);
  const double norm = lone->step(quick_step(), "").grad_norm;
  // Both ranks fail at the same allocation, counted from the last one of a step.
  constexpr int64_t plenty = int64_t{1} << 40;
  int64_t used = 0, failures = 0;
  for (int64_t back = 0; back <= 240; back += 12) {
    CAPTURE(back);
    std::vector<double> norms(2);
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::plain, at::kFloat, group, 0);
      learner->token_nll(share(some_texts(), group.get()), true);
      group->max(0);
      std::string code;
      {
        const test::FailingNew failing(back == 0 ? plenty : used - back);
        code = code_of([&] { learner->step(quick_step(), ""); });
        if (back == 0 && group->rank() == 0) used = plenty - test::allocations_left;
      }
      norms[static_cast<size_t>(group->rank())] = learner->step(quick_step(), "").grad_norm;
      if (group->rank() == 0 && code == "ERR_OUT_OF_MEMORY") ++failures;
    });
    CHECK(norms[0] == norms[1]);
    if (norms[0] != 0) CHECK(norms[0] == doctest::Approx(norm).epsilon(1e-5));
  }
  CHECK(failures == 20);
}

TEST_CASE("a rank that runs out of memory in a loss call does not hold up the others") {
  static FailingAllocator failing;
  c10::SetCPUAllocator(&failing, 1);
  const auto lone = make(Kind::plain, at::kFloat);
  lone->token_nll(some_texts(), true);
  lone->step(quick_step(), "");
  // Not those within a collective: gloo's first one there fails on the other rank only by the timeout.
  for (const auto& [sharding, allocations] :
       {std::pair{2, 84}, std::pair{2, 184}, std::pair{3, 10}, std::pair{3, 44}, std::pair{3, 45},
        std::pair{3, 46}, std::pair{3, 47}, std::pair{3, 84}, std::pair{3, 134}, std::pair{3, 184}}) {
    CAPTURE(sharding);
    CAPTURE(allocations);
    const int stage = sharding, fails_after = allocations;
    std::vector<std::string> codes(2);
    std::vector<at::Tensor> masters;
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::plain, at::kFloat, group, stage);
      if (group->rank() == 1) FailingAllocator::left = fails_after;
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

TEST_CASE("a rank that runs out of memory in a call of all ranks does not hold up the others") {
  static FailingAllocator failing;
  c10::SetCPUAllocator(&failing, 1);
  test::Scratch directory;
  struct Call {
    Kind kind;
    int sharding;
    int64_t allocations;  // before the one that fails
    std::function<void(Learner&)> run;
  };
  std::vector<Call> calls;
  for (const int sharding : {1, 2, 3})
    calls.push_back({Kind::plain, sharding, 12, [](Learner& learner) { learner.step(quick_step(), ""); }});
  for (const int sharding : {1, 3}) {
    for (const int64_t allocations : {0, 3})
      calls.push_back(
          {Kind::plain, sharding, allocations, [](Learner& learner) { learner.target_distance(); }});
    calls.push_back({Kind::plain, sharding, 0, [&](Learner& learner) { learner.save(directory.path()); }});
    calls.push_back({Kind::q, sharding, 0, [](Learner& learner) { learner.reset_q_heads(); }});
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    const Call& call = calls[i];
    const auto lone = make(call.kind, at::kFloat);
    lone->token_nll(some_texts(), true);
    const double norm = lone->step(quick_step(), "").grad_norm;
    std::vector<std::string> codes(2);
    std::vector<double> norms(2);
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(call.kind, at::kFloat, group, call.sharding);
      const auto own = static_cast<size_t>(group->rank());
      learner->token_nll(share(some_texts(), group.get()), true);
      if (own == 1) FailingAllocator::left = call.allocations;
      codes[own] = code_of([&] { call.run(*learner); });
      FailingAllocator::left = -1;
      // The gradients are still those of each rank.
      norms[own] = learner->step(quick_step(), "").grad_norm;
    });
    CHECK(codes == std::vector<std::string>{"ERR_PEER", "ERR_OUT_OF_MEMORY"});
    CHECK(norms[0] == doctest::Approx(norm).epsilon(1e-5));
    CHECK(norms[1] == norms[0]);
  }
  c10::SetCPUAllocator(failing.under, 1);
}
