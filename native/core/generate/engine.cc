#include "core/generate/engine.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/generate/cuda_draw.h"
#include "core/generate/id_mask.h"
#include "core/generate/logit_kernels.h"

namespace nlac {
namespace {

// Float32 logits that exist at once. On a GPU 256 texts are one product, which reads the vocabulary's matrix once.
constexpr int64_t kLogitBytes = int64_t{64} << 20, kLogitBytesOnGpu = int64_t{256} << 20;
// How long a step waits for a grammar where there is nothing else to do: others may join, or be cancelled, meanwhile.
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

// What was thrown for a request's grammar, with the request's index.
std::exception_ptr named(size_t index, const std::exception& error) {
  const auto* coded = dynamic_cast<const Error*>(&error);
  std::ostringstream message;
  message << "generate request " << index << ": the grammar cannot be used: " << error.what();
  return std::make_exception_ptr(Error(coded ? coded->code() : "ERR_INTERNAL", message.str()));
}

// Calls work(sequence, its index), side by side. What is thrown is the sequence's failure.
template <typename Sequences, typename Work>
void for_each(const Sequences& sequences, const Work& work) {
  at::parallel_for(0, static_cast<int64_t>(sequences.size()), 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      auto& sequence = *sequences[static_cast<size_t>(i)];
      try {
        work(sequence, static_cast<size_t>(i));
      } catch (...) {
        sequence.failure = std::current_exception();
      }
    }
  });
}

int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

// A text under way. Some of its tokens have been read, their keys and values are in its blocks; the next token is drawn
// once all have been.
struct Engine::Sequence {
  static constexpr int64_t kNoToken = -1;

  std::shared_ptr<GenerateCall> call;
  size_t index;                 // of its request
  int64_t limit;                // most new tokens
  std::vector<int64_t> tokens;  // the prompt and what was written
  int64_t read = 0;
  BlockTable blocks;
  // Tokens from here on are this text's alone: a shared block is copied before it takes them.
  int64_t own_from = 0;
  int64_t named = 0;   // blocks that have their names, from the first on
  bool naming = true;  // false: another text is about to read what the next block would be named by
  // Reads the same tokens into the same blocks for this one too; the last one's hidden state serves both.
  Sequence* leader = nullptr;
  // Where there is a grammar: where the new tokens stand in it. Stays when the blocks are given up.
  std::unique_ptr<GrammarMatcher> matcher;
  // Where tokens are drawn on a GPU, and need them: masks of the ids that are not forbidden, and of those in the first
  // `marked` tokens.
  std::vector<uint32_t> permitted, seen;
  int64_t marked = 0;
  std::string text;                // bytes of the new tokens, kept only where stop strings are asked for
  std::vector<at::Tensor> hidden;  // [hidden] each, where they are kept
  int64_t row = 0;                 // of the step's hidden states, that the next token is drawn from
  int64_t token = 0;
  float log_prob = 0;
  std::exception_ptr failure;

