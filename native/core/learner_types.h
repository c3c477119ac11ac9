// The learner's options, and the inputs and results of its loss calls.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/loss/linear_loss.h"
#include "core/model/adapter.h"
#include "core/model/weights.h"
#include "core/ranks/rank_group.h"

namespace nlac {

enum class WeightSet { online, target, reference };  // θ, θ̄, and the frozen copy of θ

struct LearnerOptions {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;  // or kFloat
  // Generation multiplies by matrices rounded to int8. Nothing else does. On the CPU only.
  bool int8_generation = false;
  bool gradient_checkpointing = false;
  // Coefficient of the load-balance loss of a mixture of experts. Each loss with gradients adds it
  // per micro-batch, times the sum of the absolute weights of its tokens, pairs or judged texts.
  // nullopt: the model's own coefficient.
  std::optional<double> balance = 0.0;
  int64_t micro_batch_tokens = 2048;     // packed tokens of one forward and backward
  size_t cache_bytes = size_t{2} << 30;  // of keys and values in generation, per θ and θ̄
  Heads heads = Heads::none;             // for load() and create(); resume() takes the saved ones
  // Without it every parameter is trained.
  std::optional<AdapterOptions> adapter;
  // The ranks that train together. All of them make and resume their learners at the same time.
  std::shared_ptr<RankGroup> ranks;
  int sharding = 0;  // with ranks: 0 (every rank holds everything), 1, 2 or 3
  // With sharding 3: generation collects each layer before it is used, in every step, instead of all
  // layers once.
  bool layerwise_generation = false;
};

// A response scored after a prompt. Row j of the losses belongs to response[j]. A token of weight 0
// is left out: its results are 0. A text that has only such tokens is skipped.
struct ScoredText {
  std::vector<int64_t> prompt, response;  // both at least one id
  std::vector<float> weights = {1.0f};    // of each token of the response, or one for all
};
struct DistilledText {
  std::vector<int64_t> student, teacher, response;  // contexts of θ and of θ̄, the text both score
  double weight = 1.0;
  // [response tokens, hidden] in the learner's dtype: the hidden states of θ̄ from which the
  // response was sampled after `teacher` (GenerateResult::hidden). Undefined: they are computed.
  at::Tensor teacher_hidden = {};
};

// Log probabilities of a response under θ and θ̄, at the loss's temperature: of its tokens
// [response tokens], and of the k most probable tokens [response tokens × k], row-major, most
// probable first. All are 0 in a text of weight 0.
struct KlDetail {
  struct Side {
    std::vector<float> log_probs, top_log_probs;
    std::vector<int32_t> top;
  };
  Side online, target;
};

struct LossOutput {
  std::vector<std::vector<float>> losses;  // per sequence, one per response token, unweighted, nats
  std::vector<KlDetail> details = {};      // per sequence, of token_kl with `detail`
};

// Lists are [response tokens]. Entries at tokens of weight 0 are ignored.
struct SurrogateText : ScoredText {
  std::vector<float> old_log_probs, advantages;
  std::vector<float> reference_log_probs;  // needed where kl_coefficient is not 0
  std::vector<float> returns, old_values;  // needed where the value head is trained
};

// coefficient · ½ max((v - R)², (v' - R)²), where v' is v clipped to within `clip` of the old
// value. Schulman et al., "Proximal policy optimization algorithms", 2017, have the square alone;
// the clip comes from their code.
struct ValueOptions {
  double coefficient = 0;  // ≥ 0
  double clip = 0;         // ≥ 0; 0 is none
  bool detached = false;   // the gradient ends at the head: the decoder's layers get none of it
};

struct SurrogateSettings {
  double temperature = 1;
  SurrogateOptions surrogate;
  double entropy_coefficient = 0;     // of the entropy that is subtracted
  std::optional<ValueOptions> value;  // trains the value head too
  bool with_gradient = true;
};

// Results of one text, [response tokens] each, as in LossResult. Values and value losses are
// unweighted and without the coefficient. They are empty if the value head is not trained.
struct SurrogateOutput {
  std::vector<float> losses, log_probs, entropies, ratios;
  std::vector<int32_t> clipped;
  std::vector<float> values, value_losses;
};

// An episode as one text. Response tokens with a nonzero weight are the actions, in order; the last
// is terminal. The state before an action is all text before it.
struct SoftQText : ScoredText {
  std::vector<float> rewards;  // [response tokens], received after each; read at actions only
};

// Results of one text, [response tokens] each, as in SoftQResult.
struct SoftQOutput {
  std::vector<float> q_losses, policy_losses, q, targets, entropies;
};

// A preferred response and a rejected one. A token counts if its weight is not 0; the weight's size
// is not used. Each response needs such a token.
struct PreferencePair {
  ScoredText chosen, rejected;
  double reference_chosen = 0, reference_rejected = 0;  // log probabilities under the reference, nats
  double weight = 1;                                    // a pair of weight 0 has results of 0
};

// Results of one pair. Log probabilities are sums over the tokens that count; a reward is
// beta·(log probability - reference).
struct PreferenceOutput {
  double loss = 0;  // unweighted
  double chosen_log_prob = 0, rejected_log_prob = 0, chosen_reward = 0, rejected_reward = 0;
};

struct JudgedText {
  std::vector<int64_t> prompt, response;  // both at least one id
  double label = 0;                       // from 0 to 1: the probability that the response is good
  double weight = 1;                      // a text of weight 0 has a loss of 0
};

}  // namespace nlac
