// The table of model families: one entry each, in a file of families/. An entry says how a family's
// config.json is read and written beyond what all share, and which names its tensors have. The
// parts of a layer follow from the configuration (ModelConfig, LayerKind). Needs no torch.
// docs/adding-a-family.md shows how to add one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "core/model/config.h"
#include "core/model/config_gguf.h"
#include "core/model/config_section.h"

namespace nlac {

// Names of a layer's norms, without ".weight". Null: the family has no norm there. A layer is two
// residual branches, x + after(part(before(x))): the mixer's, then the feed-forward part's.
struct NormNames {
  const char* before_mixer = nullptr;
  const char* after_mixer = nullptr;
  const char* before_feed_forward = nullptr;
  const char* after_feed_forward = nullptr;
};
// Norms before both parts, as in Llama.
inline constexpr NormNames pre_norms = {"input_layernorm", nullptr, "post_attention_layernorm", nullptr};

struct FamilyEntry {
  Family family;
  const char* name;               // config.json's model_type
  const char* architecture;       // config.json's architectures[0]
  const char* gguf_architecture;  // GGUF's general.architecture
  NormNames norms;
  // A JSON object: values of keys that the family's files may omit, as transformers has them.
  const char* defaults = "{}";
  bool mxfp4 = false;  // files may have their experts in MXFP4
  Activation activation = Activation::silu;
  const char* activation_key = "hidden_act";
  // Reads what differs from the defaults. The sizes are set. Throws ERR_MODEL_FORMAT.
  void (*read)(const config::Section& json, ModelConfig& config);
  // Adds the keys that read() takes. Throws ERR_MODEL_FORMAT for a configuration that the family
  // cannot express.
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& json);
  // Reads from a GGUF file what differs from the defaults and from the sizes that all files have, and
  // sets what converters leave out, because the family's models all have it. Null: nothing.
  void (*read_gguf)(const config::GgufReader& reader, ModelConfig& config) = nullptr;
  bool gguf_interleaved = false;  // converters interleave the halves of queries and keys
};

std::span<const FamilyEntry* const> all_families();
const FamilyEntry& entry_of(Family family);
// Null for a name that no family has.
const FamilyEntry* family_named(std::string_view architecture_or_model_type);

// One file of families/ each.
extern const FamilyEntry llama_family, qwen2_family, qwen3_family, qwen3_5_family, qwen3_5_moe_family,
    qwen3_moe_family, smollm3_family, mistral_family, ministral3_family, olmo3_family, gemma3_family,
    gemma4_family, gpt_oss_family;

}  // namespace nlac
