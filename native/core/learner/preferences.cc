// Losses on preferences between responses and on judgements of them.
#include <cmath>

#include "core/learner/internal.h"
#include "core/model/linear.h"

namespace nlac {

using namespace learner;

std::vector<PreferenceOutput> Learner::token_preference(const std::vector<PreferencePair>& pairs,
                                                        const PreferenceLoss& loss, bool with_gradient) {
  const Scoring scoring{.with_gradient = with_gradient};
  return scored(scoring, [&] {
    check_preference(loss);
    std::vector<Text> items;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const PreferencePair& pair = pairs[i];
      NLAC_REQUIRE(std::isfinite(static_cast<float>(pair.weight)), "ERR_VALUE", "pair ", i,
                   ": the weight must be a finite float, got ", pair.weight);
      NLAC_REQUIRE(std::isfinite(pair.reference_chosen) && std::isfinite(pair.reference_rejected),
                   "ERR_VALUE", "pair ", i, ": the reference log probabilities must be finite");
      for (const ScoredText* text : {&pair.chosen, &pair.rejected}) {
        Text item = checked(items.size(), *text);
        NLAC_REQUIRE(item.used(), "ERR_VALUE", "text ", items.size(),
                     ": the response has no token of non-zero weight");
        for (float& weight : item.weights) weight = weight == 0 || pair.weight == 0 ? 0.0f : 1.0f;
        item.with_previous = text == &pair.rejected;
        item.loss_weight = std::abs(pair.weight) / 2;
        items.push_back(std::move(item));
      }
    }

    std::vector<PreferenceOutput> outputs(pairs.size());
    score(items, scoring, [&](const Rows& rows) {
      PreferenceInputs inputs;
      inputs.targets = rows.targets;
      std::vector<size_t> present;  // pairs of this micro-batch
      for (size_t row = 0; row < rows.places.size(); ++row) {
        const size_t text = rows.places[row].text;
        if (row > 0 && text == rows.places[row - 1].text) continue;
        inputs.offsets.push_back(static_cast<int64_t>(row));
        const PreferencePair& pair = pairs[text / 2];
        const bool chosen = text % 2 == 0;
        inputs.references.push_back(chosen ? pair.reference_chosen : pair.reference_rejected);
        if (!chosen) continue;
        inputs.weights.push_back(pair.weight);
        present.push_back(text / 2);
      }
      inputs.offsets.push_back(static_cast<int64_t>(rows.places.size()));
      const PreferenceResult result = linear_token_preference(
          rows.hidden, online_.head, inputs, loss, loss_options(1.0, rows.with_gradient), rows.head_gradient);
      for (size_t k = 0; k < present.size(); ++k) {
        const PreferencePair& pair = pairs[present[k]];
        const double chosen = result.log_probs[2 * k], rejected = result.log_probs[2 * k + 1];
        outputs[present[k]] = {result.losses[k], chosen, rejected,
                               loss.beta * (chosen - pair.reference_chosen),
                               loss.beta * (rejected - pair.reference_rejected)};
      }
      LossResult out;
      out.losses = at::tensor(result.losses, at::kDouble);
      out.grad_hidden = result.grad_hidden;
      return out;
    });
    return outputs;
  });
}

std::vector<Learner::Text> Learner::last_states(const std::vector<JudgedText>& texts,
                                                std::vector<Ids>& extended) const {
  extended.reserve(texts.size());  // items point to its elements
  std::vector<Text> items;
  for (size_t i = 0; i < texts.size(); ++i) {
    const JudgedText& text = texts[i];
    check_text(config_, i, "prompt", text.prompt, text.response);
    // A row is the state before a token. The state after the last token is the one before a further
    // token, which the decoder never reads.
    Ids& response = extended.emplace_back(text.response);
    response.push_back(0);
    std::vector<float> weights(response.size());
    weights.back() = text.weight == 0 ? 0.0f : 1.0f;
    items.push_back({&text.prompt, nullptr, &response, std::move(weights)});
    items.back().loss_weight = std::abs(text.weight);
  }
  return items;
}

at::Tensor Learner::reward_logits(const Rows& rows) const {
  return linear_forward(rows.hidden.to(at::kFloat), master_.value, {}).squeeze(1);
}

std::vector<float> Learner::rewards(const std::vector<JudgedText>& texts) {
  const Scoring scoring;
  return scored(scoring, [&] {
    require_value_head();
    std::vector<Ids> extended;
    std::vector<Text> items = last_states(texts, extended);
    for (Text& item : items) item.weights.back() = 1;
    std::vector<float> output(texts.size());
    score(items, scoring, [&](const Rows& rows) {
      const at::Tensor rewards = reward_logits(rows).sigmoid().to(at::kCPU);
      for (size_t row = 0; row < rows.places.size(); ++row)
        output[rows.places[row].text] = rewards.const_data_ptr<float>()[row];
      return LossResult{};
    });
    return output;
  });
}

std::vector<float> Learner::reward_loss(const std::vector<JudgedText>& texts, bool with_gradient) {
  const Scoring scoring{.with_gradient = with_gradient};
  return scored(scoring, [&] {
    require_value_head();
    for (size_t i = 0; i < texts.size(); ++i) {
      NLAC_REQUIRE(texts[i].label >= 0 && texts[i].label <= 1, "ERR_VALUE", "text ", i,
                   ": the label must be from 0 to 1, got ", texts[i].label);
      NLAC_REQUIRE(std::isfinite(static_cast<float>(texts[i].weight)), "ERR_VALUE", "text ", i,
                   ": the weight must be a finite float, got ", texts[i].weight);
    }
    std::vector<Ids> extended;
    const std::vector<Text> items = last_states(texts, extended);
    std::vector<float> output(texts.size());
    score(items, scoring, [&](const Rows& rows) {
      const at::Tensor logits = reward_logits(rows).to(at::kCPU);
      std::vector<float> losses, gradients;
      for (size_t row = 0; row < rows.places.size(); ++row) {
        const JudgedText& text = texts[rows.places[row].text];
        const JudgementOutcome outcome = judgement_outcome(logits.const_data_ptr<float>()[row], text.label);
        losses.push_back(static_cast<float>(outcome.loss));
        gradients.push_back(static_cast<float>(text.weight * outcome.slope));
        output[rows.places[row].text] = losses.back();
      }
      LossResult result;
      result.losses = at::tensor(losses, at::kFloat);
      if (rows.with_gradient) {
        const at::Tensor gradient = at::tensor(gradients, at::kFloat).to(rows.hidden.device()).unsqueeze(1);
        result.grad_hidden =
            linear_backward(gradient, rows.hidden.to(at::kFloat), master_.value, gradients_->value, {});
      }
      return result;
    });
    return output;
  });
}

}  // namespace nlac
