// Generation with recurrent models (test/fixtures/models/qwen3_5, qwen3_5_moe): every text is
// compared with the same text alone, computed token by token without an engine, to the last bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/model/adapter.h"
#include "test/core/generate/engine_examples.h"

using namespace nlac;
using namespace engine_test;

namespace {

struct Recurrent {
  LoadedModel loaded;
  Decoder decoder;
  std::map<std::vector<int64_t>, GenerateResult> known;
  explicit Recurrent(at::ScalarType dtype = at::kFloat, const std::string& name = "qwen3_5")
      : loaded(load_model(nlac::test::fixture("models/" + name), dtype, at::kCPU)), decoder(widened()) {}

  ModelConfig widened() {
    loaded.config.max_positions = 512;
    return loaded.config;
  }
  // Adds adapters that change the model to all projections.
  void adapt() {
    const Weights adapters = make_adapters(loaded.config, {2, 4, projection_names(), 3}, at::kCPU);
    at::manual_seed(5);
    for (const at::Tensor& tensor : adapters.list()) tensor.normal_(0, 0.1);
    const at::ScalarType type = loaded.weights.embedding.scalar_type();
    loaded.weights = with_adapters(loaded.weights, adapters.copy_as(type, at::kCPU));
  }
  Engine engine(size_t cache_bytes = size_t{1} << 30) {
    return {decoder, cache_bytes, loaded.weights.embedding.scalar_type(), at::kCPU};
  }
  // The greedy completion, one token at a time from the first on.
  GenerateResult alone(const GenerateRequest& request) {
    KvStore store(loaded.config, loaded.weights.embedding.options());
    store.reserve(64, 64);
    store.states().reserve(1, 1);
    store.states().zero(0);
    BlockTable blocks;
    for (int32_t i = 0; i < 64; ++i) blocks.push_back(i);
    GenerateResult result;
    std::vector<int64_t> ids = request.tokens;
    for (int64_t at = 0;; ++at) {
      const at::Tensor hidden =
          decoder.infer(loaded.weights, at::tensor({ids[static_cast<size_t>(at)]}, at::kLong), store,
                        {{&blocks, at, 1, 0}});
      if (at + 1 < static_cast<int64_t>(ids.size())) continue;
      const at::Tensor row = decoder.infer_logits(loaded.weights, hidden);
      float log_prob = 0;
      const int64_t id = sample_token(row.const_data_ptr<float>(), loaded.config.vocab_size, request,
                                      static_cast<int64_t>(result.tokens.size()), &log_prob);
      ids.push_back(id);
      result.tokens.push_back(id);
      result.log_probs.push_back(log_prob);
      if (static_cast<int64_t>(result.tokens.size()) == request.max_new_tokens) return result;
    }
  }
  // The same, computed once for each prompt.
  const GenerateResult& expected(const GenerateRequest& request) {
    const auto [place, fresh] = known.try_emplace(request.tokens);
    if (fresh) place->second = alone(request);
    return place->second;
  }
  void check(const std::vector<GenerateRequest>& requests, const std::vector<GenerateResult>& results) {
    REQUIRE(results.size() == requests.size());
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      CHECK(results[i].tokens == expected(requests[i]).tokens);
      CHECK(results[i].log_probs == expected(requests[i]).log_probs);
    }
  }
};

GenerateRequest ask(std::vector<int64_t> tokens, int64_t max_new = 6) {
  return request_of(std::move(tokens), max_new);
}

}  // namespace

TEST_CASE("texts of a recurrent model have the same bits alone and in a batch") {
  for (const auto& [dtype, name, adapted] : {std::tuple{at::kFloat, "qwen3_5", false},
                                             {at::kBFloat16, "qwen3_5", false},
                                             {at::kFloat, "qwen3_5_moe", false},
                                             {at::kBFloat16, "qwen3_5_moe", false},
                                             {at::kFloat, "qwen3_5_moe", true},
                                             {at::kBFloat16, "qwen3_5_moe", true}}) {
    CAPTURE(name);
    CAPTURE(adapted);
    Recurrent model(dtype, name);
    if (adapted) model.adapt();
    const std::vector<int64_t> prefix = random_ids(100, 1);
    std::vector<GenerateRequest> requests;
    for (const int64_t more : {1, 7, 40, 16})
      requests.push_back(ask(joined(prefix, random_ids(more, static_cast<uint64_t>(more)))));
    requests.push_back(requests[1]);             // follows another
    requests.push_back(ask(random_ids(30, 9)));  // shares nothing
    requests.push_back(ask({5}, 20));
    Engine engine = model.engine();
    model.check(requests, engine.generate(model.loaded.weights, requests, {}));
    // Again, from the caches.
    model.check(requests, engine.generate(model.loaded.weights, requests, {}));
  }
}

TEST_CASE("a shared prefix of a recurrent model is computed once") {
  Recurrent model;
  const std::vector<int64_t> prefix = random_ids(100, 1);
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) requests.push_back(ask(joined(prefix, random_ids(20, 50 + i))));
  Engine engine = model.engine();
  const auto results = engine.generate(model.loaded.weights, requests, {});
  model.check(requests, results);
  CHECK(results[0].cached_tokens == 0);
  for (size_t i = 1; i < results.size(); ++i) CHECK(results[i].cached_tokens == 96);  // whole blocks
}

