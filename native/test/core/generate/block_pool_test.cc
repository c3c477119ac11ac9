// The pool against a naive one: a list of all held or named blocks with linear search.
#include "core/generate/block_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/generate/state_pool.h"
#include "test/core/failing_new.h"

using nlac::BlockPool;
using Tokens = BlockPool::Tokens;

namespace {

constexpr int64_t kSize = 4;

// A sequence with blocks for all of its tokens.
struct Text {
  Tokens tokens;
  std::vector<BlockPool::Block> blocks;
};

// The naive cache: for every filled block, all tokens up to its end.
using Contents = std::map<BlockPool::Block, Tokens>;

// Takes cached blocks and allocates the others, like the engine; false if there is no room.
bool take(BlockPool& pool, Text& text, Contents& contents) {
  const auto match = pool.find(text.tokens, static_cast<int64_t>(text.tokens.size()));
  text.blocks = match.blocks;
  while (static_cast<int64_t>(text.blocks.size()) * kSize < static_cast<int64_t>(text.tokens.size())) {
    auto block = pool.allocate();
    if (block == BlockPool::none) {
      for (auto b = text.blocks.rbegin(); b != text.blocks.rend(); ++b) pool.release(*b);
      return false;
    }
    const int64_t from = static_cast<int64_t>(text.blocks.size()) * kSize;
    const int64_t to = std::min<int64_t>(from + kSize, static_cast<int64_t>(text.tokens.size()));
    const auto parent = text.blocks.empty() ? BlockPool::none : text.blocks.back();
    // A whole block of this name would have been found.
    const auto named = pool.name(block, parent, text.tokens.begin() + from, text.tokens.begin() + to);
    if (named != block) {
      CHECK(to - from < kSize);
      pool.reference(named);
      pool.release(block);
      block = named;
    }
    pool.set_filled(block, to - from);
    contents[block] = Tokens(text.tokens.begin(), text.tokens.begin() + to);
    text.blocks.push_back(block);
  }
  return true;
}
void give(BlockPool& pool, const Text& text) {
  for (auto b = text.blocks.rbegin(); b != text.blocks.rend(); ++b) pool.release(*b);
}

int64_t common(const Tokens& a, const Tokens& b) {
  const auto limit = static_cast<int64_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + limit, b.begin()).first - a.begin();
}

}  // namespace

TEST_CASE("random sequences: lookups find what was stored, and no block belongs to two sequences") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 40; ++round) {
    const int64_t budget = 3 + static_cast<int64_t>(random() % 40);
    BlockPool pool(kSize, budget);
    std::vector<Text> held;
    Contents contents;
    for (int operation = 0; operation < 300; ++operation) {
      if (random() % 3 == 0 && !held.empty()) {
        const size_t which = random() % held.size();
        give(pool, held[which]);
        held.erase(held.begin() + static_cast<int64_t>(which));
      } else {
        Text text;
        const size_t length = 1 + random() % 20;
        for (size_t i = 0; i < length; ++i) text.tokens.push_back(static_cast<int64_t>(random() % 2));
        const auto match = pool.find(text.tokens, static_cast<int64_t>(text.tokens.size()));
        for (size_t b = 0; b < match.blocks.size(); ++b) {
          const Tokens& content = contents.at(match.blocks[b]);
          CHECK(content.size() == (b + 1) * kSize);
          CHECK(common(content, text.tokens) == static_cast<int64_t>(content.size()));
        }
        const int64_t whole = static_cast<int64_t>(match.blocks.size()) * kSize;
        if (match.partial != BlockPool::none) {
          CHECK(match.partial_tokens > 0);
          CHECK(common(contents.at(match.partial), text.tokens) >= whole + match.partial_tokens);
        }
        // Every block of an active sequence is found.
        int64_t best = 0;
        for (const Text& other : held) best = std::max(best, common(other.tokens, text.tokens));
        CHECK(whole + match.partial_tokens >= best);
        for (auto b = match.blocks.rbegin(); b != match.blocks.rend(); ++b) pool.release(*b);

        if (!take(pool, text, contents)) {
          std::set<BlockPool::Block> distinct;
          for (const Text& other : held) distinct.insert(other.blocks.begin(), other.blocks.end());
          CHECK(static_cast<int64_t>(distinct.size() + text.tokens.size() / kSize + 1) > budget);
          continue;
        }
        held.push_back(text);
      }
      std::map<BlockPool::Block, int64_t> references;
      for (const Text& text : held) {
        for (size_t b = 0; b < text.blocks.size(); ++b) {
          ++references[text.blocks[b]];
          const Tokens& content = contents.at(text.blocks[b]);
          CHECK(common(content, text.tokens) == static_cast<int64_t>(content.size()));  // nobody else's
        }
      }
      for (const auto& [block, count] : references) CHECK(pool.references(block) == count);
      CHECK(pool.held() == static_cast<int64_t>(references.size()));
      CHECK(pool.used() <= budget);
    }
    for (const Text& text : held) give(pool, text);
    CHECK(pool.held() == 0);
    pool.forget();
    CHECK(pool.used() == 0);
    CHECK(pool.find({0, 0, 0, 0}, 4).blocks.empty());
  }
}

