// Mixtures of experts: routing, grouping and sums against plain loops, the load-balance loss
// against transformers, and what loading accepts. The decoder's cases (decoder_test.cc) cover
// logits, gradients and inference.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/model/decoder.h"
#include "core/model/experts_part.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;
using Json = nlohmann::json;

TEST_CASE("a router takes the most probable experts, and of equal ones those of lower index") {
  const at::Tensor logits =
      at::tensor({1.0f, 3.0f, 3.0f, 0.0f, 2.0f, 3.0f, -1e30f, 0.5f, 0.5f, 0.5f}).view({2, 5});
  const ExpertsShape shape{5, 2, 4, true, 0};
  const Routing routing = route(logits, shape);
  CHECK(at::equal(routing.chosen, at::tensor({1, 2, 0, 2}, at::kLong).view({2, 2})));
  CHECK(largest_difference(routing.probabilities, at::softmax(logits.to(at::kDouble), -1)) < 1e-7);
  CHECK(largest_difference(routing.weights.sum(-1), at::ones({2})) < 1e-6);
  CHECK(routing.weights[0][0].item<float>() == 0.5f);
  const Routing plain = route(logits, {5, 2, 4, false, 0});
  CHECK(at::equal(plain.weights, plain.probabilities.gather(1, plain.chosen)));
}

TEST_CASE("a router's gradient equals central differences, normalised or not, with and without balance") {
  at::manual_seed(1);
  for (const bool normalised : {false, true})
    for (const bool balanced : {false, true}) {
      CAPTURE(normalised);
      CAPTURE(balanced);
      const ExpertsShape shape{7, 3, 4, normalised, 0};
      const at::Tensor logits = at::randn({6, 7}, at::kDouble);
      const at::Tensor at_weights = at::randn({6, 3}, at::kDouble);
      const at::Tensor at_p = balanced ? at::randn({7}, at::kDouble) : at::Tensor();
      const Routing routing = route(logits, shape);
      const auto loss = [&](const at::Tensor& values) {
        const at::Tensor p = at::softmax(values, -1);
        at::Tensor weights = p.gather(1, routing.chosen);
        if (normalised) weights = weights / weights.sum(-1, true);
        const double own = (weights * at_weights).sum().item<double>();
        return balanced ? own + (p * at_p).sum().item<double>() : own;
      };
      const at::Tensor got = route_backward(at_weights, routing, shape, at_p).reshape({-1});
      constexpr double h = 1e-5;
      for (int64_t i = 0; i < logits.numel(); ++i) {
        const at::Tensor more = logits.clone(), less = logits.clone();
        more.view({-1})[i] += h;
        less.view({-1})[i] -= h;
        CHECK(std::abs((loss(more) - loss(less)) / (2 * h) - got[i].item<double>()) < 1e-8);
      }
    }
}

TEST_CASE("rows are grouped by expert in the order of the tokens, and sums find them again") {
  const at::Tensor chosen = at::tensor({2, 0, 0, 3, 2, 3}, at::kLong).view({3, 2});
  const GroupedRows groups = group_by_expert(chosen, 5);
  CHECK(groups.begin() == std::vector<int64_t>{0, 2, 2, 4, 6, 6});  // experts 1 and 4 have no rows
  CHECK(at::equal(groups.tokens, at::tensor({0, 1, 0, 2, 1, 2}, at::kLong)));
  CHECK(at::equal(groups.experts, at::tensor({0, 0, 2, 2, 3, 3}, at::kLong)));
  CHECK(at::equal(groups.rows, at::tensor({2, 0, 1, 4, 3, 5}, at::kLong).view({3, 2})));

  const at::Tensor many = at::rand({300, 7}).argsort(1, /*descending=*/false).narrow(1, 0, 3);
  for (const at::Tensor& some : {chosen, many, many.narrow(0, 0, 1)}) {
    const GroupedRows looped = group_by_expert(some, 7), sorted = group_by_sorting(some, 7);
    CHECK(sorted.begin() == looped.begin());
    CHECK(at::equal(sorted.tokens, looped.tokens));
    CHECK(at::equal(sorted.experts, looped.experts));
    CHECK(at::equal(sorted.rows, looped.rows));
  }

  const at::Tensor values = at::randn({6, 9}), weights = at::rand({3, 2}), sum = at::randn({3, 9});
  for (const auto& [type, allowed] :
       {std::pair{at::kDouble, 1e-15}, {at::kFloat, 1e-6}, {at::kBFloat16, 0.04}}) {
    const at::ScalarType real = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor got = combine(values.to(type), groups, weights.to(real), sum.to(type));
    const at::Tensor picked =
        values.to(type).to(at::kDouble).index_select(0, groups.rows.flatten()).view({3, 2, 9});
    const at::Tensor expected = sum.to(type).to(at::kDouble) + (picked * weights.unsqueeze(-1)).sum(1);
    CHECK((got.scalar_type() == type));
    CHECK(largest_difference(got, expected) < allowed);
  }
}

