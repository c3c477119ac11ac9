#include "core/loss/soft_q.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/loss/linear_loss.h"
#include "core/loss/products.h"

namespace nlac {
namespace {

// Tensors of logits' size that a chunk holds at its peak.
constexpr int64_t tensors_at_once = 8;

// log softmax(hidden · matrixᵀ), [rows, vocab] of `type`.
at::Tensor log_softmax_rows(const at::Tensor& hidden, const at::Tensor& matrix, at::ScalarType type) {
  at::Tensor rows = at::empty({hidden.size(0), matrix.size(0)}, hidden.options().dtype(type));
  product_logits(hidden, matrix, rows);
  return rows.sub_(rows.logsumexp(1, /*keepdim=*/true));
}

// What the twins say of some rows, in units of α: nothing is multiplied by it to be divided by it again.
struct Twins {
  std::array<at::Tensor, 2> log_softmax;  // [rows, vocab]: (Q - V) / α
  std::array<at::Tensor, 2> value;        // [rows, 1]: V / α
  at::Tensor smaller;                     // [rows, vocab]: min(Q1, Q2) / α
};

Twins twins_of(const at::Tensor& hidden, const TwinQ& q, double temperature, at::ScalarType type) {
  Twins twins;
  for (size_t i = 0; i < q.size(); ++i) {
    twins.log_softmax[i] = log_softmax_rows(hidden, q[i].advantage, type);
    twins.value[i] = hidden.to(type).mm(q[i].value.to(type).t()).div_(temperature);
  }
  twins.smaller = twins.log_softmax[0] + twins.value[0];
  at::minimum_out(twins.smaller, twins.smaller, twins.log_softmax[1] + twins.value[1]);
  return twins;
}

// V̄ of θ̄ under the policy, [rows].
at::Tensor target_values(const SoftQSide& target, int64_t begin, int64_t count, const at::Tensor& log_policy,
                         const at::Tensor& policy, double temperature) {
  at::Tensor smaller =
      twins_of(target.hidden.narrow(0, begin, count), target.q, temperature, policy.scalar_type()).smaller;
  return smaller.sub_(log_policy).mul_(policy).sum(1).mul_(temperature);
}

// Adds what the gradient at a matrix's logits gives to `grad_hidden` [rows, H] and to the matrix's gradient, if that
// is defined.
void backward(const at::Tensor& gradient, const at::Tensor& hidden, const at::Tensor& matrix,
              at::Tensor grad_hidden, const at::Tensor& grad_matrix) {
  const bool mixed = hidden.is_cuda() && hidden.scalar_type() == at::kBFloat16;
  const at::Tensor factor = mixed ? gradient.to(at::kBFloat16) : gradient;
  at::Tensor added = at::empty_like(grad_hidden);
  product_hidden(factor, matrix, added);
  grad_hidden.add_(added);
  if (grad_matrix.defined()) product_weight(factor, hidden, grad_matrix);
}

void check_sides(const SoftQSide& online, const SoftQSide& target, const SoftQRows& rows) {
  const auto require = [](bool fits, const char* what) {
    NLAC_REQUIRE(fits, "ERR_SHAPE", what, " does not fit the policy's matrix and hidden states");
  };
  require(online.hidden.dim() == 2 && online.head.dim() == 2 && online.hidden.size(1) == online.head.size(1),
          "the hidden states' width");
  require(target.hidden.sizes() == online.hidden.sizes(), "what θ̄ says of the rows");
  for (const SoftQSide* side : {&online, &target}) {
    for (const QHead& head : side->q) {
      require(head.advantage.sizes() == online.head.sizes(), "an advantage head");
      require(head.value.sizes() == at::IntArrayRef({1, online.head.size(1)}), "a value head");
    }
  }
  for (const at::Tensor* row : {&rows.actions, &rows.rewards, &rows.terminal, &rows.weights})
    require(row->dim() == 1 && row->size(0) == online.hidden.size(0), "what is given row by row");
}

}  // namespace

void check_soft_q(const SoftQOptions& options) {
  NLAC_REQUIRE(std::isfinite(options.temperature) && options.temperature > 0, "ERR_VALUE",
               "the entropy temperature must be finite and above 0, not ", options.temperature);
  NLAC_REQUIRE(options.discount >= 0 && options.discount <= 1, "ERR_VALUE",
               "the discount must be from 0 to 1, not ", options.discount);
  for (const double coefficient : {options.q_coefficient, options.policy_coefficient}) {
    NLAC_REQUIRE(std::isfinite(coefficient) && coefficient >= 0, "ERR_VALUE",
                 "a loss's coefficient must be finite and at least 0, not ", coefficient);
  }
}

SoftQResult linear_soft_q(const SoftQSide& online, const SoftQSide& target, const SoftQRows& rows,
                          const SoftQOptions& options, const SoftQGradients& gradients) {
  check_soft_q(options);
  check_sides(online, target, rows);
  const at::ScalarType type = online.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto real = online.hidden.options().dtype(type);
  const int64_t count = online.hidden.size(0), vocab = online.head.size(0);
  const double alpha = options.temperature;

  SoftQResult result;
  for (at::Tensor* tensor :
       {&result.q_losses, &result.policy_losses, &result.q, &result.targets, &result.entropies})
    *tensor = at::empty({count}, real);
  if (options.with_gradient) result.grad_hidden = at::empty_like(online.hidden);
  // One more than there are rows: a row looks one ahead.
  const at::Tensor values = at::zeros({count + 1}, real);

  const int64_t row_bytes = tensors_at_once * vocab * static_cast<int64_t>(c10::elementSize(type));
  const int64_t chunk = std::max<int64_t>(1, default_workspace(online.hidden.device(), 2) / row_bytes);
  for (int64_t end = count; end > 0; end -= chunk) {
    const int64_t begin = std::max<int64_t>(0, end - chunk), n = end - begin;
    const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, begin, n); };
    const at::Tensor hidden = part(online.hidden), actions = part(rows.actions).unsqueeze(1);
    const at::Tensor weights = part(rows.weights);

