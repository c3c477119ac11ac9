// Every instruction set is bitwise equal to sum_tree_math.h.
#include "core/replay/sum_tree_kernels.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/random.h"
#include "core/replay/sum_tree.h"
#include "test/core/digest.h"

using namespace nlac;
using tree_kernels::all_kernels;

namespace {

float any_priority(uint64_t i) {
  const auto words = philox(44, 1, i);
  if (words[0] % 5 == 0) return 0;
  const float priority = std::bit_cast<float>(words[1] & 0x7FFFFFFFu);
  return std::isfinite(priority) ? priority : 1;
}

// Masses of every size, a third of them 0; a whole node of zeros now and then.
double any_mass(uint64_t i) {
  const auto words = philox(45, 2, i);
  if (words[0] % 3 == 0 || philox(45, 3, i / tree_fanout)[0] % 7 == 0) return 0;
  return std::ldexp(uniform(46, 0, i), static_cast<int>(words[1] % 100) - 50);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("there is an instruction set that every processor runs") { CHECK(!all_kernels().empty()); }

TEST_CASE("every instruction set finds the invalid entry") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto* kernels : all_kernels()) {
    for (const int64_t count : {0, 1, 7, 16, 33, 100}) {
      std::vector<int32_t> indices(count);
      std::vector<float> priorities(count);
      for (int64_t i = 0; i < count; ++i)
        indices[i] = static_cast<int32_t>(i), priorities[i] = any_priority(i);
      const auto valid = [&](float largest) {
        return kernels->valid(indices.data(), priorities.data(), count, 100, largest);
      };
      CHECK(valid(std::numeric_limits<float>::max()));
      for (int64_t at = 0; at < count; ++at) {
        for (const int32_t index : {-1, 100, std::numeric_limits<int32_t>::min()}) {
          const int32_t before = std::exchange(indices[at], index);
          CHECK(!valid(std::numeric_limits<float>::max()));
          indices[at] = before;
        }
        for (const float priority : {-1e-45f, infinity, -infinity, std::nanf(""), 1e38f}) {
          const float before = std::exchange(priorities[at], priority);
          CHECK(!valid(0x1p120f));
          priorities[at] = before;
        }
      }
    }
  }
}

TEST_CASE("every instruction set computes the same masses") {
  constexpr int64_t leaves = 4000;
  std::vector<float> raw(leaves);
  for (int64_t i = 0; i < leaves; ++i) raw[i] = any_priority(i);
  for (const double alpha : {0.0, 0.1, 0.6, 1.0, 2.5, 7.0}) {
    CAPTURE(alpha);
    std::vector<int32_t> changed;
    std::vector<double> expected(leaves, -1);
    for (int64_t i = 0; i < leaves; ++i) {
      const auto leaf = static_cast<int32_t>(philox(47, 0, static_cast<uint64_t>(i))[0] % leaves);
      if (raw[leaf] > largest_priority(alpha)) continue;
      changed.push_back(leaf);  // some of them twice
      expected[leaf] = mass_of(raw[leaf], alpha);
    }
    for (const auto* kernels : all_kernels()) {
      std::vector<double> masses(leaves, -1);
      kernels->write_masses(raw.data(), alpha, changed.data(), static_cast<int64_t>(changed.size()),
                            masses.data());
      CHECK(same_bits(masses, expected));
    }
  }
}

