// Several calls at once, in little memory, and under constraints.
#include <ATen/Parallel.h>

#include "test/core/failing_new.h"
#include "test/core/generate/engine_examples.h"

using namespace engine_test;
using namespace nlac;

namespace {

// Steps until everything is done; never more than `most`.
void drain(Engine& engine, const Weights& weights, int most = 10000) {
  while (engine.step(weights)) REQUIRE(--most > 0);
}

void check_call(Model& model, const GenerateCall& call) {
  REQUIRE(call.done());
  REQUIRE_FALSE(call.failure);
  for (size_t i = 0; i < call.requests.size(); ++i) {
    CAPTURE(i);
    check_same(call.results[i], model.plain(call.requests[i]));
  }
}

constexpr size_t kBlockBytes = 2 * 2 * 2 * 16 * 8 * sizeof(float);  // of tiny_config, 16 tokens

}  // namespace

TEST_CASE("calls join and leave at any step, and each gets the same result as alone") {
  Model model;
  Engine engine = model.engine();
  const auto first =
      engine.submit({request_of(random_ids(20, 1), 30, 1, 1), request_of(random_ids(3, 2), 2, 1, 2)}, {});
  for (int i = 0; i < 4; ++i) engine.step(model.weights);
  CHECK_FALSE(first->done());
  CHECK(first->results[0].tokens.size() == 4);
  const auto second = engine.submit({request_of(random_ids(20, 1), 5, 1, 9)}, {});
  const auto none = engine.submit({}, {});
  CHECK(none->done());
  engine.step(model.weights);
  CHECK(first->results[0].tokens.size() == 5);  // the newcomer's prompt did not hold it up
  CHECK(second->results[0].tokens.size() == 1);
  while (!second->done()) engine.step(model.weights);
  CHECK_FALSE(first->done());
  drain(engine, model.weights);
  check_call(model, *first);
  check_call(model, *second);
  CHECK(second->results[0].cached_tokens == 16);  // the first call's whole block
}

TEST_CASE("a long prompt is prefilled in chunks beside decoding requests") {
  Model model(2 * Engine::kPromptTokensBeside + 200);
  Engine engine = model.engine();
  const auto writing = engine.submit({request_of({1, 2, 3}, 8, 1, 5)}, {});
  engine.step(model.weights);
  const auto reading =
      engine.submit({request_of(random_ids(2 * Engine::kPromptTokensBeside + 100, 7), 2)}, {});
  for (size_t written = 2; written <= 3; ++written) {
    engine.step(model.weights);
    CHECK(writing->results[0].tokens.size() == written);
    CHECK(reading->results[0].tokens.empty());
  }
  engine.step(model.weights);
  CHECK(reading->results[0].tokens.size() == 1);
  drain(engine, model.weights);
  check_call(model, *writing);
  check_call(model, *reading);
}

TEST_CASE("a short prompt does not wait for long ones, and these advance beside short ones") {
  constexpr int64_t chunk = Engine::kPromptTokens;
  Model model(4 * chunk);
  Engine engine = model.engine();
  const auto oldest = engine.submit({request_of(random_ids(2 * chunk, 1), 1)}, {});
  const auto second = engine.submit({request_of(random_ids(3 * chunk, 2), 1)}, {});
  engine.step(model.weights);
  const auto brief = engine.submit({request_of(random_ids(30, 3), 1)}, {});
  engine.step(model.weights);
  CHECK(brief->done());
  CHECK_FALSE(oldest->done());
  // The oldest one gets half of each step, whatever arrives later.
  for (uint64_t i = 0; i < 2; ++i) {
    CHECK_FALSE(oldest->done());
    engine.submit({request_of(random_ids(chunk / 2, 4 + i), 1)}, {});
    engine.step(model.weights);
  }
  CHECK(oldest->done());
  // Without others it gets all of a step.
  int steps = 0;
  for (; !second->done(); ++steps) engine.step(model.weights);
  CHECK(steps == 3);
  drain(engine, model.weights);
  for (const auto& call : {oldest, second, brief}) check_call(model, *call);
}

