// Manages the slots of a store of recurrent states: a running text holds one, and others are kept
// as snapshots, found by the tokens after which they were taken. A snapshot is evicted when a slot
// is needed; the least recently used first.
//
// Holds slot numbers and token ids only. No torch. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

namespace nlac {

class StatePool {
 public:
  using Slot = int32_t;
  using Tokens = std::vector<int64_t>;
  static constexpr Slot none = -1;

  // `budget`: the maximum number of slots in use.
  explicit StatePool(int64_t budget) : budget_(budget) {}

  // Returns a slot for a running text; evicts a snapshot if the budget is reached. Returns `none`
  // if all are held, unless `beyond_budget`.
  Slot hold(bool beyond_budget = false);
  // Ends a hold. The slot is free.
  void release(Slot slot);

  struct Snapshot {
    Slot slot = none;
    int64_t tokens = 0;
  };
  // Returns the snapshot after the most of the first `count` tokens; `none` and 0 if there is none.
  // It is valid until the next call of hold() or keep().
  Snapshot find(const Tokens& tokens, int64_t count);
  // Makes a slot the snapshot after the first `count` ≥ 1 tokens; evicts another if the budget is
  // reached. The caller copies the state there. Returns `none` if all slots are held, or the
  // snapshot is there already.
  Slot keep(const Tokens& tokens, int64_t count);

  // Drops all snapshots. Allocates nothing.
  void forget();

  int64_t budget() const { return budget_; }
  int64_t used() const { return held_ + static_cast<int64_t>(snapshots_.size()); }
  int64_t held() const { return held_; }
  int64_t size() const { return size_; }  // slots are below this number

 private:
  struct Kept {
    Slot slot;
    Tokens tokens;
  };
  using Place = std::list<Kept>::const_iterator;

  Slot take(bool beyond_budget);
  Place place_of(const Tokens& tokens, int64_t count) const;

  int64_t budget_, held_ = 0, size_ = 0;
  std::list<Kept> snapshots_;  // the most recently used last
  std::vector<Slot> free_;
};

}  // namespace nlac
