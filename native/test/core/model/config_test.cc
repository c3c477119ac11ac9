#include "core/model/config.h"

#include "test/core/fixtures.h"
#include "test/core/model/config_changes.h"
#include "test/core/model/gguf_metadata.h"

using namespace nlac;
using namespace nlac::test;

namespace {

Json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 32},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 64}};
}

}  // namespace

TEST_CASE("a Llama configuration, with its defaults") {
  const ModelConfig config = read(llama());
  CHECK(config.family == Family::llama);
  CHECK(config.vocab_size == 32);
  CHECK(config.hidden_size == 32);
  CHECK(config.intermediate_size == 48);
  CHECK(config.layers == 2);
  CHECK(config.heads == 4);
  CHECK(config.kv_heads == 2);
  CHECK(config.head_dim == 8);
  CHECK(config.max_positions == 64);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.rope.theta == 10000.0);
  CHECK(config.rope.scaling == RopeScaling::none);
  CHECK_FALSE(config.tied_embeddings);
  CHECK_FALSE(config.qkv_bias);
  CHECK_FALSE(config.qk_norm);
  CHECK(config.eos_token_ids.empty());
  CHECK(config.bos_token_id == -1);
}

TEST_CASE("null counts as absent") {
  const ModelConfig config = read(with(llama(), {{"head_dim", nullptr},
                                                 {"num_key_value_heads", nullptr},
                                                 {"rope_scaling", nullptr},
                                                 {"eos_token_id", nullptr},
                                                 {"pad_token_id", nullptr},
                                                 {"quantization_config", nullptr}}));
  CHECK(config.head_dim == 8);
  CHECK(config.kv_heads == 4);
}

