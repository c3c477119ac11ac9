// Sampling by the CUDA kernel against the CPU's, for single logits and whole completions. The
// kernel and its caller are compiled for the CPU here and use tensors in its memory.
#include "core/generate/cuda_draw.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/generate/engine.h"
#include "core/generate/id_mask.h"
#include "core/generate/logit_kernels.h"
#include "core/model/decoder.h"
#include "test/core/fixtures.h"
#include "test/core/model/examples.h"

using namespace nlac;
using namespace nlac::test;

namespace {

struct Chosen {
  int64_t token;
  float log_prob;
};
// The CPU's choice from logits [vocab] after `tokens`, among `allowed` ids (empty: all). Throws
// ERR_NOT_FINITE.
Chosen choose(const at::Tensor& logits, const GenerateRequest& request, const std::vector<int64_t>& tokens,
              int64_t step, std::span<const uint32_t> allowed) {
  const float* row = logits.const_data_ptr<float>();
  const int64_t vocab = logits.size(0);
  const at::Tensor changed = logits.clone();
  constrain(request, tokens, changed.data_ptr<float>());
  if (!allowed.empty()) kernels::keep_allowed(changed.data_ptr<float>(), vocab, allowed.data());
  const bool forced = step < static_cast<int64_t>(request.forced.size());
  const int64_t token = forced ? request.forced[static_cast<size_t>(step)]
                               : sample_token(changed.const_data_ptr<float>(), vocab, request, step, nullptr);
  return {token, log_probability(row, vocab, token)};
}

std::vector<uint32_t> mask_of(const std::vector<int64_t>& ids, int64_t vocab) {
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(vocab)));
  for (const int64_t id : ids) add_to_mask(mask.data(), id);
  return mask;
}

// Random numbers and choices with a fixed seed.
struct Random {
  std::mt19937_64 engine;
  template <typename T>
  T of(const std::vector<T>& values) {
    return values[engine() % values.size()];
  }
  std::vector<int64_t> ids(int64_t count, int64_t vocab) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i)
      ids.push_back(static_cast<int64_t>(engine() % static_cast<uint64_t>(vocab)));
    return ids;
  }
  GenerateRequest request(int64_t vocab) {
    GenerateRequest request;
    request.tokens = ids(20, vocab);
    request.temperature = of<double>({0, 0.3, 1, 1, 1, 2.5, 1e-300, 1e300});
    request.top_k = of<int64_t>({0, 0, 0, 1, 3, 50, vocab - 1, vocab, int64_t{1} << 40});
    request.top_p = of<double>({1, 1, 0.95, 0.5, 1e-9, 1 - 1e-12});
    request.min_p = of<double>({0, 0, 0.1, 1, 1e-9});
    request.repetition_penalty = of<double>({1, 1, 1.3, 0.7});
    if (engine() % 3 == 0) request.forbidden = ids(3, vocab);
    if (engine() % 10 == 0) request.forced = ids(1, vocab);
    request.seed = engine();
    return request;
  }
};

constexpr int64_t vocab_of_texts = 61;

// A request's completion by a full forward per token, sampled on the CPU.
GenerateResult plain(Decoder& decoder, const Weights& weights, const GenerateRequest& request) {
  GenerateResult result;
  std::optional<GrammarMatcher> matcher;
  if (request.grammar.valid()) matcher.emplace(request.grammar.get(), request.stop_token_ids);
  std::vector<int64_t> tokens = request.tokens;
  for (int64_t step = 0; step < request.max_new_tokens; ++step) {
    const auto length = static_cast<int64_t>(tokens.size());
    const at::Tensor hidden = decoder.forward(weights, at::tensor(tokens, at::kLong), {length});
    std::span<const uint32_t> allowed;
    if (matcher && step >= static_cast<int64_t>(request.forced.size())) {
      allowed = matcher->allowed(request.forbidden);
      if (allowed.empty()) {
        result.finish_reason = matcher->complete() ? FinishReason::stop : FinishReason::stuck;
        break;
      }
    }
    const at::Tensor row = logits(hidden.narrow(0, length - 1, 1), weights.head)[0].contiguous();
    const Chosen chosen = choose(row, request, tokens, step, allowed);
    if (request.top_log_probs > 0)
      append_top(row.const_data_ptr<float>(), row.size(0), request.top_log_probs, &result);
    if (matcher) REQUIRE(matcher->accept(chosen.token));
    tokens.push_back(chosen.token);
    result.tokens.push_back(chosen.token);
    result.log_probs.push_back(chosen.log_prob);
  }
  return result;
}

}  // namespace

