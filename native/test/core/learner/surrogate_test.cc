// Policy gradients and the value head.
#include "test/core/learner/examples.h"

#include <ATen/core/grad_mode.h>

using namespace learner_test;
using namespace nlac;

namespace {

SurrogateSettings ppo_settings() {
  SurrogateSettings settings;
  settings.entropy_coefficient = 0.01;
  settings.value = {0.5, 0.2};
  return settings;
}

SurrogateSettings grpo_settings() {
  SurrogateSettings settings;
  settings.temperature = 0.8;
  settings.surrogate = {0.2, 0.28, 0.04};
  return settings;
}

// Sequences that `learner` might have generated a few steps ago, with observations in between.
std::vector<SurrogateText> some_episodes(Learner& learner, double temperature = 1) {
  std::mt19937_64 engine(9);
  std::normal_distribution<float> normal;
  const float nothing = std::numeric_limits<float>::quiet_NaN();  // must not be read
  std::vector<SurrogateText> episodes;
  for (const ScoredText& text : some_texts()) {
    SurrogateText episode{text, {}, {}, {}, {}, {}};
    episode.weights.clear();
    const auto scores = learner.log_probs({text}, WeightSet::online, temperature)[0];
    const auto values = learner.values({text})[0];
    for (size_t j = 0; j < text.response.size(); ++j) {
      const bool written = j % 4 != 2;
      episode.weights.push_back(written ? 0.5f + 0.25f * static_cast<float>(j % 3) : 0);
      episode.old_log_probs.push_back(written ? scores[j] + 0.3f * normal(engine) : nothing);
      episode.advantages.push_back(written ? normal(engine) : nothing);
      episode.reference_log_probs.push_back(written ? scores[j] + 0.5f * normal(engine) : nothing);
      episode.returns.push_back(written ? values[j] + normal(engine) : nothing);
      episode.old_values.push_back(written ? values[j] + 0.3f * normal(engine) : nothing);
    }
    episodes.push_back(std::move(episode));
  }
  return episodes;
}

// The expected results of token_surrogate by its formulas: float64 autograd down to the hidden
// states, the float64 decoder below.
struct Expected {
  std::vector<at::Tensor> losses, log_probs, entropies, ratios, values, value_losses;  // per text, [tokens]
  std::vector<at::Tensor> gradients;                                                   // as Weights::list()
};

Expected expected_of(const Learner& learner, const std::vector<SurrogateText>& texts,
                     const SurrogateSettings& settings) {
  const Weights weights = learner.masters().copy_as(at::kDouble, at::kCPU);
  Weights gradients = weights.zeros_like(at::kDouble);
  Decoder decoder(learner.config());
  Expected expected;
  for (const SurrogateText& text : texts) {
    Ids ids = text.prompt;
    ids.insert(ids.end(), text.response.begin(), text.response.end() - 1);
    std::shared_ptr<Decoder::Tape> tape;
    const auto tokens = static_cast<int64_t>(ids.size());
    const at::Tensor hidden =
        decoder.forward(weights, at::tensor(ids, at::kLong), {tokens}, false, tape).requires_grad_();
    const at::Tensor head = weights.head.clone().requires_grad_();
    const at::Tensor value = weights.value.clone().requires_grad_(),
                     bias = weights.value_bias.clone().requires_grad_();

    const auto list = [](const std::vector<float>& values) {
      return at::tensor(values, at::kFloat).to(at::kDouble).nan_to_num();
    };
    const at::Tensor rows = hidden.narrow(0, static_cast<int64_t>(text.prompt.size()) - 1,
                                          static_cast<int64_t>(text.response.size()));
    const at::Tensor log_softmax = (rows.mm(head.t()) / settings.temperature).log_softmax(1);
    const at::Tensor log_probs =
        log_softmax.gather(1, at::tensor(text.response, at::kLong).unsqueeze(1)).squeeze(1);
    const at::Tensor entropies = -(log_softmax.exp() * log_softmax).sum(1);
    const at::Tensor ratios = (log_probs - list(text.old_log_probs)).exp();
    const at::Tensor advantages = list(text.advantages);
    const at::Tensor held = ratios.clamp(1 - settings.surrogate.clip_low, 1 + settings.surrogate.clip_high);
    const at::Tensor away = list(text.reference_log_probs) - log_probs;
    const at::Tensor losses = -at::minimum(ratios * advantages, held * advantages) +
                              settings.surrogate.kl_coefficient * (away.exp() - away - 1) -
                              settings.entropy_coefficient * entropies;
    const ValueOptions options = settings.value.value_or(ValueOptions{});
    const at::Tensor read = options.detached ? rows.detach() : rows;
    const at::Tensor values = (read.mm(value.t()) + bias).squeeze(1);
    const at::Tensor old_values = list(text.old_values), returns = list(text.returns);
    const at::Tensor held_values =
        options.clip > 0 ? old_values + (values - old_values).clamp(-options.clip, options.clip) : values;
    const at::Tensor value_losses =
        at::maximum((values - returns).square(), (held_values - returns).square()) / 2;

    const at::Tensor used = list(text.weights);
    (used * (losses + options.coefficient * value_losses)).sum().backward();
    gradients.head.add_(head.grad());
    if (settings.value) {
      gradients.value.add_(value.grad());
      gradients.value_bias.add_(bias.grad());
    }
    decoder.backward(weights, tape, hidden.grad(), gradients);
    const at::Tensor mask = used.ne(0).to(at::kDouble);
    const auto keep = [&](std::vector<at::Tensor>& all, const at::Tensor& of_text) {
      all.push_back(of_text.detach() * mask);
    };
    keep(expected.losses, losses);
    keep(expected.log_probs, log_probs);
    keep(expected.entropies, entropies);
    keep(expected.ratios, ratios);
    keep(expected.values, values);
    keep(expected.value_losses, value_losses);
  }
  expected.gradients = gradients.list();
  return expected;
}

void check_close(const std::vector<float>& got, const at::Tensor& expected) {
  REQUIRE(static_cast<int64_t>(got.size()) == expected.numel());
  for (size_t j = 0; j < got.size(); ++j) {
    CAPTURE(j);
    const double value = expected[static_cast<int64_t>(j)].item<double>();
    CHECK(std::abs(got[j] - value) <= 1e-5 * std::max(1.0, std::abs(value)));
  }
}

}  // namespace

