#include "core/generate/state_pool.h"

#include <doctest/doctest.h>

#include <vector>

using nlac::StatePool;
using Tokens = StatePool::Tokens;

TEST_CASE("slots are held within the budget, and one beyond it on request") {
  StatePool pool(2);
  CHECK(pool.hold() == 0);
  CHECK(pool.hold() == 1);
  CHECK(pool.hold() == StatePool::none);
  CHECK(pool.hold(true) == 2);
  CHECK(pool.held() == 3);
  pool.release(1);
  CHECK(pool.hold() == StatePool::none);
  pool.release(2);
  CHECK(pool.hold() == 2);
  CHECK(pool.size() == 3);
}

TEST_CASE("the longest snapshot of a text's first tokens is found") {
  StatePool pool(8);
  const Tokens text{1, 2, 3, 4, 5};
  const auto two = pool.keep(text, 2), four = pool.keep(text, 4);
  CHECK(pool.keep({1, 2, 9}, 3) != StatePool::none);
  CHECK(pool.keep(text, 4) == StatePool::none);  // it is there
  CHECK(pool.find(text, 5).slot == four);
  CHECK(pool.find(text, 5).tokens == 4);
  CHECK(pool.find(text, 3).slot == two);
  CHECK(pool.find({1, 2, 3, 5}, 4).slot == two);
  CHECK(pool.find({2, 2, 3, 5}, 4).slot == StatePool::none);
  CHECK(pool.find(text, 1).tokens == 0);
  pool.forget();
  CHECK(pool.find(text, 5).slot == StatePool::none);
  CHECK(pool.used() == 0);
}

TEST_CASE("the least recently used snapshot is evicted first, and never a held slot") {
  StatePool pool(3);
  const auto held = pool.hold();
  const auto a = pool.keep({1}, 1), b = pool.keep({2}, 1);
  CHECK(pool.find({1}, 1).slot == a);
  CHECK(pool.keep({3}, 1) == b);  // evicted
  CHECK(pool.find({2}, 1).slot == StatePool::none);
  CHECK(pool.hold() == a);
  CHECK(pool.hold() == b);
  CHECK(pool.keep({4}, 1) == StatePool::none);  // all are held
  CHECK(pool.used() == 3);
  pool.release(held);
  CHECK(pool.keep({4}, 1) == held);
}
