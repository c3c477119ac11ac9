// The learner as a whole, on models small enough that finite differences and full re-reading are cheap.
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
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/cpu/bf16_kernels.h"
#include "core/error.h"
#include "core/learner.h"
#include "test/core/fixtures.h"
#include "test/core/loss/soft_q_reference.h"

using namespace nlac;
using nlac::test::code_of;
using nlac::test::Scratch;
namespace fs = std::filesystem;

namespace {

using Ids = std::vector<int64_t>;

ModelConfig tiny_config(Family family = Family::llama) {
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
  config.qk_norm = family == Family::qwen3;
  return config;
}

LearnerOptions options_of(at::ScalarType dtype = at::kFloat, int64_t micro_batch_tokens = 2048) {
  LearnerOptions options;
  options.dtype = dtype;
  options.micro_batch_tokens = micro_batch_tokens;
  return options;
}

// A float32 learner whose weights are far enough from zero that its predictions differ from token to token.
std::unique_ptr<Learner> tiny_learner(const LearnerOptions& options = options_of(),
                                      Family family = Family::llama, uint64_t seed = 1) {
  auto learner = Learner::create(tiny_config(family), seed, options);
  at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : learner->masters().list()) {
    if (tensor.dim() == 2) tensor.mul_(10);
  }
  return learner;
}

Ids random_ids(int64_t count, uint64_t seed) {
  std::mt19937_64 engine(seed);
  Ids ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int64_t>(engine() % 53));
  return ids;
}

std::vector<ScoredText> some_texts() {
  return {{random_ids(5, 1), random_ids(7, 2), {1.0}},
          {random_ids(1, 3), random_ids(1, 4), {-0.5}},
          {random_ids(12, 5), random_ids(3, 6), {2.0}},
          {random_ids(3, 7), random_ids(20, 8), {0.25}}};
}

std::vector<DistilledText> some_distilled() {
  return {{random_ids(5, 1), random_ids(9, 11), random_ids(7, 2), 1.0},
          {random_ids(8, 3), random_ids(1, 12), random_ids(1, 4), 0.5},
          {random_ids(12, 5), random_ids(14, 13), random_ids(10, 6), 2.0}};
}

double weight_of(const ScoredText& text, size_t token) {
  return text.weights.size() == 1 ? text.weights[0] : text.weights[token];
}
double weight_of(const DistilledText& text, size_t) { return text.weight; }

template <typename Text>
double weighted_sum(const std::vector<Text>& texts, const LossOutput& output) {
  double sum = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < output.losses[i].size(); ++j) sum += weight_of(texts[i], j) * output.losses[i][j];
  }
  return sum;
}

std::vector<at::Tensor> copies(const Weights& weights) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : weights.list()) list.push_back(tensor.clone());
  return list;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i].view(at::kInt), b[i].view(at::kInt))) return false;  // bit for bit, NaNs too
  }
  return true;
}

// Compares every parameter's gradient with a central difference along that gradient, and the whole with one
// along a random direction.
void check_gradient(Learner& learner, const std::function<double(bool)>& loss) {
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
  torch::manual_seed(3);
  std::vector<at::Tensor> direction;
  double slope = 0;
  for (const at::Tensor& gradient : gradients) {
    direction.push_back(gradient / gradient.norm() + at::randn_like(gradient) * 0.05);
    slope += (direction.back() * gradient).sum().item<double>();
  }
  CHECK(difference(direction, 3e-3) == doctest::Approx(slope).epsilon(0.02));
}

double relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).pow(2).sum().item<double>();
    norm += b[i].pow(2).sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

AdamWOptions quick_step() {
  AdamWOptions options;
  options.learning_rate = 1e-2;
  options.weight_decay = 0.01;
  return options;
}

GenerateRequest request_of(Ids tokens, int64_t max_new, double temperature = 0, uint64_t seed = 0) {
  GenerateRequest request;
  request.tokens = std::move(tokens);
  request.max_new_tokens = max_new;
  request.temperature = temperature;
  request.seed = seed;
  return request;
}

}  // namespace

TEST_CASE("a new model is a function of its seed") {
  const auto a = Learner::create(tiny_config(), 5, options_of()),
             b = Learner::create(tiny_config(), 5, options_of());
  const auto c = Learner::create(tiny_config(), 6, options_of());
  CHECK(equal(a->masters().list(), b->masters().list()));
  CHECK_FALSE(equal(a->masters().list(), c->masters().list()));
  const at::Tensor& embedding = a->masters().embedding;
  CHECK(embedding.std().item<double>() == doctest::Approx(0.02).epsilon(0.1));
  CHECK(std::abs(embedding.mean().item<double>()) < 0.002);
  CHECK(a->masters().norm.eq(1).all().item<bool>());
  int64_t count = 0;
  for (const at::Tensor& tensor : a->masters().list()) count += tensor.numel();
  CHECK(a->parameters() == count);
}

namespace {

std::atomic<int> products_by_libtorch = 0;

std::unique_ptr<at::ObserverContext> count_products(const at::RecordFunction& call) {
  static const std::set<std::string> products{"aten::mm",
                                              "aten::addmm",
                                              "aten::bmm",
                                              "aten::baddbmm",
                                              "aten::mv",
                                              "aten::addmv",
                                              "aten::dot",
                                              "aten::linear",
                                              "aten::matmul",
                                              "aten::_scaled_dot_product_flash_attention_for_cpu",
                                              "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};
  products_by_libtorch += products.contains(call.name());
  return nullptr;
}

// Products that `body` has libtorch compute.
template <typename Body>
int libtorch_products(const Body& body) {
  products_by_libtorch = 0;
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(count_products));
  body();
  at::removeCallback(handle);
  return products_by_libtorch;
}

}  // namespace

TEST_CASE("no product on a CPU is libtorch's, whose bfloat16 is slow without products of pairs") {
  const at::Tensor x = at::ones({4, 4}, at::kBFloat16);
  CHECK(libtorch_products([&] { at::mm(x, x); }) == 1);
  for (const auto& [family, type] : {std::pair{Family::llama, at::kBFloat16},
                                     {Family::qwen2, at::kBFloat16},
                                     {Family::qwen3, at::kBFloat16},
                                     {Family::qwen3, at::kFloat}}) {
    if (type == at::kBFloat16 && bf16::available()) {
      MESSAGE("SKIPPED: with products of pairs, libtorch's are taken for many rows");
      continue;
    }
    LearnerOptions options = options_of(type);
    for (const bool adapted : {false, true}) {
      CAPTURE(adapted);
      if (adapted) options.adapter = AdapterOptions{2, 4.0, projection_names(), 7};
      const auto learner = Learner::create(tiny_config(family), 1, options);
      CHECK(libtorch_products([&] {
              learner->generate({request_of(random_ids(40, 1), 12)}, Which::online, {});
              learner->token_nll(some_texts(), true);
              learner->step(quick_step(), "", {});
              learner->log_probs(some_texts(), Which::online);
            }) == 0);
    }
  }
}

TEST_CASE("log probabilities, logits, losses and generation agree") {
  const auto learner = tiny_learner();
  const auto texts = some_texts();
  for (Which which : {Which::online, Which::target}) {
    const auto scores = learner->log_probs(texts, which);
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(i);
      Ids whole = texts[i].prompt;
      whole.insert(whole.end(), texts[i].response.begin(), texts[i].response.end());
      const at::Tensor table = learner->logits(whole, which).log_softmax(1);
      CHECK(table.size(0) == static_cast<int64_t>(whole.size()));
      REQUIRE(scores[i].size() == texts[i].response.size());
      for (size_t j = 0; j < scores[i].size(); ++j) {
        const int64_t row = static_cast<int64_t>(texts[i].prompt.size() + j) - 1;
        CHECK(scores[i][j] == doctest::Approx(table[row][texts[i].response[j]].item<float>()).epsilon(1e-4));
      }
    }
    const GenerateRequest request = request_of(random_ids(6, 9), 12, 0.9, 4);
    const GenerateResult result = learner->generate({request}, which, {})[0];
    const auto again = learner->log_probs({{request.tokens, result.tokens, {1.0}}}, which)[0];
    for (size_t j = 0; j < again.size(); ++j)
      CHECK(result.log_probs[j] == doctest::Approx(again[j]).epsilon(1e-4));
  }
  const auto losses = learner->token_nll(texts, false).losses;
  const auto scores = learner->log_probs(texts, Which::online);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < losses[i].size(); ++j)
      CHECK(losses[i][j] == doctest::Approx(-scores[i][j]).epsilon(1e-5));
  }
  CHECK(learner->gradients() == nullptr);  // nothing asked for any
}

TEST_CASE("texts packed together do not see each other") {
  const auto packed = tiny_learner(), alone = tiny_learner(options_of(at::kFloat, 1));
  const auto texts = some_texts();
  const auto distilled = some_distilled();
  const auto a = packed->token_nll(texts, false).losses, b = alone->token_nll(texts, false).losses;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) CHECK(a[i][j] == doctest::Approx(b[i][j]).epsilon(1e-4));
  }
  const auto c = packed->token_kl(distilled, 1, {}, false).losses,
             d = alone->token_kl(distilled, 1, {}, false).losses;
  for (size_t i = 0; i < distilled.size(); ++i) {
    for (size_t j = 0; j < c[i].size(); ++j) CHECK(c[i][j] == doctest::Approx(d[i][j]).epsilon(1e-4));
  }
}

TEST_CASE("token_nll's gradient is the slope of its loss") {
  for (Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
    CAPTURE(static_cast<int>(family));
    const auto learner = tiny_learner(options_of(), family);
    const auto texts = some_texts();
    check_gradient(*learner,
                   [&](bool gradient) { return weighted_sum(texts, learner->token_nll(texts, gradient)); });
  }
}

