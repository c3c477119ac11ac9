// Inference by the CUDA kernels against a full forward by libtorch. The kernels and their callers
// are compiled for the CPU here and use tensors in its memory.
#include "core/model/cuda_inference.h"

#include <ATen/cuda/CUDAGraph.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/generate/engine.h"
#include "core/model/decoder.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

constexpr int64_t tokens = 150;  // more than one part of a context takes

struct Model {
  ModelConfig config;
  Weights weights;
  at::Tensor ids = at::arange(tokens, at::kLong) % config.vocab_size;
  at::Tensor expected;  // [tokens, hidden], in float32
  explicit Model(const ModelConfig& config, at::ScalarType dtype = at::kFloat)
      : config(config),
        weights(random_weights(config, dtype, at::kCPU)),
        expected(Decoder(config).forward(random_weights(config, at::kFloat, at::kCPU), ids, {tokens})) {}
};

// Decoders created during its lifetime record their steps.
struct Recorded {
  Recorded() { setenv("NLAC_CUDA_GRAPHS", "1", 1); }
  ~Recorded() {
    unsetenv("NLAC_CUDA_GRAPHS");
    at::cuda::CUDAGraph::fails = false;
  }
};

}  // namespace

TEST_CASE("cuda: inference equals a full forward, in one call, in chunks or token by token") {
  for (const ModelConfig& config : shapes_for_gpu()) {
    for (const auto& [dtype, allowed] : {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 0.03}}) {
      CAPTURE(config.head_dim);
      CAPTURE(std::string(c10::toString(dtype)));
      const Model model(config, dtype);
      Decoder decoder(config);
      REQUIRE(CudaInference::takes(model.weights, config, KvStore(config, dtype)));
      for (const std::vector<int64_t>& chunks :
           {std::vector<int64_t>{tokens}, {1, 1, 5, tokens - 8, 1}, {14, 1, 1, 1, 1, tokens - 20, 1, 1}}) {
        CachedTexts texts(config, dtype);
        std::vector<at::Tensor> rows;
        int64_t start = 0;
        for (const int64_t chunk : chunks) {
          rows.push_back(
              texts.infer(decoder, model.weights, model.ids.narrow(0, start, chunk), {{0, chunk}}));
          start += chunk;
        }
        CHECK(relative_difference(at::cat(rows), model.expected) < allowed);
      }
    }
  }
}

TEST_CASE("cuda: prefill beside decoding") {
  for (const ModelConfig& config : shapes_for_gpu()) {
    CAPTURE(config.head_dim);
    const Model model(config);
    Decoder decoder(config);
    CachedTexts texts(config, at::kFloat);
    const auto infer = [&](const std::vector<CachedTexts::Share>& shares,
                           const std::vector<int64_t>& starts) {
      std::vector<at::Tensor> ids, expected;
      for (size_t i = 0; i < shares.size(); ++i) {
        ids.push_back(model.ids.narrow(0, starts[i], shares[i].tokens));
        expected.push_back(model.expected.narrow(0, starts[i], shares[i].tokens));
      }
      const at::Tensor got = texts.infer(decoder, model.weights, at::cat(ids), shares);
      CHECK(relative_difference(got, at::cat(expected)) < 1e-5);
    };
    infer({{0, 12}, {1, 3}}, {0, 0});
    infer({{1, 1}, {2, 9}, {0, 1}, {3, 1}}, {3, 0, 12, 0});
    infer({{1, 5}, {0, 1}, {2, 2}}, {4, 13, 9});
  }
}

TEST_CASE("cuda: a recorded step equals the step, and its padding rows are not stored") {
  const Recorded recorded;
  const Model model(shapes_for_gpu()[0]);
  Decoder decoder(model.config);
  CachedTexts texts(model.config, at::kFloat);
  const int begun = at::cuda::CUDAGraph::begun, replayed = at::cuda::CUDAGraph::replayed;
  constexpr int64_t written = 6;
  for (int64_t t = 0, count = tokens - written; t < tokens; t += count, count = 1) {
    const at::Tensor next = model.ids.narrow(0, t, count), expected = model.expected.narrow(0, t, count);
    const at::Tensor got =
        texts.infer(decoder, model.weights, next.repeat({3}), {{0, count}, {1, count}, {2, count}});
    CHECK(relative_difference(got, expected.repeat({3, 1})) < 1e-5);
    decoder.forget_packed(model.weights);  // each step is a recording's first
  }
  CHECK(at::cuda::CUDAGraph::begun - begun == written);
  CHECK(at::cuda::CUDAGraph::replayed - replayed == written);
}

