// Losses of preference pairs and of judged responses. The reference is torch's float64 autograd of
// the formulas.
#include "core/loss/preference.h"

#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "test/core/fixtures.h"

using namespace nlac;
using nlac::test::code_of;

namespace {

const at::ScalarType wide = at::kDouble;

const PreferenceLoss losses_of_all_kinds[] = {
    {PreferenceLossKind::sigmoid, 0.1, 0}, {PreferenceLossKind::sigmoid, 1.5, 0.2},
    {PreferenceLossKind::hinge, 0.7, 0},   {PreferenceLossKind::hinge, 0.05, 0},
    {PreferenceLossKind::ipo, 0.3, 0},
};

// The loss of scalar tensors.
at::Tensor formula(const PreferenceLoss& loss, const at::Tensor& chosen, const at::Tensor& rejected,
                   double reference_chosen, double reference_rejected, int64_t chosen_tokens,
                   int64_t rejected_tokens) {
  const at::Tensor up = chosen - reference_chosen, down = rejected - reference_rejected;
  switch (loss.kind) {
    case PreferenceLossKind::hinge: return at::relu(1 - loss.beta * (up - down));
    case PreferenceLossKind::ipo:
      return (up / chosen_tokens - down / rejected_tokens - 1 / (2 * loss.beta)).square();
    default: {
      const at::Tensor x = loss.beta * (up - down);
      return -(1 - loss.label_smoothing) * at::log_sigmoid(x) - loss.label_smoothing * at::log_sigmoid(-x);
    }
  }
}

struct Inputs {
  at::Tensor hidden, head;
  PreferenceInputs pairs;
};

// Pairs of responses of 1 to 9 tokens; one pair of weight 0, one of negative weight.
Inputs make(int64_t vocab, int64_t width) {
  at::manual_seed(static_cast<uint64_t>(vocab));
  Inputs in;
  in.pairs.offsets = {0};
  for (const int64_t tokens : {3, 5, 1, 1, 4, 2, 9, 1, 2, 7})
    in.pairs.offsets.push_back(in.pairs.offsets.back() + tokens);
  const int64_t rows = in.pairs.offsets.back();
  in.hidden = at::randn({rows, width}) * 2;
  in.head = at::randn({vocab, width}) / std::sqrt(static_cast<double>(width));
  in.pairs.targets = at::randint(vocab, {rows}, at::kLong);
  in.pairs.weights = {1, 0.25, 0, -0.5, 2};
  const at::Tensor log_probs =
      in.hidden.mm(in.head.t()).log_softmax(1).gather(1, in.pairs.targets.unsqueeze(1)).squeeze(1);
  for (size_t text = 0; text + 1 < in.pairs.offsets.size(); ++text) {
    const int64_t begin = in.pairs.offsets[text], tokens = in.pairs.offsets[text + 1] - begin;
    const double noise = at::randn({1}).item<double>();
    in.pairs.references.push_back(log_probs.narrow(0, begin, tokens).sum().item<double>() + 2 * noise);
  }
  return in;
}

struct Outcome {
  std::vector<double> losses, log_probs;
  at::Tensor grad_hidden, grad_head;
};

Outcome reference(const Inputs& in, const PreferenceLoss& loss, double temperature) {
  const at::Tensor hidden = in.hidden.to(wide).detach().clone().requires_grad_();
  const at::Tensor head = in.head.to(wide).detach().clone().requires_grad_();
  const at::Tensor log_probs =
      (hidden.mm(head.t()) / temperature).log_softmax(1).gather(1, in.pairs.targets.unsqueeze(1)).squeeze(1);
  const auto& [targets, offsets, references, weights] = in.pairs;
  const auto sum_of = [&](size_t text) {
    return log_probs.narrow(0, offsets[text], offsets[text + 1] - offsets[text]).sum();
  };
  Outcome out;
  at::Tensor total = at::zeros({}, wide);
  for (size_t pair = 0; pair < weights.size(); ++pair) {
    const size_t a = 2 * pair, b = a + 1;
    const at::Tensor one = formula(loss, sum_of(a), sum_of(b), references[a], references[b],
                                   offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b]);
    const bool used = weights[pair] != 0;
    out.losses.push_back(used ? one.item<double>() : 0);
    for (const size_t text : {a, b}) out.log_probs.push_back(used ? sum_of(text).item<double>() : 0);
    if (used) total = total + weights[pair] * one;
  }
  total.backward();
  out.grad_hidden = hidden.grad();
  out.grad_head = head.grad();
  return out;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(wide) - b.to(wide)).norm() / b.to(wide).norm().clamp_min(1e-12)).item<double>();
}

}  // namespace

