// Steps of AdamW.
#include "test/core/digest.h"
#include "test/core/failing_new.h"
#include "test/core/optim/examples.h"

using namespace optim_test;
using namespace nlac;

TEST_CASE("fifty AdamW steps agree with torch.optim.AdamW") {
  const char* fixtures = std::getenv("NLAC_TEST_FIXTURES");
  const std::string root = fixtures != nullptr ? fixtures : "test/fixtures";
  const SafetensorsFile file = open_safetensors(root + "/optim/adamw.safetensors");
  std::map<std::string, at::Tensor> recorded;
  for (const TensorEntry& entry : file.tensors) {
    at::Tensor tensor = at::empty(entry.shape);
    REQUIRE(tensor.nbytes() == entry.bytes);
    std::memcpy(tensor.data_ptr(), entry.data, entry.bytes);
    recorded[entry.name] = tensor;
  }
  const auto settings = nlohmann::json::parse(file.metadata.at("settings"));
  AdamWOptions options;
  options.learning_rate = settings.at("learning_rate");
  options.beta1 = settings.at("beta1");
  options.beta2 = settings.at("beta2");
  options.epsilon = settings.at("epsilon");
  options.weight_decay = settings.at("weight_decay");
  options.max_grad_norm = settings.at("max_grad_norm");

  const std::vector<std::string> names{"embedding", "matrix", "norm", "bias"};
  Tensors masters, compute, gradients;
  for (const std::string& name : names) {
    masters.push_back(recorded.at(name + ".start").clone());
    compute.push_back(at::zeros_like(masters.back(), at::kBFloat16));
    gradients.push_back(at::zeros_like(masters.back()));
  }
  AdamWMoments moments;
  const at::Tensor norms = recorded.at("norms");
  const int64_t steps = norms.size(0);
  REQUIRE(steps == 50);
  double worst = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < names.size(); ++i) gradients[i].copy_(recorded.at(names[i] + ".gradients")[step]);
    const StepResult result = adamw_step(masters, compute, gradients, moments, options);
    REQUIRE_FALSE(result.skipped);
    REQUIRE(result.grad_norm == doctest::Approx(norms[step].item<double>()).epsilon(1e-6));
    for (size_t i = 0; i < names.size(); ++i) {
      const at::Tensor expected = recorded.at(names[i] + ".after")[step];
      worst = std::max(worst, largest_difference(masters[i], expected) / expected.abs().max().item<double>());
      REQUIRE(at::equal(compute[i], masters[i].to(at::kBFloat16)));
      REQUIRE(gradients[i].count_nonzero().item<int64_t>() == 0);
    }
  }
  CHECK(worst < 1e-6);
  CHECK(moments.steps == steps);
}

TEST_CASE("weight decay applies to matrices only") {
  Tensors masters{at::ones({2, 2}), at::ones({3})};
  const Tensors gradients{at::zeros({2, 2}), at::zeros({3})};
  AdamWMoments moments;
  AdamWOptions options;
  options.learning_rate = 0.1;
  options.weight_decay = 0.5;
  adamw_step(masters, masters, gradients, moments, options);
  CHECK(at::allclose(masters[0], at::full({2, 2}, 0.95f)));
  CHECK(at::equal(masters[1], at::ones({3})));
}

TEST_CASE("a non-finite gradient changes nothing but the gradients") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    const Tensors masters = random_parameters();
    Tensors compute, gradients;
    for (const at::Tensor& w : masters) {
      compute.push_back(w.to(at::kBFloat16));
      gradients.push_back(at::randn_like(w));
    }
    AdamWMoments moments;
    adamw_step(masters, compute, gradients, moments, {});
    const Tensors before = copies(masters), m = copies(moments.m), v = copies(moments.v),
                  low = copies(compute);
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i].fill_(1);
    gradients[1][39999] = bad;
    const StepResult result = adamw_step(masters, compute, gradients, moments, {});
    CHECK(result.skipped);
    CHECK_FALSE(std::isfinite(result.grad_norm));
    CHECK(moments.steps == 1);
    CHECK(equal(masters, before));
    CHECK(equal(moments.m, m));
    CHECK(equal(moments.v, v));
    CHECK(equal(compute, low));
    for (const at::Tensor& g : gradients) CHECK(at::equal(g, at::zeros_like(g)));
  }
}

