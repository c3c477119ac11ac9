// The engine's blocks: how sequences take, share, name and release them.
#include <algorithm>
#include <utility>

#include "core/generate/sequence.h"

namespace nlac {
namespace {

// Tokens of a shared prefix that are worth a snapshot of the state.
constexpr int64_t kWorthSharing = 2 * kBlockTokens;

int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

// Whether a running text is about to compute a prefix of this one; it then takes a snapshot there.
// A text with equal tokens does not wait: it follows.
bool Engine::awaits_prefix(const Sequence& sequence) {
  if (!recurrent()) return false;
  const std::vector<int64_t>& tokens = sequence.tokens;
  const int64_t reach = states_.find(tokens, sequence.length() - 1).tokens;
  bool awaits = false;
  for (const auto& other : running_) {
    if (other->leader) continue;
    const int64_t limit = std::min(sequence.length() - 1, other->length());
    const auto parting = std::mismatch(tokens.begin(), tokens.begin() + limit, other->tokens.begin()).first;
    const int64_t shared = (parting - tokens.begin()) / kBlockTokens * kBlockTokens;
    if (other->read >= shared || shared < reach + kWorthSharing) continue;
    if (other->tokens == tokens) return false;
    other->marks.insert(shared);
    awaits = true;
  }
  return awaits;
}

// Returns the cached blocks with which a text begins. Those of a recurrent model reach as far as a
// snapshot, which becomes the text's state; where the blocks reach further, a snapshot is taken on
// the way, for the next text that shares them.
BlockPool::Match Engine::find_cached(Sequence& sequence) {
  const std::vector<int64_t>& tokens = sequence.tokens;
  // The last token is always computed, because its hidden state is needed.
  BlockPool::Match match = pool_.find(tokens, sequence.length() - 1);
  if (!recurrent()) return match;
  const int64_t shared = static_cast<int64_t>(match.blocks.size()) * kBlockTokens;
  const StatePool::Snapshot snapshot = states_.find(tokens, shared + match.partial_tokens);
  if (shared >= snapshot.tokens + kWorthSharing) sequence.marks.insert(shared);
  for (const int32_t block : match.blocks) pool_.release(block);
  match = pool_.find(tokens, snapshot.tokens);
  store_.states().reserve(states_.size(), states_.budget());
  if (snapshot.tokens > 0)
    store_.states().copy(snapshot.slot, sequence.state);
  else
    store_.states().zero(sequence.state);
  return match;
}

// Makes the state in `slot`, that after the tokens read, a snapshot.
void Engine::keep_state(const Sequence& sequence, int32_t slot) {
  const int32_t kept = states_.keep(sequence.tokens, sequence.read);
  if (kept == StatePool::none) return;
  store_.states().reserve(states_.size(), states_.budget());
  store_.states().copy(slot, kept);
}

// Takes blocks, cached and new, for all tokens and the next one. Returns false if there is no room.
bool Engine::take_blocks(Sequence& sequence) {
  const std::vector<int64_t>& tokens = sequence.tokens;
  sequence.own_from = sequence.length();
  if (recurrent() && (sequence.state = states_.hold(running_.empty())) == StatePool::none) return false;
  for (const auto& other : running_) {
    // Only a sequence that is still in prefill and is not a follower.
    if (other->tokens != tokens || other->own_from < other->length() || other->leader) continue;
    sequence.leader = other.get();
    if (sequence.result().tokens.empty()) sequence.result().cached_tokens = other->result().cached_tokens;
    sequence.blocks = other->blocks;
    sequence.named = other->named;
    sequence.naming = other->naming;
    for (const int32_t block : sequence.blocks) pool_.reference(block);
    if (recurrent()) store_.states().reserve(states_.size(), states_.budget());
    return true;
  }
  const BlockPool::Match match = find_cached(sequence);
  sequence.blocks = match.blocks;
  const int64_t wanted = blocks_for(sequence.length() + 1);
  // Leaves room for every text to grow by a block; otherwise this one would soon be preempted.
  const int64_t needed =
      wanted - static_cast<int64_t>(sequence.blocks.size()) + static_cast<int64_t>(running_.size());
  if (!running_.empty() && pool_.held() + needed > pool_.budget()) {
    give_back(sequence);
    return false;
  }
  int64_t found = 0;
  for (const int32_t block : match.blocks) found += pool_.filled(block);
  if (match.partial != BlockPool::none) {
    // Referenced while a block is allocated, which may evict.
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

  sequence.named = static_cast<int64_t>(match.blocks.size());
  sequence.naming = true;
  // Named before they are computed, so that later texts share them at once. Those of a recurrent
  // model wait for the state instead.
  if (recurrent()) return true;
  for (; (sequence.named + 1) * kBlockTokens < sequence.length(); ++sequence.named) {
    const auto from = tokens.begin() + sequence.named * kBlockTokens;
    pool_.name(sequence.blocks[sequence.named], sequence.parent(), from, from + kBlockTokens);
  }
  return true;
}

void Engine::give_back(Sequence& sequence) {
  // From the last to the first, so that later blocks are evicted first.
  for (auto block = sequence.blocks.rbegin(); block != sequence.blocks.rend(); ++block) pool_.release(*block);
  if (sequence.state != StatePool::none) states_.release(sequence.state);
  sequence.lose_blocks();
}

// Ensures an unshared block for the next token. Returns false if `sequence` was preempted.
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

// Names the blocks that are full. A block that already has the name replaces this one.
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
  // The first follower becomes the leader of the others.
  Sequence* heir = nullptr;
  for (const auto& other : running_) {
    if (other->leader != &sequence) continue;
    other->leader = heir;
    if (!heir) heir = other.get();
  }
  if (heir && recurrent()) store_.states().copy(sequence.state, heir->state);
  name_blocks(sequence);
  const int64_t whole = sequence.named * kBlockTokens;
  if (sequence.naming && sequence.read > whole && sequence.read < whole + kBlockTokens &&
      pool_.references(sequence.blocks[sequence.named]) == 1) {
    const auto from = sequence.tokens.begin();
    pool_.name(sequence.blocks[sequence.named], sequence.parent(), from + whole, from + sequence.read);
  }
  // Released first, so that the snapshot can be the slot itself.
  const int32_t state = sequence.state;
  const bool keep = state != StatePool::none && sequence.read >= kWorthSharing && !sequence.leader;
  if (keep) {
    states_.release(std::exchange(sequence.state, StatePool::none));
    keep_state(sequence, state);
  }
  give_back(sequence);
  running_.erase(std::find_if(running_.begin(), running_.end(),
                              [&](const auto& other) { return other.get() == &sequence; }));
}

}  // namespace nlac
