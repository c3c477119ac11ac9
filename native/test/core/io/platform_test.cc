// The forms for this system; platform_portable_test.cc includes this file for the others.
#include "core/platform.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace nlac {
namespace {

TEST_CASE("an exit handler receives the status of the process and may replace it") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    platform::at_exit([](int status) { ::_exit(status + 30); }, 7);
    std::exit(7);
  }
  int ended = 0;
  REQUIRE(::waitpid(child, &ended, 0) == child);
  REQUIRE(WIFEXITED(ended));
  CHECK(WEXITSTATUS(ended) == 37);
}

#if defined(__GLIBC__) && !defined(NLAC_PORTABLE) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
TEST_CASE("memory that was freed is used again without new pages") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    platform::keep_freed_memory();
    const auto faults_of_use = [] {
      const auto faults = [] {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        return usage.ru_minflt;
      };
      const long before = faults();
      std::vector<std::vector<char>> blocks;
      for (int i = 0; i < 8; ++i) blocks.emplace_back(size_t{20} << 20, 'x');
      return faults() - before;
    };
    const long first = faults_of_use(), second = faults_of_use();
    ::_exit(second * 10 < first ? 0 : 1);
  }
  int ended = 0;
  REQUIRE(::waitpid(child, &ended, 0) == child);
  CHECK((WIFEXITED(ended) && WEXITSTATUS(ended) == 0));
}
#endif

TEST_CASE("a file is flushed, and anything else is an error with errno") {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  CHECK(std::fputs("text", file) >= 0);
  CHECK(platform::flush_to_disk(::fileno(file)) == 0);
  std::fclose(file);
  errno = 0;
  CHECK(platform::flush_to_disk(-1) == -1);
  CHECK(errno == EBADF);
}

#if defined(__linux__) && defined(NLAC_PORTABLE)
TEST_CASE("a library that is kept stays loaded when it is closed") {
  const char* const name = "libresolv.so.2";
  const auto is_loaded = [&] { return ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD) != nullptr; };
  REQUIRE_FALSE(is_loaded());
  for (const bool kept : {false, true}) {
    void* const library = ::dlopen(name, RTLD_NOW);
    REQUIRE(library != nullptr);
    void* const address = ::dlsym(library, "ns_format_ttl");
    REQUIRE(address != nullptr);
    if (kept) platform::keep_loaded(address);
    ::dlclose(library);
    CHECK(is_loaded() == kept);
  }
}
#endif

}  // namespace
}  // namespace nlac