TEST_CASE("a skipped step changes neither the EMA nor moments, which it does not create") {
  Training training(random_parameters());
  training.gradients[2].fill_(std::numeric_limits<float>::infinity());
  const Training before = training.copy();
  CHECK(training.step(some_options()).skipped);
  CHECK(same_bits(training.update.target, before.update.target));
  CHECK(same_bits(training.update.shadow, before.update.shadow));
  CHECK(same_bits(training.moments.m, before.moments.m));

  AdamWMoments unmade;
  training.gradients[2].fill_(std::nanf(""));
  CHECK(adamw_step(training.masters, training.compute, training.gradients, unmade, {}).skipped);
  CHECK(unmade.m.empty());
  CHECK(unmade.v.empty());
  CHECK(unmade.steps == 0);
}

TEST_CASE("a step counts once parameters may have changed, even if it fails") {
  Training training(random_parameters());
  const Training before = training.copy();
  // The last three are 0 or 1 in float32.
  for (const auto& [option, value] : {std::pair{&AdamWOptions::epsilon, -1.0},
                                      {&AdamWOptions::epsilon, 1e-50},
                                      {&AdamWOptions::beta1, 1 - 1e-9},
                                      {&AdamWOptions::beta2, 1 - 1e-9}}) {
    AdamWOptions wrong = some_options();
    wrong.*option = value;
    CHECK(code_of([&] { training.step(wrong); }) == "ERR_VALUE");
  }
  CHECK(training.moments.steps == before.moments.steps);
  CHECK(same_bits(training.all(), before.all()));

  // A read-only copy makes libtorch's step fail after the first parameter has changed.
  for (at::Tensor& copy : training.compute) copy = copy.to(at::kDouble);
  {
    const c10::InferenceMode inference;
    training.compute[1] = training.compute[1].clone();
  }
  CHECK_THROWS(training.step(some_options()));
  CHECK_FALSE(at::equal(training.masters[0], before.masters[0]));
  CHECK(training.moments.steps == before.moments.steps + 1);
}

