#include "core/loss/soft_q.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <utility>

#include "core/loss/linear_loss.h"
#include "test/core/fixtures.h"
#include "test/core/loss/soft_q_reference.h"

using namespace nlac;
using namespace nlac::test;

namespace {

struct Problem {
  SoftQSide online, target;
  SoftQRows rows;
};

Problem problem_of(int64_t rows, int64_t vocab, int64_t hidden, at::ScalarType type, double scale = 1) {
  at::manual_seed(static_cast<uint64_t>(rows * 1000 + vocab));
  const auto normal = [&](at::IntArrayRef shape) { return at::randn(shape, at::kDouble).to(type); };
  const auto side = [&] {
    SoftQSide made{normal({rows, hidden}).mul_(scale), normal({vocab, hidden}), {}};
    for (QHead& head : made.q) head = {normal({vocab, hidden}), normal({1, hidden})};
    return made;
  };
  Problem problem{side(), side(), {}};
  const auto real = at::TensorOptions(type == at::kDouble ? at::kDouble : at::kFloat);
  problem.rows.actions = at::randint(vocab, {rows}, at::kLong);
  problem.rows.rewards = at::randn({rows}, real);
  problem.rows.row_weights = at::randn({rows}, real);
  problem.rows.terminal = at::rand({rows}) < 0.3;
  problem.rows.terminal[rows - 1] = true;
  return problem;
}

SoftQGradients zeros_for(const SoftQSide& side) {
  const at::ScalarType type = side.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto zeros = [&](const at::Tensor& like) { return at::zeros(like.sizes(), type); };
  SoftQGradients gradients{zeros(side.head), {}};
  for (size_t i = 0; i < 2; ++i) gradients.q[i] = {zeros(side.q[i].advantage), zeros(side.q[i].value)};
  return gradients;
}

double difference(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  const double scale = 1 + expected.abs().max().item<double>();
  return (actual.to(at::kDouble) - expected).abs().max().item<double>() / scale;
}

void check_against_reference(const Problem& problem, const SoftQOptions& options, double within) {
  const SoftQGradients gradients = zeros_for(problem.online);
  const SoftQResult result = linear_soft_q(problem.online, problem.target, problem.rows, options, gradients);
  const SoftQReference expected = soft_q_reference(problem.online, problem.target, problem.rows, options);
  CHECK(difference(result.q_losses, expected.q_losses) < within);
  CHECK(difference(result.policy_losses, expected.policy_losses) < within);
  CHECK(difference(result.q, expected.q) < within);
  CHECK(difference(result.targets, expected.targets) < within);
  CHECK(difference(result.entropies, expected.entropies) < within);
  // The gradient has the hidden states' type.
  const double rounding = problem.online.hidden.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0;
  CHECK(difference(result.grad_hidden, expected.grad_hidden) < within + rounding);
  CHECK(difference(gradients.head, expected.grad_head) < within);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(difference(gradients.q[i].advantage, expected.grad_q[i].advantage) < within);
    CHECK(difference(gradients.q[i].value, expected.grad_q[i].value) < within);
  }
}

}  // namespace

TEST_CASE("soft Q equals float64 autograd in every result and gradient") {
  at::NoGradGuard no_grad;
  SoftQOptions options;
  options.temperature = 0.3;
  options.discount = 0.9;
  options.q_coefficient = 0.7;
  options.policy_coefficient = 1.3;
  for (const auto& [rows, vocab, hidden] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 7, 3}, {5, 2, 4}, {13, 53, 8}}) {
    CAPTURE(rows);
    CAPTURE(vocab);
    check_against_reference(problem_of(rows, vocab, hidden, at::kDouble), options, 1e-12);
    check_against_reference(problem_of(rows, vocab, hidden, at::kFloat), options, 1e-5);
    check_against_reference(problem_of(rows, vocab, hidden, at::kBFloat16), options, 1e-5);
  }
}

TEST_CASE("a target may depend on the next chunk of rows") {
  at::NoGradGuard no_grad;
  const int64_t rows = 220, vocab = 50021;
  REQUIRE(default_workspace(at::kCPU, 2) < 2 * rows * vocab * 4);  // more than one chunk
  for (const auto& [type, within] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-4}}) {
    Problem problem = problem_of(rows, vocab, 4, type);
    problem.rows.terminal.fill_(false);
    problem.rows.terminal[rows - 1] = true;
    check_against_reference(problem, {}, within);
  }
}

TEST_CASE("soft Q: coefficients of 0 omit their gradients") {
  at::NoGradGuard no_grad;
  const Problem problem = problem_of(6, 11, 4, at::kDouble);
  for (const auto& [q, policy] : {std::pair{0.0, 1.0}, {1.0, 0.0}, {0.0, 0.0}}) {
    SoftQOptions options;
    options.q_coefficient = q;
    options.policy_coefficient = policy;
    check_against_reference(problem, options, 1e-12);
  }
  SoftQOptions options;
  options.with_gradient = false;
  const SoftQResult result = linear_soft_q(problem.online, problem.target, problem.rows, options, {});
  CHECK_FALSE(result.grad_hidden.defined());
  CHECK(difference(result.q, soft_q_reference(problem.online, problem.target, problem.rows, options).q) <
        1e-12);
}