TEST_CASE("requests that do not fit wait, in the order of arrival") {
  Model model;
  Engine engine = model.engine(6 * kBlockBytes);
  std::vector<int64_t> order;
  std::vector<std::shared_ptr<GenerateCall>> calls;
  for (uint64_t i = 0; i < 5; ++i) {
    GenerateHooks hooks;
    hooks.on_token = [&order, i](int64_t, int64_t) {
      if (order.empty() || order.back() != static_cast<int64_t>(i)) order.push_back(static_cast<int64_t>(i));
    };
    // The second is the largest: later ones would fit where it does not.
    const int64_t length = i == 1 ? 75 : 20;
    calls.push_back(engine.submit({request_of(random_ids(length, i), 3, 1, i)}, hooks));
  }
  while (engine.step(model.weights)) CHECK(engine.cached_bytes() <= 6 * kBlockBytes);
  for (const auto& call : calls) check_call(model, *call);
  std::vector<int64_t> firsts;
  for (const int64_t call : order)
    if (std::find(firsts.begin(), firsts.end(), call) == firsts.end()) firsts.push_back(call);
  CHECK(firsts == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(order.front() == 0);
}

TEST_CASE("a text for whose blocks there is no memory keeps none of them") {
  Model model;
  static FullMemory memory;
  c10::SetCPUAllocator(&memory, 2);
  // The first text fills the eight blocks of the smallest store.
  const GenerateRequest request = request_of(random_ids(125, 1), 60);
  std::vector<int64_t> parted(request.tokens.begin(), request.tokens.begin() + 90);
  const std::vector<GenerateRequest> others{request_of(random_ids(40, 2), 4),
                                            request_of(joined(parted, random_ids(9, 3)), 4)};
  for (size_t joining = 0; joining <= others.size(); ++joining) {
    CAPTURE(joining);  // the last time none: the running text itself needs a block
    Engine engine = model.engine();
    const auto running = engine.submit({request}, {});
    engine.step(model.weights);
    if (joining < others.size()) engine.submit({others[joining]}, {});
    memory.full = true;
    for (int step = 0; step < 10 && !running->failure; ++step) engine.step(model.weights);
    memory.full = false;
    CHECK(running->failure);
    CHECK(engine.cached_bytes() == 0);
    check_same(engine.generate(model.weights, {request}, {})[0], model.plain(request));
  }
  c10::SetCPUAllocator(memory.under, 2);
}

TEST_CASE("memory that runs out at any allocation fails all calls, and the next ones are right") {
  Model model;
  std::vector<int64_t> prefix = random_ids(40, 1), parted(prefix.begin(), prefix.begin() + 23);
  std::vector<GenerateRequest> first{request_of(joined(prefix, {1, 2}), 12),
                                     request_of(joined(prefix, {1, 2}), 9),
                                     request_of(joined(prefix, {3}), 20)};
  first[1].keep_hidden = true;
  const std::vector<GenerateRequest> second{request_of(joined(parted, random_ids(60, 2)), 8)};
  static FullMemory memory;
  c10::SetCPUAllocator(&memory, 2);
  bool failed = true;
  for (int64_t fails_after = 0; failed; fails_after += 3) {
    CAPTURE(fails_after);
    Engine engine = model.engine(11 * KvStore::block_bytes(model.config, at::kFloat));
    const auto early = engine.submit(first, {});
    engine.step(model.weights);
    const auto late = engine.submit(second, {});
    memory.left = fails_after;
    while (engine.step(model.weights)) continue;
    memory.left = -1;
    failed = late->failure != nullptr;
    CHECK(early->done());
    CHECK(late->done());
    if (failed) CHECK(engine.cached_bytes() == 0);
    const std::vector<GenerateResult> again = engine.generate(model.weights, first, {});
    for (size_t i = 0; i < first.size(); ++i) check_same(again[i], model.plain(first[i]));
  }
  c10::SetCPUAllocator(memory.under, 2);
}

TEST_CASE("memory that runs out for a cancelled text that waits fails the calls that are left") {
  Model model;
  static FullMemory memory;
  c10::SetCPUAllocator(&memory, 2);
  for (const int64_t fails_after : {0, 1, 2}) {
    CAPTURE(fails_after);
    Engine engine = model.engine(8 * kBlockBytes);
    std::atomic<bool> cancelled{false};
    std::vector<std::shared_ptr<GenerateCall>> calls;
    for (const uint64_t i : {0, 1, 2, 3}) {
      GenerateRequest request = request_of(random_ids(10, i), 90, 1, i);
      request.keep_hidden = true;
      GenerateHooks hooks;
      if (i % 2 == 1) hooks.cancelled = &cancelled;
      calls.push_back(engine.submit({request}, hooks));
    }
    while (engine.preemptions() < 3) REQUIRE(engine.step(model.weights));
    cancelled = true;
    memory.left = fails_after;
    engine.step(model.weights);
    memory.left = -1;
    drain(engine, model.weights);
    for (size_t i = 0; i < calls.size(); ++i) {
      CAPTURE(i);
      const bool was_cancelled = i == 1 ? fails_after > 0 : i == 3 && fails_after > 1;
      CHECK((calls[i]->failure == nullptr) == was_cancelled);
      if (was_cancelled) CHECK(calls[i]->results[0].finish_reason == FinishReason::cancelled);
    }
    check_same(engine.generate(model.weights, calls[0]->requests, {})[0], model.plain(calls[0]->requests[0]));
  }
  c10::SetCPUAllocator(memory.under, 2);
}

TEST_CASE("host memory that runs out while a call is enqueued leaves none of its requests") {
  Model model;
  Engine engine = model.engine();
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 70; ++i) requests.push_back(request_of(random_ids(20, i), 2, 1, i));
  const auto earlier = engine.submit({requests[0]}, {});
  std::shared_ptr<GenerateCall> call;
  int64_t attempts = 0, tokens = 0;
  for (; !call; ++attempts) {
    std::vector<GenerateRequest> given = requests;
    GenerateHooks hooks;
    hooks.on_token = [&tokens](int64_t, int64_t) { ++tokens; };
    const test::FailingNew failing(attempts);
    try {
      call = engine.submit(std::move(given), std::move(hooks));
    } catch (const std::bad_alloc&) {
    }
  }
  CHECK(attempts > 140);  // two allocations a request
  drain(engine, model.weights);
  check_call(model, *earlier);
  check_call(model, *call);
  CHECK(tokens == 140);  // of the last attempt alone
}

