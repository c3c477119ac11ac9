#include "core/replay/sum_tree_math.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/random.h"

using namespace nlac;

TEST_CASE("a tree's shape covers every leaf and ends in one root") {
  for (const int64_t capacity : {int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{255},
                                 int64_t{256}, int64_t{257}, int64_t{4097}, int64_t{1} << 20, tree_max_capacity - 1,
                                 tree_max_capacity}) {
    CAPTURE(capacity);
    const TreeShape shape = make_tree_shape(capacity);
    REQUIRE(shape.levels >= 2);
    REQUIRE(shape.levels <= tree_max_levels);
    CHECK(shape.size[0] >= capacity);
    CHECK(shape.size[0] < capacity + tree_fanout);
    CHECK(shape.size[shape.levels - 1] == 1);
    int64_t total = 0;
    for (int level = 0; level < shape.levels; ++level) {
      CHECK(shape.offset[level] == total);
      CHECK(shape.offset[level] % tree_fanout == 0);
      total += shape.size[level];
      if (level == 0) continue;
      // Every node of this level has all its children in the level below.
      CHECK(shape.size[level] >= shape.size[level - 1] / tree_fanout);
    }
    CHECK(shape.total == total);
  }
}

TEST_CASE("a node's sum and least child") {
  std::vector<double> children(tree_fanout);
  CHECK(node_sum(children.data()) == 0);
  CHECK(node_least(children.data()) == 0);
  double sum = 0;
  for (int i = 0; i < tree_fanout; ++i) sum += children[i] = 1 + i;
  CHECK(node_sum(children.data()) == sum);  // small integers add exactly in any order
  CHECK(node_least(children.data()) == 1);
  children[0] = 0;
  CHECK(node_least(children.data()) == 2);
}

TEST_CASE("a child of mass 0 is never chosen, at the ends and past them neither") {
  std::vector<double> children(tree_fanout);
  const auto choose = [&](double target) { return choose_child(children.data(), &target); };
  children[3] = 0.1, children[9] = 0.2;
  const double sum = node_sum(children.data());
  CHECK(choose(0) == 3);
  CHECK(choose(std::nextafter(0.1, 0)) == 3);
  CHECK(choose(0.1) == 9);
  CHECK(choose(std::nextafter(sum, 0)) == 9);
  CHECK(choose(sum) == 9);
  CHECK(choose(std::nextafter(sum, 1)) == 9);
  CHECK(choose(1e300) == 9);
  double target = 0.1 + 0.05;
  choose_child(children.data(), &target);
  CHECK(target == doctest::Approx(0.05));

  // Masses of very different sizes: the running sum rounds, the choice must stay on a positive child.
  for (uint64_t trial = 0; trial < 20000; ++trial) {
    for (int i = 0; i < tree_fanout; ++i) {
      const auto words = philox(1, trial, static_cast<uint64_t>(i));
      children[i] = words[0] % 3 == 0 ? std::ldexp(uniform(2, trial, static_cast<uint64_t>(i)), int(words[1] % 120) - 60) : 0;
    }
    const double total = node_sum(children.data());
    if (total == 0) continue;
    for (double at : {0.0, uniform(3, trial, 0) * total, std::nextafter(total, 0.0), total}) {
      double rest = at;
      const int chosen = choose_child(children.data(), &rest);
      REQUIRE(children[chosen] > 0);
      REQUIRE(rest >= 0);
    }
  }
}
