// Switches in the process's environment. No torch.
#pragma once

#include <cstdlib>
#include <string_view>

namespace nlac {

// Whether the environment variable `name` is set to `value`.
inline bool is_set_to(const char* name, std::string_view value) {
  const char* const found = std::getenv(name);
  return found != nullptr && found == value;
}

}  // namespace nlac
