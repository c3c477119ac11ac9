// What only gpt-oss has: its configuration, stacks of experts as transformers saves them, and experts in MXFP4.
// decoder_test.cc compares its model with transformers, attention_test.cc attention sinks with the formula.
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/model/adapter.h"
#include "core/model/elementwise.h"
#include "test/core/fixtures.h"
#include "test/core/model/config_changes.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("gpt-oss: the published configuration, transformers' defaults, and what is refused") {
  // The keys of gpt-oss-20b's config.json that the core reads.
  Json types = Json::array();
  for (int l = 0; l < 24; ++l) types.push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  const Json published = {
      {"architectures", {"GptOssForCausalLM"}},
      {"attention_bias", true},
      {"eos_token_id", 200002},
      {"head_dim", 64},
      {"hidden_act", "silu"},
      {"hidden_size", 2880},
      {"intermediate_size", 2880},
      {"layer_types", types},
      {"max_position_embeddings", 131072},
      {"model_type", "gpt_oss"},
      {"num_attention_heads", 64},
      {"num_experts_per_tok", 4},
      {"num_hidden_layers", 24},
      {"num_key_value_heads", 8},
      {"num_local_experts", 32},
      {"pad_token_id", 199999},
      {"quantization_config", {{"quant_method", "mxfp4"}, {"modules_to_not_convert", Json::array()}}},
      {"rms_norm_eps", 1e-5},
      {"rope_scaling",
       {{"beta_fast", 32.0},
        {"beta_slow", 1.0},
        {"factor", 32.0},
        {"original_max_position_embeddings", 4096},
        {"rope_type", "yarn"},
        {"truncate", false}}},
      {"rope_theta", 150000},
      {"router_aux_loss_coef", 0.9},
      {"sliding_window", 128},
      {"swiglu_limit", 7.0},
      {"tie_word_embeddings", false},
      {"vocab_size", 201088}};
  const ModelConfig config = read(published);
  CHECK((config.qkv_bias && config.output_bias && config.attention_sinks && !config.qk_norm));
  CHECK(config.experts == ExpertsShape{.count = 32,
                                       .per_token = 4,
                                       .intermediate = 2880,
                                       .normalised = true,
                                       .balance = 0.9,
                                       .limit = 7,
                                       .alpha = 1.702});
  CHECK(config.kind(0) == LayerKind{.feed_forward = FeedForward::experts, .window = 128});
  CHECK(config.kind(23) == LayerKind{.feed_forward = FeedForward::experts});
  CHECK(config.rope.theta == 150000);
  CHECK((config.rope.scaling == RopeScaling::yarn && !config.rope.truncate && config.rope.factor == 32));
  CHECK(ModelConfig::from_json(config.to_json("bfloat16")) == config);

  // Without the keys that transformers has defaults for, the larger model is left.
  const ModelConfig defaults = read({{"architectures", {"GptOssForCausalLM"}}});
  CHECK(defaults.layers == 36);
  CHECK(defaults.experts.count == 128);
  CHECK(defaults.rope == config.rope);
  CHECK(defaults.kind(0).window == 128);
  CHECK(defaults.kind(35).window == 0);

  const std::pair<Json, const char*> refused[] = {
      {{{"swiglu_limit", 0}}, "swiglu_limit"},
      {{{"swiglu_alpha", -1}}, "swiglu_alpha"},
      {{{"num_local_experts", 0}}, "num_local_experts"},
      {{{"num_experts_per_tok", 33}}, "num_experts_per_tok"},
      {{{"hidden_act", "gelu"}}, "hidden_act"},
      {{{"quantization_config", "mxfp4"}}, "quantization_config"},
      {{{"quantization_config", {{"quant_method", "fp8"}}}}, "quantization_config"}};
  for (const auto& [change, key] : refused) {
    CAPTURE(key);
    CHECK_REFUSED(read(with(published, change)), "ERR_MODEL_FORMAT", key);
  }
  CHECK_REFUSED(read(with(saved("llama"), {{"quantization_config", {{"quant_method", "mxfp4"}}}})),
                "ERR_MODEL_FORMAT", "quantization_config");
}

