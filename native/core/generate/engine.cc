#include "core/generate/engine.h"

#include <chrono>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/generate/sequence.h"

namespace nlac {
namespace {

// How long a step waits for a grammar if nothing else is running. Calls may join or be cancelled
// meanwhile.
constexpr auto kGrammarWait = std::chrono::milliseconds(5);

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
    require(std::isfinite(request.repetition_penalty) && request.repetition_penalty > 0,
            "repetition_penalty must be finite and above 0, got ", request.repetition_penalty);
    for (int64_t id : request.forbidden) {
      require(id >= 0 && id < config.vocab_size, "forbidden id ", id, " is outside the vocabulary of ",
              config.vocab_size);
    }
    require(std::set<int64_t>(request.forbidden.begin(), request.forbidden.end()).size() <
                static_cast<size_t>(config.vocab_size),
            "every id is forbidden");
    for (int64_t id : request.forced) {
      require(id >= 0 && id < config.vocab_size, "forced id ", id, " is outside the vocabulary of ",
              config.vocab_size);
    }
    require(request.top_log_probs >= 0 && request.top_log_probs <= config.vocab_size,
            "top_log_probs must be from 0 to the vocabulary's ", config.vocab_size, ", got ",
            request.top_log_probs);
    require(request.stop.empty() || hooks.token_bytes, "stop strings need the bytes of the tokens");
    for (const std::string& stop : request.stop) require(!stop.empty(), "a stop string is empty");
  }
}

// The exception of a request's grammar, with the request's index.
std::exception_ptr named(size_t index, const std::exception& error) {
  const auto* coded = dynamic_cast<const Error*>(&error);
  std::ostringstream message;
  message << "generate request " << index << ": the grammar cannot be used: " << error.what();
  const bool full = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const char* const code = coded ? coded->code() : full ? "ERR_OUT_OF_MEMORY" : "ERR_INTERNAL";
  return std::make_exception_ptr(Error(code, message.str()));
}

}  // namespace

Engine::Engine(Decoder& decoder, size_t cache_bytes, at::ScalarType dtype, at::Device device)
    : decoder_(decoder),
      block_bytes_(KvStore::block_bytes(decoder.config(), dtype)),
      state_bytes_(StateStore::slot_bytes(decoder.config(), dtype)),
      pool_(kBlockTokens, static_cast<int64_t>(cache_bytes / (recurrent() ? 2 : 1) / block_bytes_)),
      states_(recurrent() ? static_cast<int64_t>(cache_bytes / 2 / state_bytes_) : 0),
      store_(decoder.config(), at::TensorOptions().dtype(dtype).device(device)) {}

Engine::~Engine() = default;

std::shared_ptr<GenerateCall> Engine::submit(std::vector<GenerateRequest> requests, GenerateHooks hooks) {
  const ModelConfig& config = decoder_.config();
  validate(requests, config, hooks);
  const auto call = std::make_shared<GenerateCall>();
  call->requests = std::move(requests);
  call->hooks = std::move(hooks);
  call->results.resize(call->requests.size());
  try {
    for (size_t i = 0; i < call->requests.size(); ++i) {
      const GenerateRequest& request = call->requests[i];
      const int64_t room = config.max_positions - static_cast<int64_t>(request.tokens.size());
      const int64_t limit = std::min(request.max_new_tokens, room);
      if (limit == 0) continue;
      auto sequence = std::make_unique<Sequence>();
      sequence->call = call;
      sequence->index = i;
      sequence->limit = limit;
      sequence->tokens = request.tokens;
      waiting_.push_back(std::move(sequence));
      ++call->unfinished;
    }
  } catch (...) {  // no memory: the caller releases what the hooks point to
    while (!waiting_.empty() && waiting_.back()->call == call) waiting_.pop_back();
    throw;
  }
  return call;
}

std::vector<GenerateResult> Engine::generate(const Weights& weights, std::vector<GenerateRequest> requests,
                                             GenerateHooks hooks) {
  const auto call = submit(std::move(requests), std::move(hooks));
  while (!call->done()) step(weights);
  if (call->failure) std::rethrow_exception(call->failure);
  return std::move(call->results);
}

bool Engine::step(const Weights& weights) {
  if (prepare()) compute(weights);
  return busy();
}