TEST_CASE("token_kl's gradient is the slope of its loss, and reaches θ only") {
  for (const Support& support :
       {Support{}, Support{SupportKind::top_k, 5}, Support{SupportKind::sampled, 0}}) {
    CAPTURE(static_cast<int>(support.kind));
    const auto learner = tiny_learner();
    learner->update_target(0.5);  // θ̄ = θ, and no longer the same once θ is perturbed
    const auto before = copies(*learner->target_masters());
    const auto texts = some_distilled();
    check_gradient(*learner, [&](bool gradient) {
      return weighted_sum(texts, learner->token_kl(texts, 1.7, support, gradient));
    });
    CHECK(equal(learner->target_masters()->list(), before));
  }
}

TEST_CASE("a student that knows what its teacher knows has nothing to learn") {
  const auto learner = tiny_learner();
  const std::vector<DistilledText> texts = {{random_ids(6, 1), random_ids(6, 1), random_ids(9, 2), 1.0}};
  const auto losses = learner->token_kl(texts, 1, {}, true).losses[0];
  for (float loss : losses) CHECK(std::abs(loss) < 1e-5f);
  double norm = 0;
  for (const at::Tensor& gradient : learner->gradients()->list())
    norm += gradient.pow(2).sum().item<double>();
  CHECK(std::sqrt(norm) < 1e-4);

  // The same numbers as from the two distributions themselves.
  const std::vector<DistilledText> other = {{random_ids(6, 1), random_ids(4, 3), random_ids(9, 2), 1.0}};
  const auto got = learner->token_kl(other, 2.0, {}, false).losses[0];
  const auto table = [&](const Ids& context, Which which) {
    Ids whole = context;
    whole.insert(whole.end(), other[0].response.begin(), other[0].response.end());
    const at::Tensor all = (learner->logits(whole, which).to(at::kDouble) / 2.0).log_softmax(1);
    return all.narrow(0, static_cast<int64_t>(context.size()) - 1, 9);
  };
  const at::Tensor student = table(other[0].student, Which::online),
                   teacher = table(other[0].teacher, Which::target);
  const at::Tensor kl = (teacher.exp() * (teacher - student)).sum(1);
  for (int64_t j = 0; j < 9; ++j)
    CHECK(got[static_cast<size_t>(j)] == doctest::Approx(kl[j].item<double>()).epsilon(1e-4));
}

TEST_CASE("a weight a token is the sum over its tokens alone, and one of 0 takes part in nothing") {
  std::vector<ScoredText> texts = some_texts();
  texts[0].weights = {0, 1, 0.5, 0, 0, -2, 0};
  texts[1].weights = {0};
  texts[3].weights.assign(20, 0.0f);
  texts[3].weights[19] = 0.75;
  const auto learner = tiny_learner(options_of(at::kFloat, 16)), naive = tiny_learner();
  const auto losses = learner->token_nll(texts, true).losses,
             scores = learner->log_probs(texts, Which::online);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < texts[i].response.size(); ++j) {
      CAPTURE(i);
      CAPTURE(j);
      const auto weight = static_cast<float>(weight_of(texts[i], j));
      if (weight == 0) {
        CHECK(losses[i][j] == 0);
        CHECK(scores[i][j] == 0);
        continue;
      }
      ScoredText token{texts[i].prompt, {texts[i].response[j]}, {weight}};
      const auto end = texts[i].response.begin() + static_cast<int64_t>(j);
      token.prompt.insert(token.prompt.end(), texts[i].response.begin(), end);
      const float alone = naive->token_nll({token}, true).losses[0][0];
      CHECK(losses[i][j] == doctest::Approx(alone).epsilon(1e-4));
      CHECK(scores[i][j] == doctest::Approx(-alone).epsilon(1e-4));
    }
  }
  CHECK(relative_difference(learner->gradients()->list(), naive->gradients()->list()) < 1e-5);

  const auto idle = tiny_learner();
  for (ScoredText& text : texts) text.weights = {0};
  for (const auto& list : idle->token_nll(texts, true).losses) {
    for (float loss : list) CHECK(loss == 0);
  }
  CHECK(idle->gradients() == nullptr);

  auto distilled = some_distilled();
  distilled[1].weight = 0;
  const auto with_it = tiny_learner(), without = tiny_learner();
  CHECK(with_it->token_kl(distilled, 1, {}, true).losses[1][0] == 0);
  without->token_kl({distilled[0], distilled[2]}, 1, {}, true);
  CHECK(equal(with_it->gradients()->list(), without->gradients()->list()));
}

TEST_CASE("neither micro batches nor recomputation change the gradient") {
  const auto whole = tiny_learner();
  whole->token_nll(some_texts(), true);
  whole->token_kl(some_distilled(), 1, {}, true);
  const auto expected = whole->gradients()->list();
  for (int64_t micro_batch_tokens : {1, 16, 30}) {
    for (bool recompute : {false, true}) {
      LearnerOptions options = options_of(at::kFloat, micro_batch_tokens);
      options.gradient_checkpointing = recompute;
      const auto split = tiny_learner(options);
      split->token_nll(some_texts(), true);
      split->token_kl(some_distilled(), 1, {}, true);
      CHECK(relative_difference(split->gradients()->list(), expected) < 1e-6);
    }
  }
}

TEST_CASE("steps lower the loss, and gradients start from nothing again") {
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

TEST_CASE("bf16 learns in float32: many tiny steps are not lost") {
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

TEST_CASE("the target moves by τ, and drops what it had cached") {
  const auto learner = tiny_learner();
  CHECK(learner->target_distance() == 0);
  CHECK(learner->target_masters() == nullptr);
  const GenerateRequest request = request_of(random_ids(30, 1), 10);
  learner->generate({request}, Which::target, {});  // θ̄ is made here, equal to θ
  CHECK(equal(learner->target_masters()->list(), learner->masters().list()));

  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  CHECK(learner->target_distance() > 0);
  const auto old = copies(*learner->target_masters());
  for (double tau : {0.005, 0.5, 0.0}) {
    CAPTURE(tau);
    const auto previous = copies(*learner->target_masters());
    learner->update_target(tau);
    const auto target = learner->target_masters()->list(), online = learner->masters().list();
    for (size_t i = 0; i < target.size(); ++i) {
      const at::Tensor exact = tau * online[i].to(at::kDouble) + (1 - tau) * previous[i].to(at::kDouble);
      CHECK(((target[i] - exact).abs() <= 1.5e-7 * (exact.abs() + previous[i].abs()) + 1e-9)
                .all()
                .item<bool>());
    }
  }
  CHECK_FALSE(equal(learner->target_masters()->list(), old));
  learner->update_target(1);
  CHECK(equal(learner->target_masters()->list(), learner->masters().list()));
  CHECK(learner->target_distance() == 0);
  const auto target = learner->generate({request}, Which::target, {})[0];
  CHECK(target.cached_tokens == 0);
  CHECK(target.tokens == learner->generate({request}, Which::online, {})[0].tokens);
  CHECK(code_of([&] { learner->update_target(1.5); }) == "ERR_VALUE");
}

TEST_CASE("the target begins at θ as it was before the first step, or not at all") {
  const auto step = [](Learner& learner) {
    learner.token_nll(some_texts(), true);
    CHECK_FALSE(learner.step(quick_step(), "").skipped);
  };
  const auto used = tiny_learner();
  const auto loaded = copies(used->masters());
  used->update_target(0.25);
  step(*used);
  CHECK(equal(used->target_masters()->list(), loaded));

  // Without a use before the step its memory is not taken, and nothing may start from the θ of after.
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
        [&] { learner->generate({request}, Which::target, {}); },
        [&] { learner->log_probs(some_texts(), Which::target); },
        [&] { learner->logits(random_ids(5, 1), Which::target); },
        [&] { learner->token_kl(some_distilled(), 1, {}, true); },
    };
    for (const auto& use : uses) {
      std::string message;
      CHECK(code_of(use, &message) == "ERR_VALUE");
      CHECK(message.find("τ = 1") != std::string::npos);
      CHECK(learner->target_masters() == nullptr);
    }
    // What needs no θ̄ goes on; and τ = 1 says where to begin.
    learner->token_kl(some_distilled(), 1, {SupportKind::sampled, 0}, false);
    learner->update_target(1);
    CHECK(equal(learner->target_masters()->list(), learner->masters().list()));
    learner->update_target(0.005);
  }

  // A step that was skipped moved nothing.
  const auto skipped = tiny_learner();
  at::NoGradGuard no_grad;
  skipped->masters().norm.fill_(std::numeric_limits<float>::quiet_NaN());
  skipped->token_nll(some_texts(), true);
  REQUIRE(skipped->step(quick_step(), "").skipped);
  skipped->update_target(0.5);
  CHECK(skipped->target_masters() != nullptr);
}

TEST_CASE("a target that rides on a step is the one that follows it, where the step is skipped too") {
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
        for (const Which which : {Which::online, Which::target}) {
          const auto written = together->generate({request}, which, {})[0];
          CHECK(written.log_probs == apart->generate({request}, which, {})[0].log_probs);
          if (which == Which::target) CHECK(written.cached_tokens == 0);
        }
      }
    }
  }

  // As update_target: nothing may begin at the θ of after an earlier step but what is θ.
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

TEST_CASE("no cache and no packed matrix outlives the weights that made it") {
  std::vector<LearnerOptions> kinds = {options_of(at::kFloat), options_of(at::kBFloat16)};
  kinds.emplace_back(options_of(at::kBFloat16)).int8_generation = true;
  for (const LearnerOptions& options : kinds) {
    CAPTURE(std::string(c10::toString(options.dtype)));
    CAPTURE(options.int8_generation);
    const auto learner = Learner::create(tiny_config(), 3, options);
    const GenerateRequest request = request_of(random_ids(40, 1), 12);
    std::vector<float> before;  // of θ, and of θ̄ too
    for (const Which which : {Which::online, Which::target}) {
      before = learner->generate({request}, which, {})[0].log_probs;
      CHECK(learner->generate({request}, which, {})[0].cached_tokens == 39);
    }
    learner->token_nll(some_texts(), true);
    learner->step(quick_step(), "");
    learner->update_target(0.5);

    Scratch directory;
    learner->save(directory.path());
    const auto fresh = Learner::resume(directory.path(), options);
    for (const Which which : {Which::online, Which::target}) {
      const auto after = learner->generate({request}, which, {})[0];
      CHECK(after.cached_tokens == 0);
      CHECK(after.log_probs != before);
      const auto expected = fresh->generate({request}, which, {})[0];
      CHECK(after.tokens == expected.tokens);
      CHECK(after.log_probs == expected.log_probs);
    }
  }
}