TEST_CASE("every instruction set computes the same sums, starts and extremes") {
  constexpr int64_t nodes = 500;
  std::vector<double> children(nodes * tree_fanout);
  for (size_t i = 0; i < children.size(); ++i) children[i] = any_mass(i);
  std::vector<float> lower(children.size()), upper(children.size());
  for (size_t i = 0; i < lower.size(); ++i) {
    lower[i] = static_cast<float>(any_mass(i)), upper[i] = static_cast<float>(any_mass(i + lower.size()));
    if (lower[i] == 0) lower[i] = upper[i] = i % 2 == 0 ? -0.0f : 0.0f;
  }
  std::vector<int32_t> some;
  for (int32_t node = 0; node < nodes; node += 1 + node % 3) some.push_back(node);
  for (const bool whole : {false, true}) {
    std::vector<double> sums(nodes, -1), starts(children.size(), -1);
    std::vector<float> min(nodes, -1), max(nodes, -1);
    const auto each = [&](int64_t node) {
      sums[node] = node_sum(children.data() + node * tree_fanout, starts.data() + node * tree_fanout);
      min[node] = node_min(lower.data() + node * tree_fanout);
      max[node] = node_max(upper.data() + node * tree_fanout);
    };
    if (whole) {
      for (int64_t node = 0; node < nodes; ++node) each(node);
    } else {
      for (const int32_t node : some) each(node);
    }
    const int32_t* which = whole ? nullptr : some.data();
    const int64_t count = whole ? nodes : static_cast<int64_t>(some.size());
    for (const auto* kernels : all_kernels()) {
      std::vector<double> s(nodes, -1), at(children.size(), -1), bare(nodes, -1);
      std::vector<float> low(nodes, -1), high(nodes, -1);
      kernels->write_sums(children.data(), which, count, at.data(), s.data());
      kernels->write_sums(children.data(), which, count, nullptr, bare.data());
      std::vector<int32_t> changed = some;
      const auto write = [&] {
        return kernels->write_extremes(lower.data(), upper.data(), whole ? nullptr : changed.data(), count,
                                       low.data(), high.data());
      };
      for (int64_t i = 0; i < count; i += 2) {  // half of the nodes are as they should be already
        const int64_t node = whole ? i : some[i];
        low[node] = min[node], high[node] = max[node];
      }
      CHECK(write() == count / 2);
      for (int64_t i = 1; i < count && !whole; i += 2) REQUIRE(changed[i / 2] == some[i]);
      CHECK(write() == 0);
      CHECK(same_bits(s, sums));
      CHECK(same_bits(bare, sums));
      CHECK(same_bits(at, starts));
      CHECK(same_bits(low, min));
      CHECK(same_bits(high, max));
    }
  }
}

TEST_CASE("every instruction set draws the same") {
  constexpr int64_t count = 333;
  constexpr uint64_t seed = 0xFEDCBA9876543210, drawn = 0xFFFFFF00;  // counters that leave 32 bits
  for (const int64_t capacity : {1, 16, 17, 5000}) {
    CAPTURE(capacity);
    const TreeShape shape = make_tree_shape(capacity);
    std::vector<double> tree(shape.total), starts(shape.inner());
    for (int64_t i = 0; i < capacity; ++i) tree[i] = i == 0 ? 0.5 : any_mass(i);
    double least = 0.5;
    for (int64_t i = 0; i < capacity; ++i) least = tree[i] > 0 && tree[i] < least ? tree[i] : least;
    for (int level = 1; level < shape.levels; ++level) {
      for (int64_t node = 0; node < shape.size[level - 1] / tree_fanout; ++node) {
        const int64_t first = node * tree_fanout;
        double* at = level > 1 ? starts.data() + shape.inner_offset(level - 1) + first : nullptr;
        tree[shape.offset[level] + node] = node_sum(tree.data() + shape.offset[level - 1] + first, at);
      }
    }
    for (const bool stratified : {false, true}) {
      for (const double beta : {0.0, 0.4, 1.0}) {
        // The greater total puts targets past the end, as rounding may.
        for (const double total : {tree.back(), 1.3 * tree.back()}) {
          const tree_kernels::Draws draws{seed, drawn, count, stratified, total, beta > 0 ? least : 0, beta};
          std::vector<int32_t> indices(count);
          std::vector<float> probabilities(count), weights(count);
          for (int64_t i = 0; i < count; ++i) {
            const double u = uniform(seed, draw_stream, drawn + static_cast<uint64_t>(i));
            const double target = draw_target(u, i, count, stratified, total);
            const int64_t leaf = descend(tree.data(), starts.data(), shape, target);
            REQUIRE(tree[leaf] > 0);
            indices[i] = static_cast<int32_t>(leaf);
            probabilities[i] = static_cast<float>(tree[leaf] / total);
            weights[i] = weight_of(tree[leaf], draws.least, beta);
          }
          for (const auto* kernels : all_kernels()) {
            std::vector<int32_t> k(count, -1);
            std::vector<float> p(count, -1), w(count, -1);
            kernels->sample(shape, tree.data(), starts.data(), draws, k.data(), p.data(), w.data());
            CHECK(k == indices);
            CHECK(same_bits(p, probabilities));
            CHECK(same_bits(w, weights));
          }
        }
      }
    }
  }
}

