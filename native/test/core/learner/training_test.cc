// Steps, the target network and the reference.
#include "test/core/learner/examples.h"

#include <ATen/core/grad_mode.h>

using namespace learner_test;
using namespace nlac;

TEST_CASE("steps lower the loss and reset the gradients") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = Learner::create(tiny_config(), 2, options_of(dtype));
    const auto texts = std::vector<ScoredText>{{random_ids(5, 1), random_ids(12, 2), {1.0}}};
    const double first = weighted_sum(texts, learner->token_nll(texts, false));
    for (int i = 0; i < 30; ++i) {
      learner->token_nll(texts, true);
      const StepResult result = learner->step(quick_step(), "");
      CHECK_FALSE(result.skipped);
      CHECK(result.grad_norm > 0);
    }
    CHECK(weighted_sum(texts, learner->token_nll(texts, false)) < 0.5 * first);
    for (const at::Tensor& gradient : learner->gradients()->list()) CHECK(gradient.eq(0).all().item<bool>());
  }
}

TEST_CASE("bf16 training has float32 masters: many tiny steps are not lost") {
  const auto learner = Learner::create(tiny_config(), 2, options_of(at::kBFloat16));
  const auto before = copies(learner->masters());
  AdamWOptions options;
  options.learning_rate = 1e-6;  // far below half a bf16 ulp of most weights
  learner->update_target(1);
  learner->token_nll(some_texts(), true);
  learner->step(options, "");
  CHECK_FALSE(equal(learner->masters().list(), before));
  learner->update_target(0.005);
  CHECK((learner->masters().embedding.scalar_type() == at::kFloat));
  CHECK((learner->target_masters()->embedding.scalar_type() == at::kFloat));
  const auto target = copies(*learner->target_masters());
  learner->token_nll(some_texts(), true);
  learner->step(options, "");
  learner->update_target(0.005);
  CHECK_FALSE(equal(learner->target_masters()->list(), target));
}

TEST_CASE("the target moves by τ and drops its cache") {
  const auto learner = tiny_learner();
  CHECK(learner->target_distance() == 0);
  CHECK(learner->target_masters() == nullptr);
  const GenerateRequest request = request_of(random_ids(30, 1), 10);
  learner->generate({request}, WeightSet::target, {});  // θ̄ is made here, equal to θ
  CHECK(equal(learner->target_masters()->list(), learner->masters().list()));

  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  CHECK(learner->target_distance() > 0);
  const auto old = copies(*learner->target_masters());
  for (double target_rate : {0.005, 0.5, 0.0}) {
    CAPTURE(target_rate);
    const auto previous = copies(*learner->target_masters());
    learner->update_target(target_rate);
    const auto target = learner->target_masters()->list(), online = learner->masters().list();
    for (size_t i = 0; i < target.size(); ++i) {
      const at::Tensor exact =
          target_rate * online[i].to(at::kDouble) + (1 - target_rate) * previous[i].to(at::kDouble);
      CHECK(((target[i] - exact).abs() <= 1.5e-7 * (exact.abs() + previous[i].abs()) + 1e-9)
                .all()
                .item<bool>());
    }
  }
  CHECK_FALSE(equal(learner->target_masters()->list(), old));
  learner->update_target(1);
  CHECK(equal(learner->target_masters()->list(), learner->masters().list()));
  CHECK(learner->target_distance() == 0);
  const auto target = learner->generate({request}, WeightSet::target, {})[0];
  CHECK(target.cached_tokens == 0);
  CHECK(target.tokens == learner->generate({request}, WeightSet::online, {})[0].tokens);
  CHECK(code_of([&] { learner->update_target(1.5); }) == "ERR_VALUE");
}

