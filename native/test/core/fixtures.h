// Shared by the tests: fixtures, scratch files, and the error that a call throws.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"

namespace nlac::test {

using Bytes = std::vector<uint8_t>;

inline std::string fixture(const std::string& name) {
  const char* root = std::getenv("NLAC_TEST_FIXTURES");
  REQUIRE_MESSAGE(root != nullptr, "NLAC_TEST_FIXTURES is not set");
  return std::string(root) + "/" + name;
}

inline Bytes read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE_MESSAGE(in.good(), path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A temporary directory, removed with its contents by the destructor.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "nlac-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The code of the nlac::Error that `call` throws, "none" if it throws none. `message` gets its
// message.
template <typename Call>
std::string code_of(Call call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.code();
  }
  return "none";
}

// "CODE: message" of the nlac::Error that `call` throws, or "" when it throws none.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return std::string(error.code()) + ": " + error.what();
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Fails and shows the whole message unless the error has `code` and its message contains `part`.
#define CHECK_REFUSED(call, code, part)                                 \
  do {                                                                  \
    const std::string message_ = ::nlac::test::error_of([&] { call; }); \
    CAPTURE(message_);                                                  \
    CHECK(message_.starts_with(code ": "));                             \
    CHECK(::nlac::test::contains(message_, part));                      \
  } while (0)

}  // namespace nlac::test
