// Adapters against peft (test/fixtures/adapters, written by scripts/fixtures/adapters.py) and
// against the same model with merged matrices; the base must not change.
#include "core/model/adapter.h"

#include <ATen/record_function.h>
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/loss/logit_cap.h"
#include "core/model/linear.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

const std::string models[] = {"llama",     "llama-llama3-bias", "qwen2",   "qwen3-yarn", "gemma3",
                              "gemma4",    "gemma4-dense",      "olmo3",   "smollm3",    "ministral3",
                              "qwen3_moe", "qwen3_moe-step",    "mistral", "qwen3_5",    "qwen3_5_moe",
                              "gpt_oss",   "gemma4-moe"};

nlohmann::json read_json(const std::string& path) {
  const Bytes bytes = read_bytes(path);
  return nlohmann::json::parse(std::string(bytes.begin(), bytes.end()));
}

// In the model's order, as options require. peft names experts by their stacks.
std::vector<std::string> targets_of(const std::string& name, const nlohmann::json& peft) {
  if (name == "qwen3_moe")
    return {"q_proj",          "k_proj",           "v_proj", "o_proj", "experts.gate_proj",
            "experts.up_proj", "experts.down_proj"};
  if (name == "qwen3_moe-step") return {"o_proj", "gate_proj", "experts.up_proj"};
  if (name == "gemma4-moe") return {"q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  const auto named = peft.at("target_modules").get<std::set<std::string>>();
  std::vector<std::string> targets;
  for (const std::string& name : projection_names())
    if (named.contains(name)) targets.push_back(name);
  return targets;
}

// The name without the number of its expert: few tokens choose each.
std::string without_expert(const std::string& key) {
  const std::string before = ".experts.";
  const size_t begin = key.find(before);
  if (begin == std::string::npos) return key;
  return key.substr(0, begin + before.size()) + key.substr(key.find('.', begin + before.size()) + 1);
}

// One of peft's adapters on its model.
struct Adapted : Example {
  AdapterOptions options;
  Weights weights;

  Adapted(const std::string& name, at::ScalarType dtype) : Example(name, dtype, "adapters") {
    const nlohmann::json peft = read_json(fixture("adapters/" + name + "/adapter_config.json"));
    options = {peft.at("r").get<int64_t>(), peft.at("lora_alpha").get<double>(), targets_of(name, peft), 0};
    const Weights adapters = make_adapters(model.config, options, at::kCPU);
    const auto saved = read_tensors(fixture("adapters/" + name + "/" + adapter_file));
    size_t found = 0, of_stacks = 0;
    for (const auto& [key, view] : adapters.named_views(model.config)) {
      CAPTURE(key);
      const bool stacked = key.find(".experts.") != std::string::npos;
      const at::Tensor& matrix = stacked ? reference.at("matrix." + key) : saved.at(key);
      REQUIRE(view.sizes() == matrix.sizes());
      view.copy_(matrix);
      found += stacked ? 0 : 1;
    }
    for (const auto& [key, tensor] : saved) of_stacks += key.find(".experts.") != std::string::npos ? 1 : 0;
    REQUIRE(found + of_stacks == saved.size());
    weights = with_adapters(model.weights, adapters.copy_as(dtype, at::kCPU));
  }

  Weights no_gradients() const {
    Weights adapters;
    adapters.layers.resize(weights.layers.size());
    return with_adapters(adapters, weights.zeros_like(gradient_type(weights.embedding.scalar_type())));
  }
  Weights gradients(bool recompute = false) const {
    Weights sum = no_gradients();
    Decoder decoder(model.config);
    add_gradients(decoder, weights, *this, recompute, sum);
    return sum;
  }
  at::Tensor logits(const Weights& used) const {
    Decoder decoder(model.config);
    at::Tensor result = at::mm(decoder.forward(used, ids, lengths), used.head.t());
    cap_logits(result, model.config.logit_cap);
    return result;
  }
};

// Number of matrix products that `body` computes with torch.
int64_t products_asked = 0;
template <typename Body>
int64_t products(Body body) {
  const auto count = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
    const std::string name = call.name();
    products_asked += name == "aten::mm" || name == "aten::addmm_" ? 1 : 0;
    return nullptr;
  };
  products_asked = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count));
  body();
  at::removeCallback(handle);
  return products_asked;
}

}  // namespace

