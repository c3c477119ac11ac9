#include "core/loss/linear_loss.h"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

using namespace nlac;

namespace {

const at::ScalarType wide = at::kDouble;

std::string code_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return "no error";
}

struct Inputs {
  at::Tensor student_hidden, student_weight, teacher_hidden, teacher_weight, weights, targets;

  Inputs to(at::ScalarType type) const {
    return {student_hidden.to(type),
            student_weight.to(type),
            teacher_hidden.to(type),
            teacher_weight.to(type),
            weights,
            targets};
  }
};

// `size` scales the logits' spread.
Inputs make(int64_t rows, int64_t vocab, int64_t student_width, int64_t teacher_width, double size = 1) {
  at::manual_seed(static_cast<uint64_t>(rows * 1000 + vocab));
  Inputs in;
  in.student_hidden = at::randn({rows, student_width}) * size;
  in.student_weight = at::randn({vocab, student_width}) / std::sqrt(static_cast<double>(student_width));
  in.teacher_hidden = at::randn({rows, teacher_width}) * size;
  in.teacher_weight = at::randn({vocab, teacher_width}) / std::sqrt(static_cast<double>(teacher_width));
  in.weights = at::rand({rows}) + 0.1;
  in.targets = at::randint(vocab, {rows}, at::kLong);
  return in;
}

struct Outcome {
  at::Tensor losses, grad_hidden, grad_weight;
};

// torch's own operators and autograd, in the type given. `weight` rows of 0 multiply, nothing is left out.
Outcome reference(const Inputs& given, double temperature, const Support& support,
                  at::ScalarType type = wide) {
  const Inputs in = given.to(type);
  const at::Tensor hidden = in.student_hidden.detach().clone().requires_grad_();
  const at::Tensor weight = in.student_weight.detach().clone().requires_grad_();
  const at::Tensor log_s = at::log_softmax(hidden.mm(weight.t()) / temperature, -1);
  at::Tensor losses;
  if (support.kind == SupportKind::sampled) {
    losses = log_s.gather(1, in.targets.unsqueeze(1)).squeeze(1).neg();
  } else {
    const at::Tensor teacher = in.teacher_hidden.mm(in.teacher_weight.t()) / temperature;
    at::Tensor log_t = at::log_softmax(teacher, -1), log_q = log_s;
    if (support.kind == SupportKind::top_k && support.k < teacher.size(1)) {
      const at::Tensor top = std::get<1>(teacher.topk(support.k, -1));
      const at::Tensor outside = at::ones_like(teacher, at::kBool).scatter(1, top, 0);
      const at::Tensor lowest = at::full({}, -std::numeric_limits<double>::infinity(), teacher.options());
      const auto bucketed = [&](const at::Tensor& log_p) {
        return at::cat({log_p.gather(1, top), at::where(outside, log_p, lowest).logsumexp(-1, true)}, 1);
      };
      log_t = bucketed(log_t);
      log_q = bucketed(log_s);
    }
    losses = (log_t.exp() * (log_t - log_q)).sum(-1);
  }
  (losses * in.weights.to(type)).sum().backward();
  const at::Tensor masked = at::where(in.weights.to(type) == 0, at::zeros({}, losses.options()), losses);
  return {masked.detach(), hidden.grad(), weight.grad()};
}

Outcome ours(const Inputs& in, double temperature, const Support& support, bool with_gradient = true) {
  const auto type = in.student_hidden.scalar_type() == wide ? wide : at::kFloat;
  const at::Tensor grad_weight = at::zeros(in.student_weight.sizes(), type);
  const LossResult result =
      linear_token_kl(in.student_hidden, in.student_weight, in.teacher_hidden, in.teacher_weight, in.weights,
                      temperature, support, in.targets, grad_weight, with_gradient);
  return {result.losses, result.grad_hidden, grad_weight};
}

// ‖a - b‖ / ‖b‖; the absolute norm where b is as good as 0.
double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const double difference = (a.to(wide) - b.to(wide)).norm().item<double>(),
               size = b.to(wide).norm().item<double>();
  return size < 1e-12 ? difference : difference / size;
}

double largest(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(wide) - b.to(wide)).abs().max().item<double>();
}

const Support supports[] = {{SupportKind::full, 0},   {SupportKind::top_k, 1},    {SupportKind::top_k, 5},
                            {SupportKind::top_k, 97}, {SupportKind::top_k, 5000}, {SupportKind::sampled, 0}};

