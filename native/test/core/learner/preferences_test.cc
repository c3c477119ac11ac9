// Preference pairs and the reward model. The reference is float64 autograd of the formulas down to
// the hidden states, and the float64 decoder below.
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/io/safetensors.h"
#include "test/core/learner/examples.h"

using namespace learner_test;
using namespace nlac;

namespace {

// Responses with observations in between, of different lengths, and pairs of different weights.
std::vector<PreferencePair> some_pairs() {
  std::vector<PreferencePair> pairs;
  for (const auto& [chosen, rejected, weight] :
       {std::tuple{7, 4, 1.0}, std::tuple{1, 9, 0.25}, std::tuple{3, 3, 0.0}, std::tuple{12, 5, -0.5}}) {
    const uint64_t seed = 100 * (pairs.size() + 1);
    PreferencePair pair;
    pair.weight = weight;
    pair.chosen = {random_ids(4, seed), random_ids(chosen, seed + 1), {1.0f}};
    pair.rejected = {random_ids(6, seed + 2), random_ids(rejected, seed + 3), {}};
    for (int j = 0; j < rejected; ++j) pair.rejected.weights.push_back(j % 4 == 2 ? 0.0f : 1.0f);
    pair.reference_chosen = -4.0 * chosen - 0.5;
    pair.reference_rejected = -4.0 * rejected + 1.5;
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

const PreferenceLoss kinds[] = {{PreferenceLossKind::sigmoid, 0.2, 0.1},
                                {PreferenceLossKind::hinge, 0.1, 0},
                                {PreferenceLossKind::ipo, 0.4, 0}};

std::vector<JudgedText> some_judged() {
  return {{random_ids(5, 1), random_ids(7, 2), 1, 1},
          {random_ids(1, 3), random_ids(1, 4), 0, 0.5},
          {random_ids(12, 5), random_ids(3, 6), 0.3, 2},
          {random_ids(2, 9), random_ids(4, 10), 0.9, 0},
          {random_ids(3, 7), random_ids(20, 8), 0.6, -0.25}};
}

// A float64 copy of a learner's decoder, with gradients.
struct Reference {
  Weights weights, gradients;
  Decoder decoder;

  explicit Reference(const Learner& learner)
      : weights(learner.masters().copy_as(at::kDouble, at::kCPU)),
        gradients(weights.zeros_like(at::kDouble)),
        decoder(learner.config()) {}

  struct Pass {
    at::Tensor hidden;  // [tokens, hidden], a leaf
    std::shared_ptr<Decoder::Tape> tape;
  };
  Pass forward(const Ids& ids) {
    Pass pass;
    pass.hidden = decoder
                      .forward(weights, at::tensor(ids, at::kLong), {static_cast<int64_t>(ids.size())}, false,
                               pass.tape)
                      .requires_grad_();
    return pass;
  }
  void backward(const Pass& pass) { decoder.backward(weights, pass.tape, pass.hidden.grad(), gradients); }
};

void check_gradients(const Learner& learner, const Reference& reference) {
  const auto gradients = learner.gradients()->list(), expected = reference.gradients.list();
  for (size_t i = 0; i < gradients.size(); ++i) {
    CAPTURE(i);
    const double scale = std::max(expected[i].norm().item<double>(), 1e-3);
    CHECK((gradients[i] - expected[i]).norm().item<double>() / scale < 1e-4);
  }
}

at::Tensor leaf_of(const at::Tensor& tensor) { return tensor.clone().requires_grad_(); }

}  // namespace

TEST_CASE("preference losses equal float64 autograd's, through the whole decoder") {
  const auto pairs = some_pairs();
  for (const Family family : {Family::llama, Family::qwen3}) {
    for (const PreferenceLoss& loss : kinds) {
      CAPTURE(static_cast<int>(loss.kind));
      const auto learner = tiny_learner(options_of(), family);
      Reference reference(*learner);
      const at::Tensor head = leaf_of(reference.weights.head);
      std::vector<Reference::Pass> passes;
      std::vector<PreferenceOutput> expected;
      at::Tensor total = at::zeros({}, at::kDouble);
      for (const PreferencePair& pair : pairs) {
        if (pair.weight == 0) {
          expected.push_back({});
          continue;
        }
        std::vector<at::Tensor> ratios, tokens, sums;
        for (const ScoredText* text : {&pair.chosen, &pair.rejected}) {
          Ids ids = text->prompt;
          ids.insert(ids.end(), text->response.begin(), text->response.end() - 1);
          const Reference::Pass& pass = passes.emplace_back(reference.forward(ids));
          const auto count = static_cast<int64_t>(text->response.size());
          const at::Tensor log_probs =
              pass.hidden.narrow(0, static_cast<int64_t>(text->prompt.size()) - 1, count)
                  .mm(head.t())
                  .log_softmax(1)
                  .gather(1, at::tensor(text->response, at::kLong).unsqueeze(1))
                  .squeeze(1);
          at::Tensor used = at::ones({count}, at::kDouble);
          for (int64_t j = 0; j < count; ++j)
            if (weight_of(*text, static_cast<size_t>(j)) == 0) used[j] = 0;
          sums.push_back((log_probs * used).sum());
          ratios.push_back(sums.back() -
                           (text == &pair.chosen ? pair.reference_chosen : pair.reference_rejected));
          tokens.push_back(used.sum());
        }
        const at::Tensor x = loss.beta * (ratios[0] - ratios[1]);
        const at::Tensor one =
            loss.kind == PreferenceLossKind::hinge ? at::relu(1 - x)
            : loss.kind == PreferenceLossKind::ipo
                ? (ratios[0] / tokens[0] - ratios[1] / tokens[1] - 0.5 / loss.beta).square()
                : -(1 - loss.label_smoothing) * at::log_sigmoid(x) -
                      loss.label_smoothing * at::log_sigmoid(-x);
        total = total + pair.weight * one;
        expected.push_back({one.item<double>(), sums[0].item<double>(), sums[1].item<double>(),
                            loss.beta * ratios[0].item<double>(), loss.beta * ratios[1].item<double>()});
      }
      total.backward();
      reference.gradients.head.add_(head.grad());
      for (const Reference::Pass& pass : passes) reference.backward(pass);

      at::NoGradGuard no_grad;
      const auto outputs = learner->token_preference(pairs, loss, true);
      REQUIRE(outputs.size() == expected.size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        CAPTURE(i);
        for (const auto field : {&PreferenceOutput::loss, &PreferenceOutput::chosen_log_prob,
                                 &PreferenceOutput::rejected_log_prob, &PreferenceOutput::chosen_reward,
                                 &PreferenceOutput::rejected_reward})
          CHECK(std::abs(outputs[i].*field - expected[i].*field) <=
                1e-5 * std::max(1.0, std::abs(expected[i].*field)));
      }
      check_gradients(*learner, reference);
    }
  }
}

TEST_CASE("neither micro-batches nor gradient checkpointing change the loss of pairs") {
  const auto pairs = some_pairs();
  const auto whole = tiny_learner();
  const auto expected = whole->token_preference(pairs, kinds[0], true);
  for (const int64_t micro_batch_tokens : {1, 16, 30}) {
    for (const bool recompute : {false, true}) {
      LearnerOptions options = options_of(at::kFloat, micro_batch_tokens);
      options.gradient_checkpointing = recompute;
      const auto split = tiny_learner(options);
      const auto outputs = split->token_preference(pairs, kinds[0], true);
      for (size_t i = 0; i < pairs.size(); ++i)
        CHECK(outputs[i].loss == doctest::Approx(expected[i].loss).epsilon(1e-4));
      CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-5);
    }
  }
  const auto reader = tiny_learner();
  const auto outputs = reader->token_preference(pairs, kinds[0], false);
  for (size_t i = 0; i < pairs.size(); ++i)
    CHECK(outputs[i].loss == doctest::Approx(expected[i].loss).epsilon(1e-6));
  CHECK(reader->gradients() == nullptr);
  CHECK(reader->token_preference({}, kinds[0], true).empty());
}

TEST_CASE("pairs train adapters, and gradients equal finite differences") {
  const auto learner = adapted_learner();
  auto pairs = some_pairs();
  for (PreferencePair& pair : pairs) pair.weight = std::abs(pair.weight) + 0.5;
  for (const PreferenceLoss& loss : {kinds[0], kinds[2]}) {
    learner->discard_gradients();
    check_gradient(*learner, [&](bool with_gradient) {
      double sum = 0;
      const auto outputs = learner->token_preference(pairs, loss, with_gradient);
      for (size_t i = 0; i < pairs.size(); ++i) sum += pairs[i].weight * outputs[i].loss;
      return sum;
    });
  }
}

// What a load-balance loss adds to the gradients of a loss of a mixture of experts.
static std::vector<at::Tensor> of_balance(const std::function<void(Learner&)>& loss) {
  std::vector<at::Tensor> gradients;
  for (const double balance : {0.0, 10.0}) {
    LearnerOptions options = with_value_head();
    options.balance = balance;
    const auto learner = tiny_critic(options, Family::qwen3_moe);
    loss(*learner);
    const std::vector<at::Tensor> now = learner->gradients()->list();
    if (gradients.empty()) {
      gradients = copies(*learner->gradients());
      continue;
    }
    for (size_t i = 0; i < now.size(); ++i) gradients[i] = now[i] - gradients[i];
  }
  return gradients;
}

TEST_CASE("the load-balance loss is weighted by pairs and judged texts as by the tokens of other losses") {
  at::NoGradGuard no_grad;
  // The same sequences, with the weight of a pair or text on single tokens.
  std::vector<ScoredText> of_pairs, of_judged;
  for (const PreferencePair& pair : some_pairs()) {
    for (ScoredText text : {pair.chosen, pair.rejected}) {
      text.weights.assign(text.response.size(), 0);
      text.weights.front() = static_cast<float>(pair.weight / 2);
      of_pairs.push_back(std::move(text));
    }
  }
  for (const JudgedText& judged : some_judged()) {
    ScoredText text{judged.prompt, judged.response, {}};
    text.response.push_back(0);
    text.weights.assign(text.response.size(), 0);
    text.weights.back() = static_cast<float>(judged.weight);
    of_judged.push_back(std::move(text));
  }
  const auto pairs = of_balance([&](Learner& one) { one.token_preference(some_pairs(), kinds[0], true); });
  const auto tokens = of_balance([&](Learner& one) { one.token_nll(of_pairs, true); });
  CHECK(relative_difference(pairs, tokens) < 1e-4);
  const auto judged = of_balance([&](Learner& one) { one.reward_loss(some_judged(), true); });
  const auto last = of_balance([&](Learner& one) { one.token_nll(of_judged, true); });
  CHECK(relative_difference(judged, last) < 1e-4);
}

TEST_CASE("training on pairs separates them from the reference") {
  const auto learner = tiny_learner();
  auto pairs = some_pairs();
  for (PreferencePair& pair : pairs) {
    pair.weight = 1;
    const auto sum = [&](const ScoredText& text) {
      const auto scores = learner->log_probs({text}, WeightSet::online);
      return std::accumulate(scores[0].begin(), scores[0].end(), 0.0);
    };
    pair.reference_chosen = sum(pair.chosen);
    pair.reference_rejected = sum(pair.rejected);
  }
  const PreferenceLoss loss{PreferenceLossKind::sigmoid, 0.1, 0};
  for (const PreferenceOutput& output : learner->token_preference(pairs, loss, false)) {
    CHECK(output.loss == doctest::Approx(std::log(2)).epsilon(1e-4));
    CHECK(std::abs(output.chosen_reward) < 1e-4);
  }
  for (int i = 0; i < 20; ++i) {
    learner->token_preference(pairs, loss, true);
    CHECK_FALSE(learner->step(quick_step(), "").skipped);
  }
  for (const PreferenceOutput& output : learner->token_preference(pairs, loss, false)) {
    CHECK(output.loss < 0.3);
    CHECK(output.chosen_reward > output.rejected_reward);
  }
}

TEST_CASE("the reward head equals a float64 linear probe at the last token") {
  const auto texts = some_judged();
  for (const Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
    const auto learner = tiny_critic(with_value_head(), family);
    Reference reference(*learner);
    const at::Tensor probe = leaf_of(reference.weights.value);
    std::vector<Reference::Pass> passes;
    std::vector<double> losses, rewards;
    at::Tensor total = at::zeros({}, at::kDouble);
    for (const JudgedText& text : texts) {
      Ids ids = text.prompt;
      ids.insert(ids.end(), text.response.begin(), text.response.end());
      const Reference::Pass& pass = passes.emplace_back(reference.forward(ids));
      const at::Tensor logit = pass.hidden[-1].dot(probe[0]);
      const at::Tensor loss = at::binary_cross_entropy_with_logits(
          logit, at::full({}, text.label, at::kDouble), {}, {}, at::Reduction::None);
      total = total + text.weight * loss;
      losses.push_back(text.weight == 0 ? 0 : loss.item<double>());
      rewards.push_back(logit.sigmoid().item<double>());
    }
    total.backward();
    reference.gradients.value.add_(probe.grad());
    for (const Reference::Pass& pass : passes) reference.backward(pass);

    at::NoGradGuard no_grad;
    const auto got = learner->rewards(texts);
    const auto got_losses = learner->reward_loss(texts, true);
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(got[i] - rewards[i]) < 1e-5);
      CHECK(std::abs(got_losses[i] - losses[i]) < 1e-5);
    }
    check_gradients(*learner, reference);
    CHECK(learner->gradients()->value_bias.item<float>() == 0);

