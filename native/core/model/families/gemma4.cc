// The text model of Gemma 4 (Gemma4ForCausalLM), with or without its mixture of experts: Gemma 3's norms and
// GeGLU, but weights that are not 1 + weight; values that are normalised too; layers of full attention
// with wider heads, values from the keys' projection and rotary positions on a part of each head; a number
// that multiplies each layer's output; capped logits. In the small models later layers borrow the keys
// and values of earlier ones, and each layer has inputs of its own. In the mixture each layer has experts
// beside its gated part.
#include <cmath>

#include "core/error.h"
#include "core/model/families.h"

namespace nlac {

using namespace config;

static bool is_full(const LayerKind& kind) { return kind.window == 0; }

// Sizes of the heads in layers of full attention.
struct FullHeads {
  int64_t head_dim, kv_heads;
};

// transformers 5.24 writes them for each layer, published files as two keys.
static FullHeads read_full_heads(const Section& json, const ModelConfig& config, bool values_from_keys) {
  const nlohmann::json* layers = json.find("per_layer_config");
  if (layers == nullptr) {
    const int64_t kv_heads =
        json.integer("num_global_key_value_heads", 1, kMaxHeads).value_or(config.kv_heads);
    return {json.integer("global_head_dim", 1, kMaxWidth).value_or(512),
            values_from_keys ? kv_heads : config.kv_heads};
  }
  NLAC_REQUIRE(layers->is_object(), format_error, json.where("per_layer_config"), " is not an object");
  std::vector<FullHeads> heads(static_cast<size_t>(config.layers), {config.head_dim, config.kv_heads});
  for (const auto& [key, value] : layers->items()) {
    const std::string where = "per_layer_config." + key + ".";
    size_t layer = heads.size();
    if (!key.empty() && key.size() < 6 && key.find_first_not_of("0123456789") == std::string::npos)
      layer = std::stoul(key);
    NLAC_REQUIRE(value.is_object() && layer < heads.size(), format_error, json.where("per_layer_config"),
                 " holds ", Section::shown(key), ", which is not a layer's settings");
    const Section own(value, where);
    for (const auto& [name, setting] : value.items())
      NLAC_REQUIRE(name == "head_dim" || name == "num_key_value_heads", format_error,
                   own.where(Section::shown(name).c_str()), " is not supported for one layer");
    heads[layer] = {own.integer("head_dim", 1, kMaxWidth).value_or(config.head_dim),
                    own.integer("num_key_value_heads", 1, kMaxHeads).value_or(config.kv_heads)};
  }
  const FullHeads full = heads.back();  // the last layer has full attention
  for (size_t l = 0; l < heads.size(); ++l) {
    const bool same = is_full(config.layer_kinds[l])
                          ? heads[l].head_dim == full.head_dim && heads[l].kv_heads == full.kv_heads
                          : heads[l].head_dim == config.head_dim && heads[l].kv_heads == config.kv_heads;
    NLAC_REQUIRE(same, format_error, json.where("per_layer_config"), ": layer ", l,
                 " has other heads than the layers of its type, which is not supported");
  }
  NLAC_REQUIRE(values_from_keys || full.kv_heads == config.kv_heads, format_error,
               json.where("per_layer_config"), ": num_key_value_heads of full attention is ", full.kv_heads,
               ", which needs attention_k_eq_v");
  return full;
}

// The last `count` layers borrow the keys and values of the last layer of their type before. `where`
// names the key of `count`.
static void share_keys(ModelConfig& config, int64_t count, const std::string& where) {
  for (int64_t l = config.layers - count; l < config.layers; ++l) {
    LayerKind& kind = config.layer_kinds[static_cast<size_t>(l)];
    int64_t from = config.layers - count - 1;
    while (from >= 0 && is_full(config.kind(from)) != is_full(kind)) --from;
    NLAC_REQUIRE(from >= 0, format_error, where, " is ", count,
                 ", but no layer before has the type of layer ", l);
    LayerKind& lender = config.layer_kinds[static_cast<size_t>(from)];
    lender.keys = Keys::lent;
    lender.keys_of = kind.keys_of = from;
    kind.keys = Keys::borrowed;
    kind.values_from_keys = false;
  }
}

static void set_full_heads(ModelConfig& config, const FullHeads& full, bool values_from_keys) {
  for (LayerKind& kind : config.layer_kinds) {
    if (!is_full(kind)) continue;
    if (full.head_dim != config.head_dim) kind.head_dim = full.head_dim;
    if (full.kv_heads != config.kv_heads) kind.kv_heads = full.kv_heads;
    kind.values_from_keys = values_from_keys;
  }
  if (full.head_dim != config.head_dim) config.rope.dimensions = full.head_dim;
}

// What all models have.
static void set_common(ModelConfig& config) {
  config.qk_norm = config.value_norm = config.layer_scalars = true;
  config.attention_scalar = 1;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
}

static void read_mixture(const Section& json, ModelConfig& config) {
  if (!json.boolean("enable_moe_block", false)) return;
  ExpertsShape& experts = config.experts;
  experts.count = json.required_integer("num_experts", 1, kMaxExperts);
  experts.per_token = json.required_integer("top_k_experts", 1, experts.count);
  experts.intermediate = json.required_integer("moe_intermediate_size", 1, kMaxWidth);
  experts.normalised = experts.scaled_router = true;
  for (LayerKind& kind : config.layer_kinds) kind.feed_forward = FeedForward::beside;
}

static void read(const Section& json, ModelConfig& config) {
  set_common(config);
  // "vision" is about the tokens of images, which nlac does not read.
  const auto bidirectional = json.text("use_bidirectional_attention");
  NLAC_REQUIRE(!bidirectional || *bidirectional == "vision", format_error,
               json.where("use_bidirectional_attention"), " is not \"vision\"; only causal attention is ",
               "supported");
  if (const auto cap = json.number("final_logit_softcapping")) {
    NLAC_REQUIRE(*cap > 0, format_error, json.where("final_logit_softcapping"), " is ", *cap,
                 ", not above 0");
    config.logit_cap = *cap;
  }
  read_attention_bias(json, config);
  config.rope.theta = 1e6;
  read_two_ropes(json, config, nullptr);
  read_layer_types(json, config, read_window(json, 512), 6);
  config.layer_kinds.back() = {};  // as in transformers
  const bool values_from_keys = json.boolean("attention_k_eq_v", false);
  set_full_heads(config, read_full_heads(json, config, values_from_keys), values_from_keys);
  share_keys(config, json.integer("num_kv_shared_layers", 0, config.layers - 1).value_or(0),
             json.where("num_kv_shared_layers"));
  if (json.boolean("use_double_wide_mlp", false))
    for (LayerKind& kind : config.layer_kinds)
      if (kind.keys == Keys::borrowed) kind.intermediate = 2 * config.intermediate_size;
  read_mixture(json, config);
  config.layer_input_size = json.integer("hidden_size_per_layer_input", 0, kMaxWidth).value_or(256);
  if (config.layer_input_size > 0)
    config.layer_input_vocab = json.integer("vocab_size_per_layer_input", 1, kMaxVocab).value_or(262144);
}

static void write(const ModelConfig& config, nlohmann::ordered_json& json) {
  json["attention_bias"] = config.output_bias;
  if (config.logit_cap > 0) json["final_logit_softcapping"] = config.logit_cap;
  write_two_ropes(config, json, nullptr);
  for (const char* older : {"rope_theta", "rope_scaling"}) json.erase(older);
  write_layer_types(config, json);
  if (json["sliding_window"].is_null()) json.erase("sliding_window");
  const LayerKind last = config.kind(config.layers - 1);
  const LayerKind full = last.keys == Keys::borrowed ? config.kind(last.keys_of) : last;
  json["global_head_dim"] = config.head_dim_of(full);
  json["num_global_key_value_heads"] = config.kv_heads_of(full);
  json["attention_k_eq_v"] = full.values_from_keys;
  int64_t borrowing = 0;
  for (int64_t l = 0; l < config.layers; ++l) borrowing += config.kind(l).keys == Keys::borrowed ? 1 : 0;
  json["num_kv_shared_layers"] = borrowing;
  json["use_double_wide_mlp"] = last.intermediate > 0;
  json["hidden_size_per_layer_input"] = config.layer_input_size;
  if (config.layer_input_size > 0) json["vocab_size_per_layer_input"] = config.layer_input_vocab;
  const ExpertsShape& experts = config.experts;
  json["enable_moe_block"] = experts.count > 0;
  if (experts.count == 0) return;
  json["num_experts"] = experts.count;
  json["top_k_experts"] = experts.per_token;
  json["moe_intermediate_size"] = experts.intermediate;
}

// Which layers have values from the keys' projection, the proportion of the rotary scheme and the rows of
// the table of the layers' inputs are seen in the file's tensors (load_weights.cc).
static void read_gguf(const GgufReader& reader, ModelConfig& config) {
  set_common(config);
  config.logit_cap = reader.number("final_logit_softcapping").value_or(0);
  config.rope.scaling = RopeScaling::proportional;
  read_gguf_windows(reader, config, 6, 10000.0);
  FullHeads full{config.head_dim, config.kv_heads};
  config.head_dim = reader.integer("attention.key_length_swa", 1, kMaxWidth).value_or(full.head_dim);
  reader.require_integer("attention.value_length_swa", config.head_dim);
  reader.require_integer("rope.dimension_count_swa", config.head_dim);
  const auto kv_heads = reader.layer_integers("attention.head_count_kv", config.layers, 1, kMaxHeads);
  for (size_t l = 0; kv_heads && l < config.layer_kinds.size(); ++l)
    (is_full(config.layer_kinds[l]) ? full.kv_heads : config.kv_heads) = (*kv_heads)[l];
  set_full_heads(config, full, false);
  share_keys(config, reader.integer("attention.shared_kv_layers", 0, config.layers - 1).value_or(0),
             "GGUF metadata: " + reader.full("attention.shared_kv_layers"));
  const auto widths = reader.layer_integers("feed_forward_length", config.layers, 1, kMaxWidth);
  for (size_t l = 0; widths && l < config.layer_kinds.size(); ++l)
    if ((*widths)[l] != config.intermediate_size) config.layer_kinds[l].intermediate = (*widths)[l];
  config.layer_input_size = reader.integer("embedding_length_per_layer_input", 0, kMaxWidth).value_or(0);
  if (config.layer_input_size > 0) config.layer_input_vocab = config.vocab_size;
  if (!reader.integer("expert_count", 1, kMaxExperts)) return;
  read_gguf_experts(reader, config, FeedForward::beside);
  config.experts.scaled_router = true;
  config.experts.balance = 0;
}

const FamilyEntry gemma4_family = {
    .family = Family::gemma4,
    .name = "gemma4_text",
    .architecture = "Gemma4ForCausalLM",
    .gguf_architecture = "gemma4",
    .norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
              "post_feedforward_layernorm"},
    .defaults = R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
                    "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": true,
                    "rope_parameters": {
                      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                      "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                         "rope_theta": 1000000.0}}})",
    .activation = Activation::gelu_tanh,
    .activation_key = "hidden_activation",
    .read = read,
    .write = write,
    .read_gguf = read_gguf};

}  // namespace nlac
