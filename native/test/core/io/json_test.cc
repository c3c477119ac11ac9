#include "core/io/json.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "test/core/fixtures.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("the same key in different objects is no duplicate") {
  const nlohmann::json json = parse_json(R"({"a":{"a":[1,{"a":2}]},"b":{"a":3}})", "text");
  CHECK(json["a"]["a"][1]["a"] == 2);
  CHECK(json["b"]["a"] == 3);
}

TEST_CASE("JSON is limited in values, and messages in length") {
  CHECK_REFUSED(parse_json("[1,2,3,4]", "text", {.depth = 2, .values = 4}), "ERR_MODEL_FORMAT",
                "more than 4 values");
  const std::string long_key(100'000, 'k');
  const std::string message =
      error_of([&] { parse_json("{\"" + long_key + "\":1,\"" + long_key + "\":2}", "text"); });
  CHECK(contains(message, "appears twice"));
  CHECK(message.size() < 300);
  CHECK(printable("a\n\xff") == "\"a\\x0a\\xff\"");
  CHECK_REFUSED(parse_json("[1e999]", "text"), "ERR_MODEL_FORMAT", "not valid JSON");
  CHECK_REFUSED(parse_json("", "text"), "ERR_MODEL_FORMAT", "not valid JSON");
}

TEST_CASE("members are read one at a time, with the same limits") {
  std::vector<std::string> names;
  const auto read = [&](const std::string& name, const nlohmann::json& value) {
    names.push_back(name + value.dump());
  };
  parse_json_members(R"({"a":1,"b":{"c":[1,{}]},"d":[]})", "text", {}, read);
  CHECK(names == std::vector<std::string>{"a1", R"(b{"c":[1,{}]})", "d[]"});
  names.clear();
  parse_json_members("[1,2]", "text", {}, read);
  CHECK(names.empty());
  CHECK_REFUSED(parse_json_members(R"({"a":[[1]]})", "text", {.depth = 2}, read), "ERR_MODEL_FORMAT",
                "nested deeper than 2");
  CHECK_REFUSED(parse_json_members(R"({"a":{"b":1,"b":2}})", "text", {}, read), "ERR_MODEL_FORMAT",
                "appears twice");
  CHECK_REFUSED(parse_json_members(R"({"a":[1],"b":[1,2]})", "text", {.member = 2}, read), "ERR_MODEL_FORMAT",
                "more than 2 values in one member");
  CHECK_REFUSED(parse_json_members(R"({"a":1)", "text", {}, read), "ERR_MODEL_FORMAT", "not valid JSON");
}

TEST_CASE("the time to read JSON grows with its length, not with its square") {
  const auto seconds = [](size_t members) {
    std::string text = "{";
    for (size_t i = 0; i < members; ++i) {
      text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":{}";
    }
    text += "}";
    double least = 1e9;  // of processor time, so that other processes do not count
    for (int i = 0; i < 3; ++i) {
      const std::clock_t start = std::clock();
      parse_json(text, "text");
      least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return least;
  };
  // A quadratic parser would take 4,000 times as long for 64 times the members.
  CHECK(seconds(128'000) < 640 * std::max(seconds(2000), 1e-4));
}