TEST_CASE("a step for which there is no memory changes nothing, and can be repeated") {
  Training training(random_parameters()), expected = training.copy();
  expected.step(some_options());
  const Training before = training.copy();
  int64_t failures = 0;
  for (bool failed = true; failed; ++failures) {
    failed = false;
    const test::FailingNew failing(failures);
    try {
      training.step(some_options());
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    if (!failed) break;
    CHECK(training.moments.steps == before.moments.steps);
    CHECK(same_bits(training.all(), before.all()));
  }
  CHECK(failures > 3);
  CHECK(training.moments.steps == before.moments.steps + 1);
  CHECK(same_bits(training.all(), expected.all()));
}

TEST_CASE("a rank without memory for its part of the norm does not keep the others waiting for it") {
  const Training before(random_parameters());
  int64_t told = 0;
  for (int64_t allocations = 0;; ++allocations) {
    Training training = before.copy();
    std::vector<double> sent;
    sent.reserve(2);
    const SumOverRanks sum = [&](double value) {
      sent.push_back(value);
      return value;
    };
    bool failed = false;
    {
      const test::FailingNew failing(allocations);
      try {
        adamw_step(training.masters, training.compute, training.gradients, training.moments, some_options(),
                   &training.update, sum);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
    }
    if (!failed) break;
    CHECK(same_bits(training.all(), before.all()));
    if (sent.size() == 1 && std::isnan(sent[0])) ++told;
  }
  CHECK(told > 0);
}

TEST_CASE("a step refuses tensors in the same memory") {
  const Training start(random_parameters());
  const auto refused = [&](const auto& change) {
    Training training = start.copy();
    change(training);
    const Training before = training.copy();
    const std::string code = code_of([&] { training.step(some_options()); });
    CHECK(same_bits(training.all(), before.all()));
    return code == "ERR_VALUE";
  };
  CHECK(refused([](Training& t) { t.gradients[0] = t.masters[0]; }));
  CHECK(refused([](Training& t) { t.moments.m[1] = t.moments.v[1]; }));
  CHECK(refused([](Training& t) { t.update.target[2] = t.masters[2]; }));
  CHECK(refused([](Training& t) { t.update.shadow[3] = t.compute[3]; }));
  // A master twice, and a part of one.
  for (const int64_t elements : {20000, 7}) {
    CHECK(refused([&](Training& t) {
      t = Training({at::randn({40001}), at::randn({elements})});
      t.masters[1] = t.masters[0].narrow(0, 40001 - elements, elements);
    }));
  }
  Training same = start.copy();
  same.compute = same.masters;
  same.update.shadow = same.update.target;
  CHECK_FALSE(same.step(some_options()).skipped);
}

TEST_CASE("gradients above the maximum norm are scaled down to it") {
  const Training start(random_parameters());
  double norm = 0;
  for (const at::Tensor& g : start.gradients) norm += g.to(at::kDouble).square().sum().item<double>();
  norm = std::sqrt(norm);
  AdamWOptions options = some_options();
  const auto stepped = [&](double largest, double scale) {
    Training training = start.copy();
    for (const at::Tensor& g : training.gradients) g.mul_(scale);
    options.max_grad_norm = largest;
    CHECK(training.step(options).grad_norm == doctest::Approx(norm * scale).epsilon(1e-6));
    return training;
  };
  const Training clipped = stepped(norm / 4, 1), scaled = stepped(0, 0.25);
  for (size_t i = 0; i < start.masters.size(); ++i) {
    CHECK(largest_difference(clipped.masters[i], scaled.masters[i]) < 1e-6);
    CHECK(largest_difference(clipped.moments.v[i], scaled.moments.v[i]) < 1e-6);
  }
  CHECK(same_bits(stepped(norm * 2, 1).all(), stepped(0, 1).all()));
  CHECK_FALSE(same_bits(clipped.masters, stepped(0, 1).masters));
}

TEST_CASE("gradients whose squares overflow float32 have a norm") {
  const Tensors masters{at::zeros({2, 3})};
  const Tensors gradients{at::full({2, 3}, 1e30f)};
  AdamWMoments moments;
  const StepResult result = adamw_step(masters, masters, gradients, moments, {});
  CHECK_FALSE(result.skipped);
  CHECK(result.grad_norm == doctest::Approx(1e30 * std::sqrt(6.0)).epsilon(1e-6));
  CHECK(at::isfinite(masters[0]).all().item<bool>());
}

TEST_CASE("a step does not depend on the number of threads") {
  const Threads restore;
  const auto run = [](int threads) {
    at::set_num_threads(threads);
    Tensors masters = random_parameters(), compute, gradients;
    for (const at::Tensor& w : masters) {
      compute.push_back(w.to(at::kBFloat16));
      gradients.push_back(at::randn_like(w));
    }
    AdamWMoments moments;
    const double norm = adamw_step(masters, compute, gradients, moments, {}).grad_norm;
    ema_update(compute, masters, {}, 0.1, 1, 2);
    masters.push_back(at::full({1}, norm, at::kDouble));
    masters.insert(masters.end(), compute.begin(), compute.end());
    return masters;
  };
  const Tensors one = run(1);
  CHECK(equal(one, run(2)));
  CHECK(equal(one, run(5)));
}

TEST_CASE("an EMA within a step equals one after it") {
  for (const double target_rate : {0.005, 0.7, 1.0}) {
    Training together(random_parameters());
    together.update.target_rate = target_rate;
    together.update.shadow[1] = together.update.target[1].clone();  // one shadow in float32
    Training apart = together.copy();
    const StepResult result = together.step(some_options());
    CHECK(
        adamw_step(apart.masters, apart.compute, apart.gradients, apart.moments, some_options()).grad_norm ==
        result.grad_norm);
    CHECK_FALSE(same_bits(apart.all(), together.all()));
    ema_update(apart.update.target, apart.masters, apart.update.shadow, target_rate, 0, 0);
    CHECK(same_bits(apart.all(), together.all()));
    together.update.shadow.clear();
    CHECK_FALSE(together.step(some_options()).skipped);
  }
}

TEST_CASE("libtorch's operators give the same step") {
  Training training(random_parameters());
  Training twin = training.copy();
  // The loops do not support float64 copies.
  for (at::Tensor& copy : twin.compute) copy = copy.to(at::kDouble);
  const StepResult ours = training.step(some_options()), theirs = twin.step(some_options());
  CHECK(ours.grad_norm == theirs.grad_norm);
  for (size_t i = 0; i < training.masters.size(); ++i) {
    CHECK(largest_difference(training.masters[i], twin.masters[i]) < 1e-6);
    CHECK(largest_difference(training.moments.m[i], twin.moments.m[i]) < 1e-6);
    CHECK(largest_difference(training.moments.v[i], twin.moments.v[i]) < 1e-6);
    CHECK(largest_difference(training.update.target[i], twin.update.target[i]) < 1e-6);
    CHECK(at::equal(twin.compute[i], twin.masters[i].to(at::kDouble)));
    CHECK(at::equal(twin.gradients[i], at::zeros_like(twin.gradients[i])));
  }
}

TEST_CASE("unaligned views give bitwise equal results") {
  Training training(random_parameters());
  Training views = training.changed(misaligned);
  CHECK(training.step(some_options()).grad_norm == views.step(some_options()).grad_norm);
  CHECK(same_bits(training.all(), views.all()));

  const Tensors low{at::randn({20001}).to(at::kBFloat16)}, other{misaligned(low[0])};
  const Tensors online{at::randn({20001})}, beside{misaligned(online[0])};
  ema_update(low, online, {}, 0.3, 1, 2);
  ema_update(other, beside, {}, 0.3, 1, 2);
  CHECK(same_bits(low, other));
}

TEST_CASE("lists and tensors may be empty") {
  AdamWMoments moments;
  const StepResult nothing = adamw_step({}, {}, {}, moments, {});
  CHECK(nothing.grad_norm == 0);
  CHECK_FALSE(nothing.skipped);
  ema_update({}, {}, {}, 0.5, 0, 0);

  Training full({at::ones({3, 5}), at::ones({7})});
  Training holes = full.copy();
  for (Tensors* list : {&holes.masters, &holes.compute, &holes.gradients, &holes.moments.m, &holes.moments.v,
                        &holes.update.target, &holes.update.shadow}) {
    const at::Tensor none = at::empty({0, 4}, list->front().options());
    *list = {none, (*list)[0], none, (*list)[1], none};
  }
  CHECK(full.step(some_options()).grad_norm == holes.step(some_options()).grad_norm);
  CHECK(same_bits(full.masters, {holes.masters[1], holes.masters[3]}));
  CHECK(same_bits(full.update.shadow, {holes.update.shadow[1], holes.update.shadow[3]}));
  ema_update(full.compute, full.masters, {}, 0.5, 1, 2);
  ema_update(holes.compute, holes.masters, {}, 0.5, 1, 2);
  CHECK(same_bits(full.compute, {holes.compute[1], holes.compute[3]}));
}

TEST_CASE("every instruction set is bitwise equal to the portable loops") {
  using namespace optim_kernels;
  const Kernels& plain = *all_kernels().back();
  const int64_t n = 1003;
  const AdamWFactors factors{0.99f, 0.5f, 0.9f, 0.999f, 1e-2f, 1.5f, 1e-8f};
  at::manual_seed(5);
  const at::Tensor start = at::randn({n}), gradient = at::randn({n});
  const auto step = [&](const Kernels& k, Held held) {
    Tensors t{start.clone(), at::rand({0}), at::rand({0}), gradient.clone()};
    t[1] = start * 0.1, t[2] = start.square();
    t.push_back(at::empty({n}, held == Held::f32 ? at::kFloat : at::kBFloat16));
    k.adamw(t[0].data_ptr<float>(), t[1].data_ptr<float>(), t[2].data_ptr<float>(), t[3].data_ptr<float>(),
            t[4].data_ptr(), held, n, factors);
    CHECK(at::equal(t[4], t[0].to(t[4].scalar_type())));
    return t;
  };
  const at::Tensor narrow = gradient.to(at::kBFloat16);
  const auto average = [&](const Kernels& k, float target_rate) {
    const at::Tensor t = start.clone(), shadow = at::empty({n}, at::kBFloat16);
    k.ema(t.data_ptr<float>(), narrow.data_ptr(), Held::bf16, shadow.data_ptr(), Held::bf16, n, target_rate);
    CHECK(at::equal(shadow, t.to(at::kBFloat16)));
    return t;
  };
  const auto rounded = [&](const Kernels& k, const at::Tensor& online, Held held, float target_rate) {
    const at::Tensor t = start.to(at::kBFloat16);
    // Counters that exceed 32 bits within the tensor.
    k.ema_rounded(static_cast<uint16_t*>(t.data_ptr()), online.data_ptr(), held, n, target_rate, {1, 2},
                  0xFFFFFFF0u);
    return t;
  };
  for (const Kernels* fast : all_kernels()) {
    for (const Held held : {Held::f32, Held::bf16}) CHECK(same_bits(step(*fast, held), step(plain, held)));
    CHECK(fast->square_sum(start.data_ptr<float>(), n) == plain.square_sum(start.data_ptr<float>(), n));
    for (const float target_rate : {0.0f, 0.005f, 0.7f, 1.0f}) {
      CHECK(same_bits({average(*fast, target_rate)}, {average(plain, target_rate)}));
      for (const auto& [online, held] : {std::pair{narrow, Held::bf16}, std::pair{gradient, Held::f32}}) {
        CHECK(same_bits({rounded(*fast, online, held, target_rate)},
                        {rounded(plain, online, held, target_rate)}));
      }
    }
  }
}

TEST_CASE("steps of every processor have the bits that were recorded on x86-64") {
  using namespace optim_kernels;
  constexpr int64_t n = 1003;
  // Normal numbers of very different sizes.
  const auto numbers = [](uint64_t stream) {
    std::vector<float> made(n);
    for (int64_t i = 0; i < n; ++i) {
      const double u = uniform(51, stream, static_cast<uint64_t>(i)) - 0.5;
      const int size = static_cast<int>(philox(52, stream, static_cast<uint64_t>(i))[0] % 24);
      made[i] = static_cast<float>(std::ldexp(u, size - 12));
    }
    return made;
  };
  const AdamWFactors factors{0.99f, 0.5f, 0.9f, 0.999f, 1e-2f, 1.5f, 1e-8f};
  for (const Kernels* kernels : all_kernels()) {
    nlac::test::Digest digest;
    std::vector<float> w = numbers(0), m = numbers(1), v = numbers(2), average = numbers(3);
    for (float& x : v) x *= x;
    std::vector<uint16_t> narrow(n), rounded(n);
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<float> g = numbers(4 + step);
      const double squares = kernels->square_sum(g.data(), n);
      digest.add(&squares, 1);
      kernels->adamw(w.data(), m.data(), v.data(), g.data(), narrow.data(), Held::bf16, n, factors);
      kernels->ema(average.data(), w.data(), Held::f32, nullptr, Held::f32, n, 0.1f);
      kernels->ema_rounded(rounded.data(), w.data(), Held::f32, n, 0.7f, {1, 2}, 1000 * step);
      for (const std::vector<float>* made : {&w, &m, &v, &average}) digest.add(*made);
      digest.add(narrow);
      digest.add(rounded);
    }
    CHECK(digest.value() == 10194010498892014341u);
  }
}

TEST_CASE("stochastic rounding uses the random bits of core/random.h") {
  using namespace optim_kernels;
  const int64_t n = 1003;
  const Rounding rounding{77, 5};
  const uint64_t first = 40;
  at::manual_seed(6);
  const at::Tensor online = at::randn({n}), target = at::zeros({n}, at::kBFloat16);
  kernels().ema_rounded(static_cast<uint16_t*>(target.data_ptr()), online.data_ptr(), Held::f32, n, 1.0f,
                        rounding, first);
  const auto* got = static_cast<const uint16_t*>(target.data_ptr());
  for (int64_t e = 0; e < n; ++e) {
    const auto words = philox(rounding.seed, rounding.stream, first + static_cast<uint64_t>(e) / 8);
    uint32_t bits;
    std::memcpy(&bits, online.const_data_ptr<float>() + e, 4);
    const uint32_t noise = words[static_cast<size_t>(e % 8 / 2)] >> (e % 2 * 16) & 0xFFFFu;
    REQUIRE(got[e] == (bits + noise) >> 16);
  }
}

TEST_CASE("mismatched lists are rejected") {
  const Tensors a{at::zeros({2, 3})}, b{at::zeros({3, 2})}, two{at::zeros({2, 3}), at::zeros({1})};
  const Tensors half{at::zeros({2, 3}, at::kBFloat16)}, across{at::zeros({3, 2}).t()};
  AdamWMoments moments;
  CHECK(code_of([&] { adamw_step(a, a, two, moments, {}); }) == "ERR_SHAPE");
  CHECK(code_of([&] { adamw_step(a, two, a, moments, {}); }) == "ERR_SHAPE");
  CHECK(code_of([&] { adamw_step(a, a, b, moments, {}); }) == "ERR_SHAPE");
  CHECK(code_of([&] { adamw_step(a, b, a, moments, {}); }) == "ERR_SHAPE");
  CHECK(code_of([&] { adamw_step(a, a, half, moments, {}); }) == "ERR_SHAPE");
  CHECK(code_of([&] { adamw_step(a, across, a, moments, {}); }) == "ERR_SHAPE");
  AdamWMoments foreign{{at::zeros({1})}, {at::zeros({1})}, 3};
  CHECK(code_of([&] { adamw_step(a, a, a, foreign, {}); }) == "ERR_SHAPE");
  AdamWOptions options;
  options.learning_rate = std::nan("");
  CHECK(code_of([&] { adamw_step(a, a, a, moments, options); }) == "ERR_VALUE");
  options = {};
  options.beta2 = 1;
  CHECK(code_of([&] { adamw_step(a, a, a, moments, options); }) == "ERR_VALUE");

  CHECK(code_of([&] { ema_update(a, two, {}, 0.1, 0, 0); }) == "ERR_SHAPE");
  CHECK(code_of([&] { ema_update(a, b, {}, 0.1, 0, 0); }) == "ERR_SHAPE");
  CHECK(code_of([&] { ema_update(a, a, two, 0.1, 0, 0); }) == "ERR_SHAPE");
  CHECK(code_of([&] { ema_update(a, half, b, 0.1, 0, 0); }) == "ERR_SHAPE");
  for (const double target_rate : {-0.1, 1.1, std::nan("")}) {
    CHECK(code_of([&] { ema_update(a, half, {}, target_rate, 0, 0); }) == "ERR_VALUE");
    const TargetUpdate update{a, {}, target_rate};
    CHECK(code_of([&] { adamw_step(a, a, a, moments, {}, &update); }) == "ERR_VALUE");
  }
  for (const TargetUpdate& update :
       {TargetUpdate{two, {}, 0.1}, TargetUpdate{b, {}, 0.1}, TargetUpdate{half, {}, 0.1},
        TargetUpdate{a, two, 0.1}, TargetUpdate{a, b, 0.1}, TargetUpdate{a, {a[0].to(at::kDouble)}, 0.1}}) {
    CHECK(code_of([&] { adamw_step(a, a, a, moments, {}, &update); }) == "ERR_SHAPE");
  }
  CHECK(code_of([&] { ema_update({a[0].to(at::kInt)}, a, {}, 0.1, 0, 0); }) == "ERR_VALUE");
  CHECK(code_of([&] { distance_sums(a, two); }) == "ERR_SHAPE");
  CHECK(code_of([&] { distance_sums(a, b); }) == "ERR_SHAPE");
}