TEST_CASE("requests that outgrow the memory are preempted and prefilled again") {
  Model model;
  Engine engine = model.engine(8 * kBlockBytes);
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) requests.push_back(request_of(random_ids(20, 30 + i), 60, 1, i));
  const auto results = engine.generate(model.weights, requests, {});
  CHECK(engine.preemptions() > 0);
  for (size_t i = 0; i < requests.size(); ++i) check_same(results[i], model.plain(requests[i]));
  SUBCASE("one text alone may need more than there is") {
    Engine small = model.engine(2 * kBlockBytes);
    const GenerateRequest longer = request_of(random_ids(100, 3), 80, 1, 1);
    check_same(small.generate(model.weights, {longer, longer}, {})[1], model.plain(longer));
    CHECK(small.cached_bytes() <= 2 * kBlockBytes);
  }
}

TEST_CASE("a text that is preempted in the step that completes its prompt loses the draw of that step") {
  Model model(1000);
  std::vector<std::string> letters;  // every id is one
  for (int id = 0; id < 61; ++id) letters.emplace_back(1, static_cast<char>('0' + id));
  GrammarCompiler compiler(letters);
  const std::vector<int64_t> longer = random_ids(Engine::kPromptTokensBeside + 188, 3),
                             shorter = random_ids(5, 2);
  std::vector<GenerateRequest> requests = {request_of(shorter, 4, 1, 2), request_of(longer, 4, 1, 3),
                                           request_of(shorter, 4, 1, 4), request_of(shorter, 4, 1, 5),
                                           request_of(longer, 20, 1.5, 6)};
  requests[4].top_log_probs = 2;
  requests[4].grammar = compiler.compile(R"({"regex": "([0-9]{2}[A-Z]{3})*"})");
  REQUIRE(requests[4].grammar.wait_for(std::chrono::minutes(1)) == std::future_status::ready);

  // The long prompt takes two steps. The last text shares its blocks and its last hidden state. In the
  // second step, between the two, the third text has to copy a block: there is none.
  Engine engine = model.engine(48 * kBlockBytes);
  const auto writing = engine.submit({request_of(random_ids(15, 1), 30, 1, 1)}, {});
  engine.step(model.weights);
  const auto call = engine.submit(requests, {});
  engine.step(model.weights);
  REQUIRE(engine.preemptions() == 0);
  engine.step(model.weights);
  CHECK(engine.preemptions() == 2);
  CHECK(call->results[1].tokens.size() == 1);
  CHECK(call->results[4].tokens.empty());
  drain(engine, model.weights);
  check_call(model, *writing);
  REQUIRE_FALSE(call->failure);
  for (size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    const GenerateResult expected = model.fresh({requests[i]})[0];
    check_same(call->results[i], expected);
    CHECK(call->results[i].top_tokens == expected.top_tokens);
  }
}