TEST_CASE("trees of every instruction set stay the same through sets and draws") {
  constexpr int64_t capacity = 30000;
  const TreeOptions options{capacity, 0.6, 0.4, 5};
  std::vector<SumTree> trees;
  for (const auto* kernels : all_kernels()) trees.emplace_back(options, *kernels);
  for (const int64_t count : {1, 50, 3000, 30000, 7}) {
    std::vector<int32_t> indices(count);
    std::vector<float> priorities(count);
    for (int64_t i = 0; i < count; ++i) {
      const auto words = philox(48, static_cast<uint64_t>(count), static_cast<uint64_t>(i));
      indices[i] = static_cast<int32_t>(words[0] % capacity);
      priorities[i] = words[1] % 4 == 0 ? 0.0f : static_cast<float>(words[2]) * 0x1p-16f;
    }
    std::vector<int32_t> expected(200), indices_of(200);
    std::vector<float> probabilities(200), p(200), weights(200), w(200);
    for (SumTree& tree : trees) {
      tree.set(indices.data(), priorities.data(), count);
      const bool first = &tree == &trees.front();
      tree.sample(200, false, first ? expected.data() : indices_of.data(),
                  first ? probabilities.data() : p.data(), first ? weights.data() : w.data());
      CHECK(tree.total() == trees.front().total());
      if (first) continue;
      CHECK(indices_of == expected);
      CHECK(same_bits(p, probabilities));
      CHECK(same_bits(w, weights));
    }
  }
}

TEST_CASE("trees of every processor have the bits that were recorded on x86-64") {
  constexpr int64_t capacity = 5000, drawn = 500;
  for (const auto* kernels : all_kernels()) {
    nlac::test::Digest digest;
    for (const auto& [alpha, beta] : {std::pair{0.6, 0.4}, {1.0, 0.0}, {2.5, 1.0}}) {
      SumTree tree(TreeOptions{capacity, alpha, beta, 5}, *kernels);
      for (uint64_t round = 0; round < 4; ++round) {
        std::vector<int32_t> indices(capacity);
        std::vector<float> priorities(capacity);
        for (int64_t i = 0; i < capacity; ++i) {
          const auto words = philox(49, round, static_cast<uint64_t>(i));
          indices[i] = static_cast<int32_t>(words[0] % capacity);
          priorities[i] = words[1] % 4 == 0 ? 0.0f : static_cast<float>(words[2]) * 0x1p-16f;
        }
        tree.set(indices.data(), priorities.data(), capacity);
        for (const bool stratified : {false, true}) {
          std::vector<float> probabilities(drawn), weights(drawn);
          tree.sample(drawn, stratified, indices.data(), probabilities.data(), weights.data());
          digest.add(indices.data(), drawn);
          digest.add(probabilities);
          digest.add(weights);
        }
        const double total = tree.total();
        const float extremes[] = {tree.min(), tree.max()};
        digest.add(&total, 1);
        digest.add(extremes, 2);
      }
    }
    CHECK(digest.value() == 7450328988796091977u);
  }
}
