// Parses untrusted JSON: limits depth and count, refuses duplicate keys, and throws nlac::Error,
// never an exception of the JSON library. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace nlac {

struct JsonLimits {
  size_t depth = 16;          // nested objects and arrays
  size_t values = 1'000'000;  // values of any kind, which bounds the memory that a text can ask for
  size_t member = SIZE_MAX;   // values of one member, for parse_json_members
};

// Throws ERR_MODEL_FORMAT. `source` (a path or a description) opens the message.
nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

using JsonMember = std::function<void(const std::string& name, const nlohmann::json& value)>;

// Calls `read` for each member of the object that `text` describes, and keeps one at a time. A name
// that appears twice in the outermost object is not noticed. Throws as parse_json.
void parse_json_members(std::string_view text, const std::string& source, const JsonLimits& limits,
                        const JsonMember& read);

// Returns text of a file for an error message: quoted, printable ASCII, shortened.
std::string printable(std::string_view text);

}  // namespace nlac
