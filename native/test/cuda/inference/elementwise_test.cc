// A layer's arithmetic by the CUDA kernels on tensors, against the same operators in float64, and a
// model's training by them. The kernels and their callers are compiled for the CPU here.
#include "core/model/elementwise.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/model/cuda_elementwise.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

double distance(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).norm() / exact.norm().clamp_min(1e-9)).item<double>();
}

// Calls `check` with each type and the allowed distance.
void for_types(const auto& check) {
  for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 6e-3}}) {
    CAPTURE(std::string(c10::toString(dtype)));
    check(dtype, allowed);
  }
}

// The shape of a model of test/fixtures, with heads that the flash kernels take.
ModelConfig shape_for_flash(const std::string& name) {
  ModelConfig config = load_model(fixture("models/" + name), at::kFloat, at::kCPU).config;
  config.head_dim = 16;
  config.attention_scalar = 100;  // a sharp softmax would amplify rounding
  for (LayerKind& kind : config.layer_kinds)
    if (kind.head_dim > 0) kind.head_dim = 264;     // too wide for them
  config.experts.per_token = config.experts.count;  // rounding cannot change the choice
  config.experts.intermediate = (config.experts.intermediate + 7) / 8 * 8;  // grouped products need it
  return config;
}

}  // namespace

TEST_CASE("cuda: norms of whole rows, of strided heads and of float32 rows, with their gradients") {
  at::manual_seed(3);
  for_types([](at::ScalarType dtype, double allowed) {
    const at::Tensor qkv = at::randn({6, 5 * 40}).to(dtype), upstream = at::randn({6, 5 * 40}).to(dtype);
    const auto heads = [](const at::Tensor& all) { return all.narrow(1, 40, 120).unflatten(1, {3, 40}); };
    for (const bool plus_one : {false, true}) {
      CAPTURE(plus_one);
      Norm norm(1e-6);
      norm.plus_one = plus_one;
      for (const at::Tensor& x : {heads(qkv), qkv.narrow(1, 0, 70), qkv.view({2, 3, 5, 40}), qkv.t()}) {
        CAPTURE(x.dim());
        REQUIRE(gpu::takes(x));
        const at::Tensor grad = x.is_same_size(qkv.t())
                                    ? upstream.t()
                                    : upstream.flatten().narrow(0, 0, x.numel()).view(x.sizes());
        const at::Tensor weight = at::randn({x.size(-1)}).to(dtype),
                         residual = at::randn(x.sizes()).to(dtype);
        const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
        const at::Tensor exact = rms_norm(wide(x), wide(weight), norm);
        CHECK(distance(rms_norm(x, weight, norm), exact) < allowed);
        CHECK(distance(rms_norm(x.to(at::kFloat), weight, norm), exact) < allowed);
        const at::Tensor at_weight = at::ones({x.size(-1)}),
                         exact_at_weight = at::ones({x.size(-1)}, at::kDouble);
        CHECK(distance(rms_norm_backward(grad, x, weight, norm, at_weight, residual),
                       rms_norm_backward(wide(grad), wide(x), wide(weight), norm, exact_at_weight,
                                         wide(residual))) < allowed);
        CHECK(distance(at_weight, exact_at_weight) < 1e-6);
        CHECK(distance(rms_norm_backward(grad, x, weight, norm, {}, {}),
                       rms_norm_backward(wide(grad), wide(x), wide(weight), norm, {}, {})) < allowed);
      }
      // A copy of one whose elements are not adjacent does not change which rows belong together.
      const at::Tensor x = heads(qkv), weight = at::randn({40}).to(dtype),
                       grad = heads(upstream).transpose(0, 2).contiguous().transpose(0, 2);
      const at::Tensor apart = x.transpose(0, 2).contiguous().transpose(0, 2);
      CHECK(at::equal(rms_norm(apart, weight, norm), rms_norm(x, weight, norm)));
      CHECK(at::equal(rms_norm_backward(grad, x, weight, norm, {}, {}),
                      rms_norm_backward(grad.contiguous(), x, weight, norm, {}, {})));
      const at::Tensor into = at::zeros({6, 5 * 40}).to(dtype);
      rms_norm_heads(heads(qkv), weight, norm, heads(into));
      CHECK(at::equal(heads(into), rms_norm(heads(qkv), weight, norm)));
      CHECK(into.narrow(1, 0, 40).count_nonzero().item<int64_t>() == 0);
      CHECK(into.narrow(1, 160, 40).count_nonzero().item<int64_t>() == 0);
    }
  });
}

TEST_CASE("cuda: rotations of whole heads and of their first dimensions, and gated activations") {
  at::manual_seed(4);
  for_types([](at::ScalarType dtype, double allowed) {
    for (const int64_t half : {20, 8}) {
      CAPTURE(half);
      const Rope rope{at::randn({30, half}), at::randn({30, half})};
      const at::Tensor positions = at::tensor({3, 0, 29, 7, 7, 1}, at::kLong);
      for (const bool inverse : {false, true}) {
        const at::Tensor all = at::randn({6, 200}).to(dtype), exact = all.to(at::kDouble);
        const auto turned = [](const at::Tensor& x) { return x.narrow(1, 40, 120).unflatten(1, {3, 40}); };
        rotate(turned(all), rope, positions, inverse);
        rotate(turned(exact), rope, positions, inverse);
        CHECK(distance(all, exact) < allowed);
      }
    }
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
      const at::Tensor gate_up = (at::randn({5, 66}) * 3).to(dtype), grad = at::randn({5, 33}).to(dtype);
      const at::Tensor wide = gate_up.to(at::kDouble);
      CHECK(distance(gated(gate_up, activation), gated(wide, activation)) < allowed);
      CHECK(distance(gated_backward(grad, gate_up, activation),
                     gated_backward(grad.to(at::kDouble), wide, activation)) < allowed);
    }
  });
}