TEST_CASE("the load-balance loss and its gradients equal transformers'") {
  // The routers, of gpt-oss with their biases, and the embedding.
  const std::pair<const char*, size_t> models[] = {
      {"qwen3_moe", 3}, {"qwen3_moe-step", 2}, {"qwen3_5_moe", 3}, {"gpt_oss", 5}};
  for (const auto& [name, gradients_of_balance] : models)
    for (const bool recompute : {false, true}) {
      CAPTURE(name);
      const Example example(name, at::kDouble, "models");
      Decoder decoder(example.model.config);
      const Weights& weights = example.model.weights;
      std::shared_ptr<Decoder::Tape> tape;
      const at::Tensor hidden = decoder.forward(weights, example.ids, example.lengths, recompute, tape);
      const double loss = example.reference.at("balance").item<double>();
      CHECK(std::abs(Decoder::balance_loss(*tape) - loss) < 1e-6);
      Weights gradients = weights.zeros_like(at::kDouble);
      decoder.backward(weights, tape, at::zeros_like(hidden), gradients, {}, 0.5);
      size_t compared = 0;
      for (const auto& [key, gradient] : gradients.named_views(example.model.config)) {
        const auto expected = example.reference.find("balance." + key);
        if (expected == example.reference.end()) continue;
        CAPTURE(key);
        CHECK(relative_difference(2 * gradient, expected->second) < 1e-5);
        ++compared;
      }
      CHECK(compared == gradients_of_balance);
    }
  const Example dense("llama", at::kFloat, "models");
  Decoder decoder(dense.model.config);
  std::shared_ptr<Decoder::Tape> tape;
  decoder.forward(dense.model.weights, dense.ids, dense.lengths, false, tape);
  CHECK(Decoder::balance_loss(*tape) == 0);
}

TEST_CASE("experts in stacks, as transformers 5 can write them, load as those in single matrices") {
  const Example example("qwen3_moe", at::kFloat, "models");
  const auto write = [&](const Scratch& to, const auto& change) {
    std::filesystem::copy_file(fixture("models/qwen3_moe/config.json"), to / "config.json");
    NamedTensors tensors;
    for (const auto& [name, view] : example.model.weights.named_views(example.model.config))
      if (name.find(".experts.") == std::string::npos) tensors.emplace_back(name, view);
    for (const int64_t layer : {0, 2}) {
      const ExpertsWeights& experts = example.model.weights.layers[static_cast<size_t>(layer)].experts;
      const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
      tensors.emplace_back(prefix + "gate_up_proj", experts.gate_up);
      tensors.emplace_back(prefix + "down_proj", experts.down);
    }
    change(tensors);
    write_tensors(to / "model.safetensors", tensors);
    return load_model(to.path(), at::kFloat, at::kCPU);
  };
  const LoadedModel loaded = write(Scratch(), [](NamedTensors&) {});
  const auto expected = example.model.weights.list(), got = loaded.weights.list();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(at::equal(got[i], expected[i]));

  const auto refused = [&](const char* message, const at::Tensor& stack) {
    CHECK_REFUSED(write(Scratch(), [&](NamedTensors& tensors) { tensors.back().second = stack; }),
                  "ERR_MODEL_FORMAT", message);
  };
  refused("stack of experts", at::zeros({32, 12}));
  refused("not a stack of experts", at::zeros({5, 32, 12}));  // an expert too few
  refused("not a stack of experts", at::zeros({7, 32, 12}));  // one too many
  refused("experts.0.down_proj", at::zeros({6, 32, 11}));
}

