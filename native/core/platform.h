// What differs between Linux with glibc and macOS. NLAC_PORTABLE selects the code for systems other
// than Linux on Linux too, so that it can be compiled and tested there. No torch.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

#if defined(__linux__) && !defined(NLAC_PORTABLE)
#define NLAC_LINUX 1
#if defined(__x86_64__)
#include <sys/syscall.h>
#endif
#endif

namespace nlac::platform {
// A program may contain both, as the tests do.
#ifdef NLAC_LINUX
inline namespace linux_forms {
#else
inline namespace portable_forms {
#endif

using ExitHandler = void (*)(int status);

// Runs `handler` when exit() is called, before the destructors of statics that exist now. Where
// exit() does not pass its status, the handler receives `expected` of the last call, and a process
// can have one handler.
inline void at_exit(ExitHandler handler, int expected) {
#if defined(NLAC_LINUX) && defined(__GLIBC__)
  static_cast<void>(expected);
  ::on_exit([](int status, void* called) { reinterpret_cast<ExitHandler>(called)(status); },
            reinterpret_cast<void*>(handler));
#else
  static std::atomic<int> last{0};
  static std::atomic<ExitHandler> called{nullptr};
  last = expected;
  called = handler;
  std::atexit([] { called.load()(last); });
#endif
}

// Keeps the library that contains `address` loaded until the process ends, although Node closes it.
// On Linux the linker does this (cmake/platform.cmake).
inline void keep_loaded(const void* address) {
#if !defined(NLAC_LINUX)
  Dl_info info;
  if (::dladdr(address, &info) != 0) ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
#else
  static_cast<void>(address);
#endif
}

// Asks for huge pages; without them the memory works too.
inline void prefer_huge_pages(void* memory, size_t bytes) {
#if defined(NLAC_LINUX) && defined(MADV_HUGEPAGE)
  ::madvise(memory, bytes, MADV_HUGEPAGE);
#else
  static_cast<void>(memory), static_cast<void>(bytes);
#endif
}

// fsync: 0, or -1 with errno. On macOS fsync leaves the data in the drive's cache, which another
// call empties; file systems without that call get a plain fsync.
inline int flush_to_disk(int fd) {
#if defined(F_FULLFSYNC)
  if (::fcntl(fd, F_FULLFSYNC) == 0) return 0;
#endif
  return ::fsync(fd);
}

// Asks the kernel to let this process use AMX's matrix tiles: they are 8 KiB of state per thread.
inline bool permit_tiles() {
#if defined(NLAC_LINUX) && defined(__x86_64__)
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace linux_forms or portable_forms
}  // namespace nlac::platform
