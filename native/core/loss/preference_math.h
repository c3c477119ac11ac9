// Losses of one preference pair and of one judged response. No torch. In float64: there is one pair
// or response for hundreds of tokens.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace nlac {

// log σ(x). Neither overflows nor cancels for any finite x.
NLAC_HOST_DEVICE inline double log_sigmoid(double x) {
  return (x < 0 ? x : 0) - std::log1p(std::exp(-std::abs(x)));
}

// σ(x), with a small relative error at both ends: no 1 - σ.
NLAC_HOST_DEVICE inline double sigmoid(double x) {
  const double small = std::exp(-std::abs(x));
  return (x < 0 ? small : 1) / (1 + small);
}

enum class PreferenceLossKind {
  sigmoid,  // DPO: Rafailov et al., "Direct preference optimization", 2023, equation 7
  hinge,    // Zhao et al., "SLiC-HF", 2023, on the ratios of DPO
  ipo,      // Azar et al., "A general theoretical paradigm to understand learning from human
            // preferences", 2023, equation 17, on ratios per token
};

struct PreferenceLoss {
  PreferenceLossKind kind = PreferenceLossKind::sigmoid;
  double beta = 0.1;           // finite, above 0
  double label_smoothing = 0;  // from 0 to below 0.5; of the sigmoid only
};

// A response of a pair: its log probability, summed over `tokens`, and the reference's.
struct PreferenceText {
  double log_prob, reference;
  int64_t tokens;
};

struct PreferenceOutcome {
  double loss;
  double chosen_slope, rejected_slope;  // d loss / d summed log probability
};

// With d = (log_prob - reference) of the chosen text less that of the rejected one:
//   sigmoid  -(1 - ε)·log σ(β·d) - ε·log σ(-β·d), ε = label_smoothing
//   hinge    max(0, 1 - β·d)
//   ipo      (d - 1 / (2β))², where each text's part of d is divided by its number of tokens
// Equation 17 has sums. TRL takes means, and reports that the authors' experiments did; with sums,
// one target margin 1 / (2β) does not fit responses of different lengths.
NLAC_HOST_DEVICE inline PreferenceOutcome preference_outcome(const PreferenceLoss& loss,
                                                             const PreferenceText& chosen,
                                                             const PreferenceText& rejected) {
  const double chosen_ratio = chosen.log_prob - chosen.reference;
  const double rejected_ratio = rejected.log_prob - rejected.reference;
  if (loss.kind == PreferenceLossKind::ipo) {
    const double chosen_share = 1.0 / static_cast<double>(chosen.tokens);
    const double rejected_share = 1.0 / static_cast<double>(rejected.tokens);
    const double error = chosen_ratio * chosen_share - rejected_ratio * rejected_share - 0.5 / loss.beta;
    return {error * error, 2 * error * chosen_share, -2 * error * rejected_share};
  }
  const double x = loss.beta * (chosen_ratio - rejected_ratio);
  if (loss.kind == PreferenceLossKind::hinge) {
    const double slope = x < 1 ? -loss.beta : 0;
    return {x < 1 ? 1 - x : x - x, slope, -slope};  // x - x keeps a NaN
  }
  const double epsilon = loss.label_smoothing;
  const double slope = loss.beta * (epsilon * sigmoid(x) - (1 - epsilon) * sigmoid(-x));
  // A product with an infinite logarithm must not appear where its factor is 0.
  const double wrong = epsilon == 0 ? 0 : epsilon * log_sigmoid(-x);
  return {-(1 - epsilon) * log_sigmoid(x) - wrong, slope, -slope};
}

struct JudgementOutcome {
  double loss, slope;  // slope: d loss / d logit
};

// Binary cross entropy with a logit and a label from 0 to 1 (HOPE, equation 1). Written with σ and
// 1 - σ as σ(logit) and σ(-logit), so that nothing cancels.
NLAC_HOST_DEVICE inline JudgementOutcome judgement_outcome(double logit, double label) {
  const double bad = label == 1 ? 0 : (1 - label) * log_sigmoid(-logit);
  const double good = label == 0 ? 0 : label * log_sigmoid(logit);
  return {-good - bad, (1 - label) * sigmoid(logit) - label * sigmoid(-logit)};
}

}  // namespace nlac