TEST_CASE("cancelling a call does not affect the others, even if they share its prompt") {
  Model model(3000);
  const std::vector<int64_t> prompt = random_ids(2500, 5);  // more than a step reads
  for (const int steps : {0, 1, 2}) {
    CAPTURE(steps);
    Engine engine = model.engine();
    std::atomic<bool> cancelled{false};
    GenerateHooks hooks;
    hooks.cancelled = &cancelled;
    const auto first = engine.submit({request_of(prompt, 4, 1, 1)}, hooks);
    const auto same = engine.submit({request_of(prompt, 4, 1, 2), request_of(prompt, 4, 1, 3)}, {});
    const auto branch =
        engine.submit({request_of(joined({prompt.begin(), prompt.begin() + 2200}, {4, 5}), 4, 1, 4)}, {});
    for (int i = 0; i < steps; ++i) engine.step(model.weights);
    cancelled = true;
    drain(engine, model.weights);
    CHECK(first->results[0].finish_reason == FinishReason::cancelled);
    check_call(model, *same);
    check_call(model, *branch);
  }
}

TEST_CASE("random calls, cancels and budgets: every completion is the same as alone") {
  Model model;
  std::mt19937_64 numbers(21);
  int64_t preemptions = 0;
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    const size_t budget = (2 + numbers() % 30) * kBlockBytes;
    Engine engine = model.engine(budget);
    std::vector<std::vector<int64_t>> known = {random_ids(40, numbers())};
    const auto requests_of = [&] {
      std::vector<GenerateRequest> requests;
      for (uint64_t i = 0; i < 1 + numbers() % 3; ++i) {
        const auto& base = known[numbers() % known.size()];
        const int64_t cut = 1 + static_cast<int64_t>(numbers() % base.size());
        std::vector<int64_t> prompt(base.begin(), base.begin() + cut);
        if (numbers() % 2)
          prompt = joined(prompt, random_ids(1 + static_cast<int64_t>(numbers() % 20), numbers()));
        if (prompt.size() < 150) known.push_back(prompt);
        requests.push_back(request_of(prompt, static_cast<int64_t>(numbers() % 25), 1, numbers()));
      }
      return requests;
    };
    const auto calls = random_calls(engine, model.weights, numbers, 60, requests_of);
    drain(engine, model.weights);
    CHECK(engine.cached_bytes() <= budget);
    preemptions += engine.preemptions();
    for (const RandomCall& made : calls) {
      REQUIRE(made.call->done());
      for (size_t i = 0; i < made.call->requests.size(); ++i) {
        CAPTURE(i);
        const GenerateResult& result = made.call->results[i];
        GenerateRequest request = made.call->requests[i];
        if (result.finish_reason == FinishReason::cancelled) {
          CHECK(*made.cancelled);
          request.max_new_tokens = static_cast<int64_t>(result.tokens.size());
        }
        GenerateResult expected = model.plain(request);
        expected.finish_reason = result.finish_reason;
        check_same(result, expected);
      }
    }
  }
  CHECK(preemptions > 0);
}

