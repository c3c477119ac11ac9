// Qwen 3.5 against transformers (test/fixtures/models/qwen3_5 and qwen3_5_moe, written by
// scripts/fixtures/qwen3_5.py): gated delta nets, gated attention, a part of each head rotated,
// norms of 1 + weight, and experts with a shared one.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/cpu/delta_kernels.h"
#include "core/model/adapter.h"
#include "core/model/decoder.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

const std::string models[] = {"qwen3_5", "qwen3_5_moe"};

struct Case : Example {
  Case(const std::string& name, at::ScalarType dtype) : Example(name, dtype, "models") {}
};

Weights gradients_of(Decoder& decoder, const Case& example, bool recompute) {
  const Weights& weights = example.model.weights;
  Weights gradients = weights.zeros_like(gradient_type(weights.embedding.scalar_type()));
  add_gradients(decoder, weights, example, recompute, gradients);
  return gradients;
}

}  // namespace

TEST_CASE("Qwen 3.5: rotary tables, logits and gradients equal transformers'") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Case reference(name, at::kFloat);
    const ModelConfig& config = reference.model.config;
    CHECK(config.rope.dimensions == config.head_dim / 2);
    const at::Tensor positions = reference.reference.at("positions");
    const Rope rope = Rope::make(config, positions.max().item<int64_t>() + 1, at::kCPU);
    const at::Tensor allowed_angle = positions.to(at::kDouble).unsqueeze(1) * 1.2e-7 + 1e-6;
    for (const auto& [key, table] : {std::pair{"cos", rope.cos}, std::pair{"sin", rope.sin}}) {
      const at::Tensor off = (table.index_select(0, positions) - reference.reference.at(key)).abs();
      CHECK((off.to(at::kDouble) / allowed_angle).max().item<double>() <= 1.0);
    }
    for (const auto& [dtype, allowed, relative] :
         {std::tuple{at::kDouble, 2e-6, 1e-5}, std::tuple{at::kFloat, 1e-4, 1e-4}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      const Case example(name, dtype);
      Decoder decoder(config);
      const at::Tensor hidden = decoder.forward(example.model.weights, example.ids, example.lengths);
      CHECK(largest_difference(at::mm(hidden, example.model.weights.head.t()),
                               example.reference.at("logits")) < allowed);
      const Weights gradients = gradients_of(decoder, example, false);
      size_t compared = 0;
      for (const auto& [key, gradient] : gradients.named_views(config)) {
        CAPTURE(key);
        const at::Tensor expected = example.reference.at("gradient." + key).to(at::kDouble);
        CHECK((gradient - expected).norm().item<double>() / expected.norm().item<double>() < relative);
        ++compared;
      }
      size_t recorded = 0;
      for (const auto& [key, tensor] : example.reference) recorded += key.starts_with("gradient.") ? 1 : 0;
      CHECK(compared == recorded);
    }
  }
}

TEST_CASE("Qwen 3.5: bfloat16 gradients are close, and checkpointing changes no bit") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const double allowed = name == "qwen3_5_moe" ? 0.4 : 0.2;  // rounding changes some choices of experts
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Case example(name, dtype);
      Decoder decoder(example.model.config);
      const Weights gradients = gradients_of(decoder, example, false);
      const auto kept = gradients.list(), again = gradients_of(decoder, example, true).list();
      for (size_t i = 0; i < kept.size(); ++i) CHECK(at::equal(kept[i], again[i]));
      for (const auto& [key, gradient] : gradients.named_views(example.model.config)) {
        CAPTURE(key);
        CHECK(relative_difference(gradient, example.reference.at("gradient." + key)) < allowed);
      }
    }
  }
}

