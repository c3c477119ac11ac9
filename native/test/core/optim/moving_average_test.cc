// EMA on the CPU.
#include "test/core/optim/examples.h"

using namespace optim_test;
using namespace nlac;

TEST_CASE("an EMA of any mix of types agrees with float64") {
  at::manual_seed(1);
  const at::Tensor start = at::randn({17, 1021});
  for (const auto target_type : {at::kFloat, at::kDouble}) {
    for (const auto online_type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const double target_rate : {0.0, 0.005, 0.5, 1.0}) {
        const at::Tensor target = start.to(target_type, false, true);
        const at::Tensor online = at::randn_like(start).to(online_type);
        const at::Tensor low = at::empty_like(start, at::kBFloat16), full = at::empty_like(start);
        const at::Tensor expected = target.to(at::kDouble).lerp(online.to(at::kDouble), target_rate);
        const at::Tensor other = target.clone();
        ema_update({target, other}, {online, online}, {low, full}, target_rate, 0, 0);
        CHECK(largest_difference(target, expected) < 1e-6);
        CHECK(at::equal(target, other));
        CHECK(at::equal(low, target.to(at::kBFloat16)));
        CHECK(at::equal(full, target.to(at::kFloat)));
        if (target_rate == 0) CHECK(at::equal(target, start.to(target_type)));
        if (target_rate == 1) CHECK(at::equal(target, online.to(target_type)));
      }
    }
  }
}

TEST_CASE(
    "ten thousand small updates: float32 follows, plain bfloat16 stands still, stochastic bfloat16 follows") {
  at::manual_seed(2);
  constexpr int64_t updates = 10000, elements = 4096;
  const double target_rate = 0.005;
  // Online weights of a trained layer's size that wander slowly, as at a learning rate of 5e-6.
  at::Tensor walk = at::randn({elements}, at::kDouble) * 0.05 + 0.1;
  const at::Tensor drift = at::randn({elements}, at::kDouble) * 1e-5;
  const at::Tensor exact = walk.clone();
  const at::Tensor single = walk.to(at::kFloat), shadow = at::empty({elements}, at::kBFloat16);
  const at::Tensor rounded = walk.to(at::kBFloat16), stochastic = rounded.clone();
  for (int64_t step = 0; step < updates; ++step) {
    walk += drift;
    const at::Tensor online = walk.to(at::kBFloat16);
    exact.lerp_(online.to(at::kDouble), target_rate);
    ema_update({single}, {online}, {shadow}, target_rate, 0, static_cast<uint64_t>(step));
    ema_update({stochastic}, {online}, {}, target_rate, 9, static_cast<uint64_t>(step));
    rounded.copy_(rounded.to(at::kFloat).lerp(online.to(at::kFloat), target_rate));
  }
  CHECK(distance_sums({single}, {exact}).relative() < 1e-5);
  CHECK(largest_difference(single, exact) < 1e-3 * exact.abs().max().item<double>());
  CHECK(distance_sums({shadow}, {exact}).relative() < 2.5e-3);
  CHECK(distance_sums({rounded}, {exact}).relative() > 0.1);
  // A single draw is off by bf16's resolution, the mean is not.
  CHECK(distance_sums({stochastic}, {exact}).relative() < 0.02);
  CHECK(std::abs((stochastic.to(at::kDouble) - exact).mean().item<double>()) <
        1e-3 * exact.abs().mean().item<double>());
}

TEST_CASE("stochastic rounding is unbiased, and a function of seed and step") {
  const at::Tensor online = at::full({20001}, 1.0f + 0.3f * 0x1p-7f);
  const auto average = [&](uint64_t seed, uint64_t step) {
    const Tensors target{at::zeros({20001}, at::kBFloat16), at::zeros({20001}, at::kBFloat16)};
    const Tensors shadow{at::empty({20001}), at::Tensor()};
    ema_update(target, {online, online}, shadow, 1.0, seed, step);
    CHECK(at::equal(shadow[0], target[0].to(at::kFloat)));
    return target;
  };
  const Tensors once = average(4, 0);
  const double up = once[0].to(at::kFloat).gt(1).to(at::kFloat).mean().item<double>();
  CHECK(up == doctest::Approx(0.3).epsilon(0.05));

  CHECK_FALSE(at::equal(once[0], once[1]));
  CHECK(equal(once, average(4, 0)));
  CHECK_FALSE(equal(once, average(4, 1)));
  CHECK_FALSE(equal(once, average(5, 0)));
  const at::Tensor special = at::tensor({INFINITY, -INFINITY, NAN, 0.0f});
  const at::Tensor target = at::zeros({4}, at::kBFloat16);
  ema_update({target}, {special}, {}, 0.25, 0, 0);
  CHECK(target[0].item<float>() == INFINITY);
  CHECK(target[1].item<float>() == -INFINITY);
  CHECK(std::isnan(target[2].item<float>()));
  CHECK(target[3].item<float>() == 0);
}

TEST_CASE("a bfloat16 target at a target rate of 0 and 1 is exact") {
  const at::Tensor start = at::randn({1003}).to(at::kBFloat16), online = at::randn({1003}).to(at::kBFloat16);
  const Tensors stays{start.clone()}, follows{start.clone()}, wide{start.clone()};
  ema_update(stays, {online}, {}, 0, 1, 2);
  ema_update(follows, {online}, {}, 1, 1, 2);
  ema_update(wide, {online.to(at::kDouble)}, {}, 1, 1, 2);
  CHECK(same_bits(stays, {start}));
  CHECK(same_bits(follows, {online}));
  CHECK(same_bits(wide, {online}));
}

TEST_CASE("relative distance") {
  const Tensors b{at::full({1500, 1000}, 2.0f), at::full({2}, -1.0f, at::kBFloat16)};
  Tensors a = copies(b);
  CHECK(distance_sums(a, b).relative() == 0);
  a[0] += 0.5f;
  CHECK(distance_sums(a, b).relative() ==
        doctest::Approx(std::sqrt(1.5e6 * 0.25) / std::sqrt(1.5e6 * 4 + 2)));
  CHECK(distance_sums({}, {}).relative() == 0);
}