TEST_CASE("a completion is bitwise the same alone, batched, cached, and after preemption") {
  ModelConfig config = tiny_config(2048);
  config.hidden_size = 128;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 64;
  for (const auto& [type, int8] :
       {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}}) {
    CAPTURE(std::string(c10::toString(type)));
    CAPTURE(int8);
    const Weights weights = random_weights(config, 4).copy_as(type, at::kCPU);
    Decoder decoder(config, int8);
    if (!KvStore(config, type).packed()) {
      REQUIRE((type == at::kBFloat16));
      MESSAGE("SKIPPED: this processor has no bfloat16 kernels");
      continue;
    }
    const size_t all = size_t{1} << 30;
    std::vector<GenerateRequest> requests;
    const std::vector<int64_t> system = random_ids(300, 1);
    for (uint64_t i = 0; i < 12; ++i)
      requests.push_back(request_of(joined({system.begin(), system.begin() + static_cast<int64_t>(25 * i)},
                                           random_ids(1 + static_cast<int64_t>(i * i), i)),
                                    40, 1, i));
    Engine together(decoder, all, type, at::kCPU);
    const auto expected = together.generate(weights, requests, {});
    const auto check = [&](const std::vector<GenerateResult>& results, size_t from) {
      for (size_t i = 0; i < results.size(); ++i) {
        CAPTURE(i);
        CHECK(results[i].tokens == expected[from + i].tokens);
        CHECK(results[i].log_probs == expected[from + i].log_probs);
      }
    };
    check(together.generate(weights, requests, {}), 0);  // from the cache
    for (size_t i = 0; i < requests.size(); ++i)
      check(Engine(decoder, all, type, at::kCPU).generate(weights, {requests[i]}, {}), i);
    Engine small(decoder, 30 * KvStore::block_bytes(config, type), type, at::kCPU);
    check(small.generate(weights, requests, {}), 0);
    CHECK(small.preemptions() > 0);
  }
}

TEST_CASE("no two texts of a step write to the same block") {
  // With fewer threads, one of them writes all rows of a step in order.
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  constexpr int64_t chunk = Engine::kPromptTokens / 2;
  ModelConfig config = tiny_config(4 * chunk);
  config.head_dim = 64;
  const Weights weights = random_weights(config, 3).copy_as(at::kBFloat16, at::kCPU);
  Decoder decoder(config);
  const auto engine = [&] { return Engine(decoder, size_t{1} << 30, at::kBFloat16, at::kCPU); };
  // The prompts continue a cached text inside of a block, and share what follows for longer than a step.
  const std::vector<int64_t> shared = random_ids(2 * chunk, 1);
  const GenerateRequest earlier = request_of({shared.begin(), shared.begin() + 37}, 1);
  const std::vector<GenerateRequest> prompts{request_of(joined(shared, random_ids(9, 2)), 4),
                                             request_of(joined(shared, random_ids(20, 3)), 4)};
  Engine together = engine();
  together.generate(weights, {earlier}, {});
  const auto results = together.generate(weights, prompts, {});
  CHECK(results[0].cached_tokens == 37);
  for (size_t i = 0; i < prompts.size(); ++i) {
    CAPTURE(i);
    const auto alone = engine().generate(weights, {prompts[i]}, {});
    CHECK(results[i].tokens == alone[0].tokens);
    CHECK(results[i].log_probs == alone[0].log_probs);
  }
  at::set_num_threads(threads);
}

TEST_CASE("hidden states are returned on request") {
  Model model;
  std::vector<GenerateRequest> requests = {request_of(random_ids(30, 1), 12, 1, 1),
                                           request_of(random_ids(30, 1), 5, 1, 2),
                                           request_of(random_ids(9, 3), 20, 1, 3)};
  requests[0].keep_hidden = requests[2].keep_hidden = true;
  Engine engine = model.engine(7 * kBlockBytes);  // some give way and are read again
  const auto results = engine.generate(model.weights, requests, {});
  CHECK_FALSE(results[1].hidden.defined());
  for (const size_t i : {0, 2}) {
    const std::vector<int64_t> ids = joined(requests[i].tokens, results[i].tokens);
    const int64_t length = static_cast<int64_t>(ids.size()),
                  written = static_cast<int64_t>(results[i].tokens.size());
    const at::Tensor whole = model.decoder.forward(model.weights, at::tensor(ids, at::kLong), {length});
    REQUIRE(results[i].hidden.sizes() == at::IntArrayRef({written, model.config.hidden_size}));
    const at::Tensor expected = whole.narrow(0, length - written - 1, written);
    CHECK((results[i].hidden - expected).abs().max().item<float>() < 1e-4);
  }
}

