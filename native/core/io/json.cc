#include "core/io/json.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"

namespace nlac {

nlohmann::json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  // The library treats a null byte as the end of the text and would ignore the rest.
  NLAC_REQUIRE(text.find('\0') == std::string_view::npos, "ERR_MODEL_FORMAT", source,
               ": not valid JSON: it holds a null byte");
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of each object still open
  size_t depth = 0, values = 0;
  auto watch = [&](int, Event event, nlohmann::json& parsed) {
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        NLAC_REQUIRE(++depth <= limits.depth, "ERR_MODEL_FORMAT", source, ": JSON nested deeper than ",
                     limits.depth);
        if (event == Event::object_start) keys.emplace_back();
        [[fallthrough]];
      case Event::value:
        NLAC_REQUIRE(++values <= limits.values, "ERR_MODEL_FORMAT", source, ": JSON with more than ",
                     limits.values, " values");
        break;
      case Event::key: {
        const std::string& key = parsed.get_ref<const std::string&>();
        NLAC_REQUIRE(keys.back().insert(key).second, "ERR_MODEL_FORMAT", source, ": the JSON key ",
                     printable(key), " appears twice in one object");
        break;
      }
      case Event::object_end: keys.pop_back(); [[fallthrough]];
      case Event::array_end: --depth; break;
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    // The library's message may quote the raw text at length.
    fail("ERR_MODEL_FORMAT", source, ": not valid JSON: ", printable(error.what()));
  }
}

std::string printable(std::string_view text) {
  constexpr size_t longest = 160;
  std::string out = "\"";
  for (size_t i = 0; i < text.size() && i < longest; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", c);
      out += escape;
    }
  }
  out += text.size() > longest ? "…\"" : "\"";
  return out;
}

}  // namespace nlac
