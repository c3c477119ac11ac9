#include "core/replay/sum_tree.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>

#include "core/io/checksum.h"
#include "core/random.h"
#include "test/core/failing_new.h"
#include "test/core/fixtures.h"

using namespace nlac;
using nlac::test::Bytes;
using nlac::test::code_of;
using nlac::test::read_bytes;
using nlac::test::Scratch;

namespace {

struct Draws {
  std::vector<int32_t> indices;
  std::vector<float> probabilities, weights;
};

Draws draw(SumTree& tree, int64_t count, bool stratified = false) {
  Draws draws{std::vector<int32_t>(count), std::vector<float>(count), std::vector<float>(count)};
  tree.sample(count, stratified, draws.indices.data(), draws.probabilities.data(), draws.weights.data());
  return draws;
}

void set_one(SumTree& tree, int32_t index, float priority) { tree.set(&index, &priority, 1); }

float get_one(SumTree& tree, int32_t index) {
  float priority = -1;
  tree.get(&index, &priority, 1);
  return priority;
}

long double exact_total(const std::vector<float>& priorities, double alpha) {
  long double sum = 0;
  for (const float p : priorities) {
    if (p > 0) sum += std::pow(static_cast<long double>(p), static_cast<long double>(alpha));
  }
  return sum;
}

// Σ (observed - expected)² / expected, and the number of leaves that may be drawn.
std::pair<double, int64_t> chi_square(const std::vector<int64_t>& counts,
                                      const std::vector<float>& priorities, double alpha, int64_t draws) {
  const auto total = static_cast<double>(exact_total(priorities, alpha));
  double statistic = 0;
  int64_t cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (priorities[i] == 0) {
      CHECK(counts[i] == 0);
      continue;
    }
    const double expected = static_cast<double>(draws) * std::pow(priorities[i], alpha) / total;
    statistic +=
        (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
    ++cells;
  }
  return {statistic, cells};
}

}  // namespace

TEST_CASE("arguments out of range are rejected with a code") {
  CHECK(code_of([] { SumTree(TreeOptions{0, 1, 0, 0}); }) == "ERR_VALUE");
  CHECK(code_of([] { SumTree(TreeOptions{(int64_t{1} << 27) + 1, 1, 0, 0}); }) == "ERR_VALUE");
  CHECK(code_of([] { SumTree(TreeOptions{4, -0.1, 0, 0}); }) == "ERR_VALUE");
  CHECK(code_of([] { SumTree(TreeOptions{4, std::nan(""), 0, 0}); }) == "ERR_VALUE");
  CHECK(code_of([] { SumTree(TreeOptions{4, 1, 1.5, 0}); }) == "ERR_VALUE");
  CHECK(code_of([] { SumTree(TreeOptions{4, 1, std::nan(""), 0}); }) == "ERR_VALUE");
  SumTree tree(TreeOptions{4, 1, 0, 0});
  CHECK(code_of([&] { draw(tree, 1); }) == "ERR_EMPTY");
  CHECK(code_of([&] { get_one(tree, 4); }) == "ERR_INDEX");
  CHECK(code_of([&] { get_one(tree, -1); }) == "ERR_INDEX");
}

TEST_CASE("an invalid entry leaves the tree unchanged") {
  SumTree tree(TreeOptions{100, 0.5, 0, 7});
  set_one(tree, 3, 2.0f);
  const double before = tree.total();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), infinity, -infinity, -1.0f, -1e-30f}) {
    const int32_t indices[] = {5, 3, 6};
    const float priorities[] = {1.0f, 9.0f, bad};
    CHECK(code_of([&] { tree.set(indices, priorities, 3); }) == "ERR_PRIORITY");
  }
  for (const int32_t bad :
       {-1, 100, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    const int32_t indices[] = {5, 3, bad};
    const float priorities[] = {1.0f, 9.0f, 1.0f};
    CHECK(code_of([&] { tree.set(indices, priorities, 3); }) == "ERR_INDEX");
  }
  SumTree steep(TreeOptions{4, 10, 0, 0});
  CHECK(code_of([&] { set_one(steep, 0, 3e38f); }) == "ERR_PRIORITY");
  CHECK(tree.total() == before);
  CHECK(get_one(tree, 5) == 0);
  CHECK(get_one(tree, 3) == 2.0f);
}

