// Sharding 3: a rank holds its part of the layers, and collects a layer before it is used.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "test/core/learner/on_ranks.h"

using namespace learner_test;
using namespace nlac;

namespace {

std::vector<GenerateRequest> some_requests() {
  std::vector<GenerateRequest> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].tokens = random_ids(4 + static_cast<int64_t>(i), 30 + i);
    requests[i].max_new_tokens = 8;
    requests[i].seed = i;
  }
  return requests;
}

std::vector<std::vector<int64_t>> generated(Learner& learner, WeightSet which) {
  std::vector<std::vector<int64_t>> lists;
  for (const GenerateResult& result : learner.generate(some_requests(), which, {}))
    lists.push_back(result.tokens);
  return lists;
}

// Counts the bytes that each thread has allocated and that are still held, whoever frees them.
class CountingAllocator final : public c10::Allocator {
 public:
  struct Count {
    std::atomic<int64_t> held = 0, most = 0;
  };

  at::DataPtr allocate(size_t bytes) override {
    if (count == nullptr) return under->allocate(bytes);
    void* const data = under->allocate(bytes).release_context();
    const auto size = static_cast<int64_t>(bytes);
    const int64_t held = count->held += size;
    if (held > count->most) count->most = held;
    const std::lock_guard lock(mutex);
    blocks[data] = {size, count};
    return {data, data, &free_block, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    under->copy_data(to, from, bytes);
  }

  static c10::Allocator* const under;
  static thread_local Count* count;  // of this thread

 private:
  struct Block {
    int64_t bytes;
    Count* count;
  };
  static void free_block(void* data) {
    {
      const std::lock_guard lock(mutex);
      const auto block = blocks.find(data);
      if (block != blocks.end()) {
        block->second.count->held -= block->second.bytes;
        blocks.erase(block);
      }
    }
    under->raw_deleter()(data);
  }
  static inline std::mutex mutex;
  static inline std::unordered_map<void*, Block> blocks;
};
c10::Allocator* const CountingAllocator::under = c10::GetCPUAllocator();
thread_local CountingAllocator::Count* CountingAllocator::count = nullptr;

// Calls body(kind, options) for every type, with and without int8, of several kinds.
template <typename Body>
void for_generating(const Body& body) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool int8 : {false, true}) {
      for (Kind kind : {Kind::plain, Kind::adapter, Kind::deep}) {
        CAPTURE(dtype);
        CAPTURE(int8);
        CAPTURE(static_cast<int>(kind));
        LearnerOptions options = options_for(kind, dtype);
        options.int8_generation = int8;
        body(kind, options);
      }
    }
  }
}

}  // namespace

TEST_CASE("weights that are gathered generate as one learner's, until they are used otherwise") {
  for_generating([](Kind kind, const LearnerOptions& options) {
    const auto lone = make(options, kind, nullptr, 0);
    lone->token_nll(some_texts(), true);
    lone->step(quick_step(), "");
    std::vector<std::vector<std::vector<int64_t>>> expected;
    for (WeightSet which : {WeightSet::online, WeightSet::target})
      expected.push_back(generated(*lone, which));
    run_ranks(1, [&](const Group& group) {
      const auto learner = make(options, kind, group, 3);
      CHECK(code_of([&] { generated(*learner, WeightSet::online); }) == "ERR_VALUE");
      learner->token_nll(some_texts(), true);
      learner->step(quick_step(), "");
      for (int round = 0; round < 2; ++round) {
        learner->gather(WeightSet::online);
        CHECK(generated(*learner, WeightSet::online) == expected[0]);
        // Only one set is complete at a time.
        CHECK(code_of([&] { generated(*learner, WeightSet::target); }) == "ERR_VALUE");
        learner->gather(WeightSet::target);
        learner->gather(WeightSet::target);
        CHECK(generated(*learner, WeightSet::target) == expected[1]);
        CHECK(code_of([&] { generated(*learner, WeightSet::online); }) == "ERR_VALUE");
        // A pass collects layer by layer again.
        CHECK(learner->log_probs(some_texts(), WeightSet::target) ==
              lone->log_probs(some_texts(), WeightSet::target));
        CHECK(code_of([&] { generated(*learner, WeightSet::target); }) == "ERR_VALUE");
      }
      CHECK(code_of([&] { learner->gather(WeightSet::reference); }) == "ERR_VALUE");
    });
  });
}