  const GenerateRequest& request() const { return call->requests[index]; }
  GenerateResult& result() const { return call->results[index]; }
  const GenerateHooks& hooks() const { return call->hooks; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  size_t step() const { return result().tokens.size(); }
  // The id that comes next in any case; kNoToken: it is drawn.
  int64_t forced() const {
    const std::vector<int64_t>& ids = request().forced;
    return step() < ids.size() ? ids[step()] : kNoToken;
  }
  int32_t parent() const { return named == 0 ? BlockPool::none : blocks[static_cast<size_t>(named - 1)]; }
  bool writing() const { return read > 0 && length() - read == 1; }
  bool waits_for_grammar() const { return request().grammar.valid() && !matcher; }
  bool cancelled() const { return hooks().cancelled && hooks().cancelled->load(std::memory_order_relaxed); }

  // Whether the next token is drawn on the GPU that `logits` lie on; else its row of them is copied to the host.
  bool draws_on_gpu(const at::Tensor& logits) const {
    return can_draw_on_gpu(logits) && request().top_log_probs == 0;
  }

  // The matcher's mask of `vocab` ids; empty where none may come.
  std::span<const uint32_t> allowed(int64_t vocab) {
    const auto allowed = matcher->allowed(request().forbidden);
    NLAC_REQUIRE(allowed.empty() || static_cast<int64_t>(allowed.size()) == mask_words(vocab), "ERR_INTERNAL",
                 "the grammar is compiled for another vocabulary");
    return allowed;
  }

  // Tells `draw` which of `vocab` ids may come, and which were there. False where none may come.
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

  // The grammar goes on with the token that was drawn or forced.
  void follow() {
    if (!matcher || matcher->accept(token)) return;
    NLAC_REQUIRE(forced() == kNoToken, "ERR_VALUE", "generate request ", index, ": forced id ",
                 token, " does not fit the grammar");
    nlac::fail("ERR_INTERNAL", "an id that the grammar allowed does not fit it");
  }

  // Takes the token that was drawn; whether it ends the text.
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
      // Only a match that ends in the new bytes is news.
      const size_t from = before >= stop.size() ? before - stop.size() + 1 : 0;
      return text.find(stop, from) != std::string::npos;
    });
  }

  // Ends where no token may come.
  void end() {
    result().finish_reason = matcher->complete() ? FinishReason::stop : FinishReason::stuck;
    finish();
  }

  void finish() {
    if (!hidden.empty()) result().hidden = at::stack(hidden);
    --call->unfinished;
  }
};

Engine::Engine(Decoder& decoder, size_t cache_bytes, at::ScalarType dtype, at::Device device)
    : decoder_(decoder),
      block_bytes_(KvStore::block_bytes(decoder.config(), dtype)),
      pool_(kBlockTokens, static_cast<int64_t>(cache_bytes / block_bytes_)),
      store_(decoder.config(), at::TensorOptions().dtype(dtype).device(device)) {}

Engine::~Engine() = default;

std::shared_ptr<GenerateCall> Engine::submit(std::vector<GenerateRequest> requests, GenerateHooks hooks) {
  const ModelConfig& config = decoder_.config();
  validate(requests, config, hooks);
  const auto call = std::make_shared<GenerateCall>();
  call->requests = std::move(requests);
  call->hooks = std::move(hooks);
  call->results.resize(call->requests.size());
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
  c10::InferenceMode inference;
  try {
    end_cancelled();
    open_grammars();
    admit();
    if (!running_.empty()) {
      advance(weights);
    } else if (!waiting_.empty()) {
      waiting_.front()->request().grammar.wait_for(kGrammarWait);
    }
  } catch (...) {
    // Nobody knows what the blocks hold now.
    const std::exception_ptr failure = std::current_exception();
    for (const auto& sequence : waiting_) give_back(*sequence);
    while (busy()) fail((running_.empty() ? waiting_ : running_).front()->call, failure);
    pool_.forget();
  }
  if (!busy() && store_.capacity() > pool_.budget()) drop_caches();
  return busy();
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
  std::erase_if(waiting_, [&](const auto& sequence) {
    const bool cancelled = sequence->cancelled();
    if (cancelled) end(*sequence);
    return cancelled;
  });
}

// --- blocks ---------------------------------------------------------------------------------------------

void Engine::admit() {
  for (size_t i = 0; i < waiting_.size();) {
    if (waiting_[i]->waits_for_grammar()) {
      ++i;
      continue;
    }
    if (!take_blocks(*waiting_[i])) return;
    running_.push_back(std::move(waiting_[i]));
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// Texts whose grammars are compiled by now need not wait for them any more.
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
      i = 0;  // others of the call were before it, perhaps
    }
  }
}