TEST_CASE("the target starts as θ before the first step") {
  const auto step = [](Learner& learner) {
    learner.token_nll(some_texts(), true);
    CHECK_FALSE(learner.step(quick_step(), "").skipped);
  };
  const auto used = tiny_learner();
  const auto loaded = copies(used->masters());
  used->update_target(0.25);
  step(*used);
  CHECK(equal(used->target_masters()->list(), loaded));

  // Without a use before the step θ̄ is not allocated, and it must not start from the θ after it.
  const auto unused = tiny_learner();
  step(*unused);
  CHECK(unused->target_masters() == nullptr);
  Scratch directory;
  unused->save(directory.path());
  const auto resumed = Learner::resume(directory.path(), options_of());
  for (Learner* learner : {unused.get(), resumed.get()}) {
    const GenerateRequest request = request_of(random_ids(5, 1), 3);
    const std::function<void()> uses[] = {
        [&] { learner->update_target(0.005); },
        [&] { learner->target_distance(); },
        [&] { learner->generate({request}, WeightSet::target, {}); },
        [&] { learner->log_probs(some_texts(), WeightSet::target); },
        [&] { learner->logits(random_ids(5, 1), WeightSet::target); },
        [&] { learner->token_kl(some_distilled(), 1, {}, true); },
    };
    for (const auto& use : uses) {
      std::string message;
      CHECK(code_of(use, &message) == "ERR_VALUE");
      CHECK(message.find("τ = 1") != std::string::npos);
      CHECK(learner->target_masters() == nullptr);
    }
    // Calls without θ̄ still work, and an update with τ = 1 creates it.
    learner->token_kl(some_distilled(), 1, {SupportKind::sampled, 0}, false);
    learner->update_target(1);
    CHECK(equal(learner->target_masters()->list(), learner->masters().list()));
    learner->update_target(0.005);
  }

  // A skipped step changed nothing.
  const auto skipped = tiny_learner();
  at::NoGradGuard no_grad;
  skipped->masters().norm.fill_(std::numeric_limits<float>::quiet_NaN());
  skipped->token_nll(some_texts(), true);
  REQUIRE(skipped->step(quick_step(), "").skipped);
  skipped->update_target(0.5);
  CHECK(skipped->target_masters() != nullptr);
}

TEST_CASE("a target update within a step equals one after it, also if the step is skipped") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const double rate : {0.0, 0.05, 1.0}) {
      CAPTURE(std::string(c10::toString(dtype)));
      CAPTURE(rate);
      const auto together = tiny_learner(options_of(dtype)), apart = tiny_learner(options_of(dtype));
      apart->update_target(0);  // of the other the first step makes θ̄
      const GenerateRequest request = request_of(random_ids(20, 1), 5);
      for (const bool finite : {true, false, true}) {
        for (Learner* learner : {together.get(), apart.get()}) {
          learner->token_nll(some_texts(), true);
          if (!finite) learner->gradients()->norm.fill_(std::numeric_limits<float>::infinity());
        }
        const StepResult result = together->step(quick_step(), "", rate);
        CHECK(result.skipped == !finite);
        CHECK(apart->step(quick_step(), "").skipped == !finite);
        apart->update_target(rate);
        CHECK(equal(together->masters().list(), apart->masters().list()));
        CHECK(equal(together->target_masters()->list(), apart->target_masters()->list()));
        for (const WeightSet which : {WeightSet::online, WeightSet::target}) {
          const auto written = together->generate({request}, which, {})[0];
          CHECK(written.log_probs == apart->generate({request}, which, {})[0].log_probs);
          if (which == WeightSet::target) CHECK(written.cached_tokens == 0);
        }
      }
    }
  }

  // As with update_target: after a step, θ̄ may only be created as a copy of θ.
  const auto late = tiny_learner();
  late->token_nll(some_texts(), true);
  late->step(quick_step(), "");
  const auto moved = copies(late->masters());
  late->token_nll(some_texts(), true);
  CHECK(code_of([&] { late->step(quick_step(), "", 0.5); }) == "ERR_VALUE");
  CHECK(equal(late->masters().list(), moved));
  CHECK_FALSE(late->step(quick_step(), "", 1).skipped);
  CHECK(equal(late->target_masters()->list(), late->masters().list()));
}

TEST_CASE("caches and packed matrices are dropped when their weights change") {
  std::vector<LearnerOptions> kinds = {options_of(at::kFloat), options_of(at::kBFloat16)};
  kinds.emplace_back(options_of(at::kBFloat16)).int8_generation = true;
  for (const LearnerOptions& options : kinds) {
    CAPTURE(std::string(c10::toString(options.dtype)));
    CAPTURE(options.int8_generation);
    const auto learner = Learner::create(tiny_config(), 3, options);
    const GenerateRequest request = request_of(random_ids(40, 1), 12);
    std::vector<float> before;  // of θ, and of θ̄ too
    for (const WeightSet which : {WeightSet::online, WeightSet::target}) {
      before = learner->generate({request}, which, {})[0].log_probs;
      CHECK(learner->generate({request}, which, {})[0].cached_tokens == 39);
    }
    learner->token_nll(some_texts(), true);
    learner->step(quick_step(), "");
    learner->update_target(0.5);

    Scratch directory;
    learner->save(directory.path());
    const auto fresh = Learner::resume(directory.path(), options);
    for (const WeightSet which : {WeightSet::online, WeightSet::target}) {
      const auto after = learner->generate({request}, which, {})[0];
      CHECK(after.cached_tokens == 0);
      CHECK(after.log_probs != before);
      const auto expected = fresh->generate({request}, which, {})[0];
      CHECK(after.tokens == expected.tokens);
      CHECK(after.log_probs == expected.log_probs);
    }
  }
}