TEST_CASE("the surrogate and the value loss equal float64 autograd's, through the whole decoder") {
  SurrogateSettings unclipped = ppo_settings(), detached = ppo_settings();
  unclipped.value = {2, 0};
  detached.value->detached = true;
  for (Family family : {Family::llama, Family::qwen3}) {
    for (const SurrogateSettings& settings : {ppo_settings(), grpo_settings(), unclipped, detached}) {
      CAPTURE(settings.temperature);
      const auto learner = tiny_critic(with_value_head(), family);
      const auto texts = some_episodes(*learner, settings.temperature);
      const Expected expected = expected_of(*learner, texts, settings);
      at::NoGradGuard no_grad;
      const auto outputs = learner->token_surrogate(texts, settings);
      std::vector<int> times(3);  // held below, free, held above
      int held_values = 0;
      for (size_t i = 0; i < texts.size(); ++i) {
        CAPTURE(i);
        const SurrogateOutput& output = outputs[i];
        check_close(output.losses, expected.losses[i]);
        check_close(output.log_probs, expected.log_probs[i]);
        check_close(output.entropies, expected.entropies[i]);
        check_close(output.ratios, expected.ratios[i]);
        for (size_t j = 0; j < texts[i].response.size(); ++j) {
          if (texts[i].weights[j] == 0) {
            CHECK(output.clipped[j] == 0);
            continue;
          }
          const bool up = texts[i].advantages[j] > 0;
          const double ratio = expected.ratios[i][static_cast<int64_t>(j)].item<double>();
          const int32_t clipped = up && ratio > 1 + settings.surrogate.clip_high   ? 1
                                  : !up && ratio < 1 - settings.surrogate.clip_low ? -1
                                                                                   : 0;
          CHECK(output.clipped[j] == clipped);
          ++times[static_cast<size_t>(clipped + 1)];
        }
        if (!settings.value) {
          CHECK(output.values.empty());
          CHECK(output.value_losses.empty());
          continue;
        }
        check_close(output.values, expected.values[i]);
        check_close(output.value_losses, expected.value_losses[i]);
        for (size_t j = 0; j < output.values.size(); ++j) {
          const float error = output.values[j] - texts[i].returns[j];
          held_values += output.value_losses[j] > 0.51f * error * error;
        }
        check_close(learner->values({texts[i]})[0], expected.values[i]);
      }
      for (int count : times) CHECK(count > 0);
      CHECK((held_values > 0) == (settings.value && settings.value->clip > 0));
      const auto gradients = learner->gradients()->list();
      for (size_t i = 0; i < gradients.size(); ++i) {
        CAPTURE(i);
        const double scale = std::max(expected.gradients[i].norm().item<double>(), 1e-3);
        CHECK((gradients[i] - expected.gradients[i]).norm().item<double>() / scale < 1e-4);
      }
    }
  }
}