TEST_CASE("a conversation with a recurrent model continues from the end of the last turn") {
  Recurrent model;
  Engine engine = model.engine();
  const GenerateRequest first = ask(random_ids(50, 3), 10);
  const auto turn = engine.generate(model.loaded.weights, {first}, {});
  const GenerateRequest second = ask(joined(joined(first.tokens, turn[0].tokens), random_ids(9, 4)), 10);
  const auto next = engine.generate(model.loaded.weights, {second}, {});
  model.check({second}, next);
  CHECK(next[0].cached_tokens == 59);  // all but the last sampled token
  // A text that diverges earlier is computed from the start, and the text after it from where the
  // two diverge.
  std::vector<int64_t> other(first.tokens.begin(), first.tokens.begin() + 40);
  for (const int64_t expected : {0, 32}) {
    const GenerateRequest third = ask(joined(other, random_ids(15, static_cast<uint64_t>(expected) + 7)));
    const auto parted = engine.generate(model.loaded.weights, {third}, {});
    model.check({third}, parted);
    CHECK(parted[0].cached_tokens == expected);
  }
}

TEST_CASE("little memory delays texts of a recurrent model and changes no bit") {
  Recurrent model;
  std::vector<GenerateRequest> requests;
  const std::vector<int64_t> prefix = random_ids(60, 2);
  for (uint64_t i = 0; i < 4; ++i)
    requests.push_back(ask(joined(prefix, random_ids(10 + 9 * i, 20 + i)), 25));
  const size_t slot = StateStore::slot_bytes(model.loaded.config, at::kFloat),
               block = KvStore::block_bytes(model.loaded.config, at::kFloat);
  for (const size_t cache_bytes : {size_t{0}, 2 * slot, 4 * slot, 2 * std::max(2 * slot, 12 * block)}) {
    CAPTURE(cache_bytes);
    Engine engine = model.engine(cache_bytes);
    model.check(requests, engine.generate(model.loaded.weights, requests, {}));
  }
  Engine engine = model.engine();
  engine.generate(model.loaded.weights, requests, {});
  CHECK(engine.cached_bytes() > 0);
  engine.drop_caches();
  CHECK(engine.cached_bytes() == 0);
}

TEST_CASE("random calls, cancels and budgets of a recurrent model change no bit") {
  Recurrent model;
  constexpr int64_t longest = 12;  // completion
  const size_t block = KvStore::block_bytes(model.loaded.config, at::kFloat);
  std::mt19937_64 numbers(22);
  int64_t preemptions = 0;
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    Engine engine = model.engine(2 * (4 + numbers() % 24) * block);
    std::vector<std::vector<int64_t>> known = {random_ids(90, numbers())};
    const auto requests_of = [&] {
      std::vector<GenerateRequest> requests;
      for (uint64_t i = 0; i < 1 + numbers() % 4; ++i) {
        const auto& base = known[numbers() % known.size()];
        const auto cut = numbers() % 3 == 0 ? base.size() : 1 + numbers() % base.size();
        std::vector<int64_t> prompt(base.begin(), base.begin() + static_cast<int64_t>(cut));
        if (numbers() % 2)
          prompt = joined(prompt, random_ids(1 + static_cast<int64_t>(numbers() % 40), numbers()));
        if (prompt.size() < 200) known.push_back(prompt);
        requests.push_back(ask(prompt, 1 + static_cast<int64_t>(numbers() % longest)));
        if (numbers() % 3 == 0) requests.push_back(requests.back());
      }
      return requests;
    };
    const auto calls = random_calls(engine, model.loaded.weights, numbers, 40, requests_of);
    while (engine.step(model.loaded.weights)) continue;
    preemptions += engine.preemptions();
    for (const RandomCall& made : calls) {
      REQUIRE(made.call->done());
      CHECK_FALSE(made.call->failure);
      for (size_t i = 0; i < made.call->requests.size(); ++i) {
        CAPTURE(i);
        const GenerateResult& result = made.call->results[i];
        const GenerateResult& whole = model.expected(ask(made.call->requests[i].tokens, longest));
        if (result.finish_reason == FinishReason::cancelled)
          CHECK(*made.cancelled);
        else
          CHECK(static_cast<int64_t>(result.tokens.size()) == made.call->requests[i].max_new_tokens);
        REQUIRE(result.tokens.size() <= whole.tokens.size());
        CHECK(std::equal(result.tokens.begin(), result.tokens.end(), whole.tokens.begin()));
        CHECK(std::equal(result.log_probs.begin(), result.log_probs.end(), whole.log_probs.begin()));
      }
    }
  }
  CHECK(preemptions > 0);
}

TEST_CASE("without memory for another text of a recurrent model, all calls fail, and later ones do not") {
  Recurrent model;
  Engine engine = model.engine();
  const GenerateRequest request = request_of(random_ids(40, 1, model.loaded.config.vocab_size), 8),
                        other = request_of(random_ids(40, 2, model.loaded.config.vocab_size), 8);
  const GenerateResult expected = model.alone(request);
  static FullMemory memory;
  c10::SetCPUAllocator(&memory, 2);
  const auto running = engine.submit({request}, {});
  engine.step(model.loaded.weights);
  const auto joining = engine.submit({other}, {});
  memory.full = true;
  CHECK_NOTHROW(engine.step(model.loaded.weights));
  memory.full = false;
  CHECK(running->failure);
  CHECK(joining->failure);
  REQUIRE_FALSE(engine.busy());
  CHECK(engine.cached_bytes() == 0);

  // A text whose cached blocks are found before there is no memory for its state.
  check_same(engine.generate(model.loaded.weights, {request}, {})[0], expected);
  const auto beside = engine.submit({other}, {});
  engine.step(model.loaded.weights);
  const auto cached = engine.submit({request_of(joined(request.tokens, {1, 2, 3}), 8)}, {});
  memory.full = true;
  engine.step(model.loaded.weights);
  memory.full = false;
  CHECK(beside->failure);
  CHECK(cached->failure);
  CHECK(engine.cached_bytes() == 0);
  check_same(engine.generate(model.loaded.weights, {request}, {})[0], expected);
  c10::SetCPUAllocator(memory.under, 2);
}
