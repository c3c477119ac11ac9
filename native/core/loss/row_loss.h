// The token losses of one row and one category. No torch: the CPU's loops and the CUDA kernels
// share these definitions.
//
// p is the teacher's distribution over the categories, q the student's: softmaxes of logits /
// temperature. A category is a token, or with a top-k support one of the teacher's k best or the
// bucket of all others. Callers bound logarithms below by -1e30, so that probability 0 times a
// logarithm is 0.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace nlac {

enum class SupportKind { full, top_k, sampled };

struct Support {
  SupportKind kind = SupportKind::full;
  int64_t k = 0;  // top_k: the teacher's k most probable tokens and one bucket for the rest
};

// m = beta·p + (1 - beta)·q is the mixture of the generalized Jensen-Shannon divergence (Agarwal et
// al., "On-policy distillation of language models", 2024, equation 1).
enum class DivergenceKind {
  forward_kl,      // KL(p ‖ q)
  cross_entropy,   // -Σ p log q: forward_kl and the teacher's entropy, with the same gradient
  reverse_kl,      // KL(q ‖ p)
  jensen_shannon,  // beta·KL(p ‖ m) + (1 - beta)·KL(q ‖ m)
};

struct Divergence {
  DivergenceKind kind = DivergenceKind::forward_kl;
  double beta = 0.5;  // of jensen_shannon; in [1e-6, 1 - 1e-6]
};

// The loss of the log probability of a row's target.
enum class TokenLossKind {
  nll,        // -log q(target)
  log_prob,   // log q(target), with a slope that is given
  surrogate,  // the clipped surrogate of PPO, with GRPO's estimate of a KL
};

// A loss of a row. `divergence` and `top_k` apply to rows with a teacher, the others to rows with a
// target.
struct RowLoss {
  double temperature = 1;
  Divergence divergence;
  int64_t top_k = 0;  // 0: every token is a category
  TokenLossKind token = TokenLossKind::nll;
  double z_loss = 0;               // adds z_loss·(log Σ exp(logits / temperature))²
  double entropy_coefficient = 0;  // subtracts entropy_coefficient·H(q)
  double clip_low = 0.2, clip_high = 0.2, kl_coefficient = 0;  // of the surrogate
};

// A category's part of a divergence.
template <typename Real>
struct CategoryPart {
  Real loss;   // adds up to the divergence
  Real score;  // see gradient_by_score
};

// The gradient at a category's logit, times the temperature, is q - p, or where this holds
// q·(score - Σ q·score).
NLAC_HOST_DEVICE inline bool gradient_by_score(DivergenceKind kind) {
  return kind == DivergenceKind::reverse_kl || kind == DivergenceKind::jensen_shannon;
}

// p·log(p / q) + q - p, with d = log p - log q. The terms are never negative and sum to the KL,
// because p and q both sum to 1. So nothing cancels between categories, and an error common to all
// log q drops out. For small d a series replaces the difference of nearly equal numbers; six terms
// leave a relative error of 1e-8.
template <typename Real>
NLAC_HOST_DEVICE inline Real kl_term(Real p, Real q, Real d) {
  if (!(d * d < Real(0.0625))) return p * d + (q - p);
  Real series = d * Real(-1.0 / 5040) + Real(1.0 / 720);
  series = series * d - Real(1.0 / 120);
  series = series * d + Real(1.0 / 24);
  series = series * d - Real(1.0 / 6);
  series = series * d + Real(0.5);
  return p * d * d * series;
}

// beta and 1 - beta, each rounded from its exact value: 1 - rounded(beta) would lose precision.
template <typename Real>
struct Mixture {
  Real beta, rest;
  NLAC_HOST_DEVICE explicit Mixture(double exact)
      : beta(static_cast<Real>(exact)), rest(static_cast<Real>(1 - exact)) {}
};

