// Naive soft Q-learning on tokens: float64, whole tensors, torch's autograd.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "core/loss/soft_q.h"

namespace nlac::test {

// Results and gradients, float64.
struct SoftQReference {
  at::Tensor q_losses, policy_losses, q, targets, entropies;
  at::Tensor grad_hidden, grad_head;
  TwinQ grad_q;
};

inline SoftQReference soft_q_reference(const SoftQSide& online, const SoftQSide& target,
                                       const SoftQRows& rows, const SoftQOptions& options) {
  const at::AutoGradMode with_gradient(true);
  const double alpha = options.temperature;
  std::vector<at::Tensor> leaves;
  const auto leaf = [&](const at::Tensor& tensor) {
    leaves.push_back(tensor.detach().to(at::kDouble).requires_grad_());
    return leaves.back();
  };
  const auto q_of = [&](const at::Tensor& hidden, const at::Tensor& advantage, const at::Tensor& value) {
    return hidden.mm(value.t()) + alpha * hidden.mm(advantage.t()).log_softmax(1);
  };
  const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };

  const at::Tensor hidden = leaf(online.hidden), head = leaf(online.head);
  const at::Tensor log_policy = hidden.mm(head.t()).log_softmax(1);
  std::vector<at::Tensor> q, bar;
  for (size_t i = 0; i < 2; ++i) {
    const at::Tensor advantage = leaf(online.q[i].advantage), value = leaf(online.q[i].value);
    q.push_back(q_of(hidden, advantage, value));
    bar.push_back(q_of(wide(target.hidden), wide(target.q[i].advantage), wide(target.q[i].value)));
  }

  SoftQReference reference;
  const at::Tensor values =
      (log_policy.exp() * (at::minimum(bar[0], bar[1]) - alpha * log_policy)).sum(1).detach();
  reference.targets = wide(rows.rewards).clone();
  for (int64_t row = 0; row + 1 < hidden.size(0); ++row) {
    if (!rows.terminal[row].item<bool>()) reference.targets[row] += options.discount * values[row + 1];
  }
  const at::Tensor actions = rows.actions.unsqueeze(1);
  const at::Tensor taken[] = {q[0].gather(1, actions).squeeze(1), q[1].gather(1, actions).squeeze(1)};
  const at::Tensor q_losses =
      0.5 * (taken[0] - reference.targets).pow(2) + 0.5 * (taken[1] - reference.targets).pow(2);
  const at::Tensor best = (at::minimum(q[0], q[1]) / alpha).log_softmax(1).detach();
  const at::Tensor policy_losses = (log_policy.exp() * (log_policy - best)).sum(1);
  const at::Tensor loss = (wide(rows.row_weights) *
                           (options.q_coefficient * q_losses + options.policy_coefficient * policy_losses))
                              .sum();
  const auto gradients = torch::autograd::grad({loss}, leaves);

  reference.q_losses = q_losses.detach();
  reference.policy_losses = policy_losses.detach();
  reference.q = at::minimum(taken[0], taken[1]).detach();
  reference.entropies = -(log_policy.exp() * log_policy).sum(1).detach();
  reference.grad_hidden = gradients[0];
  reference.grad_head = gradients[1];
  for (size_t i = 0; i < 2; ++i) reference.grad_q[i] = {gradients[2 + 2 * i], gradients[3 + 2 * i]};
  return reference;
}

}  // namespace nlac::test
