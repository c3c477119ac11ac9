// Generation against the plain way: the whole text read again for every token, one sequence at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/generate/generate.h"
#include "core/generate/prefill.h"
#include "core/model/decoder.h"

using namespace nlac;

namespace {

ModelConfig tiny_config(int64_t max_positions = 256) {
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

Weights random_weights(const ModelConfig& config, uint64_t seed) {
  at::NoGradGuard no_grad;
  torch::manual_seed(seed);
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

  // Logits after the last of `ids`, from nothing.
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

  std::vector<GenerateResult> fresh(const std::vector<GenerateRequest>& requests,
                                    const GenerateHooks& hooks = {}) {
    return Generator(decoder, size_t{1} << 30).generate(weights, requests, hooks);
  }
};

std::vector<int64_t> random_ids(int64_t count, uint64_t seed, int64_t vocab = 61) {
  std::mt19937_64 engine(seed);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int64_t>(engine() % static_cast<uint64_t>(vocab)));
  return ids;
}

GenerateRequest request_of(std::vector<int64_t> tokens, int64_t max_new, double temperature = 0,
                           uint64_t seed = 0) {
  GenerateRequest request;
  request.tokens = std::move(tokens);
  request.max_new_tokens = max_new;
  request.temperature = temperature;
  request.seed = seed;
  return request;
}

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void check_same(const GenerateResult& got, const GenerateResult& expected) {
  CHECK(got.tokens == expected.tokens);
  CHECK(got.finish_reason == expected.finish_reason);
  REQUIRE(got.log_probs.size() == got.tokens.size());
  for (size_t i = 0; i < std::min(got.log_probs.size(), expected.log_probs.size()); ++i) {
    CHECK(got.log_probs[i] == doctest::Approx(expected.log_probs[i]).epsilon(1e-4));
  }
}

std::string code_of(const std::function<void()>& body, std::string* message = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.code();
  }
  return "none";
}

}  // namespace

TEST_CASE("greedy generation is the argmax of a full forward at every step") {
  Model model;
  const GenerateRequest request = request_of(random_ids(9, 3), 20);
  const GenerateResult result = model.fresh({request})[0];
  REQUIRE(result.tokens.size() == 20);
  CHECK(result.finish_reason == FinishReason::length);
  std::vector<int64_t> ids = request.tokens;
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const at::Tensor row = model.last_logits(ids);
    CHECK(result.tokens[i] == row.argmax().item<int64_t>());
    CHECK(result.log_probs[i] ==
          doctest::Approx(row.log_softmax(0)[result.tokens[i]].item<float>()).epsilon(1e-4));
    ids.push_back(result.tokens[i]);
  }
}

TEST_CASE("a request gives the same text in a batch as alone") {
  Model model;
  std::vector<GenerateRequest> requests;
  const std::vector<int64_t> system = random_ids(40, 11);
  for (uint64_t i = 0; i < 6; ++i) {  // a shared beginning, and different lengths
    requests.push_back(request_of(joined(system, random_ids(static_cast<int64_t>(3 + i * 7), 20 + i)),
                                  static_cast<int64_t>(5 + i), 1.0, i));
  }
  requests.push_back(request_of(requests[2].tokens, 8, 1.0, 77));  // the same prompt twice
  requests.push_back(request_of(requests[2].tokens, 8, 0));        // and three times
  requests.push_back(request_of(system, 6, 0.8, 5));               // a prompt that begins the others
  requests.push_back(request_of(random_ids(4, 99), 12, 1.3, 6));   // one with nothing in common
  requests.push_back(request_of(joined(requests[2].tokens, {5}), 4, 1, 8));  // one token more than another
  const auto results = model.fresh(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    check_same(results[i], model.plain(requests[i]));
    check_same(results[i], model.fresh({requests[i]})[0]);
    CHECK(results[i].cached_tokens == 0);
  }
}

