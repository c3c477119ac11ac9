#include "binding/job_queue.h"

#include <utility>

namespace nlac::binding {

JobQueue::JobQueue(std::function<bool()> advance)
    : advance_(std::move(advance)), thread_([this] { loop(); }) {}

JobQueue::~JobQueue() {
  close(nullptr);
  join();
}

bool JobQueue::push(std::unique_ptr<Job>&& job) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

bool JobQueue::close(std::unique_ptr<Job> last) {
  std::deque<std::unique_ptr<Job>> abandoned;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    closed_ = true;
    abandoned.swap(jobs_);
  }
  for (auto& job : abandoned) job->abandon();
  abandoned.clear();
  {
    std::lock_guard lock(mutex_);
    if (last) jobs_.push_back(std::move(last));
    ending_ = true;
  }
  changed_.notify_one();
  return true;
}

void JobQueue::join() {
  if (thread_.joinable()) thread_.join();
}

void JobQueue::loop() {
  bool begun = false;  // whether `advance_` has work to continue
  for (;;) {
    std::unique_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      if (!begun) changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (!jobs_.empty() && (!begun || jobs_.front()->joins())) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      } else if (!begun) {
        return;
      }
    }
    if (job) {
      begun = begun || job->joins();
      job->run();
    } else {
      begun = advance_();
    }
  }
}

}  // namespace nlac::binding