TEST_CASE("forbidden ids and a repetition penalty change the draw, not the log probabilities") {
  Model model;
  GenerateRequest request = request_of(random_ids(10, 1), 30);
  const GenerateResult free = model.fresh({request})[0];
  request.forbidden = {free.tokens[0], free.tokens[1], 3};
  request.repetition_penalty = 1.4;
  const GenerateResult result = model.fresh({request})[0];
  std::vector<int64_t> ids = request.tokens;
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const at::Tensor row = model.last_logits(ids);
    at::Tensor changed = row.clone();
    std::vector<bool> seen(61);
    for (const int64_t id : ids) {
      if (seen[static_cast<size_t>(id)]) continue;
      seen[static_cast<size_t>(id)] = true;
      const float logit = row[id].item<float>();
      changed[id] = logit > 0 ? logit / 1.4f : logit * 1.4f;
    }
    for (const int64_t id : request.forbidden) changed[id] = -INFINITY;
    CHECK(result.tokens[i] == changed.argmax().item<int64_t>());
    CHECK(result.log_probs[i] ==
          doctest::Approx(row.log_softmax(0)[result.tokens[i]].item<float>()).epsilon(1e-4));
    ids.push_back(result.tokens[i]);
  }
  // Drawn from few remaining ids, with and without filters.
  for (const double top_p : {1.0, 0.9}) {
    GenerateRequest drawn = request_of(random_ids(5, 2), 60, 2.0, 7);
    drawn.top_p = top_p;
    for (int64_t id = 0; id < 58; ++id) drawn.forbidden.push_back(id);
    const std::vector<int64_t> tokens = model.fresh({drawn})[0].tokens;
    CHECK(tokens.size() == 60);
    for (const int64_t id : tokens) CHECK(id >= 58);
  }
}

TEST_CASE("the most probable ids of every new token are the model's, whatever the constraints") {
  Model model;
  std::vector<std::string> letters;  // every id is one
  for (int id = 0; id < 61; ++id) letters.emplace_back(1, static_cast<char>('0' + id));
  GrammarCompiler compiler(letters);
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) requests.push_back(request_of(random_ids(20, 60 + i), 30, 1, i));
  requests[1].forced = {1, 2, 3};
  requests[2].forbidden = {4, 5};
  requests[3].grammar = compiler.compile(R"({"literal": "A1"})");
  requests[3].forbidden = {1};  // stuck after a token
  for (size_t i = 0; i < 4; ++i) requests[i].top_log_probs = static_cast<int64_t>(i) + 3;
  Engine engine = model.engine(8 * kBlockBytes);
  const auto results = engine.generate(model.weights, requests, {});
  CHECK(engine.preemptions() > 0);
  CHECK(results[3].tokens.size() == 1);
  CHECK(results[4].top_tokens.empty());
  for (size_t i = 0; i < 4; ++i) {
    const size_t count = i + 3, written = results[i].tokens.size();
    REQUIRE(results[i].top_tokens.size() == written * count);
    REQUIRE(results[i].top_log_probs.size() == written * count);
    std::vector<int64_t> ids = requests[i].tokens;
    for (size_t t = 0; t < written; ++t) {
      const at::Tensor row = at::log_softmax(model.last_logits(ids), 0);
      const auto [values, order] = row.topk(static_cast<int64_t>(count));
      for (size_t k = 0; k < count; ++k) {
        const auto at = static_cast<int64_t>(k);
        CHECK(results[i].top_tokens[t * count + k] == order[at].item<int64_t>());
        CHECK(results[i].top_log_probs[t * count + k] ==
              doctest::Approx(values[at].item<float>()).epsilon(1e-4));
      }
      ids.push_back(results[i].tokens[t]);
    }
  }
}

TEST_CASE("completions on a GPU equal the CPU's, with and without CUDA graphs" *
          doctest::skip(!at::hasCUDA())) {
  Model model;
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 21; ++i)  // one after another ends, and their number with them
    requests.push_back(
        request_of(random_ids(1 + static_cast<int64_t>(7 * i), i), 5 + static_cast<int64_t>(3 * i)));
  std::vector<std::string> letters;  // every id is one
  for (int id = 0; id < 61; ++id) letters.emplace_back(1, static_cast<char>('0' + id));
  GrammarCompiler compiler(letters);
  for (uint64_t i = 6; i < 21; ++i) {  // the first six are greedy
    GenerateRequest& request = requests[i];
    request.temperature = i % 2 == 0 ? 1.0 : 0.6;
    request.seed = i;
    if (i % 3 == 0) request.top_k = 12;
    if (i % 3 == 1) request.top_p = 0.8;
    if (i % 4 == 0) request.min_p = 0.05;
    if (i % 5 == 0) request.repetition_penalty = 1.3;
    if (i % 5 == 1) request.forbidden = {2, 40, 41};
    if (i % 5 == 2) request.grammar = compiler.compile(R"({"regex": "([0-9]{2}[A-Z]{3})*"})");
    if (i % 7 == 0) request.forced = {1, 2};
  }
  const std::vector<GenerateResult> expected = model.fresh(requests);
  const Weights weights = model.weights.copy_as(at::kFloat, at::kCUDA);
  for (const char* recorded : {"0", "1"}) {
    CAPTURE(recorded);
    setenv("NLAC_CUDA_GRAPHS", recorded, 1);
    Decoder decoder(model.config);
    unsetenv("NLAC_CUDA_GRAPHS");
    Engine engine(decoder, size_t{1} << 30, at::kFloat, at::kCUDA);
    for (int round = 0; round < 2; ++round) {
      const std::vector<GenerateResult> got = engine.generate(weights, requests, {});
      for (size_t i = 0; i < requests.size(); ++i) {
        CAPTURE(i);
        check_same(got[i], expected[i]);
      }
      engine.drop_caches();
    }
  }
}