TEST_CASE("the sampling policy has a ratio of 1, and only the advantage's gradient") {
  const auto learner = tiny_learner();
  std::vector<SurrogateText> texts;
  for (ScoredText& text : some_texts()) {
    SurrogateText episode{text, learner->log_probs({text}, WeightSet::online)[0], {}, {}, {}, {}};
    episode.advantages.assign(text.response.size(), 1);
    texts.push_back(std::move(episode));
  }
  for (const SurrogateOutput& output : learner->token_surrogate(texts, {})) {
    for (float ratio : output.ratios) CHECK(ratio == doctest::Approx(1).epsilon(1e-5));
    for (float loss : output.losses) CHECK(loss == doctest::Approx(-1).epsilon(1e-5));
  }
  const auto other = tiny_learner();
  other->token_nll(some_texts(), true);
  CHECK(relative_difference(learner->gradients()->list(), other->gradients()->list()) < 1e-5);
}

TEST_CASE("neither micro-batches nor gradient checkpointing change the surrogate") {
  const auto whole = tiny_critic();
  const auto texts = some_episodes(*whole);
  const auto expected = whole->token_surrogate(texts, ppo_settings());
  for (int64_t micro_batch_tokens : {1, 16, 30}) {
    for (bool recompute : {false, true}) {
      LearnerOptions options = with_value_head(at::kFloat, micro_batch_tokens);
      options.gradient_checkpointing = recompute;
      const auto split = tiny_critic(options);
      const auto outputs = split->token_surrogate(texts, ppo_settings());
      for (size_t i = 0; i < texts.size(); ++i) {
        for (size_t j = 0; j < texts[i].response.size(); ++j) {
          CHECK(outputs[i].losses[j] == doctest::Approx(expected[i].losses[j]).epsilon(1e-4));
          CHECK(outputs[i].values[j] == doctest::Approx(expected[i].values[j]).epsilon(1e-4));
        }
      }
      CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-5);
    }
  }
  // Without gradient: the same losses and nothing else.
  SurrogateSettings settings = ppo_settings();
  settings.with_gradient = false;
  const auto reader = tiny_critic();
  const auto outputs = reader->token_surrogate(texts, settings);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < texts[i].response.size(); ++j)
      CHECK(outputs[i].losses[j] == doctest::Approx(expected[i].losses[j]).epsilon(1e-5));
  }
  CHECK(reader->gradients() == nullptr);
}

TEST_CASE("in bfloat16 the value head is float32 over bfloat16 hidden states") {
  const auto exact = tiny_critic();
  Scratch directory;
  exact->save(directory.path());
  const auto learner = Learner::load(directory.path(), with_value_head(at::kBFloat16));
  auto texts = some_episodes(*exact);
  // The value part alone.
  for (SurrogateText& text : texts) text.advantages.assign(text.response.size(), 0);
  SurrogateSettings settings;
  settings.value = {1, 0};
  const auto outputs = learner->token_surrogate(texts, settings);
  exact->token_surrogate(texts, settings);
  double bias = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < outputs[i].values.size(); ++j) {
      if (texts[i].weights[j] == 0) continue;
      const double error = static_cast<double>(outputs[i].values[j]) - texts[i].returns[j];
      CHECK(outputs[i].value_losses[j] == doctest::Approx(error * error / 2).epsilon(1e-5));
      bias += texts[i].weights[j] * error;
    }
  }
  CHECK(learner->gradients()->value_bias.item<double>() == doctest::Approx(bias).epsilon(1e-5));
  CHECK(relative_difference(learner->gradients()->list(), exact->gradients()->list()) < 0.2);
}