TEST_CASE("a pair's loss and slopes equal float64 autograd's, far from the origin too") {
  int flat = 0;
  for (const PreferenceLoss& loss : losses_of_all_kinds) {
    for (const double margin : {-1e4, -300.0, -3.0, -0.2, 0.0, 0.4, 1.0, 20.0, 700.0, 1e4}) {
      CAPTURE(static_cast<int>(loss.kind));
      CAPTURE(margin);
      const at::Tensor chosen = at::full({}, margin - 12.5, wide).requires_grad_();
      const at::Tensor rejected = at::full({}, -7.25, wide).requires_grad_();
      const at::Tensor expected = formula(loss, chosen, rejected, -12.5, -7.25, 4, 6);
      expected.backward();
      const PreferenceOutcome got = preference_outcome(loss, {margin - 12.5, -12.5, 4}, {-7.25, -7.25, 6});
      const auto near = [](double a, const at::Tensor& b) {
        return std::abs(a - b.item<double>()) <= 1e-12 * std::max(1.0, std::abs(b.item<double>()));
      };
      CHECK(near(got.loss, expected));
      CHECK(near(got.chosen_slope, chosen.grad()));
      CHECK(near(got.rejected_slope, rejected.grad()));
      flat += got.chosen_slope == 0;
    }
  }
  CHECK(flat > 0);
}

TEST_CASE("a judged response's loss and slope are exact for logits up to 1e4 and any label") {
  for (const double logit : {-1e4, -80.0, -2.0, -1e-3, 0.0, 0.3, 5.0, 40.0, 1e4}) {
    for (const double label : {0.0, 0.1, 0.5, 1.0}) {
      CAPTURE(logit);
      CAPTURE(label);
      const at::Tensor x = at::full({}, logit, wide).requires_grad_();
      const at::Tensor expected =
          at::binary_cross_entropy_with_logits(x, at::full({}, label, wide), {}, {}, at::Reduction::None);
      expected.backward();
      const JudgementOutcome got = judgement_outcome(logit, label);
      CHECK(std::abs(got.loss - expected.item<double>()) <= 1e-12 * std::max(1.0, std::abs(logit)));
      CHECK(std::abs(got.slope - x.grad().item<double>()) <= 1e-12);
      CHECK(got.loss >= 0);
    }
  }
  // A right and certain answer still has its small loss and slope, which 1 - σ would round to 0.
  CHECK(judgement_outcome(40, 1).loss == doctest::Approx(std::exp(-40.0)).epsilon(1e-9));
  CHECK(judgement_outcome(40, 1).slope == doctest::Approx(-std::exp(-40.0)).epsilon(1e-9));
  CHECK(judgement_outcome(-40, 0).loss == doctest::Approx(std::exp(-40.0)).epsilon(1e-9));
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(judgement_outcome(infinity, 1).loss == 0);
  CHECK(std::isinf(judgement_outcome(infinity, 0).loss));
}

TEST_CASE("pairs with the matrix fused in equal float64 autograd's") {
  struct Precision {
    at::ScalarType type;
    double loss, gradient;
  };
  for (const auto& [type, precision, gradient_precision] :
       {Precision{wide, 1e-11, 1e-11}, Precision{at::kFloat, 1e-5, 1e-5},
        Precision{at::kBFloat16, 1e-4, 1e-2}}) {
    for (const PreferenceLoss& loss : losses_of_all_kinds) {
      for (const int64_t workspace : {0, 1}) {
        CAPTURE(at::toString(type));
        CAPTURE(static_cast<int>(loss.kind));
        Inputs in = make(211, 24);
        in.hidden = in.hidden.to(type);
        in.head = in.head.to(type);
        const Outcome expected = reference(in, loss, 1);
        at::NoGradGuard no_grad;
        const at::Tensor grad_head = at::zeros(in.head.sizes(), type == wide ? wide : at::kFloat);
        const PreferenceResult got =
            linear_token_preference(in.hidden, in.head, in.pairs, loss, {1, true, workspace}, grad_head);
        REQUIRE(got.losses.size() == expected.losses.size());
        REQUIRE(got.log_probs.size() == expected.log_probs.size());
        for (size_t i = 0; i < got.losses.size(); ++i)
          CHECK(std::abs(got.losses[i] - expected.losses[i]) <=
                precision * std::max(1.0, std::abs(expected.losses[i])));
        for (size_t i = 0; i < got.log_probs.size(); ++i)
          CHECK(std::abs(got.log_probs[i] - expected.log_probs[i]) <= precision * 30);
        CHECK((got.grad_hidden.scalar_type() == type));
        CHECK(distance(got.grad_hidden, expected.grad_hidden) < gradient_precision);
        CHECK(distance(grad_head, expected.grad_head) < gradient_precision);
        // The pair of weight 0.
        CHECK(got.grad_hidden.slice(0, in.pairs.offsets[4], in.pairs.offsets[6]).eq(0).all().item<bool>());

        const PreferenceResult alone =
            linear_token_preference(in.hidden, in.head, in.pairs, loss, {1, false, workspace}, {});
        CHECK(alone.losses == got.losses);
        CHECK_FALSE(alone.grad_hidden.defined());
      }
    }
  }
}