TEST_CASE("ranks generate different numbers of texts with gathered weights") {
  const auto lone = make(Kind::deep, at::kFloat);
  const auto expected = generated(*lone, WeightSet::online);
  const at::Tensor logits = lone->logits(random_ids(9, 3), WeightSet::online);
  run_ranks(3, [&](const Group& group) {
    const auto learner = make(Kind::deep, at::kFloat, group, 3);
    CHECK(code_of([&] { learner->logits(random_ids(9, 3), WeightSet::online); }) == "ERR_VALUE");
    learner->gather(WeightSet::online);
    if (group->rank() == 1) CHECK(generated(*learner, WeightSet::online) == expected);
    if (group->rank() == 2) CHECK(at::equal(learner->logits(random_ids(9, 3), WeightSet::online), logits));
    update(*learner, Kind::deep, group.get());
    CHECK(code_of([&] { generated(*learner, WeightSet::online); }) == "ERR_VALUE");
  });
}

TEST_CASE("ranks that generate layer by layer write one learner's texts to the last bit") {
  const std::vector<GenerateRequest> requests = some_requests();
  for_generating([&](Kind kind, LearnerOptions options) {
    options.layerwise_generation = true;  // does nothing without ranks
    const auto lone = make(options, kind, nullptr, 0);
    std::array<std::vector<GenerateResult>, 2> expected;
    expected[0] = lone->generate(requests, WeightSet::online, {});
    expected[1] = lone->generate(requests, WeightSet::target, {});
    for (const int ranks : {1, 2, 3, 4}) {  // three requests: the fourth rank has none
      run_ranks(ranks, [&](const Group& group) {
        const auto learner = make(options, kind, group, 3);
        CHECK(learner->generates_together());
        for (int round = 0; round < 2; ++round) {
          for (const WeightSet which : {WeightSet::online, WeightSet::target}) {
            const auto own = learner->generate(share(requests, group.get()), which, {});
            const auto wanted = share(expected[which == WeightSet::target], group.get());
            REQUIRE(own.size() == wanted.size());
            for (size_t i = 0; i < own.size(); ++i) {
              CHECK(own[i].tokens == wanted[i].tokens);
              CHECK(own[i].log_probs == wanted[i].log_probs);
            }
          }
          learner->log_probs(share(some_texts(), group.get()), WeightSet::target);
          learner->drop_caches();
        }
        CHECK(code_of([&] { learner->begin_generation(requests, WeightSet::online, {}); }) == "ERR_VALUE");
      });
    }
  });
}

TEST_CASE("layer by layer, the weights of a step are used, and are gathered for what needs them whole") {
  const auto lone = make(Kind::plain, at::kFloat);
  update(*lone, Kind::plain, nullptr);
  const auto expected = generated(*lone, WeightSet::online);
  const auto averaged = generated(*lone, WeightSet::target);
  const at::Tensor logits = lone->logits(random_ids(9, 3), WeightSet::online);
  run_ranks(1, [&](const Group& group) {
    LearnerOptions options = options_for(Kind::plain, at::kFloat);
    options.layerwise_generation = true;
    const auto learner = make(options, Kind::plain, group, 3);
    generated(*learner, WeightSet::online);
    update(*learner, Kind::plain, group.get());
    CHECK(generated(*learner, WeightSet::online) == expected);
    learner->gather(WeightSet::online);
    CHECK(at::equal(learner->logits(random_ids(9, 3), WeightSet::online), logits));
    CHECK(generated(*learner, WeightSet::target) == averaged);
    CHECK(code_of([&] { learner->logits(random_ids(9, 3), WeightSet::online); }) == "ERR_VALUE");
  });
}

TEST_CASE("a rank whose requests are refused, fail or are cancelled does not hold up the others") {
  const auto expected = generated(*make(Kind::deep, at::kFloat), WeightSet::online);
  run_ranks(2, [&](const Group& group) {
    LearnerOptions options = options_for(Kind::deep, at::kFloat);
    options.layerwise_generation = true;
    const auto learner = make(options, Kind::deep, group, 3);
    const bool fails = group->rank() == 1;
    const auto attempt = [&](const std::vector<GenerateRequest>& requests, const GenerateHooks& hooks) {
      std::vector<std::vector<int64_t>> lists;
      const std::string code = code_of([&] {
        for (const GenerateResult& result : learner->generate(requests, WeightSet::online, hooks))
          lists.push_back(result.tokens);
      });
      if (!fails) CHECK(lists == expected);
      return code;
    };
    std::vector<GenerateRequest> wrong = some_requests();
    if (fails) wrong[1].tokens[0] = 9999;
    CHECK(attempt(wrong, {}) == (fails ? "ERR_VALUE" : "none"));

    GenerateHooks failing;
    int64_t seen = 0;
    if (fails) failing.on_token = [&](int64_t, int64_t) { NLAC_REQUIRE(++seen < 5, "ERR_CONFIG", "fails"); };
    CHECK(attempt(some_requests(), failing) == (fails ? "ERR_CONFIG" : "none"));

    std::atomic<bool> cancelled = fails;
    GenerateHooks hooks;
    hooks.cancelled = &cancelled;
    CHECK(attempt(some_requests(), hooks) == "none");
    CHECK(generated(*learner, WeightSet::online) == expected);
  });
}