    at::Tensor log_policy = log_softmax_rows(hidden, online.head, type);
    at::Tensor policy = log_policy.exp();
    part(result.entropies).copy_((policy * log_policy).sum(1).neg_());

    part(values).copy_(target_values(target, begin, n, log_policy, policy, alpha));
    const at::Tensor next = values.narrow(0, begin + 1, n).masked_fill(part(rows.terminal), 0);
    const at::Tensor y = part(result.targets).copy_(part(rows.rewards) + options.discount * next);

    Twins twins = twins_of(hidden, online.q, alpha, type);
    // [rows] each: Q of the token written, and how far it is above its target.
    std::array<at::Tensor, 2> q, above;
    for (size_t i = 0; i < 2; ++i) {
      q[i] = (twins.value[i] + twins.log_softmax[i].gather(1, actions)).squeeze(1).mul_(alpha);
      above[i] = q[i] - y;
    }
    part(result.q).copy_(at::minimum(q[0], q[1]));
    part(result.q_losses).copy_((above[0].square() + above[1].square()).mul_(0.5));

    // log π - log softmax(min Q / α), in place of min Q / α.
    at::Tensor gap = twins.smaller;
    gap.sub_(gap.logsumexp(1, /*keepdim=*/true)).neg_().add_(log_policy);
    const at::Tensor kl = (policy * gap).sum(1, /*keepdim=*/true);
    part(result.policy_losses).copy_(kl.squeeze(1));
    if (!options.with_gradient) continue;

    at::Tensor grad_hidden = at::zeros(hidden.sizes(), real);
    if (options.policy_coefficient != 0) {
      const at::Tensor scale = (options.policy_coefficient * weights).unsqueeze(1);
      backward(gap.sub_(kl).mul_(policy).mul_(scale), hidden, online.head, grad_hidden, gradients.head);
    }
    if (options.q_coefficient != 0) {
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor at_q = (options.q_coefficient * weights * above[i]).unsqueeze(1);  // d / dQ
        const at::Tensor at_logits = twins.log_softmax[i].exp_().mul_(at_q * -alpha);
        at_logits.scatter_add_(1, actions, at_q * alpha);
        backward(at_logits, hidden, online.q[i].advantage, grad_hidden, gradients.q[i].advantage);
        grad_hidden.addmm_(at_q, online.q[i].value.to(type));
        gradients.q[i].value.addmm_(at_q.t(), hidden.to(type));
      }
    }
    part(result.grad_hidden).copy_(grad_hidden);
  }
  return result;
}

}  // namespace nlac
