#include "core/loss/rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "core/loss/row_kernels.h"

namespace nlac {
namespace {

// Σ p·(log p - log q) + (q - p): the same sum, as p and q both add up to 1, but each term is at least 0, so
// nothing cancels between terms and an error common to all of log q drops out.
at::Tensor divergence(const at::Tensor& p, const at::Tensor& q, const at::Tensor& d) {
  return at::where(d.abs() < 0.25, p * (d + (-d).expm1()), p * d + (q - p)).sum(-1);
}

void token_rows_fused(RowChunk& chunk) {
  using namespace row_kernels;
  const Kernels& kernels = row_kernels::kernels();
  const int64_t rows = chunk.student.size(0), vocab = chunk.student.size(1);
  const int64_t stride = chunk.student.stride(0);
  const int64_t teacher_stride = chunk.teacher.defined() ? chunk.teacher.stride(0) : 0;
  float* const student = chunk.student.data_ptr<float>();
  float* const teacher = chunk.teacher.defined() ? chunk.teacher.data_ptr<float>() : nullptr;
  const int64_t* targets = chunk.targets.defined() ? chunk.targets.const_data_ptr<int64_t>() : nullptr;
  const float* weights = chunk.weights.const_data_ptr<float>();
  float* losses = chunk.losses.data_ptr<float>();
  // With every token among the k best there is no bucket.
  const int64_t k = chunk.support.kind == SupportKind::top_k && chunk.support.k < vocab ? chunk.support.k : 0;
  // Below this the exponent's range is left, which the bound on logits then catches.
  const double inverse_temperature = std::min(1 / chunk.temperature, 1e30);
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> indices;
    std::vector<float> tops(2 * static_cast<size_t>(k));
    for (int64_t r = begin; r < end; ++r) {
      const RowScale scale{static_cast<float>(inverse_temperature),
                           static_cast<float>(weights[r] * inverse_temperature),
                           !chunk.with_gradient ? Form::none
                           : chunk.rounded      ? Form::bf16
                                                : Form::f32};
      float* row = student + r * stride;
      float* teacher_row = teacher + r * teacher_stride;
      if (chunk.support.kind == SupportKind::sampled) {
        losses[r] = kernels.nll(row, targets[r], vocab, scale);
      } else if (k == 0) {
        losses[r] = kernels.kl(row, teacher_row, vocab, scale);
      } else {
        select_top(teacher_row, vocab, k, indices);
        losses[r] =
            kernels.top_k(row, teacher_row, vocab, {indices.data(), tops.data(), tops.data() + k, k}, scale);
      }
    }
  });
}

}  // namespace

void token_rows(RowChunk& chunk) {
  if (chunk.student.is_cpu() && chunk.student.scalar_type() == at::kFloat) {
    token_rows_fused(chunk);
  } else {
    token_rows_with_operators(chunk);
  }
}

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
