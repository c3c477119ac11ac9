// The decoder against transformers (test/fixtures/models, written by scripts/fixtures/models.py)
// and against itself: cached, packed and recomputed runs must agree with plain ones.
#include "core/model/decoder.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <tuple>

#include "core/cpu/bf16_kernels.h"
#include "core/error.h"
#include "core/loss/logit_cap.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

const std::string models[] = {"llama",          "llama-llama3-bias",
                              "llama-linear",   "llama-yarn-mscale",
                              "qwen2",          "qwen3-yarn",
                              "smollm3",        "mistral",
                              "ministral3",     "olmo3",
                              "gemma3",         "gemma4",
                              "gemma4-dense",   "qwen3_moe",
                              "qwen3_moe-step", "gpt_oss",
                              "gemma4-moe"};

struct Case : Example {
  Case(const std::string& name, at::ScalarType dtype) : Example(name, dtype, "models") {}
};

Weights gradients_of(Decoder& decoder, const Case& example, bool recompute) {
  const Weights& weights = example.model.weights;
  Weights gradients = weights.zeros_like(gradient_type(weights.embedding.scalar_type()));
  add_gradients(decoder, weights, example, recompute, gradients);
  return gradients;
}

// Path of the real model's file, or empty.
std::string smollm2() {
  if (const char* given = std::getenv("NLAC_TEST_SMOLLM2")) return given;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string root = cache ? cache : std::string(home ? home : "") + "/.cache";
  const std::string path = root + "/nlac/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace

TEST_CASE("rotary tables equal transformers', for every scaling") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Case example(name, at::kFloat);
    const at::Tensor positions = example.reference.at("positions");
    const Rope rope = Rope::make(example.model.config, positions.max().item<int64_t>() + 1, at::kCPU);
    const ModelConfig& config = example.model.config;
    const int64_t rotated = config.rope.dimensions > 0 ? config.rope.dimensions : config.head_dim;
    CHECK(rope.cos.sizes() == at::IntArrayRef({rope.cos.size(0), rotated / 2}));
    // Tolerance of an angle: one ulp of the frequency times the position.
    const at::Tensor allowed = positions.to(at::kDouble).unsqueeze(1) * 1.2e-7 + 1e-6;
    std::vector<std::pair<std::string, at::Tensor>> tables{{"cos", rope.cos}, {"sin", rope.sin}};
    if (example.model.config.local_rope) {
      const Rope local =
          Rope::make(example.model.config, positions.max().item<int64_t>() + 1, at::kCPU, Rotary::local);
      tables.insert(tables.end(), {{"local_cos", local.cos}, {"local_sin", local.sin}});
    }
    CHECK(example.reference.count("local_cos") == (example.model.config.local_rope ? 1 : 0));
    for (const auto& [key, table] : tables) {
      CAPTURE(key);
      const at::Tensor off =
          (table.index_select(0, positions) - example.reference.at(key)).abs().to(at::kDouble);
      CHECK((off / allowed).max().item<double>() <= 1.0);
    }
  }
}

TEST_CASE("logits equal transformers'") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const at::Tensor expected = Case(name, at::kFloat).reference.at("logits");
    for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kDouble, 2e-6}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      const Case example(name, dtype);
      Decoder decoder(example.model.config);
      const at::Tensor hidden = decoder.forward(example.model.weights, example.ids, example.lengths);
      CHECK((hidden.scalar_type() == dtype));
      at::Tensor found = at::mm(hidden, example.model.weights.head.t());
      cap_logits(found, example.model.config.logit_cap);
      CHECK(largest_difference(found, expected) < allowed);
    }
  }
}

TEST_CASE("gradients equal float64 autograd's") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Case example(name, at::kDouble);
    Decoder decoder(example.model.config);
    const Weights gradients = gradients_of(decoder, example, false);
    size_t compared = 0;
    for (const auto& [key, gradient] : gradients.named_views(example.model.config)) {
      CAPTURE(key);
      const at::Tensor expected = example.reference.at("gradient." + key).to(at::kDouble);
      // Relative to the whole tensor: a k bias has a gradient of zero up to rounding.
      const double scale = std::max(expected.norm().item<double>(), 1e-3);
      CHECK((gradient - expected).norm().item<double>() / scale < 1e-5);
      ++compared;
    }
    size_t recorded = 0;
    for (const auto& [key, tensor] : example.reference) recorded += key.starts_with("gradient.") ? 1 : 0;
    CHECK(compared == recorded);
  }
}