TEST_CASE("an export has each expert's matrices, and is read back") {
  const Example example("qwen3_moe", at::kFloat, "models");
  const Scratch scratch;
  export_huggingface(scratch / "out", example.model.config, example.model.weights, at::kFloat);
  const LoadedModel again = load_model(scratch / "out", at::kFloat, at::kCPU);
  CHECK(again.config == example.model.config);
  check_exported_tensors("qwen3_moe", scratch / "out");
}

TEST_CASE("a target is all projections of its name, or those of experts or shared experts") {
  const ModelConfig config = Example("qwen3_moe", at::kFloat, "models").model.config,
                    shared = Example("qwen3_5_moe", at::kFloat, "models").model.config;
  const auto count = [](const ModelConfig& of, const std::vector<std::string>& targets) {
    return make_adapters(of, {2, 4, targets, 0}, at::kCPU).named_views(of).size() / 2;
  };
  // Three layers, of which two have six experts.
  CHECK(count(config, projection_names()) == 3 * 4 + 3 + 2 * 6 * 3);
  CHECK(count(config, {"up_proj"}) == 1 + 2 * 6);
  CHECK(count(config, {"experts.up_proj"}) == 2 * 6);
  CHECK(count(config, {"up_proj", "experts.up_proj", "experts.down_proj"}) == 1 + 2 * 6 + 2 * 6);
  CHECK(count(shared, {"down_proj"}) == 2 * (6 + 1));  // two layers with a shared expert
  CHECK(count(shared, {"experts.down_proj"}) == 2 * 6);
  CHECK(count(shared, {"shared_expert.down_proj", "shared_expert.up_proj"}) == 2 * 2);
  CHECK_REFUSED(count(config, {"shared_expert.down_proj"}), "ERR_VALUE", "shared_expert.down_proj");
}

TEST_CASE("new adapters of experts change no bit, and each expert has its own A") {
  const Example example("qwen3_5_moe", at::kFloat, "models");
  const ModelConfig& config = example.model.config;
  const Weights adapters = make_adapters(config, {2, 4, projection_names(), 7}, at::kCPU);
  Decoder decoder(config);
  CHECK(at::equal(
      decoder.forward(example.model.weights, example.ids, example.lengths),
      decoder.forward(with_adapters(example.model.weights, adapters), example.ids, example.lengths)));
  std::vector<at::Tensor> seen;
  std::map<std::string, at::Tensor> views;
  for (const auto& [name, view] : adapters.named_views(config)) {
    CAPTURE(name);
    views[name] = view;
    if (name.find("lora_B") != std::string::npos) {
      CHECK(view.eq(0).all().item<bool>());
      continue;
    }
    CHECK(view.abs().max().item<double>() <= 1 / std::sqrt(static_cast<double>(view.size(1))));
    for (const at::Tensor& other : seen) CHECK_FALSE(at::equal(view, other));
    seen.push_back(view);
  }
  // They do not depend on the other targets.
  for (const auto& [name, view] :
       make_adapters(config, {2, 4, {"experts.up_proj"}, 7}, at::kCPU).named_views(config))
    CHECK(at::equal(view, views.at(name)));
}

TEST_CASE("adapters on attention and experts train beside a frozen router") {
  const Example example("qwen3_moe", at::kFloat, "models");
  const ModelConfig& config = example.model.config;
  const Weights adapters = make_adapters(config, {2, 4, {"q_proj", "v_proj", "down_proj"}, 3}, at::kCPU);
  for (const at::Tensor& tensor : adapters.list()) tensor.normal_(0, 0.3);
  const Weights adapted = with_adapters(example.model.weights, adapters);
  Decoder decoder(config);
  const at::Tensor got = decoder.forward(adapted, example.ids, example.lengths);
  const at::Tensor merged = decoder.forward(merge_adapters(adapted), example.ids, example.lengths);
  CHECK(largest_difference(got, merged) < 1e-4);
  std::shared_ptr<Decoder::Tape> tape;
  const at::Tensor hidden = decoder.forward(adapted, example.ids, example.lengths, false, tape);
  Weights gradients = adapters.zeros_like(at::kFloat);
  decoder.backward(adapted, tape, at::ones_like(hidden), gradients, {}, 1.0);
  for (const at::Tensor& gradient : gradients.list()) CHECK(gradient.abs().max().item<float>() > 0);
}