TEST_CASE("a loss that is not finite skips the step and changes nothing") {
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

  // What follows is as if it had not happened.
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

TEST_CASE("a step that is refused moves nothing, and can be taken after all") {
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

TEST_CASE("a resumed learner continues bit for bit") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (bool pending : {false, true}) {
      CAPTURE(pending);
      const auto train = [&](Learner& learner, int from, int to) {
        for (int i = from; i < to; ++i) {
          learner.token_kl(some_distilled(), 1, {}, true);
          learner.step(quick_step(), "critic");
          learner.token_nll(some_texts(), true);
          learner.step(quick_step(), "policy", 0.05);
        }
      };
      const auto learner = Learner::create(tiny_config(Family::qwen2), 3, options_of(dtype));
      train(*learner, 0, 2);
      if (pending) learner->token_nll(some_texts(), true);
      Scratch directory;
      learner->save(directory.path());
      CHECK(fs::exists(directory / "gradients.safetensors") == pending);
      const auto resumed = Learner::resume(directory.path(), options_of(dtype));
      CHECK(equal(resumed->masters().list(), learner->masters().list()));
      CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
      train(*learner, 2, 5);
      train(*resumed, 2, 5);
      CHECK(equal(resumed->masters().list(), learner->masters().list()));
      CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
      const GenerateRequest request = request_of(random_ids(10, 1), 10, 1.0, 2);
      for (Which which : {Which::online, Which::target}) {
        CHECK(resumed->generate({request}, which, {})[0].tokens ==
              learner->generate({request}, which, {})[0].tokens);
      }
    }
  }
}

TEST_CASE("a checkpoint holds a target only once there is one") {
  const auto learner = tiny_learner();
  Scratch directory;
  learner->save(directory.path());
  CHECK_FALSE(fs::exists(directory / "target.safetensors"));
  CHECK(Learner::resume(directory.path(), options_of())->target_masters() == nullptr);
  // The same directory is a model like any other.
  CHECK(equal(Learner::load(directory.path(), options_of())->masters().list(), learner->masters().list()));
}

TEST_CASE("a damaged checkpoint is refused") {
  const auto learner = tiny_learner();
  learner->update_target(1);
  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  Scratch directory;
  learner->save(directory.path());
  const auto resume = [&] { return code_of([&] { Learner::resume(directory.path(), options_of()); }); };
  REQUIRE(resume() == "none");
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(directory / name, std::ios::binary | std::ios::trunc) << text;
  };
  for (const char* name : {"learner.json", "config.json", "model.safetensors", "target.safetensors",
                           "optimizer-0.safetensors"}) {
    CAPTURE(name);
    fs::copy_file(directory / name, directory / "kept");
    fs::remove(directory / name);
    CHECK(resume() == "ERR_CHECKPOINT");
    write(name, "torn");
    CHECK(resume() == "ERR_CHECKPOINT");
    fs::copy_file(directory / "kept", directory / name, fs::copy_options::overwrite_existing);
    fs::resize_file(directory / name, fs::file_size(directory / name) / 2);
    CHECK(resume() == "ERR_CHECKPOINT");
    fs::remove(directory / name);
    fs::rename(directory / "kept", directory / name);
  }
  // Tensors of another model.
  fs::copy_file(directory / "target.safetensors", directory / "optimizer-0.safetensors",
                fs::copy_options::overwrite_existing);
  CHECK(resume() == "ERR_CHECKPOINT");
  // A name that leads out of the directory.
  write("learner.json", R"({"format":1,"target":false,"targetUpdates":0,"gradients":false,
      "optimizers":[{"name":"","file":"../x","steps":1}]})");
  CHECK(resume() == "ERR_CHECKPOINT");
  write("learner.json", R"({"format":2})");
  CHECK(resume() == "ERR_CHECKPOINT");
  write("learner.json", R"([])");
  CHECK(resume() == "ERR_CHECKPOINT");
}

TEST_CASE("an exported model scores like the learner") {
  const auto learner = tiny_learner(options_of(), Family::qwen3);
  Scratch directory;
  learner->export_huggingface(directory.path());
  const auto loaded = Learner::load(directory.path(), options_of());
  CHECK(loaded->log_probs(some_texts(), Which::online) == learner->log_probs(some_texts(), Which::online));
}

// --- policy gradients -----------------------------------------------------------------------------------

namespace {

LearnerOptions with_value_head(at::ScalarType dtype = at::kFloat, int64_t micro_batch_tokens = 2048) {
  LearnerOptions options = options_of(dtype, micro_batch_tokens);
  options.heads = Heads::value;
  return options;
}

// A learner whose value head is no longer zero.
std::unique_ptr<Learner> tiny_critic(const LearnerOptions& options = with_value_head(),
                                     Family family = Family::llama) {
  auto learner = tiny_learner(options, family);
  at::NoGradGuard no_grad;
  torch::manual_seed(4);
  learner->masters().value.copy_(at::randn({1, 24}) * 0.3);
  learner->masters().value_bias.fill_(0.2);
  return learner;
}

SurrogateSettings ppo_settings() {
  SurrogateSettings settings;
  settings.entropy_coefficient = 0.01;
  settings.value = {0.5, 0.2};
  return settings;
}

SurrogateSettings grpo_settings() {
  SurrogateSettings settings;
  settings.temperature = 0.8;
  settings.surrogate = {0.2, 0.28, 0.04};
  return settings;
}

// Texts that `learner` might have written a few steps ago, with what the environment said in between.
std::vector<SurrogateText> some_episodes(Learner& learner, double temperature = 1) {
  std::mt19937_64 engine(9);
  std::normal_distribution<float> normal;
  const float nothing = std::numeric_limits<float>::quiet_NaN();  // what must not be looked at
  std::vector<SurrogateText> episodes;
  for (const ScoredText& text : some_texts()) {
    SurrogateText episode{text, {}, {}, {}, {}, {}};
    episode.weights.clear();
    const auto scores = learner.log_probs({text}, Which::online, temperature)[0];
    const auto values = learner.values({text})[0];
    for (size_t j = 0; j < text.response.size(); ++j) {
      const bool written = j % 4 != 2;
      episode.weights.push_back(written ? 0.5f + 0.25f * static_cast<float>(j % 3) : 0);
      episode.old_log_probs.push_back(written ? scores[j] + 0.3f * normal(engine) : nothing);
      episode.advantages.push_back(written ? normal(engine) : nothing);
      episode.reference_log_probs.push_back(written ? scores[j] + 0.5f * normal(engine) : nothing);
      episode.returns.push_back(written ? values[j] + normal(engine) : nothing);
      episode.old_values.push_back(written ? values[j] + 0.3f * normal(engine) : nothing);
    }
    episodes.push_back(std::move(episode));
  }
  return episodes;
}

// What token_surrogate should give, from the formulas as they are written: float64 autograd down to the hidden
// states, the float64 decoder from there on.
struct Expected {
  std::vector<at::Tensor> losses, log_probs, entropies, ratios, values, value_losses;  // per text, [tokens]
  std::vector<at::Tensor> gradients;                                                   // as Weights::list()
};

Expected expected_of(const Learner& learner, const std::vector<SurrogateText>& texts,
                     const SurrogateSettings& settings) {
  const Weights weights = learner.masters().copy_as(at::kDouble, at::kCPU);
  Weights gradients = weights.zeros_like(at::kDouble);
  Decoder decoder(learner.config());
  Expected expected;
  for (const SurrogateText& text : texts) {
    Ids ids = text.prompt;
    ids.insert(ids.end(), text.response.begin(), text.response.end() - 1);
    std::shared_ptr<Decoder::Tape> tape;
    const auto tokens = static_cast<int64_t>(ids.size());
    const at::Tensor hidden =
        decoder.forward(weights, at::tensor(ids, at::kLong), {tokens}, false, tape).requires_grad_();
    const at::Tensor head = weights.head.clone().requires_grad_();
    const at::Tensor value = weights.value.clone().requires_grad_(),
                     bias = weights.value_bias.clone().requires_grad_();

    const auto list = [](const std::vector<float>& values) {
      return at::tensor(values, at::kFloat).to(at::kDouble).nan_to_num();
    };
    const at::Tensor rows = hidden.narrow(0, static_cast<int64_t>(text.prompt.size()) - 1,
                                          static_cast<int64_t>(text.response.size()));
    const at::Tensor log_softmax = (rows.mm(head.t()) / settings.temperature).log_softmax(1);
    const at::Tensor log_probs =
        log_softmax.gather(1, at::tensor(text.response, at::kLong).unsqueeze(1)).squeeze(1);
    const at::Tensor entropies = -(log_softmax.exp() * log_softmax).sum(1);
    const at::Tensor ratios = (log_probs - list(text.old_log_probs)).exp();
    const at::Tensor advantages = list(text.advantages);
    const at::Tensor held = ratios.clamp(1 - settings.surrogate.clip_low, 1 + settings.surrogate.clip_high);
    const at::Tensor away = list(text.reference_log_probs) - log_probs;
    const at::Tensor losses = -at::minimum(ratios * advantages, held * advantages) +
                              settings.surrogate.kl_coefficient * (away.exp() - away - 1) -
                              settings.entropy_coefficient * entropies;
    const at::Tensor values = (rows.mm(value.t()) + bias).squeeze(1);
    const ValueOptions options = settings.value.value_or(ValueOptions{});
    const at::Tensor old_values = list(text.old_values), returns = list(text.returns);
    const at::Tensor held_values =
        options.clip > 0 ? old_values + (values - old_values).clamp(-options.clip, options.clip) : values;
    const at::Tensor value_losses =
        at::maximum((values - returns).square(), (held_values - returns).square()) / 2;

    const at::Tensor used = list(text.weights);
    (used * (losses + options.coefficient * value_losses)).sum().backward();
    gradients.head.add_(head.grad());
    if (settings.value) {
      gradients.value.add_(value.grad());
      gradients.value_bias.add_(bias.grad());
    }
    decoder.backward(weights, tape, hidden.grad(), gradients);
    const at::Tensor mask = used.ne(0).to(at::kDouble);
    const auto keep = [&](std::vector<at::Tensor>& all, const at::Tensor& of_text) {
      all.push_back(of_text.detach() * mask);
    };
    keep(expected.losses, losses);
    keep(expected.log_probs, log_probs);
    keep(expected.entropies, entropies);
    keep(expected.ratios, ratios);
    keep(expected.values, values);
    keep(expected.value_losses, value_losses);
  }
  expected.gradients = gradients.list();
  return expected;
}

void check_close(const std::vector<float>& got, const at::Tensor& expected) {
  REQUIRE(static_cast<int64_t>(got.size()) == expected.numel());
  for (size_t j = 0; j < got.size(); ++j) {
    CAPTURE(j);
    const double value = expected[static_cast<int64_t>(j)].item<double>();
    CHECK(std::abs(got[j] - value) <= 1e-5 * std::max(1.0, std::abs(value)));
  }
}

}  // namespace

