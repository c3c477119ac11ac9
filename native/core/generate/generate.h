// Batched, cached text generation. Requests of a call run together: prompts are prefilled in packed chunks,
// then every running sequence advances by one token a step until it stops. Caches of finished sequences are
// kept and found again by their token ids, so a conversation that grows by appending never re-reads its
// history. Thread rule: the learner's thread; `cancelled` and `on_token` may be served by others.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "core/model/decoder.h"
#include "core/model/weights.h"

namespace nlac {

struct GenerateRequest {
  std::vector<int64_t> tokens;  // the prompt, at least one id
  int64_t max_new_tokens = 256;
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int64_t top_k = 0;  // 0: off
  double min_p = 0.0;
  uint64_t seed = 0;                    // this request's own stream: independent of what else is in the batch
  std::vector<int64_t> stop_token_ids;  // ends the text; the id is kept as the last token
  // Stop strings are matched on the decoded bytes of the new tokens: token_bytes[id], may be null when no
  // request has stop strings. Generation ends with the token that completes a stop string.
  std::vector<std::string> stop;
};

enum class FinishReason { stop, length, cancelled };  // stop: an id or a string; length: limit or context

struct GenerateResult {
  std::vector<int64_t> tokens;   // new ids, the stop id included
  std::vector<float> log_probs;  // log p of each under the untouched distribution (temperature 1, no filters)
  FinishReason finish_reason = FinishReason::length;
  int64_t cached_tokens = 0;  // prompt tokens found in the cache and not read again
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

class Generator {
 public:
  // `cache_bytes`: what finished sequences' caches may occupy together; the least recently used go first.
  Generator(Decoder& decoder, size_t cache_bytes) : decoder_(decoder), cache_bytes_(cache_bytes) {}

  // Throws ERR_VALUE for a bad request (empty prompt, id outside the vocabulary, prompt longer than the
  // context, a sampling parameter out of range), naming its index; then nothing was generated. Throws
  // ERR_NOT_FINITE when the model's logits are not finite.
  //
  // Prompts of one call that begin alike are read once up to where they part. A request's draws depend on
  // its own seed alone; its logits may differ in the last bits with what else is in the batch, because a
  // matrix product rounds by its shape (visible in bfloat16, and a near tie may then fall the other way).
  std::vector<GenerateResult> generate(const Weights& weights, const std::vector<GenerateRequest>& requests,
                                       const GenerateHooks& hooks);
  // Must be called whenever the weights change.
  void drop_caches();
  size_t cached_bytes() const;

 private:
  struct Entry {
    std::vector<int64_t> tokens;  // ids whose keys and values `cache` holds
    KvCache cache;
  };
  class Prefill;  // one call's prompts, as a tree of shared prefixes

  // Keeps `cache` for later calls, unless an entry that begins with its tokens is there already.
  void store(std::vector<int64_t> tokens, KvCache cache);

  Decoder& decoder_;
  size_t cache_bytes_;
  std::list<Entry> entries_;  // most recently used first; none's tokens begin another's
};

}  // namespace nlac