TEST_CASE("float32 gradients are close to float64's, bfloat16 gradients roughly") {
  for (const std::string& name : models) {
    CAPTURE(name);
    for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 0.2}}) {
      CAPTURE(std::string(c10::toString(dtype)));
      Case example(name, dtype);
      Decoder decoder(example.model.config);
      const Weights gradients = gradients_of(decoder, example, false);
      for (const auto& [key, gradient] : gradients.named_views(example.model.config)) {
        CAPTURE(key);
        CHECK((gradient.scalar_type() == at::kFloat));
        const at::Tensor expected = example.reference.at("gradient." + key);
        const double scale = std::max(expected.norm().item<double>(), 1.0);
        CHECK((gradient - expected).norm().item<double>() / scale < allowed);
      }
    }
  }
}

TEST_CASE("gradient checkpointing changes no bit") {
  for (const std::string& name : models) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name);
      const Case example(name, dtype);
      Decoder decoder(example.model.config);
      const std::vector<at::Tensor> kept = gradients_of(decoder, example, false).list();
      const std::vector<at::Tensor> again = gradients_of(decoder, example, true).list();
      for (size_t i = 0; i < kept.size(); ++i) CHECK(at::equal(kept[i], again[i]));
    }
  }
}

TEST_CASE("gradients of several passes add up in float32") {
  const Case example("llama", at::kBFloat16);
  Decoder decoder(example.model.config);
  const Weights& weights = example.model.weights;
  Weights once = weights.zeros_like(at::kFloat), thrice = weights.zeros_like(at::kFloat);
  const at::Tensor grad = at::ones({example.ids.size(0), example.model.config.hidden_size}, at::kBFloat16);
  for (Weights* sum : {&once, &thrice, &thrice, &thrice}) {
    std::shared_ptr<Decoder::Tape> tape;
    decoder.forward(weights, example.ids, example.lengths, false, tape);
    decoder.backward(weights, tape, grad, *sum);
  }
  const auto one = once.list(), three = thrice.list();
  for (size_t i = 0; i < one.size(); ++i) CHECK(at::allclose(3 * one[i], three[i], 1e-5, 1e-6));
}

TEST_CASE("cached inference equals a full forward") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Case example(name, at::kDouble);  // float64 leaves no room to hide a wrong mask
    Decoder decoder(example.model.config);
    const Weights& weights = example.model.weights;
    const at::Tensor whole = decoder.forward(weights, example.ids, example.lengths);
    const int64_t n = example.lengths[0];
    const at::Tensor ids = example.ids.narrow(0, 0, n), expected = whole.narrow(0, 0, n);

    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{n}, {7, n - 7}, {1, 5, 1, n - 7}, {n - 1, 1}, std::vector<int64_t>(n, 1)}) {
      CachedTexts texts(example.model.config, at::kDouble);
      std::vector<at::Tensor> rows;
      int64_t start = 0;
      for (const int64_t chunk : chunks) {
        rows.push_back(texts.infer(decoder, weights, ids.narrow(0, start, chunk), {{0, chunk}}));
        start += chunk;
      }
      CHECK(largest_difference(at::cat(rows), expected) < 1e-12);
    }
  }
}

TEST_CASE("packed sequences are independent") {
  for (const std::string& name : models) {
    CAPTURE(name);
    const Case example(name, at::kDouble);
    Decoder decoder(example.model.config);
    const Weights& weights = example.model.weights;
    const at::Tensor packed = decoder.forward(weights, example.ids, example.lengths);
    int64_t start = 0;
    for (const int64_t length : example.lengths) {
      const at::Tensor alone = decoder.forward(weights, example.ids.narrow(0, start, length), {length});
      CHECK(largest_difference(packed.narrow(0, start, length), alone) < 1e-12);
      start += length;
    }
    // Prefill of one beside decode of another and a continued chunk of a third, against packed
    // training.
    CachedTexts texts(example.model.config, at::kDouble);
    texts.infer(decoder, weights, example.ids.narrow(0, 0, 30), {{0, 30}});
    const at::Tensor mixed = texts.infer(decoder, weights, example.ids.narrow(0, 30, 19), {{0, 10}, {1, 9}});
    CHECK(largest_difference(mixed, packed.narrow(0, 30, 19)) < 1e-12);
    // Another sequence's tokens have no effect.
    at::Tensor other = example.ids.clone();
    other.narrow(0, 0, example.lengths[0]).fill_(5);
    const at::Tensor beside = decoder.forward(weights, other, example.lengths);
    const int64_t first = example.lengths[0];
    // How many rows an expert has depends on the other texts, and libtorch's product in float64 on
    // that.
    if (example.model.config.experts.count > 0)
      CHECK(largest_difference(beside.narrow(0, first, 9), packed.narrow(0, first, 9)) < 1e-12);
    else
      CHECK(at::equal(beside.narrow(0, first, 9), packed.narrow(0, first, 9)));
  }
}

