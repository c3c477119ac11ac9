// The losses on targets: NLL with z-loss and entropy, log probabilities with an external gradient,
// the clipped surrogate. The reference is torch's float64 autograd of the formulas.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "core/loss/linear_loss.h"

using namespace nlac;

namespace {

const at::ScalarType wide = at::kDouble;

struct Inputs {
  at::Tensor hidden, weight, targets, weights, old_log_probs, advantages, reference_log_probs, grad_log_probs;

  Inputs to(at::ScalarType type) const {
    Inputs in = *this;
    in.hidden = hidden.to(type);
    in.weight = weight.to(type);
    return in;
  }
};

Inputs make(int64_t rows, int64_t vocab, int64_t width, double size = 2) {
  at::manual_seed(static_cast<uint64_t>(rows * 1000 + vocab));
  Inputs in;
  in.hidden = at::randn({rows, width}) * size;
  in.weight = at::randn({vocab, width}) / std::sqrt(static_cast<double>(width));
  in.targets = at::randint(vocab, {rows}, at::kLong);
  in.weights = at::rand({rows}) + 0.1;
  const at::Tensor log_probs =
      at::log_softmax(in.hidden.mm(in.weight.t()), -1).gather(1, in.targets.unsqueeze(1));
  // Ratios on both sides of the clip range, advantages of both signs.
  in.old_log_probs = log_probs.squeeze(1) + at::randn({rows}) * 0.4;
  in.advantages = at::randn({rows});
  in.reference_log_probs = log_probs.squeeze(1) + at::randn({rows}) * 0.3;
  in.grad_log_probs = at::randn({rows});
  return in;
}

enum class Loss { nll, log_probs, surrogate };

struct Settings {
  Loss loss = Loss::nll;
  double temperature = 1;
  TokenOptions token;
  SurrogateOptions surrogate;
  double logit_cap = 0;
};

const Settings all_settings[] = {
    {Loss::nll, 1, {}, {}},
    {Loss::nll, 0.7, {1e-2, 0, true}, {}},
    {Loss::nll, 1.5, {1e-3, 0.05, true}, {}},
    {Loss::nll, 1, {0, -0.2, false}, {}},
    {Loss::log_probs, 1, {0, 0, true}, {}},
    {Loss::log_probs, 2, {}, {}},
    {Loss::surrogate, 1, {}, {}},
    {Loss::surrogate, 1, {}, {0.2, 0.28, 0.04}},
    {Loss::surrogate, 0.8, {1e-3, 0.01, true}, {0.1, 0.4, 0.1}},
    {Loss::surrogate, 1, {}, {1, 1e6, 0}},
    {Loss::nll, 1.5, {1e-3, 0.05, true}, {}, 2.5},
    {Loss::log_probs, 1, {0, 0, true}, {}, 3},
    {Loss::surrogate, 0.8, {1e-3, 0.01, true}, {0.1, 0.4, 0.1}, 12},
};

struct Outcome {
  at::Tensor losses, grad_hidden, grad_head, log_probs, entropies, ratios, clipped;
};

Outcome reference(const Inputs& given, const Settings& settings) {
  const Inputs in = given.to(wide);
  const at::Tensor hidden = in.hidden.detach().clone().requires_grad_();
  const at::Tensor weight = in.weight.detach().clone().requires_grad_();
  at::Tensor logits = hidden.mm(weight.t());
  if (settings.logit_cap > 0) logits = settings.logit_cap * at::tanh(logits / settings.logit_cap);
  logits = logits / settings.temperature;
  const at::Tensor log_q = at::log_softmax(logits, -1);
  const at::Tensor log_prob = log_q.gather(1, in.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(log_q.exp() * log_q).sum(-1);
  Outcome out;
  at::Tensor loss;
  if (settings.loss == Loss::nll) {
    loss = -log_prob;
  } else if (settings.loss == Loss::log_probs) {
    loss = in.grad_log_probs.to(wide) * log_prob;
  } else {
    const auto& [low, high, kl] = settings.surrogate;
    const at::Tensor ratio = (log_prob - in.old_log_probs.to(wide)).exp(),
                     advantages = in.advantages.to(wide);
    const at::Tensor held = ratio.clamp(1 - low, 1 + high);
    loss = -at::minimum(ratio * advantages, held * advantages);
    const at::Tensor d = in.reference_log_probs.to(wide) - log_prob;
    loss = loss + kl * (d.exp() - d - 1);
    out.ratios = ratio.detach();
    out.clipped = (((ratio > 1 + high).logical_and(advantages > 0)).to(at::kInt) -
                   ((ratio < 1 - low).logical_and(advantages < 0)).to(at::kInt));
  }
  loss = loss + settings.token.z_loss * logits.logsumexp(-1).square() -
         settings.token.entropy_coefficient * entropy;
  (loss * in.weights.to(wide)).sum().backward();
  const auto masked = [&](const at::Tensor& t) {
    return t.defined() ? t.detach().masked_fill(in.weights == 0, 0) : t;
  };
  out.losses = masked(loss), out.log_probs = masked(log_prob), out.entropies = masked(entropy);
  out.ratios = masked(out.ratios), out.clipped = masked(out.clipped);
  out.grad_hidden = hidden.grad(), out.grad_head = weight.grad();
  return out;
}

Outcome ours(const Inputs& in, const Settings& settings, bool with_gradient = true,
             int64_t workspace_bytes = 0) {
  const auto type = in.hidden.scalar_type() == wide ? wide : at::kFloat;
  const at::Tensor grad_head = at::zeros(in.weight.sizes(), type);
  const LossOptions options{settings.temperature, with_gradient, workspace_bytes, false, -1,
                            settings.logit_cap};
  LossResult got;
  if (settings.loss == Loss::nll) {
    got = linear_token_nll(in.hidden, in.weight, in.targets, in.weights, settings.token, options, grad_head);
  } else if (settings.loss == Loss::log_probs) {
    got = linear_token_log_probs(in.hidden, in.weight, in.targets, in.weights, in.grad_log_probs,
                                 settings.token.with_entropies, options, grad_head);
  } else {
    got = linear_token_surrogate(in.hidden, in.weight,
                                 {in.targets, in.old_log_probs, in.advantages, in.reference_log_probs},
                                 in.weights, settings.surrogate, settings.token, options, grad_head);
  }
  return {got.losses, got.grad_hidden, grad_head, got.log_probs, got.entropies, got.ratios, got.clipped};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const double difference = (a.to(wide) - b.to(wide)).norm().item<double>(),
               size = b.to(wide).norm().item<double>();
  return size < 1e-12 ? difference : difference / size;
}

double largest(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(wide) - b.to(wide)).abs().max().item<double>();
}

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(error.code()) + ": " + error.what();
  }
  return "no error";
}