bool Engine::prepare() {
  guarded([&] {
    end_cancelled();
    open_grammars();
    admit();
    if (running_.empty() && !waiting_.empty()) waiting_.front()->request().grammar.wait_for(kGrammarWait);
  });
  return !running_.empty();
}

void Engine::compute(const Weights& weights, const Decoder::BeforeLayer& before_layer) {
  guarded([&] { advance(weights, before_layer); });
}

template <typename Work>
void Engine::guarded(Work work) {
  c10::InferenceMode inference;
  try {
    work();
  } catch (...) {
    fail_all(std::current_exception());
  }
  if (!busy() && store_.capacity() > pool_.budget()) drop_caches();
}

void Engine::fail_all(std::exception_ptr failure) {
  // The contents of blocks and states are unknown now: none is copied or kept, for which there may be no
  // memory either. The text that failed may hold blocks that are in no table yet, so nothing is released.
  for (const Sequences* sequences : {&running_, &waiting_})
    for (const auto& sequence : *sequences) sequence->lose_blocks();
  pool_ = BlockPool(kBlockTokens, pool_.budget());
  states_ = StatePool(states_.budget());
  while (busy()) fail((running_.empty() ? waiting_ : running_).front()->call, failure);
}

void Engine::end_cancelled() {
  const auto end = [&](Sequence& sequence) {
    sequence.result().finish_reason = FinishReason::cancelled;
    sequence.finish();
  };
  for (size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    if (sequence.cancelled()) {
      end(sequence);
      leave(sequence);
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i]->cancelled()) {
      end(*waiting_[i]);
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

void Engine::admit() {
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i]->waits_for_grammar() || awaits_prefix(*waiting_[i])) {
      ++i;
      continue;
    }
    if (!take_blocks(*waiting_[i])) return;
    running_.push_back(std::move(waiting_[i]));
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// Creates matchers for waiting texts whose grammars are compiled.
void Engine::open_grammars() {
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& sequence = *waiting_[i];
    const PendingGrammar& grammar = sequence.request().grammar;
    if (!sequence.waits_for_grammar() ||
        grammar.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      ++i;
      continue;
    }
    try {
      sequence.matcher = std::make_unique<GrammarMatcher>(grammar.get(), sequence.request().stop_token_ids);
    } catch (const std::exception& error) {
      fail(sequence.call, named(sequence.index, error));
      i = 0;  // fail() may have removed earlier ones
    }
  }
}

void Engine::fail(const std::shared_ptr<GenerateCall>& failed, std::exception_ptr failure) {
  const std::shared_ptr<GenerateCall> call = failed;  // the sequences may hold the last references
  call->failure = failure;
  for (size_t i = 0; i < running_.size();) {
    if (running_[i]->call == call) {
      leave(*running_[i]);
    } else {
      ++i;
    }
  }
  std::erase_if(waiting_, [&](const auto& sequence) { return sequence->call == call; });
  call->unfinished = 0;
}

// Returns the texts whose prompts the next step reads, in that order: the oldest first, then those
// that have the fewest tokens left. Sets `first` to the tokens of `most` that are the oldest's: at
// least half, and what the others do not need.
std::vector<Engine::Sequence*> Engine::prompts(int64_t most, int64_t* first) {
  std::vector<Sequence*> prompts;
  for (const auto& sequence : running_)
    if (!sequence->leader && sequence->left() > 0 && !sequence->writing()) prompts.push_back(sequence.get());
  int64_t others = 0;
  for (size_t i = 1; i < prompts.size(); ++i) others += prompts[i]->left();
  *first = most - std::min(most / 2, others);
  if (prompts.size() > 2) {
    std::stable_sort(prompts.begin() + 1, prompts.end(),
                     [](const Sequence* a, const Sequence* b) { return a->left() < b->left(); });
  }
  return prompts;
}