TEST_CASE("a temperature divides the logits of pairs, and gradients add up") {
  const Inputs in = make(97, 16);
  const PreferenceLoss loss{PreferenceLossKind::sigmoid, 0.5, 0};
  const Outcome expected = reference(in, loss, 0.7);
  at::NoGradGuard no_grad;
  const at::Tensor grad_head = at::ones(in.head.sizes());
  const PreferenceResult got =
      linear_token_preference(in.hidden, in.head, in.pairs, loss, {0.7, true, 0}, grad_head);
  CHECK(got.losses[0] == doctest::Approx(expected.losses[0]).epsilon(1e-5));
  CHECK(distance(grad_head - 1, expected.grad_head) < 1e-4);
}

TEST_CASE("logits of 1e4 give finite pair losses, and NaN gives no gradient of the matrix") {
  at::NoGradGuard no_grad;
  for (const PreferenceLoss& loss : losses_of_all_kinds) {
    Inputs in = make(61, 8);
    in.hidden.mul_(2e3);
    const at::Tensor grad_head = at::zeros(in.head.sizes());
    PreferenceResult got =
        linear_token_preference(in.hidden, in.head, in.pairs, loss, {1, true, 0}, grad_head);
    for (const double value : got.losses) CHECK(std::isfinite(value));
    CHECK(at::isfinite(got.grad_hidden).all().item<bool>());
    CHECK(at::isfinite(grad_head).all().item<bool>());

    in.hidden[0][0] = std::numeric_limits<float>::quiet_NaN();
    grad_head.zero_();
    got = linear_token_preference(in.hidden, in.head, in.pairs, loss, {1, true, 0}, grad_head);
    CHECK(std::isnan(got.losses[0]));
    CHECK(got.grad_hidden.isnan().all().item<bool>());
    CHECK(grad_head.eq(0).all().item<bool>());
  }
}

TEST_CASE("invalid arguments of pairs are rejected") {
  at::NoGradGuard no_grad;
  const PreferenceLoss good{PreferenceLossKind::sigmoid, 0.1, 0};
  const auto code = [&](const std::function<void(Inputs&, PreferenceLoss&)>& spoil) {
    Inputs in = make(31, 8);
    PreferenceLoss loss = good;
    spoil(in, loss);
    return code_of([&] { linear_token_preference(in.hidden, in.head, in.pairs, loss, {}, {}); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(code([](auto&, auto&) {}) == "none");
  CHECK(code([](auto&, auto& loss) { loss.beta = 0; }) == "ERR_VALUE");
  CHECK(code([&](auto&, auto& loss) { loss.beta = nan; }) == "ERR_VALUE");
  CHECK(code([](auto&, auto& loss) { loss.label_smoothing = 0.5; }) == "ERR_VALUE");
  CHECK(code([](auto&, auto& loss) { loss = {PreferenceLossKind::ipo, 1, 0.1}; }) == "ERR_VALUE");
  CHECK(code([](auto& in, auto&) { in.pairs.offsets.pop_back(); }) == "ERR_SHAPE");
  CHECK(code([](auto& in, auto&) { in.pairs.offsets.back() += 1; }) == "ERR_SHAPE");
  CHECK(code([](auto& in, auto&) { in.pairs.offsets[1] = 0; }) == "ERR_SHAPE");
  CHECK(code([](auto& in, auto&) { in.pairs.offsets.clear(); }) == "ERR_SHAPE");
  CHECK(code([](auto& in, auto&) { in.pairs.references.pop_back(); }) == "ERR_SHAPE");
  CHECK(code([](auto& in, auto&) { in.pairs.weights.push_back(1); }) == "ERR_SHAPE");
  CHECK(code([&](auto& in, auto&) { in.pairs.references[1] = nan; }) == "ERR_VALUE");
  CHECK(code([&](auto& in, auto&) { in.pairs.weights[0] = nan; }) == "ERR_VALUE");
  CHECK(code([](auto& in, auto&) { in.pairs.targets[0] = 31; }) == "ERR_INDEX");
}

TEST_CASE("no pairs give no losses") {
  at::NoGradGuard no_grad;
  Inputs in = make(31, 8);
  in.hidden = in.hidden.narrow(0, 0, 0);
  in.pairs = {in.pairs.targets.narrow(0, 0, 0), {0}, {}, {}};
  const PreferenceResult got = linear_token_preference(in.hidden, in.head, in.pairs, {}, {}, {});
  CHECK(got.losses.empty());
  CHECK(got.grad_hidden.sizes() == at::IntArrayRef({0, 8}));
}