TEST_CASE("of several priorities for one leaf the last one counts") {
  SumTree tree(TreeOptions{1000, 1, 0, 0});
  const int32_t indices[] = {7, 8, 7, 7, 999, 999};
  const float priorities[] = {5, 1, 3, 2, 4, 0};
  tree.set(indices, priorities, 6);
  CHECK(get_one(tree, 7) == 2);
  CHECK(get_one(tree, 8) == 1);
  CHECK(get_one(tree, 999) == 0);
  CHECK(tree.total() == 3);
}

TEST_CASE("sums do not depend on when they are requested") {
  constexpr int64_t capacity = 70000;
  SumTree eager(TreeOptions{capacity, 0.3, 0.5, 21}), late(TreeOptions{capacity, 0.3, 0.5, 21});
  // More changes than a tree records, few at a time and all at once.
  for (const int64_t count : {1, 40, 3000, 150000, 2, 70000, 500}) {
    std::vector<int32_t> indices(count);
    std::vector<float> priorities(count);
    for (int64_t i = 0; i < count; ++i) {
      const auto w = philox(21, static_cast<uint64_t>(count), static_cast<uint64_t>(i));
      indices[i] = w[0] % capacity;
      priorities[i] = w[1] % 3 == 0 ? 0.0f : static_cast<float>(w[2]);
    }
    eager.set(indices.data(), priorities.data(), count);
    eager.total();
    late.set(indices.data(), priorities.data(), count);
  }
  CHECK(late.total() == eager.total());
  const Draws a = draw(eager, 3000), b = draw(late, 3000);
  CHECK(a.indices == b.indices);
  CHECK(a.probabilities == b.probabilities);
  CHECK(a.weights == b.weights);
}

TEST_CASE("capacities around whole nodes set, sum and draw the last leaf") {
  for (const int64_t capacity :
       {int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16}, int64_t{17}, int64_t{255}, int64_t{257},
        int64_t{4097}, (int64_t{1} << 20) + 1, tree_max_capacity - 1}) {
    CAPTURE(capacity);
    SumTree tree(TreeOptions{capacity, 1, 0, 2});
    const auto last = static_cast<int32_t>(capacity - 1);
    CHECK(code_of([&] { set_one(tree, last + 1, 1); }) == "ERR_INDEX");
    set_one(tree, 0, 1);
    set_one(tree, last, 2);
    CHECK(tree.total() == (capacity == 1 ? 2 : 3));
    const Draws draws = draw(tree, 300);
    const auto ends = std::count(draws.indices.begin(), draws.indices.end(), last);
    CHECK(ends + (capacity == 1 ? 0 : std::count(draws.indices.begin(), draws.indices.end(), 0)) == 300);
    CHECK(ends > 150);
    set_one(tree, last, 0);
    CHECK(tree.total() == (capacity == 1 ? 0 : 1));
  }
}