// Blocks for all tokens there are and the next one: those that are found, and new ones. False when there is no room.
bool Engine::take_blocks(Sequence& sequence) {
  const std::vector<int64_t>& tokens = sequence.tokens;
  sequence.own_from = sequence.length();
  for (const auto& other : running_) {
    // One that is still reading, and for itself.
    if (other->tokens != tokens || other->own_from < other->length() || other->leader) continue;
    sequence.leader = other.get();
    if (sequence.result().tokens.empty()) sequence.result().cached_tokens = other->result().cached_tokens;
    sequence.blocks = other->blocks;
    sequence.named = other->named;
    sequence.naming = other->naming;
    for (const int32_t block : sequence.blocks) pool_.reference(block);
    return true;
  }
  // The last token is always read: its hidden state is needed.
  const BlockPool::Match match = pool_.find(tokens, sequence.length() - 1);
  sequence.blocks = match.blocks;
  const int64_t wanted = blocks_for(sequence.length() + 1);
  // With room for every text to grow by a block: else the newcomer would soon give way again.
  const int64_t needed =
      wanted - static_cast<int64_t>(sequence.blocks.size()) + static_cast<int64_t>(running_.size());
  if (!running_.empty() && pool_.held() + needed > pool_.budget()) {
    give_back(sequence);
    return false;
  }
  int64_t found = 0;
  for (const int32_t block : match.blocks) found += pool_.filled(block);
  if (match.partial != BlockPool::none) {
    // Held while the first block is taken, which may need the room.
    pool_.reference(match.partial);
    const int32_t block = pool_.allocate(true);
    store_.reserve(pool_.size(), pool_.budget());
    store_.copy(match.partial, block);
    pool_.release(match.partial);
    pool_.set_filled(block, match.partial_tokens);
    sequence.blocks.push_back(block);
    found += match.partial_tokens;
  }
  while (static_cast<int64_t>(sequence.blocks.size()) < wanted)
    sequence.blocks.push_back(pool_.allocate(running_.empty()));
  store_.reserve(pool_.size(), pool_.budget());
  if (sequence.result().tokens.empty()) sequence.result().cached_tokens = found;

  // Named before they are read: whoever comes after shares them from the start.
  sequence.named = static_cast<int64_t>(match.blocks.size());
  sequence.naming = true;
  for (; (sequence.named + 1) * kBlockTokens < sequence.length(); ++sequence.named) {
    const auto from = tokens.begin() + sequence.named * kBlockTokens;
    pool_.name(sequence.blocks[sequence.named], sequence.parent(), from, from + kBlockTokens);
  }
  return true;
}

void Engine::give_back(Sequence& sequence) {
  // From the last to the first: a block goes before those that it continues.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) pool_.release(*block);
  sequence.blocks.clear();
  sequence.read = sequence.named = 0;
  sequence.leader = nullptr;
}

// A block of its own for the next token that was written. False when `sequence` had to give up its blocks.
bool Engine::make_room(Sequence& sequence) {
  const int64_t at = sequence.read;
  if (at < sequence.own_from) return true;
  const size_t place = static_cast<size_t>(at / kBlockTokens);
  const bool missing = place == sequence.blocks.size();
  if (!missing && pool_.references(sequence.blocks[place]) == 1) return true;
  int32_t fresh;
  while ((fresh = pool_.allocate(running_.size() == 1)) == BlockPool::none) {
    const bool own = running_.back().get() == &sequence;
    preempt_last();
    if (own) return false;
    if (!missing && pool_.references(sequence.blocks[place]) == 1) return true;
  }
  store_.reserve(pool_.size(), pool_.budget());
  if (missing) {
    sequence.blocks.push_back(fresh);
  } else {
    int32_t& shared = sequence.blocks[place];
    store_.copy(shared, fresh);
    pool_.set_filled(fresh, at % kBlockTokens);
    pool_.release(shared);
    shared = fresh;
  }
  return true;
}

void Engine::preempt_last() {
  give_back(*running_.back());
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++preemptions_;
}

// Gives the blocks that are full by now their names. Where a block of that name is there, it takes this one's place.
void Engine::name_blocks(Sequence& sequence) {
  while (sequence.naming && (sequence.named + 1) * kBlockTokens <= sequence.read) {
    int32_t& block = sequence.blocks[sequence.named];
    const auto from = sequence.tokens.begin() + sequence.named * kBlockTokens;
    const int32_t named = pool_.name(block, sequence.parent(), from, from + kBlockTokens);
    if (named != block) {
      sequence.naming = pool_.filled(named) == kBlockTokens;
      if (!sequence.naming) return;
      pool_.reference(named);
      pool_.release(block);
      block = named;
    }
    ++sequence.named;
  }
}

