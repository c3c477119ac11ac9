// Types, rounding, and non-finite values.
#include "test/core/loss/linear_loss_reference.h"

using namespace linear_loss_test;
using namespace nlac;

TEST_CASE("bfloat16 inputs: float32 logits and losses, gradients to bfloat16's precision") {
  for (const int64_t rows : {1, 33, 70}) {
    for (const int64_t vocab : {1, 2, 97, 1000}) {
      for (const auto& [student_width, teacher_width] :
           {std::pair<int64_t, int64_t>{1, 2}, {17, 8}, {130, 33}}) {
        for (const Support& support : supports) {
          for (const Divergence& divergence : divergences) {
            if (!go_together(divergence, support)) continue;
            CAPTURE(rows);
            CAPTURE(vocab);
            CAPTURE(student_width);
            CAPTURE(static_cast<int>(support.kind));
            CAPTURE(static_cast<int>(divergence.kind));
            Inputs in = make(rows, vocab, student_width, teacher_width, 2).to(at::kBFloat16);
            in.weights.slice(0, 0, rows, 3).zero_();
            const Outcome expected = reference(in, 1, support, divergence),
                          got = ours(in, 1, support, divergence);
            REQUIRE((got.losses.scalar_type() == at::kFloat));
            REQUIRE((got.grad_hidden.scalar_type() == at::kBFloat16));
            // bf16 logits of this size would be off by 1e-2.
            REQUIRE(largest(got.losses, expected.losses) < 2e-5);
            // With a weight per token, a sum that cancels is small compared with its rounded terms.
            if (student_width > 1 || !gradient_by_score(divergence.kind)) {
              REQUIRE(distance(got.grad_hidden, expected.grad_hidden) < 8e-3);
            }
            REQUIRE(distance(got.grad_head, expected.grad_head) < 5e-3);
          }
        }
      }
    }
  }
}

TEST_CASE("student and teacher may differ in type and be non-contiguous") {
  Inputs in = make(9, 200, 12, 30).to(at::kBFloat16);
  const Outcome expected = reference(in, 1, supports[0]);
  for (const auto student : {at::kFloat, at::kBFloat16, wide}) {
    for (const auto teacher : {at::kFloat, at::kBFloat16, wide}) {
      CAPTURE(c10::toString(student));
      CAPTURE(c10::toString(teacher));
      const bool dual = student == wide || teacher == wide;
      const at::Tensor grad_head = at::zeros({200, 12}, dual ? wide : at::kFloat);
      const LossResult got = linear_token_kl(
          in.student_hidden.to(student), in.student_head.to(student).t().contiguous().t(),
          in.teacher_hidden.to(teacher).t().contiguous().t(),
          in.teacher_head.to(teacher).t().contiguous().t(), in.weights, {}, {}, supports[0], {}, grad_head);
      CHECK(largest(got.losses, expected.losses) < 2e-5);
      CHECK(distance(got.grad_hidden, expected.grad_hidden) < 6e-3);
      CHECK(distance(grad_head, expected.grad_head) < 4e-3);
    }
  }
}

TEST_CASE("the gradient of the matrix is summed in float32: a bfloat16 sum would stop growing") {
  // Every call adds the same small gradient; a bf16 sum would stop growing after 256 of them.
  const Inputs in = make(40, 60, 16, 16).to(at::kBFloat16);
  const at::Tensor once = ours(in, 1, supports[0]).grad_head;
  const at::Tensor total = at::zeros({60, 16}), low = at::zeros({60, 16}, at::kBFloat16);
  constexpr int calls = 2000;
  for (int i = 0; i < calls; ++i) {
    linear_token_kl(in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head, in.weights, {},
                    {}, supports[0], {}, total);
    low.add_(once.to(at::kBFloat16));
  }
  CHECK(distance(total, once * calls) < 1e-4);
  CHECK(distance(low, once * calls) > 0.1);

  // The same within one call, across rows: 4096 equal rows against one.
  Inputs many = in;
  for (at::Tensor* t : {&many.student_hidden, &many.teacher_hidden, &many.weights}) {
    *t =
        t->narrow(0, 0, 1).repeat(t->dim() == 2 ? std::vector<int64_t>{4096, 1} : std::vector<int64_t>{4096});
  }
  Inputs single = many;
  for (at::Tensor* t : {&single.student_hidden, &single.teacher_hidden, &single.weights})
    *t = t->narrow(0, 0, 1);
  CHECK(distance(ours(many, 1, supports[0]).grad_head, ours(single, 1, supports[0]).grad_head * 4096) < 1e-5);
}

