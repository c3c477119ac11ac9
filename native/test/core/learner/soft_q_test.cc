// Soft Q heads and their loss.
#include "test/core/learner/examples.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

#include "core/io/safetensors.h"

using namespace learner_test;
using namespace nlac;

TEST_CASE("new Q heads represent the policy, have small values, and differ") {
  for (Family family : {Family::llama, Family::qwen3}) {
    const auto learner = Learner::create(tiny_config(family), 2, q_options());
    SoftQOptions options = some_soft_q();
    options.with_gradient = false;
    const auto episodes = some_episodes();
    const auto output = learner->soft_q(episodes, options);
    const TwinQ& q = learner->masters().q;
    CHECK_FALSE(at::equal(q[0].value, q[1].value));
    for (size_t i = 0; i < episodes.size(); ++i) {
      for (float loss : output[i].policy_losses) CHECK(std::abs(loss) < 1e-6f);
    }
    for (const QHead& head : q) {
      CHECK(at::equal(head.advantage, learner->masters().head));
      CHECK_FALSE(head.advantage.is_same(learner->masters().head));
      // Hidden states are about as long as the norm's weight, here of ones.
      CHECK(head.value.norm().item<double>() == doctest::Approx(0.1));
    }
    const auto bare = Learner::create(tiny_config(family), 2, options_of());
    CHECK(learner->parameters() == bare->parameters() + 2 * (53 + 1) * 24);
    CHECK(equal(bare->masters().list(), [&] {
      auto list = learner->masters().list();
      list.resize(bare->masters().list().size());
      return list;
    }()));
  }
}

TEST_CASE("soft_q equals float64 autograd at the heads, and the decoder's backward from there") {
  at::NoGradGuard no_grad;
  const auto learner = q_learner();
  const auto episodes = some_episodes();
  const SoftQOptions options = some_soft_q();
  const auto output = learner->soft_q(episodes, options);

  Decoder decoder(learner->config());
  const Weights &online = learner->masters(), &target = *learner->target_masters();
  Weights expected = online.zeros_like(at::kFloat);
  for (size_t i = 0; i < episodes.size(); ++i) {
    CAPTURE(i);
    const SoftQText& text = episodes[i];
    Ids ids = text.prompt, rows, actions;
    ids.insert(ids.end(), text.response.begin(), text.response.end());
    std::vector<float> rewards, weights;
    for (size_t j = 0; j < text.response.size(); ++j) {
      if (text.weights[j] == 0) continue;
      rows.push_back(static_cast<int64_t>(text.prompt.size() + j) - 1);
      actions.push_back(text.response[j]);
      rewards.push_back(text.rewards[j]);
      weights.push_back(text.weights[j]);
    }
    const auto check = [&](const std::vector<float>& got, const at::Tensor& wanted) {
      int64_t row = 0;
      for (size_t j = 0; j < got.size(); ++j) {
        if (text.weights[j] == 0)
          CHECK(got[j] == 0);
        else
          CHECK(got[j] == doctest::Approx(wanted[row++].item<double>()).epsilon(1e-5));
      }
    };
    if (rows.empty()) {
      check(output[i].q, {});
      continue;
    }
    at::Tensor terminal = at::zeros({static_cast<int64_t>(rows.size())}, at::kBool);
    terminal[-1] = true;
    const at::Tensor packed = at::tensor(ids, at::kLong), picked = at::tensor(rows, at::kLong);
    const std::vector<int64_t> lengths = {packed.size(0)};
    std::shared_ptr<Decoder::Tape> tape;
    const at::Tensor hidden = decoder.forward(online, packed, lengths, false, tape);
    const test::SoftQReference reference = test::soft_q_reference(
        {hidden.index_select(0, picked), online.head, online.q},
        {decoder.forward(target, packed, lengths).index_select(0, picked), target.head, target.q},
        {at::tensor(actions, at::kLong), at::tensor(rewards), terminal, at::tensor(weights)}, options);
    check(output[i].q_losses, reference.q_losses);
    check(output[i].policy_losses, reference.policy_losses);
    check(output[i].q, reference.q);
    check(output[i].targets, reference.targets);
    check(output[i].entropies, reference.entropies);
    at::Tensor grad_hidden = at::zeros_like(hidden);
    grad_hidden.index_copy_(0, picked, reference.grad_hidden.to(at::kFloat));
    decoder.backward(online, std::move(tape), grad_hidden, expected);
    expected.head += reference.grad_head.to(at::kFloat);
    for (size_t k = 0; k < 2; ++k) {
      expected.q[k].advantage += reference.grad_q[k].advantage.to(at::kFloat);
      expected.q[k].value += reference.grad_q[k].value.to(at::kFloat);
    }
  }
  const auto gradients = learner->gradients()->list(), wanted = expected.list();
  REQUIRE(gradients.size() == wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(i);
    CHECK(relative_difference({gradients[i]}, {wanted[i]}) < 1e-5);
  }
}