TEST_CASE("cuda: the same logits give the CPU's token and log probability") {
  Random random;
  at::manual_seed(3);
  int64_t wrong = 0, not_finite = 0;
  double off = 0;  // the largest difference of log probabilities
  for (const auto& [vocab, rows, count] :
       {std::tuple{1, 2, 20}, {13, 6, 300}, {61, 6, 300}, {1009, 6, 300}, {49152, 4, 24}, {152064, 4, 16}}) {
    const at::Tensor logits = at::randn({rows, vocab});
    for (int64_t row = 0; row < rows; ++row) logits[row].mul_(0.5 + 2 * static_cast<double>(row));
    logits[0].copy_(logits[0].mul(4).round().div(4));  // many are equal
    if (rows == 6) {
      logits[4].fill_(random.of<float>({0, -1e30f, 1e30f}));
      logits[5][vocab / 2] = random.of<float>({NAN, INFINITY});
    }
    std::vector<GenerateRequest> requests;
    std::vector<std::vector<uint32_t>> masks;
    for (int64_t i = 0; i < count; ++i) {
      requests.push_back(random.request(vocab));
      masks.push_back(mask_of(random.ids(vocab, vocab), vocab));
      masks.push_back(mask_of(requests.back().tokens, vocab));
    }
    std::vector<CudaDraw> draws;
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerateRequest& request = requests[i];
      CudaDraw& draw = draws.emplace_back();
      draw.request = &request;
      draw.step = random.of<int64_t>({0, 1, 50});
      draw.row = static_cast<int64_t>(i) % rows;
      if (draw.step < static_cast<int64_t>(request.forced.size()))
        draw.forced = request.forced[static_cast<size_t>(draw.step)];
      std::vector<uint32_t>& allowed = masks[2 * i];
      if (random.engine() % 3 == 0) request.forbidden.clear();
      for (const int64_t id : request.forbidden) take_from_mask(allowed.data(), id);
      if (!request.forbidden.empty()) draw.allowed = allowed;
      if (request.repetition_penalty != 1) draw.seen = masks[2 * i + 1];
    }
    draw_on_gpu(logits, draws);
    for (const CudaDraw& draw : draws) {
      Chosen expected{-1, 0};
      try {
        expected = choose(logits[draw.row], *draw.request, draw.request->tokens, draw.step, draw.allowed);
      } catch (const Error& error) {
        CHECK(std::string(error.code()) == "ERR_NOT_FINITE");
        ++not_finite;
      }
      wrong += draw.token != expected.token;
      off = std::max<double>(
          off, draw.log_prob == expected.log_prob ? 0 : std::abs(draw.log_prob - expected.log_prob));
    }
  }
  CHECK(wrong == 0);
  CHECK(not_finite > 100);
  CHECK(off < 4e-6);
}

TEST_CASE("cuda: only float32 logits on the GPU are sampled on the GPU") {
  CHECK(can_draw_on_gpu(at::zeros({2, 5})));
  CHECK_FALSE(can_draw_on_gpu(at::zeros({2, 5}, at::kBFloat16)));
  CHECK_FALSE(can_draw_on_gpu(at::empty({1, (int64_t{1} << 22) + 1})));
  std::vector<CudaDraw> none;
  draw_on_gpu(at::zeros({2, 5}), none);
  GenerateRequest request;
  std::vector<uint32_t> few(1);
  std::vector<CudaDraw> draws(1);
  draws[0].request = &request;
  draws[0].allowed = few;
  CHECK(code_of([&] { draw_on_gpu(at::zeros({1, 33}), draws); }) == "ERR_INTERNAL");
}