TEST_CASE("results do not depend on the number of threads") {
  const Threads restore;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const Divergence& divergence : divergences) {
      const Inputs in = make(150, 777, 100, 40).to(type);
      at::set_num_threads(1);
      const Outcome one = ours(in, 1, supports[0], divergence);
      for (const int threads : {2, 7}) {
        at::set_num_threads(threads);
        const Outcome more = ours(in, 1, supports[0], divergence);
        CHECK(at::equal(more.losses, one.losses));
        CHECK(at::equal(more.grad_hidden, one.grad_hidden));
        CHECK(at::equal(more.grad_head, one.grad_head));
      }
    }
  }
}

TEST_CASE("a non-finite hidden state gives a non-finite loss of its row and matrix gradient") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const Support& support : supports) {
      for (const Divergence& divergence : divergences) {
        if (!go_together(divergence, support)) continue;
        for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
          Inputs in = make(3, 40, 6, 6);
          in.student_hidden[1][2] = bad;
          const Outcome got = ours(in.to(type), 1, support, divergence);
          CHECK_FALSE(std::isfinite(got.losses[1].item<float>()));
          CHECK(std::isfinite(got.losses[0].item<float>()));
          CHECK(at::isfinite(got.grad_hidden[2]).all().item<bool>());
          CHECK_FALSE(std::isfinite(got.grad_head.sum().item<float>()));
          in.weights[1] = 0;
          const Outcome masked = ours(in.to(type), 1, support, divergence);
          CHECK(at::isfinite(masked.grad_head).all().item<bool>());
          CHECK(masked.losses[1].item<float>() == 0);
          CHECK(masked.grad_hidden[1].abs().max().item<float>() == 0);
        }
      }
    }
  }
}

TEST_CASE("logits are not rounded to bfloat16: close distributions would lose their gradient") {
  Inputs in = make(24, 2000, 64, 64, 2);
  in.teacher_hidden = in.student_hidden + 0.05 * at::randn_like(in.student_hidden);
  in.teacher_head = in.student_head;
  in = in.to(at::kBFloat16);
  for (const Divergence& divergence : {divergences[0], divergences[2], divergences[3]}) {
    const Outcome exact = reference(in, 1, supports[0], divergence),
                  got = ours(in, 1, supports[0], divergence);
    CHECK(distance(got.grad_hidden, exact.grad_hidden) < 5e-3);  // the gradient itself is bf16
    CHECK(distance(got.grad_head, exact.grad_head) < 3e-3);
    CHECK(distance(got.losses, exact.losses) < 1e-3);
    // The result if logits were rounded.
    const auto rounded = [](const at::Tensor& hidden, const at::Tensor& weight) {
      return hidden.to(wide).mm(weight.to(wide).t()).to(at::kBFloat16);
    };
    Inputs low = in;
    low.student_hidden = rounded(in.student_hidden, in.student_head);
    low.teacher_hidden = rounded(in.teacher_hidden, in.teacher_head);
    low.student_head = low.teacher_head = at::eye(2000);
    const at::Tensor gradient = reference(low, 1, supports[0], divergence).grad_hidden;
    CHECK(distance(gradient.mm(in.student_head.to(wide)), exact.grad_hidden) > 0.03);
  }
}