TEST_CASE("on a packed store, a token's bits are the same alone, in a batch and in any chunks") {
  for (const std::string& name : models) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name);
      CAPTURE(std::string(c10::toString(dtype)));
      const Case example(name, dtype);
      Decoder decoder(example.model.config);
      const Weights& weights = example.model.weights;
      REQUIRE(KvStore(example.model.config, dtype).packed());
      const int64_t n = example.lengths[0], m = example.lengths[1];
      const auto part = [&](int64_t first, int64_t count) { return example.ids.narrow(0, first, count); };
      CachedTexts whole(example.model.config, dtype);
      const at::Tensor expected = whole.infer(decoder, weights, part(0, n), {{0, n}});
      CHECK(expected.isfinite().all().item<bool>());
      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>{1, 17, n - 18}, {n - 1, 1}, std::vector<int64_t>(n, 1)}) {
        CachedTexts texts(example.model.config, dtype);
        int64_t start = 0;
        for (const int64_t chunk : chunks) {
          // Beside another text, which is new each time.
          const at::Tensor rows = texts.infer(decoder, weights, at::cat({part(n, m), part(start, chunk)}),
                                              {{static_cast<size_t>(1 + start), m}, {0, chunk}});
          CHECK(at::equal(rows.narrow(0, m, chunk), expected.narrow(0, start, chunk)));
          start += chunk;
        }
      }
    }
  }
}

TEST_CASE("a copied cache continues on its own") {
  const Case example("qwen3-yarn", at::kDouble);
  Decoder decoder(example.model.config);
  const Weights& weights = example.model.weights;
  CachedTexts texts(example.model.config, at::kDouble);
  texts.infer(decoder, weights, example.ids.narrow(0, 0, 20), {{0, 20}});
  const size_t fork = texts.fork(0);
  const at::Tensor kept = texts.infer(decoder, weights, example.ids.narrow(0, 20, 1), {{fork, 1}});
  texts.infer(decoder, weights, at::tensor({3, 4, 5}, at::kLong), {{0, 3}});
  const at::Tensor next = texts.infer(decoder, weights, example.ids.narrow(0, 21, 1), {{fork, 1}});
  const at::Tensor whole = decoder.forward(weights, example.ids.narrow(0, 0, 40), {40});
  CHECK(largest_difference(kept, whole.narrow(0, 20, 1)) < 1e-12);
  CHECK(largest_difference(next, whole.narrow(0, 21, 1)) < 1e-12);
}

TEST_CASE("a truncated cache reads only what is left") {
  const Case example("llama", at::kDouble);
  Decoder decoder(example.model.config);
  const Weights& weights = example.model.weights;
  CachedTexts texts(example.model.config, at::kDouble);
  texts.infer(decoder, weights, example.ids.narrow(0, 0, 30), {{0, 30}});
  texts.cut(0, 10);
  const at::Tensor rows = texts.infer(decoder, weights, example.ids.narrow(0, 10, 30), {{0, 30}});
  const at::Tensor whole = decoder.forward(weights, example.ids.narrow(0, 0, 40), {40});
  CHECK(largest_difference(rows, whole.narrow(0, 10, 30)) < 1e-12);
}

