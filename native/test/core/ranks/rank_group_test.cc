#include "core/ranks/rank_group.h"

#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "test/core/fixtures.h"
#include "test/core/learner/on_ranks.h"
#include "test/core/ranks/run_ranks.h"

using namespace nlac;
using nlac::test::code_of;
using nlac::test::run_ranks;

using Group = std::shared_ptr<RankGroup>;

TEST_CASE("collectives sum and collect in every type, the same bits on every rank") {
  for (int ranks : {1, 2, 3}) {
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(ranks);
      std::mutex mutex;
      std::vector<at::Tensor> sums(static_cast<size_t>(ranks)), parts(sums), all(sums), in_place(sums);
      const int64_t n = 192;
      const auto of_rank = [&](int rank) {
        return at::arange(n * ranks, at::kFloat).remainder(53).add(rank).to(type);
      };
      run_ranks(ranks, [&](const Group& group) {
        group->connect(at::kCPU);
        const auto rank = static_cast<size_t>(group->rank());
        const at::Tensor own = of_rank(group->rank());
        const at::Tensor sum = own.clone(), part = at::empty({n}, own.options()), whole = at::empty_like(own);
        group->all_reduce(sum);
        group->reduce_scatter(part, own);
        group->all_gather(whole, part);
        const at::Tensor mine = at::zeros_like(own);
        const at::Tensor view = mine.narrow(0, group->rank() * n, n);
        view.copy_(part);
        group->all_gather(mine, view);
        // Two are started before either is waited for, with a sum between.
        const at::Tensor first = at::zeros_like(own), second = at::zeros_like(own);
        const auto wait_first = group->start_all_gather(first, part);
        const auto wait_second = group->start_all_gather(second, part.neg());
        CHECK(group->sum(1) == ranks);
        wait_second();
        wait_first();
        CHECK(at::equal(first, whole));
        CHECK(at::equal(second, whole.neg()));
        const at::Tensor on_first = at::zeros_like(own);
        group->gather(on_first, part);
        CHECK(at::equal(on_first, group->rank() == 0 ? whole : at::zeros_like(own)));
        const std::lock_guard lock(mutex);
        sums[rank] = sum, parts[rank] = part, all[rank] = whole, in_place[rank] = mine;
      });
      at::Tensor expected = at::zeros({n * ranks});
      for (int rank = 0; rank < ranks; ++rank) expected += of_rank(rank).to(at::kFloat);
      CHECK(at::equal(sums[0].to(at::kFloat), expected));  // small integers are exact in bfloat16
      for (size_t rank = 0; rank < sums.size(); ++rank) {
        CHECK(at::equal(sums[rank], sums[0]));
        CHECK(at::equal(parts[rank], sums[0].narrow(0, static_cast<int64_t>(rank) * n, n)));
        CHECK(at::equal(all[rank], sums[0]));
        CHECK(at::equal(in_place[rank], sums[0]));
      }
    }
  }
}

TEST_CASE("numbers are summed and compared over ranks, and the store passes texts on") {
  std::mutex mutex;
  std::vector<double> sums;
  std::vector<int64_t> largest;
  std::vector<std::string> texts;
  run_ranks(3, [&](const Group& group) {
    if (group->rank() == 0) group->set("key", std::string("a\0b", 3));
    const std::string text = group->get("key");
    group->connect(at::kCPU);
    const double sum = group->sum(0.5 * (1 + group->rank()));
    const int64_t most = group->max(group->rank() == 1 ? 7 : -4);
    const std::lock_guard lock(mutex);
    sums.push_back(sum), largest.push_back(most), texts.push_back(text);
  });
  CHECK(sums == std::vector<double>{3, 3, 3});
  CHECK(largest == std::vector<int64_t>{7, 7, 7});
  CHECK(texts == std::vector<std::string>(3, std::string("a\0b", 3)));
}

