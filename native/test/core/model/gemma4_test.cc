// What only Gemma 4 has: layers that borrow keys, values from the keys' projection, heads of two widths,
// inputs of each layer, capped logits. decoder_test.cc compares its models with transformers.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/loss/logit_cap.h"
#include "core/loss/row_kernels.h"
#include "test/core/fixtures.h"
#include "test/core/model/config_changes.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

TEST_CASE("capped logits and their slopes equal float64 in every instruction set") {
  std::vector<double> points{0, 1e-30, 1e30, -1e30, 299, 301, 1e-4, -1e-3, 0.01, INFINITY, -INFINITY};
  for (double x = -120; x < 120; x += 0.37) points.push_back(x);
  const at::Tensor exact = at::tensor(points, at::kDouble).unsqueeze(0), logits = exact.to(at::kFloat);
  const at::Tensor slopes = at::empty_like(exact);
  for (const double cap : {3.0, 30.0}) {
    const at::Tensor expected = exact.clone();
    cap_logits(expected, cap, slopes);
    for (const row_kernels::Kernels* kernels : row_kernels::all_kernels()) {
      const at::Tensor found = logits.clone(), found_slopes = at::empty_like(logits);
      kernels->cap(found.data_ptr<float>(), found.size(1), static_cast<float>(cap),
                   found_slopes.data_ptr<float>());
      const at::Tensor size = expected.abs().clamp_min(1e-30);
      CHECK(((found.to(at::kDouble) - expected).abs() / size).max().item<double>() < 1e-6);
      CHECK(largest_difference(found_slopes, slopes) < 1e-6);
      // A logit by itself has the same bits.
      for (const int64_t i : {int64_t{3}, found.size(1) - 1}) {
        const at::Tensor one = logits.narrow(1, i, 1).clone();
        kernels->cap(one.data_ptr<float>(), 1, static_cast<float>(cap), nullptr);
        CHECK(at::equal(one, found.narrow(1, i, 1)));
      }
    }
  }
  at::Tensor broken = at::full({1, 3}, NAN);
  cap_logits(broken, 30.0);
  CHECK(broken.isnan().all().item<bool>());
}

TEST_CASE("Gemma 4's layers differ in their heads, keys and MLPs") {
  const ModelConfig small = read(saved("gemma4"));
  const LayerKind sliding{.rotary = Rotary::local, .window = 11};
  LayerKind lends = sliding, borrows = sliding;
  lends.keys = Keys::lent, lends.keys_of = 0;
  borrows.keys = Keys::borrowed, borrows.keys_of = 0, borrows.intermediate = 80;
  CHECK(small.kind(0) == lends);
  CHECK(small.kind(1) == LayerKind{.head_dim = 20, .keys = Keys::lent, .keys_of = 1});
  CHECK(small.kind(2) == borrows);
  CHECK(small.kind(3) == borrows);
  CHECK(small.kind(4) == LayerKind{.head_dim = 20, .intermediate = 80, .keys = Keys::borrowed, .keys_of = 1});
  CHECK(small.logit_cap == 3);
  CHECK(small.layer_input_size == 16);
  CHECK(small.layer_input_vocab == 101);
  CHECK(small.rope.scaling == RopeScaling::proportional);
  CHECK(small.rope.proportion == 0.25);
  CHECK(small.rope.dimensions == 20);

  const ModelConfig large = read(saved("gemma4-dense"));
  CHECK(large.kind(0) == sliding);
  CHECK(large.kind(2) == LayerKind{.head_dim = 24, .kv_heads = 1, .values_from_keys = true});
  CHECK((large.qkv_bias && large.output_bias && large.layer_input_size == 0));
}

TEST_CASE("both forms of the heads of full attention are read") {
  for (const char* name : {"gemma4", "gemma4-dense"}) {
    CAPTURE(name);
    // transformers saves per_layer_config; the export has the keys of published files.
    const Json by_layer = saved(name);
    REQUIRE(by_layer.contains("per_layer_config"));
    const ModelConfig config = read(by_layer);
    const Json by_key = Json::parse(config.to_json("float32"));
    CHECK(by_key.contains("global_head_dim"));
    CHECK_FALSE(by_key.contains("per_layer_config"));
    CHECK(read(by_key) == config);
  }
  // The defaults are those of transformers.
  Json silent = {{"model_type", "gemma4_text"}, {"num_hidden_layers", 7}};
  const ModelConfig config = read(silent);
  CHECK(config.kind(5) == LayerKind{.head_dim = 512});
  CHECK(config.kind(6) == LayerKind{.head_dim = 512});  // the last layer always has full attention
  CHECK(config.kind(4) == LayerKind{.rotary = Rotary::local, .window = 512});
  CHECK(config.layer_input_size == 256);
  CHECK(config.tied_embeddings);
  CHECK(config.local_rope->theta == 1e4);
  CHECK(config.logit_cap == 0);
}