TEST_CASE("logits equal peft's") {
  for (const std::string& name : models) {
    CAPTURE(name);
    for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kDouble, 3e-6}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      const Adapted example(name, dtype);
      CHECK(largest_difference(example.logits(example.weights), example.reference.at("logits")) < allowed);
      CHECK(largest_difference(example.logits(example.model.weights), example.reference.at("logits")) > 0.1);
    }
  }
}

TEST_CASE("gradients at A and B equal float64 autograd's through peft, and there are no others") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Adapted example(name, at::kDouble);
    const Weights gradients = example.gradients();
    const NamedTensors views = gradients.named_views(example.model.config);
    for (const auto& [key, gradient] : views) {
      CAPTURE(key);
      const at::Tensor expected = example.reference.at("gradient." + key).to(at::kDouble);
      // Zero for an expert that no token chose.
      CHECK((gradient - expected).norm().item<double>() <= 1e-5 * expected.norm().item<double>());
    }
    size_t recorded = 0;
    for (const auto& [key, tensor] : example.reference) recorded += key.starts_with("gradient.") ? 1 : 0;
    CHECK(views.size() == recorded);
    CHECK_FALSE(gradients.embedding.defined());
    CHECK_FALSE(gradients.layers[0].attention.qkv.defined());
  }
}

TEST_CASE("float32 gradients at A and B are close to float64's, bfloat16 gradients roughly") {
  for (const std::string& name : models) {
    CAPTURE(name);
    for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 0.2}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      // Rounding changes which experts some tokens choose.
      const bool mixture = name.find("_moe") != std::string::npos;
      const double factor = mixture && dtype == at::kBFloat16 ? 2.5 : 1;
      const Adapted example(name, dtype);
      std::map<std::string, std::pair<double, double>> squares;  // of differences and gradients
      for (const auto& [key, gradient] : example.gradients().named_views(example.model.config)) {
        CHECK((gradient.scalar_type() == at::kFloat));
        const at::Tensor expected = example.reference.at("gradient." + key).to(at::kDouble);
        auto& [difference, all] = squares[without_expert(key)];
        difference += (gradient.to(at::kDouble) - expected).square().sum().item<double>();
        all += expected.square().sum().item<double>();
      }
      for (const auto& [key, sums] : squares) {
        CAPTURE(key);
        CHECK(std::sqrt(sums.first / sums.second) < factor * allowed);
      }
    }
  }
}

TEST_CASE("gradient checkpointing of an adapted layer changes no bit") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Adapted example("llama-llama3-bias", dtype);
    const std::vector<at::Tensor> kept = example.gradients().list(), again = example.gradients(true).list();
    for (size_t i = 0; i < kept.size(); ++i) CHECK(at::equal(kept[i], again[i]));
  }
}

TEST_CASE("a merged model equals the adapted one and shares unadapted matrices") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Adapted example(name, at::kDouble);
    const Weights merged = merge_adapters(example.weights);
    CHECK_FALSE(merged.adapted());
    CHECK(largest_difference(example.logits(merged), example.logits(example.weights)) < 1e-11);
    CHECK(merged.embedding.is_same(example.weights.embedding));
    const bool down = example.weights.layers[0].feed_forward.down_adapter.a.defined();
    CHECK(merged.layers[0].feed_forward.down.is_same(example.weights.layers[0].feed_forward.down) == !down);
    const ExpertsWeights &before = example.weights.layers.back().experts,
                         &after = merged.layers.back().experts;
    CHECK(after.gate_up.is_same(before.gate_up) == !before.gate_up_adapter.a.defined());
    CHECK(after.down.is_same(before.down) == !before.down_adapter.a.defined());
    CHECK(after.router.is_same(before.router));
  }
}

TEST_CASE("cached inference with adapters equals a full forward") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Adapted example(name, at::kDouble);
    Decoder decoder(example.model.config);
    const int64_t n = example.lengths[0];
    const at::Tensor ids = example.ids.narrow(0, 0, n), expected = decoder.forward(example.weights, ids, {n});
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{n}, {5, n - 5}, std::vector<int64_t>(n, 1)}) {
      KvStore store(example.model.config, at::kDouble);
      store.reserve(32, 32);
      store.states().reserve(1, 1);
      store.states().zero(0);
      const BlockTable blocks{7, 2};
      std::vector<at::Tensor> rows;
      int64_t start = 0;
      for (const int64_t chunk : chunks) {
        const KvSlice slice{&blocks, start, chunk, 0};
        rows.push_back(decoder.infer(example.weights, ids.narrow(0, start, chunk), store, {slice}));
        start += chunk;
      }
      CHECK(largest_difference(at::cat(rows), expected) < 1e-12);
    }
  }
}