TEST_CASE("the value head is stepped and averaged like every parameter") {
  const auto plain = tiny_learner();
  const auto learner = tiny_critic();
  CHECK(learner->parameters() == plain->parameters() + 24 + 1);
  CHECK(Learner::create(tiny_config(), 1, with_value_head())->masters().value.eq(0).all().item<bool>());
  learner->update_target(0);
  const at::Tensor before = learner->masters().value.clone(), bias = learner->masters().value_bias.clone();
  learner->token_surrogate(some_episodes(*learner), ppo_settings());
  CHECK(learner->gradients()->value.norm().item<double>() > 0);
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
  const at::Tensor& value = learner->masters().value;
  CHECK_FALSE(at::equal(value, before));
  CHECK_FALSE(at::equal(learner->masters().value_bias, bias));
  CHECK(learner->gradients()->value.eq(0).all().item<bool>());
  CHECK(at::equal(learner->target_masters()->value, before));
  learner->update_target(0.25);
  CHECK(at::allclose(learner->target_masters()->value, 0.25 * value + 0.75 * before, 1e-6, 1e-7));

  // Its values converge to the returns.
  auto texts = some_episodes(*learner);
  SurrogateSettings settings;
  settings.value = {1, 0};
  const auto error = [&] {
    double sum = 0;
    for (const auto& output : learner->token_surrogate(texts, settings)) {
      for (float loss : output.value_losses) sum += loss;
    }
    return sum;
  };
  const double first = error();
  for (int i = 0; i < 40; ++i) learner->step(quick_step(), ""), error();
  CHECK(error() < first / 10);
}

TEST_CASE("a non-finite surrogate or value skips the step") {
  const auto learner = tiny_critic();
  auto texts = some_episodes(*learner);
  const auto before = copies(learner->masters());
  texts[0].old_log_probs[0] = -1e4;  // its ratio is beyond float32
  texts[0].advantages[0] = -1;       // and nothing holds it
  learner->token_surrogate(texts, ppo_settings());
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));

  texts = some_episodes(*learner);
  texts[0].returns[0] = 3e38f;
  learner->token_surrogate(texts, ppo_settings());
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));
  learner->token_surrogate(some_episodes(*learner), ppo_settings());
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
}

TEST_CASE("the reference is θ at the time it was copied") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = tiny_learner(options_of(dtype));
    const auto texts = some_texts();
    std::string message;
    CHECK(code_of([&] { learner->log_probs(texts, WeightSet::reference); }, &message) == "ERR_VALUE");
    CHECK(message.find("reference") != std::string::npos);
    const auto step = [&] {
      learner->token_nll(texts, true);
      learner->step(quick_step(), "");
    };
    learner->keep_reference();
    const auto before = learner->log_probs(texts, WeightSet::online, 0.7);
    step();
    CHECK(learner->log_probs(texts, WeightSet::online, 0.7) != before);
    CHECK(learner->log_probs(texts, WeightSet::reference, 0.7) == before);
    CHECK(learner->log_probs(texts, WeightSet::reference) != before);  // another temperature
    const auto after = learner->log_probs(texts, WeightSet::online);
    learner->keep_reference();
    step();
    CHECK(learner->log_probs(texts, WeightSet::reference) == after);
    CHECK(code_of([&] { learner->generate({request_of({1}, 1)}, WeightSet::reference, {}); }) == "ERR_VALUE");
  }
}

TEST_CASE("the reference takes the place of θ, also in what inference packs") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = tiny_learner(options_of(dtype));
    const auto texts = some_texts();
    CHECK(code_of([&] { learner->restore_reference(); }) == "ERR_VALUE");
    const auto before = learner->log_probs(texts, WeightSet::online);
    learner->keep_reference();
    const auto kept = learner->log_probs(texts, WeightSet::reference);
    learner->token_nll(texts, true);
    learner->step(quick_step(), "");
    CHECK(learner->log_probs(texts, WeightSet::online) != before);
    learner->token_nll(texts, true);
    learner->restore_reference();
    CHECK(learner->log_probs(texts, WeightSet::online) == before);
    CHECK(learner->step(quick_step(), "").grad_norm == 0);  // the pending gradient was of other weights
    // It is a copy: the next step leaves the reference as it is.
    learner->token_nll(texts, true);
    learner->step(quick_step(), "");
    CHECK(learner->log_probs(texts, WeightSet::reference) == kept);
  }
}

TEST_CASE("log probabilities have a temperature") {
  const auto learner = tiny_learner();
  const ScoredText text = some_texts()[0];
  Ids whole = text.prompt;
  whole.insert(whole.end(), text.response.begin(), text.response.end());
  const at::Tensor table = (learner->logits(whole, WeightSet::online).to(at::kDouble) / 1.7).log_softmax(1);
  const auto scores = learner->log_probs({text}, WeightSet::online, 1.7)[0];
  for (size_t j = 0; j < scores.size(); ++j) {
    const auto row = static_cast<int64_t>(text.prompt.size() + j) - 1;
    CHECK(scores[j] == doctest::Approx(table[row][text.response[j]].item<double>()).epsilon(1e-5));
  }
  CHECK(code_of([&] { learner->log_probs({text}, WeightSet::online, 0); }) == "ERR_VALUE");
}