TEST_CASE("the surrogate and the value loss are float64 autograd's, through the whole decoder") {
  SurrogateSettings unclipped = ppo_settings();
  unclipped.value = {2, 0};
  for (Family family : {Family::llama, Family::qwen3}) {
    for (const SurrogateSettings& settings : {ppo_settings(), grpo_settings(), unclipped}) {
      CAPTURE(settings.temperature);
      const auto learner = tiny_critic(with_value_head(), family);
      const auto texts = some_episodes(*learner, settings.temperature);
      const Expected expected = expected_of(*learner, texts, settings);
      at::NoGradGuard no_grad;
      const auto outputs = learner->token_surrogate(texts, settings);
      std::vector<int> times(3);  // held below, free, held above
      int held_values = 0;
      for (size_t i = 0; i < texts.size(); ++i) {
        CAPTURE(i);
        const SurrogateOutput& output = outputs[i];
        check_close(output.losses, expected.losses[i]);
        check_close(output.log_probs, expected.log_probs[i]);
        check_close(output.entropies, expected.entropies[i]);
        check_close(output.ratios, expected.ratios[i]);
        for (size_t j = 0; j < texts[i].response.size(); ++j) {
          if (texts[i].weights[j] == 0) {
            CHECK(output.clipped[j] == 0);
            continue;
          }
          const bool up = texts[i].advantages[j] > 0;
          const double ratio = expected.ratios[i][static_cast<int64_t>(j)].item<double>();
          const int32_t clipped = up && ratio > 1 + settings.surrogate.clip_high   ? 1
                                  : !up && ratio < 1 - settings.surrogate.clip_low ? -1
                                                                                   : 0;
          CHECK(output.clipped[j] == clipped);
          ++times[static_cast<size_t>(clipped + 1)];
        }
        if (!settings.value) {
          CHECK(output.values.empty());
          CHECK(output.value_losses.empty());
          continue;
        }
        check_close(output.values, expected.values[i]);
        check_close(output.value_losses, expected.value_losses[i]);
        for (size_t j = 0; j < output.values.size(); ++j) {
          const float error = output.values[j] - texts[i].returns[j];
          held_values += output.value_losses[j] > 0.51f * error * error;
        }
        check_close(learner->values({texts[i]})[0], expected.values[i]);
      }
      for (int count : times) CHECK(count > 0);
      CHECK((held_values > 0) == (settings.value && settings.value->clip > 0));
      const auto gradients = learner->gradients()->list();
      for (size_t i = 0; i < gradients.size(); ++i) {
        CAPTURE(i);
        const double scale = std::max(expected.gradients[i].norm().item<double>(), 1e-3);
        CHECK((gradients[i] - expected.gradients[i]).norm().item<double>() / scale < 1e-4);
      }
    }
  }
}

TEST_CASE("the policy that wrote a text has a ratio of 1, and no gradient but its advantage's") {
  const auto learner = tiny_learner();
  std::vector<SurrogateText> texts;
  for (ScoredText& text : some_texts()) {
    SurrogateText episode{text, learner->log_probs({text}, Which::online)[0], {}, {}, {}, {}};
    episode.advantages.assign(text.response.size(), 1);
    texts.push_back(std::move(episode));
  }
  for (const SurrogateOutput& output : learner->token_surrogate(texts, {})) {
    for (float ratio : output.ratios) CHECK(ratio == doctest::Approx(1).epsilon(1e-5));
    for (float loss : output.losses) CHECK(loss == doctest::Approx(-1).epsilon(1e-5));
  }
  const auto other = tiny_learner();
  other->token_nll(some_texts(), true);
  CHECK(relative_difference(learner->gradients()->list(), other->gradients()->list()) < 1e-5);
}

TEST_CASE("neither micro batches nor recomputation change what the surrogate gives") {
  const auto whole = tiny_critic();
  const auto texts = some_episodes(*whole);
  const auto expected = whole->token_surrogate(texts, ppo_settings());
  for (int64_t micro_batch_tokens : {1, 16, 30}) {
    for (bool recompute : {false, true}) {
      LearnerOptions options = with_value_head(at::kFloat, micro_batch_tokens);
      options.gradient_checkpointing = recompute;
      const auto split = tiny_critic(options);
      const auto outputs = split->token_surrogate(texts, ppo_settings());
      for (size_t i = 0; i < texts.size(); ++i) {
        for (size_t j = 0; j < texts[i].response.size(); ++j) {
          CHECK(outputs[i].losses[j] == doctest::Approx(expected[i].losses[j]).epsilon(1e-4));
          CHECK(outputs[i].values[j] == doctest::Approx(expected[i].values[j]).epsilon(1e-4));
        }
      }
      CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-5);
    }
  }
  // Without gradient: the same losses and nothing else.
  SurrogateSettings settings = ppo_settings();
  settings.with_gradient = false;
  const auto reader = tiny_critic();
  const auto outputs = reader->token_surrogate(texts, settings);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < texts[i].response.size(); ++j)
      CHECK(outputs[i].losses[j] == doctest::Approx(expected[i].losses[j]).epsilon(1e-5));
  }
  CHECK(reader->gradients() == nullptr);
}

TEST_CASE("in bfloat16 the value head is float32 over bfloat16 hidden states") {
  const auto exact = tiny_critic();
  Scratch directory;
  exact->save(directory.path());
  const auto learner = Learner::load(directory.path(), with_value_head(at::kBFloat16));
  auto texts = some_episodes(*exact);
  // The value part alone.
  for (SurrogateText& text : texts) text.advantages.assign(text.response.size(), 0);
  SurrogateSettings settings;
  settings.value = {1, 0};
  const auto outputs = learner->token_surrogate(texts, settings);
  exact->token_surrogate(texts, settings);
  double bias = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < outputs[i].values.size(); ++j) {
      if (texts[i].weights[j] == 0) continue;
      const double error = static_cast<double>(outputs[i].values[j]) - texts[i].returns[j];
      CHECK(outputs[i].value_losses[j] == doctest::Approx(error * error / 2).epsilon(1e-5));
      bias += texts[i].weights[j] * error;
    }
  }
  CHECK(learner->gradients()->value_bias.item<double>() == doctest::Approx(bias).epsilon(1e-5));
  CHECK(relative_difference(learner->gradients()->list(), exact->gradients()->list()) < 0.2);
}

TEST_CASE("the value head is stepped and averaged like every parameter") {
  const auto plain = tiny_learner();
  const auto learner = tiny_critic();
  CHECK(learner->parameters() == plain->parameters() + 24 + 1);
  CHECK(Learner::create(tiny_config(), 1, with_value_head())->masters().value.eq(0).all().item<bool>());
  learner->update_target(0);
  const at::Tensor before = learner->masters().value.clone(), bias = learner->masters().value_bias.clone();
  learner->token_surrogate(some_episodes(*learner), ppo_settings());
  CHECK(learner->gradients()->value.norm().item<double>() > 0);
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
  const at::Tensor& value = learner->masters().value;
  CHECK_FALSE(at::equal(value, before));
  CHECK_FALSE(at::equal(learner->masters().value_bias, bias));
  CHECK(learner->gradients()->value.eq(0).all().item<bool>());
  CHECK(at::equal(learner->target_masters()->value, before));
  learner->update_target(0.25);
  CHECK(at::allclose(learner->target_masters()->value, 0.25 * value + 0.75 * before, 1e-6, 1e-7));

  // Its values converge to what they are to predict.
  auto texts = some_episodes(*learner);
  SurrogateSettings settings;
  settings.value = {1, 0};
  const auto error = [&] {
    double sum = 0;
    for (const auto& output : learner->token_surrogate(texts, settings)) {
      for (float loss : output.value_losses) sum += loss;
    }
    return sum;
  };
  const double first = error();
  for (int i = 0; i < 40; ++i) learner->step(quick_step(), ""), error();
  CHECK(error() < first / 10);
}

TEST_CASE("a surrogate or a value that is not finite skips the step") {
  const auto learner = tiny_critic();
  auto texts = some_episodes(*learner);
  const auto before = copies(learner->masters());
  texts[0].old_log_probs[0] = -1e4;  // its ratio is beyond float32
  texts[0].advantages[0] = -1;       // and nothing holds it
  learner->token_surrogate(texts, ppo_settings());
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));

  texts = some_episodes(*learner);
  texts[0].returns[0] = 3e38f;
  learner->token_surrogate(texts, ppo_settings());
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));
  learner->token_surrogate(some_episodes(*learner), ppo_settings());
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
}

