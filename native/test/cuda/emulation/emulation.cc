// Fibers, and the scheduler that runs a kernel's threads on them.
#include <setjmp.h>
#include <ucontext.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "scheduler.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulated {
namespace {

constexpr size_t stack_bytes = size_t{256} << 10;
constexpr unsigned resident_threads = 1024;  // that run at once; one cluster may have more

// --- fibers --------------------------------------------------------------------------------------

// An execution context: the host's own, or a stack that runs body(), which never returns.
// swapcontext costs two system calls, so it only starts a fiber; _setjmp and _longjmp switch after
// that.
class Fiber {
 public:
  Fiber() : started_(true) {}
  // Stacks end at different offsets of a page by `number`; otherwise their used ends would share a
  // few cache lines.
  Fiber(void (*body)(), size_t number)
      : body_(body),
        stack_(new char[stack_bytes]),
        bottom_(stack_.get()),
        size_(stack_bytes - number % 128 * 256) {}
  Fiber(const Fiber&) = delete;

  // Switches from the running fiber `from` to this one; returns when another switches back.
  void enter(Fiber& from) {
    to_ = this;
    from_ = &from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake_stack_, bottom_, size_);
#endif
    if (_setjmp(from.jump_) == 0) {
      if (started_) _longjmp(jump_, 1);
      started_ = true;
      ucontext_t here, there;
      getcontext(&there);
      there.uc_stack.ss_sp = stack_.get();
      there.uc_stack.ss_size = size_;
      there.uc_link = nullptr;
      makecontext(&there, &Fiber::begin, 0);
      swapcontext(&here, &there);
    }
    arrived();
  }

 private:
  static void begin() {
    arrived();
    to_->body_();
  }
  static void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(to_->fake_stack_, &from_->bottom_, &from_->size_);
#endif
  }

  static inline Fiber *to_ = nullptr, *from_ = nullptr;
  void (*body_)() = nullptr;
  std::unique_ptr<char[]> stack_;
  bool started_ = false;
  jmp_buf jump_;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

// --- who runs ------------------------------------------------------------------------------------

enum class State { ready, at_block, at_cluster, at_warp, left };

struct Block;

struct Thread {
  uint3 index;
  unsigned rank;
  Block* block = nullptr;
  Fiber* fiber = nullptr;
  State state = State::ready;
  Where where;
  // At a warp's meeting:
  const char* call = nullptr;
  uint32_t mask = 0;
  uint64_t bits = 0;
  std::shared_ptr<const Exchange> exchange;
};

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{128}); }
};
struct Allocation {
  std::unique_ptr<std::byte, FreeAligned> memory;
  size_t bytes = 0;

  void make(size_t wanted) {
    memory.reset(static_cast<std::byte*>(::operator new(wanted, std::align_val_t{128})));
    bytes = wanted;
    forget();
  }
  void forget() const {
    if (memory != nullptr) memset(memory.get(), poison, bytes);
  }
};

struct Cluster;

struct Block {
  uint3 index;
  unsigned rank;
  Cluster* cluster;
  std::vector<Thread> threads;
  size_t waiting = 0, left = 0;
  std::vector<Allocation> shared;  // by variable; dynamic memory is the first
};

struct Cluster {
  std::vector<Block> blocks;
  size_t threads = 0, waiting = 0, left = 0;
};