TEST_CASE("biases and norms depend on the family") {
  const ModelConfig biased = read(with(llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  CHECK((biased.qkv_bias && biased.output_bias && biased.mlp_bias && !biased.qk_norm));
  const ModelConfig qwen2 = read(with(llama(), {{"architectures", {"Qwen2ForCausalLM"}}}));
  CHECK((qwen2.qkv_bias && !qwen2.output_bias && !qwen2.mlp_bias && !qwen2.qk_norm));
  const ModelConfig qwen3 =
      read(with(llama(), {{"architectures", {"Qwen3ForCausalLM"}}, {"attention_bias", true}}));
  CHECK((qwen3.qkv_bias && qwen3.output_bias && !qwen3.mlp_bias && qwen3.qk_norm));
  CHECK(qwen3.head_dim == 128);  // the family's default, not hidden / heads
  Json nameless = llama();
  nameless.erase("architectures");
  CHECK(read(with(nameless, {{"model_type", "qwen2"}})).family == Family::qwen2);
}

TEST_CASE("eos_token_id is one id or a list") {
  CHECK(read(with(llama(), {{"eos_token_id", 7}})).eos_token_ids == std::vector<int64_t>{7});
  CHECK(read(with(llama(), {{"eos_token_id", {7, 0}}})).eos_token_ids == std::vector<int64_t>{7, 0});
  CHECK_REFUSED(read(with(llama(), {{"eos_token_id", 32}})), "ERR_MODEL_FORMAT", "eos_token_id");
  CHECK_REFUSED(read(with(llama(), {{"eos_token_id", {1, -1}}})), "ERR_MODEL_FORMAT", "eos_token_id");
  CHECK_REFUSED(read(with(llama(), {{"eos_token_id", "2"}})), "ERR_MODEL_FORMAT", "eos_token_id");
}

TEST_CASE("rotary parameters as transformers 5 and earlier versions write them") {
  const ModelConfig newer =
      read(with(llama(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}));
  CHECK(newer.rope.theta == 5e5);
  CHECK(newer.rope.scaling == RopeScaling::none);
  CHECK(read(with(llama(), {{"rope_theta", 1000000}})).rope.theta == 1e6);

  const ModelConfig linear =
      read(with(llama(), {{"rope_theta", 2e4}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}));
  CHECK(linear.rope.scaling == RopeScaling::linear);
  CHECK(linear.rope.factor == 2.0);
  CHECK(linear.rope.theta == 2e4);

  const Json llama3 = {{"rope_type", "llama3"},   {"rope_theta", 5e5},
                       {"factor", 8.0},           {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 16}};
  for (const std::string key : {"rope_parameters", "rope_scaling"}) {
    const ModelConfig config = read(with(llama(), {{key, llama3}}));
    CHECK(config.rope.scaling == RopeScaling::llama3);
    CHECK(config.rope.theta == 5e5);
    CHECK(config.rope.factor == 8.0);
    CHECK(config.rope.low_freq_factor == 1.0);
    CHECK(config.rope.high_freq_factor == 4.0);
    CHECK(config.rope.original_max_positions == 16);
  }

  const ModelConfig yarn = read(with(llama(), {{"rope_scaling",
                                                {{"rope_type", "yarn"},
                                                 {"factor", 4.0},
                                                 {"original_max_position_embeddings", 16},
                                                 {"beta_fast", 20},
                                                 {"mscale", 0.7},
                                                 {"truncate", false}}}}));
  CHECK(yarn.rope.scaling == RopeScaling::yarn);
  CHECK(yarn.rope.factor == 4.0);
  CHECK(yarn.rope.original_max_positions == 16);
  CHECK(yarn.rope.beta_fast == 20.0);
  CHECK(yarn.rope.beta_slow == 1.0);
  CHECK(yarn.rope.mscale == 0.7);
  CHECK(yarn.rope.attention_factor == 0.0);
  CHECK_FALSE(yarn.rope.truncate);
  // Without a factor it is the ratio of the two lengths; without the original length, that is the
  // present one.
  CHECK(read(with(llama(), {{"rope_scaling", {{"type", "yarn"}, {"original_max_position_embeddings", 16}}}}))
            .rope.factor == 4.0);
  CHECK(read(with(llama(), {{"rope_scaling", {{"type", "yarn"}, {"factor", 2}}}}))
            .rope.original_max_positions == 64);
}

TEST_CASE("unsupported rotary parameters are rejected by name") {
  const auto rope = [](const Json& parameters) {
    return read(with(llama(), {{"rope_scaling", parameters}}));
  };
  for (const std::string type : {"dynamic", "longrope", "su", "mrope", "proportional"}) {
    CHECK_REFUSED(rope({{"rope_type", type}, {"factor", 2.0}}), "ERR_MODEL_FORMAT",
                  std::string("\"") + type + "\"");
  }
  CHECK_REFUSED(rope({{"type", "linear"}}), "ERR_MODEL_FORMAT", "rope_scaling.factor is missing");
  CHECK_REFUSED(rope({{"type", "linear"}, {"factor", 0}}), "ERR_MODEL_FORMAT", "scaling factor is 0");
  CHECK_REFUSED(rope({{"type", "linear"}, {"factor", "2"}}), "ERR_MODEL_FORMAT", "not a number");
  CHECK_REFUSED(rope({{"type", "llama3"}, {"factor", 8.0}}), "ERR_MODEL_FORMAT",
                "low_freq_factor is missing");
  CHECK_REFUSED(rope({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
                "ERR_MODEL_FORMAT", "not above");
  CHECK_REFUSED(rope({{"type", "yarn"}, {"factor", 2}, {"beta_fast", -1}}), "ERR_MODEL_FORMAT", "beta_fast");
  CHECK_REFUSED(rope(Json::array()), "ERR_MODEL_FORMAT", "not an object");
  CHECK_REFUSED(read(with(llama(), {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}})),
                "ERR_MODEL_FORMAT", "each kind of layer");
  CHECK_REFUSED(read(with(llama(), {{"partial_rotary_factor", 0.5}})), "ERR_MODEL_FORMAT",
                "partial_rotary_factor");
  CHECK_REFUSED(read(with(llama(), {{"rope_theta", 0}})), "ERR_MODEL_FORMAT", "rope_theta");
}

TEST_CASE("a sliding window is rejected unless it is off") {
  const Json off = {{"use_sliding_window", false},
                    {"sliding_window", 4096},
                    {"layer_types", {"full_attention", "full_attention"}}};
  CHECK(read(with(llama(), off)).layers == 2);
  CHECK_REFUSED(read(with(llama(), {{"use_sliding_window", true}})), "ERR_MODEL_FORMAT",
                "use_sliding_window");
  CHECK_REFUSED(read(with(llama(), {{"layer_types", {"full_attention", "sliding_attention"}}})),
                "ERR_MODEL_FORMAT", "sliding_attention");
}

TEST_CASE("fields that are missing, of the wrong type or out of range are rejected by name") {
  for (const std::string key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                "num_attention_heads", "max_position_embeddings"}) {
    CAPTURE(key);
    Json json = llama();
    json.erase(key);
    CHECK_REFUSED(read(json), "ERR_MODEL_FORMAT", key + " is missing");
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("32"), Json(true), Json(Json::array()),
                              Json(UINT64_MAX), Json(INT64_MAX), Json(INT64_MIN), Json(1e300)}) {
      CHECK_REFUSED(read(with(llama(), {{key, value}})), "ERR_MODEL_FORMAT", key + " is ");
    }
  }
  const struct {
    Json change;
    std::string part;
  } cases[] = {
      {{{"architectures", {"FalconForCausalLM"}}}, "FalconForCausalLM"},
      {{{"architectures", Json::array()}}, "architectures"},
      {{{"architectures", "LlamaForCausalLM"}}, "architectures"},
      {{{"hidden_act", "gelu"}}, "\"gelu\""},
      {{{"num_key_value_heads", 3}}, "do not divide"},
      {{{"num_key_value_heads", 0}}, "num_key_value_heads"},
      {{{"hidden_size", 33}}, "does not divide into 4 heads"},
      {{{"head_dim", 7}}, "odd"},
      {{{"rms_norm_eps", -1e-6}}, "epsilon"},
      {{{"rms_norm_eps", 2}}, "epsilon"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config"},
      {{{"bos_token_id", 32}}, "bos_token_id"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.part);
    CHECK_REFUSED(read(with(llama(), test.change)), "ERR_MODEL_FORMAT", test.part);
  }
  CHECK_REFUSED(ModelConfig::from_json("[]"), "ERR_MODEL_FORMAT", "not a JSON object");
  CHECK_REFUSED(ModelConfig::from_json("{"), "ERR_MODEL_FORMAT", "not valid JSON");
}

TEST_CASE("configurations of transformers are unchanged after writing and reading") {
  for (const std::string name : {"llama", "llama-biased", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const Bytes bytes = read_bytes(fixture("io/" + name + "/config.json"));
    const ModelConfig config = ModelConfig::from_json({bytes.begin(), bytes.end()});
    const std::string json = config.to_json("bfloat16");
    CHECK(ModelConfig::from_json(json).to_json("bfloat16") == json);
    // Existing fields are preserved.
    const Json before = Json::parse(std::string(bytes.begin(), bytes.end())), after = Json::parse(json);
    for (const std::string key :
         {"architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size",
          "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
          "max_position_embeddings", "tie_word_embeddings", "eos_token_id", "bos_token_id"}) {
      CAPTURE(key);
      CHECK(before.value(key, Json()) == after.value(key, Json()));
    }
    for (const auto& [key, value] : before.at("rope_parameters").items()) {
      CHECK(after.at("rope_parameters").at(key) == value);
    }
  }
  CHECK_REFUSED(read(llama()).to_json("float16"), "ERR_VALUE", "float16");
}

TEST_CASE("GGUF metadata of each architecture") {
  for (const std::string name : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(name);
    const ModelConfig config = ModelConfig::from_gguf(gguf(name), true);
    CHECK(std::string(Json::parse(config.to_json("float32"))["model_type"]) == name);
    CHECK(config.vocab_size == 32);
    CHECK(config.hidden_size == 32);
    CHECK(config.intermediate_size == 48);
    CHECK(config.layers == 2);
    CHECK(config.heads == 4);
    CHECK(config.kv_heads == 2);
    CHECK(config.head_dim == 8);
    CHECK(config.max_positions == 64);
    CHECK(config.rms_norm_eps == 1e-5);
    CHECK(config.rope.theta == 10000.0);
    CHECK(config.qkv_bias == (name == "qwen2"));
    CHECK(config.qk_norm == (name == "qwen3"));
    CHECK_FALSE(config.tied_embeddings);
    CHECK(ModelConfig::from_gguf(gguf(name), false).tied_embeddings);
  }
}

TEST_CASE("GGUF keys beyond the sizes") {
  GgufMetadata metadata = gguf("llama");
  metadata.erase("llama.vocab_size");
  metadata["tokenizer.ggml.tokens"] = std::vector<std::string>(17, "t");
  metadata["llama.attention.key_length"] = uint64_t{16};
  metadata["llama.attention.value_length"] = uint64_t{16};
  metadata["llama.rope.freq_base"] = 1e6;
  metadata["llama.attention.layer_norm_rms_epsilon"] = double{1e-5f};
  metadata["tokenizer.ggml.eos_token_id"] = uint64_t{3};
  metadata["tokenizer.ggml.eot_token_id"] = uint64_t{4};
  metadata["tokenizer.ggml.bos_token_id"] = uint64_t{1};
  metadata["tokenizer.ggml.padding_token_id"] = uint64_t{0};
  const ModelConfig config = ModelConfig::from_gguf(metadata, true);
  CHECK(config.vocab_size == 17);
  CHECK(config.head_dim == 16);
  CHECK(config.rope.theta == 1e6);
  CHECK(config.rms_norm_eps == 1e-5);  // the decimal that the file's float32 came from
  CHECK(config.eos_token_ids == std::vector<int64_t>{3, 4});
  CHECK(config.bos_token_id == 1);
  CHECK(config.pad_token_id == 0);

  metadata["llama.rope.scaling.type"] = std::string("yarn");
  metadata["llama.rope.scaling.factor"] = 4.0;
  metadata["llama.rope.scaling.original_context_length"] = uint64_t{16};
  const ModelConfig yarn = ModelConfig::from_gguf(metadata, true);
  CHECK(yarn.rope.scaling == RopeScaling::yarn);
  CHECK(yarn.rope.factor == 4.0);
  CHECK(yarn.rope.original_max_positions == 16);
  metadata["llama.rope.scaling.type"] = std::string("linear");
  CHECK(ModelConfig::from_gguf(metadata, true).rope.scaling == RopeScaling::linear);
}

TEST_CASE("GGUF metadata that is missing, of the wrong type or unsupported is rejected by name") {
  for (const auto& [key, value] : gguf("qwen2")) {
    if (key == "qwen2.attention.head_count_kv") continue;
    CAPTURE(key);
    GgufMetadata metadata = gguf("qwen2");
    metadata.erase(key);
    CHECK_REFUSED(ModelConfig::from_gguf(metadata, true), "ERR_MODEL_FORMAT", key);
    CHECK_REFUSED(ModelConfig::from_gguf(with(gguf("qwen2"), key, true), true), "ERR_MODEL_FORMAT", key);
  }
  const struct {
    std::string key;
    GgufValue value;
  } cases[] = {
      {"general.architecture", std::string("gemma")},
      {"llama.block_count", uint64_t{0}},
      {"llama.block_count", uint64_t{1} << 40},
      {"llama.block_count", UINT64_MAX},
      {"llama.embedding_length", int64_t{-1}},
      {"llama.attention.head_count_kv", std::vector<uint64_t>{2, 1}},
      {"llama.attention.head_count_kv", std::vector<uint64_t>{2}},
      {"llama.attention.head_count_kv", std::vector<int64_t>{2, -2}},
      {"llama.feed_forward_length", std::vector<uint64_t>{48, 64}},
      {"llama.attention.value_length", uint64_t{4}},
      {"llama.attention.sliding_window", uint64_t{4096}},
      {"llama.expert_count", uint64_t{8}},
      {"llama.rope.dimension_count", uint64_t{4}},
      {"llama.rope.scaling.type", std::string("longrope")},
      {"llama.rope.scaling.type", std::string("linear")},
      {"llama.rope.freq_base", uint64_t{10000}},
      {"tokenizer.ggml.eos_token_id", uint64_t{32}},
  };
  for (const auto& test : cases) {
    CAPTURE(test.key);
    const std::string shown = test.key == "llama.rope.scaling.type" ? "llama.rope.scaling" : test.key;
    CHECK_REFUSED(ModelConfig::from_gguf(with(gguf("llama"), test.key, test.value), true), "ERR_MODEL_FORMAT",
                  shown);
  }
  GgufMetadata yarn = gguf("llama");
  yarn["llama.rope.scaling.type"] = std::string("yarn");
  yarn["llama.rope.scaling.factor"] = 4.0;
  for (const std::string key :
       {"yarn_attn_factor", "attn_factor", "yarn_ext_factor", "yarn_log_multiplier"}) {
    const std::string full = std::string("llama.rope.scaling.") + key;
    CHECK_REFUSED(ModelConfig::from_gguf(with(yarn, full, 0.5), true), "ERR_MODEL_FORMAT", full);
  }
  CHECK_REFUSED(ModelConfig::from_gguf({}, true), "ERR_MODEL_FORMAT", "general.architecture is missing");
}

namespace {

constexpr const char* newer_families[] = {"smollm3",        "mistral", "ministral3",   "olmo3",
                                          "gemma3",         "gemma4",  "gemma4-dense", "qwen3_moe",
                                          "qwen3_moe-step", "gpt_oss", "gemma4-moe"};

}  // namespace

TEST_CASE("every family's configuration is unchanged after writing and reading") {
  for (const std::string name : newer_families) {
    CAPTURE(name);
    const Json before = saved(name);
    const ModelConfig config = read(before);
    const std::string json = config.to_json("bfloat16");
    const ModelConfig again = ModelConfig::from_json(json);
    CHECK(again == config);
    CHECK(again.to_json("bfloat16") == json);
    const Json after = Json::parse(json);
    for (const std::string key :
         {"architectures", "model_type", "layer_types", "sliding_window", "no_rope_layers",
          "hidden_activation", "query_pre_attn_scalar", "num_experts_per_tok", "moe_intermediate_size",
          "norm_topk_prob", "router_aux_loss_coef", "rms_norm_eps", "tie_word_embeddings",
          "num_local_experts", "swiglu_limit", "swiglu_alpha", "attention_bias"}) {
      CAPTURE(key);
      if (before.contains(key) && after.contains(key)) CHECK(before[key] == after[key]);
    }
    for (const auto& [key, value] : before.at("rope_parameters").items()) {
      CAPTURE(key);
      if (!value.is_object()) CHECK(after.at("rope_parameters").value(key, value) == value);
      const Json scheme = value.is_object() ? value : Json::object();
      for (const auto& [inner, number] : scheme.items())
        CHECK(after.at("rope_parameters").at(key).at(inner) == number);
    }
  }
}

TEST_CASE("layers without rotary positions, with a window, and with their own rotary scheme") {
  const ModelConfig smollm = read(saved("smollm3"));
  CHECK(smollm.kind(0) == LayerKind{});
  CHECK(smollm.kind(1) == LayerKind{.rotary = Rotary::none});
  Json every_fourth = saved("smollm3");
  every_fourth.erase("no_rope_layers");
  every_fourth["num_hidden_layers"] = 8;
  every_fourth.erase("layer_types");
  for (int64_t l = 0; l < 8; ++l)
    CHECK((read(every_fourth).kind(l).rotary == Rotary::none) == (l == 3 || l == 7));

  CHECK(read(saved("mistral")).kind(1) == LayerKind{.window = 11});
  CHECK(read(with(saved("mistral"), {{"sliding_window", nullptr}})).layer_kinds.empty());
  Json silent = saved("mistral");
  silent.erase("sliding_window");
  CHECK(read(silent).kind(0).window == 4096);

  const ModelConfig ministral = read(saved("ministral3"));
  CHECK(ministral.layer_kinds.empty());
  CHECK(ministral.rope.query_growth == 0.3);

  const ModelConfig gemma = read(saved("gemma3"));
  CHECK(gemma.kind(0) == LayerKind{.rotary = Rotary::local, .window = 11});
  CHECK(gemma.kind(1) == LayerKind{});
  CHECK(gemma.attention_scalar == 20);
  CHECK(gemma.rope.theta == 1e6);
  CHECK(gemma.rope.factor == 4);
  CHECK(gemma.local_rope->theta == 1e4);
  CHECK((gemma.norm_plus_one && gemma.qk_norm && gemma.activation == Activation::gelu_tanh));

  // As transformers before 5 wrote them.
  Json older = saved("gemma3");
  older.erase("rope_parameters");
  older["rope_theta"] = 1e6;
  older["rope_local_base_freq"] = 1e4;
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4}};
  CHECK(read(older) == gemma);
  older = saved("olmo3");
  const ModelConfig olmo = read(older);
  Json scaling = older["rope_parameters"]["full_attention"];
  older.erase("rope_parameters");
  older["rope_scaling"] = scaling;
  CHECK(read(older) == olmo);
  CHECK(olmo.whole_qk_norm);
  CHECK(olmo.local_rope->scaling == RopeScaling::none);
}