TEST_CASE("an export of gpt-oss has the stacks that transformers saves") {
  const Example example("gpt_oss", at::kFloat, "models");
  const Scratch scratch;
  export_huggingface(scratch / "out", example.model.config, example.model.weights, at::kFloat);
  check_exported_tensors("gpt_oss", scratch / "out");
}

TEST_CASE("experts in MXFP4 load as transformers expands them") {
  const auto expected = read_tensors(fixture("mxfp4/reference.safetensors"));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const LoadedModel model = load_model(fixture("mxfp4"), dtype, at::kCPU);
    size_t compared = 0;
    for (const auto& [name, view] : model.weights.named_views(model.config)) {
      const auto found = expected.find(name);
      if (found == expected.end()) continue;
      CAPTURE(name);
      CHECK(at::equal(view.to(at::kFloat), found->second));  // bfloat16 holds each of them
      ++compared;
    }
    CHECK(compared == 2);
    Decoder decoder(model.config);
    CHECK(decoder.forward(model.weights, at::tensor({3, 1, 4, 1, 5}, at::kLong), {5})
              .isnan()
              .any()
              .item<bool>() == false);
  }
}

TEST_CASE("MXFP4 of wrong shapes or types is refused") {
  const auto load_with = [](const auto& change) {
    const Scratch scratch;
    std::filesystem::copy_file(fixture("mxfp4/config.json"), scratch / "config.json");
    const SafetensorsFile file = open_safetensors(fixture("mxfp4/model.safetensors"));
    std::vector<TensorEntry> entries;
    for (TensorEntry entry : file.tensors)
      if (change(entry)) entries.push_back(entry);
    write_safetensors(scratch / "model.safetensors", entries, {});
    return load_model(scratch.path(), at::kFloat, at::kCPU);
  };
  const std::string blocks = "model.layers.0.mlp.experts.gate_up_proj_blocks",
                    scales = "model.layers.0.mlp.experts.gate_up_proj_scales";
  CHECK_REFUSED(load_with([&](const TensorEntry& entry) { return entry.name != scales; }), "ERR_MODEL_FORMAT",
                scales + "\" is missing");
  CHECK_REFUSED(load_with([&](const TensorEntry& entry) { return entry.name != blocks; }), "ERR_MODEL_FORMAT",
                "experts.gate_up_proj\" is missing");
  CHECK_REFUSED(load_with([&](TensorEntry& entry) {
                  if (entry.name == blocks) entry.shape = {3, 64, 4, 8};
                  return true;
                }),
                "ERR_MODEL_FORMAT", blocks + "\" has shape");
}

TEST_CASE("adapters of gpt-oss target attention only") {
  const ModelConfig config = Example("gpt_oss", at::kFloat, "models").model.config;
  const auto count = [&](const std::vector<std::string>& targets) {
    return make_adapters(config, {2, 4, targets, 0}, at::kCPU).named_views(config).size() / 2;
  };
  CHECK(count(projection_names()) == 2 * 4);
  CHECK_REFUSED(count({"gate_proj", "up_proj", "down_proj"}), "ERR_VALUE", "gate_proj");
  CHECK_REFUSED(count({"experts.down_proj"}), "ERR_VALUE", "experts.down_proj");
}

TEST_CASE("the clamped gate and its gradients equal autograd's") {
  at::manual_seed(3);
  const at::Tensor gate_up = (at::randn({9, 14}, at::kDouble) * 4).requires_grad_(),
                   grad = at::randn({9, 7}, at::kDouble);
  const at::Tensor gate = gate_up.slice(1, 0, 14, 2).clamp_max(3.0),
                   up = gate_up.slice(1, 1, 14, 2).clamp(-3.0, 3.0);
  const at::Tensor exact = (up + 1) * gate * at::sigmoid(gate * 1.702);
  const at::Tensor at_exact = torch::autograd::grad({exact}, {gate_up}, {grad})[0];
  const at::Tensor values = gate_up.detach();
  CHECK(largest_difference(clamped_gate(values, 3, 1.702), exact.detach()) < 1e-13);
  CHECK(largest_difference(clamped_gate_backward(grad, values, 3, 1.702), at_exact) < 1e-13);
}
