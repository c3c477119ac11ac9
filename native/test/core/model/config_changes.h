// Configurations of test/fixtures/models, and changed ones.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/model/config.h"
#include "test/core/fixtures.h"

namespace nlac::test {

using Json = nlohmann::json;

// The config.json of a model in test/fixtures/models.
inline Json saved(const std::string& name) {
  const Bytes bytes = read_bytes(fixture("models/" + name + "/config.json"));
  return Json::parse(std::string(bytes.begin(), bytes.end()));
}

inline ModelConfig read(const Json& json) { return ModelConfig::from_json(json.dump()); }

inline Json with(Json json, const Json& change) {
  json.update(change);
  return json;
}

}  // namespace nlac::test
