// Generation requests, their results, and how one token is sampled.
#pragma once

#include <ATen/ATen.h>

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
  // For ids in the prompt or generated before: divides a positive logit, multiplies a negative one
  // (Keskar et al., "CTRL", 2019). 1: off
  double repetition_penalty = 1.0;
  std::vector<int64_t> forbidden;  // ids that are never generated
  // The completion must match it, forced ids included, and ends where the grammar allows no further
  // id. Not valid: no grammar.
  PendingGrammar grammar;
  std::vector<int64_t> forced;          // the first ids, in place of sampled ones
  uint64_t seed = 0;                    // of this request's random stream; does not depend on the batch
  std::vector<int64_t> stop_token_ids;  // ends the text; the id is kept as the last token
  // Matched on the decoded bytes of the new tokens (GenerateHooks::token_bytes). Generation ends
  // with the token that completes a stop string.
  std::vector<std::string> stop;
  bool keep_hidden = false;   // return the hidden states that the tokens were sampled from
  int64_t top_log_probs = 0;  // most probable ids to return for each new token; 0: off
};

// stop: a stop id, a stop string or the end of the grammar; length: the limit or the context;
// stuck: the grammar allowed no id.
enum class FinishReason { stop, length, stuck, cancelled };

struct GenerateResult {
  std::vector<int64_t> tokens;   // new ids, the stop id included
  std::vector<float> log_probs;  // of each, under the model's distribution (temperature 1, no filters)
  FinishReason finish_reason = FinishReason::length;
  int64_t cached_tokens = 0;  // prompt tokens found in the cache
  at::Tensor hidden;          // [new tokens, hidden] in the weights' type, if requested
  // [new tokens, top_log_probs] row-major, most probable first, the smaller id first among equals.
  // Of the same distribution as log_probs.
  std::vector<int32_t> top_tokens;
  std::vector<float> top_log_probs;
};

struct GenerateHooks {
  const std::atomic<bool>* cancelled = nullptr;
  // Called with request index and new token on the learner's thread, as soon as the token is known.
  std::function<void(int64_t, int64_t)> on_token;
  const std::vector<std::string>* token_bytes = nullptr;
};

// Samples one token from logits [vocab] f32 (contiguous, CPU). `step` counts the request's new
// tokens; the draw depends on (seed, step) alone. Returns the id and sets `log_prob` under the
// model's softmax. Order of the filters: temperature, top-k, top-p, min-p (on the tempered
// distribution).
int64_t sample_token(const float* logits, int64_t vocab, const GenerateRequest& request, int64_t step,
                     float* log_prob);

// Whether the request changes the logits before the filters. constrain() changes them in place,
// except for the grammar's mask. `tokens`: the prompt and the completion so far. Log probabilities
// remain the model's.
bool constrained(const GenerateRequest& request);
void constrain(const GenerateRequest& request, const std::vector<int64_t>& tokens, float* logits);
float log_probability(const float* logits, int64_t vocab, int64_t id);

// Appends the `count` most probable ids and their log probabilities, in the order of
// GenerateResult::top_tokens. Requires 0 < count ≤ vocab.
void append_top(const float* logits, int64_t vocab, int64_t count, GenerateResult* result);

}  // namespace nlac
