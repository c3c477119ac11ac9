// A small model and its expected completions.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/generate/engine.h"
#include "core/model/decoder.h"
#include "test/core/fixtures.h"

namespace engine_test {

using namespace nlac;
using nlac::test::code_of;
inline ModelConfig tiny_config(int64_t max_positions = 256) {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.max_positions = max_positions;
  config.tied_embeddings = true;
  return config;
}

inline Weights random_weights(const ModelConfig& config, uint64_t seed) {
  at::NoGradGuard no_grad;
  at::manual_seed(seed);
  Weights weights = allocate_weights(config, at::kFloat, at::kCPU);
  for (const at::Tensor& tensor : weights.list()) {
    if (tensor.dim() == 1) {
      tensor.fill_(1);
    } else {
      tensor.normal_(0, 0.25);
    }
  }
  return weights;
}

struct Model {
  ModelConfig config;
  Weights weights;
  Decoder decoder;
  explicit Model(int64_t max_positions = 256, uint64_t seed = 1)
      : config(tiny_config(max_positions)), weights(random_weights(config, seed)), decoder(config) {}

  // Logits after the last of `ids`, without a cache.
  at::Tensor last_logits(const std::vector<int64_t>& ids) {
    const int64_t length = static_cast<int64_t>(ids.size());
    const at::Tensor hidden = decoder.forward(weights, at::tensor(ids, at::kLong), {length});
    return logits(hidden.slice(0, length - 1), weights.head)[0].contiguous();
  }

  GenerateResult plain(const GenerateRequest& request) {
    GenerateResult result;
    std::vector<int64_t> ids = request.tokens;
    while (static_cast<int64_t>(result.tokens.size()) < request.max_new_tokens &&
           static_cast<int64_t>(ids.size()) < config.max_positions) {
      const at::Tensor row = last_logits(ids);
      float log_prob = 0;
      const int64_t id = sample_token(row.const_data_ptr<float>(), config.vocab_size, request,
                                      static_cast<int64_t>(result.tokens.size()), &log_prob);
      ids.push_back(id);
      result.tokens.push_back(id);
      result.log_probs.push_back(log_prob);
      const auto& stops = request.stop_token_ids;
      if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
        result.finish_reason = FinishReason::stop;
        break;
      }
    }
    return result;
  }

  Engine engine(size_t cache_bytes = size_t{1} << 30) { return {decoder, cache_bytes, at::kFloat, at::kCPU}; }

  std::vector<GenerateResult> fresh(const std::vector<GenerateRequest>& requests,
                                    const GenerateHooks& hooks = {}) {
    return engine().generate(weights, requests, hooks);
  }
};

inline std::vector<int64_t> random_ids(int64_t count, uint64_t seed, int64_t vocab = 61) {
  std::mt19937_64 numbers(seed);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int64_t>(numbers() % static_cast<uint64_t>(vocab)));
  return ids;
}

inline GenerateRequest request_of(std::vector<int64_t> tokens, int64_t max_new, double temperature = 0,
                                  uint64_t seed = 0) {
  GenerateRequest request;
  request.tokens = std::move(tokens);
  request.max_new_tokens = max_new;
  request.temperature = temperature;
  request.seed = seed;
  return request;
}

inline std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct RandomCall {
  std::shared_ptr<GenerateCall> call;
  std::unique_ptr<std::atomic<bool>> cancelled;
};

// Submits the requests of make(), cancels calls and takes steps, in random order. Some calls may not
// be done at the end.
template <typename Make>
std::vector<RandomCall> random_calls(Engine& engine, const Weights& weights, std::mt19937_64& numbers,
                                     int operations, const Make& make) {
  std::vector<RandomCall> calls;
  for (int operation = 0; operation < operations; ++operation) {
    const auto kind = numbers() % 8;
    if (kind < 2) {
      RandomCall made{nullptr, std::make_unique<std::atomic<bool>>(false)};
      GenerateHooks hooks;
      hooks.cancelled = made.cancelled.get();
      made.call = engine.submit(make(), hooks);
      calls.push_back(std::move(made));
    } else if (kind == 2 && !calls.empty()) {
      *calls[numbers() % calls.size()].cancelled = true;
    } else {
      engine.step(weights);
    }
  }
  return calls;
}

// Fails all large allocations while `full`.
class FullMemory final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    const bool fails = full ? bytes >= 1024 : left >= 0 && left-- == 0;
    TORCH_CHECK(!fails, "not enough memory: a test's allocation fails");
    return under->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return under->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    under->copy_data(to, from, bytes);
  }

  c10::Allocator* const under = c10::GetCPUAllocator();
  bool full = false;
  int64_t left = -1;  // allocations before one fails
};

inline void check_same(const GenerateResult& got, const GenerateResult& expected) {
  CHECK(got.tokens == expected.tokens);
  CHECK(got.finish_reason == expected.finish_reason);
  REQUIRE(got.log_probs.size() == got.tokens.size());
  for (size_t i = 0; i < std::min(got.log_probs.size(), expected.log_probs.size()); ++i) {
    CHECK(got.log_probs[i] == doctest::Approx(expected.log_probs[i]).epsilon(1e-4));
  }
}

}  // namespace engine_test
