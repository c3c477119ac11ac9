#include "core/replay/sum_tree_math.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "core/random.h"
#include "core/replay/sum_tree.h"

using namespace nlac;

namespace {

// The kernel's atomicAdd and fences, by CPU threads.
struct ThreadAtomics {
  static uint32_t add(uint32_t* at, uint32_t n) { return std::atomic_ref(*at).fetch_add(n); }
  static uint32_t subtract(uint32_t* at, uint32_t n) { return std::atomic_ref(*at).fetch_sub(n); }
  static uint32_t maximum(uint32_t* at, uint32_t n) {
    uint32_t old = std::atomic_ref(*at).load();
    while (old < n && !std::atomic_ref(*at).compare_exchange_weak(old, n)) {
    }
    return old;
  }
  static bool take(uint32_t* at, uint32_t n) { return std::atomic_ref(*at).compare_exchange_strong(n, 0); }
  static auto read(const auto* at) { return *at; }
};

// A tree that several threads set at once, in the two passes that native/cuda/sum_tree.cu launches.
class SharedTree {
 public:
  explicit SharedTree(int64_t capacity)
      : shape(make_tree_shape(capacity)),
        tree(shape.total),
        starts(shape.inner()),
        raw(shape.size[0]),
        min(shape.inner()),
        max(shape.inner()),
        claims(capacity),
        pending(shape.inner()),
        memory{tree.data(), starts.data(), raw.data(),    min.data(),
               max.data(),  claims.data(), pending.data()} {}

  void set(const std::vector<int32_t>& indices, const std::vector<float>& priorities, double alpha) {
    in_parallel(indices.size(), [&](size_t i) {
      claim_leaf<ThreadAtomics>(shape, memory, indices[i], static_cast<uint32_t>(i));
    });
    in_parallel(indices.size(), [&](size_t i) {
      write_leaf<ThreadAtomics>(shape, memory, indices[i], static_cast<uint32_t>(i), priorities[i],
                                mass_of(priorities[i], alpha));
    });
  }

  bool marks_are_clear() const {
    const auto zero = [](uint32_t n) { return n == 0; };
    return std::all_of(claims.begin(), claims.end(), zero) &&
           std::all_of(pending.begin(), pending.end(), zero);
  }

  TreeShape shape;
  std::vector<double> tree, starts;
  std::vector<float> raw, min, max;
  std::vector<uint32_t> claims, pending;
  TreeMemory memory;

