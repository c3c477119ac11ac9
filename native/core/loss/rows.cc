#include "core/loss/rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/loss/row_kernels.h"

#ifdef NLAC_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/cuda_error.h"
#include "cuda/token_rows.h"
#endif

namespace nlac {
namespace {

constexpr double lowest_log = -1e30;

// Bounded, because smaller temperatures would leave the exponent's range.
double inverse_of(double temperature) { return std::min(1 / temperature, 1e30); }

// With every token among the k best there is no bucket.
int64_t bucket_of(const RowLoss& loss, int64_t vocab) { return loss.top_k < vocab ? loss.top_k : 0; }

template <typename T>
T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

// --- f32 on the CPU ------------------------------------------------------------------------------

using row_kernels::Form;
using row_kernels::GradientRow;
using row_kernels::Kernels;
using row_kernels::Softmax;

void store(const GradientRow& to, int64_t index, double value) {
  if (to.form == Form::f32) static_cast<float*>(to.at)[index] = static_cast<float>(value);
  if (to.form == Form::bf16) {
    static_cast<at::BFloat16*>(to.at)[index] = static_cast<at::BFloat16>(static_cast<float>(value));
  }
}

double log_or_lowest(double x) { return x > 0 || std::isnan(x) ? std::log(x) : lowest_log; }

// log Σ exp(logits / temperature) over the bucket and the tokens that were taken out of it.
double log_mass_with(const Softmax& tail, const std::vector<double>& top, double inverse) {
  double largest = tail.largest;
  for (const double logit : top) largest = !(logit <= largest) ? logit : largest;
  double sum = tail.sum * std::exp((static_cast<double>(tail.largest) - largest) * inverse);
  for (const double logit : top) sum += std::exp((logit - largest) * inverse);
  return largest * inverse + std::log(sum);
}

// The k best are taken out of both rows (set to -inf), so that the bucket of all others gets its
// mass from its own logits: 1 - Σ would lose a mass below float32's resolution at 1.
class TopRow {
 public:
  explicit TopRow(int64_t k) : student_(static_cast<size_t>(k)), teacher_(static_cast<size_t>(k)) {}

  double operator()(const Kernels& kernels, const Divergence& divergence, float* student, float* teacher,
                    int64_t vocab, float inverse, double scale, const GradientRow& to) {
    const size_t k = student_.size();
    row_kernels::select_top(teacher, vocab, static_cast<int64_t>(k), indices_);
    for (size_t i = 0; i < k; ++i) {
      float &s = student[indices_[i]], &t = teacher[indices_[i]];
      student_[i] = s, teacher_[i] = t;
      s = t = -std::numeric_limits<float>::infinity();
    }
    Softmax tail_s = kernels.softmax(student, vocab, inverse, false);
    const Softmax tail_t = kernels.softmax(teacher, vocab, inverse, false);
    const double all_s = log_mass_with(tail_s, student_, inverse),
                 all_t = log_mass_with(tail_t, teacher_, inverse);
    // Categories: the k best and, last, the bucket.
    q_.resize(k + 1), gradient_.resize(k + 1);
    double loss = 0, mean = 0;
    for (size_t i = 0; i <= k; ++i) {
      const double s = i < k ? student_[i] * inverse
                             : tail_s.largest * static_cast<double>(inverse) + log_or_lowest(tail_s.sum);
      const double t = i < k ? teacher_[i] * inverse
                             : tail_t.largest * static_cast<double>(inverse) + log_or_lowest(tail_t.sum);
      const double log_q = std::isnan(s) ? s : std::max(s - all_s, lowest_log),
                   log_p = std::isnan(t) ? t : std::max(t - all_t, lowest_log);
      const double q = std::exp(log_q), p = std::exp(log_p);
      const auto part = category_part(divergence.kind, Mixture<double>(divergence.beta), log_p, log_q, p, q);
      loss += part.loss;
      mean += q * part.score;
      q_[i] = q;
      gradient_[i] = gradient_by_score(divergence.kind) ? q * part.score : q - p;
    }
    if (to.form == Form::none) return loss;
    if (gradient_by_score(divergence.kind)) {
      for (size_t i = 0; i <= k; ++i) gradient_[i] -= q_[i] * mean;
    }
    // Within the bucket the student's share of the bucket's gradient is its conditional
    // probability: none where it has no mass at all.
    if (tail_s.sum == 0) tail_s.sum = 1;
    kernels.weighted(student, vocab, tail_s, inverse, static_cast<float>(gradient_[k] * scale), 0, to);
    for (size_t i = 0; i < k; ++i) store(to, indices_[i], gradient_[i] * scale);
    return loss;
  }