TEST_CASE("Qwen 3.5: inference in chunks equals a forward pass") {
  for (const std::string& name : models) {
    CAPTURE(name);
    for (const auto& [dtype, allowed] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-4}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      const Case example(name, dtype);
      Decoder decoder(example.model.config);
      const Weights& weights = example.model.weights;
      const int64_t n = example.lengths[0];
      const at::Tensor expected = decoder.forward(weights, example.ids, example.lengths).narrow(0, 0, n);
      at::Tensor whole;
      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>{n}, {7, n - 7}, {1, 5, 1, n - 7}, std::vector<int64_t>(n, 1)}) {
        CachedTexts texts(example.model.config, dtype);
        std::vector<at::Tensor> rows;
        int64_t start = 0;
        for (const int64_t chunk : chunks) {
          rows.push_back(texts.infer(decoder, weights, example.ids.narrow(0, start, chunk), {{0, chunk}}));
          start += chunk;
        }
        const at::Tensor got = at::cat(rows);
        CHECK(largest_difference(got, expected) < allowed);
        if (!whole.defined()) whole = got;
        if (dtype == at::kFloat) CHECK(at::equal(got, whole));  // any chunking, the same bits
      }
    }
  }
}

TEST_CASE("Qwen 3.5: a text has the same bits alone and in a batch") {
  for (const std::string& name : models) {
    CAPTURE(name);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Case example(name, dtype);
      Decoder decoder(example.model.config);
      const Weights& weights = example.model.weights;
      const at::Tensor ids = example.ids.narrow(0, 0, 40);
      CachedTexts alone(example.model.config, dtype), company(example.model.config, dtype);
      const at::Tensor expected = alone.infer(decoder, weights, ids, {{1, 40}});
      const at::Tensor first = company.infer(
          decoder, weights, at::cat({ids.narrow(0, 5, 9), ids.narrow(0, 0, 13)}), {{0, 9}, {1, 13}});
      const at::Tensor second =
          company.infer(decoder, weights, at::cat({ids.narrow(0, 13, 27), ids.narrow(0, 2, 1), ids}),
                        {{1, 27}, {0, 1}, {3, 40}});
      CHECK(at::equal(first.narrow(0, 9, 13), expected.narrow(0, 0, 13)));
      CHECK(at::equal(second.narrow(0, 0, 27), expected.narrow(0, 13, 27)));
      CHECK(at::equal(second.narrow(0, 28, 40), expected));
    }
  }
}

TEST_CASE("Qwen 3.5: the text part of a vision-language model is the text model") {
  const Case example("qwen3_5", at::kFloat);
  const LoadedModel wrapped = load_model(fixture("models/qwen3_5-wrapped"), at::kFloat, at::kCPU);
  CHECK(wrapped.config == example.model.config);
  const auto expected = example.model.weights.list(), got = wrapped.weights.list();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(at::equal(got[i], expected[i]));
}

TEST_CASE("Qwen 3.5: an export is read back") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Case example(name, at::kFloat);
    const Scratch scratch;
    export_huggingface(scratch / "out", example.model.config, example.model.weights, at::kFloat);
    const LoadedModel again = load_model(scratch / "out", at::kFloat, at::kCPU);
    CHECK(again.config == example.model.config);
    const auto expected = example.model.weights.list(), got = again.weights.list();
    for (size_t i = 0; i < got.size(); ++i) CHECK(at::equal(got[i], expected[i]));
  }
}

TEST_CASE("Qwen 3.5: bad configurations are refused") {
  const auto json_of = [](const char* name) {
    return Case(name, at::kFloat).model.config.to_json("float32");
  };
  const std::string dense = json_of("qwen3_5"), mixture = json_of("qwen3_5_moe");
  const auto changed_json = [](std::string changed, const std::string& from, const std::string& to) {
    const size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return ModelConfig::from_json(changed.replace(at, from.size(), to));
  };
  const auto with = [&](const char* from, const char* to) { return changed_json(dense, from, to); };
  CHECK_REFUSED(with("\"linear_attention\"", "\"sliding_attention\""), "ERR_MODEL_FORMAT", "layer_types");
  CHECK_REFUSED(with("\"full_attention\"", "\"linear_attention\""), "ERR_MODEL_FORMAT", "full_attention");
  CHECK_REFUSED(with("\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 5"), "ERR_MODEL_FORMAT",
                "key heads");
  const auto mixed = [&](const char* from, const char* to) { return changed_json(mixture, from, to); };
  CHECK_REFUSED(mixed("\"shared_expert_intermediate_size\": 20", "\"shared_expert_intermediate_size\": 0"),
                "ERR_MODEL_FORMAT", "shared_expert_intermediate_size");
  CHECK_REFUSED(mixed("\"num_experts\": 6", "\"num_experts\": 0"), "ERR_MODEL_FORMAT", "num_experts");
  CHECK_REFUSED(mixed("\"num_experts\": 6", "\"num_experts\": 1"), "ERR_MODEL_FORMAT", "num_experts_per_tok");
  CHECK_REFUSED(mixed("\"num_experts\": 6", "\"num_experts\": 6, \"mlp_only_layers\": [1]"),
                "ERR_MODEL_FORMAT", "mlp_only_layers");
}

