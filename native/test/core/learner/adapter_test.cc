// Learners that train adapters.
#include "test/core/learner/examples.h"

#include <ATen/core/grad_mode.h>

using namespace learner_test;
using namespace nlac;

static void check_int8_generation(at::ScalarType type) {
  const LearnerOptions options = options_of(type);
  LearnerOptions int8 = options;
  int8.int8_generation = true;
  GenerateRequest request = request_of(random_ids(30, 1), 20);
  request.forced = random_ids(20, 2);
  const std::vector<ScoredText> text = {{request.tokens, request.forced}};
  const auto furthest = [](const std::vector<float>& a, const std::vector<float>& b) {
    return (at::tensor(a) - at::tensor(b)).abs().max().item<double>();
  };
  for (const bool adapted : {false, true}) {
    CAPTURE(adapted);
    Scratch directory;
    (adapted ? adapted_learner() : tiny_learner())->save(directory.path());
    const auto plain = Learner::resume(directory.path(), options);
    const auto rounded = Learner::resume(directory.path(), int8);
    const std::vector<float> scored = rounded->log_probs(text, WeightSet::online)[0];
    CHECK(scored == plain->log_probs(text, WeightSet::online)[0]);
    for (const WeightSet which : {WeightSet::online, WeightSet::target}) {
      const auto written = rounded->generate({request}, which, {})[0].log_probs;
      CHECK(written != plain->generate({request}, which, {})[0].log_probs);
      CHECK(furthest(written, scored) < 0.1);
    }
    CHECK(rounded->token_nll(text, true).losses == plain->token_nll(text, true).losses);
    CHECK(equal(rounded->gradients()->list(), plain->gradients()->list()));
  }
}

TEST_CASE("int8 weights are used in generation only, and never for an adapter's matrices") {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    CAPTURE(std::string(c10::toString(type)));
    check_int8_generation(type);
  }
  LearnerOptions int8 = options_of(at::kBFloat16);
  int8.int8_generation = true;
  int8.device = at::kCUDA;
  CHECK(code_of([&] { Learner::create(tiny_config(), 1, int8); }) == "ERR_CONFIG");
}

TEST_CASE("a new adapter does not change the model, and only the adapter is trained") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    for (Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
      const auto plain = Learner::create(tiny_config(family), 1, options_of(dtype));
      const auto learner = Learner::create(tiny_config(family), 1, adapted_options(dtype));
      CHECK(learner->log_probs(some_texts(), WeightSet::online) ==
            plain->log_probs(some_texts(), WeightSet::online));
      int64_t expected = 0;  // each projection's rank · (in + out), k_proj left out, of two layers
      for (const int64_t sides : {24 + 32, 24 + 16, 32 + 24, 24 + 40, 24 + 40, 40 + 24})
        expected += 2 * 3 * sides;
      CHECK(learner->trainable_parameters() == expected);
      CHECK(learner->parameters() == plain->parameters() + expected);

      std::vector<at::Tensor> base;
      for (const at::Tensor& tensor : learner->base()->list()) {
        CHECK((tensor.scalar_type() == dtype));
        base.push_back(tensor.clone());
      }
      const auto before = copies(learner->masters());
      learner->update_target(1);
      for (int i = 0; i < 2; ++i) {
        learner->token_nll(some_texts(), true);
        learner->token_kl(some_distilled(), 1, {}, true);
        CHECK_FALSE(learner->step(quick_step(), "").skipped);
        learner->update_target(0.5);
      }
      const auto now = learner->base()->list();
      for (size_t i = 0; i < base.size(); ++i) CHECK(at::equal(now[i], base[i]));
      CHECK_FALSE(equal(learner->masters().list(), before));
      // Neither gradients nor the EMA contain the base.
      for (const Weights* held : {&learner->masters(), learner->gradients(), learner->target_masters()}) {
        int64_t numbers = 0;
        for (const at::Tensor& tensor : held->list()) numbers += tensor.numel();
        CHECK(numbers == expected);
        CHECK_FALSE(held->embedding.defined());
        CHECK_FALSE(held->layers[0].attention.qkv.defined());
      }
    }
  }
}