 private:
  std::vector<int64_t> indices_;
  std::vector<double> student_, teacher_, q_, gradient_;
};

void token_rows_fused(const RowLoss& loss, const RowChunk& chunk) {
  const Kernels& kernels = row_kernels::kernels();
  const int64_t rows = chunk.student.size(0), vocab = chunk.student.size(1), k = bucket_of(loss, vocab);
  const auto inverse = static_cast<float>(inverse_of(loss.temperature));
  const auto row_of = [](const at::Tensor& logits, int64_t row) {
    return logits.data_ptr<float>() + row * logits.stride(0);
  };
  const auto gradient_of = [&](int64_t row) -> GradientRow {
    if (!chunk.gradient.defined()) return {nullptr, Form::none};
    const int64_t at = row * chunk.gradient.stride(0);
    if (chunk.gradient.scalar_type() == at::kFloat) return {chunk.gradient.data_ptr<float>() + at, Form::f32};
    return {chunk.gradient.data_ptr<at::BFloat16>() + at, Form::bf16};
  };
  const float* row_weights = chunk.row_weights.const_data_ptr<float>();
  float* losses = chunk.losses.data_ptr<float>();

  if (chunk.teacher.defined()) {
    at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      TopRow top(k);
      for (int64_t r = begin; r < end; ++r) {
        float *student = row_of(chunk.student, r), *teacher = row_of(chunk.teacher, r);
        const double scale = row_weights[r] * static_cast<double>(inverse);
        if (k > 0) {
          losses[r] = static_cast<float>(
              top(kernels, loss.divergence, student, teacher, vocab, inverse, scale, gradient_of(r)));
          continue;
        }
        const Softmax s = kernels.softmax(student, vocab, inverse, false),
                      t = kernels.softmax(teacher, vocab, inverse, false);
        losses[r] =
            static_cast<float>(kernels.divergence(student, teacher, vocab, s, t, inverse, loss.divergence,
                                                  static_cast<float>(scale), gradient_of(r)));
      }
    });
    return;
  }

  const int64_t* targets = chunk.targets.const_data_ptr<int64_t>();
  const float *old = data_of<float>(chunk.old_log_probs), *advantages = data_of<float>(chunk.advantages),
              *reference = data_of<float>(chunk.reference_log_probs),
              *grad_log_probs = data_of<float>(chunk.grad_log_probs);
  float *log_probs = data_of<float>(chunk.log_probs), *entropies = data_of<float>(chunk.entropies),
        *ratios = data_of<float>(chunk.ratios);
  int32_t* clipped = data_of<int32_t>(chunk.clipped);
  const bool with_entropy = entropies != nullptr || loss.entropy_coefficient != 0;
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* logits = row_of(chunk.student, r);
      const Softmax s = kernels.softmax(logits, vocab, inverse, with_entropy);
      const double log_sum = std::log(s.sum);
      const double log_prob = (static_cast<double>(logits[targets[r]]) - s.largest) * inverse - log_sum;
      const double entropy = with_entropy ? log_sum - s.moment / s.sum : 0;
      const TokenOutcome token =
          token_outcome(loss, log_prob,
                        {old ? old[r] : 0, advantages ? advantages[r] : 0, reference ? reference[r] : 0,
                         grad_log_probs ? grad_log_probs[r] : 0});
      const TokenRow row =
          token_row(loss, token, log_prob, s.largest * static_cast<double>(inverse) + log_sum, entropy,
                    row_weights[r] * static_cast<double>(inverse));
      losses[r] = static_cast<float>(row.loss);
      if (log_probs) log_probs[r] = static_cast<float>(log_prob);
      if (entropies) entropies[r] = static_cast<float>(entropy);
      if (ratios) ratios[r] = static_cast<float>(token.ratio);
      if (clipped) clipped[r] = token.clipped;
      const GradientRow to = gradient_of(r);
      if (to.form == Form::none) continue;
      kernels.weighted(logits, vocab, s, inverse, static_cast<float>(row.a), static_cast<float>(row.b), to);
      store(to, targets[r], row.at_target);
    }
  });
}

