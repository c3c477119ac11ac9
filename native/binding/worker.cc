#include "binding/worker.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include "binding/addon_data.h"
#include "core/platform.h"

namespace nlac::binding {
namespace {

std::atomic<int> running_threads{0};  // of all environments
std::atomic<int> wanted_threads{0};   // of torch's operations; 0: never set

}  // namespace

// The worker's last delivery: its thread runs nothing after it, and all jobs' deliveries were
// posted before.
class Worker::Ended final : public Delivery {
 public:
  explicit Ended(Worker* worker) : worker_(worker) {}
  void deliver(Napi::Env env) override {
    // release() removes the worker from the registry; it must outlive this call.
    const std::shared_ptr<Worker> worker = worker_->shared_from_this();
    worker->queue_->join();
    worker->end();
    worker->release();
    for (const auto& closer : worker->closers_) closer.Resolve(env.Undefined());
    worker->closers_.clear();
  }

 private:
  Worker* worker_;
};

class Worker::LastJob final : public Job {
 public:
  LastJob(Worker* worker, std::function<void()> last) : worker_(worker), last_(std::move(last)) {}
  void run() noexcept override {
    if (last_) last_();
    last_ = nullptr;
    worker_->post(std::make_unique<Ended>(worker_));
  }
  void abandon() noexcept override {}

 private:
  Worker* worker_;
  std::function<void()> last_;
};

const Failure Worker::disposed_before_it_began{"ERR_DISPOSED", "The learner was disposed before this began."};

std::shared_ptr<Worker> Worker::start(Napi::Env env, std::function<bool()> advance) {
  std::shared_ptr<Worker> worker(new Worker(env));
  worker->channel_ = Channel::New(env, "nlac", 0, 1, worker.get());
  worker->channel_.Unref(env);
  try {
    worker->queue_ = std::make_unique<JobQueue>([advance = std::move(advance)] {
      apply_threads();
      return advance();
    });
  } catch (...) {  // no thread could be started
    worker->channel_.Release();
    throw;
  }
  // Hooks run last in, first out: added after the channel, so that the thread has ended before the
  // channel is destroyed.
  napi_add_env_cleanup_hook(env, &Worker::cleanup, worker.get());
  ++running_threads;
  AddonData::of(env).workers.insert(worker);
  return worker;
}

Worker::~Worker() = default;

void Worker::begin() {
  if (awaited_++ == 0) channel_.Ref(env_);
}

void Worker::end() {
  if (--awaited_ == 0) channel_.Unref(env_);
}

void Worker::post(std::unique_ptr<Delivery> delivery) {
  // Fails only when the environment is being destroyed, and nothing can receive it then.
  if (channel_.NonBlockingCall(delivery.get()) == napi_ok) delivery.release();
}

void Worker::call_js(Napi::Env env, Napi::Function, Worker*, Delivery* delivery) {
  const std::unique_ptr<Delivery> owned(delivery);
  if (static_cast<napi_env>(env) == nullptr) return;
  try {
    owned->deliver(env);
  } catch (const Napi::Error&) {
    // Callbacks from lib/ do not throw, and failures reject promises: the environment is being
    // terminated, and rethrowing the error would end the process.
  }
}

void Worker::close_silently(std::function<void()> last) {
  if (closing_) return;
  closing_ = true;
  begin();
  queue_->close(std::make_unique<LastJob>(this, std::move(last)));
}

Napi::Promise Worker::close(Napi::Env env, std::function<void()> last) {
  const auto deferred = Napi::Promise::Deferred::New(env);
  if (ended_) {
    deferred.Resolve(env.Undefined());
  } else {
    closers_.push_back(deferred);
    close_silently(std::move(last));
  }
  return deferred.Promise();
}

Worker::Flag Worker::make_flag() {
  std::erase_if(flags_, [](const auto& flag) { return flag.expired(); });
  auto flag = std::make_shared<std::atomic<bool>>(false);
  flags_.push_back(flag);
  return flag;
}

uint64_t Worker::keep(Napi::Function function) {
  callbacks_.emplace(next_callback_, Napi::Persistent(function));
  return next_callback_++;
}

Napi::FunctionReference* Worker::callback(uint64_t number) {
  const auto found = callbacks_.find(number);
  return found == callbacks_.end() ? nullptr : &found->second;
}

void Worker::release() {
  ended_ = true;
  --running_threads;
  callbacks_.clear();
  napi_remove_env_cleanup_hook(env_, &Worker::cleanup, this);
  channel_.Release();
  AddonData::of(env_).workers.erase(shared_from_this());
}

void Worker::shutdown() {
  if (ended_) return;
  closing_ = true;
  for (const auto& weak : flags_)
    if (const auto flag = weak.lock()) flag->store(true);
  queue_->close(nullptr);
  queue_->join();
  release();
}

void Worker::cleanup(void* worker) { static_cast<Worker*>(worker)->shared_from_this()->shutdown(); }

void Worker::guard_exit(int status) {
  // Handlers run last in, first out: registered this late, it comes before every destructor.
  platform::at_exit(
      [](int final) {
        if (running_threads.load() > 0) _exit(final);
      },
      status);
}

void set_threads(int count) {
  wanted_threads.store(count);
  at::set_num_threads(count);
}

void apply_threads() {
  thread_local int applied = 0;
  const int wanted = wanted_threads.load();
  if (wanted != applied) at::set_num_threads(applied = wanted);
}

}  // namespace nlac::binding