TEST_CASE("gradients at an adapter are the slopes of the losses") {
  for (Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
    CAPTURE(static_cast<int>(family));
    const auto learner = adapted_learner(adapted_options(), family);
    const auto texts = some_texts();
    check_gradient(*learner,
                   [&](bool gradient) { return weighted_sum(texts, learner->token_nll(texts, gradient)); });
  }
  const auto learner = adapted_learner();
  learner->update_target(0.5);
  const auto texts = some_distilled();
  check_gradient(*learner, [&](bool gradient) {
    return weighted_sum(texts, learner->token_kl(texts, 1.7, {}, gradient));
  });
}

TEST_CASE("neither micro-batches nor gradient checkpointing change an adapter's gradient") {
  const auto whole = adapted_learner();
  whole->token_nll(some_texts(), true);
  for (bool recompute : {false, true}) {
    LearnerOptions options = adapted_options();
    options.micro_batch_tokens = 16;
    options.gradient_checkpointing = recompute;
    const auto split = adapted_learner(options);
    split->token_nll(some_texts(), true);
    CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-6);
  }
}

TEST_CASE("an adapted learner scores what it generates with the same probabilities, under θ and θ̄") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    const auto learner = Learner::create(tiny_config(), 1, adapted_options(dtype));
    learner->update_target(1);
    for (int i = 0; i < 10; ++i) {
      learner->token_nll(some_texts(), true);
      learner->step(quick_step(), "");
      if (i == 4) learner->update_target(0.9);
    }
    const GenerateRequest request = request_of(random_ids(6, 9), 12, 0.9, 4);
    for (WeightSet which : {WeightSet::online, WeightSet::target}) {
      const GenerateResult result = learner->generate({request}, which, {})[0];
      const auto again = learner->log_probs({{request.tokens, result.tokens, {1.0}}}, which)[0];
      for (size_t j = 0; j < again.size(); ++j)
        CHECK(std::abs(result.log_probs[j] - again[j]) < (dtype == at::kFloat ? 1e-4 : 0.05));
      // θ and θ̄ differ, and both differ from the base.
      const auto other =
          learner->log_probs({{request.tokens, result.tokens, {1.0}}},
                             which == WeightSet::online ? WeightSet::target : WeightSet::online)[0];
      CHECK(std::abs(other[0] - again[0]) > 1e-3);
    }
  }
}

TEST_CASE("the EMA of an adapter moves by τ") {
  const auto learner = adapted_learner(adapted_options(), Family::qwen3_moe);
  learner->update_target(1);
  const auto start = copies(*learner->target_masters());
  learner->token_nll(some_texts(), true);
  learner->step(quick_step(), "");
  CHECK(learner->target_distance() > 0);
  learner->update_target(0.25);
  const auto target = learner->target_masters()->list(), online = learner->masters().list();
  for (size_t i = 0; i < target.size(); ++i)
    CHECK(at::allclose(target[i], 0.25 * online[i] + 0.75 * start[i], 1e-6, 1e-8));
}

TEST_CASE("an adapter learns, and a non-finite loss skips its step") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = Learner::create(tiny_config(), 2, adapted_options(dtype));
    at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : learner->base()->list())
      if (tensor.dim() == 2) tensor.mul_(10);
    const std::vector<ScoredText> texts = {{random_ids(5, 1), random_ids(12, 2), {1.0}}};
    const double first = weighted_sum(texts, learner->token_nll(texts, false));
    for (int i = 0; i < 60; ++i) {
      learner->token_nll(texts, true);
      CHECK_FALSE(learner->step(quick_step(), "").skipped);
    }
    CHECK(weighted_sum(texts, learner->token_nll(texts, false)) < 0.5 * first);

    learner->base()->embedding[texts[0].prompt[0]].fill_(std::numeric_limits<float>::quiet_NaN());
    const auto before = copies(learner->masters());
    learner->token_nll(texts, true);
    CHECK(learner->step(quick_step(), "").skipped);
    CHECK(equal(learner->masters().list(), before));
  }
}