TEST_CASE("invalid input is rejected with a code") {
  const Case example("llama", at::kFloat);
  Decoder decoder(example.model.config);
  const Weights& weights = example.model.weights;
  const auto code = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return "none";
  };
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong);
  KvStore store(example.model.config, at::kFloat);
  store.reserve(1, 1);
  const BlockTable table{0};
  CHECK(code([&] { decoder.forward(weights, ids, {2}); }) == "ERR_SHAPE");
  CHECK(code([&] { decoder.forward(weights, ids, {3, 0}); }) == "ERR_SHAPE");
  CHECK(code([&] { decoder.forward(weights, ids.to(at::kInt), {3}); }) == "ERR_SHAPE");
  CHECK(code([&] { decoder.forward(weights, at::tensor({1, 97}, at::kLong), {2}); }) == "ERR_VALUE");
  const auto infer = [&](const at::Tensor& given, int64_t past, int64_t fresh) {
    return code([&] { decoder.infer(weights, given, store, {{&table, past, fresh}}); });
  };
  CHECK(infer(ids, 0, 3) == "none");
  CHECK(infer(at::tensor({-1}, at::kLong), 0, 1) == "ERR_VALUE");
  CHECK(infer(ids, 0, 2) == "ERR_SHAPE");
  CHECK(infer(ids, kBlockTokens - 2, 3) == "ERR_SHAPE");
  std::shared_ptr<Decoder::Tape> tape;
  Weights gradients = weights.zeros_like(at::kFloat);
  const at::Tensor hidden = decoder.forward(weights, ids, {3}, false, tape);
  CHECK(code([&] { decoder.backward(weights, tape, hidden.narrow(0, 0, 2), gradients); }) == "ERR_SHAPE");
  decoder.backward(weights, tape, hidden, gradients);
  CHECK(code([&] { decoder.backward(weights, tape, hidden, gradients); }) == "ERR_VALUE");
}

TEST_CASE("logits are float32") {
  const at::Tensor hidden = at::randn({3, 32}), head = at::randn({97, 32});
  const at::Tensor result = logits(hidden.to(at::kBFloat16), head.to(at::kBFloat16));
  CHECK((result.scalar_type() == at::kFloat));
  CHECK(result.sizes() == at::IntArrayRef({3, 97}));
  const at::Tensor exact =
      at::mm(hidden.to(at::kBFloat16).to(at::kFloat), head.to(at::kBFloat16).to(at::kFloat).t());
  CHECK(largest_difference(result, exact) < 1e-4);
}

// The reference is scripts/fixtures/smollm2.py's.
TEST_CASE("a real model's logits equal transformers' in float32, and are as close in bfloat16") {
  const std::string path = smollm2();
  if (path.empty()) {
    std::cerr
        << "SKIPPED: no SmolLM2-135M-Instruct.Q4_1.gguf; set NLAC_TEST_SMOLLM2 to its path, or put it into "
           "$XDG_CACHE_HOME/nlac/models\n";
    return;
  }
  const auto reference = read_tensors(fixture("models/smollm2-reference.safetensors"));
  const at::Tensor &ids = reference.at("ids"), &expected = reference.at("logits"), &top = reference.at("top");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const LoadedModel model = load_model(path, dtype, at::kCPU);
    Decoder decoder(model.config);
    // Half of the tokens are prefilled, the others decoded: both paths are measured.
    CachedTexts texts(model.config, dtype);
    std::vector<at::Tensor> rows{texts.infer(decoder, model.weights, ids.narrow(0, 0, 32), {{0, 32}})};
    for (int64_t i = 32; i < ids.size(0); ++i)
      rows.push_back(texts.infer(decoder, model.weights, ids.narrow(0, i, 1), {{0, 1}}));
    const at::Tensor whole = logits(decoder.forward(model.weights, ids, {ids.size(0)}), model.weights.head);
    const at::Tensor stepped = logits(at::cat(rows), model.weights.head);
    // The full forward is the training path, whose residual stream is bfloat16 as in transformers:
    // the largest difference is at one early position, and equal for both up to the order of sums.
    for (const auto& [path_name, result, largest_room] :
         {std::tuple{"whole", whole, 1.01}, {"stepped", stepped, 1.0}}) {
      const at::Tensor off = result.index_select(1, reference.at("columns")) - expected;
      const at::Tensor top_off = result.gather(1, top) - reference.at("top_logits");
      const double largest = std::max(off.abs().max().item<double>(), top_off.abs().max().item<double>());
      const double median = off.square().mean(1).sqrt().median().item<double>();
      const double agreement = result.argmax(-1).eq(top.select(1, 0)).to(at::kFloat).mean().item<double>();
      MESSAGE(std::string(c10::toString(dtype)), " ", std::string(path_name), ": largest ", largest,
              ", median ", median, ", same first choice ", agreement);
      if (dtype == at::kFloat) {
        CHECK(largest < 2e-3);
        CHECK(agreement == 1.0);
      } else {
        CHECK(off.abs().max().item<double>() <=
              largest_room * reference.at("bfloat16_largest").item<double>());
        // Roundings differ by instruction set: 0.088 to 0.117 for one sequence.
        CHECK(median <= 1.2 * reference.at("bfloat16_median").item<double>());
        CHECK(agreement >= reference.at("bfloat16_agreement").item<double>());
      }
    }
  }
}

