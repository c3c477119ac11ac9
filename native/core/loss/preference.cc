#include "core/loss/preference.h"

#include <cmath>
#include <limits>

#include "core/error.h"

namespace nlac {
namespace {

void check_inputs(const at::Tensor& hidden, const PreferenceInputs& inputs) {
  const std::vector<int64_t>& offsets = inputs.offsets;
  NLAC_REQUIRE(offsets.size() % 2 == 1, "ERR_SHAPE", "offsets: two texts a pair and the end are needed, not ",
               offsets.size());
  const size_t texts = offsets.size() - 1;
  NLAC_REQUIRE(inputs.references.size() == texts, "ERR_SHAPE",
               "reference log probabilities: one a text is needed, ", texts, ", not ",
               inputs.references.size());
  NLAC_REQUIRE(inputs.weights.size() == texts / 2, "ERR_SHAPE", "weights: one a pair is needed, ", texts / 2,
               ", not ", inputs.weights.size());
  NLAC_REQUIRE(hidden.defined() && hidden.dim() == 2, "ERR_SHAPE", "hidden states must have two dimensions");
  NLAC_REQUIRE(offsets.front() == 0 && offsets.back() == hidden.size(0), "ERR_SHAPE",
               "offsets must begin with 0 and end with the number of rows, ", hidden.size(0));
  for (size_t text = 0; text < texts; ++text) {
    NLAC_REQUIRE(offsets[text] < offsets[text + 1], "ERR_SHAPE", "text ", text,
                 " has no row: offsets must increase");
    NLAC_REQUIRE(std::isfinite(inputs.references[text]), "ERR_VALUE",
                 "reference log probabilities must be finite");
  }
  for (const double weight : inputs.weights)
    NLAC_REQUIRE(std::isfinite(weight), "ERR_VALUE", "weights must be finite");
}

// [rows] f64 on `device`: of(text) at every row of a text.
template <typename Of>
at::Tensor spread(const std::vector<int64_t>& offsets, at::Device device, Of of) {
  std::vector<double> values;
  for (size_t text = 0; text + 1 < offsets.size(); ++text)
    values.insert(values.end(), static_cast<size_t>(offsets[text + 1] - offsets[text]), of(text));
  return at::tensor(values, at::kDouble).to(device);
}

}  // namespace

void check_preference(const PreferenceLoss& loss) {
  NLAC_REQUIRE(std::isfinite(loss.beta) && loss.beta > 0, "ERR_VALUE",
               "beta must be finite and above 0, not ", loss.beta);
  NLAC_REQUIRE(loss.label_smoothing >= 0 && loss.label_smoothing < 0.5, "ERR_VALUE",
               "label smoothing must be from 0 to below 0.5, not ", loss.label_smoothing);
  NLAC_REQUIRE(loss.label_smoothing == 0 || loss.kind == PreferenceLossKind::sigmoid, "ERR_VALUE",
               "label smoothing is for the sigmoid loss only");
}

PreferenceResult linear_token_preference(const at::Tensor& hidden, const at::Tensor& head,
                                         const PreferenceInputs& inputs, const PreferenceLoss& loss,
                                         const LossOptions& options, const at::Tensor& grad_head) {
  check_preference(loss);
  check_inputs(hidden, inputs);
  const std::vector<int64_t>& offsets = inputs.offsets;
  const size_t pairs = inputs.weights.size();

  LossOptions without_gradient = options;
  without_gradient.with_gradient = false;
  const at::Tensor used = spread(offsets, hidden.device(),
                                 [&](size_t text) { return inputs.weights[text / 2] == 0 ? 0.0 : 1.0; });
  const at::Tensor log_probs =
      linear_token_log_probs(hidden, head, inputs.targets, used, {}, false, without_gradient, {})
          .log_probs.to(at::kCPU, at::kDouble)
          .contiguous();
  const double* const log_prob = log_probs.const_data_ptr<double>();

  PreferenceResult result;
  for (size_t text = 0; text + 1 < offsets.size(); ++text) {
    double sum = 0;
    for (int64_t row = offsets[text]; row < offsets[text + 1]; ++row) sum += log_prob[row];
    result.log_probs.push_back(sum);
  }
  std::vector<double> slopes;  // [2·pairs], with the pair's weight
  bool finite = true;
  for (size_t pair = 0; pair < pairs; ++pair) {
    const auto side = [&](size_t text) {
      return PreferenceText{result.log_probs[text], inputs.references[text],
                            offsets[text + 1] - offsets[text]};
    };
    const double weight = inputs.weights[pair];
    const PreferenceOutcome outcome = weight == 0
                                          ? PreferenceOutcome{0, 0, 0}
                                          : preference_outcome(loss, side(2 * pair), side(2 * pair + 1));
    result.losses.push_back(outcome.loss);
    slopes.push_back(weight * outcome.chosen_slope);
    slopes.push_back(weight * outcome.rejected_slope);
    finite = finite && std::isfinite(outcome.loss) && std::isfinite(slopes[2 * pair]) &&
             std::isfinite(slopes[2 * pair + 1]);
  }
  if (!options.with_gradient) return result;
  if (!finite) {
    result.grad_hidden = at::full_like(hidden, std::numeric_limits<double>::quiet_NaN());
    return result;
  }
  // Rows of a slope of 0, as the hinge has beyond its margin, cost nothing.
  const at::Tensor row_weights = spread(offsets, hidden.device(), [&](size_t text) { return -slopes[text]; });
  result.grad_hidden =
      linear_token_nll(hidden, head, inputs.targets, row_weights, {}, options, grad_head).grad_hidden;
  return result;
}

}  // namespace nlac