TEST_CASE("int8 generation rounds the experts, and not the router") {
  const Example example("qwen3_moe", at::kFloat, "models");
  Decoder plain(example.model.config), rounded(example.model.config, true);
  CachedTexts a(example.model.config, at::kFloat), b(example.model.config, at::kFloat);
  const at::Tensor exact = a.infer(plain, example.model.weights, example.ids.narrow(0, 0, 9), {{0, 9}});
  const at::Tensor near = b.infer(rounded, example.model.weights, example.ids.narrow(0, 0, 9), {{0, 9}});
  CHECK(!at::equal(exact, near));
  CHECK(relative_difference(near, exact) < 0.1);
}

TEST_CASE("a mixture of experts: its layers, its defaults, and what is refused") {
  const auto experts_at = [](const ModelConfig& config) {
    std::vector<int64_t> layers;
    for (int64_t l = 0; l < config.layers; ++l)
      if (config.kind(l).feed_forward == FeedForward::experts) layers.push_back(l);
    return layers;
  };
  const auto with = [](Json json, const Json& more) {
    json.update(more);
    return json;
  };
  const auto read = [](const Json& json) { return ModelConfig::from_json(json.dump()); };
  const Json base = {{"architectures", {"Qwen3MoeForCausalLM"}},
                     {"vocab_size", 32},
                     {"hidden_size", 32},
                     {"intermediate_size", 48},
                     {"num_hidden_layers", 5},
                     {"num_attention_heads", 4},
                     {"num_key_value_heads", 2},
                     {"max_position_embeddings", 64}};
  const ModelConfig plain = read(base);
  CHECK(plain.experts == ExpertsShape{128, 8, 768, false, 0.001});  // transformers' defaults
  CHECK(experts_at(plain) == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(plain.head_dim == 8);
  CHECK(plain.qk_norm);
  const ModelConfig some = read(with(base, {{"num_local_experts", 6},
                                            {"num_experts_per_tok", 6},
                                            {"decoder_sparse_step", 2},
                                            {"mlp_only_layers", {3}}}));
  CHECK(some.experts.count == 6);  // the key that transformers 5 writes
  CHECK(experts_at(some) == std::vector<int64_t>{1});
  CHECK(read(with(base, {{"num_experts", 6}, {"num_experts_per_tok", 2}, {"num_local_experts", 9}}))
            .experts.count == 6);
  const ModelConfig none = read(with(base, {{"num_experts", 0}}));
  CHECK(experts_at(none).empty());
  for (const ModelConfig& config : {plain, some, none})
    CHECK(ModelConfig::from_json(config.to_json("float32")) == config);

  const auto refused = [&](const char* key, const Json& value) {
    CAPTURE(key);
    CHECK_REFUSED(read(with(with(base, {{"num_experts", 4}, {"num_experts_per_tok", 2}}), {{key, value}})),
                  "ERR_MODEL_FORMAT", key);
  };
  refused("num_experts_per_tok", 5);  // of 4
  refused("num_experts_per_tok", 0);
  refused("num_experts", -1);
  refused("num_experts", 1.5);
  refused("num_experts", 1 << 20);
  refused("moe_intermediate_size", 0);
  refused("norm_topk_prob", "yes");
  refused("router_aux_loss_coef", -0.1);
  refused("router_aux_loss_coef", "a");
  refused("decoder_sparse_step", 0);
  refused("mlp_only_layers", 1);
  refused("mlp_only_layers", Json{5});  // of 0 to 4
  refused("mlp_only_layers", Json{"a"});
}