// beta·p·log(p / m) + (1 - beta)·q·log(q / m). All terms are relative to the larger of p and q, so
// that nothing overflows: e^x is the smaller over the larger, v = e^x - 1, gamma and c are the
// shares of the smaller and the larger in m, and m = 1 + gamma·v = e^x - c·v. If c is below 1/2, m
// may be close to e^x and is computed from there. The terms of the closed form cancel as v goes to
// 0; a series whose terms have one sign replaces it there.
template <typename Real>
NLAC_HOST_DEVICE inline CategoryPart<Real> jensen_shannon_part(const Mixture<Real>& mix, Real log_p,
                                                               Real log_q, Real p, Real q) {
  const Real d = log_p - log_q;
  const bool teacher = d > 0;
  const Real x = teacher ? -d : d, larger = teacher ? p : q;
  const Real gamma = teacher ? mix.rest : mix.beta, c = teacher ? mix.beta : mix.rest;
  const Real v = std::expm1(x), smaller = std::exp(x);
  const Real excess = -c * v / smaller;  // of m over e^x
  const bool from_smaller = c < Real(0.5) && excess < 1;
  const Real m = c < Real(0.5) ? smaller - c * v : 1 + gamma * v;
  const Real log_m = from_smaller ? std::log1p(excess) : c < Real(0.5) ? std::log(m) : std::log1p(gamma * v);
  CategoryPart<Real> part;
  if (v > Real(-0.125)) {
    Real sums[7], sum = 1;  // 1 + gamma + … + gamma^n
    for (int n = 0; n < 7; ++n) {
      sums[n] = sum;
      sum = sum * gamma + 1;
    }
    Real series = 0;
    for (int n = 6; n >= 0; --n) series = sums[n] / Real((n + 1) * (n + 2)) - v * series;
    part.loss = larger * gamma * c * v * v * series;
  } else {
    part.loss = larger * ((from_smaller ? -c : gamma * smaller) * x - m * log_m);
  }
  // log q - log m
  const Real from_larger = from_smaller ? x + log_m : log_m;
  part.score = mix.rest * (!teacher ? -from_larger : from_smaller ? -log_m : x - log_m);
  return part;
}

template <typename Real>
NLAC_HOST_DEVICE inline CategoryPart<Real> category_part(DivergenceKind kind, const Mixture<Real>& mix,
                                                         Real log_p, Real log_q, Real p, Real q) {
  switch (kind) {
    case DivergenceKind::cross_entropy: return {-p * log_q, 0};
    case DivergenceKind::reverse_kl: return {kl_term(q, p, log_q - log_p), log_q - log_p};
    case DivergenceKind::jensen_shannon: return jensen_shannon_part(mix, log_p, log_q, p, q);
    default: return {kl_term(p, q, log_p - log_q), 0};
  }
}

// Inputs of a row with a target, besides its logits. The surrogate needs the old log probability
// and the advantage, and the reference's log probability if kl_coefficient is not 0. log_prob needs
// the slope.
struct TokenInputs {
  double old_log_prob = 0, advantage = 0, reference_log_prob = 0, slope = 0;
};

struct TokenOutcome {
  double loss;          // of the log probability alone
  double slope;         // d loss / d log probability
  double ratio = 1;     // surrogate: q(target) / its old value
  int32_t clipped = 0;  // surrogate: 1 where the upper bound is active, -1 where the lower is
};

// Surrogate: -min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A) with r = exp(log_prob -
// old_log_prob) (Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7), and
// kl_coefficient times exp(d) - d - 1, d = reference_log_prob - log_prob, an unbiased estimate of
// KL(q ‖ reference) (Shao et al., "DeepSeekMath", 2024, equation 4).
NLAC_HOST_DEVICE inline TokenOutcome token_outcome(const RowLoss& loss, double log_prob,
                                                   const TokenInputs& in) {
  TokenOutcome out{-log_prob, -1};
  if (loss.token == TokenLossKind::nll) return out;
  if (loss.token == TokenLossKind::log_prob) return {log_prob, in.slope};
  out.ratio = std::exp(log_prob - in.old_log_prob);
  const bool low = out.ratio < 1 - loss.clip_low && in.advantage < 0;
  const bool high = out.ratio > 1 + loss.clip_high && in.advantage > 0;
  out.clipped = high ? 1 : low ? -1 : 0;
  const double held = high ? 1 + loss.clip_high : low ? 1 - loss.clip_low : out.ratio;
  out.loss = -held * in.advantage;
  out.slope = out.clipped != 0 ? 0 : -out.ratio * in.advantage;
  if (loss.kl_coefficient != 0) {
    const double d = in.reference_log_prob - log_prob, growth = std::expm1(d);
    out.loss += loss.kl_coefficient * (growth - d);
    out.slope -= loss.kl_coefficient * growth;
  }
  return out;
}

// A row with a target once its softmax is known. The gradient at logit i is q_i·(a + b·log q_i),
// except at the target.
struct TokenRow {
  double loss, a, b, at_target;
};

// `log_sum` is log Σ exp(logits / temperature); `scale` multiplies the gradient: weight /
// temperature.
NLAC_HOST_DEVICE inline TokenRow token_row(const RowLoss& loss, const TokenOutcome& token, double log_prob,
                                           double log_sum, double entropy, double scale) {
  TokenRow row;
  row.loss = token.loss + loss.z_loss * log_sum * log_sum - loss.entropy_coefficient * entropy;
  // What the z-loss and the entropy give; the log probability's own part, slope·(1{target} - q), is
  // added so that at the target nothing cancels.
  const double rest = 2 * loss.z_loss * log_sum + loss.entropy_coefficient * entropy;
  row.a = scale * (rest - token.slope);
  row.b = scale * loss.entropy_coefficient;
  row.at_target =
      std::exp(log_prob) * (scale * rest + row.b * log_prob) - scale * token.slope * std::expm1(log_prob);
  return row;
}

}  // namespace nlac