TEST_CASE("a rank that runs out of memory in a layer does not hold up the ranks that generate with it") {
  static FailingAllocator failing;
  const auto expected = generated(*make(Kind::plain, at::kFloat), WeightSet::online);
  c10::SetCPUAllocator(&failing, 1);
  int failed = 0;
  for (int fails_after = 3; fails_after < 400; fails_after = fails_after * 5 / 4 + 1) {
    CAPTURE(fails_after);
    std::vector<std::string> codes(2);
    run_ranks(2, [&](const Group& group) {
      LearnerOptions options = options_for(Kind::plain, at::kFloat);
      options.layerwise_generation = true;
      const auto learner = make(options, Kind::plain, group, 3);
      std::vector<std::vector<int64_t>> lists;
      if (group->rank() == 1) FailingAllocator::left = fails_after;
      codes[static_cast<size_t>(group->rank())] =
          code_of([&] { lists = generated(*learner, WeightSet::online); });
      FailingAllocator::left = -1;
      if (group->rank() == 0) CHECK(lists == expected);
      CHECK(generated(*learner, WeightSet::online) == expected);
    });
    CHECK(codes[0] == "none");
    CHECK((codes[1] == "ERR_OUT_OF_MEMORY" || codes[1] == "none"));
    failed += codes[1] != "none";
  }
  CHECK(failed > 5);
  c10::SetCPUAllocator(failing.under, 1);
}

TEST_CASE("ranks without texts, and with kept states of the teacher, take part") {
  const auto lone = make(Kind::plain, at::kFloat);
  const auto scores = lone->log_probs(some_texts(), WeightSet::online);
  std::vector<DistilledText> texts = some_distilled();
  std::vector<at::Tensor> states;  // of θ̄, as generation keeps them
  for (DistilledText& text : texts) {
    GenerateRequest request;
    request.tokens = text.teacher;
    request.max_new_tokens = 6;
    request.keep_hidden = true;
    const GenerateResult result = lone->generate({request}, WeightSet::target, {})[0];
    text.response = result.tokens;
    states.push_back(result.hidden);
  }
  const auto losses = lone->token_kl(texts, 1, {}, true).losses;
  const double norm = lone->step(quick_step(), "").grad_norm;
  for (const int with_states : {0, 1, 2}) {  // that rank; 2: both
    CAPTURE(with_states);
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::plain, at::kFloat, group, 3);
      const int rank = group->rank();
      const std::vector<ScoredText> scored = rank == 0 ? some_texts() : std::vector<ScoredText>{};
      const auto computed = learner->log_probs(scored, WeightSet::online);
      if (rank == 0) CHECK(computed == scores);
      std::vector<DistilledText> all = texts;
      for (size_t i = 0; i < all.size(); ++i)
        if (with_states == 2 || with_states == rank) all[i].teacher_hidden = states[i];
      const auto own = learner->token_kl(share(all, group.get()), 1, {}, true).losses;
      for (size_t i = 0; i < own.size(); ++i) {
        const auto& wanted = losses[2 * i + static_cast<size_t>(rank)];
        REQUIRE(own[i].size() == wanted.size());
        for (size_t j = 0; j < wanted.size(); ++j) CHECK(std::abs(own[i][j] - wanted[j]) < 1e-5);
      }
      CHECK(learner->step(quick_step(), "").grad_norm == doctest::Approx(norm).epsilon(1e-3));
    });
  }
}

TEST_CASE("a text that one rank refuses does not hold up the others") {
  for (int sharding : {2, 3}) {
    CAPTURE(sharding);
    run_ranks(2, [&](const Group& group) {
      const auto learner = make(Kind::value, at::kFloat, group, sharding);
      std::vector<ScoredText> wrong = some_texts();
      std::vector<DistilledText> wrong_pairs = some_distilled();
      const bool refuses = group->rank() == 1;
      if (refuses) wrong[2].response[0] = 99, wrong_pairs[1].teacher[0] = 99;
      const std::string expected = refuses ? "ERR_VALUE" : "none";
      CHECK(code_of([&] { learner->token_nll(wrong, true); }) == expected);
      CHECK(code_of([&] { learner->token_kl(wrong_pairs, 1, {}, true); }) == expected);
      CHECK(code_of([&] { learner->log_probs(wrong, WeightSet::target); }) == expected);
      CHECK(code_of([&] { learner->values(wrong); }) == expected);
      learner->discard_gradients();
      learner->token_nll(share(some_texts(), group.get()), true);
      CHECK(!learner->step(quick_step(), "").skipped);
    });
  }
}