TEST_CASE("the reference stays where θ was when it was kept") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = tiny_learner(options_of(dtype));
    const auto texts = some_texts();
    std::string message;
    CHECK(code_of([&] { learner->log_probs(texts, Which::reference); }, &message) == "ERR_VALUE");
    CHECK(message.find("reference") != std::string::npos);
    const auto step = [&] {
      learner->token_nll(texts, true);
      learner->step(quick_step(), "");
    };
    learner->keep_reference();
    const auto before = learner->log_probs(texts, Which::online, 0.7);
    step();
    CHECK(learner->log_probs(texts, Which::online, 0.7) != before);
    CHECK(learner->log_probs(texts, Which::reference, 0.7) == before);
    CHECK(learner->log_probs(texts, Which::reference) != before);  // another temperature
    const auto after = learner->log_probs(texts, Which::online);
    learner->keep_reference();
    step();
    CHECK(learner->log_probs(texts, Which::reference) == after);
    CHECK(code_of([&] { learner->generate({request_of({1}, 1)}, Which::reference, {}); }) == "ERR_VALUE");
  }
}

TEST_CASE("log probabilities have a temperature") {
  const auto learner = tiny_learner();
  const ScoredText text = some_texts()[0];
  Ids whole = text.prompt;
  whole.insert(whole.end(), text.response.begin(), text.response.end());
  const at::Tensor table = (learner->logits(whole, Which::online).to(at::kDouble) / 1.7).log_softmax(1);
  const auto scores = learner->log_probs({text}, Which::online, 1.7)[0];
  for (size_t j = 0; j < scores.size(); ++j) {
    const auto row = static_cast<int64_t>(text.prompt.size() + j) - 1;
    CHECK(scores[j] == doctest::Approx(table[row][text.response[j]].item<double>()).epsilon(1e-5));
  }
  CHECK(code_of([&] { learner->log_probs({text}, Which::online, 0); }) == "ERR_VALUE");
}

TEST_CASE("a learner with a value head and a reference resumes bit for bit") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = tiny_critic(with_value_head(dtype));
    const auto texts = some_episodes(*learner);
    const auto train = [&](Learner& trained) {
      for (int i = 0; i < 3; ++i) {
        trained.token_surrogate(texts, ppo_settings());
        trained.step(quick_step(), "");
        trained.update_target(0.1);
      }
    };
    const std::vector<ScoredText> scored = some_texts();
    learner->keep_reference();
    learner->update_target(0);
    train(*learner);
    learner->token_surrogate(texts, ppo_settings());  // left pending
    Scratch directory;
    learner->save(directory.path());
    // The heads are those that were saved, whatever the options say.
    const auto resumed = Learner::resume(directory.path(), options_of(dtype));
    CHECK((resumed->options().heads == Heads::value));
    CHECK(equal(resumed->gradients()->list(), learner->gradients()->list()));
    CHECK(resumed->log_probs(scored, Which::reference) == learner->log_probs(scored, Which::reference));
    train(*learner);
    train(*resumed);
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
    CHECK(resumed->values(scored) == learner->values(scored));

    // The reference is written as it is held: a float32 copy of a large model would not fit beside it.
    const auto size = [&](const char* name) { return static_cast<double>(fs::file_size(directory / name)); };
    CHECK(size("reference.safetensors") / size("model.safetensors") ==
          doctest::Approx(dtype == at::kFloat ? 1 : 0.5).epsilon(0.05));
    const auto wider = Learner::resume(directory.path(), options_of(at::kFloat));
    CHECK(wider->log_probs(scored, Which::reference).size() == scored.size());
    fs::resize_file(directory / "reference.safetensors", 100);
    CHECK(code_of([&] { Learner::resume(directory.path(), options_of()); }) == "ERR_CHECKPOINT");
  }
}

TEST_CASE("a directory loads with heads or without, whether it has them or not") {
  const auto critic = tiny_critic();
  const auto plain = tiny_learner();
  Scratch with, without, exported;
  critic->save(with.path());
  plain->save(without.path());
  critic->export_huggingface(exported.path());
  const auto same = Learner::load(with.path(), with_value_head());
  CHECK(equal(same->masters().list(), critic->masters().list()));
  const auto bare = Learner::load(with.path(), options_of());
  CHECK(equal(bare->masters().list(), plain->masters().list()));
  for (const Scratch* directory : {&without, &exported}) {
    const auto fresh = Learner::load(directory->path(), with_value_head());
    CHECK(fresh->masters().value.eq(0).all().item<bool>());
    CHECK(fresh->masters().value_bias.eq(0).all().item<bool>());
    CHECK(equal(Learner::load(directory->path(), options_of())->masters().list(), plain->masters().list()));
  }
}

TEST_CASE("a training goes on with the heads that were saved, never with new ones") {
  for (const Heads heads : {Heads::value, Heads::q}) {
    LearnerOptions options = options_of();
    options.heads = heads;
    Scratch with, without;
    tiny_learner(options)->save(with.path());
    tiny_learner()->save(without.path());
    REQUIRE(code_of([&] { Learner::resume(with.path(), options_of()); }) == "none");
    fs::copy_file(without / "model.safetensors", with / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    std::string message;
    CHECK(code_of([&] { Learner::resume(with.path(), options_of()); }, &message) == "ERR_CHECKPOINT");
    CAPTURE(message);
    const std::string missing = heads == Heads::value ? "value_head.weight" : "q_heads.0.advantage";
    const std::string file = with / "model.safetensors";
    CHECK(message.find(file + ": tensor " + missing + " is missing") == 0);
  }
}

TEST_CASE("a surrogate's bad arguments are refused, each by its name") {
  const auto learner = tiny_critic();
  const auto texts = some_episodes(*learner);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SurrogateSettings all = ppo_settings();
  all.surrogate.kl_coefficient = 0.1;
  const auto refused = [&](const char* name, const std::function<void(SurrogateText&)>& spoil) {
    auto spoilt = texts;
    spoil(spoilt[2]);
    std::string message;
    CHECK(code_of([&] { learner->token_surrogate(spoilt, all); }, &message) == "ERR_VALUE");
    CAPTURE(message);
    CHECK(message.find("text 2: ") == 0);
    CHECK(message.find(name) != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  const std::pair<const char*, std::vector<float> SurrogateText::*> lists[] = {
      {"old log probabilities", &SurrogateText::old_log_probs},
      {"advantages", &SurrogateText::advantages},
      {"reference log probabilities", &SurrogateText::reference_log_probs},
      {"returns", &SurrogateText::returns},
      {"old values", &SurrogateText::old_values},
  };
  for (const auto& [name, list] : lists) {
    CAPTURE(name);
    refused(name, [&, list = list](SurrogateText& text) { (text.*list).pop_back(); });
    refused(name, [&, list = list](SurrogateText& text) { (text.*list)[1] = nan; });
  }
  const auto code = [&](const std::function<void(SurrogateSettings&)>& spoil) {
    SurrogateSettings settings = all;
    spoil(settings);
    return code_of([&] { learner->token_surrogate(texts, settings); });
  };
  CHECK(code([](auto& settings) { settings.temperature = 0; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.surrogate.clip_low = 1.5; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.surrogate.clip_high = -1; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.surrogate.kl_coefficient = -1; }) == "ERR_VALUE");
  CHECK(code([&](auto& settings) { settings.entropy_coefficient = nan; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.value->coefficient = -1; }) == "ERR_VALUE");
  CHECK(code([&](auto& settings) { settings.value->clip = nan; }) == "ERR_VALUE");
  CHECK(learner->gradients() == nullptr);

  const auto plain = tiny_learner();
  CHECK(code_of([&] { plain->token_surrogate(texts, all); }) == "ERR_CONFIG");
  CHECK(code_of([&] { plain->values(some_texts()); }) == "ERR_CONFIG");
  CHECK(learner->token_surrogate({}, all).empty());
}

// --- adapters ---------------------------------------------------------------------------------------------

LearnerOptions adapted_options(at::ScalarType dtype = at::kFloat) {
  LearnerOptions options = options_of(dtype);
  options.adapter =
      AdapterOptions{3, 6, {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, 5};
  return options;
}

// A float32 learner on a base that tells tokens apart, with adapters that change what it predicts.
std::unique_ptr<Learner> adapted_learner(const LearnerOptions& options = adapted_options(),
                                         Family family = Family::llama) {
  auto learner = Learner::create(tiny_config(family), 1, options);
  at::NoGradGuard no_grad;
  at::manual_seed(2);
  for (const at::Tensor& tensor : learner->base()->list())
    if (tensor.dim() == 2) tensor.mul_(10);
  for (const at::Tensor& tensor : learner->masters().list()) tensor.normal_(0, 0.1);
  return learner;
}

static void check_int8_generation(at::ScalarType type) {
  const LearnerOptions options = options_of(type);
  LearnerOptions int8 = options;
  int8.int8_generation = true;
  GenerateRequest request = request_of(random_ids(30, 1), 20);
  request.forced = random_ids(20, 2);
  const std::vector<ScoredText> text = {{request.tokens, request.forced}};
  const auto furthest = [](const std::vector<float>& a, const std::vector<float>& b) {
    return (at::tensor(a) - at::tensor(b)).abs().max().item<double>();
  };
  for (const bool adapted : {false, true}) {
    CAPTURE(adapted);
    Scratch directory;
    (adapted ? adapted_learner() : tiny_learner())->save(directory.path());
    const auto plain = Learner::resume(directory.path(), options);
    const auto rounded = Learner::resume(directory.path(), int8);
    const std::vector<float> scored = rounded->log_probs(text, Which::online)[0];
    CHECK(scored == plain->log_probs(text, Which::online)[0]);
    for (const Which which : {Which::online, Which::target}) {
      const auto written = rounded->generate({request}, which, {})[0].log_probs;
      CHECK(written != plain->generate({request}, which, {})[0].log_probs);
      CHECK(furthest(written, scored) < 0.1);
    }
    CHECK(rounded->token_nll(text, true).losses == plain->token_nll(text, true).losses);
    CHECK(equal(rounded->gradients()->list(), plain->gradients()->list()));
  }
}

TEST_CASE("int8 weights are generation's alone, and an adapter's stay as they are") {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    CAPTURE(std::string(c10::toString(type)));
    check_int8_generation(type);
  }
  LearnerOptions int8 = options_of(at::kBFloat16);
  int8.int8_generation = true;
  int8.device = at::kCUDA;
  CHECK(code_of([&] { Learner::create(tiny_config(), 1, int8); }) == "ERR_CONFIG");
}

TEST_CASE("a new adapter changes nothing yet, and only it is trained") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    for (Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
      const auto plain = Learner::create(tiny_config(family), 1, options_of(dtype));
      const auto learner = Learner::create(tiny_config(family), 1, adapted_options(dtype));
      CHECK(learner->log_probs(some_texts(), Which::online) == plain->log_probs(some_texts(), Which::online));
      int64_t expected = 0;  // each projection's rank · (in + out), k_proj left out, of two layers
      for (const int64_t sides : {24 + 32, 24 + 16, 32 + 24, 24 + 40, 24 + 40, 40 + 24})
        expected += 2 * 3 * sides;
      CHECK(learner->trainable_parameters() == expected);
      CHECK(learner->parameters() == plain->parameters() + expected);

      std::vector<at::Tensor> base;
      for (const at::Tensor& tensor : learner->base()->list()) {
        CHECK((tensor.scalar_type() == dtype));
        base.push_back(tensor.clone());
      }
      const auto before = copies(learner->masters());
      learner->update_target(1);
      for (int i = 0; i < 2; ++i) {
        learner->token_nll(some_texts(), true);
        learner->token_kl(some_distilled(), 1, {}, true);
        CHECK_FALSE(learner->step(quick_step(), "").skipped);
        learner->update_target(0.5);
      }
      const auto now = learner->base()->list();
      for (size_t i = 0; i < base.size(); ++i) CHECK(at::equal(now[i], base[i]));
      CHECK_FALSE(equal(learner->masters().list(), before));
      // Neither gradients nor the moving average hold anything of the base.
      for (const Weights* held : {&learner->masters(), learner->gradients(), learner->target_masters()}) {
        int64_t numbers = 0;
        for (const at::Tensor& tensor : held->list()) numbers += tensor.numel();
        CHECK(numbers == expected);
        CHECK_FALSE(held->embedding.defined());
        CHECK_FALSE(held->layers[0].qkv.defined());
      }
    }
  }
}

TEST_CASE("gradients at an adapter are the slopes of the losses") {
  for (Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
    CAPTURE(static_cast<int>(family));
    const auto learner = adapted_learner(adapted_options(), family);
    const auto texts = some_texts();
    check_gradient(*learner,
                   [&](bool gradient) { return weighted_sum(texts, learner->token_nll(texts, gradient)); });
  }
  const auto learner = adapted_learner();
  learner->update_target(0.5);
  const auto texts = some_distilled();
  check_gradient(*learner, [&](bool gradient) {
    return weighted_sum(texts, learner->token_kl(texts, 1.7, {}, gradient));
  });
}

TEST_CASE("neither micro batches nor recomputation change an adapter's gradient") {
  const auto whole = adapted_learner();
  whole->token_nll(some_texts(), true);
  for (bool recompute : {false, true}) {
    LearnerOptions options = adapted_options();
    options.micro_batch_tokens = 16;
    options.gradient_checkpointing = recompute;
    const auto split = adapted_learner(options);
    split->token_nll(some_texts(), true);
    CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-6);
  }
}

