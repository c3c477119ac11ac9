// The tree on a GPU is bitwise equal to the one on the CPU for the same sets and seed.
#include "core/replay/cuda_sum_tree.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/replay/sum_tree.h"
#include "test/core/fixtures.h"
#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;

namespace {

struct Entries {
  std::vector<int32_t> indices;
  std::vector<float> priorities;
};

// Half of the entries fall on a few leaves; a quarter of the priorities is 0.
Entries entries(int64_t capacity, int64_t count, uint64_t stream) {
  Entries made{std::vector<int32_t>(count), std::vector<float>(count)};
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox(61, stream, static_cast<uint64_t>(i));
    const int64_t range = words[1] % 2 == 0 ? capacity : std::min<int64_t>(capacity, 9);
    made.indices[i] = static_cast<int32_t>(words[0] % range);
    made.priorities[i] = words[2] % 4 == 0 ? 0.0f : static_cast<float>(words[3]) * 0x1p-20f;
  }
  return made;
}

struct Draws {
  std::vector<int32_t> indices;
  std::vector<float> probabilities, weights;
  bool operator==(const Draws&) const = default;
};

Draws draw(PriorityTree& tree, int64_t count, bool stratified) {
  Draws draws{std::vector<int32_t>(count), std::vector<float>(count), std::vector<float>(count)};
  tree.sample(count, stratified, draws.indices.data(), draws.probabilities.data(), draws.weights.data());
  return draws;
}

}  // namespace

TEST_CASE("cuda: a tree sets, sums and draws like the CPU's") {
  if (!has_device()) return;
  for (const int64_t capacity :
       {int64_t{1}, int64_t{16}, int64_t{17}, int64_t{5000}, (int64_t{1} << 20) + 1}) {
    for (const double alpha : {0.1, 1.0}) {
      for (const double beta : {0.0, 0.4}) {
        CAPTURE(capacity);
        CAPTURE(alpha);
        CAPTURE(beta);
        const TreeOptions options{capacity, alpha, beta, 17};
        SumTree expected(options);
        CudaSumTree tree(options, 0);
        for (uint64_t round = 0; round < 12; ++round) {
          const auto [indices, priorities] = entries(capacity, 1 + philox(60, 0, round)[0] % 5000, round);
          const auto count = static_cast<int64_t>(indices.size());
          expected.set(indices.data(), priorities.data(), count);
          tree.set(indices.data(), priorities.data(), count);
          REQUIRE(tree.total() == expected.total());
          REQUIRE(tree.min() == expected.min());
          REQUIRE(tree.max() == expected.max());
          std::vector<float> got(count), wanted(count);
          tree.get(indices.data(), got.data(), count);
          expected.get(indices.data(), wanted.data(), count);
          REQUIRE(got == wanted);
          if (expected.total() == 0) continue;
          REQUIRE(draw(tree, 700, round % 2 == 0) == draw(expected, 700, round % 2 == 0));
          REQUIRE(tree.draws() == expected.draws());
        }
      }
    }
  }
}

TEST_CASE("cuda: consecutive sets do not interfere") {
  if (!has_device()) return;
  const TreeOptions options{100000, 0.6, 0, 3};
  SumTree expected(options);
  CudaSumTree tree(options, 0);
  for (uint64_t round = 0; round < 200; ++round) {
    const auto [indices, priorities] =
        entries(options.capacity, 20000 - 90 * static_cast<int64_t>(round), round);
    expected.set(indices.data(), priorities.data(), static_cast<int64_t>(indices.size()));
    tree.set(indices.data(), priorities.data(), static_cast<int64_t>(indices.size()));
  }
  CHECK(tree.total() == expected.total());
  CHECK(draw(tree, 5000, true) == draw(expected, 5000, true));
}

TEST_CASE("cuda: errors are the CPU's, and nothing is set") {
  if (!has_device()) return;
  CudaSumTree tree(TreeOptions{100, 0.5, 0, 1}, 0);
  const auto set = [&](int32_t index, float priority) {
    const int32_t indices[] = {5, index};
    const float priorities[] = {1, priority};
    return code_of([&] { tree.set(indices, priorities, 2); });
  };
  CHECK(code_of([&] { draw(tree, 1, false); }) == "ERR_EMPTY");
  CHECK(code_of([&] { draw(tree, 0, false); }) == "ERR_EMPTY");
  for (const int32_t index : {-1, 100}) CHECK(set(index, 1) == "ERR_INDEX");
  for (const float priority : {-1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    CHECK(set(6, priority) == "ERR_PRIORITY");
  }
  CHECK(tree.total() == 0);
  CHECK(tree.draws() == 0);
  CHECK(code_of([] { CudaSumTree(TreeOptions{0, 1, 0, 0}, 0); }) == "ERR_VALUE");
  CHECK(code_of([] { CudaSumTree(TreeOptions{1, 1, 0, 0}, 1 << 20); }) == "ERR_DEVICE");
}

TEST_CASE("cuda: a saved tree continues on either device") {
  if (!has_device()) return;
  const Scratch scratch;
  const std::string path = scratch / "tree";
  CudaSumTree tree(TreeOptions{3000, 0.3, 0.7, 23}, 0);
  const auto [indices, priorities] = entries(3000, 4000, 0);
  tree.set(indices.data(), priorities.data(), 4000);
  draw(tree, 50, false);
  tree.save(path);
  SumTree on_cpu(load_tree(path));
  CudaSumTree on_gpu(load_tree(path), 0);
  const Draws expected = draw(tree, 400, false);
  CHECK(draw(on_cpu, 400, false) == expected);
  CHECK(draw(on_gpu, 400, false) == expected);
}
