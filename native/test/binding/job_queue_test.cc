// The job queue under contention. The thread sanitizer runs these tests too.
#include "binding/job_queue.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <string>
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

class Joining final : public Job {
 public:
  explicit Joining(std::function<void()> run, std::function<void()> abandon = {})
      : run_(std::move(run)), abandon_(std::move(abandon)) {}
  void run() noexcept override { run_(); }
  void abandon() noexcept override {
    if (abandon_) abandon_();
  }
  bool joins() const noexcept override { return true; }

 private:
  std::function<void()> run_, abandon_;
};

}  // namespace

TEST_CASE("jobs run in order, on one thread that is not the caller's") {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  std::latch done(1);
  {
    JobQueue queue;
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

TEST_CASE("close finishes the running job, abandons queued jobs and runs the last job") {
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

TEST_CASE("the last job waits until all abandoned jobs were handled") {
  using namespace std::chrono_literals;
  std::latch started(1), proceed(1);
  std::atomic<bool> last_ran = false;
  std::atomic<int> abandoned = 0, gone = 0, seen_abandoned = -1, seen_gone = -1;
  JobQueue queue;
  REQUIRE(queue.push(job([&] {
    started.count_down();
    proceed.wait();
  })));
  // Counts jobs when they are destroyed.
  const auto token = [&] { return std::shared_ptr<void>(nullptr, [&](void*) { ++gone; }); };
  for (int i = 0; i < 3; ++i)
    REQUIRE(queue.push(job([held = token()] {},
                           [&, i] {
                             // The thread is idle from here on: it would run the last job now if it
                             // were queued.
                             if (i == 0) proceed.count_down();
                             for (int waited = 0; waited < 20 && !last_ran; ++waited)
                               std::this_thread::sleep_for(1ms);
                             ++abandoned;
                           })));
  started.wait();
  REQUIRE(queue.close(job([&] {
    last_ran = true;
    seen_abandoned = abandoned.load();
    seen_gone = gone.load();
  })));
  queue.join();
  CHECK(last_ran);
  CHECK(seen_abandoned == 3);
  CHECK(seen_gone == 3);
}

TEST_CASE("of several concurrent calls of close, exactly one wins") {
  for (int round = 0; round < 50; ++round) {
    constexpr int closers = 3;
    std::atomic<int> closed = 0, last_ran = 0;
    std::latch go(closers);
    JobQueue queue;
    std::vector<std::thread> threads;
    for (int c = 0; c < closers; ++c)
      threads.emplace_back([&] {
        go.arrive_and_wait();
        if (queue.close(job([&] { ++last_ran; }))) ++closed;
      });
    for (auto& thread : threads) thread.join();
    queue.join();
    CHECK(closed == 1);
    CHECK(last_ran == 1);
  }
}

TEST_CASE("every accepted job runs or is abandoned exactly once when close races with push") {
  for (int round = 0; round < 50; ++round) {
    constexpr int producers = 4, jobs_each = 50;
    std::atomic<int> accepted = 0, ran = 0, abandoned = 0, before_last = -1;
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
    REQUIRE(queue.close(job([&] { before_last = ran + abandoned; })));
    for (auto& thread : threads) thread.join();
    queue.join();
    CHECK(ran + abandoned == accepted);
    CHECK(before_last == accepted);
    CHECK(accepted <= producers * jobs_each);
  }
}

TEST_CASE("joined jobs run concurrently; any other job waits for them, in order") {
  std::vector<std::string> seen;
  std::vector<int> left;  // steps of what was begun
  std::latch queued(1), done(1);
  JobQueue queue([&] {
    for (int& steps : left) --steps;
    seen.push_back("step of " + std::to_string(left.size()));
    std::erase(left, 0);
    return !left.empty();
  });
  const auto join = [&](int steps) {
    return std::make_unique<Joining>([&, steps] {
      seen.push_back("join");
      left.push_back(steps);
    });
  };
  REQUIRE(queue.push(job([&] { queued.wait(); })));
  REQUIRE(queue.push(join(3)));
  REQUIRE(queue.push(join(1)));
  REQUIRE(queue.push(job([&] { seen.push_back("job"); })));
  REQUIRE(queue.push(join(2)));
  REQUIRE(queue.push(job([&] { done.count_down(); })));
  queued.count_down();
  done.wait();
  CHECK(seen == std::vector<std::string>{"join", "join", "step of 2", "step of 1", "step of 1", "job", "join",
                                         "step of 1", "step of 1"});
}

TEST_CASE("closing finishes jobs that have started and abandons the others") {
  std::latch begun(1);
  std::atomic<int> steps = 0, abandoned = 0, seen = -1;
  std::atomic<bool> closing = false;
  JobQueue queue([&] {
    while (!closing) std::this_thread::yield();
    return ++steps < 5;
  });
  REQUIRE(queue.push(std::make_unique<Joining>([&] { begun.count_down(); })));
  begun.wait();
  REQUIRE(queue.push(job([] { CHECK(false); }, [&] { ++abandoned; })));
  REQUIRE(queue.push(std::make_unique<Joining>([] { CHECK(false); }, [&] { ++abandoned; })));
  REQUIRE(queue.close(job([&] { seen = steps.load(); })));
  closing = true;
  queue.join();
  CHECK(abandoned == 2);
  CHECK(seen == 5);
}