// --- libtorch's operators ------------------------------------------------------------------------

struct Parts {
  at::Tensor loss, score;
};

at::Tensor kl_terms(const at::Tensor& p, const at::Tensor& q, const at::Tensor& d) {
  return at::where(d.abs() < 0.25, p * (d + (-d).expm1()), p * d + (q - p));
}

// jensen_shannon_part of row_loss.h.
Parts jensen_shannon_parts(double beta, const at::Tensor& log_p, const at::Tensor& log_q, const at::Tensor& p,
                           const at::Tensor& q) {
  const at::Tensor d = log_p - log_q, teacher = d > 0, x = -d.abs();
  const at::Tensor larger = at::where(teacher, p, q);
  const at::Tensor gamma = at::where(teacher, at::full_like(d, 1 - beta), at::full_like(d, beta));
  const at::Tensor v = x.expm1(), log_m = (gamma * v).log1p();
  at::Tensor sum = at::ones_like(gamma), series = at::zeros_like(gamma), power = at::ones_like(gamma);
  for (int n = 0; n < 7; ++n) {
    series = series + sum * power / ((n + 1) * (n + 2));
    sum = sum * gamma + 1;
    power = power * -v;
  }
  // Where the series has converged to the type's precision.
  const double near_zero = d.scalar_type() == at::kDouble ? -0.01 : -0.125;
  const at::Tensor loss = larger * at::where(v > near_zero, gamma * (1 - gamma) * v * v * series,
                                             gamma * (1 + v) * x - (1 + gamma * v) * log_m);
  return {loss, (at::where(teacher, x, at::zeros_like(x)) - log_m) * (1 - beta)};
}

Parts category_parts(const Divergence& divergence, const at::Tensor& log_p, const at::Tensor& log_q,
                     const at::Tensor& p, const at::Tensor& q) {
  switch (divergence.kind) {
    case DivergenceKind::cross_entropy: return {-p * log_q, {}};
    case DivergenceKind::reverse_kl: return {kl_terms(q, p, log_q - log_p), log_q - log_p};
    case DivergenceKind::jensen_shannon: return jensen_shannon_parts(divergence.beta, log_p, log_q, p, q);
    default: return {kl_terms(p, q, log_p - log_q), {}};
  }
}

void teacher_rows_with_operators(const RowLoss& loss, const RowChunk& chunk) {
  const at::Tensor s = chunk.student / loss.temperature, t = chunk.teacher / loss.temperature;
  const at::Tensor all_s = s.logsumexp(-1, true), all_t = t.logsumexp(-1, true);
  const int64_t k = bucket_of(loss, s.size(1));
  at::Tensor log_q = s - all_s, log_p = t - all_t, top, tail_s, tail_sum_s;
  if (k > 0) {
    // The teacher's k best one by one, everything else as one bucket, whose mass comes from its own
    // logits.
    top = std::get<1>(t.topk(k, -1));
    tail_s = s.scatter(1, top, -std::numeric_limits<double>::infinity());
    tail_sum_s = tail_s.logsumexp(-1, true);
    const at::Tensor tail_sum_t =
        t.scatter(1, top, -std::numeric_limits<double>::infinity()).logsumexp(-1, true);
    log_q = at::cat({log_q.gather(1, top), tail_sum_s - all_s}, 1);
    log_p = at::cat({log_p.gather(1, top), tail_sum_t - all_t}, 1);
  }
  log_q = log_q.clamp_min(lowest_log), log_p = log_p.clamp_min(lowest_log);
  const at::Tensor q = log_q.exp(), p = log_p.exp();
  const Parts parts = category_parts(loss.divergence, log_p, log_q, p, q);
  chunk.losses.copy_(parts.loss.sum(-1));
  if (!chunk.gradient.defined()) return;
  at::Tensor gradient = parts.score.defined() ? q * (parts.score - (q * parts.score).sum(-1, true)) : q - p;
  if (k > 0) {
    // Within the bucket the student's share of the bucket's gradient is its conditional
    // probability.
    const at::Tensor share = (tail_s - tail_sum_s.clamp_min(lowest_log)).exp();
    gradient = (share * gradient.narrow(1, k, 1)).scatter(1, top, gradient.narrow(1, 0, k));
  }
  chunk.gradient.copy_(gradient * (chunk.row_weights / loss.temperature).unsqueeze(1));
}