void check_agreement(const Outcome& got, const Outcome& expected, const Settings& settings,
                     double precision) {
  if (settings.loss == Loss::log_probs) {
    REQUIRE_FALSE(got.losses.defined());
  } else {
    REQUIRE(largest(got.losses, expected.losses) < precision);
  }
  REQUIRE(largest(got.log_probs, expected.log_probs) < precision);
  REQUIRE(got.entropies.defined() == settings.token.with_entropies);
  if (settings.token.with_entropies) REQUIRE(largest(got.entropies, expected.entropies) < precision);
  REQUIRE(got.ratios.defined() == (settings.loss == Loss::surrogate));
  if (settings.loss == Loss::surrogate) {
    REQUIRE(largest(got.ratios, expected.ratios) < precision);
    REQUIRE(at::equal(got.clipped, expected.clipped));
  }
}

}  // namespace

TEST_CASE("losses on targets and their gradients agree with float64 autograd") {
  for (const int64_t rows : {0, 1, 13}) {
    for (const int64_t vocab : {1, 2, 97, 1000}) {
      for (const int64_t width : {1, 17, 64}) {
        for (const Settings& settings : all_settings) {
          CAPTURE(rows);
          CAPTURE(vocab);
          CAPTURE(width);
          CAPTURE(&settings - all_settings);
          Inputs in = make(rows, vocab, width);
          for (const int mask : {0, 1, 2}) {
            if (mask == 1 && rows > 1) in.weights.slice(0, 0, rows, 2).zero_();
            if (mask == 2) in.weights.zero_();
            const Outcome expected = reference(in, settings);
            const Outcome single = ours(in, settings), dual = ours(in.to(wide), settings);
            check_agreement(single, expected, settings, 2e-5);
            check_agreement(dual, expected, settings, 1e-11);
            REQUIRE(distance(single.grad_hidden, expected.grad_hidden) < 1e-5);
            REQUIRE(distance(single.grad_head, expected.grad_head) < 1e-5);
            REQUIRE(distance(dual.grad_hidden, expected.grad_hidden) < 1e-11);
            REQUIRE(distance(dual.grad_head, expected.grad_head) < 1e-11);
            const Outcome alone = ours(in, settings, false);
            REQUIRE(largest(alone.log_probs, single.log_probs) < 1e-6);
            REQUIRE_FALSE(alone.grad_hidden.defined());
            REQUIRE(alone.grad_head.count_nonzero().item<int64_t>() == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("the surrogate's test covers every case: clipped above, clipped below, free, with either sign") {
  const Inputs in = make(400, 97, 17);
  const Outcome got = ours(in, all_settings[7]);
  for (const int flag : {-1, 0, 1}) CHECK((got.clipped == flag).sum().item<int64_t>() > 10);
  // A clipped token has only the KL's gradient.
  Settings without = all_settings[7];
  without.surrogate.kl_coefficient = 0;
  const at::Tensor held = ours(in, without).grad_hidden.index_select(0, got.clipped.nonzero().squeeze(1));
  CHECK(held.abs().max().item<double>() == 0);
}

TEST_CASE("the gradients of losses on targets agree with central differences") {
  const Inputs in = make(5, 37, 6).to(wide);
  const at::Tensor direction = at::randn_like(in.hidden), across = at::randn_like(in.weight);
  for (const Settings& settings : all_settings) {
    const auto objective = [&](double step) {
      Inputs moved = in;
      moved.hidden = in.hidden + step * direction;
      moved.weight = in.weight + step * across;
      const Outcome at = ours(moved, settings, false);
      const at::Tensor losses =
          settings.loss == Loss::log_probs ? in.grad_log_probs * at.log_probs : at.losses;
      return (losses * in.weights).sum().item<double>();
    };
    const Outcome got = ours(in, settings);
    const double slope =
        ((got.grad_hidden * direction).sum() + (got.grad_head * across).sum()).item<double>();
    CHECK((objective(1e-5) - objective(-1e-5)) / 2e-5 == doctest::Approx(slope).epsilon(1e-6));
  }
}

TEST_CASE("bfloat16 inputs: float32 log probabilities, gradients to bfloat16's precision, any chunks") {
  for (const Settings& settings : all_settings) {
    Inputs in = make(300, 1003, 33).to(at::kBFloat16);
    in.weights.slice(0, 0, 300, 3).zero_();
    const Outcome expected = reference(in, settings), got = ours(in, settings);
    REQUIRE(largest(got.log_probs, expected.log_probs) < 2e-5);
    REQUIRE((got.grad_hidden.scalar_type() == at::kBFloat16));
    REQUIRE(distance(got.grad_hidden, expected.grad_hidden) < 6e-3);
    REQUIRE(distance(got.grad_head, expected.grad_head) < 4e-3);
    for (const int64_t bytes : {1, 1 << 19}) {
      const Outcome part = ours(in, settings, true, bytes);
      REQUIRE(at::equal(part.log_probs, got.log_probs));
      REQUIRE(at::equal(part.grad_hidden, got.grad_hidden));
      REQUIRE(distance(part.grad_head, got.grad_head) < 1e-5);
    }
  }
}

TEST_CASE("logits of ±10,000 on targets give finite losses and gradients") {
  Inputs in = make(8, 200, 1);
  in.hidden = at::full({8, 1}, 100.0f);
  in.weight[0] = 100.0f;
  in.weight[1] = -100.0f;
  in.targets = at::tensor({0, 1, 0, 1, 2, 3, 4, 5}, at::kLong);
  for (const Settings& settings : all_settings) {
    if (settings.surrogate.clip_high > 1) continue;  // unbounded, its ratios reach e^20000
    in.old_log_probs = reference(in, settings).log_probs.to(at::kFloat);
    in.reference_log_probs = in.old_log_probs;
    const Outcome exact = reference(in, settings), got = ours(in, settings);
    CHECK(largest(got.log_probs, exact.log_probs) < 1e-2);
    CHECK(distance(got.grad_hidden, exact.grad_hidden) < 2e-3);
    for (const at::Tensor& t : {got.log_probs, got.grad_hidden, got.grad_head}) {
      CHECK(at::isfinite(t).all().item<bool>());
    }
  }
}

TEST_CASE("a masked row's inputs are not read, and a used row's non-finite inputs are reported") {
  const Settings settings = all_settings[8];
  Inputs good = make(6, 50, 5);
  good.weights[2] = 0;
  const Outcome expected = ours(good, settings);
  const double infinity = std::numeric_limits<double>::infinity();
  const std::pair<const char*, at::Tensor Inputs::*> inputs[] = {
      {"old log probabilities", &Inputs::old_log_probs},
      {"advantages", &Inputs::advantages},
      {"reference log probabilities", &Inputs::reference_log_probs},
  };
  for (const auto& [name, tensor] : inputs) {
    for (const double bad : {std::nan(""), infinity, -infinity}) {
      Inputs in = good;
      in.*tensor = (good.*tensor).clone();
      (in.*tensor)[2] = bad;
      CHECK(at::equal(ours(in, settings).grad_head, expected.grad_head));
      (in.*tensor)[3] = bad;
      CHECK(error_of([&] { ours(in, settings); }) == std::string("ERR_VALUE: ") + name + " must be finite");
    }
  }
  Inputs in = good;
  in.targets = good.targets.clone();
  in.targets[2] = -1;
  in.hidden = good.hidden.clone();
  in.hidden[2] = std::nan("");
  const Outcome masked = ours(in, settings);
  CHECK(at::equal(masked.grad_head, expected.grad_head));
  for (const at::Tensor& t :
       {masked.losses, masked.log_probs, masked.entropies, masked.ratios, masked.clipped}) {
    CHECK(t[2].item<double>() == 0);
  }
  in.targets[3] = 50;
  CHECK(error_of([&] { ours(in, settings); }).starts_with("ERR_INDEX"));
  in.targets[3] = -1;
  CHECK(error_of([&] { ours(in, settings); }).starts_with("ERR_INDEX"));
}

TEST_CASE("the gradient at bfloat16 hidden states is available before rounding") {
  for (const int64_t masked : {0, 3}) {
    Inputs in = make(9, 40, 16).to(at::kBFloat16);
    in.weights.narrow(0, 0, masked).zero_();
    const auto gradient = [&](bool real) {
      const LossOptions options{1, true, 0, real};
      return linear_token_nll(in.hidden, in.weight, in.targets, in.weights, {}, options, {}).grad_hidden;
    };
    const at::Tensor rounded = gradient(false), real = gradient(true);
    CHECK((rounded.scalar_type() == at::kBFloat16));
    CHECK((real.scalar_type() == at::kFloat));
    CHECK(at::equal(real.to(at::kBFloat16), rounded));
    CHECK_FALSE(at::equal(real, rounded.to(at::kFloat)));
  }
}

TEST_CASE("mismatched arguments of losses on targets are rejected with a code") {
  const Inputs good = make(4, 10, 6);
  const auto code = [&](const auto& change) {
    Inputs in = good;
    Settings settings = all_settings[8];
    change(in, settings);
    return error_of([&] { ours(in, settings); }).substr(0, 9);
  };
  CHECK(code([](auto&, auto&) {}) == "no error");
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK(code([&](auto&, Settings& settings) { settings.temperature = bad; }) == "ERR_VALUE");
    CHECK(code([&](auto&, Settings& settings) { settings.token.z_loss = bad; }) == "ERR_VALUE");
    CHECK(code([&](auto&, Settings& settings) { settings.surrogate.clip_low = bad; }) == "ERR_VALUE");
    CHECK(code([&](auto&, Settings& settings) { settings.surrogate.clip_high = bad; }) == "ERR_VALUE");
    CHECK(code([&](auto&, Settings& settings) { settings.surrogate.kl_coefficient = bad; }) == "ERR_VALUE");
  }
  CHECK(code([](auto&, Settings& settings) { settings.surrogate.clip_low = 1.5; }) == "ERR_VALUE");
  CHECK(code([](auto&, Settings& settings) { settings.token.entropy_coefficient = std::nan(""); }) ==
        "ERR_VALUE");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::zeros({4}); }) == "ERR_VALUE");
  CHECK(code([](Inputs& in, auto&) { in.advantages = at::zeros({4}, at::kLong); }) == "ERR_VALUE");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.weights = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.advantages = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.old_log_probs = at::zeros({5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.reference_log_probs = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, Settings& settings) {
          in.reference_log_probs = at::Tensor();
          settings.surrogate.kl_coefficient = 0;
        }) == "no error");
  CHECK(code([](Inputs& in, auto&) { in.weight = at::zeros({0, 6}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.advantages = in.advantages.to(at::kMeta); }) == "ERR_DEVIC");
}