TEST_CASE("the least recently released blocks are evicted first, the ends of sequences before their starts") {
  BlockPool pool(kSize, 4);
  Text first{{1, 1, 1, 1, 2, 2, 2, 2}, {}}, second{{1, 1, 1, 1, 3, 3, 3, 3}, {}};
  Contents contents;
  REQUIRE(take(pool, first, contents));
  give(pool, first);
  REQUIRE(take(pool, second, contents));
  CHECK(second.blocks[0] == first.blocks[0]);
  give(pool, second);
  CHECK(pool.used() == 3);
  const auto found = [&](const Text& text) {
    const auto match = pool.find(text.tokens, static_cast<int64_t>(text.tokens.size()));
    for (auto b = match.blocks.rbegin(); b != match.blocks.rend(); ++b) pool.release(*b);
    return match.blocks.size();
  };
  std::vector<BlockPool::Block> taken = {pool.allocate(), pool.allocate()};
  CHECK(pool.used() == 4);
  CHECK(found(second) == 2);
  CHECK(found(first) == 1);
  taken.push_back(pool.allocate());
  CHECK(found(second) == 1);
  taken.push_back(pool.allocate());
  CHECK(found(second) == 0);
  CHECK(pool.allocate() == BlockPool::none);
  const auto beyond = pool.allocate(true);
  CHECK(beyond != BlockPool::none);
  CHECK(pool.used() == 5);
  pool.release(beyond);
  for (const auto block : taken) pool.release(block);
  CHECK(pool.used() == 0);  // none had a name
}

TEST_CASE("a named block that was never filled is not kept, and a name is given once") {
  BlockPool pool(kSize, 8);
  const Tokens tokens{1, 2, 3, 4};
  const auto pending = pool.allocate();
  CHECK(pool.name(pending, BlockPool::none, tokens.begin(), tokens.end()) == pending);
  CHECK(pool.find(tokens, 4).blocks == std::vector{pending});  // shared before it is read
  const auto other = pool.allocate();
  CHECK(pool.name(other, BlockPool::none, tokens.begin(), tokens.end()) == pending);
  CHECK(pool.find({1, 2, 9}, 3).partial == BlockPool::none);  // nothing in it to copy
  pool.set_filled(pending, 2);
  const auto match = pool.find({1, 2, 3}, 3);
  CHECK(match.partial == pending);
  CHECK(match.partial_tokens == 2);
  for (const auto block : {pending, pending, other}) pool.release(block);
  CHECK(pool.used() == 0);
  CHECK(pool.find(tokens, 4).blocks.empty());
}

TEST_CASE("pools drop what they keep without allocating") {
  BlockPool pool(kSize, 100);
  nlac::StatePool states(100);
  for (int64_t i = 0; i < 60; ++i) {
    const Tokens tokens{i, 1, 2, 3};
    const auto block = pool.allocate();
    pool.name(block, BlockPool::none, tokens.begin(), tokens.end());
    pool.set_filled(block, kSize);
    pool.release(block);
    states.keep(tokens, kSize);
  }
  CHECK(pool.used() == 60);
  CHECK(states.used() == 60);
  {
    const nlac::test::FailingNew failing(0);
    pool.forget();
    states.forget();
  }
  CHECK(pool.used() == 0);
  CHECK(states.used() == 0);
}