TEST_CASE("an adapted learner resumes bit for bit, on a loaded or created base") {
  for (const auto& [dtype, family] : {std::pair{at::kFloat, Family::qwen2},
                                      {at::kBFloat16, Family::qwen2},
                                      {at::kFloat, Family::qwen3_moe}}) {
    for (bool loaded : {false, true}) {
      CAPTURE(std::string(c10::toString(dtype)));
      CAPTURE(static_cast<int>(family));
      CAPTURE(loaded);
      const auto train = [&](Learner& learner, int steps) {
        for (int i = 0; i < steps; ++i) {
          learner.token_kl(some_distilled(), 1, {}, true);
          learner.step(quick_step(), "critic");
          learner.token_nll(some_texts(), true);
          learner.step(quick_step(), "policy");
          learner.update_target(0.05);
        }
        learner.token_nll(some_texts(), true);
      };
      Scratch base, directory;
      Learner::create(tiny_config(family), 3, options_of())->export_huggingface(base.path());
      const auto learner = loaded ? Learner::load(base.path(), adapted_options(dtype))
                                  : Learner::create(tiny_config(family), 3, adapted_options(dtype));
      learner->update_target(1);
      train(*learner, 2);
      learner->save(directory.path());
      CHECK(fs::exists(directory / "base") != loaded);
      CHECK_FALSE(fs::exists(directory / "model.safetensors"));
      const auto resumed =
          Learner::resume(directory.path(), options_of(dtype), loaded ? base.path() : std::string());
      CHECK(resumed->options().adapter->rank == 3);
      for (int round = 0; round < 2; ++round) {
        CHECK(equal(resumed->masters().list(), learner->masters().list()));
        CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
        CHECK(equal(resumed->gradients()->list(), learner->gradients()->list()));
        for (WeightSet which : {WeightSet::online, WeightSet::target})
          CHECK(resumed->log_probs(some_texts(), which) == learner->log_probs(some_texts(), which));
        train(*learner, 2);
        train(*resumed, 2);
      }
      // A resumed learner can be saved and resumed again.
      Scratch second;
      resumed->save(second.path());
      const auto again =
          Learner::resume(second.path(), adapted_options(dtype), loaded ? base.path() : std::string());
      CHECK(equal(again->masters().list(), learner->masters().list()));
    }
  }
}

TEST_CASE("a value head is trained beside an adapter, and the reference copies only what is trained") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(std::string(c10::toString(dtype)));
    LearnerOptions options = adapted_options(dtype);
    const int64_t without = Learner::create(tiny_config(), 1, options)->trainable_parameters();
    options.heads = Heads::value;
    const auto learner = Learner::create(tiny_config(), 1, options);
    CHECK(learner->trainable_parameters() == without + 24 + 1);
    CHECK_FALSE(learner->base()->value.defined());
    learner->keep_reference();
    const auto texts = some_texts();
    const auto before = learner->log_probs(texts, WeightSet::online);
    SurrogateSettings settings;
    settings.value = ValueOptions{0.5, 0};
    for (int i = 0; i < 3; ++i) {
      std::vector<SurrogateText> episodes;
      for (const ScoredText& text : texts) {
        const size_t tokens = text.response.size();
        episodes.push_back({text,
                            learner->log_probs({text}, WeightSet::online)[0],
                            std::vector<float>(tokens, 1.0f),
                            {},
                            std::vector<float>(tokens, 2.0f),
                            std::vector<float>(tokens, 0.0f)});
      }
      learner->token_surrogate(episodes, settings);
      CHECK_FALSE(learner->step(quick_step(), "").skipped);
    }
    CHECK(learner->masters().value.ne(0).all().item<bool>());
    CHECK(learner->log_probs(texts, WeightSet::online) != before);
    CHECK(learner->log_probs(texts, WeightSet::reference) == before);

    Scratch directory, exported;
    learner->save(directory.path());
    const auto resumed = Learner::resume(directory.path(), options_of(dtype));
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(resumed->values(texts) == learner->values(texts));
    CHECK(resumed->log_probs(texts, WeightSet::reference) == before);
    learner->export_huggingface(exported.path());
    CHECK(Learner::load(exported.path(), options_of(dtype))->parameters() ==
          learner->parameters() - learner->trainable_parameters());
  }
}

