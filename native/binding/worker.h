// A learner's thread: runs jobs and settles their promises. It never blocks the event loop. A busy
// worker keeps the process alive, an idle one does not.
//
// Ownership: the environment's registry owns every worker until its thread has ended. Thread rule:
// all public members on the main thread, except `post`, which the worker's thread calls.
#pragma once

#include <napi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "binding/errors.h"
#include "binding/job_queue.h"

namespace nlac::binding {

// Created on the worker's thread, delivered on the main thread. Dropped if Node is shutting down.
class Delivery {
 public:
  virtual ~Delivery() = default;
  virtual void deliver(Napi::Env env) = 0;
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  using Flag = std::shared_ptr<std::atomic<bool>>;

  // Starts a thread and registers it with `env`. `advance`: see JobQueue.
  static std::shared_ptr<Worker> start(Napi::Env env, std::function<bool()> advance);
  ~Worker();

  // Runs `work()` on the worker's thread, then resolves the promise with `convert(env, result)`
  // (main thread), or rejects it with the exception of either; ERR_DISPOSED after close(). `work`
  // must own copies of its data. `settled(succeeded)` runs on the main thread just before the
  // promise settles.
  template <typename Work, typename Convert>
  Napi::Promise submit(Napi::Env env, Work work, Convert convert, std::function<void(bool)> settled = {});

  // A promise that is settled later, once, on the worker's thread.
  template <typename Result>
  class Promised {
   public:
    virtual ~Promised() = default;
    virtual void resolve(Result result) = 0;
    virtual void reject() = 0;  // with the current exception
  };

  // The same for a joining job (job_queue.h): `begin(promised)` runs on the worker's thread and
  // returns or throws; `advance` settles the promise.
  template <typename Result, typename Begin, typename Convert>
  Napi::Promise submit_joining(Napi::Env env, Begin begin, Convert convert,
                               std::function<void(bool)> settled = {});

  void post(std::unique_ptr<Delivery> delivery);

  // Rejects queued jobs with ERR_DISPOSED, finishes started ones, runs `last` on the worker's
  // thread and ends the thread. `last` is dropped if the worker was closed before. The promise
  // resolves when the thread has ended and every other promise has settled.
  Napi::Promise close(Napi::Env env, std::function<void()> last);
  // The same without a promise, for finalizers.
  void close_silently(std::function<void()> last);
  bool closed() const { return closing_; }

  // Returns a flag that is set when the environment is destroyed, so that jobs that check it end
  // early.
  Flag make_flag();

  // JavaScript functions for the worker's thread are identified by number, because only the main
  // thread may use a reference.
  uint64_t keep(Napi::Function function);
  void drop(uint64_t callback) { callbacks_.erase(callback); }
  Napi::FunctionReference* callback(uint64_t number);

  // For the process's "exit" event with this status, after which exit() destroys libtorch's
  // statics. If a worker's thread still runs then, ends the process without destructors.
  static void guard_exit(int status);

 private:
  static void call_js(Napi::Env env, Napi::Function, Worker*, Delivery* delivery);
  using Channel = Napi::TypedThreadSafeFunction<Worker, Delivery, &Worker::call_js>;
  class Ended;
  class LastJob;

  explicit Worker(Napi::Env env) : env_(env) {}
  void begin();  // one more delivery is pending
  void end();
  void shutdown();
  void release();  // after the thread has ended: releases all resources
  static void cleanup(void* worker);

  Napi::Env env_;
  Channel channel_;
  std::unique_ptr<JobQueue> queue_;
  int64_t awaited_ = 0;
  bool closing_ = false, ended_ = false;
  std::vector<Napi::Promise::Deferred> closers_;
  std::vector<std::weak_ptr<std::atomic<bool>>> flags_;
  std::unordered_map<uint64_t, Napi::FunctionReference> callbacks_;
  uint64_t next_callback_ = 0;

  template <typename Result, typename Convert>
  class Completion;
  template <typename Work, typename Result, typename Convert>
  class WorkJob;
  template <typename Result, typename Convert>
  class Pending;
  template <typename Begin, typename Result, typename Convert>
  class JoiningJob;
  template <typename Result, typename Convert>
  std::unique_ptr<Completion<Result, Convert>> completion(const Napi::Promise::Deferred& deferred,
                                                          Convert convert, std::function<void(bool)> settled);
  static const Failure disposed_before_it_began;
};

// Sets the number of threads of torch's operations. Every worker applies it before its next job,
// because OpenMP stores the number per thread.
void set_threads(int count);
void apply_threads();

// --- templates -----------------------------------------------------------------------------------

template <typename Result, typename Convert>
class Worker::Completion final : public Delivery {
 public:
  Completion(Worker* worker, Napi::Promise::Deferred deferred, Convert convert,
             std::function<void(bool)> settled)
      : worker_(worker), deferred_(deferred), convert_(std::move(convert)), settled_(std::move(settled)) {}

