// Writes models as Hugging Face directories.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/safetensors.h"
#include "core/model/weights.h"

namespace nlac {

void write_tensors(const std::string& path, const NamedTensors& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> kept;  // keeps converted copies until they are written
  std::vector<TensorEntry> entries;
  for (const auto& [name, view] : tensors) {
    const at::Tensor& tensor = kept.emplace_back(view.to(at::kCPU, dtype).contiguous());
    entries.push_back({name, dtype == at::kFloat ? StoredType::f32 : StoredType::bf16, tensor.sizes().vec(),
                       static_cast<const uint8_t*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  write_safetensors(path, entries, {{"format", "pt"}});
}

void export_huggingface(const std::string& directory, const ModelConfig& config, const Weights& weights,
                        at::ScalarType dtype) {
  NLAC_REQUIRE(dtype == at::kFloat || dtype == at::kBFloat16, "ERR_VALUE",
               "a model exports as float32 or bfloat16, not ", c10::toString(dtype));
  const std::string config_json = config.to_json(dtype == at::kFloat ? "float32" : "bfloat16");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  NLAC_REQUIRE(!error, "ERR_IO", directory, ": cannot be made: ", error.message());

  const std::filesystem::path root(directory);
  write_tensors(root / "model.safetensors", weights.without_heads().named_views(config, /*stacks=*/true),
                dtype);

  nlohmann::ordered_json generation = nlohmann::ordered_json::object();
  if (config.bos_token_id >= 0) generation["bos_token_id"] = config.bos_token_id;
  if (config.eos_token_ids.size() == 1) generation["eos_token_id"] = config.eos_token_ids.front();
  if (config.eos_token_ids.size() > 1) generation["eos_token_id"] = config.eos_token_ids;
  if (config.pad_token_id >= 0) generation["pad_token_id"] = config.pad_token_id;
  const std::string generation_json = generation.dump(2) + "\n";
  write_file_atomically((root / "generation_config.json").string(), generation_json.data(),
                        generation_json.size());
  // Last: a directory with a config.json counts as a complete model.
  write_file_atomically((root / "config.json").string(), config_json.data(), config_json.size());
}

}  // namespace nlac