TEST_CASE("settings of Gemma 4 that are not supported are rejected by name") {
  const struct {
    Json change;
    std::string part;
  } cases[] = {
      {{{"enable_moe_block", true}}, "num_experts"},
      {{{"enable_moe_block", true}, {"num_experts", 4}}, "top_k_experts"},
      {{{"enable_moe_block", true}, {"num_experts", 4}, {"top_k_experts", 5}}, "top_k_experts"},
      {{{"enable_moe_block", true}, {"num_experts", 4}, {"top_k_experts", 2}}, "moe_intermediate_size"},
      {{{"use_bidirectional_attention", "all"}}, "use_bidirectional_attention"},
      {{{"final_logit_softcapping", 0}}, "final_logit_softcapping"},
      {{{"num_kv_shared_layers", 5}}, "num_kv_shared_layers"},
      {{{"num_kv_shared_layers", 4}}, "num_kv_shared_layers"},  // no full attention before
      {{{"vocab_size_per_layer_input", 96}}, "vocab_size_per_layer_input"},
      {{{"per_layer_config", {{"1", {{"head_dim", 20}}}}}}, "per_layer_config"},  // layer 4 differs
      {{{"per_layer_config", {{"1", {{"hidden_size", 20}}}}}}, "hidden_size"},
      {{{"per_layer_config", {{"x", Json::object()}}}}, "per_layer_config"},
      {{{"per_layer_config", {{"99", Json::object()}}}}, "per_layer_config"},
      {{{"per_layer_config", {{"1", {{"num_key_value_heads", 1}}}, {"4", {{"num_key_value_heads", 1}}}}}},
       "attention_k_eq_v"},
      {{{"per_layer_config", nullptr}, {"global_head_dim", 21}}, "21"},
      {{{"hidden_activation", "silu"}}, "hidden_activation"},
      {{{"rope_parameters",
         {{"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}}}}}},
       "partial_rotary_factor"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.part);
    CHECK_REFUSED(read(with(saved("gemma4"), test.change)), "ERR_MODEL_FORMAT", test.part);
  }
  CHECK(read(with(saved("gemma4"), {{"use_bidirectional_attention", "vision"}})) == read(saved("gemma4")));
}

TEST_CASE("the mixture of Gemma 4 has experts beside the MLP of every layer, saved as stacks") {
  const Example example("gemma4-moe", at::kFloat, "models");
  const ModelConfig& config = example.model.config;
  CHECK(config.experts ==
        ExpertsShape{
            .count = 5, .per_token = 2, .intermediate = 16, .normalised = true, .scaled_router = true});
  CHECK(config.kind(0) ==
        LayerKind{.feed_forward = FeedForward::beside, .rotary = Rotary::local, .window = 11});
  CHECK(config.kind(1) ==
        LayerKind{
            .feed_forward = FeedForward::beside, .head_dim = 24, .kv_heads = 1, .values_from_keys = true});
  const Scratch scratch;
  export_huggingface(scratch / "out", config, example.model.weights, at::kFloat);
  check_exported_tensors("gemma4-moe", scratch / "out");

  // Nested as in the published files of text and images.
  const SafetensorsFile file = open_safetensors(fixture("models/gemma4-moe/model.safetensors"));
  std::vector<TensorEntry> tensors = file.tensors;
  for (TensorEntry& tensor : tensors) tensor.name = "model.language_model." + tensor.name.substr(6);
  write_safetensors(scratch / "model.safetensors", tensors, {});
  Json text = saved("gemma4-moe");
  text.erase("architectures");
  write_text(scratch / "config.json", Json({{"architectures", {"Gemma4ForConditionalGeneration"}},
                                            {"model_type", "gemma4"},
                                            {"text_config", text}})
                                          .dump());
  const LoadedModel nested = load_model(scratch.path(), at::kFloat, at::kCPU);
  CHECK(nested.config == config);
  const auto expected = example.model.weights.list(), found = nested.weights.list();
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(at::equal(found[i], expected[i]));
}

TEST_CASE("projections that borrowed keys make useless are skipped, as are the towers") {
  const std::string folder = fixture("models/gemma4");
  const LoadedModel plain = load_model(folder, at::kFloat, at::kCPU);
  const SafetensorsFile file = open_safetensors(folder + "/model.safetensors");
  Json text = saved("gemma4");
  text.erase("architectures");
  const Json config = {{"architectures", {"Gemma4ForConditionalGeneration"}},
                       {"model_type", "gemma4"},
                       {"text_config", text},
                       {"vision_config", Json::object()},
                       {"audio_config", nullptr}};
  const uint8_t bytes[16] = {};
  Scratch scratch;
  std::vector<TensorEntry> tensors = file.tensors;
  for (TensorEntry& tensor : tensors) tensor.name = "model.language_model." + tensor.name.substr(6);
  for (const char* name :
       {"vision_tower.patch_embedder.weight", "embed_vision.projection.weight",
        "audio_tower.subsample.weight", "language_model.layers.4.self_attn.k_proj.weight",
        "language_model.layers.4.self_attn.v_proj.weight", "language_model.layers.4.self_attn.k_norm.weight"})
    tensors.push_back({std::string("model.") + name, StoredType::f32, {4}, bytes, 16});
  write_safetensors(scratch / "model.safetensors", tensors, {});
  write_text(scratch / "config.json", config.dump());
  const LoadedModel nested = load_model(scratch.path(), at::kFloat, at::kCPU);
  CHECK(nested.skipped == 3);
  CHECK(nested.config == plain.config);
  const auto expected = plain.weights.list(), found = nested.weights.list();
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(at::equal(found[i], expected[i]));
}

TEST_CASE("borrowed keys take no room in a block") {
  const ModelConfig config = read(saved("gemma4"));
  // Two heads of 12 and two of 20, keys and values.
  CHECK(KvStore::block_bytes(config, at::kFloat) == (2 * 12 + 2 * 20) * 2 * kBlockTokens * 4);
  KvStore store(config, at::kDouble);
  store.reserve(3, 3);
  CHECK(store.plain_keys(0).sizes() == at::IntArrayRef({3, 2, kBlockTokens, 12}));
  CHECK(store.plain_values(4).sizes() == at::IntArrayRef({3, 2, kBlockTokens, 20}));
  CHECK(store.plain_keys(2).is_alias_of(store.plain_keys(0)));
  store.plain_keys(0).fill_(1);
  store.plain_values(1).fill_(2);
  CHECK(store.plain_keys(3).eq(1).all().item<bool>());
  CHECK(store.plain_values(4).eq(2).all().item<bool>());
}

TEST_CASE("logits for sampling are capped, each token's to the same bits in every batch") {
  const Example example("gemma4", at::kFloat, "models");
  const ModelConfig& config = example.model.config;
  Decoder decoder(config);
  const at::Tensor hidden = at::randn({9, config.hidden_size}) * 4;
  const at::Tensor all = decoder.infer_logits(example.model.weights, hidden);
  CHECK(all.abs().max().item<float>() <= 3);
  CHECK(all.abs().max().item<float>() > 2.9f);
  for (int64_t row = 0; row < 9; ++row)
    CHECK(at::equal(decoder.infer_logits(example.model.weights, hidden.narrow(0, row, 1))[0], all[row]));
  const at::Tensor plain = logits(hidden, example.model.weights.head);
  CHECK(largest_difference(all, 3 * at::tanh(plain / 3)) < 1e-5);
  CHECK(at::allclose(logits(hidden, example.model.weights.head, 3), all, 1e-5, 1e-6));
}

TEST_CASE("the numbers that multiply layers get no gradient") {
  const Example example("gemma4", at::kFloat, "models");
  Decoder decoder(example.model.config);
  Weights gradients = example.model.weights.zeros_like(at::kFloat);
  add_gradients(decoder, example.model.weights, example, false, gradients);
  for (const LayerWeights& layer : gradients.layers) {
    CHECK(layer.scalar.item<float>() == 0);
    CHECK(layer.inputs.gate.abs().max().item<float>() > 0);
  }
}