TEST_CASE("Qwen 3.5: what a mixture's config.json omits is as in transformers") {
  const ModelConfig config = ModelConfig::from_json(R"({
    "architectures": ["Qwen3_5MoeForCausalLM"], "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64})");
  CHECK(config.experts == ExpertsShape{256, 8, 512, true, 0.001, 512});
  CHECK(config.head_dim == 256);
  CHECK(config.rope.dimensions == 64);
  for (int64_t l = 0; l < 4; ++l) {
    CHECK(config.kind(l).feed_forward == FeedForward::experts);
    CHECK(config.kind(l).mixer == (l == 3 ? Mixer::attention : Mixer::delta));
  }
  CHECK(ModelConfig::from_json(config.to_json("float32")) == config);
}

TEST_CASE("Qwen 3.5: int8 generation is close to the plain one's") {
  const Case example("qwen3_5_moe", at::kFloat);
  const ModelConfig& config = example.model.config;
  Decoder plain(config), rounded(config, true);
  CachedTexts a(config, at::kFloat), b(config, at::kFloat);
  const at::Tensor ids = example.ids.narrow(0, 0, 9);
  const at::Tensor exact = a.infer(plain, example.model.weights, ids, {{0, 9}});
  const at::Tensor near = b.infer(rounded, example.model.weights, ids, {{0, 9}});
  CHECK(!at::equal(exact, near));
  CHECK(relative_difference(near, exact) < 0.1);
}

TEST_CASE("Qwen 3.5: stacks of experts, as its published files have them, load as single matrices do") {
  const Case example("qwen3_5_moe", at::kFloat);
  const Scratch scratch;
  std::filesystem::copy_file(fixture("models/qwen3_5_moe/config.json"), scratch / "config.json");
  NamedTensors tensors;
  for (const auto& [name, view] : example.model.weights.named_views(example.model.config))
    if (name.find(".experts.") == std::string::npos) tensors.emplace_back(name, view);
  for (size_t l = 0; l < example.model.weights.layers.size(); ++l) {
    const ExpertsWeights& experts = example.model.weights.layers[l].experts;
    const std::string prefix = "model.layers." + std::to_string(l) + ".mlp.experts.";
    tensors.emplace_back(prefix + "gate_up_proj", experts.gate_up);
    tensors.emplace_back(prefix + "down_proj", experts.down);
  }
  write_tensors(scratch / "model.safetensors", tensors);
  const auto expected = example.model.weights.list();
  const auto got = load_model(scratch.path(), at::kFloat, at::kCPU).weights.list();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(at::equal(got[i], expected[i]));
}

TEST_CASE("the sigmoid gate of every instruction set equals float64") {
  at::manual_seed(1);
  for (const delta_kernels::Kernels* kernels : delta_kernels::all_kernels())
    for (const int64_t n : {1, 7, 16, 97}) {
      const at::Tensor x = at::randn({3, n}), gate = at::randn({3, 2 * n}).mul_(9), y = at::empty({3, n});
      kernels->gate(x.const_data_ptr<float>(), gate.const_data_ptr<float>(), 2 * n, 3, n,
                    y.data_ptr<float>());
      const at::Tensor expected = x.to(at::kDouble) * at::sigmoid(gate.narrow(1, 0, n).to(at::kDouble));
      CHECK(relative_difference(y, expected) < 1e-6);
    }
}