struct Threads {
  int before = at::get_num_threads();
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("losses and gradients agree with float64 autograd") {
  for (const int64_t rows : {0, 1, 7}) {
    for (const int64_t vocab : {1, 2, 97, 1000}) {
      for (const auto& [student_width, teacher_width] :
           {std::pair<int64_t, int64_t>{1, 3}, {17, 8}, {64, 33}}) {
        for (const double temperature : {0.5, 1.0, 2.0}) {
          for (const Support& support : supports) {
            CAPTURE(rows);
            CAPTURE(vocab);
            CAPTURE(student_width);
            CAPTURE(temperature);
            CAPTURE(static_cast<int>(support.kind));
            CAPTURE(support.k);
            Inputs in = make(rows, vocab, student_width, teacher_width, 2);
            for (const int mask : {0, 1, 2}) {
              if (mask == 1 && rows > 1) in.weights.slice(0, 0, rows, 2).zero_();
              if (mask == 2) in.weights.zero_();
              const Outcome expected = reference(in, temperature, support);
              const Outcome single = ours(in, temperature, support),
                            dual = ours(in.to(wide), temperature, support);
              REQUIRE((single.losses.scalar_type() == at::kFloat));
              REQUIRE(single.losses.sizes() == in.weights.sizes());
              REQUIRE(single.grad_hidden.sizes() == in.student_hidden.sizes());
              REQUIRE(largest(single.losses, expected.losses) < 1e-5);
              REQUIRE(distance(single.grad_hidden, expected.grad_hidden) < 1e-5);
              REQUIRE(distance(single.grad_weight, expected.grad_weight) < 1e-5);
              REQUIRE(largest(dual.losses, expected.losses) < 1e-12);
              REQUIRE(distance(dual.grad_hidden, expected.grad_hidden) < 1e-12);
              REQUIRE(distance(dual.grad_weight, expected.grad_weight) < 1e-12);
              const Outcome alone = ours(in, temperature, support, false);
              REQUIRE(largest(alone.losses, single.losses) < 1e-6);
              REQUIRE_FALSE(alone.grad_hidden.defined());
              REQUIRE(alone.grad_weight.count_nonzero().item<int64_t>() == 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("token NLL is the cross entropy on the targets") {
  Inputs in = make(9, 301, 20, 1);
  in.targets[4] = -1;  // what a masked row names is not read
  in.weights[4] = 0;
  const at::Tensor grad_weight = at::zeros({301, 20});
  const LossResult result =
      linear_token_nll(in.student_hidden, in.student_weight, in.targets, in.weights, 1.5, grad_weight);
  in.targets[4] = 0;
  const Outcome expected = reference(in, 1.5, {SupportKind::sampled, 0});
  CHECK(largest(result.losses, expected.losses) < 1e-5);
  CHECK(distance(result.grad_hidden, expected.grad_hidden) < 1e-5);
  CHECK(distance(grad_weight, expected.grad_weight) < 1e-5);
}

TEST_CASE("gradients add up, negative weights subtract, an undefined matrix gradient is left out") {
  const Inputs in = make(7, 50, 8, 8);
  const Outcome once = ours(in, 1, supports[0]);
  const at::Tensor grad_weight = at::ones({50, 8});
  const auto call = [&](const at::Tensor& weights, const at::Tensor& into) {
    return linear_token_kl(in.student_hidden, in.student_weight, in.teacher_hidden, in.teacher_weight,
                           weights, 1, supports[0], {}, into);
  };
  call(in.weights, grad_weight);
  CHECK(largest(grad_weight, once.grad_weight + 1) < 1e-6);
  const LossResult negative = call(-in.weights, grad_weight);
  CHECK(largest(grad_weight, at::ones({50, 8})) < 1e-6);
  CHECK(at::equal(negative.grad_hidden, -once.grad_hidden));
  CHECK(at::equal(negative.losses, once.losses));
  CHECK(at::equal(call(in.weights, {}).grad_hidden, once.grad_hidden));
}

TEST_CASE("equal distributions have loss and gradient 0, near ones a loss that is right to its last digits") {
  Inputs in = make(7, 1000, 16, 16, 3);
  in.teacher_hidden = in.student_hidden;
  in.teacher_weight = in.student_weight;
  const Outcome same = ours(in, 1, supports[0]);
  CHECK(same.losses.abs().max().item<double>() == 0);
  CHECK(same.grad_hidden.abs().max().item<double>() == 0);
  // A KL of 1e-6 drowns in float32 if terms of the size of 1 are added to get it.
  in.teacher_weight = in.student_weight + at::randn_like(in.student_weight) * 1e-4;
  const Outcome expected = reference(in, 1, supports[0]), near = ours(in, 1, supports[0]);
  const double size = expected.losses.mean().item<double>();
  CHECK(size < 1e-6);
  CHECK(near.losses.min().item<double>() >= 0);
  CHECK(largest(near.losses, expected.losses) < 0.005 * size);
}

TEST_CASE("logits of ±10,000 give finite results no worse than torch's float32") {
  for (const int64_t vocab : {3, 200}) {
    for (const Support& support : supports) {
      CAPTURE(vocab);
      CAPTURE(static_cast<int>(support.kind));
      CAPTURE(support.k);
      Inputs in = make(8, vocab, 1, 1);
      // The student's and the teacher's logits reach ±1e4, alike in some rows and opposed in others.
      in.student_hidden = at::full({8, 1}, 100.0f);
      in.teacher_hidden = at::full({8, 1}, 100.0f);
      in.teacher_hidden.slice(0, 0, 4).neg_();
      in.student_weight = at::rand({vocab, 1}) * 2 - 1;
      in.student_weight[0] = 100.0f;
      in.student_weight[1] = -100.0f;
      in.teacher_weight = in.student_weight.clone();
      const Outcome exact = reference(in, 1, support), torch = reference(in, 1, support, at::kFloat);
      const Outcome got = ours(in, 1, support);
      for (const at::Tensor& t : {got.losses, got.grad_hidden, got.grad_weight}) {
        REQUIRE(at::isfinite(t).all().item<bool>());
      }
      CHECK(largest(got.losses, exact.losses) <= largest(torch.losses, exact.losses) + 1e-3);
      CHECK(distance(got.grad_hidden, exact.grad_hidden) <=
            distance(torch.grad_hidden, exact.grad_hidden) + 1e-6);
      CHECK(distance(got.grad_weight, exact.grad_weight) <=
            distance(torch.grad_weight, exact.grad_weight) + 1e-6);
    }
  }
}

TEST_CASE("a bucket whose mass underflows stays finite and keeps its gradient") {
  // One token holds everything on the teacher's side; on the student's the bucket does.
  Inputs in = make(1, 4, 1, 1);
  in.student_hidden.fill_(1), in.teacher_hidden.fill_(1), in.weights.fill_(1);
  in.teacher_weight = at::tensor({200.0f, 0.0f, 0.0f, 0.0f}).unsqueeze(1);
  in.student_weight = at::tensor({-200.0f, 0.0f, 1.0f, 0.0f}).unsqueeze(1);
  const Support one{SupportKind::top_k, 1};
  const Outcome expected = reference(in, 1, one), got = ours(in, 1, one);
  CHECK(got.losses.item<double>() == doctest::Approx(expected.losses.item<double>()).epsilon(1e-6));
  CHECK(largest(got.grad_weight, expected.grad_weight) < 1e-6);
  CHECK(got.grad_weight[0].item<double>() == doctest::Approx(-1));
}

TEST_CASE("results do not depend on where chunks begin") {
  const int64_t vocab = 150001, chunk = loss_chunk_rows(vocab, at::kCPU), rows = 2 * chunk + 5;
  REQUIRE(chunk < 128);
  const Inputs in = make(rows, vocab, 4, 3);
  for (const Support& support : {supports[0], supports[2], supports[5]}) {
    const Outcome whole = ours(in, 1, support);
    at::Tensor grad_weight = at::zeros_like(whole.grad_weight);
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 3}, {3, chunk}, {chunk + 3, rows - chunk - 3}}) {
      const auto cut = [&](const at::Tensor& t) { return t.narrow(0, first, count); };
      const LossResult part =
          linear_token_kl(cut(in.student_hidden), in.student_weight, cut(in.teacher_hidden),
                          in.teacher_weight, cut(in.weights), 1, support, cut(in.targets), grad_weight);
      REQUIRE(largest(part.losses, cut(whole.losses)) < 1e-5);
      REQUIRE(distance(part.grad_hidden, cut(whole.grad_hidden)) < 1e-5);
    }
    CHECK(distance(grad_weight, whole.grad_weight) < 1e-5);
  }
}

TEST_CASE("a chunk's logits keep to their bound") {
  for (const int64_t vocab : {1, 1000, 49152, 152064, 1 << 20}) {
    CHECK(loss_chunk_rows(vocab, at::kCPU) * vocab * 4 <= int64_t{64} << 20);
    CHECK(loss_chunk_rows(vocab, at::kCUDA) * vocab * 4 <= int64_t{512} << 20);
    CHECK(loss_chunk_rows(vocab, at::kCPU) >= 1);
  }
  CHECK(loss_chunk_rows(int64_t{1} << 40, at::kCPU) == 1);
}

TEST_CASE("bfloat16 inputs: float32 logits and losses, gradients to bfloat16's precision") {
  for (const int64_t rows : {1, 33, 70}) {
    for (const int64_t vocab : {1, 2, 97, 1000}) {
      for (const auto& [student_width, teacher_width] :
           {std::pair<int64_t, int64_t>{1, 2}, {17, 8}, {130, 33}}) {
        for (const Support& support : supports) {
          CAPTURE(rows);
          CAPTURE(vocab);
          CAPTURE(student_width);
          CAPTURE(static_cast<int>(support.kind));
          Inputs in = make(rows, vocab, student_width, teacher_width, 2).to(at::kBFloat16);
          in.weights.slice(0, 0, rows, 3).zero_();
          const Outcome expected = reference(in, 1, support), got = ours(in, 1, support);
          REQUIRE((got.losses.scalar_type() == at::kFloat));
          REQUIRE((got.grad_hidden.scalar_type() == at::kBFloat16));
          // bf16 logits of this size would be off by 1e-2.
          REQUIRE(largest(got.losses, expected.losses) < 2e-5);
          REQUIRE(distance(got.grad_hidden, expected.grad_hidden) < 6e-3);
          REQUIRE(distance(got.grad_weight, expected.grad_weight) < 4e-3);
        }
      }
    }
  }
}

TEST_CASE("student and teacher may differ in type and lie across memory") {
  Inputs in = make(9, 200, 12, 30).to(at::kBFloat16);
  const Outcome expected = reference(in, 1, supports[0]);
  for (const auto student : {at::kFloat, at::kBFloat16, wide}) {
    for (const auto teacher : {at::kFloat, at::kBFloat16, wide}) {
      CAPTURE(c10::toString(student));
      CAPTURE(c10::toString(teacher));
      const bool dual = student == wide || teacher == wide;
      const at::Tensor grad_weight = at::zeros({200, 12}, dual ? wide : at::kFloat);
      const LossResult got = linear_token_kl(
          in.student_hidden.to(student), in.student_weight.to(student).t().contiguous().t(),
          in.teacher_hidden.to(teacher).t().contiguous().t(),
          in.teacher_weight.to(teacher).t().contiguous().t(), in.weights, 1, supports[0], {}, grad_weight);
      CHECK(largest(got.losses, expected.losses) < 2e-5);
      CHECK(distance(got.grad_hidden, expected.grad_hidden) < 6e-3);
      CHECK(distance(grad_weight, expected.grad_weight) < 4e-3);
    }
  }
}

TEST_CASE("the gradient of the matrix is summed in float32: a bfloat16 sum would stop growing") {
  // Every call adds the same small gradient; past 256 of them bf16 no longer notices one more.
  const Inputs in = make(40, 60, 16, 16).to(at::kBFloat16);
  const at::Tensor once = ours(in, 1, supports[0]).grad_weight;
  const at::Tensor total = at::zeros({60, 16}), low = at::zeros({60, 16}, at::kBFloat16);
  constexpr int calls = 2000;
  for (int i = 0; i < calls; ++i) {
    linear_token_kl(in.student_hidden, in.student_weight, in.teacher_hidden, in.teacher_weight, in.weights, 1,
                    supports[0], {}, total);
    low.add_(once.to(at::kBFloat16));
  }
  CHECK(distance(total, once * calls) < 1e-4);
  CHECK(distance(low, once * calls) > 0.1);

  // The same within one call, across rows: 4096 like rows against one.
  Inputs many = in;
  for (at::Tensor* t : {&many.student_hidden, &many.teacher_hidden, &many.weights}) {
    *t =
        t->narrow(0, 0, 1).repeat(t->dim() == 2 ? std::vector<int64_t>{4096, 1} : std::vector<int64_t>{4096});
  }
  Inputs single = many;
  for (at::Tensor* t : {&single.student_hidden, &single.teacher_hidden, &single.weights})
    *t = t->narrow(0, 0, 1);
  CHECK(distance(ours(many, 1, supports[0]).grad_weight, ours(single, 1, supports[0]).grad_weight * 4096) <
        1e-5);
}

TEST_CASE("results do not depend on the number of threads") {
  const Threads restore;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Inputs in = make(150, 777, 100, 40).to(type);
    at::set_num_threads(1);
    const Outcome one = ours(in, 1, supports[0]);
    for (const int threads : {2, 7}) {
      at::set_num_threads(threads);
      const Outcome more = ours(in, 1, supports[0]);
      // float32 products are the math library's, which may cut them differently.
      const double slack = type == at::kFloat ? 1e-6 : 0;
      CHECK(distance(more.losses, one.losses) <= slack);
      CHECK(distance(more.grad_hidden, one.grad_hidden) <= slack);
      CHECK(distance(more.grad_weight, one.grad_weight) <= slack);
    }
  }
}

TEST_CASE("a hidden state that is not finite shows in loss and gradient") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const Support& support : supports) {
      Inputs in = make(3, 40, 6, 6);
      in.student_hidden[1][2] = std::numeric_limits<float>::quiet_NaN();
      const Outcome got = ours(in.to(type), 1, support);
      CHECK(std::isnan(got.losses[1].item<float>()));
      CHECK(std::isfinite(got.losses[0].item<float>()));
      CHECK(std::isnan(got.grad_weight.sum().item<float>()));
      in.weights[1] = 0;
      const Outcome masked = ours(in.to(type), 1, support);
      CHECK(at::isfinite(masked.grad_weight).all().item<bool>());
      CHECK(masked.losses[1].item<float>() == 0);
      CHECK(masked.grad_hidden[1].abs().max().item<float>() == 0);
    }
  }
}

TEST_CASE("arguments that do not fit are refused with their code") {
  const Inputs good = make(4, 10, 6, 5);
  const at::Tensor grad_weight = at::zeros({10, 6});
  const auto code = [&](const auto& change, double temperature = 1, Support support = {}) {
    Inputs in = good;
    at::Tensor into = grad_weight;
    change(in, into);
    return code_of([&] {
      linear_token_kl(in.student_hidden, in.student_weight, in.teacher_hidden, in.teacher_weight, in.weights,
                      temperature, support, in.targets, into);
    });
  };
  const auto nothing = [](Inputs&, at::Tensor&) {};
  CHECK(code(nothing) == "no error");
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double temperature : {0.0, -1.0, infinity, std::nan("")}) {
    CHECK(code(nothing, temperature) == "ERR_VALUE");
  }
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    CHECK(code([&](Inputs& in, auto&) { (in.weights = in.weights.clone())[2] = bad; }) == "ERR_VALUE");
  }
  CHECK(code(nothing, 1, {SupportKind::top_k, 0}) == "ERR_VALUE");
  CHECK(code([](Inputs& in, auto&) { in.student_hidden = at::zeros({4, 7}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.student_hidden = at::zeros({4}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.student_weight = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.student_weight = at::zeros({0, 6}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.teacher_hidden = at::zeros({3, 5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.teacher_weight = at::zeros({11, 5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.teacher_hidden = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.weights = at::zeros({5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.student_hidden = in.student_hidden.to(at::kLong); }) == "ERR_VALUE");
  CHECK(code([](Inputs&, at::Tensor& into) { into = at::zeros({10, 7}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs&, at::Tensor& into) { into = at::zeros({6, 10}).t(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs&, at::Tensor& into) { into = into.to(at::kBFloat16); }) == "ERR_VALUE");
  const Support sampled{SupportKind::sampled, 0};
  CHECK(code([](Inputs& in, auto&) { in.teacher_hidden = in.teacher_weight = at::Tensor(); }, 1, sampled) ==
        "no error");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::Tensor(); }, 1, sampled) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::zeros({4}); }, 1, sampled) == "ERR_VALUE");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::full({4}, 10, at::kLong); }, 1, sampled) ==
        "ERR_INDEX");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::full({4}, -1, at::kLong); }, 1, sampled) ==
        "ERR_INDEX");
  const auto meta = [](Inputs& in, auto&) { in.teacher_hidden = in.teacher_hidden.to(at::kMeta); };
  CHECK(code(meta) == "ERR_DEVICE");
}