TEST_CASE("a million random operations agree with a plain array") {
  constexpr int64_t capacity = 5000;
  const double alpha = 0.7;
  SumTree tree(TreeOptions{capacity, alpha, 0, 42});
  std::vector<float> model(capacity);
  int64_t operations = 0;
  for (uint64_t round = 0; operations < 1000000; ++round) {
    const auto words = philox(9, 0, round);
    const int64_t count = 1 + words[0] % 600;
    std::vector<int32_t> indices(count);
    std::vector<float> priorities(count);
    for (int64_t i = 0; i < count; ++i) {
      const auto w = philox(9, 1 + round, static_cast<uint64_t>(i));
      indices[i] = w[0] % capacity;
      // A fifth of all priorities is 0, the others span thirty powers of ten.
      priorities[i] = w[1] % 5 == 0 ? 0.0f : std::pow(10.0f, static_cast<float>(w[2] % 3000) / 100 - 15);
    }
    tree.set(indices.data(), priorities.data(), count);
    for (int64_t i = 0; i < count; ++i) model[indices[i]] = priorities[i];
    operations += count;
    if (round % 50 != 0) continue;
    const auto expected = static_cast<double>(exact_total(model, alpha));
    REQUIRE(std::abs(tree.total() - expected) <= 1e-12 * expected);
    std::vector<int32_t> all(capacity);
    std::iota(all.begin(), all.end(), 0);
    std::vector<float> got(capacity);
    tree.get(all.data(), got.data(), capacity);
    REQUIRE(got == model);
    for (const bool stratified : {false, true}) {
      const Draws draws = draw(tree, 200, stratified);
      for (int64_t i = 0; i < 200; ++i) {
        REQUIRE(model[draws.indices[i]] > 0);
        const double p = std::pow(static_cast<double>(model[draws.indices[i]]), alpha) / expected;
        REQUIRE(draws.probabilities[i] == doctest::Approx(p).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("the smallest and the largest priority equal a plain array's after every set") {
  const auto extremes = [](const std::vector<float>& priorities) {
    float min = 0, max = 0;
    for (const float p : priorities) {
      if (p > 0 && (min == 0 || p < min)) min = p;
      if (p > max) max = p;
    }
    return std::pair{min, max};
  };
  for (const int64_t capacity : {1, 15, 17, 300, 5000}) {
    for (const double beta : {0.0, 0.5}) {
      CAPTURE(capacity);
      CAPTURE(beta);
      SumTree tree(TreeOptions{capacity, 0.1, beta, 3});
      std::vector<float> model(capacity);
      CHECK(tree.min() == 0);
      CHECK(tree.max() == 0);
      for (uint64_t round = 0; round < 300; ++round) {
        const auto words = philox(14, 0, round);
        // Few and many at once; in every seventh round none or almost none is positive.
        const int64_t count = words[0] % 3 == 0 ? 2 * capacity : 1 + words[1] % 4;
        std::vector<int32_t> indices(count);
        std::vector<float> priorities(count);
        for (int64_t i = 0; i < count; ++i) {
          const auto w = philox(14, 1 + round, static_cast<uint64_t>(i));
          indices[i] = w[0] % capacity;
          const float any = std::bit_cast<float>(w[1] & 0x7FFFFFFFu);  // subnormal ones too
          const bool none = w[2] % 4 == 0 || (round % 7 == 0 && w[2] % 512 != 1) || !std::isfinite(any);
          priorities[i] = none ? (w[3] % 2 == 0 ? 0.0f : -0.0f) : any;
        }
        tree.set(indices.data(), priorities.data(), count);
        for (int64_t i = 0; i < count; ++i) model[indices[i]] = priorities[i];
        const auto [min, max] = extremes(model);
        REQUIRE(tree.min() == min);
        REQUIRE(tree.max() == max);
        if (round % 2 == 0) continue;
        // Removes recently set priorities, extremes too.
        tree.set(indices.data(), std::vector<float>(count).data(), count);
        for (const int32_t index : indices) model[index] = 0;
        REQUIRE(std::pair{tree.min(), tree.max()} == extremes(model));
      }
    }
  }
}

TEST_CASE("memory that runs out while sums are computed loses no change") {
  int64_t failures = 0;
  for (int64_t count = 0;; ++count) {
    SumTree tree(TreeOptions{1000, 1, 0.5, 1});
    set_one(tree, 500, 1);
    REQUIRE(tree.total() == 1);
    try {
      const nlac::test::FailingNew failing(count);
      set_one(tree, 999, 2);
      tree.total();
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    const bool failed = failures > count;
    if (!failed) REQUIRE(get_one(tree, 999) == 2);
    CHECK(tree.total() == 1 + get_one(tree, 999));
    CHECK(tree.max() == std::max(1.0f, get_one(tree, 999)));
    if (!failed) break;
  }
  CHECK(failures > 0);
}

TEST_CASE("the root does not drift after many changes") {
  constexpr int64_t capacity = 4096, batch = 1024;
  // NLAC_TEST_UPDATES=100000000 runs the whole length.
  const char* asked = std::getenv("NLAC_TEST_UPDATES");
  const int64_t updates = asked != nullptr ? std::atoll(asked) : 2000000;
  SumTree tree(TreeOptions{capacity, 1, 0, 0});
  std::vector<float> model(capacity);
  std::vector<int32_t> indices(batch);
  std::vector<float> priorities(batch);
  for (int64_t done = 0; done < updates; done += batch) {
    for (int64_t i = 0; i < batch; ++i) {
      const auto w = philox(5, 0, static_cast<uint64_t>(done + i));
      indices[i] = w[0] % capacity;
      // Temporary huge values would leave rounding errors in an incremental sum.
      priorities[i] = w[1] % 64 == 0 ? 1e12f : static_cast<float>(w[2]) * 0x1p-32f;
      model[indices[i]] = priorities[i];
    }
    tree.set(indices.data(), priorities.data(), batch);
    tree.total();  // makes the sums anew
  }
  for (int64_t i = 0; i < capacity; ++i) {
    if (model[i] > 1) set_one(tree, i, model[i] = 0.5f);
  }
  const auto expected = static_cast<double>(exact_total(model, 1));
  CHECK(std::abs(tree.total() - expected) <= 1e-12 * expected);
  for (int64_t i = 0; i < capacity; ++i) set_one(tree, i, 0);
  CHECK(tree.total() == 0);
}

TEST_CASE("leaves are drawn in proportion to their probabilities") {
  constexpr int64_t capacity = 300, count = 1000, rounds = 2000;
  for (const double alpha : {0.1, 1.0}) {
    for (const bool stratified : {false, true}) {
      SumTree tree(TreeOptions{capacity, alpha, 0, 1234});
      std::vector<float> model(capacity);
      for (int64_t i = 0; i < capacity; ++i) {
        model[i] = i % 7 == 0 ? 0.0f : static_cast<float>(0.01 + uniform(77, 0, static_cast<uint64_t>(i)));
        set_one(tree, i, model[i]);
      }
      std::vector<int64_t> counts(capacity);
      for (int64_t round = 0; round < rounds; ++round) {
        for (const int32_t index : draw(tree, count, stratified).indices) ++counts[index];
      }
      const auto [statistic, cells] = chi_square(counts, model, alpha, count * rounds);
      const auto freedom = static_cast<double>(cells - 1);
      CAPTURE(alpha);
      CAPTURE(stratified);
      // Five standard deviations above its mean; strata only make the counts more even.
      CHECK(statistic < freedom + 5 * std::sqrt(2 * freedom));
      if (!stratified) CHECK(statistic > freedom - 5 * std::sqrt(2 * freedom));
    }
  }
}

TEST_CASE("a stratified sample takes one draw from each stratum") {
  SumTree tree(TreeOptions{64, 1, 0, 3});
  for (int64_t i = 0; i < 64; ++i) set_one(tree, i, 1);
  const Draws draws = draw(tree, 64, true);
  for (int64_t i = 0; i < 64; ++i) CHECK(draws.indices[i] == i);
}

TEST_CASE("the only positive leaf is always drawn, at any position") {
  for (const int64_t capacity : {1, 16, 17, 1000}) {
    for (const int64_t leaf : {int64_t{0}, capacity / 2, capacity - 1}) {
      SumTree tree(TreeOptions{capacity, 0.3, 1, 5});
      set_one(tree, leaf, 1e-30f);
      const Draws draws = draw(tree, 100);
      CHECK(std::all_of(draws.indices.begin(), draws.indices.end(), [&](int32_t i) { return i == leaf; }));
      CHECK(draws.probabilities[0] == 1);
      CHECK(draws.weights[0] == 1);
    }
  }
}

TEST_CASE("alpha 0 draws positive leaves uniformly and never one of priority 0") {
  SumTree tree(TreeOptions{10, 0, 0, 1});
  set_one(tree, 2, 1e-20f);
  set_one(tree, 5, 1e20f);
  set_one(tree, 6, 0);
  CHECK(tree.total() == 2);
  const Draws draws = draw(tree, 1000);
  const auto twos = std::count(draws.indices.begin(), draws.indices.end(), 2);
  const auto fives = std::count(draws.indices.begin(), draws.indices.end(), 5);
  CHECK(twos + fives == 1000);
  CHECK(twos > 400);
  CHECK(fives > 400);
}

TEST_CASE("importance weights follow their formula") {
  constexpr int64_t capacity = 500;
  const double alpha = 0.6, beta = 0.4;
  SumTree tree(TreeOptions{capacity, alpha, beta, 8});
  std::vector<float> model(capacity);
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < capacity; ++i) {
      const auto key = static_cast<uint64_t>(i + capacity * round);
      model[i] = philox(4, 0, key)[0] % 3 == 0 ? 0 : static_cast<float>(0.001 + uniform(4, 1, key));
    }
    std::vector<int32_t> all(capacity);
    std::iota(all.begin(), all.end(), 0);
    tree.set(all.data(), model.data(), capacity);
    const auto total = static_cast<double>(exact_total(model, alpha));
    double n = 0, largest = 0;
    for (const float p : model) n += p > 0;
    const auto weight = [&](float p) { return std::pow(n * std::pow(p, alpha) / total, -beta); };
    for (const float p : model) {
      if (p > 0) largest = std::max(largest, weight(p));
    }
    const Draws draws = draw(tree, 300);
    for (int64_t i = 0; i < 300; ++i) {
      REQUIRE(draws.weights[i] == doctest::Approx(weight(model[draws.indices[i]]) / largest).epsilon(1e-5));
      REQUIRE(draws.weights[i] <= 1);
    }
  }
  SumTree flat(TreeOptions{capacity, alpha, 0, 8});
  set_one(flat, 1, 3);
  set_one(flat, 2, 1);
  const Draws draws = draw(flat, 50);
  CHECK(std::all_of(draws.weights.begin(), draws.weights.end(), [](float w) { return w == 1; }));
}

TEST_CASE("draws depend only on the seed and their number") {
  const auto filled = [](uint64_t seed) {
    SumTree tree(TreeOptions{1000, 0.5, 0, seed});
    for (int64_t i = 0; i < 1000; ++i) set_one(tree, i, static_cast<float>(1 + i % 13));
    return tree;
  };
  SumTree whole = filled(11), parts = filled(11), other = filled(12);
  const Draws at_once = draw(whole, 300);
  std::vector<int32_t> joined;
  for (const int64_t count : {1, 99, 0, 200}) {
    const Draws draws = draw(parts, count);
    joined.insert(joined.end(), draws.indices.begin(), draws.indices.end());
  }
  CHECK(joined == at_once.indices);
  CHECK(whole.draws() == 300);
  CHECK(parts.draws() == 300);
  CHECK(draw(other, 300).indices != at_once.indices);
  CHECK(draw(whole, 300).indices != at_once.indices);
}

TEST_CASE("a saved tree continues where it was") {
  const Scratch scratch;
  for (const int64_t capacity : {1, 17, 4000}) {
    SumTree tree(TreeOptions{capacity, 0.1, 0.5, 99});
    for (int64_t i = 0; i < (capacity + 1) / 2; ++i) set_one(tree, i, static_cast<float>(i + 1) / 3);
    draw(tree, 77);
    const std::string path = scratch / "tree";
    tree.save(path);
    CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()), {}) == 1);  // nothing beside it
    SumTree loaded(load_tree(path));
    CHECK(loaded.capacity() == capacity);
    CHECK(loaded.alpha() == 0.1);
    CHECK(loaded.beta() == 0.5);
    CHECK(loaded.draws() == 77);
    CHECK(loaded.total() == tree.total());
    CHECK(loaded.min() == tree.min());
    CHECK(loaded.max() == tree.max());
    for (int64_t i = 0; i < capacity; ++i) REQUIRE(get_one(loaded, i) == get_one(tree, i));
    for (const bool stratified : {false, true}) {
      const Draws a = draw(tree, 500, stratified), b = draw(loaded, 500, stratified);
      CHECK(a.indices == b.indices);
      CHECK(a.probabilities == b.probabilities);
      CHECK(a.weights == b.weights);
    }
    set_one(tree, 0, 5);
    set_one(loaded, 0, 5);
    CHECK(draw(tree, 100).indices == draw(loaded, 100).indices);
  }
}

TEST_CASE("a truncated or altered file is rejected") {
  const Scratch scratch;
  const std::string path = scratch / "tree", damaged = scratch / "damaged";
  SumTree tree(TreeOptions{50, 0.1, 0, 1});
  for (int64_t i = 0; i < 20; ++i) set_one(tree, i, static_cast<float>(i));
  tree.save(path);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto code_with = [&](const std::string& content) {
    std::ofstream(damaged, std::ios::binary) << content;
    return code_of([&] { load_tree(damaged); });
  };
  CHECK(code_with(bytes) == "none");
  for (size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE(code_with(bytes.substr(0, length)) == "ERR_CHECKPOINT");
  }
  CHECK(code_with(bytes + '\0') == "ERR_CHECKPOINT");
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 6}) {
      std::string altered = bytes;
      altered[at] = static_cast<char>(altered[at] ^ (1 << bit));
      REQUIRE(code_with(altered) == "ERR_CHECKPOINT");
    }
  }
  CHECK(code_of([&] { load_tree(scratch / "absent"); }) == "ERR_IO");
  CHECK(code_of([&] { load_tree(scratch.path()); }) == "ERR_IO");
  CHECK(code_of([&] { tree.save(scratch / "no/such/directory"); }) == "ERR_IO");
}

