// The forms for this system; platform_portable_test.cc includes this file for the others.
#include "core/platform.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

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
