// Generation: checks the requests, has the prompts read (prefill.cc), then advances every running sequence
// by one token a step.
#include "core/generate/generate.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/generate/prefill.h"

namespace nlac {
namespace {

// Float32 logits that exist at once.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

void validate(const std::vector<GenerateRequest>& requests, const ModelConfig& config,
              const GenerateHooks& hooks) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const GenerateRequest& request = requests[i];
    const auto require = [&](bool condition, const auto&... what) {
      NLAC_REQUIRE(condition, "ERR_VALUE", "generate request ", i, ": ", what...);
    };
    require(!request.tokens.empty(), "the prompt is empty");
    require(static_cast<int64_t>(request.tokens.size()) <= config.max_positions, "the prompt has ",
            request.tokens.size(), " tokens, more than the context of ", config.max_positions);
    for (int64_t id : request.tokens) {
      require(id >= 0 && id < config.vocab_size, "token id ", id, " is outside the vocabulary of ",
              config.vocab_size);
    }
    require(request.max_new_tokens >= 0, "max_new_tokens must not be negative, got ", request.max_new_tokens);
    require(std::isfinite(request.temperature) && request.temperature >= 0,
            "temperature must be finite and not negative, got ", request.temperature);
    require(request.top_p > 0 && request.top_p <= 1, "top_p must be in (0, 1], got ", request.top_p);
    require(request.top_k >= 0, "top_k must not be negative, got ", request.top_k);
    require(request.min_p >= 0 && request.min_p <= 1, "min_p must be in [0, 1], got ", request.min_p);
    require(request.stop.empty() || hooks.token_bytes, "stop strings need the bytes of the tokens");
    for (const std::string& stop : request.stop) require(!stop.empty(), "a stop string is empty");
  }
}

// A sequence that is being written.
struct Running {
  int64_t request;
  int64_t row;  // of the hidden states that its next token is drawn from
  KvCache cache;
  std::string text;  // bytes of the new tokens, kept only where stop strings are asked for
  int64_t token = 0;
  float log_prob = 0;
};

bool raised(const std::atomic<bool>* flag) { return flag && flag->load(std::memory_order_relaxed); }

// Draws every sequence's next token from `hidden`, in ascending order of rows.
void draw(std::vector<Running>& running, const std::vector<GenerateRequest>& requests,
          const std::vector<GenerateResult>& results, const at::Tensor& hidden, const at::Tensor& head) {
  const int64_t vocab = head.size(0);
  const int64_t chunk = std::max<int64_t>(1, kLogitBytes / (4 * vocab));
  size_t first = 0;
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk) {
    const int64_t end = std::min(hidden.size(0), begin + chunk);
    const at::Tensor rows = logits(hidden.slice(0, begin, end), head).to(at::kCPU, at::kFloat).contiguous();
    const float* data = rows.const_data_ptr<float>();
    size_t last = first;
    while (last < running.size() && running[last].row < end) ++last;
    at::parallel_for(static_cast<int64_t>(first), static_cast<int64_t>(last), 1,
                     [&](int64_t from, int64_t to) {
                       for (int64_t i = from; i < to; ++i) {
                         Running& sequence = running[i];
                         const int64_t step = static_cast<int64_t>(results[sequence.request].tokens.size());
                         sequence.token = sample_token(data + (sequence.row - begin) * vocab, vocab,
                                                       requests[sequence.request], step, &sequence.log_prob);
                       }
                     });
    first = last;
  }
}

// Whether the token just appended ends the text. Appends its bytes where stop strings are asked for.
bool stops(const GenerateRequest& request, const GenerateHooks& hooks, Running& sequence) {
  const auto& ids = request.stop_token_ids;
  if (std::find(ids.begin(), ids.end(), sequence.token) != ids.end()) return true;
  if (request.stop.empty()) return false;
  const size_t before = sequence.text.size();
  if (static_cast<size_t>(sequence.token) < hooks.token_bytes->size()) {
    sequence.text += (*hooks.token_bytes)[sequence.token];
  }
  return std::any_of(request.stop.begin(), request.stop.end(), [&](const std::string& stop) {
    // Only a match that ends in the new bytes is news.
    const size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
    return sequence.text.find(stop, from) != std::string::npos;
  });
}

}  // namespace