void Engine::advance(const Weights& weights, const Decoder::BeforeLayer& before_layer) {
  std::vector<int64_t> ids;
  std::vector<KvSlice> slices;
  std::vector<Sequence*> complete;                  // by ascending rows, followers after their leaders
  std::vector<int64_t> rows;                        // of the step, from which tokens are sampled
  std::vector<std::pair<int32_t, int32_t>> states;  // from leaders to followers
  // Adds up to `most` tokens of a text to the step; returns their number.
  const auto read = [&](Sequence& sequence, int64_t most) -> int64_t {
    // Skips tokens that others have computed, or compute in this step.
    int64_t at = sequence.read;
    while (at + 1 < sequence.length()) {
      const int64_t block = at / kBlockTokens;
      const int64_t there = block * kBlockTokens + pool_.filled(sequence.blocks[static_cast<size_t>(block)]);
      if (there <= at) break;
      at = std::min(there, sequence.length() - 1);
    }
    int64_t end = std::min(sequence.length(), at + most);
    // A chunk ends where a block ends: another text that shares the block may continue it in this step,
    // and only one text may write to a block.
    if (end < sequence.length()) end = std::max(at, end / kBlockTokens * kBlockTokens);
    const auto mark = sequence.marks.upper_bound(at);
    if (mark != sequence.marks.end()) end = std::min(end, *mark);
    sequence.read = end;
    if (end == at) return 0;
    ids.insert(ids.end(), sequence.tokens.begin() + at, sequence.tokens.begin() + end);
    slices.push_back({&sequence.blocks, at, end - at, sequence.state});
    for (int64_t block = at / kBlockTokens; block * kBlockTokens < end; ++block)
      pool_.set_filled(sequence.blocks[static_cast<size_t>(block)],
                       std::min(kBlockTokens, end - block * kBlockTokens));
    if (end < sequence.length()) return end - at;
    sequence.row = static_cast<int64_t>(rows.size());
    rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    complete.push_back(&sequence);
    for (const auto& other : running_) {
      if (other->leader != &sequence) continue;
      other->leader = nullptr;
      other->read = end;
      other->row = sequence.row;
      if (recurrent()) states.emplace_back(sequence.state, other->state);
      complete.push_back(other.get());
    }
    return end - at;
  };
  // Texts that decode come first: only they need new blocks, for which the last one is preempted.
  bool writing = false;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.leader || !sequence.writing()) continue;
    writing = true;
    if (make_room(sequence)) read(sequence, 1);
  }
  // Where each layer is collected from other ranks, a step of few tokens takes hardly less time.
  int64_t prompt_tokens = writing && !before_layer ? kPromptTokensBeside : kPromptTokens;
  int64_t most = 0;
  for (Sequence* sequence : prompts(prompt_tokens, &most)) {
    prompt_tokens -= read(*sequence, most);
    most = prompt_tokens;
  }
  // A text that has no blocks any more was preempted after its leader's rows; it is drawn again later.
  std::erase_if(complete, [](const Sequence* sequence) { return sequence->blocks.empty(); });
  if (ids.empty()) return;
  const at::Device device = weights.embedding.device();
  const at::Tensor hidden =
      decoder_.infer(weights, at::tensor(ids, at::kLong).to(device), store_, slices, before_layer);
  for (const auto& [from, to] : states) store_.states().copy(from, to);
  for (const auto& sequence : running_) {
    if (sequence->marks.erase(sequence->read) == 0) continue;
    keep_state(*sequence, sequence->state);
    name_blocks(*sequence);
  }
  if (rows.empty()) return;
  const at::Tensor drawn = hidden.index_select(0, at::tensor(rows, at::kLong).to(device));
  draw(weights, drawn, complete);

  for (Sequence* sequence : complete) {
    // A failed call removes all its sequences.
    const auto still = [&](const auto& other) { return other.get() == sequence; };
    if (std::none_of(running_.begin(), running_.end(), still)) continue;
    if (sequence->failure) {
      fail(sequence->call, sequence->failure);
      continue;
    }
    if (sequence->token == Sequence::kNoToken) {
      sequence->end();
      leave(*sequence);
      continue;
    }
    if (sequence->request().keep_hidden) sequence->hidden.push_back(drawn[sequence->row].clone());
    name_blocks(*sequence);
    if (sequence->append()) {
      sequence->finish();
      leave(*sequence);
    }
  }
}

void Engine::drop_caches() {
  NLAC_REQUIRE(!busy(), "ERR_INTERNAL", "drop_caches was called while texts were running");
  pool_.forget();
  states_.forget();
  store_.clear();
}

size_t Engine::cached_bytes() const {
  return static_cast<size_t>(pool_.used()) * block_bytes_ +
         static_cast<size_t>(states_.used()) * state_bytes_;
}

}  // namespace nlac
