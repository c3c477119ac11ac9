// Errors of the core. Every failure that a caller can cause is an nlac::Error with a stable code.
// The binding turns it into the TypeScript error of the same code (lib/base/errors.ts). No torch.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace nlac {

class Error : public std::runtime_error {
 public:
  // `code` is one of the ERR_… names of lib/base/errors.ts and must be a string literal.
  Error(const char* code, const std::string& message) : std::runtime_error(message), code_(code) {}
  const char* code() const noexcept { return code_; }

 private:
  const char* code_;
};

// NLAC_REQUIRE(condition, "ERR_SHAPE", "expected ", n, " rows, got ", m): throws nlac::Error.
template <typename... Parts>
[[noreturn]] void fail(const char* code, Parts&&... parts) {
  std::ostringstream text;
  (text << ... << std::forward<Parts>(parts));
  throw Error(code, text.str());
}
#define NLAC_REQUIRE(condition, code, ...)               \
  do {                                                   \
    if (!(condition)) ::nlac::fail((code), __VA_ARGS__); \
  } while (0)

}  // namespace nlac