TEST_CASE("adapted products in bfloat16: few rows and many, with and without a float32 sum") {
  at::manual_seed(4);
  const auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };
  const auto exact = [](const at::Tensor& x) { return x.to(at::kDouble); };
  for (const int64_t rank : {1, 3, 16}) {
    const at::Tensor weight = random({90, 70});
    const Adapter adapter{
        {{"q_proj", 0, 0, 40}, {"v_proj", 60, 40, 30}}, random({2 * rank, 70}), random({70, rank}), 0.5};
    at::Tensor merged = exact(weight);
    for (size_t i = 0; i < 2; ++i)
      merged.narrow(0, adapter.parts[i].row, adapter.parts[i].rows)
          .addmm_(exact(adapter.part_b(i)), exact(adapter.part_a(i)), 1, 0.5);
    for (const int64_t rows : {1, 7, 64, 65, 200}) {
      CAPTURE(rank);
      CAPTURE(rows);
      const at::Tensor x = random({rows, 70}), expected = at::mm(exact(x), merged.t());
      const auto relative = [&](const at::Tensor& y) {
        return (exact(y) - expected).norm().item<double>() / expected.norm().item<double>();
      };
      const at::Tensor y = linear_forward(x, weight, {}, adapter);
      CHECK((y.scalar_type() == at::kBFloat16));
      CHECK(relative(y) < 0.006);
      at::Tensor sum = at::zeros({rows, 90});
      add_linear(x, weight, {}, sum, adapter);
      CHECK(relative(sum) < 0.006);
    }
  }
}