TEST_CASE("an adapted learner generates with the probabilities that it scores with, in both of its halves") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const auto learner = Learner::create(tiny_config(), 1, adapted_options(dtype));
    learner->update_target(1);
    for (int i = 0; i < 10; ++i) {
      learner->token_nll(some_texts(), true);
      learner->step(quick_step(), "");
      if (i == 4) learner->update_target(0.9);
    }
    const GenerateRequest request = request_of(random_ids(6, 9), 12, 0.9, 4);
    for (Which which : {Which::online, Which::target}) {
      const GenerateResult result = learner->generate({request}, which, {})[0];
      const auto again = learner->log_probs({{request.tokens, result.tokens, {1.0}}}, which)[0];
      for (size_t j = 0; j < again.size(); ++j)
        CHECK(std::abs(result.log_probs[j] - again[j]) < (dtype == at::kFloat ? 1e-4 : 0.05));
      // The two halves differ, and both from the base.
      const auto other = learner->log_probs({{request.tokens, result.tokens, {1.0}}},
                                            which == Which::online ? Which::target : Which::online)[0];
      CHECK(std::abs(other[0] - again[0]) > 1e-3);
    }
  }
}

TEST_CASE("the moving average of an adapter moves by τ") {
  const auto learner = adapted_learner();
  learner->update_target(1);
  const auto start = copies(*learner->target_masters());
  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  CHECK(learner->target_distance() > 0);
  learner->update_target(0.25);
  const auto target = learner->target_masters()->list(), online = learner->masters().list();
  for (size_t i = 0; i < target.size(); ++i)
    CHECK(at::allclose(target[i], 0.25 * online[i] + 0.75 * start[i], 1e-6, 1e-8));
}

TEST_CASE("an adapter learns, and a loss that is not finite skips its step") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = Learner::create(tiny_config(), 2, adapted_options(dtype));
    at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : learner->base()->list())
      if (tensor.dim() == 2) tensor.mul_(10);
    const std::vector<ScoredText> texts = {{random_ids(5, 1), random_ids(12, 2), {1.0}}};
    const double first = weighted_sum(texts, learner->token_nll(texts, false));
    for (int i = 0; i < 60; ++i) {
      learner->token_nll(texts, true);
      CHECK_FALSE(learner->step(quick_step(), "").skipped);
    }
    CHECK(weighted_sum(texts, learner->token_nll(texts, false)) < 0.5 * first);

    learner->base()->embedding[texts[0].prompt[0]].fill_(std::numeric_limits<float>::quiet_NaN());
    const auto before = copies(learner->masters());
    learner->token_nll(texts, true);
    CHECK(learner->step(quick_step(), "").skipped);
    CHECK(equal(learner->masters().list(), before));
  }
}

TEST_CASE("an adapted learner resumes bit for bit, on a base that was loaded or made") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (bool loaded : {false, true}) {
      CAPTURE(std::string(c10::toString(dtype)));
      CAPTURE(loaded);
      const auto train = [&](Learner& learner, int steps) {
        for (int i = 0; i < steps; ++i) {
          learner.token_kl(some_distilled(), 1, {}, true);
          learner.step(quick_step(), "critic");
          learner.token_nll(some_texts(), true);
          learner.step(quick_step(), "policy");
          learner.update_target(0.05);
        }
        learner.token_nll(some_texts(), true);
      };
      Scratch base, directory;
      Learner::create(tiny_config(Family::qwen2), 3, options_of())->export_huggingface(base.path());
      const auto learner = loaded ? Learner::load(base.path(), adapted_options(dtype))
                                  : Learner::create(tiny_config(Family::qwen2), 3, adapted_options(dtype));
      learner->update_target(1);
      train(*learner, 2);
      learner->save(directory.path());
      CHECK(fs::exists(directory / "base") != loaded);
      CHECK_FALSE(fs::exists(directory / "model.safetensors"));
      const auto resumed =
          Learner::resume(directory.path(), options_of(dtype), loaded ? base.path() : std::string());
      CHECK(resumed->options().adapter->rank == 3);
      for (int round = 0; round < 2; ++round) {
        CHECK(equal(resumed->masters().list(), learner->masters().list()));
        CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
        CHECK(equal(resumed->gradients()->list(), learner->gradients()->list()));
        for (Which which : {Which::online, Which::target})
          CHECK(resumed->log_probs(some_texts(), which) == learner->log_probs(some_texts(), which));
        train(*learner, 2);
        train(*resumed, 2);
      }
      // What was resumed can be saved and resumed again.
      Scratch second;
      resumed->save(second.path());
      const auto again =
          Learner::resume(second.path(), adapted_options(dtype), loaded ? base.path() : std::string());
      CHECK(equal(again->masters().list(), learner->masters().list()));
    }
  }
}

TEST_CASE("a value head is trained beside an adapter, and the reference keeps what is trained alone") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    LearnerOptions options = adapted_options(dtype);
    const int64_t without = Learner::create(tiny_config(), 1, options)->trainable_parameters();
    options.heads = Heads::value;
    const auto learner = Learner::create(tiny_config(), 1, options);
    CHECK(learner->trainable_parameters() == without + 24 + 1);
    CHECK_FALSE(learner->base()->value.defined());
    learner->keep_reference();
    const auto texts = some_texts();
    const auto before = learner->log_probs(texts, Which::online);
    SurrogateSettings settings;
    settings.value = ValueOptions{0.5, 0};
    for (int i = 0; i < 3; ++i) {
      std::vector<SurrogateText> episodes;
      for (const ScoredText& text : texts) {
        const size_t tokens = text.response.size();
        episodes.push_back({text,
                            learner->log_probs({text}, Which::online)[0],
                            std::vector<float>(tokens, 1.0f),
                            {},
                            std::vector<float>(tokens, 2.0f),
                            std::vector<float>(tokens, 0.0f)});
      }
      learner->token_surrogate(episodes, settings);
      CHECK_FALSE(learner->step(quick_step(), "").skipped);
    }
    CHECK(learner->masters().value.ne(0).all().item<bool>());
    CHECK(learner->log_probs(texts, Which::online) != before);
    CHECK(learner->log_probs(texts, Which::reference) == before);

    Scratch directory, exported;
    learner->save(directory.path());
    const auto resumed = Learner::resume(directory.path(), options_of(dtype));
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(resumed->values(texts) == learner->values(texts));
    CHECK(resumed->log_probs(texts, Which::reference) == before);
    learner->export_huggingface(exported.path());
    CHECK(Learner::load(exported.path(), options_of(dtype))->parameters() ==
          learner->parameters() - learner->trainable_parameters());
  }
}