TEST_CASE("the reference is divided too, scores, and is restored") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto lone = make(Kind::value, dtype);
    lone->keep_reference();
    const auto scores = lone->log_probs(some_texts(), WeightSet::reference);
    const auto values = lone->values(some_texts());
    run_ranks(3, [&](const Group& group) {
      const auto learner = make(Kind::value, dtype, group, 3);
      learner->keep_reference();
      update(*learner, Kind::value, group.get());
      CHECK(learner->log_probs(some_texts(), WeightSet::reference) == scores);
      CHECK(learner->log_probs(some_texts(), WeightSet::online) != scores);
      learner->restore_reference();
      CHECK(learner->log_probs(some_texts(), WeightSet::online) == scores);
      CHECK(learner->values(some_texts()) == values);
      const auto masters = learner->whole_masters();
      if (group->rank() == 0) {
        const std::vector<at::Tensor> list = masters->list(), kept = lone->masters().list();
        for (size_t i = 0; i < list.size(); ++i) CHECK(at::equal(list[i].to(dtype), kept[i].to(dtype)));
      }
    });
  }
}

// Parameters of the layers.
static int64_t layer_parameters_of(const ModelConfig& config) {
  int64_t count = 0;
  const Weights shapes = allocate_weights(config, at::kFloat, at::kMeta);
  for (const at::Tensor& tensor : shapes.list()) count += tensor.numel();
  return count - shapes.embedding.numel() - shapes.norm.numel();
}

TEST_CASE("layer by layer, generation needs the memory of a few layers instead of all") {
  static CountingAllocator counting;
  c10::SetCPUAllocator(&counting, 1);
  ModelConfig config = deep_config();
  config.layers = 20;
  for (int repeated = 0; repeated < 3; ++repeated)
    for (size_t l = 0; l < 5; ++l) config.layer_kinds.push_back(config.layer_kinds[l]);
  std::array<int64_t, 2> most{};  // by whether it is layerwise
  for (const bool layerwise : {false, true}) {
    std::vector<CountingAllocator::Count> counts(2);
    run_ranks(2, [&](const Group& group) {
      CountingAllocator::Count& count = counts[static_cast<size_t>(group->rank())];
      CountingAllocator::count = &count;
      {
        LearnerOptions options = options_for(Kind::deep, at::kBFloat16);
        options.layerwise_generation = layerwise;
        const auto learner = Learner::create(config, 7, on_ranks(options, group, 3));
        const int64_t before = count.held;
        count.most = 0;
        if (!layerwise) learner->gather(WeightSet::online);
        generated(*learner, WeightSet::online);
        if (group->rank() == 0) most[layerwise] = count.most - before;
      }
      CountingAllocator::count = nullptr;
    });
  }
  c10::SetCPUAllocator(counting.under, 1);
  // Two bytes a parameter are gathered, and two packed; of 20 layers, one is packed at a time.
  const auto saved =
      static_cast<double>(most[0] - most[1]) / static_cast<double>(layer_parameters_of(config));
  MESSAGE("bytes that generation takes: ", most[0], " gathered, ", most[1],
          " layer by layer; saved per parameter ", saved);
  CHECK(saved > 3.5);
}

// Most bytes that `work` takes at once on each of two ranks.
static std::array<int64_t, 2> bytes_taken(const ModelConfig& config, Kind kind, int sharding,
                                          const std::function<void(Learner&)>& work) {
  static CountingAllocator counting;
  c10::SetCPUAllocator(&counting, 1);
  std::vector<CountingAllocator::Count> counts(2);
  std::array<int64_t, 2> most{};
  run_ranks(2, [&](const Group& group) {
    const auto own = static_cast<size_t>(group->rank());
    CountingAllocator::Count& count = counts[own];
    CountingAllocator::count = &count;
    {
      const auto learner =
          Learner::create(config, 7, on_ranks(options_for(kind, at::kBFloat16), group, sharding));
      const int64_t before = count.held;
      count.most = 0;
      work(*learner);
      most[own] = count.most - before;
    }
    CountingAllocator::count = nullptr;
  });
  c10::SetCPUAllocator(counting.under, 1);
  return most;
}

