// One thread that runs jobs in the order they came. Knows neither torch nor Node, so that the sanitizers can
// test it alone. Thread rule: push, close and join from any thread but the queue's own; join from one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace nlac::binding {

// Of every job the queue accepted, exactly one of the two is called, once.
class Job {
 public:
  virtual ~Job() = default;
  virtual void run() noexcept = 0;      // on the queue's thread
  virtual void abandon() noexcept = 0;  // on the thread that called close()
  // Whether run() only begins what the queue's `advance` goes on with. Such a job runs as soon as it is at the queue's
  // head; any other one waits there until all that was begun is done.
  virtual bool joins() const noexcept { return false; }
};

class JobQueue {
 public:
  // `on_start` runs first on the new thread. `advance` goes on with what jobs that join began, until it returns false:
  // none of it is left. It must not throw.
  explicit JobQueue(std::function<void()> on_start = {}, std::function<bool()> advance = {});
  // Closes and joins.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // False when the queue is closed; `job` is then left as it was.
  bool push(std::unique_ptr<Job>&& job);
  // Abandons the queued jobs, lets what was begun finish, runs `last` (may be null) and ends the thread: when
  // `last` begins, every other job has been run or abandoned and is gone. Does not wait. Returns false, and
  // drops `last`, when the queue was closed before.
  bool close(std::unique_ptr<Job> last);
  // Waits for the thread to end; call close() first. May be called again.
  void join();

 private:
  void loop();

  std::function<bool()> advance_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;
  bool closed_ = false;  // takes no more jobs
  bool ending_ = false;  // what is left in jobs_ is all there will be
  std::thread thread_;   // last, so that it starts when everything else is there
};

}  // namespace nlac::binding
