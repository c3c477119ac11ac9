// The losses. Each is a callback on the rows of a micro-batch (micro_batches.cc).
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/learner/internal.h"
#include "core/model/linear.h"

namespace nlac {

using namespace learner;

LossOutput Learner::token_nll(const std::vector<ScoredText>& texts, bool with_gradient) {
  const Scoring scoring{.with_gradient = with_gradient};
  return scored(scoring, [&] {
    const std::vector<Text> items = checked(texts);
    LossOutput output{zeros_for(items)};
    score(items, scoring, [&](const Rows& rows) {
      LossResult result = linear_token_nll(rows.hidden, online_.head, rows.targets, rows.row_weights, {},
                                           loss_options(1.0, rows.with_gradient), rows.head_gradient);
      rows.scatter(result.losses, [&](size_t text) { return output.losses[text].data(); });
      return result;
    });
    return output;
  });
}

LossOutput Learner::token_kl(const std::vector<DistilledText>& texts, double temperature,
                             const Support& support, bool with_gradient, const Divergence& divergence,
                             int64_t detail) {
  const bool without_teacher = support.kind == SupportKind::sampled && detail < 0;
  Scoring scoring{.with_gradient = with_gradient};
  if (!without_teacher) scoring.teacher = WeightSet::target;
  return scored(scoring, [&] {
    NLAC_REQUIRE(detail <= config_.vocab_size, "ERR_VALUE", "detail must be at most the vocabulary of ",
                 config_.vocab_size, ", got ", detail);
    check_temperature(temperature);
    check_divergence(divergence, support);
    std::vector<Text> items;
    for (size_t i = 0; i < texts.size(); ++i) {
      const DistilledText& text = texts[i];
      check_text(config_, i, "student's context", text.student, text.response);
      if (!without_teacher) check_text(config_, i, "teacher's context", text.teacher, text.response);
      items.push_back({&text.student, without_teacher ? nullptr : &text.teacher, &text.response,
                       spread_weights(i, {static_cast<float>(text.weight)}, text.response.size()),
                       without_teacher ? at::Tensor() : text.teacher_hidden});
      if (!items[i].teacher_hidden.defined()) continue;
      const at::Tensor& kept = items[i].teacher_hidden;
      const int64_t tokens = static_cast<int64_t>(text.response.size());
      NLAC_REQUIRE(kept.sizes() == at::IntArrayRef({tokens, config_.hidden_size}) &&
                       kept.scalar_type() == options_.dtype,
                   "ERR_VALUE", "text ", i, ": the teacher's hidden states must be [", tokens, ", ",
                   config_.hidden_size, "] ", c10::toString(options_.dtype), ", got ", kept.sizes(), ' ',
                   c10::toString(kept.scalar_type()));
    }
    LossOutput output{zeros_for(items)};
    const std::vector<std::vector<float>>& zeros = output.losses;
    for (size_t i = 0; detail >= 0 && i < texts.size(); ++i) {
      const size_t tops = zeros[i].size() * static_cast<size_t>(detail);
      const KlDetail::Side side{zeros[i], std::vector<float>(tops), std::vector<int32_t>(tops)};
      output.details.push_back({side, side});
    }
    const auto give = [&](const Rows& rows, const RowDetail& from, KlDetail::Side KlDetail::* to) {
      const auto side = [&](size_t text) -> KlDetail::Side& { return output.details[text].*to; };
      rows.scatter(from.log_probs, [&](size_t text) { return side(text).log_probs.data(); });
      if (detail == 0) return;
      rows.scatter(from.top, [&](size_t text) { return side(text).top.data(); }, detail);
      rows.scatter(from.top_log_probs, [&](size_t text) { return side(text).top_log_probs.data(); }, detail);
    };
    const Weights* teacher = without_teacher ? nullptr : &weights(WeightSet::target);
    score(items, scoring, [&](const Rows& rows) {
      LossOptions options = loss_options(temperature, rows.with_gradient);
      options.detail = detail;
      LossResult result = teacher ? linear_token_kl(rows.hidden, online_.head, rows.teacher_hidden,
                                                    teacher->head, rows.row_weights, rows.targets, divergence,
                                                    support, options, rows.head_gradient)
                                  : linear_token_nll(rows.hidden, online_.head, rows.targets,
                                                     rows.row_weights, {}, options, rows.head_gradient);
      rows.scatter(result.losses, [&](size_t text) { return output.losses[text].data(); });
      if (detail < 0) return result;
      give(rows, result.detail, &KlDetail::online);
      give(rows, result.teacher_detail, &KlDetail::target);
      return result;
    });
    return output;
  });
}

std::vector<SurrogateOutput> Learner::token_surrogate(const std::vector<SurrogateText>& texts,
                                                      const SurrogateSettings& settings) {
  const Scoring scoring{.with_gradient = settings.with_gradient};
  return scored(scoring, [&] {
    const std::optional<ValueOptions>& value = settings.value;
    const bool with_reference = settings.surrogate.kl_coefficient != 0;
    check_temperature(settings.temperature);
    check_surrogate(settings.surrogate);
    NLAC_REQUIRE(std::isfinite(settings.entropy_coefficient), "ERR_VALUE",
                 "the entropy's coefficient must be finite, got ", settings.entropy_coefficient);
    if (value) {
      require_value_head();
      check_at_least_0("the value loss's coefficient", value->coefficient);
      check_at_least_0("the value's clip", value->clip);
    }
    std::vector<Text> items;
    std::vector<SurrogateOutput> outputs;
    for (size_t i = 0; i < texts.size(); ++i) {
      const SurrogateText& text = texts[i];
      items.push_back(checked(i, text));
      const auto check = [&](const char* name, const std::vector<float>& list) {
        check_list(i, name, list, items[i].weights);
      };
      check("old log probabilities", text.old_log_probs);
      check("advantages", text.advantages);
      if (with_reference) check("reference log probabilities", text.reference_log_probs);
      if (value) {
        check("returns", text.returns);
        check("old values", text.old_values);
      }
      const std::vector<float> zeros(text.response.size());
      outputs.push_back({zeros, zeros, zeros, zeros, std::vector<int32_t>(zeros.size()),
                         value ? zeros : std::vector<float>{}, value ? zeros : std::vector<float>{}});
    }

    score(items, scoring, [&](const Rows& rows) {
      const auto input = [&](std::vector<float> SurrogateText::* list) {
        return rows.gather([&](size_t text) { return (texts[text].*list).data(); });
      };
      const auto give = [&](auto SurrogateOutput::* list, const at::Tensor& values) {
        rows.scatter(values, [&](size_t text) { return (outputs[text].*list).data(); });
      };
      const SurrogateInputs inputs{
          rows.targets, input(&SurrogateText::old_log_probs), input(&SurrogateText::advantages),
          with_reference ? input(&SurrogateText::reference_log_probs) : at::Tensor()};
      LossOptions options = loss_options(settings.temperature, rows.with_gradient);
      options.real_gradient = value.has_value();
      LossResult result =
          linear_token_surrogate(rows.hidden, online_.head, inputs, rows.row_weights, settings.surrogate,
                                 {0, settings.entropy_coefficient, true}, options, rows.head_gradient);
      give(&SurrogateOutput::losses, result.losses);
      give(&SurrogateOutput::log_probs, result.log_probs);
      give(&SurrogateOutput::entropies, result.entropies);
      give(&SurrogateOutput::ratios, result.ratios);
      give(&SurrogateOutput::clipped, result.clipped);
      if (!value) return result;

      const at::Tensor values = predicted_values(rows);
      const LossResult of_values =
          value_loss(rows, values, input(&SurrogateText::returns), input(&SurrogateText::old_values), *value);
      give(&SurrogateOutput::values, values);
      give(&SurrogateOutput::value_losses, of_values.losses);
      result.losses += of_values.losses;
      if (rows.with_gradient && !value->detached) result.grad_hidden += of_values.grad_hidden;
      return result;
    });
    return outputs;
  });
}

at::Tensor Learner::predicted_values(const Rows& rows) const {
  return linear_forward(rows.hidden.to(at::kFloat), master_.value, master_.value_bias).squeeze(1);
}

LossResult Learner::value_loss(const Rows& rows, const at::Tensor& values, const at::Tensor& returns,
                               const at::Tensor& old_values, const ValueOptions& options) {
  at::Tensor slopes = values - returns;
  at::Tensor squares = slopes.square();
  if (options.clip > 0) {
    const at::Tensor held = values.clamp(old_values - options.clip, old_values + options.clip);
    const at::Tensor held_squares = (held - returns).square();
    // Where the clipped value's square is larger, the loss does not depend on v.
    slopes = slopes.masked_fill(held_squares > squares, 0);
    squares = at::maximum(squares, held_squares);
  }
  LossResult result;
  result.losses = squares / 2;
  if (rows.with_gradient) {
    const at::Tensor gradients = (rows.row_weights * slopes * options.coefficient).unsqueeze(1);
    result.grad_hidden = linear_backward(gradients, rows.hidden.to(at::kFloat), master_.value,
                                         gradients_->value, gradients_->value_bias);
  }
  return result;
}

std::vector<SoftQOutput> Learner::soft_q(const std::vector<SoftQText>& texts, const SoftQOptions& options) {
  const Scoring scoring{.teacher = WeightSet::target, .with_gradient = options.with_gradient};
  return scored(scoring, [&] {
    require_q_heads();
    check_soft_q(options);
    std::vector<Text> items;
    std::vector<SoftQOutput> outputs;
    for (size_t i = 0; i < texts.size(); ++i) {
      items.push_back(checked(i, texts[i]));
      items[i].teacher = &texts[i].prompt;
      check_list(i, "rewards", texts[i].rewards, items[i].weights);
      const std::vector<float> zeros(texts[i].response.size());
      outputs.push_back({zeros, zeros, zeros, zeros, zeros});
    }
    const Weights& target = weights(WeightSet::target);

    score(items, scoring, [&](const Rows& rows) {
      const auto give = [&](std::vector<float> SoftQOutput::* list, const at::Tensor& values) {
        rows.scatter(values, [&](size_t text) { return (outputs[text].*list).data(); });
      };
      // A text's last action is followed by a row of another text.
      std::vector<uint8_t> terminal(rows.places.size(), 1);
      for (size_t row = 0; row + 1 < terminal.size(); ++row)
        terminal[row] = rows.places[row].text != rows.places[row + 1].text;
      const SoftQRows inputs{
          rows.targets, rows.gather([&](size_t text) { return texts[text].rewards.data(); }),
          at::tensor(terminal, at::kByte).to(options_.device, at::kBool), rows.row_weights};
      SoftQGradients gradients;
      if (rows.with_gradient) gradients = {rows.head_gradient, gradients_->q};
      const SoftQResult result =
          linear_soft_q({rows.hidden, online_.head, online_.q}, {rows.teacher_hidden, target.head, target.q},
                        inputs, options, gradients);
      give(&SoftQOutput::q_losses, result.q_losses);
      give(&SoftQOutput::policy_losses, result.policy_losses);
      give(&SoftQOutput::q, result.q);
      give(&SoftQOutput::targets, result.targets);
      give(&SoftQOutput::entropies, result.entropies);
      LossResult loss;
      loss.losses = result.q_losses + result.policy_losses;
      loss.grad_hidden = result.grad_hidden;
      return loss;
    });
    return outputs;
  });
}

}  // namespace nlac