TEST_CASE("shared prompts are read once") {
  // A context of 3 + 16 prompts' own tokens: what one call reads shows in the bytes it keeps only indirectly,
  // so the second call tells: everything but the last prompt token is found.
  Model model;
  Generator generator(model.decoder, size_t{1} << 30);
  const std::vector<int64_t> prompt = random_ids(50, 4);
  std::vector<GenerateRequest> group;
  for (uint64_t i = 0; i < 8; ++i) group.push_back(request_of(prompt, 6, 1.0, i));
  const auto first = generator.generate(model.weights, group, {});
  const auto second = generator.generate(model.weights, group, {});
  for (size_t i = 0; i < group.size(); ++i) {
    CHECK(first[i].cached_tokens == 0);
    CHECK(second[i].cached_tokens == 49);
    check_same(second[i], first[i]);
    check_same(first[i], model.plain(group[i]));
  }
}

TEST_CASE("a conversation that grows is continued from the cache") {
  Model model;
  Generator generator(model.decoder, size_t{1} << 30);
  std::vector<std::vector<int64_t>> conversations;
  const std::vector<int64_t> system = random_ids(30, 8);
  for (uint64_t i = 0; i < 3; ++i) conversations.push_back(joined(system, random_ids(5, 40 + i)));
  std::vector<size_t> held(3, 0);
  for (uint64_t turn = 0; turn < 4; ++turn) {
    std::vector<GenerateRequest> requests;
    for (uint64_t i = 0; i < 3; ++i) requests.push_back(request_of(conversations[i], 7, 1.0, 10 * turn + i));
    const auto results = generator.generate(model.weights, requests, {});
    for (uint64_t i = 0; i < 3; ++i) {
      CAPTURE(turn);
      CAPTURE(i);
      check_same(results[i], model.plain(requests[i]));
      CHECK(results[i].cached_tokens == static_cast<int64_t>(held[i]));
      conversations[i] = joined(conversations[i], results[i].tokens);
      held[i] = conversations[i].size() - 1;  // the last token written has not been read
      conversations[i] = joined(conversations[i], random_ids(4, 100 * turn + i));
    }
  }
}

TEST_CASE("a branch takes a truncated copy and leaves the original") {
  Model model;
  Generator generator(model.decoder, size_t{1} << 30);
  const std::vector<int64_t> trunk = random_ids(60, 5);
  const GenerateRequest original = request_of(joined(trunk, random_ids(20, 6)), 5);
  generator.generate(model.weights, {original}, {});
  const GenerateRequest branch = request_of(joined(trunk, {1, 2, 3}), 5);
  const auto branched = generator.generate(model.weights, {branch}, {})[0];
  CHECK(branched.cached_tokens >= 60);
  check_same(branched, model.plain(branch));
  const auto again = generator.generate(model.weights, {original}, {})[0];
  CHECK(again.cached_tokens == 79);
  check_same(again, model.plain(original));
  // A beginning too short to pay is read anew.
  const GenerateRequest elsewhere = request_of(joined({trunk.begin(), trunk.begin() + 5}, {9, 9, 9}), 3);
  CHECK(generator.generate(model.weights, {elsewhere}, {})[0].cached_tokens <= 5 * (trunk[5] == 9));
}

TEST_CASE("any mix of cached and new prompts equals reading from nothing") {
  Model model;
  Generator generator(model.decoder, size_t{400} << 10);  // small enough that entries come and go
  std::mt19937_64 engine(12);
  std::vector<std::vector<int64_t>> known = {random_ids(25, 1), random_ids(33, 2)};
  for (int round = 0; round < 12; ++round) {
    std::vector<GenerateRequest> requests;
    const size_t count = 1 + engine() % 6;
    for (size_t i = 0; i < count; ++i) {
      const auto& base = known[engine() % known.size()];
      const int64_t cut = 1 + static_cast<int64_t>(engine() % base.size());
      std::vector<int64_t> prompt(base.begin(), base.begin() + cut);
      if (engine() % 3) prompt = joined(prompt, random_ids(static_cast<int64_t>(engine() % 30), engine()));
      requests.push_back(request_of(prompt, 1 + static_cast<int64_t>(engine() % 6), engine() % 2, engine()));
    }
    const auto results = generator.generate(model.weights, requests, {});
    CHECK(generator.cached_bytes() <= size_t{400} << 10);
    for (size_t i = 0; i < count; ++i) {
      CAPTURE(round);
      CAPTURE(i);
      check_same(results[i], model.plain(requests[i]));
      CHECK(results[i].cached_tokens < static_cast<int64_t>(requests[i].tokens.size()));
      auto whole = joined(requests[i].tokens, results[i].tokens);
      if (whole.size() < 150) known.push_back(std::move(whole));
    }
  }
}

