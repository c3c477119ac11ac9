// Inputs of the losses that read hidden states, and torch's own results.
#pragma once

#include "core/loss/linear_loss.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "test/core/fixtures.h"

namespace linear_loss_test {

using namespace nlac;
using nlac::test::code_of;
inline const at::ScalarType wide = at::kDouble;

struct Inputs {
  at::Tensor student_hidden, student_head, teacher_hidden, teacher_head, weights, targets;

  Inputs to(at::ScalarType type) const {
    return {student_hidden.to(type),
            student_head.to(type),
            teacher_hidden.to(type),
            teacher_head.to(type),
            weights,
            targets};
  }

  Inputs on(at::Device device) const {
    return {student_hidden.to(device), student_head.to(device), teacher_hidden.to(device),
            teacher_head.to(device),   weights.to(device),      targets.to(device)};
  }
};

// `size` scales the logits' spread.
inline Inputs make(int64_t rows, int64_t vocab, int64_t student_width, int64_t teacher_width,
                   double size = 1) {
  at::manual_seed(static_cast<uint64_t>(rows * 1000 + vocab));
  Inputs in;
  in.student_hidden = at::randn({rows, student_width}) * size;
  in.student_head = at::randn({vocab, student_width}) / std::sqrt(static_cast<double>(student_width));
  in.teacher_hidden = at::randn({rows, teacher_width}) * size;
  in.teacher_head = at::randn({vocab, teacher_width}) / std::sqrt(static_cast<double>(teacher_width));
  in.weights = at::rand({rows}) + 0.1;
  in.targets = at::randint(vocab, {rows}, at::kLong);
  return in;
}

struct Outcome {
  at::Tensor losses, grad_hidden, grad_head;
};

// torch's operators and autograd, in the given type. Rows of weight 0 are multiplied, not omitted.
inline Outcome reference(const Inputs& given, double temperature, const Support& support,
                         const Divergence& divergence = {}, at::ScalarType type = wide, double cap = 0) {
  const Inputs in = given.to(type);
  const at::Tensor hidden = in.student_hidden.detach().clone().requires_grad_();
  const at::Tensor weight = in.student_head.detach().clone().requires_grad_();
  const auto capped = [&](const at::Tensor& x) { return cap > 0 ? cap * at::tanh(x / cap) : x; };
  const at::Tensor log_s = at::log_softmax(capped(hidden.mm(weight.t())) / temperature, -1);
  at::Tensor losses;
  if (support.kind == SupportKind::sampled) {
    losses = log_s.gather(1, in.targets.unsqueeze(1)).squeeze(1).neg();
  } else {
    const at::Tensor teacher = capped(in.teacher_hidden.mm(in.teacher_head.t())) / temperature;
    at::Tensor log_p = at::log_softmax(teacher, -1), log_q = log_s;
    if (support.kind == SupportKind::top_k && support.k < teacher.size(1)) {
      const at::Tensor top = std::get<1>(teacher.topk(support.k, -1));
      const at::Tensor outside = at::ones_like(teacher, at::kBool).scatter(1, top, 0);
      const at::Tensor lowest = at::full({}, -std::numeric_limits<double>::infinity(), teacher.options());
      const auto bucketed = [&](const at::Tensor& log_all) {
        return at::cat({log_all.gather(1, top), at::where(outside, log_all, lowest).logsumexp(-1, true)}, 1);
      };
      log_p = bucketed(log_p);
      log_q = bucketed(log_s);
    }
    const auto kl = [](const at::Tensor& log_a, const at::Tensor& log_b) {
      return (log_a.exp() * (log_a - log_b)).sum(-1);
    };
    const double beta = divergence.beta;
    switch (divergence.kind) {
      case DivergenceKind::forward_kl: losses = kl(log_p, log_q); break;
      case DivergenceKind::cross_entropy: losses = -(log_p.exp() * log_q).sum(-1); break;
      case DivergenceKind::reverse_kl: losses = kl(log_q, log_p); break;
      case DivergenceKind::jensen_shannon: {
        const at::Tensor log_m = at::logaddexp(log_p + std::log(beta), log_q + std::log1p(-beta));
        losses = beta * kl(log_p, log_m) + (1 - beta) * kl(log_q, log_m);
      }
    }
  }
  (losses * in.weights.to(type)).sum().backward();
  const at::Tensor masked = at::where(in.weights.to(type) == 0, at::zeros({}, losses.options()), losses);
  return {masked.detach(), hidden.grad(), weight.grad()};
}

inline Outcome ours(const Inputs& in, double temperature, const Support& support,
                    const Divergence& divergence = {}, bool with_gradient = true, int64_t workspace_bytes = 0,
                    double cap = 0) {
  const auto type = in.student_hidden.scalar_type() == wide ? wide : at::kFloat;
  const at::Tensor grad_head = at::zeros_like(in.student_head, type);
  const LossResult result = linear_token_kl(
      in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head, in.weights, in.targets,
      divergence, support, {temperature, with_gradient, workspace_bytes, false, -1, cap}, grad_head);
  return {result.losses, result.grad_hidden, grad_head};
}

// ‖a - b‖ / ‖b‖; the absolute norm if b is almost 0.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const double difference = (a.to(wide) - b.to(wide)).norm().item<double>(),
               size = b.to(wide).norm().item<double>();
  return size < 1e-12 ? difference : difference / size;
}

inline double largest(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(wide) - b.to(wide)).abs().max().item<double>();
}

inline const Support supports[] = {{SupportKind::full, 0},     {SupportKind::top_k, 1},
                                   {SupportKind::top_k, 5},    {SupportKind::top_k, 97},
                                   {SupportKind::top_k, 5000}, {SupportKind::sampled, 0}};

inline const Divergence divergences[] = {
    {DivergenceKind::forward_kl, 0},       {DivergenceKind::cross_entropy, 0},
    {DivergenceKind::reverse_kl, 0},       {DivergenceKind::jensen_shannon, 0.5},
    {DivergenceKind::jensen_shannon, 0.1}, {DivergenceKind::jensen_shannon, 0.97}};

inline bool go_together(const Divergence& divergence, const Support& support) {
  return support.kind != SupportKind::sampled || !gradient_by_score(divergence.kind);
}

struct Threads {
  int before = at::get_num_threads();
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace linear_loss_test
