#include "core/model/classifier.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/io/safetensors.h"

namespace nlac {

void export_classifier(const std::string& directory, ModelConfig config, const Weights& weights,
                       at::ScalarType dtype, int64_t pad_token_id) {
  NLAC_REQUIRE(weights.value.defined(), "ERR_CONFIG", "a classifier needs a value head");
  NLAC_REQUIRE(config.family != Family::gemma4, "ERR_CONFIG",
               "a reward model of Gemma 4 cannot be exported: transformers has no classifier of this family");
  config.pad_token_id = pad_token_id;
  auto json = nlohmann::ordered_json::parse(config.to_json(dtype == at::kFloat ? "float32" : "bfloat16"));
  // LlamaForCausalLM becomes LlamaForSequenceClassification, and so for the others.
  const std::string generator = json["architectures"][0].get<std::string>();
  json["architectures"] = {generator.substr(0, generator.find("ForCausalLM")) + "ForSequenceClassification"};
  json["num_labels"] = 1;
  json["id2label"] = nlohmann::ordered_json::object({{"0", "reward"}});
  json["label2id"] = nlohmann::ordered_json::object({{"reward", 0}});

  std::error_code error;
  std::filesystem::create_directories(directory, error);
  NLAC_REQUIRE(!error, "ERR_IO", directory, ": cannot be made: ", error.message());
  const std::filesystem::path root(directory);
  NamedTensors tensors = weights.without_heads().named_views(config);
  std::erase_if(tensors, [](const auto& named) { return named.first == "lm_head.weight"; });
  tensors.emplace_back("score.weight", weights.value);
  write_tensors(root / "model.safetensors", tensors, dtype);
  // Last: a directory with a config.json counts as a complete model.
  const std::string text = json.dump(2) + "\n";
  write_file_atomically((root / "config.json").string(), text.data(), text.size());
}

}  // namespace nlac
