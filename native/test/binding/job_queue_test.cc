// The queue under real contention; the thread sanitizer runs these too.
#include "binding/job_queue.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

using nlac::binding::Job;
using nlac::binding::JobQueue;

namespace {

class Lambda final : public Job {
 public:
  explicit Lambda(std::function<void()> run, std::function<void()> abandon = {})
      : run_(std::move(run)), abandon_(std::move(abandon)) {}
  void run() noexcept override { run_(); }
  void abandon() noexcept override {
    if (abandon_) abandon_();
  }

 private:
  std::function<void()> run_, abandon_;
};

std::unique_ptr<Job> job(std::function<void()> run, std::function<void()> abandon = {}) {
  return std::make_unique<Lambda>(std::move(run), std::move(abandon));
}

}  // namespace

TEST_CASE("jobs run in order, on one thread that is not the caller's") {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  std::latch done(1);
  {
    JobQueue queue([&] { threads.push_back(std::this_thread::get_id()); });
    for (int i = 0; i < 100; ++i)
      REQUIRE(queue.push(job([&, i] {
        order.push_back(i);
        threads.push_back(std::this_thread::get_id());
      })));
    REQUIRE(queue.push(job([&] { done.count_down(); })));
    done.wait();
  }
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(order[static_cast<size_t>(i)] == i);
  for (const auto id : threads) {
    CHECK(id == threads.front());
    CHECK(id != std::this_thread::get_id());
  }
}

TEST_CASE("close finishes the running job, abandons the queued ones and runs the last one") {
  std::latch started(1), proceed(1);
  bool finished = false, last_ran = false;
  int abandoned = 0, ran = 0;
  JobQueue queue;
  REQUIRE(queue.push(job([&] {
    started.count_down();
    proceed.wait();
    finished = true;
  })));
  for (int i = 0; i < 3; ++i) REQUIRE(queue.push(job([&] { ++ran; }, [&] { ++abandoned; })));
  started.wait();
  REQUIRE(queue.close(job([&] {
    CHECK(finished);
    last_ran = true;
  })));
  CHECK(abandoned == 3);  // at once, while the first job still runs

  auto refused = job([&] { ++ran; }, [&] { ++abandoned; });
  CHECK_FALSE(queue.push(std::move(refused)));
  CHECK(refused != nullptr);
  bool dropped_ran = false;
  CHECK_FALSE(queue.close(job([&] { dropped_ran = true; })));

  proceed.count_down();
  queue.join();
  queue.join();
  CHECK(last_ran);
  CHECK_FALSE(dropped_ran);
  CHECK(ran == 0);
  CHECK(abandoned == 3);
}

TEST_CASE("an idle queue ends when it is destroyed") {
  bool started = false;
  { JobQueue queue([&] { started = true; }); }
  CHECK(started);
}

TEST_CASE("every accepted job runs or is abandoned exactly once, however close races with push") {
  for (int round = 0; round < 50; ++round) {
    constexpr int producers = 4, jobs_each = 50;
    std::atomic<int> accepted = 0, ran = 0, abandoned = 0;
    std::latch go(producers + 1);
    JobQueue queue;
    std::vector<std::thread> threads;
    for (int p = 0; p < producers; ++p)
      threads.emplace_back([&] {
        go.arrive_and_wait();
        for (int i = 0; i < jobs_each; ++i)
          if (queue.push(job([&] { ++ran; }, [&] { ++abandoned; }))) ++accepted;
      });
    go.arrive_and_wait();
    for (int i = 0; i < round; ++i) std::this_thread::yield();
    queue.close(nullptr);
    for (auto& thread : threads) thread.join();
    queue.join();
    CHECK(ran + abandoned == accepted);
    CHECK(accepted <= producers * jobs_each);
  }
}
