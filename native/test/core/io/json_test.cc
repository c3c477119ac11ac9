#include "core/io/json.h"

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