    for (const int64_t micro_batch_tokens : {1, 20}) {
      const auto split = tiny_critic(with_value_head(at::kFloat, micro_batch_tokens), family);
      split->reward_loss(texts, true);
      CHECK(relative_difference(split->gradients()->list(), learner->gradients()->list()) < 1e-5);
    }
  }
}

TEST_CASE("a reward's loss is finite for logits of 1e4") {
  const auto learner = tiny_critic();
  at::NoGradGuard no_grad;
  auto texts = some_judged();
  learner->masters().value.mul_(1e4 / learner->masters().value.norm());
  bool large = false;
  for (const double label : {0.0, 0.5, 1.0}) {
    for (JudgedText& text : texts) text.label = label;
    for (const float loss : learner->reward_loss(texts, true)) {
      CHECK(std::isfinite(loss));
      large |= loss > 1e3;
    }
  }
  CHECK(large);
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
}

TEST_CASE("an adapter and its reward head learn labels, are averaged, saved and exported") {
  LearnerOptions options = adapted_options();
  options.heads = Heads::value;
  const auto learner = Learner::create(tiny_config(), 1, options);
  auto texts = some_judged();
  for (JudgedText& text : texts) text.weight = 1;
  // A new head is zero.
  for (const float reward : learner->rewards(texts)) CHECK(reward == 0.5f);
  for (int i = 0; i < 100; ++i) {
    learner->reward_loss(texts, true);
    CHECK_FALSE(learner->step(quick_step(), "", 0.1).skipped);
  }
  const auto rewards = learner->rewards(texts);
  for (size_t i = 0; i < texts.size(); ++i) CHECK(std::abs(rewards[i] - texts[i].label) < 0.15);
  CHECK(learner->target_masters()->value.norm().item<double>() > 0);
  CHECK(learner->masters().value_bias.item<float>() == 0);

  Scratch saved, exported;
  learner->save(saved.path());
  const auto resumed = Learner::resume(saved.path(), options);
  CHECK(resumed->rewards(texts) == rewards);
  CHECK(resumed->reward_loss(texts, true) == learner->reward_loss(texts, true));

  learner->export_reward_model(exported.path(), 5);
  std::ifstream file(exported / "config.json");
  const auto config = nlohmann::json::parse(file);
  CHECK(config["architectures"] == nlohmann::json::array({"LlamaForSequenceClassification"}));
  CHECK(config["num_labels"] == 1);
  CHECK(config["id2label"] == nlohmann::json({{"0", "reward"}}));
  CHECK(config["pad_token_id"] == 5);
  const SafetensorsFile tensors = open_safetensors(exported / "model.safetensors");
  std::set<std::string> names;
  for (const TensorEntry& tensor : tensors.tensors) names.insert(tensor.name);
  CHECK(names.count("score.weight") == 1);
  CHECK(names.count("model.layers.1.mlp.down_proj.weight") == 1);
  for (const std::string& name : names) {
    CHECK(name.find("lora") == std::string::npos);
    CHECK(name.find("value_head") == std::string::npos);
  }
  // An untied vocabulary matrix is no part of a classifier.
  const auto untied = tiny_critic(with_value_head(), Family::qwen3);
  Scratch other;
  untied->export_reward_model(other.path(), -1);
  const SafetensorsFile of_untied = open_safetensors(other / "model.safetensors");
  for (const TensorEntry& tensor : of_untied.tensors) CHECK(tensor.name != "lm_head.weight");
}