void Engine::leave(Sequence& sequence) {
  // The first who follows takes the lead of the others.
  Sequence* heir = nullptr;
  for (const auto& other : running_) {
    if (other->leader != &sequence) continue;
    other->leader = heir;
    if (!heir) heir = other.get();
  }
  name_blocks(sequence);
  const int64_t whole = sequence.named * kBlockTokens;
  if (sequence.naming && sequence.read > whole && sequence.read < whole + kBlockTokens &&
      pool_.references(sequence.blocks[sequence.named]) == 1) {
    const auto from = sequence.tokens.begin();
    pool_.name(sequence.blocks[sequence.named], sequence.parent(), from + whole, from + sequence.read);
  }
  give_back(sequence);
  running_.erase(std::find_if(running_.begin(), running_.end(),
                              [&](const auto& other) { return other.get() == &sequence; }));
}

void Engine::fail(const std::shared_ptr<GenerateCall>& failed, std::exception_ptr failure) {
  const std::shared_ptr<GenerateCall> call = failed;  // may go with its sequences
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

// --- a step ---------------------------------------------------------------------------------------------

void Engine::advance(const Weights& weights) {
  const bool writing =
      std::any_of(running_.begin(), running_.end(), [](const auto& sequence) { return sequence->writing(); });
  int64_t prompt_tokens = writing ? kPromptTokensBeside : kPromptTokens;
  std::vector<int64_t> ids;
  std::vector<KvSlice> slices;
  std::vector<Sequence*> complete;  // by ascending rows, those that follow behind their leaders
  std::vector<int64_t> rows;        // of the step, that tokens are drawn from
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.leader || sequence.read == sequence.length()) continue;  // reads, or has read, with another
    if (!make_room(sequence)) break;                                      // it was the last
    // What others have read, or read in this step, is there.
    int64_t at = sequence.read;
    while (at + 1 < sequence.length()) {
      const int64_t block = at / kBlockTokens;
      const int64_t there = block * kBlockTokens + pool_.filled(sequence.blocks[static_cast<size_t>(block)]);
      if (there <= at) break;
      at = std::min(there, sequence.length() - 1);
    }
    int64_t end = sequence.length();
    if (!sequence.writing()) {
      end = std::min(end, at + prompt_tokens);
      prompt_tokens -= end - at;
    }
    sequence.read = end;
    if (end == at) continue;
    ids.insert(ids.end(), sequence.tokens.begin() + at, sequence.tokens.begin() + end);
    slices.push_back({&sequence.blocks, at, end - at});
    for (int64_t block = at / kBlockTokens; block * kBlockTokens < end; ++block)
      pool_.set_filled(sequence.blocks[static_cast<size_t>(block)],
                       std::min(kBlockTokens, end - block * kBlockTokens));
    if (end < sequence.length()) continue;
    sequence.row = static_cast<int64_t>(rows.size());
    rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    complete.push_back(&sequence);
    for (const auto& other : running_) {
      if (other->leader != &sequence) continue;
      other->leader = nullptr;
      other->read = end;
      other->row = sequence.row;
      complete.push_back(other.get());
    }
  }
  if (ids.empty()) return;
  const at::Device device = weights.embedding.device();
  const at::Tensor hidden = decoder_.infer(weights, at::tensor(ids, at::kLong).to(device), store_, slices);
  if (rows.empty()) return;
  const at::Tensor drawn = hidden.index_select(0, at::tensor(rows, at::kLong).to(device));
  draw(weights, drawn, complete);

  for (Sequence* sequence : complete) {
    // A call may have failed meanwhile, and its other sequences with it.
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

// Draws a sequence's next token from its logits [vocab].
void Engine::choose(Sequence& sequence, const float* logits, int64_t vocab) {
  const GenerateRequest& request = sequence.request();
  const auto step = static_cast<int64_t>(sequence.step());
  sequence.token = sequence.forced();
  if (sequence.token != Sequence::kNoToken) {
    sequence.log_prob = log_probability(logits, vocab, sequence.token);
  } else if (!constrained(request)) {
    sequence.token = sample_token(logits, vocab, request, step, &sequence.log_prob);
  } else {
    thread_local std::vector<float> changed;
    changed.assign(logits, logits + vocab);
    constrain(request, sequence.tokens, changed.data());
    if (sequence.matcher) {
      const auto allowed = sequence.allowed(vocab);
      if (allowed.empty()) return;
      kernels::keep_allowed(changed.data(), vocab, allowed.data());
    }
    sequence.token = sample_token(changed.data(), vocab, request, step, nullptr);
    sequence.log_prob = log_probability(logits, vocab, sequence.token);
  }
  sequence.follow();
}

// The same for all of them, from logits [rows, vocab] on a GPU, whose first row is the step's row `begin`.
void Engine::choose_on_gpu(const std::vector<Sequence*>& sequences, const at::Tensor& logits, int64_t begin) {
  const int64_t vocab = logits.size(1);
  std::vector<CudaDraw> asked(sequences.size());
  for_each(sequences, [&](Sequence& sequence, size_t i) {
    sequence.token = Sequence::kNoToken;
    CudaDraw& draw = asked[i];
    draw.step = static_cast<int64_t>(sequence.step());
    draw.row = sequence.row - begin;
    draw.forced = sequence.forced();
    if (draw.forced != Sequence::kNoToken || sequence.constrain_on_gpu(vocab, draw))
      draw.request = &sequence.request();
  });
  std::vector<CudaDraw> draws;
  std::vector<Sequence*> drawing;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].request == nullptr) continue;
    draws.push_back(asked[i]);
    drawing.push_back(sequences[i]);
  }
  draw_on_gpu(logits, draws);
  for_each(drawing, [&](Sequence& sequence, size_t i) {
    NLAC_REQUIRE(draws[i].token >= 0, "ERR_NOT_FINITE", "the model's logits are not finite");
    sequence.token = draws[i].token;
    sequence.log_prob = draws[i].log_prob;
    sequence.follow();
  });
}