TEST_CASE("heads stay in float32 beside an adapter on a bfloat16 model") {
  for (const Heads heads : {Heads::value, Heads::q}) {
    LearnerOptions whole = options_of(at::kBFloat16), adapted = adapted_options(at::kBFloat16);
    whole.heads = adapted.heads = heads;
    const auto learner = Learner::create(tiny_config(), 1, whole);
    at::NoGradGuard no_grad;
    at::manual_seed(6);
    const auto heads_of = [&](const Weights& weights) {
      return heads == Heads::value ? std::vector<at::Tensor>{weights.value, weights.value_bias}
                                   : std::vector<at::Tensor>{weights.q[0].advantage, weights.q[0].value,
                                                             weights.q[1].advantage, weights.q[1].value};
    };
    for (const at::Tensor& tensor : heads_of(learner->masters())) tensor.copy_(at::randn_like(tensor));
    Scratch directory;
    learner->save(directory.path());
    const auto beside = Learner::load(directory.path(), adapted);
    CHECK(equal(heads_of(beside->masters()), heads_of(learner->masters())));
    // Neither does the learner's own checkpoint round them.
    Scratch second;
    beside->save(second.path());
    const auto resumed = Learner::resume(second.path(), options_of(at::kBFloat16));
    CHECK(equal(resumed->masters().list(), beside->masters().list()));
  }
}

TEST_CASE("an adapter's checkpoint is rejected without its base, with another base, or if damaged") {
  Scratch base, other, directory, plain;
  Learner::create(tiny_config(), 3, options_of())->export_huggingface(base.path());
  Learner::create(tiny_config(), 4, options_of())->export_huggingface(other.path());
  const auto learner = Learner::load(base.path(), adapted_options());
  learner->save(directory.path());
  const auto resume = [&](const std::string& model, const LearnerOptions& options = options_of()) {
    return code_of([&] { Learner::resume(directory.path(), options, model); });
  };
  REQUIRE(resume(base.path()) == "none");
  CHECK(resume("") == "ERR_CHECKPOINT");
  CHECK(resume(other.path()) == "ERR_CHECKPOINT");
  CHECK(resume(base / "nowhere") == "ERR_CHECKPOINT");

  LearnerOptions differing = adapted_options();
  CHECK(resume(base.path(), differing) == "none");
  differing.adapter->rank = 4;
  CHECK(resume(base.path(), differing) == "ERR_CONFIG");
  Learner::load(base.path(), options_of())->save(plain.path());
  CHECK(code_of([&] { Learner::resume(plain.path(), adapted_options()); }) == "ERR_CONFIG");

  // The same tensors under another configuration.
  ModelConfig turned = tiny_config();
  turned.rope.theta = 5;
  const std::string config = turned.to_json("float32");
  fs::rename(base / "config.json", base / "kept");
  std::ofstream(base / "config.json") << config;
  CHECK(resume(base.path()) == "ERR_CHECKPOINT");
  fs::rename(base / "kept", base / "config.json");
  REQUIRE(resume(base.path()) == "none");

  // A checkpoint is not a model.
  CHECK(code_of([&] { Learner::load(directory.path(), options_of()); }) == "ERR_MODEL_FORMAT");
  const fs::path manifest = directory / "learner.json";
  std::string text;
  std::getline(std::ifstream(manifest), text, '\0');
  const size_t rank = text.find("\"rank\": 3");
  REQUIRE(rank != std::string::npos);
  for (const char* wrong : {"\"rank\": 0", "\"rank\": 9223372036854775807"}) {
    std::ofstream(manifest, std::ios::trunc) << std::string(text).replace(rank, 9, wrong);
    CHECK(resume(base.path()) == "ERR_CHECKPOINT");
  }
  std::ofstream(manifest, std::ios::trunc) << text;
  REQUIRE(resume(base.path()) == "none");
  fs::resize_file(directory / "adapter_model.safetensors", 100);
  CHECK(resume(base.path()) == "ERR_CHECKPOINT");
}

TEST_CASE("an exported adapted model scores like the learner") {
  for (Family family : {Family::llama, Family::qwen2}) {
    const auto learner = adapted_learner(adapted_options(), family);
    Scratch directory;
    learner->export_huggingface(directory.path());
    const auto loaded = Learner::load(directory.path(), options_of());
    const auto expected = learner->log_probs(some_texts(), WeightSet::online),
               scores = loaded->log_probs(some_texts(), WeightSet::online);
    for (size_t i = 0; i < scores.size(); ++i)
      for (size_t j = 0; j < scores[i].size(); ++j)
        CHECK(scores[i][j] == doctest::Approx(expected[i][j]).epsilon(1e-4));
  }
  const auto plain = tiny_learner();
  CHECK(code_of([&] { plain->export_adapter("nowhere", ""); }) == "ERR_VALUE");
}