TEST_CASE("a non-finite loss skips the step and changes nothing") {
  const auto learner = tiny_learner();
  const auto texts = some_texts();
  learner->token_nll(texts, true);
  learner->step(quick_step(), "");

  at::NoGradGuard no_grad;
  const at::Tensor row = learner->masters().embedding[texts[0].prompt[0]];
  const at::Tensor healthy = row.clone();
  row.fill_(std::numeric_limits<float>::quiet_NaN());
  const auto before = copies(learner->masters());
  learner->token_nll({texts[0]}, true);
  const StepResult result = learner->step(quick_step(), "");
  CHECK(result.skipped);
  CHECK_FALSE(std::isfinite(result.grad_norm));
  CHECK(equal(learner->masters().list(), before));

  // Later calls behave as if it had not happened.
  row.copy_(healthy);
  learner->token_nll(texts, true);
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
  const auto twin = tiny_learner();
  for (int i = 0; i < 2; ++i) {
    twin->token_nll(texts, true);
    twin->step(quick_step(), "");
  }
  CHECK(equal(twin->masters().list(), learner->masters().list()));
}

TEST_CASE("a rejected step changes nothing, and can be repeated") {
  const auto learner = tiny_learner(), twin = tiny_learner();
  AdamWOptions wrong = quick_step();
  wrong.learning_rate = -1;
  learner->token_nll(some_texts(), true);
  CHECK(code_of([&] { learner->step(wrong, ""); }) == "ERR_VALUE");
  CHECK(learner->target_distance() == 0);
  learner->update_target(0.5);  // θ̄ can still begin before the first step
  learner->step(quick_step(), "");

  twin->update_target(0.5);
  twin->token_nll(some_texts(), true);
  twin->step(quick_step(), "");
  CHECK(equal(learner->masters().list(), twin->masters().list()));
  CHECK(equal(learner->target_masters()->list(), twin->target_masters()->list()));
}

TEST_CASE("each optimizer state has its own moments") {
  const auto a = tiny_learner(), b = tiny_learner();
  for (const char* name : {"critic", "policy"}) {
    a->token_nll(some_texts(), true), a->step(quick_step(), name);
    b->token_nll(some_texts(), true), b->step(quick_step(), "critic");
  }
  CHECK_FALSE(equal(a->masters().list(), b->masters().list()));
}

// For models so small that a GPU's order of sums hardly matters in float32.
TEST_CASE("a learner on a GPU equals one on the CPU" * doctest::skip(!at::hasCUDA())) {
  const auto on_host = [](const Weights& weights) { return copies(weights.copy_as(at::kFloat, at::kCPU)); };
  for (const Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
    for (const auto& [dtype, within] : {std::pair{at::kFloat, 1e-3}, std::pair{at::kBFloat16, 0.05}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      const auto on_cpu = Learner::create(tiny_config(family), 2, q_options());
      LearnerOptions options = q_options(dtype);
      options.device = at::kCUDA;
      const auto on_gpu = Learner::create(tiny_config(family), 2, options);
      const std::function<double(Learner&)> losses[] = {
          [](Learner& learner) { return weighted_sum(some_texts(), learner.token_nll(some_texts(), true)); },
          [](Learner& learner) {
            return weighted_sum(some_distilled(), learner.token_kl(some_distilled(), 0.7, {}, true));
          },
          [](Learner& learner) {
            double sum = 0;
            for (const SoftQOutput& output : learner.soft_q(some_episodes(), some_soft_q()))
              for (size_t j = 0; j < output.q_losses.size(); ++j)
                sum += output.q_losses[j] + output.policy_losses[j];
            return sum;
          }};
      for (size_t i = 0; i < std::size(losses); ++i) {
        CAPTURE(i);
        CHECK(losses[i](*on_gpu) == doctest::Approx(losses[i](*on_cpu)).epsilon(within));
        CHECK(relative_difference(on_host(*on_gpu->gradients()), copies(*on_cpu->gradients())) < within);
        if (dtype != at::kFloat) continue;  // a first step goes by the gradients' signs
        CHECK_FALSE(on_gpu->step(quick_step(), "", 0.1).skipped);
        CHECK_FALSE(on_cpu->step(quick_step(), "", 0.1).skipped);
        CHECK(relative_difference(on_host(on_gpu->masters()), copies(on_cpu->masters())) < within);
        CHECK(relative_difference(on_host(*on_gpu->target_masters()), copies(*on_cpu->target_masters())) <
              within);
      }
      const Scratch directory;
      on_gpu->save(directory.path());
      const auto resumed = Learner::resume(directory.path(), options);
      CHECK(equal(on_host(resumed->masters()), on_host(on_gpu->masters())));
      on_gpu->gradients()->list()[0].fill_(NAN);
      CHECK(on_gpu->step(quick_step(), "").skipped);
    }
  }
}