std::string at(const Where& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

class Scheduler {
 public:
  void run(const Configuration& configuration, const std::function<void()>& body) {
    body_ = &body;
    random_.seed(seed_ + launches_++);
    latest_ = size_t{1} << random_() % 6;
    ready_.clear();
    fault_.clear();
    blockDim = configuration.block;
    gridDim = configuration.grid;
    const unsigned size = configuration.block.x * configuration.block.y * configuration.block.z;
    const uint64_t blocks = uint64_t{gridDim.x} * gridDim.y * gridDim.z;
    std::vector<uint64_t> waiting(blocks / configuration.cluster);
    for (uint64_t i = 0; i < waiting.size(); ++i) waiting[i] = i;
    std::shuffle(waiting.begin(), waiting.end(), random_);

    std::vector<std::unique_ptr<Cluster>> resident;
    const size_t most = std::max<size_t>(1, resident_threads / (size_t{size} * configuration.cluster));
    while (!waiting.empty() || !resident.empty()) {
      while (!waiting.empty() && resident.size() < most) {
        resident.push_back(admitted(waiting.back() * configuration.cluster, configuration, size));
        waiting.pop_back();
      }
      if (!ready_.empty()) take().fiber->enter(host_);
      if (fault_.empty() && ready_.empty()) find_stuck(resident);
      if (!fault_.empty()) break;
      std::erase_if(resident, [&](const auto& cluster) {
        if (cluster->left < cluster->threads) return false;
        for (Block& block : cluster->blocks) {
          for (Thread& thread : block.threads) idle_.push_back(thread.fiber);
        }
        return true;
      });
    }
    if (fault_.empty()) return;
    // The fibers are suspended inside the kernel and never run again.
    fibers_.clear();
    idle_.clear();
    throw Fault(fault_);
  }

  Thread& self() { return *self_; }

  void pause() {
    ready_.push_back(self_);
    leave();
  }

  void sync_block(const Where& where) {
    Block& block = *self_->block;
    wait(State::at_block, where);
    if (++block.waiting == block.threads.size()) {
      block.waiting = 0;
      release(block, where);
    }
    leave();
  }

  void sync_cluster(const Where& where) {
    Cluster& cluster = *self_->block->cluster;
    wait(State::at_cluster, where);
    if (++cluster.waiting == cluster.threads) {
      cluster.waiting = 0;
      for (Block& block : cluster.blocks) release(block, where);
    }
    leave();
  }

  const Exchange& sync_warp(const char* call, uint32_t mask, uint64_t bits, const Where& where) {
    if ((mask >> self_->rank % warpSize & 1) == 0) fault("has a mask without the lane that calls", where);
    self_->call = call;
    self_->mask = mask;
    self_->bits = bits;
    wait(State::at_warp, where);
    release_warp(*self_);
    leave();
    return *self_->exchange;
  }

  [[noreturn]] void fault(const char* what, const Where& where) {
    fault_ = at(where) + " " + what + " (" + name(*self_) + ")";
    give_up();
  }

 private:
  // Leaves the kernel to report fault_. Memory held by the fiber's functions is not freed.
  [[noreturn]] void give_up() {
    host_.enter(*self_->fiber);
    abort();  // nothing comes back
  }

  std::unique_ptr<Cluster> admitted(uint64_t first, const Configuration& configuration, unsigned size) {
    auto cluster = std::make_unique<Cluster>();
    cluster->blocks.resize(configuration.cluster);
    cluster->threads = size_t{size} * configuration.cluster;
    for (unsigned rank = 0; rank < configuration.cluster; ++rank) {
      Block& block = cluster->blocks[rank];
      const uint64_t number = first + rank;
      block.index = {static_cast<unsigned>(number % gridDim.x),
                     static_cast<unsigned>(number / gridDim.x % gridDim.y),
                     static_cast<unsigned>(number / gridDim.x / gridDim.y)};
      block.rank = rank;
      block.cluster = cluster.get();
      block.shared.resize(1);
      block.shared[0].make(configuration.shared_bytes);
      block.threads.resize(size);
      for (unsigned i = 0; i < size; ++i) {
        Thread& thread = block.threads[i];
        thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
        thread.rank = i;
        thread.block = &block;
        thread.fiber = new_fiber();
        ready_.push_back(&thread);
      }
    }
    return cluster;
  }

  Fiber* new_fiber() {
    if (idle_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(&Scheduler::live, fibers_.size()));
      return fibers_.back().get();
    }
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }

  // A fiber runs one thread after the other.
  static void live();

  // The thread that runs next: mostly one of the last to become ready, so that a warp's threads run
  // together while their memory is cached.
  Thread& take() {
    const uint64_t random = random_();
    const size_t among = random % 8 == 0 ? ready_.size() : std::min(ready_.size(), latest_);
    const size_t chosen = ready_.size() - 1 - random / 8 % among;
    self_ = ready_[chosen];
    ready_.erase(ready_.begin() + static_cast<ptrdiff_t>(chosen));  // the others keep their order
    threadIdx = self_->index;
    blockIdx = self_->block->index;
    return *self_;
  }

  // Yields to another thread, or to the host if there is none; returns when this thread is
  // scheduled.
  void leave() {
    Thread& own = *self_;
    Fiber& from = *own.fiber;
    if (own.state == State::left && own.block->cluster->left == own.block->cluster->threads) {
      host_.enter(from);
    } else if (ready_.empty()) {
      host_.enter(from);
    } else {
      Thread& next = take();
      if (&next != &own) next.fiber->enter(from);
    }
  }

  void wait(State state, const Where& where) {
    self_->state = state;
    self_->where = where;
  }

  void wake(Thread& thread) {
    thread.state = State::ready;
    ready_.push_back(&thread);
  }

  void release(Block& block, const Where& where) {
    for (Thread& thread : block.threads) {
      if (thread.where.line() != where.line() || strcmp(thread.where.file_name(), where.file_name()) != 0) {
        fault_ = "threads wait for each other at different places: " + at(thread.where) + " (" +
                 name(thread) + ") and " + at(where) + " (" + name(*self_) + ")";
        give_up();
      }
      wake(thread);
    }
  }

  // Releases the lanes that wait with `one` once all running lanes of its mask have arrived.
  void release_warp(const Thread& one) {
    Block& block = *one.block;
    const size_t first = one.rank / warpSize * warpSize,
                 end = std::min<size_t>(first + warpSize, block.threads.size());
    const auto takes_part = [&](size_t i) {
      return (one.mask >> (i - first) & 1) != 0 && block.threads[i].state != State::left;
    };
    for (size_t i = first; i < end; ++i) {
      const Thread& lane = block.threads[i];
      if (takes_part(i) &&
          (lane.state != State::at_warp || lane.mask != one.mask || strcmp(lane.call, one.call) != 0))
        return;
    }
    const auto exchange = std::make_shared<Exchange>();
    for (size_t i = first; i < end; ++i) {
      if (!takes_part(i)) continue;
      exchange->bits[i - first] = block.threads[i].bits;
      exchange->taking_part |= 1u << (i - first);
    }
    for (size_t i = first; i < end; ++i) {
      if (!takes_part(i)) continue;
      block.threads[i].exchange = exchange;
      wake(block.threads[i]);
    }
  }

  void end_thread() {
    Thread& own = *self_;
    Block& block = *own.block;
    own.state = State::left;
    ++block.cluster->left;
    if (++block.left == block.threads.size()) {
      for (const Allocation& allocation : block.shared) allocation.forget();
    }
    const size_t first = own.rank / warpSize * warpSize,
                 end = std::min<size_t>(first + warpSize, block.threads.size());
    for (size_t i = first; i < end; ++i) {
      if (block.threads[i].state == State::at_warp) release_warp(block.threads[i]);
    }
    leave();
  }

  // Deadlock: reports which threads of the first blocked block wait where.
  void find_stuck(const std::vector<std::unique_ptr<Cluster>>& resident) {
    for (const auto& cluster : resident) {
      if (cluster->left == cluster->threads) continue;
      std::map<std::string, size_t> places;
      for (const Block& block : cluster->blocks) {
        for (const Thread& thread : block.threads) {
          const char* what = thread.state == State::left         ? "have left"
                             : thread.state == State::at_block   ? "wait for their block at "
                             : thread.state == State::at_cluster ? "wait for their cluster at "
                                                                 : "wait for their warp at ";
          ++places[thread.state == State::left ? what : what + at(thread.where)];
        }
      }
      fault_ = "threads wait for others that never come:";
      for (const auto& [place, count] : places) fault_ += " " + std::to_string(count) + " " + place + ";";
      return;
    }
  }

  static std::string name(const Thread& thread) {
    return "thread " + std::to_string(thread.rank) + " of block " + std::to_string(thread.block->index.x);
  }

  uint64_t seed_ = [] {
    const char* given = std::getenv("NLAC_EMULATION_SEED");
    return given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
  }();
  uint64_t launches_ = 0;
  size_t latest_ = 1;  // threads to choose from, mostly
  std::mt19937_64 random_;
  const std::function<void()>* body_ = nullptr;
  Fiber host_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::vector<Thread*> ready_;
  Thread* self_ = nullptr;
  std::string fault_;
};