TEST_CASE("cuda: a step is recorded once per batch size, and again after memory has moved") {
  const Recorded recorded;
  const Model model(shapes_for_gpu()[1]);
  Weights weights = model.weights;
  Decoder decoder(model.config);
  KvStore store(model.config, at::kFloat);
  store.reserve(64, 64);
  std::vector<BlockTable> tables;
  for (int32_t i = 0; i < 20; ++i) tables.push_back({i});
  int begun = at::cuda::CUDAGraph::begun;
  const auto recordings = [&](int64_t texts) {
    std::vector<KvSlice> slices;
    for (int64_t i = 0; i < texts; ++i) slices.push_back({&tables[static_cast<size_t>(i)], 3, 1});
    decoder.infer(weights, at::ones({texts}, at::kLong), store, slices);
    return at::cuda::CUDAGraph::begun - std::exchange(begun, at::cuda::CUDAGraph::begun);
  };
  CHECK(recordings(3) == 1);
  CHECK(recordings(4) == 0);
  CHECK(recordings(5) == 1);
  CHECK(recordings(8) == 0);
  CHECK(recordings(9) == 1);
  CHECK(recordings(16) == 0);
  CHECK(recordings(17) == 1);
  weights.layers[1].feed_forward.down = weights.layers[1].feed_forward.down.clone();
  CHECK(recordings(4) == 1);
  store.reserve(65, 128);
  CHECK(recordings(4) == 1);
  CHECK(recordings(4) == 0);
  decoder.forget_packed(weights);
  CHECK(recordings(4) == 1);
}

TEST_CASE("cuda: recordings with outdated addresses are dropped") {
  const Recorded recorded;
  const Model model(shapes_for_gpu()[0]);
  Decoder decoder(model.config);
  const BlockTable table = {0};
  std::vector<KvStore> stores;  // each lies elsewhere
  constexpr auto most = static_cast<int>(CudaInference::max_recordings);
  for (int i = 0; i < most + 3; ++i) {
    stores.emplace_back(model.config, at::kFloat).reserve(1, 1);
    decoder.infer(model.weights, at::ones({1}, at::kLong), stores.back(), {{&table, 0, 1}});
    CHECK(at::cuda::CUDAGraph::alive == i % most + 1);
  }
}

TEST_CASE("cuda: decoding continues if a step cannot be recorded") {
  const Recorded recorded;
  at::cuda::CUDAGraph::fails = true;
  const Model model(shapes_for_gpu()[2]);
  Decoder decoder(model.config);
  CachedTexts texts(model.config, at::kFloat);
  const int begun = at::cuda::CUDAGraph::begun;
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor got = texts.infer(decoder, model.weights, model.ids.narrow(0, t, 1), {{0, 1}});
    CHECK(relative_difference(got, model.expected.narrow(0, t, 1)) < 1e-5);
  }
  CHECK(at::cuda::CUDAGraph::begun - begun == 1);
}

TEST_CASE("cuda: greedy completions equal those of a full forward per token") {
  const Model model(shapes_for_gpu()[3]);
  Decoder decoder(model.config);
  std::vector<GenerateRequest> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t t = 0; t < 3 + 9 * i; ++t)
      requests[i].tokens.push_back(static_cast<int64_t>((i + t) * t % 61));
    requests[i].max_new_tokens = static_cast<int64_t>(4 + 2 * i);
    requests[i].temperature = 0;
  }
  Engine engine(decoder, size_t{1} << 30, at::kFloat, at::kCPU);
  const std::vector<GenerateResult> results = engine.generate(model.weights, requests, {});
  for (size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    std::vector<int64_t> ids = requests[i].tokens;
    for (const int64_t token : results[i].tokens) {
      const auto length = static_cast<int64_t>(ids.size());
      const at::Tensor hidden = decoder.forward(model.weights, at::tensor(ids, at::kLong), {length});
      CHECK(logits(hidden.narrow(0, length - 1, 1), model.weights.head).argmax().item<int64_t>() == token);
      ids.push_back(token);
    }
    CHECK(static_cast<int64_t>(results[i].tokens.size()) == requests[i].max_new_tokens);
  }
}
