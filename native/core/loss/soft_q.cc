#include "core/loss/soft_q.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/loss/linear_loss.h"
#include "core/loss/plan.h"
#include "core/loss/products.h"

namespace nlac {
namespace {

// Tensors of a chunk's logits' size, allocated once.
struct Workspace {
  at::Tensor policy;                // [rows, vocab]: log π, then π
  std::array<at::Tensor, 2> twins;  // (Q - V) / α of θ̄, then of θ
  at::Tensor smaller;               // min(Q1, Q2) / α
  at::Tensor scratch;

  Workspace(int64_t rows, int64_t vocab, const at::TensorOptions& options) {
    for (at::Tensor* tensor : {&policy, &twins[0], &twins[1], &smaller, &scratch})
      *tensor = at::empty({rows, vocab}, options);
  }
  Workspace first(int64_t rows) const {
    Workspace part = *this;
    for (at::Tensor* tensor : {&part.policy, &part.twins[0], &part.twins[1], &part.smaller, &part.scratch})
      *tensor = tensor->narrow(0, 0, rows);
    return part;
  }

  // out ← log softmax(hidden · matrixᵀ), by way of `scratch`.
  void log_softmax(const at::Tensor& hidden, const at::Tensor& matrix, at::Tensor out) {
    product_logits(hidden, matrix, scratch);
    at::_log_softmax_out(out, scratch, 1, /*half_to_float=*/false);
  }

  // Fills `twins` and `smaller`; returns V / α of each, [rows, 1].
  std::array<at::Tensor, 2> judge(const at::Tensor& hidden, const TwinQ& q, double temperature) {
    std::array<at::Tensor, 2> values;
    for (size_t i = 0; i < q.size(); ++i) {
      log_softmax(hidden, q[i].advantage, twins[i]);
      values[i] = hidden.to(scratch.scalar_type()).mm(q[i].value.to(scratch.scalar_type()).t());
      values[i].div_(temperature);
    }
    at::add_out(smaller, twins[0], values[0]);
    at::add_out(scratch, twins[1], values[1]);
    at::minimum_out(smaller, smaller, scratch);
    return values;
  }

  // [rows, 1]: Σ π·of, over the vocabulary.
  at::Tensor expected(const at::Tensor& probabilities, const at::Tensor& of) {
    return at::mul_out(scratch, probabilities, of).sum(1, /*keepdim=*/true);
  }
};

// Adds the contributions of the gradient at a matrix's logits to `grad_hidden` [rows, H] and to the
// matrix's gradient, if they are defined.
void backward(const at::Tensor& gradient, const at::Tensor& hidden, const at::Tensor& matrix,
              at::Tensor grad_hidden, const at::Tensor& grad_matrix) {
  const bool mixed = hidden.is_cuda() && hidden.scalar_type() == at::kBFloat16;
  const at::Tensor factor = mixed ? gradient.to(at::kBFloat16) : gradient;
  if (grad_hidden.defined()) {
    at::Tensor added = at::empty_like(grad_hidden);
    product_hidden(factor, matrix, added);
    grad_hidden.add_(added);
  }
  if (grad_matrix.defined()) product_weight(factor, hidden, grad_matrix);
}

void check_sides(const SoftQSide& online, const SoftQSide& target, const SoftQRows& rows) {
  const auto require = [](bool fits, const char* what) {
    NLAC_REQUIRE(fits, "ERR_SHAPE", what, " does not fit the policy's matrix and hidden states");
  };
  require(online.hidden.dim() == 2 && online.head.dim() == 2 && online.hidden.size(1) == online.head.size(1),
          "the hidden states' width");
  require(target.hidden.sizes() == online.hidden.sizes(), "θ̄'s hidden states");
  for (const SoftQSide* side : {&online, &target}) {
    for (const QHead& head : side->q) {
      require(head.advantage.sizes() == online.head.sizes(), "an advantage head");
      require(head.value.sizes() == at::IntArrayRef({1, online.head.size(1)}), "a value head");
    }
  }
  for (const at::Tensor* row : {&rows.actions, &rows.rewards, &rows.terminal, &rows.row_weights})
    require(row->dim() == 1 && row->size(0) == online.hidden.size(0), "a list of one value per row");
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
  // One more than the rows, because a row uses the next one.
  const at::Tensor values = at::zeros({count + 1}, real);

  // As many rows as in a loss of two heads. With fewer, reading the matrices and adding to their
  // gradients takes longer than the products.
  const int64_t row_bytes = vocab * static_cast<int64_t>(c10::elementSize(type));
  const int64_t bytes = default_workspace(online.hidden.device(), 2);
  const int64_t chunk =
      plan_loss(std::max<int64_t>(1, count), 2, row_bytes, /*packed=*/false, options.with_gradient, bytes)
          .capacity;
  const Workspace whole(chunk, vocab, real);
  for (int64_t end = count; end > 0; end -= chunk) {
    const int64_t begin = std::max<int64_t>(0, end - chunk), n = end - begin;
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, n); };
    const at::Tensor hidden = part(online.hidden), actions = part(rows.actions).unsqueeze(1);
    const at::Tensor row_weights = part(rows.row_weights);
    Workspace work = whole.first(n);