TEST_CASE("cuda: a model's gradients by the kernels equal those in float64") {
  for (const ModelConfig& config : shapes_for_gpu()) {
    CAPTURE(config.head_dim);
    const at::Tensor ids = at::arange(40, at::kLong) % config.vocab_size;
    const std::vector<int64_t> lengths{13, 27};
    const at::Tensor grad = at::randn({40, config.hidden_size});
    const auto gradients = [&](at::ScalarType dtype) {
      const Weights weights = random_weights(config, dtype, at::kCPU);
      Weights into = allocate_weights(config, dtype == at::kDouble ? at::kDouble : at::kFloat, at::kCPU);
      for (const at::Tensor& tensor : into.list()) tensor.zero_();
      Decoder decoder(config);
      std::shared_ptr<Decoder::Tape> tape;
      decoder.forward(weights, ids, lengths, false, tape);
      decoder.backward(weights, tape, grad.to(dtype), into);
      return into.list();
    };
    const std::vector<at::Tensor> exact = gradients(at::kDouble), near = gradients(at::kFloat);
    REQUIRE(near.size() == exact.size());
    for (size_t i = 0; i < near.size(); ++i) CHECK(distance(near[i], exact[i]) < 1e-4);
  }
}

TEST_CASE("cuda: gradients by flash attention are near those in float64, for all kinds of attention") {
  for (const char* name : {"qwen3-yarn", "mistral", "ministral3", "olmo3", "gemma3", "gpt_oss", "qwen3_5",
                           "gemma4", "gemma4-moe"}) {
    CAPTURE(std::string(name));
    at::manual_seed(3);
    const ModelConfig config = shape_for_flash(name);
    // Rounding to bfloat16 alone, without the kernels, takes gradients of this small model so far.
    const double allowed = config.delta.heads > 0 ? 0.25 : 0.12;
    const std::vector<int64_t> lengths{1, 13, 27};
    const at::Tensor ids = at::arange(41, at::kLong) % config.vocab_size;
    const at::Tensor grad = at::randn({41, config.hidden_size}).to(at::kBFloat16);
    const Weights rounded = random_weights(config, at::kBFloat16, at::kCPU);
    const auto gradients = [&](at::ScalarType dtype, bool recompute) {
      const Weights weights = rounded.copy_as(dtype, at::kCPU);
      Weights into = weights.zeros_like(gradient_type(dtype));
      Decoder decoder(config);
      std::shared_ptr<Decoder::Tape> tape;
      decoder.forward(weights, ids, lengths, recompute, tape);
      decoder.backward(weights, tape, grad.to(dtype), into);
      return into.named_views(config);
    };
    const auto exact = gradients(at::kDouble, false), near = gradients(at::kBFloat16, false),
               again = gradients(at::kBFloat16, true);
    REQUIRE(near.size() == exact.size());
    for (size_t i = 0; i < near.size(); ++i) {
      CAPTURE(near[i].first);
      CHECK(distance(near[i].second, exact[i].second) < allowed);
      CHECK(at::equal(near[i].second, again[i].second));
    }
  }
}

TEST_CASE("cuda: inference with flash attention for prompts is near a full forward in float64") {
  struct Model {
    const char* name;
    at::ScalarType type;
    double allowed;
  };
  for (const auto& [name, type, allowed] : {Model{"mistral", at::kBFloat16, 0.05},
                                            {"olmo3", at::kBFloat16, 0.05},
                                            {"gemma3", at::kBFloat16, 0.05},
                                            {"gpt_oss", at::kBFloat16, 0.05},
                                            {"gemma4", at::kBFloat16, 0.05},
                                            {"gemma4-moe", at::kBFloat16, 0.05},
                                            {"qwen3_5", at::kBFloat16, 0.05},
                                            {"qwen3_5", at::kFloat, 1e-5},
                                            {"qwen3_5_moe", at::kFloat, 1e-5}}) {
    CAPTURE(std::string(name));
    const ModelConfig config = shape_for_flash(name);
    const Weights weights = random_weights(config, type, at::kCPU);
    const at::Tensor ids = at::arange(41, at::kLong) % config.vocab_size;
    Decoder decoder(config);
    const at::Tensor exact = Decoder(config).forward(weights.copy_as(at::kDouble, at::kCPU), ids, {14, 27});
    CachedTexts texts(config, type);
    // The second text in chunks, of which one is a single token.
    const auto infer = [&](int64_t start, int64_t count, const std::vector<CachedTexts::Share>& shares) {
      return texts.infer(decoder, weights, ids.narrow(0, start, count), shares);
    };
    const at::Tensor near =
        at::cat({infer(0, 27, {{0, 14}, {1, 13}}), infer(27, 1, {{1, 1}}), infer(28, 13, {{1, 13}})});
    CHECK(distance(near, exact) < allowed);
  }
}