// The meta device computes nothing, but checks types as a GPU does, for which a mixed product failed.
TEST_CASE("a device without the CPU's kernels adds an adapter to a float32 sum of bfloat16 products") {
  const auto empty = [](at::IntArrayRef shape) {
    return at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  };
  const Adapter adapter{{{"q_proj", 0, 0, 40}, {"v_proj", 60, 40, 30}}, empty({6, 70}), empty({70, 3}), 0.5};
  const at::Tensor sum = at::empty({5, 90}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  const PackedMatrix matrix(empty({90, 70}));
  CHECK_NOTHROW(matrix.add(empty({5, 70}), {}, sum, adapter));
  CHECK((matrix.forward(empty({5, 70}), {}, adapter).scalar_type() == at::kBFloat16));
}

TEST_CASE("a frozen matrix's gradient is not computed") {
  const Adapted example("llama-llama3-bias", at::kDouble);
  Decoder decoder(example.model.config);
  const auto backward = [&](const Weights& weights, Weights gradients) {
    std::shared_ptr<Decoder::Tape> tape;
    const at::Tensor hidden = decoder.forward(weights, example.ids, example.lengths, false, tape);
    return products([&] { decoder.backward(weights, tape, at::ones_like(hidden), gradients); });
  };
  const Weights& base = example.model.weights;
  const int64_t full = backward(base, base.zeros_like(at::kDouble));
  CHECK(full >= example.model.config.layers * 8);
  // Of each of four matrices: A x again, the gradients at A and x; of each of seven projections,
  // those at B and A x.
  const int64_t adapters = 4 * 3 + 7 * 2, frozen = 4;
  CHECK(backward(example.weights, example.no_gradients()) ==
        full + example.model.config.layers * (adapters - frozen));
}

TEST_CASE("new adapters do not change the model and are initialized like peft's") {
  const Example example("llama-llama3-bias", at::kFloat, "models");
  const ModelConfig& config = example.model.config;
  AdapterOptions options{4, 8, projection_names(), 7};
  const Weights adapters = make_adapters(config, options, at::kCPU);
  Decoder decoder(config);
  CHECK(at::equal(
      decoder.forward(example.model.weights, example.ids, example.lengths),
      decoder.forward(with_adapters(example.model.weights, adapters), example.ids, example.lengths)));

  std::map<std::string, at::Tensor> views;
  for (const auto& [key, view] : adapters.named_views(config)) {
    CAPTURE(key);
    views[key] = view;
    if (key.find("lora_B") != std::string::npos) {
      CHECK(view.eq(0).all().item<bool>());
      continue;
    }
    // Kaiming's uniform distribution with a slope of √5: variance 1 / (3 in), nothing beyond 1 /
    // √in.
    const auto in = static_cast<double>(view.size(1));
    CHECK(view.abs().max().item<double>() <= 1 / std::sqrt(in));
    CHECK(view.square().mean().item<double>() == doctest::Approx(1 / (3 * in)).epsilon(0.25));
  }
  CHECK(views.size() == static_cast<size_t>(config.layers) * 14);

  const auto all_equal = [&](const AdapterOptions& other) {
    for (const auto& [key, view] : make_adapters(config, other, at::kCPU).named_views(config))
      if (!at::equal(view, views.at(key))) return false;
    return true;
  };
  options.targets = {"k_proj", "up_proj"};
  CHECK(all_equal(options));
  options.seed = 8;
  CHECK_FALSE(all_equal(options));
}

TEST_CASE("an exported adapter equals peft's") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Adapted example(name, at::kFloat);
    const Scratch scratch;
    export_adapter(scratch.path(), example.model.config, example.options, example.weights, name);
    const auto ours = read_tensors(scratch / adapter_file),
               theirs = read_tensors(fixture("adapters/" + name + "/" + adapter_file));
    const bool by_expert = name == "qwen3_moe";  // as peft read them before it had stacks
    if (!by_expert) REQUIRE(ours.size() == theirs.size());
    for (const auto& [key, tensor] : theirs) {
      CAPTURE(key);
      if (!by_expert || key.find(".experts.") == std::string::npos) CHECK(at::equal(ours.at(key), tensor));
    }
    size_t matrices = 0;
    for (const auto& [key, tensor] : ours) {
      if (!by_expert || key.find(".experts.") == std::string::npos) continue;
      CAPTURE(key);
      CHECK(at::equal(tensor, example.reference.at("matrix." + key)));
      ++matrices;
    }
    CHECK(matrices == (by_expert ? 2 * 6 * 3 * 2 : 0));  // two layers, six experts
    const nlohmann::json written = read_json(scratch / "adapter_config.json");
    nlohmann::json expected = read_json(fixture("adapters/" + name + "/adapter_config.json"));
    expected["target_modules"] = targets_of(name, expected);
    if (by_expert)
      expected["target_modules"] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                    "gate_proj", "up_proj", "down_proj"};
    if (name == "qwen3_moe-step") {
      expected["target_modules"] = {"o_proj"};
      expected["target_parameters"] = {"mlp.gate_proj.weight", "mlp.experts.gate_up_proj"};
    }
    if (name == "gemma4-moe") expected["target_modules"] = {"q_proj", "k_proj", "o_proj"};
    if (name == "qwen3_5_moe")
      expected["target_modules"] = {"q_proj",
                                    "k_proj",
                                    "v_proj",
                                    "o_proj",
                                    "mlp.shared_expert.gate_proj",
                                    "mlp.shared_expert.up_proj",
                                    "mlp.shared_expert.down_proj",
                                    "in_proj_qkv",
                                    "out_proj"};
    for (const auto& [key, value] : written.items()) {
      CAPTURE(key);
      CHECK((value == expected.at(key)));
    }
    CHECK(written.contains("target_parameters") ==
          (name == "qwen3_moe-step" || name == "qwen3_5_moe" || name == "gemma4-moe"));
    CHECK(written.contains("rank_pattern") == written.contains("target_parameters"));
  }
}

TEST_CASE("options out of range are rejected, and so is an adapter where a model is expected") {
  const auto refused = [](AdapterOptions options, const std::string& part) {
    CHECK_REFUSED(check_adapter(options), "ERR_VALUE", part);
  };
  refused({0, 1, {"q_proj"}, 0}, "rank");
  refused({1, 0, {"q_proj"}, 0}, "alpha");
  refused({1, std::nan(""), {"q_proj"}, 0}, "alpha");
  refused({1, 1, {}, 0}, "target");
  refused({1, 1, {"lm_head"}, 0}, "lm_head");
  refused({1, 1, {"experts.q_proj"}, 0}, "experts.q_proj");
  refused({1, 1, {"q_proj", "q_proj"}, 0}, "twice");
  CHECK_REFUSED(load_model(fixture("adapters/qwen2"), at::kFloat, at::kCPU), "ERR_MODEL_FORMAT",
                "export the merged model");
}