TEST_CASE("a prompt longer than one inference call is read in pieces") {
  Model model(kPrefillTokens + 600);
  std::vector<GenerateRequest> requests = {request_of(random_ids(100, 1), 3),
                                           request_of(random_ids(kPrefillTokens + 500, 2), 3),
                                           request_of(random_ids(70, 3), 3)};
  const auto results = model.fresh(requests);
  for (size_t i = 0; i < requests.size(); ++i) check_same(results[i], model.plain(requests[i]));
}

TEST_CASE("limits") {
  Model model(32);
  SUBCASE("the context ends the text") {
    const auto result = model.fresh({request_of(random_ids(25, 1), 100)})[0];
    CHECK(result.tokens.size() == 7);
    CHECK(result.finish_reason == FinishReason::length);
  }
  SUBCASE("a full prompt, or no new tokens asked for") {
    const auto results =
        model.fresh({request_of(random_ids(32, 1), 5), request_of({1, 2}, 0), request_of({3}, 2)});
    CHECK(results[0].tokens.empty());
    CHECK(results[1].tokens.empty());
    CHECK(results[2].tokens.size() == 2);
  }
  SUBCASE("no requests") { CHECK(model.fresh({}).empty()); }
}

TEST_CASE("stop ids end the text and are kept") {
  Model model;
  GenerateRequest request = request_of(random_ids(6, 2), 30, 1.0, 3);
  const auto free = model.fresh({request})[0];
  request.stop_token_ids = {free.tokens[10], 60000};
  const auto result = model.fresh({request})[0];
  const auto place = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[10]);
  CHECK(result.tokens == std::vector<int64_t>(free.tokens.begin(), place + 1));
  CHECK(result.finish_reason == FinishReason::stop);
}

TEST_CASE("stop strings are found across tokens") {
  Model model;
  std::vector<std::string> bytes;  // id 0 → "<0>", …; one id decodes to nothing, some are missing
  for (int64_t id = 0; id < 58; ++id) bytes.push_back("<" + std::to_string(id) + ">");
  GenerateHooks hooks;
  hooks.token_bytes = &bytes;
  GenerateRequest request = request_of(random_ids(6, 2), 40, 1.5, 4);
  const auto free = model.fresh({request}, hooks)[0];
  const auto text_to = [&](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) {
      if (static_cast<size_t>(free.tokens[i]) < bytes.size())
        text += bytes[static_cast<size_t>(free.tokens[i])];
    }
    return text;
  };
  const auto check_stop = [&](const std::string& stop) {
    size_t expected = 1;
    while (expected < free.tokens.size() && text_to(expected).find(stop) == std::string::npos) ++expected;
    request.stop = {"never written", stop};
    const auto result = model.fresh({request}, hooks)[0];
    CAPTURE(stop);
    CHECK(result.tokens.size() == expected);
    CHECK(result.finish_reason == FinishReason::stop);
  };
  const std::string whole = text_to(free.tokens.size());
  check_stop(text_to(1));                                 // the first token itself
  check_stop(text_to(12).substr(text_to(9).size() + 1));  // from within one token to the end of a later one
  check_stop(text_to(20).substr(text_to(10).size() - 2, 25));
  check_stop(whole.substr(whole.size() - 6));  // completed by the very last token
}

