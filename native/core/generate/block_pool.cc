#include "core/generate/block_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nlac {

BlockPool::Block BlockPool::allocate(bool beyond_budget) {
  while (used_ >= budget_ && !unheld_.empty()) give_up_one();
  if (used_ >= budget_ && !beyond_budget) return none;
  Block block;
  if (free_.empty()) {
    block = static_cast<Block>(entries_.size());
    // Room for all blocks, so that dropping one cannot fail.
    if (free_.capacity() <= entries_.size()) free_.reserve(2 * entries_.size() + 16);
    entries_.emplace_back();
  } else {
    block = free_.back();
    free_.pop_back();
  }
  ++used_;
  entries_[block].references = 1;
  return block;
}

void BlockPool::reference(Block block) {
  Entry& entry = entries_[block];
  if (entry.references++ == 0) unheld_.erase(entry.place);
}

void BlockPool::release(Block block) {
  Entry& entry = entries_[block];
  if (--entry.references > 0) return;
  // Frees a block without contents, or beyond the budget.
  if (!entry.named || entry.filled < static_cast<int64_t>(entry.tokens.size())) {
    drop(block);
  } else {
    entry.place = unheld_.insert(unheld_.end(), block);
    while (used_ > budget_ && !unheld_.empty()) give_up_one();
  }
}

BlockPool::Match BlockPool::find(const Tokens& tokens, int64_t count) {
  Match match;
  Children* children = &roots_;
  auto at = tokens.begin();
  const auto end = tokens.begin() + count;
  while (end - at >= block_tokens_) {
    const auto found = children->find(Tokens(at, at + block_tokens_));
    if (found == children->end()) break;
    match.blocks.push_back(found->second);
    reference(found->second);
    children = &entries_[found->second].children;
    at += block_tokens_;
  }
  // In lexicographic order, the longest common prefixes are next to where the tokens would be.
  const Tokens rest(at, std::min(end, at + block_tokens_));
  const auto try_it = [&](const Children::value_type& child) {
    const auto& [its, block] = child;
    const int64_t read = std::min<int64_t>(entries_[block].filled, static_cast<int64_t>(its.size()));
    const int64_t limit = std::min<int64_t>(read, static_cast<int64_t>(rest.size()));
    const int64_t common =
        std::mismatch(rest.begin(), rest.begin() + limit, its.begin()).first - rest.begin();
    if (common <= match.partial_tokens) return;
    match.partial = block;
    match.partial_tokens = common;
  };
  const auto above = children->lower_bound(rest);
  if (above != children->end()) try_it(*above);
  if (above != children->begin()) try_it(*std::prev(above));
  return match;
}

BlockPool::Block BlockPool::name(Block block, Block parent, Tokens::const_iterator first,
                                 Tokens::const_iterator last) {
  const auto [place, fresh] = children_of(parent).try_emplace(Tokens(first, last), block);
  if (!fresh) return place->second;
  Entry& entry = entries_[block];
  entry.named = true;
  entry.parent = parent;
  entry.tokens = place->first;
  return block;
}

void BlockPool::forget() {
  while (!unheld_.empty()) give_up_one();
  for (Entry& entry : entries_) {
    entry.named = false;
    entry.tokens.clear();
    entry.children.clear();
  }
  roots_.clear();
}

void BlockPool::drop(Block block) {
  Entry& entry = entries_[block];
  if (entry.named) children_of(entry.parent).erase(entry.tokens);
  entry = {};
  free_.push_back(block);
  --used_;
}

void BlockPool::give_up_one() {
  // A reference to a block implies references to those before it, so no continuation is referenced.
  Block block = unheld_.front();
  while (!entries_[block].children.empty()) block = entries_[block].children.begin()->second;
  unheld_.erase(entries_[block].place);
  drop(block);
}

}  // namespace nlac