TEST_CASE("a completion matches its grammar, also after preemption and in any batch") {
  Model model;
  std::vector<std::string> letters;  // every id is one
  for (int id = 0; id < 61; ++id) letters.emplace_back(1, static_cast<char>('0' + id));
  GrammarCompiler compiler(letters);
  const auto digits_and_letters = compiler.compile(R"({"regex": "([0-9]{2}[A-Z]{3})*"})");
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    requests.push_back(request_of(random_ids(20, 30 + i), 60, 1.5, i));
    requests.back().grammar = digits_and_letters;
  }
  Engine engine = model.engine(8 * kBlockBytes);
  const auto crowded = engine.generate(model.weights, requests, {});
  CHECK(engine.preemptions() > 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    check_same(crowded[i], model.fresh({requests[i]})[0]);
    REQUIRE(crowded[i].tokens.size() == 60);
    for (size_t t = 0; t < 60; ++t) {
      const int64_t id = crowded[i].tokens[t];
      CHECK((t % 5 < 2 ? id < 10 : id >= 17 && id < 43));
    }
    // Log probabilities stay the model's.
    const at::Tensor last = at::log_softmax(model.last_logits(requests[i].tokens), 0);
    CHECK(crowded[i].log_probs[0] == doctest::Approx(last[crowded[i].tokens[0]].item<float>()).epsilon(1e-4));
  }
  SUBCASE("one that is refused fails its own call") {
    GenerateRequest refused = requests[0];
    refused.grammar = compiler.compile(R"({"regex": "(?=a)b"})");
    const auto good = engine.submit({requests[1]}, {});
    const auto bad = engine.submit({requests[2], refused}, {});
    drain(engine, model.weights);
    check_same(good->results[0], crowded[1]);
    REQUIRE(bad->failure);
    CHECK(code_of([&] { std::rethrow_exception(bad->failure); }) == "ERR_VALUE");
  }
  SUBCASE("the end of a grammar and a dead end are reported differently") {
    GenerateRequest request = requests[0];
    request.grammar = compiler.compile(R"({"literal": "A1"})");
    CHECK(model.fresh({request})[0].tokens == std::vector<int64_t>{17, 1});
    CHECK(model.fresh({request})[0].finish_reason == FinishReason::stop);
    request.forbidden = {1};
    CHECK(model.fresh({request})[0].tokens == std::vector<int64_t>{17});
    CHECK(model.fresh({request})[0].finish_reason == FinishReason::stuck);
  }
}

TEST_CASE("forced ids come first, with the model's log probabilities, and generation continues after them") {
  Model model;
  GenerateRequest request = request_of(random_ids(9, 4), 12, 1, 7);
  request.forced = random_ids(5, 8);
  const GenerateResult result = model.fresh({request})[0];
  REQUIRE(result.tokens.size() == 12);
  std::vector<int64_t> ids = request.tokens;
  for (size_t t = 0; t < 12; ++t) {
    if (t < 5) CHECK(result.tokens[t] == request.forced[t]);
    const at::Tensor row = model.last_logits(ids);
    if (t >= 5)
      CHECK(result.tokens[t] == sample_token(row.const_data_ptr<float>(), model.config.vocab_size, request,
                                             static_cast<int64_t>(t), nullptr));
    CHECK(result.log_probs[t] ==
          doctest::Approx(at::log_softmax(row, 0)[result.tokens[t]].item<float>()).epsilon(1e-4));
    ids.push_back(result.tokens[t]);
  }
}
