// What a text is asked for and what comes of it, and how one token is chosen.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/generate/grammar.h"

namespace nlac {

struct GenerateRequest {
  std::vector<int64_t> tokens;  // the prompt, at least one id
  int64_t max_new_tokens = 256;
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int64_t top_k = 0;  // 0: off
  double min_p = 0.0;
  // Of ids in the prompt or written before: a positive logit is divided by it, a negative one multiplied (Keskar et
  // al., "CTRL", 2019). 1: off
  double repetition_penalty = 1.0;
  std::vector<int64_t> forbidden;  // ids that are never written
  // What the text must be, the forced ids too. A text that its grammar does not let go on ends. Not valid: anything.
  PendingGrammar grammar;
  std::vector<int64_t> forced;          // what is written first, in place of what would be drawn
  uint64_t seed = 0;                    // this request's own stream: independent of what else is in the batch
  std::vector<int64_t> stop_token_ids;  // ends the text; the id is kept as the last token
  // Stop strings are matched on the decoded bytes of the new tokens: token_bytes[id], may be null when no
  // request has stop strings. Generation ends with the token that completes a stop string.
  std::vector<std::string> stop;
  bool keep_hidden = false;   // the result has the hidden states that its tokens were drawn from
  int64_t top_log_probs = 0;  // most probable ids that the result has for each new token; 0: off
};

// stop: an id, a string or the end of its grammar; length: limit or context; stuck: no id could follow in its grammar
enum class FinishReason { stop, length, stuck, cancelled };

struct GenerateResult {
  std::vector<int64_t> tokens;   // new ids, the stop id included
  std::vector<float> log_probs;  // log p of each under the untouched distribution (temperature 1, no filters)
  FinishReason finish_reason = FinishReason::length;
  int64_t cached_tokens = 0;  // prompt tokens found in the cache and not read again
  at::Tensor hidden;          // [new tokens, hidden] in the weights' type, where asked for
  // [new tokens, top_log_probs] row-major, most probable first, the smaller id first among equals; of the distribution
  // that log_probs are of
  std::vector<int32_t> top_tokens;
  std::vector<float> top_log_probs;
};

struct GenerateHooks {
  const std::atomic<bool>* cancelled = nullptr;
  // request index, new token; called on the learner's thread as soon as the token is known
  std::function<void(int64_t, int64_t)> on_token;
  const std::vector<std::string>* token_bytes = nullptr;
};

// Chooses one token from logits [vocab] f32 (contiguous, CPU). `step` counts the request's new tokens: the
// draw is a function of (seed, step) alone. Returns the id; sets `log_prob` under the untouched softmax.
// Order of the filters: temperature, top-k, top-p, min-p (on the tempered distribution).
int64_t sample_token(const float* logits, int64_t vocab, const GenerateRequest& request, int64_t step,
                     float* log_prob);

// Whether the request draws from other logits than the model's; constrain() makes them in place, but for the grammar's
// part. `tokens`: the prompt and what was written. Comes before the filters; what a token is worth, its log
// probability, stays the model's.
bool constrained(const GenerateRequest& request);
void constrain(const GenerateRequest& request, const std::vector<int64_t>& tokens, float* logits);
float log_probability(const float* logits, int64_t vocab, int64_t id);

// Appends the `count` most probable ids and their log probabilities, in the order of GenerateResult::top_tokens.
// Requires 0 < count ≤ vocab.
void append_top(const float* logits, int64_t vocab, int64_t count, GenerateResult* result);

}  // namespace nlac