TEST_CASE("heads keep their float32 beside an adapter on a bfloat16 model") {
  for (const Heads heads : {Heads::value, Heads::q}) {
    LearnerOptions whole = options_of(at::kBFloat16), adapted = adapted_options(at::kBFloat16);
    whole.heads = adapted.heads = heads;
    const auto learner = Learner::create(tiny_config(), 1, whole);
    at::NoGradGuard no_grad;
    torch::manual_seed(6);
    const auto heads_of = [&](const Weights& weights) {
      return heads == Heads::value ? std::vector<at::Tensor>{weights.value, weights.value_bias}
                                   : std::vector<at::Tensor>{weights.q[0].advantage, weights.q[0].value,
                                                             weights.q[1].advantage, weights.q[1].value};
    };
    for (const at::Tensor& tensor : heads_of(learner->masters())) tensor.copy_(at::randn_like(tensor));
    Scratch directory;
    learner->save(directory.path());
    const auto beside = Learner::load(directory.path(), adapted);
    CHECK(equal(heads_of(beside->masters()), heads_of(learner->masters())));
    // Neither does the learner's own checkpoint round them.
    Scratch second;
    beside->save(second.path());
    const auto resumed = Learner::resume(second.path(), options_of(at::kBFloat16));
    CHECK(equal(resumed->masters().list(), beside->masters().list()));
  }
}

TEST_CASE("an adapter's checkpoint is refused without its base, with another, and where it is damaged") {
  Scratch base, other, directory, plain;
  Learner::create(tiny_config(), 3, options_of())->export_huggingface(base.path());
  Learner::create(tiny_config(), 4, options_of())->export_huggingface(other.path());
  const auto learner = Learner::load(base.path(), adapted_options());
  learner->save(directory.path());
  const auto resume = [&](const std::string& model, const LearnerOptions& options = options_of()) {
    return code_of([&] { Learner::resume(directory.path(), options, model); });
  };
  REQUIRE(resume(base.path()) == "none");
  CHECK(resume("") == "ERR_CHECKPOINT");
  CHECK(resume(other.path()) == "ERR_CHECKPOINT");
  CHECK(resume(base / "nowhere") == "ERR_CHECKPOINT");

  LearnerOptions differing = adapted_options();
  CHECK(resume(base.path(), differing) == "none");
  differing.adapter->rank = 4;
  CHECK(resume(base.path(), differing) == "ERR_CONFIG");
  Learner::load(base.path(), options_of())->save(plain.path());
  CHECK(code_of([&] { Learner::resume(plain.path(), adapted_options()); }) == "ERR_CONFIG");

  // The same tensors under another configuration.
  ModelConfig turned = tiny_config();
  turned.rope_theta = 5;
  const std::string config = turned.to_json("float32");
  fs::rename(base / "config.json", base / "kept");
  std::ofstream(base / "config.json") << config;
  CHECK(resume(base.path()) == "ERR_CHECKPOINT");
  fs::rename(base / "kept", base / "config.json");
  REQUIRE(resume(base.path()) == "none");

  // A checkpoint is not a model.
  CHECK(code_of([&] { Learner::load(directory.path(), options_of()); }) == "ERR_MODEL_FORMAT");
  const fs::path manifest = directory / "learner.json";
  std::string text;
  std::getline(std::ifstream(manifest), text, '\0');
  const size_t rank = text.find("\"rank\": 3");
  REQUIRE(rank != std::string::npos);
  std::ofstream(manifest, std::ios::trunc) << std::string(text).replace(rank, 9, "\"rank\": 0");
  CHECK(resume(base.path()) == "ERR_CHECKPOINT");
  std::ofstream(manifest, std::ios::trunc) << text;
  REQUIRE(resume(base.path()) == "none");
  fs::resize_file(directory / "adapter_model.safetensors", 100);
  CHECK(resume(base.path()) == "ERR_CHECKPOINT");
}

TEST_CASE("an exported adapted model scores like the learner") {
  for (Family family : {Family::llama, Family::qwen2}) {
    const auto learner = adapted_learner(adapted_options(), family);
    Scratch directory;
    learner->export_huggingface(directory.path());
    const auto loaded = Learner::load(directory.path(), options_of());
    const auto expected = learner->log_probs(some_texts(), Which::online),
               scores = loaded->log_probs(some_texts(), Which::online);
    for (size_t i = 0; i < scores.size(); ++i)
      for (size_t j = 0; j < scores[i].size(); ++j)
        CHECK(scores[i][j] == doctest::Approx(expected[i][j]).epsilon(1e-4));
  }
  const auto plain = tiny_learner();
  CHECK(code_of([&] { plain->export_adapter("nowhere", ""); }) == "ERR_VALUE");
}

