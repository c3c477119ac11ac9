// One running or waiting text. Only the engine's sources include it.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/generate/cuda_draw.h"
#include "core/generate/engine.h"
#include "core/generate/id_mask.h"

namespace nlac {

// A text under way. The keys and values of the first `read` tokens are in its blocks. The next
// token is sampled once all have been computed.
struct Engine::Sequence {
  static constexpr int64_t kNoToken = -1;

  std::shared_ptr<GenerateCall> call;
  size_t index;                 // of its request
  int64_t limit;                // maximum number of new tokens
  std::vector<int64_t> tokens;  // the prompt and the completion so far
  int64_t read = 0;
  BlockTable blocks;
  int32_t state = StatePool::none;  // of a recurrent model: the slot of the state after `read` tokens
  std::set<int64_t> marks;          // a snapshot of the state is taken after as many tokens
  // Tokens from here on belong to this text only: a shared block is copied before it receives them.
  int64_t own_from = 0;
  int64_t named = 0;   // the number of leading blocks that are named
  bool naming = true;  // false: another text is computing a block of the next name
  // Computes the same tokens in the same blocks; its last hidden state serves both.
  Sequence* leader = nullptr;
  // Follows the new tokens, if there is a grammar. Survives preemption.
  std::unique_ptr<GrammarMatcher> matcher;
  // For sampling on a GPU, if needed: masks of the ids that are not forbidden, and of those in the
  // first `marked` tokens.
  std::vector<uint32_t> permitted, seen;
  int64_t marked = 0;
  std::string text;                // bytes of the new tokens, only with stop strings
  std::vector<at::Tensor> hidden;  // [hidden] each, if requested
  int64_t row = 0;                 // of the step's hidden states, for the next token
  int64_t token = 0;
  float log_prob = 0;
  std::exception_ptr failure;

  const GenerateRequest& request() const { return call->requests[index]; }
  GenerateResult& result() const { return call->results[index]; }
  const GenerateHooks& hooks() const { return call->hooks; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t left() const { return length() - read; }  // tokens that are not computed yet
  size_t step() const { return result().tokens.size(); }
  // Returns the forced next id; kNoToken: it is sampled.
  int64_t forced() const {
    const std::vector<int64_t>& ids = request().forced;
    return step() < ids.size() ? ids[step()] : kNoToken;
  }
  int32_t parent() const { return named == 0 ? BlockPool::none : blocks[static_cast<size_t>(named - 1)]; }
  bool writing() const { return read > 0 && left() == 1; }
  bool waits_for_grammar() const { return request().grammar.valid() && !matcher; }
  bool cancelled() const { return hooks().cancelled && hooks().cancelled->load(std::memory_order_relaxed); }

  // Its blocks and its state are not its own any more: it is prefilled again, if at all.
  void lose_blocks() {
    blocks.clear();
    state = StatePool::none;
    marks.clear();
    read = named = 0;
    leader = nullptr;
  }

  // Whether the next token is sampled on the GPU of `logits`. Otherwise its row is copied to the
  // host.
  bool draws_on_gpu(const at::Tensor& logits) const {
    return can_draw_on_gpu(logits) && request().top_log_probs == 0;
  }

  // Returns the matcher's mask of `vocab` ids; empty if none is allowed.
  std::span<const uint32_t> allowed(int64_t vocab) {
    const auto allowed = matcher->allowed(request().forbidden);
    NLAC_REQUIRE(allowed.empty() || static_cast<int64_t>(allowed.size()) == mask_words(vocab), "ERR_INTERNAL",
                 "the grammar is compiled for another vocabulary");
    return allowed;
  }

  // Sets the masks of `draw`. Returns false if no id is allowed.
  bool constrain_on_gpu(int64_t vocab, CudaDraw& draw) {
    const auto words = static_cast<size_t>(mask_words(vocab));
    if (matcher) {
      draw.allowed = allowed(vocab);
      if (draw.allowed.empty()) return false;
    } else if (!request().forbidden.empty()) {
      if (permitted.empty()) {
        permitted.assign(words, ~uint32_t{0});
        for (const int64_t id : request().forbidden) take_from_mask(permitted.data(), id);
      }
      draw.allowed = permitted;
    }
    if (request().repetition_penalty != 1) {
      seen.resize(words);
      for (; marked < length(); ++marked) add_to_mask(seen.data(), tokens[static_cast<size_t>(marked)]);
      draw.seen = seen;
    }
    return true;
  }

  // Advances the grammar by the sampled or forced token.
  void follow() {
    if (!matcher || matcher->accept(token)) return;
    NLAC_REQUIRE(forced() == kNoToken, "ERR_VALUE", "generate request ", index, ": forced id ", token,
                 " does not fit the grammar");
    nlac::fail("ERR_INTERNAL", "an id that the grammar allowed does not fit it");
  }

  // Appends the sampled token. Returns whether it ends the text.
  bool append() {
    GenerateResult& result = this->result();
    tokens.push_back(token);
    result.tokens.push_back(token);
    result.log_probs.push_back(log_prob);
    if (hooks().on_token) hooks().on_token(static_cast<int64_t>(index), token);
    if (stops()) {
      result.finish_reason = FinishReason::stop;
      return true;
    }
    return static_cast<int64_t>(result.tokens.size()) == limit;
  }

  bool stops() {
    const auto& ids = request().stop_token_ids;
    if (std::find(ids.begin(), ids.end(), token) != ids.end()) return true;
    if (request().stop.empty()) return false;
    const size_t before = text.size();
    const auto& bytes = *hooks().token_bytes;
    if (static_cast<size_t>(token) < bytes.size()) text += bytes[static_cast<size_t>(token)];
    return std::any_of(request().stop.begin(), request().stop.end(), [&](const std::string& stop) {
      // Only a match that ends in the new bytes counts.
      const size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
      return text.find(stop, from) != std::string::npos;
    });
  }

  // Ends the text because no token is allowed.
  void end() {
    result().finish_reason = matcher->complete() ? FinishReason::stop : FinishReason::stuck;
    finish();
  }

  void finish() {
    if (!hidden.empty()) result().hidden = at::stack(hidden);
    --call->unfinished;
  }
};

}  // namespace nlac
