// Parses untrusted JSON: limits depth and count, refuses duplicate keys, and throws nlac::Error,
// never an exception of the JSON library. No torch.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nlac {

struct JsonLimits {
  size_t depth = 16;          // nested objects and arrays
  size_t values = 1'000'000;  // values of any kind, which bounds the memory that a text can ask for
};

// Throws ERR_MODEL_FORMAT. `source` (a path or a description) opens the message.
nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

// Returns text of a file for an error message: quoted, printable ASCII, shortened.
std::string printable(std::string_view text);

}  // namespace nlac