TEST_CASE("non-finite pairs and rewards skip the step and change nothing") {
  at::NoGradGuard no_grad;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto learner = tiny_critic();
  const at::Tensor value = learner->masters().value.clone();
  learner->masters().value.fill_(nan);
  const auto broken = copies(learner->masters());
  CHECK(std::isnan(learner->reward_loss(some_judged(), true)[0]));
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), broken));
  learner->masters().value.copy_(value);

  const at::Tensor norm = learner->masters().norm.clone();
  learner->masters().norm[0] = nan;
  const auto before = copies(learner->masters());
  CHECK(std::isnan(learner->token_preference(some_pairs(), kinds[0], true)[0].loss));
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));
  learner->masters().norm.copy_(norm);
  learner->token_preference(some_pairs(), kinds[0], true);
  CHECK_FALSE(learner->step(quick_step(), "").skipped);
}

TEST_CASE("invalid pairs and judged texts are rejected before anything is computed") {
  const auto learner = tiny_critic();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto pair_refused = [&](const std::function<void(PreferencePair&)>& spoil, const std::string& part) {
    auto pairs = some_pairs();
    spoil(pairs[1]);
    std::string message;
    CHECK(code_of([&] { learner->token_preference(pairs, kinds[0], true); }, &message) == "ERR_VALUE");
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  pair_refused([](auto& pair) { pair.chosen.response.clear(); }, "text 2: the response is empty");
  pair_refused([](auto& pair) { pair.rejected.prompt.clear(); }, "text 3: the prompt is empty");
  pair_refused([](auto& pair) { pair.rejected.response[0] = 53; }, "vocabulary");
  pair_refused([](auto& pair) { pair.rejected.weights.assign(9, 0); }, "text 3: the response has no token");
  pair_refused([&](auto& pair) { pair.reference_chosen = nan; }, "pair 1: the reference");
  pair_refused([&](auto& pair) { pair.weight = 1e300; }, "pair 1: the weight");
  CHECK(code_of([&] { learner->token_preference(some_pairs(), {PreferenceLossKind::ipo, 0, 0}, true); }) ==
        "ERR_VALUE");

  const auto text_refused = [&](const std::function<void(JudgedText&)>& spoil, const std::string& part) {
    auto texts = some_judged();
    spoil(texts[1]);
    std::string message;
    CHECK(code_of([&] { learner->reward_loss(texts, true); }, &message) == "ERR_VALUE");
    CAPTURE(message);
    CHECK(message.find("text 1: ") == 0);
    CHECK(message.find(part) != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  text_refused([](auto& text) { text.label = 1.01; }, "label");
  text_refused([](auto& text) { text.label = -1e-9; }, "label");
  text_refused([&](auto& text) { text.label = nan; }, "label");
  text_refused([&](auto& text) { text.weight = nan; }, "weight");
  text_refused([](auto& text) { text.response.clear(); }, "the response is empty");
  text_refused([](auto& text) { text.response.assign(96, 1); }, "context");
  CHECK(learner->reward_loss({}, true).empty());
  CHECK(learner->rewards({}).empty());

  const auto plain = tiny_learner();
  Scratch directory;
  CHECK(code_of([&] { plain->rewards(some_judged()); }) == "ERR_CONFIG");
  CHECK(code_of([&] { plain->reward_loss(some_judged(), true); }) == "ERR_CONFIG");
  CHECK(code_of([&] { plain->export_reward_model(directory.path(), 1); }) == "ERR_CONFIG");
  CHECK(code_of([&] { learner->export_reward_model(directory.path(), 53); }) == "ERR_VALUE");
}