TEST_CASE("soft Q: detached, the heads have their gradients and the hidden states that of the policy") {
  at::NoGradGuard no_grad;
  const Problem problem = problem_of(6, 11, 4, at::kDouble);
  SoftQOptions options, policy_alone;
  options.detached = true;
  policy_alone.q_coefficient = 0;
  const SoftQGradients gradients = zeros_for(problem.online);
  const SoftQResult result = linear_soft_q(problem.online, problem.target, problem.rows, options, gradients);
  const auto reference = [&](const SoftQOptions& of) {
    return soft_q_reference(problem.online, problem.target, problem.rows, of);
  };
  const SoftQReference whole = reference(options), expected = reference(policy_alone);
  CHECK(difference(whole.grad_hidden, expected.grad_hidden) > 1e-3);
  CHECK(difference(result.grad_hidden, expected.grad_hidden) < 1e-12);
  CHECK(difference(gradients.head, whole.grad_head) < 1e-12);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(difference(gradients.q[i].advantage, whole.grad_q[i].advantage) < 1e-12);
    CHECK(difference(gradients.q[i].value, whole.grad_q[i].value) < 1e-12);
  }
}

TEST_CASE("the value of a head is the soft value of its Q") {
  at::NoGradGuard no_grad;
  const Problem problem = problem_of(9, 31, 5, at::kDouble);
  const double alpha = 0.05;
  const QHead& head = problem.online.q[0];
  const at::Tensor& hidden = problem.online.hidden;
  const at::Tensor value = hidden.mm(head.value.t());
  const at::Tensor q = value + alpha * hidden.mm(head.advantage.t()).log_softmax(1);
  CHECK(difference(alpha * (q / alpha).logsumexp(1), value.squeeze(1)) < 1e-12);

  // Equal twins act as one: their minimum is either of them, and so is their policy.
  Problem tied = problem;
  for (SoftQSide* side : {&tied.online, &tied.target}) {
    side->q[1] = side->q[0];
    side->q[0].advantage.copy_(side->head);
  }
  SoftQOptions options;
  options.temperature = alpha;
  check_against_reference(tied, options, 1e-12);
  const SoftQGradients gradients = zeros_for(tied.online);
  const SoftQResult result = linear_soft_q(tied.online, tied.target, tied.rows, options, gradients);
  CHECK(result.policy_losses.abs().max().item<double>() < 1e-12);
  CHECK(at::equal(gradients.q[0].advantage, gradients.q[1].advantage));
}

TEST_CASE("logits of ±1e4 give finite results") {
  at::NoGradGuard no_grad;
  const Problem problem = problem_of(7, 19, 4, at::kFloat, 1e4);
  SoftQOptions options;
  options.temperature = 0.01;
  const SoftQGradients gradients = zeros_for(problem.online);
  const SoftQResult result = linear_soft_q(problem.online, problem.target, problem.rows, options, gradients);
  for (const at::Tensor& tensor :
       {result.q_losses, result.policy_losses, result.q, result.targets, result.entropies, result.grad_hidden,
        gradients.head, gradients.q[1].advantage, gradients.q[1].value})
    CHECK(at::isfinite(tensor).all().item<bool>());
}

TEST_CASE("non-finite values show in their row, and in the row before if it bootstraps from it") {
  at::NoGradGuard no_grad;
  Problem problem = problem_of(6, 11, 4, at::kFloat);
  problem.rows.terminal = at::tensor({0, 1, 0, 0, 0, 1}).to(at::kBool);
  problem.rows.rewards[4] = std::numeric_limits<float>::quiet_NaN();
  SoftQOptions options;
  options.with_gradient = false;
  const at::Tensor finite =
      at::isfinite(linear_soft_q(problem.online, problem.target, problem.rows, options, {}).q_losses);
  CHECK(at::equal(finite, at::tensor({1, 1, 1, 1, 0, 1}).to(at::kBool)));
  problem.target.hidden[4].fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor spread =
      at::isfinite(linear_soft_q(problem.online, problem.target, problem.rows, options, {}).q_losses);
  CHECK(at::equal(spread, at::tensor({1, 1, 1, 0, 0, 1}).to(at::kBool)));
}

TEST_CASE("soft Q of no rows is empty; mismatched arguments are rejected") {
  at::NoGradGuard no_grad;
  const Problem problem = problem_of(3, 5, 4, at::kFloat);
  const auto narrow = [](const SoftQSide& side) {
    return SoftQSide{side.hidden.narrow(0, 0, 0), side.head, side.q};
  };
  const SoftQRows none{problem.rows.actions.narrow(0, 0, 0), problem.rows.rewards.narrow(0, 0, 0),
                       problem.rows.terminal.narrow(0, 0, 0), problem.rows.row_weights.narrow(0, 0, 0)};
  const SoftQGradients gradients = zeros_for(problem.online);
  CHECK(linear_soft_q(narrow(problem.online), narrow(problem.target), none, {}, gradients).q.numel() == 0);

  const auto run = [&](const Problem& spoiled, const SoftQOptions& options) {
    linear_soft_q(spoiled.online, spoiled.target, spoiled.rows, options, zeros_for(problem.online));
  };
  Problem spoiled = problem;
  spoiled.target.hidden = at::zeros({2, 4});
  CHECK_REFUSED(run(spoiled, {}), "ERR_SHAPE", "θ̄");
  spoiled = problem;
  spoiled.online.q[1].advantage = at::zeros({4, 4});
  CHECK_REFUSED(run(spoiled, {}), "ERR_SHAPE", "advantage");
  spoiled = problem;
  spoiled.rows.rewards = at::zeros({4});
  CHECK_REFUSED(run(spoiled, {}), "ERR_SHAPE", "per row");
  for (const double temperature : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    SoftQOptions options;
    options.temperature = temperature;
    CHECK_REFUSED(run(problem, options), "ERR_VALUE", "temperature");
  }
  for (double SoftQOptions::* field :
       {&SoftQOptions::discount, &SoftQOptions::q_coefficient, &SoftQOptions::policy_coefficient}) {
    for (const double value : {-0.1, std::numeric_limits<double>::quiet_NaN()}) {
      SoftQOptions options;
      options.*field = value;
      CHECK_REFUSED(run(problem, options), "ERR_VALUE", "must be");
    }
  }
}
