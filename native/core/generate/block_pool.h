// Which blocks of a key-value store are whose, and what they hold. Blocks are counted references: texts that begin
// alike share them. A block can be named by its tokens and those before it, and is then found again by token ids, also
// when no text holds it any more, until its room is needed: the least recently released go first, and never a block
// before those that continue it.
//
// Needs no torch; knows numbers alone, no bytes and no memory. Thread rule: one thread.
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

  // `block_tokens`: of a whole block. `budget`: blocks held or named at a time, at most.
  BlockPool(int64_t block_tokens, int64_t budget) : block_tokens_(block_tokens), budget_(budget) {}

  // A block with one reference and nothing in it; gives up named blocks that nobody holds where the budget demands it.
  // `none` where all are held, unless `beyond_budget`.
  Block allocate(bool beyond_budget = false);
  void reference(Block block);
  // Without references a block that is named and filled stays to be found; another is gone.
  void release(Block block);

  // How many of a block's tokens have been read, or will be by the step that is being made up.
  int64_t filled(Block block) const { return entries_[block].filled; }
  void set_filled(Block block, int64_t tokens) { entries_[block].filled = tokens; }
  int64_t references(Block block) const { return entries_[block].references; }

  struct Match {
    std::vector<Block>
        blocks;            // whole ones, in order, which hold the first tokens; each referenced once more
    Block partial = none;  // a block that goes on with the next `partial_tokens`, then with others; to be
    int64_t partial_tokens = 0;  // copied. Not referenced; good until the next call
  };
  // The longest beginning of the first `count` tokens.
  Match find(const Tokens& tokens, int64_t count);

  // Names `block`, which the caller holds, by the tokens [first, last) after those of `parent` (`none`: from the
  // beginning), a named block that the caller holds too. Returns the block of this name: another one, if it was named
  // before.
  Block name(Block block, Block parent, Tokens::const_iterator first, Tokens::const_iterator last);

  // Forgets every name: nothing is found any more. Blocks that are held stay so.
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