TEST_CASE("the text part of a model of text and images is read") {
  Json text = saved("gemma3");
  text.erase("architectures");
  text.erase("eos_token_id");
  const Json outer = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                      {"model_type", "gemma3"},
                      {"text_config", text},
                      {"vision_config", {{"hidden_size", 7}}},
                      {"eos_token_id", {1, 5}}};
  const ModelConfig config = read(outer);
  CHECK(config.family == Family::gemma3);
  CHECK(config.hidden_size == 32);
  CHECK(config.eos_token_ids == std::vector<int64_t>{1, 5});
  CHECK(Json::parse(config.to_json("float32"))["architectures"][0] == "Gemma3ForCausalLM");
  CHECK_REFUSED(read(with(outer, {{"text_config", 3}})), "ERR_MODEL_FORMAT", "text_config");
}

TEST_CASE("settings that a family does not support are rejected by name") {
  const struct {
    std::string family;
    Json change;
    std::string part;
  } cases[] = {
      {"gemma3", {{"final_logit_softcapping", 30.0}}, "final_logit_softcapping"},
      {"gemma3", {{"use_bidirectional_attention", true}}, "use_bidirectional_attention"},
      {"gemma3", {{"hidden_activation", "silu"}}, "hidden_activation"},
      {"gemma3", {{"query_pre_attn_scalar", -1}}, "query_pre_attn_scalar"},
      {"gemma3", {{"layer_types", {"full_attention"}}}, "layer_types"},
      {"gemma3", {{"layer_types", {"full_attention", "linear_attention"}}}, "linear_attention"},
      {"gemma3", {{"sliding_window", nullptr}}, "sliding_window"},
      {"gemma3", {{"sliding_window", 0}}, "sliding_window"},
      {"gemma3", {{"rope_parameters", {{"local", Json::object()}}}}, "rope_parameters.\"local\""},
      {"olmo3", {{"rope_parameters", {{"full_attention", 3}}}}, "full_attention"},
      {"smollm3", {{"no_rope_layers", {1}}}, "no_rope_layers"},
      {"smollm3", {{"no_rope_layers", {1, 2}}}, "no_rope_layers"},
      {"mistral", {{"sliding_window", -3}}, "sliding_window"},
      {"ministral3",
       {{"rope_parameters", {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}}}},
       "llama_4_scaling_beta"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.family);
    CAPTURE(test.part);
    CHECK_REFUSED(read(with(saved(test.family), test.change)), "ERR_MODEL_FORMAT", test.part);
  }
}