// Draws the next token of each from `hidden` [rows, hidden].
void Engine::draw(const Weights& weights, const at::Tensor& hidden, const std::vector<Sequence*>& complete) {
  const int64_t vocab = weights.head.size(0);
  const int64_t bytes = hidden.is_cuda() ? kLogitBytesOnGpu : kLogitBytes;
  const int64_t chunk = std::max<int64_t>(1, bytes / (4 * vocab));
  auto next = complete.begin();
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk) {
    const int64_t end = std::min(hidden.size(0), begin + chunk);
    const at::Tensor logits = decoder_.infer_logits(weights, hidden.slice(0, begin, end));
    std::vector<Sequence*> on_gpu, on_host;
    for (; next != complete.end() && (*next)->row < end; ++next)
      ((*next)->draws_on_gpu(logits) ? on_gpu : on_host).push_back(*next);
    choose_on_gpu(on_gpu, logits, begin);
    std::vector<at::Tensor> rows;  // a row at a time: others stay on the GPU
    for (const Sequence* sequence : on_host)
      rows.push_back(logits[sequence->row - begin].to(at::kCPU, at::kFloat).contiguous());
    for_each(on_host, [&](Sequence& sequence, size_t i) {
      const float* const row = rows[i].const_data_ptr<float>();
      choose(sequence, row, vocab);
      const int64_t most = sequence.request().top_log_probs;
      if (most > 0 && sequence.token != Sequence::kNoToken) append_top(row, vocab, most, &sequence.result());
    });
  }
}

void Engine::drop_caches() {
  NLAC_REQUIRE(!busy(), "ERR_INTERNAL", "caches were dropped under texts that use them");
  pool_.forget();
  store_.clear();
}

size_t Engine::cached_bytes() const { return static_cast<size_t>(pool_.used()) * block_bytes_; }

}  // namespace nlac
