#include "test/core/loss/linear_loss_reference.h"

using namespace linear_loss_test;
using namespace nlac;

TEST_CASE("losses and gradients agree with float64 autograd") {
  for (const int64_t rows : {0, 1, 7}) {
    for (const int64_t vocab : {1, 2, 97, 1000}) {
      for (const auto& [student_width, teacher_width] :
           {std::pair<int64_t, int64_t>{1, 3}, {17, 8}, {64, 33}}) {
        for (const double temperature : {0.7, 2.0}) {
          for (const Support& support : supports) {
            for (const Divergence& divergence : divergences) {
              if (!go_together(divergence, support)) continue;
              // The products are the same for every divergence.
              if (divergence.kind != DivergenceKind::forward_kl && student_width != 17) continue;
              CAPTURE(rows);
              CAPTURE(vocab);
              CAPTURE(student_width);
              CAPTURE(temperature);
              CAPTURE(static_cast<int>(support.kind));
              CAPTURE(support.k);
              CAPTURE(static_cast<int>(divergence.kind));
              CAPTURE(divergence.beta);
              Inputs in = make(rows, vocab, student_width, teacher_width, 2);
              for (const int mask : {0, 1, 2}) {
                if (mask == 1 && rows > 1) in.weights.slice(0, 0, rows, 2).zero_();
                if (mask == 2) in.weights.zero_();
                const Outcome expected = reference(in, temperature, support, divergence);
                const Outcome single = ours(in, temperature, support, divergence),
                              dual = ours(in.to(wide), temperature, support, divergence);
                REQUIRE((single.losses.scalar_type() == at::kFloat));
                REQUIRE(single.losses.sizes() == in.weights.sizes());
                REQUIRE(single.grad_hidden.sizes() == in.student_hidden.sizes());
                REQUIRE(largest(single.losses, expected.losses) < 1e-5);
                REQUIRE(distance(single.grad_hidden, expected.grad_hidden) < 1e-5);
                REQUIRE(distance(single.grad_head, expected.grad_head) < 1e-5);
                REQUIRE(largest(dual.losses, expected.losses) < 1e-12);
                REQUIRE(distance(dual.grad_hidden, expected.grad_hidden) < 1e-11);
                REQUIRE(distance(dual.grad_head, expected.grad_head) < 1e-11);
                const Outcome alone = ours(in, temperature, support, divergence, false);
                REQUIRE(largest(alone.losses, single.losses) < 1e-6);
                REQUIRE_FALSE(alone.grad_hidden.defined());
                REQUIRE(alone.grad_head.count_nonzero().item<int64_t>() == 0);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("losses on capped logits agree with float64 autograd, in any chunks") {
  constexpr double cap = 2.5;
  for (const Support& support : {supports[0], supports[2], supports[5]}) {
    for (const Divergence& divergence : divergences) {
      if (!go_together(divergence, support)) continue;
      CAPTURE(static_cast<int>(support.kind));
      CAPTURE(static_cast<int>(divergence.kind));
      Inputs in = make(70, 333, 17, 8, 3);
      in.weights.slice(0, 0, 70, 3).zero_();
      for (const auto& [type, allowed] :
           {std::pair{at::kFloat, 1e-5}, std::pair{wide, 1e-11}, std::pair{at::kBFloat16, 6e-3}}) {
        const Inputs given = in.to(type);
        const Outcome expected = reference(given, 0.9, support, divergence, wide, cap);
        for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{40} * 333 * 8}) {
          CAPTURE(bytes);
          const Outcome got = ours(given, 0.9, support, divergence, true, bytes, cap);
          CHECK(largest(got.losses, expected.losses) < 1e-5);
          CHECK(distance(got.grad_hidden, expected.grad_hidden) < allowed);
          CHECK(distance(got.grad_head, expected.grad_head) < allowed);
          const Outcome alone = ours(given, 0.9, support, divergence, false, bytes, cap);
          CHECK(largest(alone.losses, got.losses) < 1e-6);
        }
      }
    }
  }
  const Inputs in = make(3, 20, 4, 4);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK(code_of([&] { ours(in, 1, supports[0], {}, true, 0, bad); }) == "ERR_VALUE");
}

TEST_CASE("losses and gradients on a GPU agree with float64 autograd" * doctest::skip(!at::hasCUDA())) {
  for (const auto type : {at::kFloat, at::kBFloat16, wide}) {
    for (const int64_t vocab : {97, 3001, 40000}) {
      Inputs in = make(517, vocab, 64, 40).to(type);
      in.weights.slice(0, 0, 517, 3).zero_();
      for (const Support& support : {supports[0], supports[2], supports[5]}) {
        for (const Divergence& divergence : divergences) {
          if (!go_together(divergence, support)) continue;
          const Outcome expected = reference(in, 1, support, divergence);
          // All rows at once, and groups of several chunks.
          for (const int64_t bytes : {int64_t{0}, int64_t{300} * vocab * 8}) {
            CAPTURE(c10::toString(type));
            CAPTURE(vocab);
            CAPTURE(static_cast<int>(support.kind));
            CAPTURE(static_cast<int>(divergence.kind));
            CAPTURE(bytes);
            const Outcome got = ours(in.on(at::kCUDA), 1, support, divergence, true, bytes);
            const bool rounded = type == at::kBFloat16;
            REQUIRE(largest(got.losses.cpu(), expected.losses) < 2e-5);
            REQUIRE(distance(got.grad_hidden.cpu(), expected.grad_hidden) < (rounded ? 8e-3 : 2e-5));
            REQUIRE(distance(got.grad_head.cpu(), expected.grad_head) < (rounded ? 5e-3 : 2e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("gradients agree with central differences") {
  const Inputs in = make(5, 37, 6, 4, 2).to(wide);
  const at::Tensor direction = at::randn_like(in.student_hidden), across = at::randn_like(in.student_head);
  for (const Divergence& divergence : divergences) {
    for (const Support& support : {supports[0], supports[2]}) {
      const auto objective = [&](double step) {
        Inputs moved = in;
        moved.student_hidden = in.student_hidden + step * direction;
        moved.student_head = in.student_head + step * across;
        return (ours(moved, 1.3, support, divergence, false).losses * in.weights).sum().item<double>();
      };
      const Outcome got = ours(in, 1.3, support, divergence);
      const double slope =
          ((got.grad_hidden * direction).sum() + (got.grad_head * across).sum()).item<double>();
      CHECK((objective(1e-5) - objective(-1e-5)) / 2e-5 == doctest::Approx(slope).epsilon(1e-7));
    }
  }
}

TEST_CASE("gradients accumulate, negative weights subtract, an undefined matrix gradient is left out") {
  const Inputs in = make(7, 50, 8, 8);
  const Outcome once = ours(in, 1, supports[0]);
  const at::Tensor grad_head = at::ones({50, 8});
  const auto call = [&](const at::Tensor& weights, const at::Tensor& into) {
    return linear_token_kl(in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head, weights,
                           {}, {}, supports[0], {}, into);
  };
  call(in.weights, grad_head);
  CHECK(largest(grad_head, once.grad_head + 1) < 1e-6);
  const LossResult negative = call(-in.weights, grad_head);
  CHECK(largest(grad_head, at::ones({50, 8})) < 1e-6);
  CHECK(at::equal(negative.grad_hidden, -once.grad_hidden));
  CHECK(at::equal(negative.losses, once.losses));
  CHECK(at::equal(call(in.weights, {}).grad_hidden, once.grad_hidden));
}

TEST_CASE("equal distributions have loss and gradient 0, and close ones an accurate loss") {
  for (const Divergence& divergence : divergences) {
    if (divergence.kind == DivergenceKind::cross_entropy) continue;  // not 0, and no sum of small terms
    CAPTURE(static_cast<int>(divergence.kind));
    CAPTURE(divergence.beta);
    Inputs in = make(7, 1000, 16, 16, 3);
    in.teacher_hidden = in.student_hidden;
    in.teacher_head = in.student_head;
    for (const Support& support : {supports[0], supports[2]}) {
      const Outcome same = ours(in, 1, support, divergence);
      CHECK(same.losses.abs().max().item<double>() == 0);
      CHECK(same.grad_hidden.abs().max().item<double>() == 0);
    }
    // A divergence of 1e-6 is lost in float32 if it is summed from terms of magnitude 1.
    in.teacher_head = in.student_head + at::randn_like(in.student_head) * 1e-4;
    const Outcome expected = reference(in, 1, supports[0], divergence),
                  near = ours(in, 1, supports[0], divergence);
    const double size = expected.losses.mean().item<double>();
    CHECK(size < 1e-6);
    CHECK(near.losses.min().item<double>() >= 0);
    CHECK(largest(near.losses, expected.losses) < 0.005 * size);
    CHECK(distance(near.grad_hidden, expected.grad_hidden) < 0.01);
  }
}

TEST_CASE(
    "the Jensen-Shannon divergence keeps its digits as beta goes to 0 and 1, and is at most log 2 at a "
    "half") {
  for (const double size : {0.5, 2.0, 20.0}) {
    const Inputs in = make(6, 300, 20, 12, size);
    for (const double beta : {1e-6, 1e-3, 0.5, 1 - 1e-3, 1 - 1e-6}) {
      CAPTURE(size);
      CAPTURE(beta);
      for (const Support& support : {supports[0], supports[2]}) {
        const Divergence divergence{DivergenceKind::jensen_shannon, beta};
        const Outcome expected = reference(in, 1, support, divergence),
                      got = ours(in, 1, support, divergence);
        CHECK(distance(got.losses, expected.losses) < 2e-5);
        // Float32 rounds logits of this size by 3e-5, and without FMA every product of them too.
        CHECK(distance(got.grad_hidden, expected.grad_hidden) < (size < 20 ? 5e-5 : 1e-4));
        if (beta == 0.5) CHECK(got.losses.max().item<double>() <= std::log(2) + 1e-6);
      }
    }
  }
}

TEST_CASE("logits of ±10,000 give finite results, as accurate as torch's float32") {
  for (const int64_t vocab : {3, 200}) {
    for (const Support& support : supports) {
      for (const Divergence& divergence : divergences) {
        if (!go_together(divergence, support)) continue;
        CAPTURE(vocab);
        CAPTURE(static_cast<int>(support.kind));
        CAPTURE(support.k);
        CAPTURE(static_cast<int>(divergence.kind));
        CAPTURE(divergence.beta);
        Inputs in = make(8, vocab, 1, 1);
        // The student's and the teacher's logits reach ±1e4, with equal signs in some rows and
        // opposite signs in others.
        in.student_hidden = at::full({8, 1}, 100.0f);
        in.teacher_hidden = at::full({8, 1}, 100.0f);
        in.teacher_hidden.slice(0, 0, 4).neg_();
        in.student_head = at::rand({vocab, 1}) * 2 - 1;
        in.student_head[0] = 100.0f;
        in.student_head[1] = -100.0f;
        in.teacher_head = in.student_head.clone();
        const Outcome exact = reference(in, 1, support, divergence),
                      torch = reference(in, 1, support, divergence, at::kFloat);
        const Outcome got = ours(in, 1, support, divergence);
        for (const at::Tensor& t : {got.losses, got.grad_hidden, got.grad_head}) {
          REQUIRE(at::isfinite(t).all().item<bool>());
        }
        // Skipped where torch's float32 is not finite.
        const auto no_worse = [](double mine, double theirs, double slack) {
          return !std::isfinite(theirs) || mine <= theirs + slack;
        };
        CHECK(no_worse(largest(got.losses, exact.losses), largest(torch.losses, exact.losses), 1e-3));
        CHECK(no_worse(distance(got.grad_hidden, exact.grad_hidden),
                       distance(torch.grad_hidden, exact.grad_hidden), 1e-6));
        CHECK(no_worse(distance(got.grad_head, exact.grad_head), distance(torch.grad_head, exact.grad_head),
                       1e-6));
      }
    }
  }
}

TEST_CASE("a bucket whose mass underflows stays finite and keeps its gradient") {
  // The teacher's mass is on one token, the student's in the bucket.
  Inputs in = make(1, 4, 1, 1);
  in.student_hidden.fill_(1), in.teacher_hidden.fill_(1), in.weights.fill_(1);
  in.teacher_head = at::tensor({200.0f, 0.0f, 0.0f, 0.0f}).unsqueeze(1);
  in.student_head = at::tensor({-200.0f, 0.0f, 1.0f, 0.0f}).unsqueeze(1);
  const Support one{SupportKind::top_k, 1};
  const Outcome expected = reference(in, 1, one), got = ours(in, 1, one);
  CHECK(got.losses.item<double>() == doctest::Approx(expected.losses.item<double>()).epsilon(1e-6));
  CHECK(largest(got.grad_head, expected.grad_head) < 1e-6);
  CHECK(got.grad_head[0].item<double>() == doctest::Approx(-1));
}

TEST_CASE("results do not depend on where chunks begin") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t vocab : {3001, 3002}) {
      const Inputs in = make(517, vocab, 21, 8).to(type);
      for (const auto& [support, divergence] : {std::pair<Support, Divergence>{supports[0], divergences[0]},
                                                {supports[2], divergences[3]},
                                                {supports[0], divergences[2]},
                                                {supports[5], {}}}) {
        const Outcome whole = ours(in, 1, support, divergence, true, int64_t{1} << 30);
        // From many small chunks to a few groups of them.
        for (const int64_t bytes : {1, 1 << 20, 3 << 20, 7 << 20}) {
          CAPTURE(c10::toString(type));
          CAPTURE(vocab);
          CAPTURE(bytes);
          const Outcome part = ours(in, 1, support, divergence, true, bytes);
          REQUIRE(largest(part.losses, whole.losses) < 1e-5);
          REQUIRE(at::equal(part.grad_hidden, whole.grad_hidden));
          REQUIRE(distance(part.grad_head, whole.grad_head) < 1e-5);
          const Outcome alone = ours(in, 1, support, divergence, false, bytes);
          REQUIRE(largest(alone.losses, whole.losses) < 1e-5);
        }
      }
    }
  }
}

namespace {

// Counts the memory of tensors on the CPU.
class Counted : public c10::Allocator {
 public:
  explicit Counted(c10::Allocator* behind) : behind_(behind) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = behind_->allocate(bytes);
    auto* block = new Block{this, bytes, std::move(data)};
    now += static_cast<int64_t>(bytes);
    peak = std::max(peak, now);
    return {block->data.get(), block, &release, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  int64_t now = 0, peak = 0;

 private:
  struct Block {
    Counted* counted;
    size_t bytes;
    c10::DataPtr data;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->counted->now -= static_cast<int64_t>(block->bytes);
    delete block;
  }
  c10::Allocator* behind_;
};

// Peak memory of the tensors that `call` allocates.
int64_t peak_of(const auto& call) {
  // Never freed: tensors that outlive the test refer to it.
  static auto* const counted = new Counted(c10::GetAllocator(at::kCPU));
  c10::Allocator* const before = c10::GetAllocator(at::kCPU);
  c10::SetAllocator(at::kCPU, counted, 255);
  counted->now = counted->peak = 0;
  call();
  c10::SetAllocator(at::kCPU, before, 255);
  return counted->peak;
}

}  // namespace

TEST_CASE("neither all rows' logits nor a second matrix gradient is allocated") {
  const int64_t rows = 4096, vocab = 3000, width = 8;
  const int64_t logits = rows * vocab * 2;  // of one head, in bf16: 24 MB
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const Inputs in = make(rows, vocab, width, width).to(type);
    const at::Tensor grad_head = at::zeros({vocab, width});
    for (const Support& support : {supports[0], supports[2], supports[5]}) {
      for (const Divergence& divergence : {divergences[0], divergences[3]}) {
        if (!go_together(divergence, support)) continue;
        CAPTURE(c10::toString(type));
        CAPTURE(static_cast<int>(support.kind));
        const int64_t peak = peak_of([&] {
          linear_token_kl(in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head, in.weights,
                          in.targets, divergence, support, {1, true, logits / 10}, grad_head);
        });
        CHECK(peak > logits / 20);  // counted at all
        CHECK(peak < logits / 8);
      }
    }
  }
}

TEST_CASE("mismatched arguments are rejected with a code") {
  const Inputs good = make(4, 10, 6, 5);
  const at::Tensor grad_head = at::zeros({10, 6});
  const auto code = [&](const auto& change, double temperature = 1, Support support = {},
                        Divergence divergence = {}) {
    Inputs in = good;
    at::Tensor into = grad_head;
    change(in, into);
    return code_of([&] {
      linear_token_kl(in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head, in.weights,
                      in.targets, divergence, support, {temperature, true, 0}, into);
    });
  };
  const auto nothing = [](Inputs&, at::Tensor&) {};
  CHECK(code(nothing) == "none");
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
  CHECK(code([](Inputs& in, auto&) { in.student_head = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.student_head = at::zeros({0, 6}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.teacher_hidden = at::zeros({3, 5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.teacher_head = at::zeros({11, 5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.teacher_hidden = at::Tensor(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.weights = at::zeros({5}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.student_hidden = in.student_hidden.to(at::kLong); }) == "ERR_VALUE");
  CHECK(code([](Inputs&, at::Tensor& into) { into = at::zeros({10, 7}); }) == "ERR_SHAPE");
  CHECK(code([](Inputs&, at::Tensor& into) { into = at::zeros({6, 10}).t(); }) == "ERR_SHAPE");
  CHECK(code([](Inputs&, at::Tensor& into) { into = into.to(at::kBFloat16); }) == "ERR_VALUE");
  const Support sampled{SupportKind::sampled, 0};
  for (const double beta : {0.0, 1.0, -0.5, 1e-7, std::nan("")}) {
    CHECK(code(nothing, 1, {}, {DivergenceKind::jensen_shannon, beta}) == "ERR_VALUE");
  }
  for (const Divergence& divergence : divergences) {
    CHECK(code(nothing, 1, sampled, divergence) ==
          (gradient_by_score(divergence.kind) ? "ERR_VALUE" : "none"));
  }
  CHECK(code([](Inputs& in, auto&) { in.teacher_hidden = in.teacher_head = at::Tensor(); }, 1, sampled) ==
        "none");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::Tensor(); }, 1, sampled) == "ERR_SHAPE");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::zeros({4}); }, 1, sampled) == "ERR_VALUE");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::full({4}, 10, at::kLong); }, 1, sampled) ==
        "ERR_INDEX");
  CHECK(code([](Inputs& in, auto&) { in.targets = at::full({4}, -1, at::kLong); }, 1, sampled) ==
        "ERR_INDEX");
  const auto meta = [](Inputs& in, auto&) { in.teacher_hidden = in.teacher_hidden.to(at::kMeta); };
  CHECK(code(meta) == "ERR_DEVICE");
}