TEST_CASE("a learner with a value head and a reference resumes bit for bit") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = tiny_critic(with_value_head(dtype));
    const auto texts = some_episodes(*learner);
    const auto train = [&](Learner& trained) {
      for (int i = 0; i < 3; ++i) {
        trained.token_surrogate(texts, ppo_settings());
        trained.step(quick_step(), "");
        trained.update_target(0.1);
      }
    };
    const std::vector<ScoredText> scored = some_texts();
    learner->keep_reference();
    learner->update_target(0);
    train(*learner);
    learner->token_surrogate(texts, ppo_settings());  // left pending
    Scratch directory;
    learner->save(directory.path());
    // The saved heads are used, regardless of the options.
    const auto resumed = Learner::resume(directory.path(), options_of(dtype));
    CHECK((resumed->options().heads == Heads::value));
    CHECK(equal(resumed->gradients()->list(), learner->gradients()->list()));
    CHECK(resumed->log_probs(scored, WeightSet::reference) ==
          learner->log_probs(scored, WeightSet::reference));
    train(*learner);
    train(*resumed);
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
    CHECK(resumed->values(scored) == learner->values(scored));

    // The reference is saved in the learner's type: a float32 copy of a large model would not fit
    // beside it.
    const auto size = [&](const char* name) { return static_cast<double>(fs::file_size(directory / name)); };
    CHECK(size("reference.safetensors") / size("model.safetensors") ==
          doctest::Approx(dtype == at::kFloat ? 1 : 0.5).epsilon(0.05));
    const auto wider = Learner::resume(directory.path(), options_of(at::kFloat));
    CHECK(wider->log_probs(scored, WeightSet::reference).size() == scored.size());
    fs::resize_file(directory / "reference.safetensors", 100);
    CHECK(code_of([&] { Learner::resume(directory.path(), options_of()); }) == "ERR_CHECKPOINT");
  }
}

TEST_CASE("a surrogate's invalid arguments are rejected by name") {
  const auto learner = tiny_critic();
  const auto texts = some_episodes(*learner);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SurrogateSettings all = ppo_settings();
  all.surrogate.kl_coefficient = 0.1;
  const auto refused = [&](const char* name, const std::function<void(SurrogateText&)>& spoil) {
    auto spoilt = texts;
    spoil(spoilt[2]);
    std::string message;
    CHECK(code_of([&] { learner->token_surrogate(spoilt, all); }, &message) == "ERR_VALUE");
    CAPTURE(message);
    CHECK(message.find("text 2: ") == 0);
    CHECK(message.find(name) != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  const std::pair<const char*, std::vector<float> SurrogateText::*> lists[] = {
      {"old log probabilities", &SurrogateText::old_log_probs},
      {"advantages", &SurrogateText::advantages},
      {"reference log probabilities", &SurrogateText::reference_log_probs},
      {"returns", &SurrogateText::returns},
      {"old values", &SurrogateText::old_values},
  };
  for (const auto& [name, list] : lists) {
    CAPTURE(name);
    refused(name, [&, list = list](SurrogateText& text) { (text.*list).pop_back(); });
    refused(name, [&, list = list](SurrogateText& text) { (text.*list)[1] = nan; });
  }
  const auto code = [&](const std::function<void(SurrogateSettings&)>& spoil) {
    SurrogateSettings settings = all;
    spoil(settings);
    return code_of([&] { learner->token_surrogate(texts, settings); });
  };
  CHECK(code([](auto& settings) { settings.temperature = 0; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.surrogate.clip_low = 1.5; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.surrogate.clip_high = -1; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.surrogate.kl_coefficient = -1; }) == "ERR_VALUE");
  CHECK(code([&](auto& settings) { settings.entropy_coefficient = nan; }) == "ERR_VALUE");
  CHECK(code([](auto& settings) { settings.value->coefficient = -1; }) == "ERR_VALUE");
  CHECK(code([&](auto& settings) { settings.value->clip = nan; }) == "ERR_VALUE");
  CHECK(learner->gradients() == nullptr);

  const auto plain = tiny_learner();
  CHECK(code_of([&] { plain->token_surrogate(texts, all); }) == "ERR_CONFIG");
  CHECK(code_of([&] { plain->values(some_texts()); }) == "ERR_CONFIG");
  CHECK(learner->token_surrogate({}, all).empty());
}