TEST_CASE("bad arguments are refused before anything is computed") {
  const auto learner = tiny_learner();
  const auto refused = [&](const std::function<void(std::vector<ScoredText>&)>& spoil) {
    auto texts = some_texts();
    spoil(texts);
    std::string message;
    CHECK(code_of([&] { learner->token_nll(texts, true); }, &message) == "ERR_VALUE");
    CHECK(message.find("text 2") != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  refused([](auto& texts) { texts[2].prompt.clear(); });
  refused([](auto& texts) { texts[2].response.clear(); });
  refused([](auto& texts) { texts[2].prompt[1] = 53; });
  refused([](auto& texts) { texts[2].response[1] = -1; });
  refused([](auto& texts) { texts[2].response = random_ids(85, 1); });
  refused([](auto& texts) { texts[2].weights = {std::numeric_limits<float>::quiet_NaN()}; });
  refused([](auto& texts) { texts[2].weights = {1, 2}; });
  refused([](auto& texts) { texts[2].weights.clear(); });

  const auto kl = [&](double temperature, const Support& support) {
    return code_of([&] { learner->token_kl(some_distilled(), temperature, support, true); });
  };
  CHECK(kl(0, {}) == "ERR_VALUE");
  CHECK(kl(std::numeric_limits<double>::infinity(), {}) == "ERR_VALUE");
  CHECK(kl(1, {SupportKind::top_k, 0}) == "ERR_VALUE");
  CHECK(code_of([&] { learner->logits({}, Which::online); }) == "ERR_VALUE");
  CHECK(code_of([&] { learner->logits({53}, Which::online); }) == "ERR_VALUE");
  CHECK(code_of([&] { learner->logits(random_ids(97, 1), Which::online); }) == "ERR_VALUE");
  CHECK(code_of([] { Learner::create(tiny_config(), 1, options_of(at::kHalf)); }) == "ERR_VALUE");
  CHECK(code_of([] { Learner::create(tiny_config(), 1, options_of(at::kFloat, 0)); }) == "ERR_VALUE");
  CHECK(learner->token_nll({}, true).losses.empty());
}

TEST_CASE("a model that does not fit says so") {
  ModelConfig config = tiny_config();
  config.vocab_size = int64_t{1} << 44;  // more bytes than a process can address
  CHECK(code_of([&] { Learner::create(config, 1, options_of()); }) == "ERR_OUT_OF_MEMORY");
}

// --- soft Q ---------------------------------------------------------------------------------------------

namespace {

LearnerOptions q_options(at::ScalarType dtype = at::kFloat, int64_t micro_batch_tokens = 2048) {
  LearnerOptions options = options_of(dtype, micro_batch_tokens);
  options.heads = Heads::q;
  return options;
}

// One turn; several turns, with what an environment said between them; a last observation after the last
// action; a text without an action; weights below 0.
std::vector<SoftQText> some_episodes() {
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

SoftQOptions some_soft_q() {
  SoftQOptions options;
  options.temperature = 0.2;
  options.discount = 0.95;
  options.q_coefficient = 0.7;
  options.policy_coefficient = 1.5;
  return options;
}

// A learner whose heads and θ̄ say something of their own.
std::unique_ptr<Learner> q_learner(const LearnerOptions& options = q_options()) {
  auto learner = Learner::create(tiny_config(Family::qwen3), 1, options);
  at::NoGradGuard no_grad;
  torch::manual_seed(5);
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

bool same(const std::vector<SoftQOutput>& a, const std::vector<SoftQOutput>& b, double within) {
  for (auto list : {&SoftQOutput::q_losses, &SoftQOutput::policy_losses, &SoftQOutput::q,
                    &SoftQOutput::targets, &SoftQOutput::entropies}) {
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < (a[i].*list).size(); ++j)
        if (!(std::abs((a[i].*list)[j] - (b[i].*list)[j]) <= within)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("new Q heads hold the policy, say little, and differ") {
  for (Family family : {Family::llama, Family::qwen3}) {
    const auto learner = Learner::create(tiny_config(family), 2, q_options());
    SoftQOptions options = some_soft_q();
    options.with_gradient = false;
    const auto episodes = some_episodes();
    const auto output = learner->soft_q(episodes, options);
    const TwinQ& q = learner->masters().q;
    CHECK_FALSE(at::equal(q[0].value, q[1].value));
    for (size_t i = 0; i < episodes.size(); ++i) {
      for (float loss : output[i].policy_losses) CHECK(std::abs(loss) < 1e-6f);
    }
    for (const QHead& head : q) {
      CHECK(at::equal(head.advantage, learner->masters().head));
      CHECK_FALSE(head.advantage.is_same(learner->masters().head));
      // Hidden states are about as long as the norm's weight, here of ones.
      CHECK(head.value.norm().item<double>() == doctest::Approx(0.1));
    }
    const auto bare = Learner::create(tiny_config(family), 2, options_of());
    CHECK(learner->parameters() == bare->parameters() + 2 * (53 + 1) * 24);
    CHECK(equal(bare->masters().list(), [&] {
      auto list = learner->masters().list();
      list.resize(bare->masters().list().size());
      return list;
    }()));
  }
}

TEST_CASE("soft_q equals float64 autograd at the heads, and the decoder's backward from there") {
  at::NoGradGuard no_grad;
  const auto learner = q_learner();
  const auto episodes = some_episodes();
  const SoftQOptions options = some_soft_q();
  const auto output = learner->soft_q(episodes, options);

  Decoder decoder(learner->config());
  const Weights &online = learner->masters(), &target = *learner->target_masters();
  Weights expected = online.zeros_like(at::kFloat);
  for (size_t i = 0; i < episodes.size(); ++i) {
    CAPTURE(i);
    const SoftQText& text = episodes[i];
    Ids ids = text.prompt, rows, actions;
    ids.insert(ids.end(), text.response.begin(), text.response.end());
    std::vector<float> rewards, weights;
    for (size_t j = 0; j < text.response.size(); ++j) {
      if (text.weights[j] == 0) continue;
      rows.push_back(static_cast<int64_t>(text.prompt.size() + j) - 1);
      actions.push_back(text.response[j]);
      rewards.push_back(text.rewards[j]);
      weights.push_back(text.weights[j]);
    }
    const auto check = [&](const std::vector<float>& got, const at::Tensor& wanted) {
      int64_t row = 0;
      for (size_t j = 0; j < got.size(); ++j) {
        if (text.weights[j] == 0)
          CHECK(got[j] == 0);
        else
          CHECK(got[j] == doctest::Approx(wanted[row++].item<double>()).epsilon(1e-5));
      }
    };
    if (rows.empty()) {
      check(output[i].q, {});
      continue;
    }
    at::Tensor terminal = at::zeros({static_cast<int64_t>(rows.size())}, at::kBool);
    terminal[-1] = true;
    const at::Tensor packed = at::tensor(ids, at::kLong), picked = at::tensor(rows, at::kLong);
    const std::vector<int64_t> lengths = {packed.size(0)};
    std::shared_ptr<Decoder::Tape> tape;
    const at::Tensor hidden = decoder.forward(online, packed, lengths, false, tape);
    const test::SoftQReference reference = test::soft_q_reference(
        {hidden.index_select(0, picked), online.head, online.q},
        {decoder.forward(target, packed, lengths).index_select(0, picked), target.head, target.q},
        {at::tensor(actions, at::kLong), at::tensor(rewards), terminal, at::tensor(weights)}, options);
    check(output[i].q_losses, reference.q_losses);
    check(output[i].policy_losses, reference.policy_losses);
    check(output[i].q, reference.q);
    check(output[i].targets, reference.targets);
    check(output[i].entropies, reference.entropies);
    at::Tensor grad_hidden = at::zeros_like(hidden);
    grad_hidden.index_copy_(0, picked, reference.grad_hidden.to(at::kFloat));
    decoder.backward(online, std::move(tape), grad_hidden, expected);
    expected.head += reference.grad_head.to(at::kFloat);
    for (size_t k = 0; k < 2; ++k) {
      expected.q[k].advantage += reference.grad_q[k].advantage.to(at::kFloat);
      expected.q[k].value += reference.grad_q[k].value.to(at::kFloat);
    }
  }
  const auto gradients = learner->gradients()->list(), wanted = expected.list();
  REQUIRE(gradients.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    CHECK(relative_difference({gradients[i]}, {wanted[i]}) < 1e-5);
  }
}

TEST_CASE("neither micro batches nor recomputation change what soft_q gives") {
  const auto whole = q_learner();
  const auto expected = whole->soft_q(some_episodes(), some_soft_q());
  for (int64_t micro_batch_tokens : {1, 14, 25}) {
    for (bool recompute : {false, true}) {
      LearnerOptions options = q_options(at::kFloat, micro_batch_tokens);
      options.gradient_checkpointing = recompute;
      const auto split = q_learner(options);
      CHECK(same(split->soft_q(some_episodes(), some_soft_q()), expected, 1e-4));
      CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-5);
    }
  }
}

TEST_CASE("an episode without an action says nothing") {
  const auto learner = q_learner();
  const auto output = learner->soft_q({some_episodes()[3]}, some_soft_q());
  CHECK(output[0].q == std::vector<float>{0, 0, 0});
  CHECK(output[0].q_losses == output[0].q);
  CHECK(learner->gradients() == nullptr);
  CHECK(learner->soft_q({}, some_soft_q()).empty());
}

TEST_CASE("soft_q learns what an action brings") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = Learner::create(tiny_config(), 2, q_options(dtype));
    SoftQOptions options = some_soft_q();
    options.policy_coefficient = 0;
    std::vector<SoftQText> texts = {some_episodes()[1]};
    texts[0].rewards = {0, 0, 0, 0, 0, 0, 0, 0, 1};
    const float first = learner->soft_q(texts, options)[0].q_losses[8];
    for (int i = 0; i < 60; ++i) {
      learner->soft_q(texts, options);
      CHECK_FALSE(learner->step(quick_step(), "").skipped);
      learner->update_target(0.1);
    }
    options.with_gradient = false;
    const auto output = learner->soft_q(texts, options);
    CHECK(output[0].targets[8] == 1);
    CHECK(output[0].q_losses[8] < 0.05f * first);
    CHECK(output[0].q[8] == doctest::Approx(1).epsilon(0.3));
  }
}

TEST_CASE("Q heads that are reset hold the policy again, whatever has moved it") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = q_learner(q_options(dtype));
    learner->token_nll(some_texts(), true);
    learner->step(quick_step(), "");
    learner->soft_q(some_episodes(), some_soft_q());
    learner->step(quick_step(), "");
    learner->reset_q_heads();
    for (const Weights* weights : {&learner->masters(), learner->target_masters()}) {
      for (const QHead& head : weights->q) CHECK(at::equal(head.advantage, learner->masters().head));
    }
    SoftQOptions options = some_soft_q();
    options.with_gradient = false;
    for (const SoftQOutput& output : learner->soft_q(some_episodes(), options)) {
      for (float loss : output.policy_losses) CHECK(std::abs(loss) < 1e-6f);
    }
    const auto fresh = Learner::create(tiny_config(Family::qwen3), 1, q_options());
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor value = learner->masters().q[i].value, drawn = fresh->masters().q[i].value;
      CHECK(at::allclose(value / value.norm(), drawn / drawn.norm()));
    }
  }
  CHECK(code_of([] { tiny_learner()->reset_q_heads(); }) == "ERR_CONFIG");
}

TEST_CASE("a resumed learner with Q heads continues bit for bit, and its model is one like any other") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto train = [](Learner& learner, int updates) {
      for (int i = 0; i < updates; ++i) {
        learner.soft_q(some_episodes(), some_soft_q());
        learner.step(quick_step(), "");
        learner.update_target(0.05);
      }
    };
    const auto learner = q_learner(q_options(dtype));
    train(*learner, 2);
    learner->soft_q(some_episodes(), some_soft_q());  // pending
    Scratch directory;
    learner->save(directory.path());
    const auto resumed = Learner::resume(directory.path(), options_of(dtype));  // heads as saved
    CHECK((resumed->options().heads == Heads::q));
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
    CHECK(equal(resumed->gradients()->list(), learner->gradients()->list()));
    train(*learner, 2);
    train(*resumed, 2);
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));

    // The checkpoint is a model with heads or without; an export is without, and gets new ones where asked.
    Scratch exported;
    resumed->export_huggingface(exported.path());
    for (const Scratch* model : {&exported, &directory})
      CHECK((Learner::load(model->path(), options_of())->masters().heads() == Heads::none));
    const auto kept = Learner::load(directory.path(), q_options()),
               fresh = Learner::load(exported.path(), q_options());
    CHECK_FALSE(at::equal(kept->masters().q[0].advantage, kept->masters().head));
    CHECK(at::equal(fresh->masters().q[0].advantage, fresh->masters().head));
  }
}

TEST_CASE("soft_q refuses bad arguments before anything is computed") {
  const auto learner = q_learner();
  const auto refused = [&](const std::function<void(SoftQText&)>& spoil, const std::string& part) {
    auto texts = some_episodes();
    spoil(texts[1]);
    std::string message;
    CHECK(code_of([&] { learner->soft_q(texts, some_soft_q()); }, &message) == "ERR_VALUE");
    CAPTURE(message);
    CHECK(message.find("text 1") != std::string::npos);
    CHECK(message.find(part) != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  refused([](auto& text) { text.prompt.clear(); }, "prompt");
  refused([](auto& text) { text.response[2] = 53; }, "vocabulary");
  refused([](auto& text) { text.weights.pop_back(); }, "weight");
  refused([](auto& text) { text.rewards.push_back(0); }, "rewards");
  refused([&](auto& text) { text.weights[3] = nan; }, "weight");
  refused([&](auto& text) { text.rewards[5] = nan; }, "token 5");
  auto texts = some_episodes();
  texts[1].rewards[2] = nan;  // no action: not read
  learner->soft_q(texts, some_soft_q());

  SoftQOptions options = some_soft_q();
  options.temperature = 0;
  CHECK(code_of([&] { learner->soft_q(some_episodes(), options); }) == "ERR_VALUE");
  std::string message;
  CHECK(code_of([&] { tiny_learner()->soft_q(some_episodes(), some_soft_q()); }, &message) == "ERR_CONFIG");
  CHECK(message.find("no Q heads") != std::string::npos);
}

TEST_CASE("a soft Q loss that is not finite skips the step and changes nothing") {
  const auto learner = q_learner();
  at::NoGradGuard no_grad;
  learner->target_masters()->q[0].value.fill_(std::numeric_limits<float>::infinity());
  const auto before = copies(learner->masters());
  learner->soft_q(some_episodes(), some_soft_q());
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));
}

// Of models small enough that a GPU's other order of sums hardly shows in float32.
TEST_CASE("on a GPU a learner does what it does on the CPU" * doctest::skip(!torch::cuda::is_available())) {
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