TEST_CASE("inference on a GPU equals the CPU's full forward" * doctest::skip(!at::hasCUDA())) {
  for (const ModelConfig& config : shapes_for_gpu()) {
    Decoder decoder(config);
    const int64_t n = 70;
    const at::Tensor ids = at::arange(n, at::kLong) % config.vocab_size;
    const at::Tensor expected = decoder.forward(random_weights(config, at::kFloat, at::kCPU), ids, {n});
    for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 0.03}}) {
      CAPTURE(config.head_dim);
      CAPTURE(std::string(c10::toString(dtype)));
      const Weights weights = random_weights(config, dtype, at::kCUDA);
      // Prefill uses libtorch's attention, decoding ours; these steps use both.
      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>{n}, {7, n - 7}, {n - 1, 1}, std::vector<int64_t>(n, 1)}) {
        CachedTexts texts(config, at::TensorOptions(dtype).device(at::kCUDA));
        std::vector<at::Tensor> rows;
        int64_t start = 0;
        for (const int64_t chunk : chunks) {
          const at::Tensor next = at::cat({ids.narrow(0, start, chunk), ids.narrow(0, 0, 1)}).to(at::kCUDA);
          const at::Tensor got =
              texts.infer(decoder, weights, next, {{0, chunk}, {1 + rows.size(), 1}}).cpu();
          rows.push_back(got.narrow(0, 0, chunk));
          CHECK(relative_difference(got.narrow(0, chunk, 1), expected.narrow(0, 0, 1)) < allowed);
          start += chunk;
        }
        CHECK(relative_difference(at::cat(rows), expected) < allowed);
      }
    }
  }
}

TEST_CASE("a real model in int8 is not much further from float32 than in bfloat16") {
  const std::string path = smollm2();
  if (path.empty()) {
    std::cerr << "SKIPPED: no SmolLM2-135M-Instruct.Q4_1.gguf\n";
    return;
  }
  const LoadedModel whole = load_model(path, at::kFloat, at::kCPU),
                    half = load_model(path, at::kBFloat16, at::kCPU);
  Decoder exact(whole.config), plain(half.config), rounded(half.config, true);

  // A sequence generated by the model.
  at::Tensor ids = read_tensors(fixture("models/smollm2-reference.safetensors")).at("ids"), fresh = ids;
  const int64_t begun = ids.size(0), written = 200;
  CachedTexts writing(half.config, at::kBFloat16);
  at::manual_seed(1);
  for (int64_t i = 0; i < written; ++i) {
    const at::Tensor hidden = writing.infer(plain, half.weights, fresh, {{0, fresh.size(0)}});
    fresh = plain.infer_logits(half.weights, hidden.slice(0, -1))[0].softmax(0).multinomial(1);
    ids = at::cat({ids, fresh});
  }

  const auto log_probs = [&](Decoder& decoder, const LoadedModel& model) {  // [written, vocab]
    CachedTexts texts(model.config, model.weights.embedding.scalar_type());
    const at::Tensor hidden = texts.infer(decoder, model.weights, ids, {{0, ids.size(0)}});
    return decoder.infer_logits(model.weights, hidden.narrow(0, begun - 1, written)).log_softmax(1);
  };
  const at::Tensor expected = log_probs(exact, whole);
  const auto divergence = [&](const std::string& name, Decoder& decoder) {
    const at::Tensor found = log_probs(decoder, half);
    const double kl = (expected.exp() * (expected - found)).sum(1).mean().item<double>();
    const double same = expected.argmax(1).eq(found.argmax(1)).to(at::kFloat).mean().item<double>();
    MESSAGE(name, ": ", kl, " nats a token from float32, same first choice ", same);
    return kl;
  };
  const double bfloat16 = divergence("bfloat16", plain), int8 = divergence("int8", rounded);
  CHECK(int8 > bfloat16);  // else nothing was rounded
  CHECK(int8 < 0.01);
}
