// Replaces a program's operator new, so that one allocation fails. Only one source of a
// program may include it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace nlac::test {

// Allocations before the one that fails, of this thread, and of all others; negative: none fails.
inline thread_local int64_t allocations_left = -1;
inline std::atomic<int64_t> allocations_left_elsewhere{-1};

// Lets the allocation of this thread after `count` others fail, while it lives.
struct FailingNew {
  explicit FailingNew(int64_t count) { allocations_left = count; }
  ~FailingNew() { allocations_left = -1; }
};

// The same for the other threads.
struct FailingNewElsewhere {
  explicit FailingNewElsewhere(int64_t count) {
    spared = true;
    allocations_left_elsewhere = count;
  }
  ~FailingNewElsewhere() {
    allocations_left_elsewhere = -1;
    spared = false;
  }
  static inline thread_local bool spared = false;
};

}  // namespace nlac::test

// Not inlined: compilers warn of free() for memory from operator new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  using namespace nlac::test;
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (allocations_left_elsewhere >= 0 && !FailingNewElsewhere::spared && allocations_left_elsewhere-- == 0)
    throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