TEST_CASE("neither micro-batches nor gradient checkpointing change soft_q") {
  const auto whole = q_learner();
  const auto expected = whole->soft_q(some_episodes(), some_soft_q());
  for (int64_t micro_batch_tokens : {1, 14, 25}) {
    for (bool recompute : {false, true}) {
      LearnerOptions options = q_options(at::kFloat, micro_batch_tokens);
      options.gradient_checkpointing = recompute;
      const auto split = q_learner(options);
      CHECK(same(split->soft_q(some_episodes(), some_soft_q()), expected, 1e-4));
      CHECK(relative_difference(split->gradients()->list(), whole->gradients()->list()) < 1e-5);
    }
  }
}

TEST_CASE("an episode without an action has no loss") {
  const auto learner = q_learner();
  const auto output = learner->soft_q({some_episodes()[3]}, some_soft_q());
  CHECK(output[0].q == std::vector<float>{0, 0, 0});
  CHECK(output[0].q_losses == output[0].q);
  CHECK(learner->gradients() == nullptr);
  CHECK(learner->soft_q({}, some_soft_q()).empty());
}

TEST_CASE("soft_q learns the return of an action") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = Learner::create(tiny_config(), 2, q_options(dtype));
    SoftQOptions options = some_soft_q();
    options.policy_coefficient = 0;
    std::vector<SoftQText> texts = {some_episodes()[1]};
    texts[0].rewards = {0, 0, 0, 0, 0, 0, 0, 0, 1};
    const float first = learner->soft_q(texts, options)[0].q_losses[8];
    for (int i = 0; i < 60; ++i) {
      learner->soft_q(texts, options);
      CHECK_FALSE(learner->step(quick_step(), "").skipped);
      learner->update_target(0.1);
    }
    options.with_gradient = false;
    const auto output = learner->soft_q(texts, options);
    CHECK(output[0].targets[8] == 1);
    CHECK(output[0].q_losses[8] < 0.05f * first);
    CHECK(output[0].q[8] == doctest::Approx(1).epsilon(0.3));
  }
}

TEST_CASE("reset Q heads represent the current policy") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto learner = q_learner(q_options(dtype));
    learner->token_nll(some_texts(), true);
    learner->step(quick_step(), "");
    learner->soft_q(some_episodes(), some_soft_q());
    learner->step(quick_step(), "");
    learner->reset_q_heads();
    for (const Weights* weights : {&learner->masters(), learner->target_masters()}) {
      for (const QHead& head : weights->q) CHECK(at::equal(head.advantage, learner->masters().head));
    }
    SoftQOptions options = some_soft_q();
    options.with_gradient = false;
    for (const SoftQOutput& output : learner->soft_q(some_episodes(), options)) {
      for (float loss : output.policy_losses) CHECK(std::abs(loss) < 1e-6f);
    }
    const auto fresh = Learner::create(tiny_config(Family::qwen3), 1, q_options());
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor value = learner->masters().q[i].value, drawn = fresh->masters().q[i].value;
      CHECK(at::allclose(value / value.norm(), drawn / drawn.norm()));
    }
    // The moments of the old heads are gone, those of all other parameters stay.
    const Scratch directory;
    learner->save(directory.path());
    const SafetensorsFile file = open_safetensors(directory / "optimizer-0.safetensors");
    const size_t parameters = learner->masters().list().size(), of_heads = 4;
    CHECK(file.tensors.size() == 2 * parameters);
    for (const TensorEntry& moment : file.tensors) {
      CAPTURE(moment.name);  // "m.0", "v.0", …; heads are last
      const bool zero =
          std::all_of(moment.data, moment.data + moment.bytes, [](uint8_t byte) { return byte == 0; });
      CHECK(zero == (std::stoul(moment.name.substr(2)) >= parameters - of_heads));
    }
  }
  CHECK(code_of([] { tiny_learner()->reset_q_heads(); }) == "ERR_CONFIG");
}