TEST_CASE("cuda: completions equal the CPU's, with and without constraints") {
  const ModelConfig config = shapes_for_gpu()[1];
  const Weights weights = random_weights(config, at::kFloat, at::kCPU);
  Decoder decoder(config);
  std::vector<std::string> letters;  // every id is one
  for (int id = 0; id < vocab_of_texts; ++id) letters.emplace_back(1, static_cast<char>('0' + id));
  GrammarCompiler compiler(letters);
  Random random;
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 16; ++i) {
    requests.push_back(random.request(vocab_of_texts));
    GenerateRequest& request = requests.back();
    if (i % 6 == 5) request.tokens = requests.front().tokens;  // read once, drawn for each
    request.max_new_tokens = 4 + i / 2;
    if (i % 3 == 1) request.top_log_probs = 2;  // drawn on the host, beside the others
    if (i % 4 == 3) {
      request.grammar = compiler.compile(R"({"regex": "([0-9]{2}[A-Z]{3})*"})");
      request.forced = {};
      request.forbidden = {3, 20};
    }
  }
  requests[3].forced = {4, 9, 40};                                    // "49X"
  requests[7].grammar = compiler.compile(R"({"literal": "A1B2"})");   // ends by itself
  requests[15].grammar = compiler.compile(R"({"literal": "A0C3"})");  // 3 may not come
  Engine engine(decoder, size_t{1} << 30, at::kFloat, at::kCPU);
  const std::vector<GenerateResult> got = engine.generate(weights, requests, {});
  for (size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    const GenerateResult expected = plain(decoder, weights, requests[i]);
    CHECK(got[i].tokens == expected.tokens);
    CHECK(got[i].finish_reason == expected.finish_reason);
    CHECK(got[i].top_tokens == expected.top_tokens);
    REQUIRE(got[i].log_probs.size() == got[i].tokens.size());
    for (size_t t = 0; t < expected.log_probs.size(); ++t)
      CHECK(got[i].log_probs[t] == doctest::Approx(expected.log_probs[t]).epsilon(1e-4));
  }
  CHECK(got[7].finish_reason == FinishReason::stop);
  CHECK(got[15].finish_reason == FinishReason::stuck);
}

TEST_CASE("cuda: a request that cannot be sampled fails only its own call") {
  const ModelConfig config = shapes_for_gpu()[0];
  Weights weights = random_weights(config, at::kFloat, at::kCPU);
  Decoder decoder(config);
  std::vector<std::string> letters;
  for (int id = 0; id < vocab_of_texts; ++id) letters.emplace_back(1, static_cast<char>('0' + id));
  GrammarCompiler compiler(letters);
  GenerateRequest good;
  good.tokens = {1, 2, 3};
  good.max_new_tokens = 5;
  GenerateRequest bad = good;
  bad.grammar = compiler.compile(R"({"literal": "A1B2"})");
  bad.forced = {0};
  Engine engine(decoder, size_t{1} << 30, at::kFloat, at::kCPU);
  const auto of_good = engine.submit({good}, {}), of_bad = engine.submit({good, bad}, {});
  while (engine.step(weights)) {
  }
  CHECK_FALSE(of_good->failure);
  CHECK(of_good->results[0].tokens.size() == 5);
  CHECK(code_of([&] { std::rethrow_exception(of_bad->failure); }) == "ERR_VALUE");
  weights.head = weights.head.clone();
  weights.head[60].fill_(NAN);
  decoder.forget_packed(weights);
  CHECK(code_of([&] { engine.generate(weights, {good}, {}); }) == "ERR_NOT_FINITE");
}
