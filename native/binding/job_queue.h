// A thread that runs jobs in order of arrival. Uses neither torch nor Node, so that the sanitizers
// can test it. Thread rule: push, close and join from any thread except the queue's own; join from
// one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace nlac::binding {

// For every accepted job exactly one of run and abandon is called, once.
class Job {
 public:
  virtual ~Job() = default;
  virtual void run() noexcept = 0;      // on the queue's thread
  virtual void abandon() noexcept = 0;  // on the thread that called close()
  // Whether run() only starts work that the queue's `advance` continues. Such a job runs as soon as
  // it is at the queue's head. Any other job waits there until all started work is done.
  virtual bool joins() const noexcept { return false; }
};

class JobQueue {
 public:
  // `advance` continues the work of joining jobs and returns false when none is left. It must not
  // throw.
  explicit JobQueue(std::function<bool()> advance = {});
  // Closes and joins.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // Returns false, and does not take `job`, if the queue is closed.
  bool push(std::unique_ptr<Job>&& job);
  // Abandons queued jobs, finishes started ones, runs `last` (may be null) and ends the thread.
  // When `last` starts, all other jobs have been run or abandoned, and destroyed. Does not wait.
  // Returns false, and drops `last`, if the queue was closed before.
  bool close(std::unique_ptr<Job> last);
  // Waits for the thread to end; call close() first. May be called again.
  void join();

 private:
  void loop();

  std::function<bool()> advance_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;
  bool closed_ = false;  // accepts no more jobs
  bool ending_ = false;  // no jobs will be added to jobs_
  std::thread thread_;   // last, so that it starts after all other members
};

}  // namespace nlac::binding