TEST_CASE("a resumed learner with Q heads continues bit for bit, and its model loads without them") {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto train = [](Learner& learner, int updates) {
      for (int i = 0; i < updates; ++i) {
        learner.soft_q(some_episodes(), some_soft_q());
        learner.step(quick_step(), "");
        learner.update_target(0.05);
      }
    };
    const auto learner = q_learner(q_options(dtype));
    train(*learner, 2);
    learner->soft_q(some_episodes(), some_soft_q());  // pending
    Scratch directory;
    learner->save(directory.path());
    const auto resumed = Learner::resume(directory.path(), options_of(dtype));  // heads as saved
    CHECK((resumed->options().heads == Heads::q));
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));
    CHECK(equal(resumed->gradients()->list(), learner->gradients()->list()));
    train(*learner, 2);
    train(*resumed, 2);
    CHECK(equal(resumed->masters().list(), learner->masters().list()));
    CHECK(equal(resumed->target_masters()->list(), learner->target_masters()->list()));

    // The checkpoint is a model with heads or without; an export is without, and gets new ones
    // where asked.
    Scratch exported;
    resumed->export_huggingface(exported.path());
    for (const Scratch* model : {&exported, &directory})
      CHECK((Learner::load(model->path(), options_of())->masters().heads() == Heads::none));
    const auto kept = Learner::load(directory.path(), q_options()),
               fresh = Learner::load(exported.path(), q_options());
    CHECK_FALSE(at::equal(kept->masters().q[0].advantage, kept->masters().head));
    CHECK(at::equal(fresh->masters().q[0].advantage, fresh->masters().head));
  }
}

TEST_CASE("soft_q rejects invalid arguments before anything is computed") {
  const auto learner = q_learner();
  const auto refused = [&](const std::function<void(SoftQText&)>& spoil, const std::string& part) {
    auto texts = some_episodes();
    spoil(texts[1]);
    std::string message;
    CHECK(code_of([&] { learner->soft_q(texts, some_soft_q()); }, &message) == "ERR_VALUE");
    CAPTURE(message);
    CHECK(message.find("text 1") != std::string::npos);
    CHECK(message.find(part) != std::string::npos);
    CHECK(learner->gradients() == nullptr);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  refused([](auto& text) { text.prompt.clear(); }, "prompt");
  refused([](auto& text) { text.response[2] = 53; }, "vocabulary");
  refused([](auto& text) { text.weights.pop_back(); }, "weight");
  refused([](auto& text) { text.rewards.push_back(0); }, "rewards");
  refused([&](auto& text) { text.weights[3] = nan; }, "weight");
  refused([&](auto& text) { text.rewards[5] = nan; }, "token 5");
  auto texts = some_episodes();
  texts[1].rewards[2] = nan;  // no action: not read
  learner->soft_q(texts, some_soft_q());

  SoftQOptions options = some_soft_q();
  options.temperature = 0;
  CHECK(code_of([&] { learner->soft_q(some_episodes(), options); }) == "ERR_VALUE");
  std::string message;
  CHECK(code_of([&] { tiny_learner()->soft_q(some_episodes(), some_soft_q()); }, &message) == "ERR_CONFIG");
  CHECK(message.find("no Q heads") != std::string::npos);
}

TEST_CASE("a non-finite soft Q loss skips the step and changes nothing") {
  const auto learner = q_learner();
  at::NoGradGuard no_grad;
  learner->target_masters()->q[0].value.fill_(std::numeric_limits<float>::infinity());
  const auto before = copies(learner->masters());
  learner->soft_q(some_episodes(), some_soft_q());
  CHECK(learner->step(quick_step(), "").skipped);
  CHECK(equal(learner->masters().list(), before));
}
