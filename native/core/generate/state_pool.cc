#include "core/generate/state_pool.h"

#include <algorithm>

namespace nlac {

StatePool::Slot StatePool::take(bool beyond_budget) {
  // Room for all slots and a new one, so that freeing a slot cannot fail.
  if (free_.capacity() <= static_cast<size_t>(size_)) free_.reserve(2 * static_cast<size_t>(size_) + 16);
  while (used() >= budget_ && !snapshots_.empty()) {
    free_.push_back(snapshots_.front().slot);
    snapshots_.pop_front();
  }
  if (used() >= budget_ && !beyond_budget) return none;
  if (free_.empty()) return static_cast<Slot>(size_++);
  const Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

StatePool::Slot StatePool::hold(bool beyond_budget) {
  const Slot slot = take(beyond_budget);
  if (slot != none) ++held_;
  return slot;
}

void StatePool::release(Slot slot) {
  --held_;
  free_.push_back(slot);
}

StatePool::Snapshot StatePool::find(const Tokens& tokens, int64_t count) {
  auto best = snapshots_.end();
  for (auto it = snapshots_.begin(); it != snapshots_.end(); ++it) {
    const int64_t length = static_cast<int64_t>(it->tokens.size());
    if (length > count || (best != snapshots_.end() && it->tokens.size() <= best->tokens.size())) continue;
    if (std::equal(it->tokens.begin(), it->tokens.end(), tokens.begin())) best = it;
  }
  if (best == snapshots_.end()) return {};
  snapshots_.splice(snapshots_.end(), snapshots_, best);
  return {best->slot, static_cast<int64_t>(best->tokens.size())};
}

StatePool::Place StatePool::place_of(const Tokens& tokens, int64_t count) const {
  return std::find_if(snapshots_.begin(), snapshots_.end(), [&](const Kept& kept) {
    return static_cast<int64_t>(kept.tokens.size()) == count &&
           std::equal(kept.tokens.begin(), kept.tokens.end(), tokens.begin());
  });
}

StatePool::Slot StatePool::keep(const Tokens& tokens, int64_t count) {
  if (const Place there = place_of(tokens, count); there != snapshots_.end()) {
    snapshots_.splice(snapshots_.end(), snapshots_, there);
    return none;
  }
  const Slot slot = take(false);
  if (slot != none) snapshots_.push_back({slot, Tokens(tokens.begin(), tokens.begin() + count)});
  return slot;
}

void StatePool::forget() {
  for (const Kept& kept : snapshots_) free_.push_back(kept.slot);
  snapshots_.clear();
}

}  // namespace nlac
