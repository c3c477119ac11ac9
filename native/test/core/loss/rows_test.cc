// The fused row kernels, for every instruction set this processor runs, against libtorch's operators.
#include "core/loss/rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "core/loss/row_kernels.h"

using namespace nlac;
using namespace nlac::row_kernels;

namespace {

at::Tensor random_logits(int64_t vocab, double size) { return at::randn({1, vocab}) * size; }

RowChunk operators(const at::Tensor& student, const at::Tensor& teacher, int64_t target,
                   const Support& support, double temperature, double weight) {
  RowChunk chunk;
  chunk.student = student.to(at::kDouble);
  chunk.teacher = teacher.to(at::kDouble);
  chunk.weights = at::full({1}, weight, at::kDouble);
  chunk.targets = at::full({1}, target, at::kLong);
  chunk.losses = at::empty({1}, at::kDouble);
  chunk.temperature = temperature;
  chunk.support = support;
  token_rows_with_operators(chunk);
  return chunk;
}

}  // namespace

TEST_CASE("every kernel gives the operators' loss and gradient, in float32 and in bfloat16") {
  at::manual_seed(0);
  for (const Kernels* kernels : all_kernels()) {
    for (const int64_t vocab : {1, 2, 15, 16, 17, 1023, 1025, 3000}) {
      for (const double size : {0.1, 3.0, 30.0}) {
        for (const Support& support : {Support{SupportKind::full, 0}, Support{SupportKind::top_k, 3},
                                       Support{SupportKind::sampled, 0}}) {
          if (support.kind == SupportKind::top_k && vocab <= 3) continue;
          CAPTURE(vocab);
          CAPTURE(size);
          CAPTURE(static_cast<int>(support.kind));
          const at::Tensor student = random_logits(vocab, size), teacher = random_logits(vocab, size);
          const int64_t target = vocab / 2;
          const double temperature = 0.7, weight = 0.3;
          const RowChunk expected = operators(student, teacher, target, support, temperature, weight);
          for (const Form form : {Form::none, Form::f32, Form::bf16}) {
            const at::Tensor s = student.clone(), t = teacher.clone();
            const RowScale scale{static_cast<float>(1 / temperature),
                                 static_cast<float>(weight / temperature), form};
            float loss = 0;
            if (support.kind == SupportKind::full) {
              loss = kernels->kl(s.data_ptr<float>(), t.const_data_ptr<float>(), vocab, scale);
            } else if (support.kind == SupportKind::sampled) {
              loss = kernels->nll(s.data_ptr<float>(), target, vocab, scale);
            } else {
              std::vector<int64_t> indices;
              float room[6];
              select_top(t.const_data_ptr<float>(), vocab, 3, indices);
              loss = kernels->top_k(s.data_ptr<float>(), t.data_ptr<float>(), vocab,
                                    {indices.data(), room, room + 3, 3}, scale);
            }
            const double exact = expected.losses.item<double>();
            REQUIRE(std::abs(loss - exact) < 1e-5 * (1 + exact));
            if (form == Form::none && support.kind != SupportKind::top_k) REQUIRE(at::equal(s, student));
            if (form == Form::none) continue;
            at::Tensor gradient = s;
            if (form == Form::bf16) {
              gradient = at::from_blob(s.data_ptr(), {1, vocab}, at::kBFloat16);
            }
            const double largest = expected.student.abs().max().item<double>();
            const double difference =
                (gradient.to(at::kDouble) - expected.student).abs().max().item<double>();
            REQUIRE(difference <= largest * (form == Form::f32 ? 1e-5 : 4e-3) + 1e-7);
          }
        }
      }
    }
  }
}

TEST_CASE("the k best are those of a sort, ties going to the lower index") {
  at::manual_seed(1);
  for (const int64_t vocab : {1, 7, 100, 5000}) {
    at::Tensor logits = at::randint(-20, 20, {vocab}).to(at::kFloat);  // many ties
    const float* values = logits.const_data_ptr<float>();
    std::vector<int64_t> order(static_cast<size_t>(vocab));
    for (int64_t i = 0; i < vocab; ++i) order[static_cast<size_t>(i)] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
    for (const int64_t k : {int64_t{1}, int64_t{3}, vocab / 2, vocab}) {
      if (k < 1 || k > vocab) continue;
      std::vector<int64_t> got;
      select_top(values, vocab, k, got);
      std::vector<int64_t> expected(order.begin(), order.begin() + k);
      std::sort(got.begin(), got.end());
      std::sort(expected.begin(), expected.end());
      REQUIRE(got == expected);
    }
  }
}

TEST_CASE("logits of -inf are tokens of probability 0") {
  const float lowest = -std::numeric_limits<float>::infinity();
  for (const Kernels* kernels : all_kernels()) {
    float student[4] = {1, lowest, 2, lowest}, teacher[4] = {2, lowest, 1, lowest};
    const float loss = kernels->kl(student, teacher, 4, {1, 1, Form::f32});
    CHECK(loss == doctest::Approx(0.4621172));  // (e - 1) / (e + 1)
    CHECK(student[1] == 0);
    CHECK(student[3] == 0);
    CHECK(student[0] + student[2] == doctest::Approx(0));
  }
}