std::vector<GenerateResult> Generator::generate(const Weights& weights,
                                                const std::vector<GenerateRequest>& requests,
                                                const GenerateHooks& hooks) {
  c10::InferenceMode inference;
  const ModelConfig& config = decoder_.config();
  validate(requests, config, hooks);
  std::vector<GenerateResult> results(requests.size());

  std::vector<int64_t> limits, chosen;  // most new tokens of each request; those with any
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t room = config.max_positions - static_cast<int64_t>(requests[i].tokens.size());
    limits.push_back(std::min(requests[i].max_new_tokens, room));
    if (limits[i] > 0) chosen.push_back(static_cast<int64_t>(i));
  }
  if (chosen.empty()) return results;

  const auto cancel = [&](int64_t request) { results[request].finish_reason = FinishReason::cancelled; };
  Prefill prefill(*this, requests, chosen);
  if (!prefill.read(weights, hooks.cancelled)) {
    for (int64_t request : chosen) cancel(request);
    return results;
  }
  std::vector<Running> running;
  for (ReadPrompt& prompt : prefill.prompts()) {
    results[prompt.request].cached_tokens = prompt.cached_tokens;
    running.push_back({prompt.request, prompt.row, std::move(prompt.cache), {}});
  }
  at::Tensor hidden = prefill.hidden();

  const auto release = [&](Running& sequence) {
    std::vector<int64_t> tokens = requests[sequence.request].tokens;
    const auto& written = results[sequence.request].tokens;
    tokens.insert(tokens.end(), written.begin(), written.end());
    tokens.resize(static_cast<size_t>(sequence.cache.length));  // the last token has not been read
    store(std::move(tokens), std::move(sequence.cache));
  };

  while (true) {
    if (raised(hooks.cancelled)) {
      for (Running& sequence : running) {
        cancel(sequence.request);
        release(sequence);
      }
      return results;
    }
    draw(running, requests, results, hidden, weights.head);

    std::vector<Running> alive;
    alive.reserve(running.size());
    for (Running& sequence : running) {
      GenerateResult& result = results[sequence.request];
      result.tokens.push_back(sequence.token);
      result.log_probs.push_back(sequence.log_prob);
      if (hooks.on_token) hooks.on_token(sequence.request, sequence.token);
      const bool stopped = stops(requests[sequence.request], hooks, sequence);
      if (stopped) result.finish_reason = FinishReason::stop;
      if (stopped || static_cast<int64_t>(result.tokens.size()) == limits[sequence.request]) {
        release(sequence);
      } else {
        sequence.row = static_cast<int64_t>(alive.size());
        alive.push_back(std::move(sequence));
      }
    }
    running = std::move(alive);
    if (running.empty()) return results;

    std::vector<int64_t> ids;
    std::vector<CacheSlice> slices;
    for (Running& sequence : running) {
      ids.push_back(sequence.token);
      slices.push_back({&sequence.cache, 1});
    }
    hidden = decoder_.infer(weights, at::tensor(ids, at::kLong).to(weights.embedding.device()), slices);
  }
}

void Generator::store(std::vector<int64_t> tokens, KvCache cache) {
  const auto begins = [](const std::vector<int64_t>& longer, const std::vector<int64_t>& shorter) {
    return longer.size() >= shorter.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
  };
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (begins(entry->tokens, tokens)) {
      entries_.splice(entries_.begin(), entries_, entry);
      return;
    }
    entry = begins(tokens, entry->tokens) ? entries_.erase(entry) : std::next(entry);
  }
  if (cache.bytes() > cache_bytes_) return;
  entries_.push_front({std::move(tokens), std::move(cache)});
  for (size_t held = cached_bytes(); held > cache_bytes_; entries_.pop_back())
    held -= entries_.back().cache.bytes();
}

void Generator::drop_caches() { entries_.clear(); }

size_t Generator::cached_bytes() const {
  size_t total = 0;
  for (const Entry& entry : entries_) total += entry.cache.bytes();
  return total;
}

}  // namespace nlac