TEST_CASE("cancelling returns what there is, and leaves caches that can be trusted") {
  Model model;
  Generator generator(model.decoder, size_t{1} << 30);
  std::atomic<bool> cancelled{false};
  GenerateHooks hooks;
  hooks.cancelled = &cancelled;
  const std::vector<GenerateRequest> requests = {request_of(random_ids(20, 1), 30, 1, 1),
                                                 request_of(random_ids(25, 2), 3, 1, 2)};
  SUBCASE("while writing") {
    std::vector<std::vector<int64_t>> seen(2);
    hooks.on_token = [&](int64_t request, int64_t token) {
      seen[static_cast<size_t>(request)].push_back(token);
      if (seen[0].size() == 6) cancelled = true;
    };
    const auto results = generator.generate(model.weights, requests, hooks);
    CHECK(results[0].finish_reason == FinishReason::cancelled);
    CHECK(results[1].finish_reason == FinishReason::length);
    CHECK(results[0].tokens.size() == 6);
    CHECK(results[0].tokens == seen[0]);
    CHECK(results[1].tokens == seen[1]);
    CHECK(results[0].log_probs.size() == 6);
  }
  SUBCASE("before anything was read") {
    cancelled = true;
    const auto results = generator.generate(model.weights, requests, hooks);
    for (const auto& result : results) {
      CHECK(result.finish_reason == FinishReason::cancelled);
      CHECK(result.tokens.empty());
    }
  }
  const auto after = generator.generate(model.weights, requests, {});
  for (size_t i = 0; i < requests.size(); ++i) check_same(after[i], model.plain(requests[i]));
}

TEST_CASE("kept caches stay under their budget, the least recently used go first") {
  Model model;
  const auto prompt = [](uint64_t i) { return random_ids(60, 500 + i); };
  Generator probe(model.decoder, size_t{1} << 30);
  probe.generate(model.weights, {request_of(prompt(0), 2)}, {});
  const size_t each = probe.cached_bytes();
  CHECK(each > 0);

  Generator generator(model.decoder, 3 * each);
  for (uint64_t i = 0; i < 3; ++i) generator.generate(model.weights, {request_of(prompt(i), 2)}, {});
  CHECK(generator.cached_bytes() == 3 * each);
  generator.generate(model.weights, {request_of(prompt(0), 2)}, {});  // 1 is now the oldest
  generator.generate(model.weights, {request_of(prompt(3), 2)}, {});
  CHECK(generator.cached_bytes() <= 3 * each);
  const auto cached = [&](uint64_t i) {
    return generator.generate(model.weights, {request_of(prompt(i), 1)}, {})[0].cached_tokens;
  };
  CHECK(cached(0) == 59);
  CHECK(cached(3) == 59);
  CHECK(cached(1) == 0);

  generator.drop_caches();
  CHECK(generator.cached_bytes() == 0);
  CHECK(cached(0) == 0);
  Generator none(model.decoder, 0);
  none.generate(model.weights, {request_of(prompt(0), 2)}, {});
  CHECK(none.cached_bytes() == 0);
}

TEST_CASE("a bad request is refused by its index before anything is generated") {
  Model model(64);
  int64_t written = 0;
  GenerateHooks hooks;
  hooks.on_token = [&](int64_t, int64_t) { ++written; };
  const auto refused = [&](const std::function<void(GenerateRequest&)>& spoil) {
    std::vector<GenerateRequest> requests = {request_of({1, 2, 3}, 4), request_of({1, 2, 3}, 4)};
    spoil(requests[1]);
    std::string message;
    CHECK(code_of([&] { model.fresh(requests, hooks); }, &message) == "ERR_VALUE");
    CHECK(message.find("request 1") != std::string::npos);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  refused([](auto& r) { r.tokens.clear(); });
  refused([](auto& r) { r.tokens = {1, 61}; });
  refused([](auto& r) { r.tokens = {-1}; });
  refused([](auto& r) { r.tokens = random_ids(65, 1); });
  refused([](auto& r) { r.max_new_tokens = -1; });
  for (double bad : {-0.1, nan, infinity}) refused([&](auto& r) { r.temperature = bad; });
  for (double bad : {0.0, -1.0, 1.5, nan}) refused([&](auto& r) { r.top_p = bad; });
  for (double bad : {-0.1, 1.5, nan}) refused([&](auto& r) { r.min_p = bad; });
  refused([](auto& r) { r.top_k = -1; });
  refused([](auto& r) { r.stop = {"x"}; });  // without token bytes
  CHECK(written == 0);
}

TEST_CASE("weights that are not finite are an error, not a text") {
  Model model;
  at::NoGradGuard no_grad;
  model.weights.norm.fill_(std::numeric_limits<float>::quiet_NaN());
  CHECK(code_of([&] { model.fresh({request_of({1, 2}, 3)}); }) == "ERR_NOT_FINITE");
}