// token_outcome of row_loss.h: loss and slope; writes the surrogate's other results to the chunk.
std::pair<at::Tensor, at::Tensor> token_outcomes(const RowLoss& loss, const RowChunk& chunk,
                                                 const at::Tensor& log_prob) {
  if (loss.token == TokenLossKind::nll) return {-log_prob, at::full_like(log_prob, -1)};
  if (loss.token == TokenLossKind::log_prob) {
    return {log_prob, chunk.grad_log_probs.defined() ? chunk.grad_log_probs : at::zeros_like(log_prob)};
  }
  const at::Tensor ratio = (log_prob - chunk.old_log_probs).exp(), &advantages = chunk.advantages;
  const at::Tensor low = (ratio < 1 - loss.clip_low).logical_and(advantages < 0),
                   high = (ratio > 1 + loss.clip_high).logical_and(advantages > 0);
  const at::Tensor held = ratio.masked_fill(low, 1 - loss.clip_low).masked_fill(high, 1 + loss.clip_high);
  at::Tensor value = -held * advantages;
  at::Tensor slope = (-ratio * advantages).masked_fill(low.logical_or(high), 0);
  if (loss.kl_coefficient != 0) {
    const at::Tensor d = chunk.reference_log_probs - log_prob, growth = d.expm1();
    value = value + loss.kl_coefficient * (growth - d);
    slope = slope - loss.kl_coefficient * growth;
  }
  if (chunk.ratios.defined()) chunk.ratios.copy_(ratio);
  if (chunk.clipped.defined()) chunk.clipped.copy_(high.to(at::kInt) - low.to(at::kInt));
  return {value, slope};
}

void target_rows_with_operators(const RowLoss& loss, const RowChunk& chunk) {
  const at::Tensor s = chunk.student / loss.temperature, scale = chunk.row_weights / loss.temperature;
  const at::Tensor log_sum = s.logsumexp(-1), log_q = (s - log_sum.unsqueeze(1)).clamp_min(lowest_log);
  const at::Tensor q = log_q.exp(), index = chunk.targets.unsqueeze(1);
  const at::Tensor log_prob = log_q.gather(1, index).squeeze(1), entropy = -(q * log_q).sum(-1);
  const auto [value, slope] = token_outcomes(loss, chunk, log_prob);
  chunk.losses.copy_(value + loss.z_loss * log_sum.square() - loss.entropy_coefficient * entropy);
  if (chunk.log_probs.defined()) chunk.log_probs.copy_(log_prob);
  if (chunk.entropies.defined()) chunk.entropies.copy_(entropy);
  if (!chunk.gradient.defined()) return;
  const at::Tensor rest = scale * (2 * loss.z_loss * log_sum + loss.entropy_coefficient * entropy);
  const at::Tensor b = scale * loss.entropy_coefficient;
  const at::Tensor gradient = q * ((rest - scale * slope).unsqueeze(1) + b.unsqueeze(1) * log_q);
  const at::Tensor at_target = log_prob.exp() * (rest + b * log_prob) - scale * slope * log_prob.expm1();
  chunk.gradient.copy_(gradient.scatter(1, index, at_target.unsqueeze(1)));
}

// --- CUDA ----------------------------------------------------------------------------------------

