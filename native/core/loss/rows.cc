#include "core/loss/rows.h"

#include <limits>

namespace nlac {
namespace {

// Σ p·(log p - log q) + (q - p): the same sum, as p and q both add up to 1, but each term is at least 0, so
// nothing cancels between terms and an error common to all of log q drops out.
at::Tensor divergence(const at::Tensor& p, const at::Tensor& q, const at::Tensor& log_ratio) {
  return (p * log_ratio + (q - p)).sum(-1);
}

}  // namespace

void token_rows_with_operators(RowChunk& chunk) {
  const at::Tensor s = chunk.student / chunk.temperature;
  const at::Tensor scale = (chunk.weights / chunk.temperature).unsqueeze(1);
  const at::Tensor log_s = at::log_softmax(s, -1);

  if (chunk.support.kind == SupportKind::sampled) {
    const at::Tensor index = chunk.targets.unsqueeze(1);
    chunk.losses.copy_(log_s.gather(1, index).squeeze(1).neg());
    if (chunk.with_gradient) {
      at::Tensor gradient = log_s.exp();
      gradient.scatter_add_(1, index, at::full_like(index, -1, gradient.options()));
      chunk.student.copy_(gradient.mul_(scale));
    }
    return;
  }

  const at::Tensor t = chunk.teacher / chunk.temperature;
  const at::Tensor log_t = at::log_softmax(t, -1);
  const int64_t k = chunk.support.k;
  if (chunk.support.kind == SupportKind::full || k >= s.size(1)) {
    const at::Tensor p = log_t.exp(), q = log_s.exp();
    chunk.losses.copy_(divergence(p, q, log_t - log_s));
    if (chunk.with_gradient) chunk.student.copy_((q - p).mul_(scale));
    return;
  }

  // The teacher's k best one by one, everything else as one bucket. The bucket's mass comes from its own
  // log-sum-exp, not from 1 - Σ: it may be far below float32's resolution at 1.
  const at::Tensor top = std::get<1>(t.topk(k, -1));
  const double lowest = -std::numeric_limits<double>::infinity();
  const at::Tensor tail_s = s.scatter(1, top, lowest), tail_t = t.scatter(1, top, lowest);
  const at::Tensor tail_sum_s = tail_s.logsumexp(-1, true);
  const at::Tensor log_tail_s = tail_sum_s - s.logsumexp(-1, true);
  const at::Tensor log_tail_t = tail_t.logsumexp(-1, true) - t.logsumexp(-1, true);
  const at::Tensor log_top_s = at::cat({log_s.gather(1, top), log_tail_s}, 1);
  const at::Tensor log_top_t = at::cat({log_t.gather(1, top), log_tail_t}, 1);
  const at::Tensor p = log_top_t.exp(), q = log_top_s.exp();
  chunk.losses.copy_(divergence(p, q, log_top_t - log_top_s));
  if (chunk.with_gradient) {
    // Within the bucket the student's share of the bucket's gradient is its conditional probability.
    const at::Tensor difference = q - p;
    at::Tensor gradient = (tail_s - tail_sum_s).exp() * difference.narrow(1, k, 1);
    gradient.scatter_(1, top, difference.narrow(1, 0, k));
    chunk.student.copy_(gradient.mul_(scale));
  }
}

}  // namespace nlac