TEST_CASE("a file with another priority than it says is rejected") {
  const Scratch scratch;
  const std::string path = scratch / "tree";
  SumTree tree(TreeOptions{50, 0.1, 0, 1});
  set_one(tree, 2, 1);
  tree.save(path);
  Bytes bytes = read_bytes(path);
  // The padding of three priorities, with the right checksum.
  for (const float padding : {-1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f, 0.0f}) {
    std::memcpy(bytes.data() + bytes.size() - 12, &padding, 4);
    Checksum checksum;
    checksum.add(bytes.data(), bytes.size() - 8);
    const uint64_t sum = checksum.value();
    std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
    CHECK(code_of([&] { parse_tree(bytes.data(), bytes.size(), path); }) ==
          (padding == 0 ? "none" : "ERR_CHECKPOINT"));
  }
}

TEST_CASE("a FIFO is refused instead of waited for") {
  const Scratch scratch;
  const std::string path = scratch / "tree";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(code_of([&] { load_tree(path); }) == "ERR_IO");
}

TEST_CASE("the largest tree uses memory only for the parts in use") {
  const auto resident = []() -> int64_t {
#ifdef __linux__
    int64_t pages = 0, skipped = 0;
    std::ifstream("/proc/self/statm") >> skipped >> pages;
    return pages * ::sysconf(_SC_PAGESIZE);
#else
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // the peak, in bytes on macOS
#endif
  };
  const auto before = resident();
  SumTree tree(TreeOptions{int64_t{1} << 27, 0.1, 0.5, 0});
  for (int64_t i = 0; i < 1000; ++i) set_one(tree, i, 1);
  set_one(tree, (int64_t{1} << 27) - 1, 1);
  CHECK(resident() - before < int64_t{128} << 20);
  CHECK(tree.total() == doctest::Approx(1001).epsilon(1e-12));
  const Draws draws = draw(tree, 1000);
  for (const int32_t index : draws.indices) REQUIRE(get_one(tree, index) == 1);
}