  void deliver(Napi::Env env) override {
    if (settled_) settled_(!failure);
    if (!failure) {
      try {
        deferred_.Resolve(guarded(env, [&] { return Napi::Value(convert_(env, *result)); }));
      } catch (const Napi::Error& error) {
        deferred_.Reject(error.Value());
      }
    } else {
      deferred_.Reject(to_js(env, *failure).Value());
    }
    worker_->end();
  }

  std::optional<Result> result;
  std::optional<Failure> failure;

 private:
  Worker* worker_;  // registered until its last delivery
  Napi::Promise::Deferred deferred_;
  Convert convert_;
  std::function<void(bool)> settled_;
};

template <typename Work, typename Result, typename Convert>
class Worker::WorkJob final : public Job {
 public:
  WorkJob(Worker* worker, Work work, std::unique_ptr<Completion<Result, Convert>> completion)
      : worker_(worker), work_(std::move(work)), completion_(std::move(completion)) {}

  void run() noexcept override {
    try {
      apply_threads();
      completion_->result.emplace(work_());
    } catch (...) {
      completion_->failure = describe_current_exception();
    }
    worker_->post(std::move(completion_));
  }

  void abandon() noexcept override {
    completion_->failure = disposed_before_it_began;
    worker_->post(std::move(completion_));
  }

 private:
  Worker* worker_;
  Work work_;
  std::unique_ptr<Completion<Result, Convert>> completion_;
};

template <typename Result, typename Convert>
class Worker::Pending final : public Promised<Result> {
 public:
  Pending(Worker* worker, std::unique_ptr<Completion<Result, Convert>> completion)
      : worker_(worker), completion_(std::move(completion)) {}
  void resolve(Result result) override {
    completion_->result.emplace(std::move(result));
    worker_->post(std::move(completion_));
  }
  void reject() override { reject(describe_current_exception()); }
  void reject(Failure failure) {
    completion_->failure = std::move(failure);
    worker_->post(std::move(completion_));
  }

 private:
  Worker* worker_;
  std::unique_ptr<Completion<Result, Convert>> completion_;
};

template <typename Begin, typename Result, typename Convert>
class Worker::JoiningJob final : public Job {
 public:
  JoiningJob(Begin begin, std::shared_ptr<Pending<Result, Convert>> pending)
      : begin_(std::move(begin)), pending_(std::move(pending)) {}
  void run() noexcept override {
    try {
      apply_threads();
      begin_(pending_);
    } catch (...) {
      pending_->reject();
    }
  }
  void abandon() noexcept override { pending_->reject(disposed_before_it_began); }
  bool joins() const noexcept override { return true; }

 private:
  Begin begin_;
  std::shared_ptr<Pending<Result, Convert>> pending_;
};

// Counts one more pending promise. After close(), rejects it and returns null.
template <typename Result, typename Convert>
std::unique_ptr<Worker::Completion<Result, Convert>> Worker::completion(
    const Napi::Promise::Deferred& deferred, Convert convert, std::function<void(bool)> settled) {
  if (closing_) {
    deferred.Reject(to_js(env_, {"ERR_DISPOSED", "The learner was disposed."}).Value());
    return nullptr;
  }
  begin();
  return std::make_unique<Completion<Result, Convert>>(this, deferred, std::move(convert),
                                                       std::move(settled));
}

template <typename Work, typename Convert>
Napi::Promise Worker::submit(Napi::Env env, Work work, Convert convert, std::function<void(bool)> settled) {
  using Result = std::invoke_result_t<Work>;
  const auto deferred = Napi::Promise::Deferred::New(env);
  if (auto awaited = completion<Result>(deferred, std::move(convert), std::move(settled)))
    queue_->push(std::make_unique<WorkJob<Work, Result, Convert>>(this, std::move(work), std::move(awaited)));
  return deferred.Promise();
}

template <typename Result, typename Begin, typename Convert>
Napi::Promise Worker::submit_joining(Napi::Env env, Begin begin, Convert convert,
                                     std::function<void(bool)> settled) {
  const auto deferred = Napi::Promise::Deferred::New(env);
  if (auto awaited = completion<Result>(deferred, std::move(convert), std::move(settled)))
    queue_->push(std::make_unique<JoiningJob<Begin, Result, Convert>>(
        std::move(begin), std::make_shared<Pending<Result, Convert>>(this, std::move(awaited))));
  return deferred.Promise();
}

}  // namespace nlac::binding
