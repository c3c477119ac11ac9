// Manages the numbers of the blocks of a key-value store. Blocks are reference counted: texts with
// a common prefix share them. A block can be named by its tokens and the tokens before it. It is
// then found by token ids until it is evicted, even if no text references it. The least recently
// released block is evicted first; a block is never evicted before the blocks that continue it.
//
// Holds block numbers only, no keys and values. No torch. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <vector>

namespace nlac {

class BlockPool {
 public:
  using Block = int32_t;
  using Tokens = std::vector<int64_t>;
  static constexpr Block none = -1;

  // `block_tokens`: tokens of a full block. `budget`: the maximum number of referenced or named
  // blocks.
  BlockPool(int64_t block_tokens, int64_t budget) : block_tokens_(block_tokens), budget_(budget) {}

  // Returns an empty block with one reference; evicts an unreferenced named block if the budget is
  // reached. Returns `none` if all are referenced, unless `beyond_budget`.
  Block allocate(bool beyond_budget = false);
  void reference(Block block);
  // A block without references stays cached if it is named and filled, and is freed otherwise.
  void release(Block block);

  // The number of a block's tokens that have been computed, or will be by the step being prepared.
  int64_t filled(Block block) const { return entries_[block].filled; }
  void set_filled(Block block, int64_t tokens) { entries_[block].filled = tokens; }
  int64_t references(Block block) const { return entries_[block].references; }

  struct Match {
    std::vector<Block>
        blocks;            // whole ones, in order, which hold the first tokens; each referenced once more
    Block partial = none;  // a block that starts with the next `partial_tokens`, then differs; to be
    int64_t partial_tokens = 0;  // copied. Not referenced; valid until the next call
  };
  // Returns the longest cached prefix of the first `count` tokens.
  Match find(const Tokens& tokens, int64_t count);

  // Names `block` by the tokens [first, last) after those of `parent`, a named block (`none`: from
  // the start). The caller references both. Returns the block of this name: another one if it
  // existed before.
  Block name(Block block, Block parent, Tokens::const_iterator first, Tokens::const_iterator last);

  // Drops all names, so that nothing is found any more. Referenced blocks stay. Allocates nothing.
  void forget();

  int64_t budget() const { return budget_; }
  int64_t used() const { return used_; }                                         // held or named
  int64_t held() const { return used_ - static_cast<int64_t>(unheld_.size()); }  // by references
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }  // blocks are below this number

 private:
  using Children = std::map<Tokens, Block>;
  struct Entry {
    int64_t references = 0, filled = 0;
    bool named = false;
    Block parent = none;
    Tokens tokens;
    Children children;
    std::list<Block>::iterator place;  // in unheld_, where named and without references
  };

  Children& children_of(Block parent) { return parent == none ? roots_ : entries_[parent].children; }
  void drop(Block block);  // its name, and it is free
  void give_up_one();

  int64_t block_tokens_, budget_, used_ = 0;
  std::vector<Entry> entries_;
  std::vector<Block> free_;
  std::list<Block> unheld_;  // named, without references; the most recently released last
  Children roots_;
};

}  // namespace nlac