// Bytes of the layers in float32, and of the other parameters.
static std::pair<int64_t, int64_t> bytes_in_float32(const ModelConfig& config, Heads heads = Heads::none) {
  int64_t whole = 0;
  for (const at::Tensor& tensor : allocate_weights(config, at::kFloat, at::kMeta, heads).list())
    whole += tensor.numel() * 4;
  const int64_t in_layers = layer_parameters_of(config) * 4;
  return {in_layers, whole - in_layers};
}

TEST_CASE("Q heads are reset with the memory of the vocabulary's matrices, not of the model") {
  ModelConfig config = tiny_config(Family::qwen3);
  config.layers = 20;
  const auto [in_layers, others] = bytes_in_float32(config, Heads::q);
  for (const int sharding : {1, 3}) {
    CAPTURE(sharding);
    const std::array<int64_t, 2> most = bytes_taken(config, Kind::q, sharding, [](Learner& learner) {
      const CountingAllocator::Count& count = *CountingAllocator::count;
      const int64_t before = count.held;
      learner.reset_q_heads();
      // Gloo's thread may release the last collective's tensors a moment later.
      for (int wait = 0; wait < 500 && count.held > before; ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      CHECK(count.held <= before);
    });
    MESSAGE("bytes: ", in_layers, " of the layers in float32, ", others, " of the others, ", most[0],
            " taken");
    // Gloo's buffers are among them. The layers, in float32, are not.
    for (const int64_t taken : most) CHECK(taken < std::min(4 * others, in_layers / 4));
  }
}

TEST_CASE("a rank's gradients take the memory of its parts and of one layer, not of the model") {
  ModelConfig config = tiny_config(Family::qwen3);
  config.layers = 20;
  const auto [in_layers, others] = bytes_in_float32(config);
  for (const int sharding : {2, 3}) {
    CAPTURE(sharding);
    const std::array<int64_t, 2> most =
        bytes_taken(config, Kind::plain, sharding, [](Learner& learner) { learner.token_nll({}, true); });
    MESSAGE("bytes: ", in_layers, " of the layers in float32, ", others, " of the others, ", most[0],
            " taken");
    // Half of the layers are a rank's own; one more is received, and a part of it.
    for (const int64_t taken : most) CHECK(taken < in_layers * 3 / 4 + others);
  }
}

TEST_CASE("a rank holds less than at stage 2 while it trains") {
  static CountingAllocator counting;
  c10::SetCPUAllocator(&counting, 1);
  const int64_t in_layers = layer_parameters_of(deep_config());
  for (const int ranks : {2, 4}) {
    std::array<int64_t, 4> held{}, most{};
    for (const int sharding : {2, 3}) {
      std::vector<CountingAllocator::Count> counts(static_cast<size_t>(ranks));
      run_ranks(ranks, [&](const Group& group) {
        CountingAllocator::Count& count = counts[static_cast<size_t>(group->rank())];
        CountingAllocator::count = &count;
        {
          const auto learner = make(Kind::deep, at::kBFloat16, group, sharding);
          update(*learner, Kind::deep, group.get());
          const int64_t before = count.held;
          learner->gather(WeightSet::target);
          generated(*learner, WeightSet::target);
          learner->drop_caches();
          learner->log_probs({}, WeightSet::target);
          // What generation has gathered is freed by the next pass.
          if (sharding == 3) CHECK(count.held < before + 2 * in_layers);
          count.most = 0;
          update(*learner, Kind::deep, group.get());
          if (group->rank() == 0) {
            held[static_cast<size_t>(sharding)] = count.held;
            most[static_cast<size_t>(sharding)] = count.most;
          }
        }
        CountingAllocator::count = nullptr;
      });
    }
    CAPTURE(ranks);
    CAPTURE(held[2]);
    CAPTURE(held[3]);
    CAPTURE(most[2]);
    CAPTURE(most[3]);
    // At stage 2 the copies of θ and θ̄ take two bytes a parameter each. At stage 3 two of five layers
    // are in the buffers.
    const auto saved = static_cast<double>(held[2] - held[3]) / static_cast<double>(in_layers);
    MESSAGE(ranks, " ranks: ", held[2], " bytes held at stage 2, ", held[3], " at stage 3; most ", most[2],
            ", ", most[3], "; saved bytes per layer parameter ", saved);
    CHECK(saved > 4.0 - 1.2);
    CHECK(most[3] < most[2]);
  }
  c10::SetCPUAllocator(counting.under, 1);
}