Scheduler& scheduler() {
  static Scheduler only;
  return only;
}

void Scheduler::live() {
  for (;;) {
    (*scheduler().body_)();
    scheduler().end_thread();
  }
}

}  // namespace

void pause() { scheduler().pause(); }
void sync_block(const Where& where) { scheduler().sync_block(where); }
void sync_cluster(const Where& where) { scheduler().sync_cluster(where); }
const Exchange& sync_warp(const char* call, uint32_t mask, uint64_t bits, const Where& where) {
  return scheduler().sync_warp(call, mask, bits, where);
}
void fault(const char* what, const Where& where) { scheduler().fault(what, where); }

unsigned lane() { return scheduler().self().rank % warpSize; }
unsigned cluster_rank() { return scheduler().self().block->rank; }
unsigned cluster_size() { return static_cast<unsigned>(scheduler().self().block->cluster->blocks.size()); }

// --- shared memory -------------------------------------------------------------------------------

namespace {

int variables = 1;

std::byte* memory_of(Block& block, int variable, size_t bytes) {
  const auto i = static_cast<size_t>(variable);
  if (block.shared.size() <= i) block.shared.resize(i + 1);
  Allocation& allocation = block.shared[i];
  if (allocation.memory == nullptr) allocation.make(bytes);
  return allocation.memory.get();
}

}  // namespace

int new_shared_variable() { return variables++; }
void* shared_memory(int variable, size_t bytes) {
  return memory_of(*scheduler().self().block, variable, bytes);
}
void* dynamic_shared_memory() { return shared_memory(0, 0); }

void* shared_of_rank(void* own, unsigned rank, const Where& where) {
  Block& block = *scheduler().self().block;
  std::vector<Block>& blocks = block.cluster->blocks;
  if (rank >= blocks.size()) fault("names a block that its cluster does not have", where);
  if (blocks[rank].left == blocks[rank].threads.size()) fault("reaches into a block that has left", where);
  for (size_t i = 0; i < block.shared.size(); ++i) {
    const Allocation& allocation = block.shared[i];
    const auto offset = static_cast<std::byte*>(own) - allocation.memory.get();
    if (allocation.memory != nullptr && offset >= 0 && offset < static_cast<ptrdiff_t>(allocation.bytes))
      return memory_of(blocks[rank], static_cast<int>(i), allocation.bytes) + offset;
  }
  fault("maps what is not in shared memory", where);
}

void run_threads(const Configuration& configuration, const std::function<void()>& body) {
  scheduler().run(configuration, body);
}

}  // namespace emulated
