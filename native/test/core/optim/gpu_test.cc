// Optimizer steps and EMA on a GPU against the CPU.
#include "test/core/optim/examples.h"

using namespace optim_test;
using namespace nlac;

namespace {

const bool no_gpu = !at::hasCUDA();

at::Tensor on_gpu(const at::Tensor& tensor) { return tensor.to(at::kCUDA); }

// More tensors than fit in a launch, with sizes around the vector width.
Tensors many_parameters() {
  at::manual_seed(4);
  Tensors tensors{at::randn({33, 601}), at::randn({8192}), at::randn({8193}), at::randn({3, 0}),
                  at::randn({1}),       at::randn({7}),    at::randn({2, 4}), at::randn({100003})};
  for (int64_t i = 0; i < 700; ++i) tensors.push_back(at::randn({i % 37, 3}));
  return tensors;
}

}  // namespace

TEST_CASE("an EMA on a GPU is bitwise equal to the CPU's" * doctest::skip(no_gpu)) {
  for (const auto target_type : {at::kFloat, at::kBFloat16}) {
    for (const auto online_type : {at::kFloat, at::kBFloat16}) {
      for (const double target_rate : {0.0, 0.005, 0.7, 1.0}) {
        for (const bool aligned : {true, false}) {
          Tensors here, online, shadow, there, online_there, shadow_there;
          for (const at::Tensor& t : many_parameters()) {
            here.push_back(t.to(target_type));
            online.push_back(at::randn_like(t).to(online_type));
            shadow.push_back(at::empty_like(t, at::kBFloat16));
            const auto place = [&](const at::Tensor& x) {
              return aligned ? on_gpu(x) : misaligned(on_gpu(x));
            };
            there.push_back(place(here.back()));
            online_there.push_back(place(online.back()));
            shadow_there.push_back(place(shadow.back()));
          }
          ema_update(here, online, shadow, target_rate, 7, 8);
          ema_update(there, online_there, shadow_there, target_rate, 7, 8);
          CHECK(same_bits(there, here));
          CHECK(same_bits(shadow_there, shadow));
        }
      }
    }
  }
}

TEST_CASE("a step on a GPU is bitwise equal to the CPU's, except for the norm" * doctest::skip(no_gpu)) {
  for (const bool aligned : {true, false}) {
    Training here(many_parameters());
    here.update.shadow[0] = at::empty_like(here.masters[0]);  // one shadow in float32
    Training there = here.changed(on_gpu);
    if (!aligned) there = there.changed(misaligned);
    AdamWOptions options = some_options();
    options.max_grad_norm = 0;  // the last bits of the norm are not shared
    for (int step = 0; step < 3; ++step) {
      const double norm = here.step(options).grad_norm;
      CHECK(there.step(options).grad_norm == doctest::Approx(norm).epsilon(1e-12));
      CHECK(same_bits(there.all(), here.all()));
      for (size_t i = 0; i < here.gradients.size(); ++i) {
        here.gradients[i].normal_();
        there.gradients[i].copy_(here.gradients[i]);
      }
    }
    options.max_grad_norm = 0.5;
    here.step(options);
    there.step(options);
    for (size_t i = 0; i < here.masters.size(); ++i) {
      CHECK(at::allclose(there.masters[i].cpu(), here.masters[i], 1e-6, 1e-7));
    }
  }
}

TEST_CASE("a step on a GPU is reproducible and skips non-finite gradients" * doctest::skip(no_gpu)) {
  const Training start = Training(many_parameters()).changed(on_gpu);
  Training once = start.copy(), again = start.copy();
  CHECK(once.step({}).grad_norm == again.step({}).grad_norm);
  CHECK(same_bits(once.all(), again.all()));

  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Training training = start.copy();
    training.gradients[7][100002] = bad;
    CHECK(training.step({}).skipped);
    CHECK(training.moments.steps == start.moments.steps);
    Training expected = start.copy();
    for (const at::Tensor& g : expected.gradients) g.zero_();
    CHECK(same_bits(training.all(), expected.all()));
  }
  AdamWMoments unmade;
  start.gradients[1].fill_(std::nanf(""));
  CHECK(adamw_step(start.masters, start.compute, start.gradients, unmade, {}).skipped);
  CHECK(unmade.m.empty());
}
