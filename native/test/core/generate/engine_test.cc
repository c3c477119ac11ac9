// Generation against a naive one: a full forward per token, one sequence at a time.
#include "test/core/generate/engine_examples.h"

#include <ATen/core/grad_mode.h>

using namespace engine_test;
using namespace nlac;

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

TEST_CASE("a request gives the same completion in a batch as alone") {
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

TEST_CASE("shared prompts are prefilled once") {
  // What one call has stored shows in the next: all prompt tokens but the last are in the cache.
  Model model;
  Engine engine = model.engine();
  const std::vector<int64_t> prompt = random_ids(50, 4);
  std::vector<GenerateRequest> group;
  for (uint64_t i = 0; i < 8; ++i) group.push_back(request_of(prompt, 6, 1.0, i));
  const auto first = engine.generate(model.weights, group, {});
  const auto second = engine.generate(model.weights, group, {});
  for (size_t i = 0; i < group.size(); ++i) {
    CHECK(first[i].cached_tokens == 0);
    CHECK(second[i].cached_tokens == 49);
    check_same(second[i], first[i]);
    check_same(first[i], model.plain(group[i]));
  }
}

TEST_CASE("a conversation that grows is continued from the cache") {
  Model model;
  Engine engine = model.engine();
  std::vector<std::vector<int64_t>> conversations;
  const std::vector<int64_t> system = random_ids(30, 8);
  for (uint64_t i = 0; i < 3; ++i) conversations.push_back(joined(system, random_ids(5, 40 + i)));
  std::vector<size_t> held(3, 0);
  for (uint64_t turn = 0; turn < 4; ++turn) {
    std::vector<GenerateRequest> requests;
    for (uint64_t i = 0; i < 3; ++i) requests.push_back(request_of(conversations[i], 7, 1.0, 10 * turn + i));
    const auto results = engine.generate(model.weights, requests, {});
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
  Engine engine = model.engine();
  const std::vector<int64_t> trunk = random_ids(60, 5);
  const GenerateRequest original = request_of(joined(trunk, random_ids(20, 6)), 5);
  engine.generate(model.weights, {original}, {});
  const GenerateRequest branch = request_of(joined(trunk, {1, 2, 3}), 5);
  const auto branched = engine.generate(model.weights, {branch}, {})[0];
  CHECK(branched.cached_tokens >= 60);
  check_same(branched, model.plain(branch));
  const auto again = engine.generate(model.weights, {original}, {})[0];
  CHECK(again.cached_tokens == 79);
  check_same(again, model.plain(original));
  // Also after a short shared beginning.
  const GenerateRequest elsewhere = request_of(joined({trunk.begin(), trunk.begin() + 5}, {60, 60, 60}), 3);
  REQUIRE(trunk[5] != 60);
  const auto short_branch = engine.generate(model.weights, {elsewhere}, {})[0];
  CHECK(short_branch.cached_tokens == 5);
  check_same(short_branch, model.plain(elsewhere));
}

TEST_CASE("any mix of cached and new prompts equals an empty cache") {
  Model model;
  Engine engine = model.engine(size_t{400} << 10);  // small enough that entries come and go
  std::mt19937_64 numbers(12);
  std::vector<std::vector<int64_t>> known = {random_ids(25, 1), random_ids(33, 2)};
  for (int round = 0; round < 12; ++round) {
    std::vector<GenerateRequest> requests;
    const size_t count = 1 + numbers() % 6;
    for (size_t i = 0; i < count; ++i) {
      const auto& base = known[numbers() % known.size()];
      const int64_t cut = 1 + static_cast<int64_t>(numbers() % base.size());
      std::vector<int64_t> prompt(base.begin(), base.begin() + cut);
      if (numbers() % 3) prompt = joined(prompt, random_ids(static_cast<int64_t>(numbers() % 30), numbers()));
      requests.push_back(
          request_of(prompt, 1 + static_cast<int64_t>(numbers() % 6), numbers() % 2, numbers()));
    }
    const auto results = engine.generate(model.weights, requests, {});
    CHECK(engine.cached_bytes() <= size_t{400} << 10);
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

TEST_CASE("a prompt longer than one inference call is prefilled in chunks") {
  Model model(Engine::kPromptTokens + 600);
  std::vector<GenerateRequest> requests = {request_of(random_ids(100, 1), 3),
                                           request_of(random_ids(Engine::kPromptTokens + 500, 2), 3),
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

TEST_CASE("stop ids end a completion and are part of it") {
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

TEST_CASE("cancelling returns the partial completion and leaves valid caches") {
  Model model;
  Engine engine = model.engine();
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
    const auto results = engine.generate(model.weights, requests, hooks);
    CHECK(results[0].finish_reason == FinishReason::cancelled);
    CHECK(results[1].finish_reason == FinishReason::length);
    CHECK(results[0].tokens.size() == 6);
    CHECK(results[0].tokens == seen[0]);
    CHECK(results[1].tokens == seen[1]);
    CHECK(results[0].log_probs.size() == 6);
  }
  SUBCASE("before anything was read") {
    cancelled = true;
    const auto results = engine.generate(model.weights, requests, hooks);
    for (const auto& result : results) {
      CHECK(result.finish_reason == FinishReason::cancelled);
      CHECK(result.tokens.empty());
    }
  }
  const auto after = engine.generate(model.weights, requests, {});
  for (size_t i = 0; i < requests.size(); ++i) check_same(after[i], model.plain(requests[i]));
}

TEST_CASE("caches stay within their budget; the least recently used are evicted first") {
  Model model;
  const auto prompt = [](uint64_t i) { return random_ids(60, 500 + i); };
  Engine probe = model.engine(size_t{1} << 30);
  probe.generate(model.weights, {request_of(prompt(0), 2)}, {});
  const size_t each = probe.cached_bytes();
  CHECK(each > 0);

  Engine engine = model.engine(3 * each);
  for (uint64_t i = 0; i < 3; ++i) engine.generate(model.weights, {request_of(prompt(i), 2)}, {});
  CHECK(engine.cached_bytes() == 3 * each);
  engine.generate(model.weights, {request_of(prompt(0), 2)}, {});  // 1 is now the oldest
  engine.generate(model.weights, {request_of(prompt(3), 2)}, {});
  CHECK(engine.cached_bytes() <= 3 * each);
  const auto cached = [&](uint64_t i) {
    return engine.generate(model.weights, {request_of(prompt(i), 1)}, {})[0].cached_tokens;
  };
  CHECK(cached(0) == 59);
  CHECK(cached(3) == 59);
  CHECK(cached(1) == 0);

  engine.drop_caches();
  CHECK(engine.cached_bytes() == 0);
  CHECK(cached(0) == 0);
  Engine none = model.engine(0);
  none.generate(model.weights, {request_of(prompt(0), 2)}, {});
  CHECK(none.cached_bytes() == 0);
}

TEST_CASE("an invalid request is rejected by its index before anything is generated") {
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
  for (double bad : {0.0, -1.0, nan, infinity}) refused([&](auto& r) { r.repetition_penalty = bad; });
  refused([](auto& r) { r.forbidden = {61}; });
  refused([](auto& r) {
    for (int64_t id = 0; id < 61; ++id) r.forbidden.push_back(id);
  });
  refused([](auto& r) { r.top_k = -1; });
  for (int64_t bad : {-1, 62}) refused([&](auto& r) { r.top_log_probs = bad; });
  refused([](auto& r) { r.stop = {"x"}; });  // without token bytes
  CHECK(written == 0);
}

TEST_CASE("non-finite weights are an error") {
  Model model;
  at::NoGradGuard no_grad;
  model.weights.norm.fill_(std::numeric_limits<float>::quiet_NaN());
  CHECK(code_of([&] { model.fresh({request_of({1, 2}, 3)}); }) == "ERR_NOT_FINITE");
}