TEST_CASE("a failure of one rank is reported by all, and the ranks stay usable") {
  std::mutex mutex;
  std::vector<std::string> codes(2);
  std::vector<double> sums;
  run_ranks(2, [&](const Group& group) {
    group->connect(at::kCPU);
    const std::string code = code_of(
        [&] { group->together([&] { NLAC_REQUIRE(group->rank() == 0, "ERR_OUT_OF_MEMORY", "full"); }); });
    const double sum = group->sum(1);
    const std::lock_guard lock(mutex);
    codes[static_cast<size_t>(group->rank())] = code;
    sums.push_back(sum);
  });
  CHECK(codes == std::vector<std::string>{"ERR_PEER", "ERR_OUT_OF_MEMORY"});
  CHECK(sums == std::vector<double>{2, 2});
}

TEST_CASE("the host group works beside the other, in any order") {
  run_ranks(3, [](const Group& group) {
    group->connect(at::kCPU);
    const int rank = group->rank();
    const auto add_on_host = [&] { return group->host().sum(rank); };
    std::future<double> added;
    if (rank == 0) added = std::async(std::launch::async, add_on_host);
    for (int i = 0; i < 10; ++i) CHECK(group->sum(i) == 3 * i);
    if (rank != 0) added = std::async(std::launch::async, add_on_host);
    CHECK(added.get() == 3);
    const std::string code =
        code_of([&] { group->host().together([&] { NLAC_REQUIRE(rank != 1, "ERR_IO", "full"); }); });
    CHECK(code == (rank == 1 ? "ERR_IO" : "ERR_PEER"));
    CHECK(group->sum(1) == 3);
  });
}

TEST_CASE("ranks that have connected in part are not connected, and do not connect again") {
  using learner_test::FailingAllocator;
  static FailingAllocator failing;
  c10::SetCPUAllocator(&failing, 1);
  for (const int64_t allocations : {0, 2}) {  // the last one is the host group's
    CAPTURE(allocations);
    CHECK(code_of([&] {
            run_ranks(1, [&](const Group& group) {
              FailingAllocator::left = allocations;
              CHECK_THROWS(group->connect(at::kCPU));
              FailingAllocator::left = -1;
              CHECK(code_of([&] { group->sum(1); }) == "ERR_INTERNAL");
              CHECK(code_of([&] { group->host(); }) == "ERR_INTERNAL");
              group->connect(at::kCPU);
            });
          }) == "ERR_PEER");
  }
  c10::SetCPUAllocator(failing.under, 1);
}

TEST_CASE("a rank that has ended is noticed at once, a late one after the timeout") {
  for (const bool late : {false, true}) {
    std::string code;
    double seconds = 0;
    std::promise<void> over;
    const std::shared_future<void> ended = over.get_future().share();
    CHECK(code_of([&] {
            run_ranks(
                2,
                [&](const Group& group) {
                  group->connect(at::kCPU);
                  group->sum(0);
                  if (group->rank() == 1) {
                    if (late) ended.wait();
                    fail("ERR_CONFIG", "this rank ends");
                  }
                  const auto start = std::chrono::steady_clock::now();
                  code = code_of([&] { group->sum(1); });
                  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                  over.set_value();
                  fail("ERR_CONFIG", "this rank ends too");
                },
                std::chrono::milliseconds(late ? 1500 : 60'000));
          }) == "ERR_CONFIG");
    CHECK(code == "ERR_PEER");
    CHECK(seconds < 20);
    if (late) CHECK(seconds > 1);
  }
}

TEST_CASE("places and stores that cannot be used are refused") {
  RankPlace place;
  place.rank = 2;
  place.ranks = 2;
  CHECK(code_of([&] { RankGroup group(place); }) == "ERR_CONFIG");
}

TEST_CASE("a rank waits for the store as long as it was told to, not less") {
  std::vector<std::future<double>> waits;
  for (int i = 0; i < 8; ++i) {
    waits.push_back(std::async(std::launch::async, [] {
      RankPlace place;
      place.rank = 1;
      place.ranks = 2;
      place.address = "127.0.0.1";
      place.port = 1;  // nothing listens there
      place.timeout = std::chrono::milliseconds(3000);
      const auto start = std::chrono::steady_clock::now();
      NLAC_REQUIRE(code_of([&] { RankGroup group(place); }) == "ERR_PEER", "ERR_INTERNAL", "another code");
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }));
  }
  for (auto& wait : waits) {
    const double seconds = wait.get();
    CHECK(seconds >= 3);
    CHECK(seconds < 10);
  }
}