#ifdef NLAC_CUDA

void token_rows_on_cuda(const RowLoss& loss, const RowChunk& chunk) {
  const c10::cuda::CUDAGuard guard(chunk.student.device());
  const int64_t vocab = chunk.student.size(1), k = bucket_of(loss, vocab);
  cuda::TokenRows rows;
  rows.count = chunk.student.size(0);
  rows.vocab = vocab;
  rows.inverse_temperature = static_cast<float>(inverse_of(loss.temperature));
  rows.student = chunk.student.data_ptr<float>();
  rows.student_stride = chunk.student.stride(0);
  if (chunk.gradient.defined()) {
    rows.gradient = chunk.gradient.data_ptr();
    rows.gradient_stride = chunk.gradient.stride(0);
    rows.gradient_is_bf16 = chunk.gradient.scalar_type() == at::kBFloat16;
  }
  rows.row_weights = chunk.row_weights.const_data_ptr<float>();
  rows.losses = chunk.losses.data_ptr<float>();
  at::Tensor top, top_student, top_teacher;  // outlive the launch: the caching allocator keeps to the stream
  if (chunk.teacher.defined()) {
    rows.teacher = chunk.teacher.data_ptr<float>();
    rows.teacher_stride = chunk.teacher.stride(0);
    if (k > 0) {
      std::tie(top_teacher, top) = chunk.teacher.topk(k, -1, true, false);
      top_student = chunk.student.gather(1, top);
      rows.top_k = k;
      rows.top = top.const_data_ptr<int64_t>();
      rows.top_student = top_student.data_ptr<float>();
      rows.top_teacher = top_teacher.data_ptr<float>();
    }
  } else {
    rows.targets = chunk.targets.const_data_ptr<int64_t>();
    rows.old_log_probs = data_of<float>(chunk.old_log_probs);
    rows.advantages = data_of<float>(chunk.advantages);
    rows.reference_log_probs = data_of<float>(chunk.reference_log_probs);
    rows.grad_log_probs = data_of<float>(chunk.grad_log_probs);
    rows.log_probs = data_of<float>(chunk.log_probs);
    rows.entropies = data_of<float>(chunk.entropies);
    rows.ratios = data_of<float>(chunk.ratios);
    rows.clipped = data_of<int32_t>(chunk.clipped);
  }
  const cudaError_t status = cuda::token_rows(loss, rows, c10::cuda::getCurrentCUDAStream().stream());
  check_cuda(status, "the token rows' kernel");
}

#endif

constexpr at::Tensor RowChunk::* row_tensors[] = {
    &RowChunk::student,   &RowChunk::teacher,        &RowChunk::gradient,   &RowChunk::row_weights,
    &RowChunk::targets,   &RowChunk::grad_log_probs, &RowChunk::advantages, &RowChunk::old_log_probs,
    &RowChunk::losses,    &RowChunk::ratios,         &RowChunk::clipped,    &RowChunk::reference_log_probs,
    &RowChunk::entropies, &RowChunk::log_probs,
};

}  // namespace

RowChunk narrow(const RowChunk& chunk, int64_t first, int64_t rows) {
  RowChunk part = chunk;
  for (const auto member : row_tensors) {
    at::Tensor& tensor = part.*member;
    if (tensor.defined()) tensor = tensor.narrow(0, first, rows);
  }
  return part;
}

void token_rows(const RowLoss& loss, const RowChunk& chunk) {
  if (chunk.student.scalar_type() == at::kFloat && chunk.student.size(0) > 0) {
    if (chunk.student.is_cpu()) return token_rows_fused(loss, chunk);
#ifdef NLAC_CUDA
    if (chunk.student.is_cuda()) return token_rows_on_cuda(loss, chunk);
#endif
  }
  token_rows_with_operators(loss, chunk);
}

void token_rows_with_operators(const RowLoss& loss, const RowChunk& chunk) {
  if (chunk.teacher.defined()) {
    teacher_rows_with_operators(loss, chunk);
  } else {
    target_rows_with_operators(loss, chunk);
  }
}

}  // namespace nlac