    work.log_softmax(hidden, online.head, work.policy);
    // V̄ of θ̄ under the policy. Its probabilities reuse a twin's memory.
    work.judge(part(target.hidden), target.q, alpha);
    const at::Tensor probabilities = at::exp_out(work.twins[0], work.policy);
    part(result.entropies).copy_(work.expected(probabilities, work.policy).neg_().squeeze(1));
    const at::Tensor soft = work.smaller.sub_(work.policy);
    part(values).copy_(work.expected(probabilities, soft).mul_(alpha).squeeze(1));
    const at::Tensor next = values.narrow(0, begin + 1, n).masked_fill(part(rows.terminal), 0);
    const at::Tensor y = part(result.targets).copy_(part(rows.rewards) + options.discount * next);

    const std::array<at::Tensor, 2> value = work.judge(hidden, online.q, alpha);
    // [rows] each: Q of the generated token, and its difference from the target.
    std::array<at::Tensor, 2> q, above;
    for (size_t i = 0; i < 2; ++i) {
      q[i] = (value[i] + work.twins[i].gather(1, actions)).squeeze(1).mul_(alpha);
      above[i] = q[i] - y;
    }
    part(result.q).copy_(at::minimum(q[0], q[1]));
    part(result.q_losses).copy_((above[0].square() + above[1].square()).mul_(0.5));

    // log π - log softmax(min Q / α), in place of min Q / α.
    at::_log_softmax_out(work.scratch, work.smaller, 1, /*half_to_float=*/false);
    at::Tensor gap = at::sub_out(work.smaller, work.policy, work.scratch);
    work.policy.exp_();
    const at::Tensor kl = work.expected(work.policy, gap);
    part(result.policy_losses).copy_(kl.squeeze(1));
    if (!options.with_gradient) continue;

    at::Tensor grad_hidden = at::zeros(hidden.sizes(), real);
    if (options.policy_coefficient != 0) {
      const at::Tensor scale = (options.policy_coefficient * row_weights).unsqueeze(1);
      backward(gap.sub_(kl).mul_(work.policy).mul_(scale), hidden, online.head, grad_hidden, gradients.head);
    }
    if (options.q_coefficient != 0) {
      for (size_t i = 0; i < 2; ++i) {
        const at::Tensor at_q = (options.q_coefficient * row_weights * above[i]).unsqueeze(1);  // d / dQ
        const at::Tensor at_logits = work.twins[i].exp_().mul_(at_q * -alpha);
        at_logits.scatter_add_(1, actions, at_q * alpha);
        const at::Tensor below = options.detached ? at::Tensor() : grad_hidden;
        backward(at_logits, hidden, online.q[i].advantage, below, gradients.q[i].advantage);
        if (below.defined()) grad_hidden.addmm_(at_q, online.q[i].value.to(type));
        gradients.q[i].value.addmm_(at_q.t(), hidden.to(type));
      }
    }
    part(result.grad_hidden).copy_(grad_hidden);
  }
  return result;
}

}  // namespace nlac