 private:
  static void in_parallel(size_t count, const auto& body) {
    constexpr size_t workers = 4;
    std::vector<std::thread> threads;
    for (size_t worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&, worker] {
        for (size_t i = worker; i < count; i += workers) body(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace

TEST_CASE("a tree's shape covers every leaf and ends in one root") {
  for (const int64_t capacity :
       {int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{255}, int64_t{256},
        int64_t{257}, int64_t{4097}, int64_t{1} << 20, tree_max_capacity - 1, tree_max_capacity}) {
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

TEST_CASE("powers are accurate to 1e-14 over the range of masses") {
  double worst = 0;
  for (const double alpha : {0.01, 0.1, 0.5, 0.6, 0.9, 1.5, 2.0, 6.0}) {
    for (uint64_t i = 0; i < 40000; ++i) {
      const auto words = philox(12, 0, i);
      uint32_t bits = words[0] & 0x7FFFFFFFu;  // any positive float: subnormal ones too
      float priority;
      std::memcpy(&priority, &bits, 4);
      if (!(priority > 0 && priority <= largest_priority(alpha))) continue;
      const long double exact = std::pow(static_cast<long double>(priority), static_cast<long double>(alpha));
      if (exact < 0x1p-1000L) continue;
      const double mass = mass_of(priority, alpha);
      worst = std::max(worst, static_cast<double>(std::abs(mass / exact - 1)));
    }
  }
  CHECK(worst > 0);
  CHECK(worst < 1.2e-13);  // 6·log2 p has 13 bits before the point, which cost it as many behind
}

TEST_CASE("masses at their limits") {
  constexpr float largest = std::numeric_limits<float>::max(),
                  smallest = std::numeric_limits<float>::denorm_min();
  for (const double alpha : {0.0, 1e-300, 0.1, 0.5, 1.0, 3.0, 1e8, 1e9, 1e10, 1e300}) {
    CAPTURE(alpha);
    CHECK(mass_of(0, alpha) == 0);
    CHECK(mass_of(-0.0f, alpha) == 0);
    CHECK(mass_of(1, alpha) == 1);
    CHECK(mass_of(smallest, alpha) > 0);
    const double most = mass_of(largest_priority(alpha), alpha);
    CHECK(most >= 1);
    CHECK(std::isfinite(most * static_cast<double>(tree_max_capacity)));
  }
  CHECK(mass_of(largest, 0) == 1);
  CHECK(mass_of(smallest, 0) == 1);
  CHECK(mass_of(smallest, 1) == smallest);
  CHECK(mass_of(largest, 1) == largest);
  CHECK(largest_priority(1) == largest);
  CHECK(largest_priority(10) < largest);
}

TEST_CASE("importance weights are 1 for the least likely and decrease from there") {
  CHECK(weight_of(5, 5, 0.4) == 1);
  CHECK(weight_of(5, 0, 0.4) == 1);
  CHECK(weight_of(8, 1, 1) == 0.125f);
  CHECK(weight_of(32, 2, 0.5) == 0.25f);
}

TEST_CASE("a node's sum and starts") {
  std::vector<double> children(tree_fanout), starts(tree_fanout);
  CHECK(node_sum(children.data(), nullptr) == 0);
  double sum = 0;
  for (int i = 0; i < tree_fanout; ++i) sum += children[i] = 1 + i;
  CHECK(node_sum(children.data(), starts.data()) == sum);  // small integers add exactly in any order
  double start = 0;
  for (int i = 0; i < tree_fanout; ++i) {
    CHECK(starts[i] == start);
    start += children[i];
  }
}

TEST_CASE("a node's least positive and largest priority") {
  std::vector<float> children(tree_fanout);
  CHECK(node_min(children.data()) == 0);
  CHECK(node_max(children.data()) == 0);
  for (int i = 0; i < tree_fanout; ++i) children[i] = 1.0f + static_cast<float>(i * 5 % tree_fanout);
  CHECK(node_min(children.data()) == 1);
  CHECK(node_max(children.data()) == 16);
  for (int i = 0; i < tree_fanout; ++i) children[i] = i == 6 ? 0.5f : -0.0f;
  CHECK(node_min(children.data()) == 0.5f);
  CHECK(node_max(children.data()) == 0.5f);
}

TEST_CASE("a child of mass 0 is never chosen, at and beyond the ends either") {
  std::vector<double> children(tree_fanout), starts(tree_fanout);
  const auto choose = [&](double target) {
    const int leaf = choose_leaf(children.data(), target);
    node_sum(children.data(), starts.data());
    double rest = target;
    const int child = choose_child(starts.data(), &rest);
    CHECK(child == leaf);
    CHECK(rest >= 0);
    return child;
  };
  children[3] = 0.1, children[9] = 0.2;
  const double sum = node_sum(children.data(), nullptr);
  CHECK(choose(0) == 3);
  CHECK(choose(std::nextafter(0.1, 0)) == 3);
  CHECK(choose(0.1) == 9);
  CHECK(choose(std::nextafter(sum, 0)) == 9);
  CHECK(choose(sum) == 9);
  CHECK(choose(std::nextafter(sum, 1)) == 9);
  CHECK(choose(1e300) == 9);
  double target = 0.1 + 0.05;
  choose_child(starts.data(), &target);
  CHECK(target == doctest::Approx(0.05));

  // Masses of very different sizes: the running sums round, the choice must stay on a positive
  // child.
  for (uint64_t trial = 0; trial < 20000; ++trial) {
    for (int i = 0; i < tree_fanout; ++i) {
      const auto words = philox(1, trial, static_cast<uint64_t>(i));
      children[i] = words[0] % 3 == 0
                        ? std::ldexp(uniform(2, trial, static_cast<uint64_t>(i)), int(words[1] % 120) - 60)
                        : 0;
    }
    const double total = node_sum(children.data(), nullptr);
    if (total == 0) continue;
    for (const double at : {0.0, uniform(3, trial, 0) * total, std::nextafter(total, 0.0), total}) {
      REQUIRE(children[choose(at)] > 0);
    }
  }
}

TEST_CASE("concurrent sets of one tree equal the sampler's own set") {
  for (const int64_t capacity : {1, 40, 5000}) {
    CAPTURE(capacity);
    constexpr double alpha = 0.6, beta = 0.5;
    SharedTree shared(capacity);
    SumTree tree(TreeOptions{capacity, alpha, beta, 31});
    uint64_t drawn = 0;
    for (uint64_t round = 0; round < 60; ++round) {
      const size_t count = 1 + philox(6, 0, round)[0] % 2000;
      std::vector<int32_t> indices(count);
      std::vector<float> priorities(count);
      for (size_t i = 0; i < count; ++i) {
        const auto words = philox(6, round + 1, i);
        // Half of the entries fall on a few leaves.
        indices[i] = words[0] % (words[1] % 2 == 0 ? capacity : std::min<int64_t>(capacity, 5));
        priorities[i] = words[2] % 4 == 0 ? 0.0f : static_cast<float>(words[3]) * 0x1p-20f;
      }
      shared.set(indices, priorities, alpha);
      tree.set(indices.data(), priorities.data(), static_cast<int64_t>(count));
      REQUIRE(shared.marks_are_clear());
      REQUIRE(shared.tree.back() == tree.total());
      REQUIRE(shared.min.back() == tree.min());
      REQUIRE(shared.max.back() == tree.max());
      if (tree.total() == 0) continue;

      constexpr int64_t draws = 200;
      int32_t expected[draws];
      float probabilities[draws], weights[draws];
      tree.sample(draws, round % 2 == 0, expected, probabilities, weights);
      for (int64_t i = 0; i < draws; ++i) {
        const double u = uniform(31, draw_stream, drawn + static_cast<uint64_t>(i));
        const double target = draw_target(u, i, draws, round % 2 == 0, shared.tree.back());
        const int64_t leaf = descend(shared.tree.data(), shared.starts.data(), shared.shape, target);
        REQUIRE(leaf == expected[i]);
        REQUIRE(static_cast<float>(shared.tree[leaf] / shared.tree.back()) == probabilities[i]);
        REQUIRE(weight_of(shared.tree[leaf], mass_of(shared.min.back(), alpha), beta) == weights[i]);
      }
      drawn += draws;
    }
  }
}
