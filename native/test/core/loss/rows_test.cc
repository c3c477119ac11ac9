// The row kernels, for every instruction set this processor runs, and the whole of token_rows on
// every device, against libtorch's operators in float64.
#include "core/loss/rows.h"

#include <ATen/Context.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/loss/row_kernels.h"

using namespace nlac;
using namespace nlac::row_kernels;

namespace {

const Divergence divergences[] = {
    {DivergenceKind::forward_kl, 0},        {DivergenceKind::cross_entropy, 0},
    {DivergenceKind::reverse_kl, 0},        {DivergenceKind::jensen_shannon, 0.5},
    {DivergenceKind::jensen_shannon, 0.02}, {DivergenceKind::jensen_shannon, 0.9}};

at::Tensor random_logits(int64_t rows, int64_t vocab, double size) { return at::randn({rows, vocab}) * size; }

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

// All buffers of a chunk, for `student` and, if defined, `teacher` logits.
RowChunk chunk_of(const at::Tensor& student, const at::Tensor& teacher, at::ScalarType gradient) {
  const int64_t rows = student.size(0), vocab = student.size(1);
  const auto options = student.options();
  RowChunk chunk;
  chunk.student = student;
  chunk.teacher = teacher;
  chunk.gradient = at::full({rows, vocab}, 7, options.dtype(gradient));
  chunk.row_weights = at::linspace(0.3, -1.2, rows, options);
  chunk.losses = at::empty({rows}, options);
  if (teacher.defined()) return chunk;
  chunk.targets = (at::arange(rows, options.dtype(at::kLong)) * 7919).remainder(vocab);
  // Close to the true log probabilities: a ratio of e^100 does not occur.
  const at::Tensor log_probs = at::log_softmax(student.to(at::kCPU, at::kDouble) / 0.7, -1)
                                   .gather(1, chunk.targets.cpu().unsqueeze(1))
                                   .squeeze(1)
                                   .to(student.device(), student.scalar_type());
  chunk.old_log_probs = log_probs + at::linspace(-0.5, 0.5, rows, options);
  chunk.advantages = at::linspace(-2, 1.5, rows, options);
  chunk.reference_log_probs = log_probs + at::linspace(0.4, -0.3, rows, options);
  chunk.grad_log_probs = at::linspace(-1, 2, rows, options);
  for (at::Tensor* result : {&chunk.log_probs, &chunk.entropies, &chunk.ratios})
    *result = at::empty({rows}, options);
  chunk.clipped = at::empty({rows}, options.dtype(at::kInt));
  return chunk;
}

void check_close(const at::Tensor& got, const at::Tensor& expected, double relative) {
  const at::Tensor wide = got.to(at::kCPU, at::kDouble);
  REQUIRE(at::isfinite(wide).all().item<bool>());
  REQUIRE(largest(wide - expected) <= relative * (1 + largest(expected)));
}

// Compares token_rows on `device` with the operators in float64 on the CPU.
void check_rows(const RowLoss& loss, const at::Tensor& student, const at::Tensor& teacher, at::Device device,
                double precision) {
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kCPU, at::kDouble) : t; };
  const RowChunk expected = chunk_of(wide(student), wide(teacher), at::kDouble);
  token_rows_with_operators(loss, expected);
  for (const auto form : {at::kFloat, at::kBFloat16}) {
    for (const bool in_place : {false, true}) {
      if (in_place && form != at::kFloat) continue;
      const auto copy = [&](const at::Tensor& t) { return t.defined() ? t.to(device).clone() : t; };
      RowChunk got = chunk_of(copy(student), copy(teacher), form);
      if (in_place) got.gradient = got.student;
      token_rows(loss, got);
      check_close(got.losses, expected.losses, 1e-5);
      if (!teacher.defined()) {
        check_close(got.log_probs, expected.log_probs, 1e-5);
        check_close(got.entropies, expected.entropies, 1e-5);
        if (loss.token == TokenLossKind::surrogate) {
          check_close(got.ratios, expected.ratios, 1e-4);
          REQUIRE(at::equal(got.clipped.cpu(), expected.clipped));
        }
      }
      const double size = largest(expected.gradient);
      const at::Tensor difference = got.gradient.to(at::kCPU, at::kDouble) - expected.gradient;
      REQUIRE(largest(difference) <= size * (form == at::kFloat ? precision : 5e-3) + precision / 100);
    }
  }
}

void check_device(at::Device device) {
  at::manual_seed(3);
  for (const int64_t vocab : {1, 2, 3, 17, 1000, 4099, 40001}) {
    for (const double size : {0.1, 3.0, 30.0}) {
      CAPTURE(vocab);
      CAPTURE(size);
      // A column stride is not supported; a row stride is.
      const at::Tensor student = random_logits(5, vocab + 3, size).narrow(1, 0, vocab),
                       teacher = random_logits(5, vocab + 5, size).narrow(1, 0, vocab);
      // The tolerance of a float32 logarithm of the logits' magnitude, in ulps.
      const double precision = 1e-5 * (1 + size);
      RowLoss loss;
      loss.temperature = 0.7;
      for (const Divergence& divergence : divergences) {
        CAPTURE(static_cast<int>(divergence.kind));
        CAPTURE(divergence.beta);
        loss.divergence = divergence;
        for (const int64_t k : {0, 1, 16, 700}) {
          CAPTURE(k);
          loss.top_k = k;
          check_rows(loss, student, teacher, device, precision);
        }
      }
      for (const auto token : {TokenLossKind::nll, TokenLossKind::log_prob, TokenLossKind::surrogate}) {
        CAPTURE(static_cast<int>(token));
        loss.token = token;
        loss.z_loss = 0, loss.entropy_coefficient = 0, loss.kl_coefficient = 0;
        check_rows(loss, student, {}, device, precision);
        loss.z_loss = 1e-2, loss.entropy_coefficient = 0.1, loss.kl_coefficient = 0.05;
        loss.clip_high = 0.3;
        check_rows(loss, student, {}, device, precision);
      }
    }
  }
}

}  // namespace

TEST_CASE("token rows on the CPU agree with the operators in float64") { check_device(at::kCPU); }

TEST_CASE("token rows on a GPU agree with the operators in float64" * doctest::skip(!at::hasCUDA())) {
  check_device(at::kCUDA);
}

TEST_CASE("every kernel agrees with the operators' loss and gradient, in float32 and in bfloat16") {
  at::manual_seed(0);
  const double temperature = 0.7, weight = 0.3;
  const auto inverse = static_cast<float>(1 / temperature), scale = static_cast<float>(weight / temperature);
  for (const Kernels* kernels : all_kernels()) {
    for (const int64_t vocab : {1, 2, 15, 16, 17, 1023, 1025, 3000}) {
      for (const double size : {0.1, 3.0, 30.0}) {
        CAPTURE(vocab);
        CAPTURE(size);
        const at::Tensor student = random_logits(1, vocab, size), teacher = random_logits(1, vocab, size);
        const at::Tensor log_q = at::log_softmax(student.to(at::kDouble) / temperature, -1);
        const Softmax s = kernels->softmax(student.const_data_ptr<float>(), vocab, inverse, true),
                      t = kernels->softmax(teacher.const_data_ptr<float>(), vocab, inverse, false);
        const double entropy = -(log_q.exp() * log_q).sum().item<double>();
        REQUIRE(std::log(s.sum) - s.moment / s.sum == doctest::Approx(entropy).epsilon(1e-5));
        REQUIRE(t.moment == 0);

        for (const Form form : {Form::f32, Form::bf16}) {
          const at::Tensor to = at::full({1, vocab}, 7, form == Form::f32 ? at::kFloat : at::kBFloat16);
          const double precision = form == Form::f32 ? 1e-5 * (1 + size) : 4e-3;
          kernels->weighted(student.const_data_ptr<float>(), vocab, s, inverse, 0.8f, 0.5f,
                            {to.data_ptr(), form});
          const at::Tensor weighted = log_q.exp() * (0.8 + 0.5 * log_q);
          REQUIRE(largest(to.to(at::kDouble) - weighted) <= largest(weighted) * precision + 1e-7);

          for (const Divergence& divergence : divergences) {
            CAPTURE(static_cast<int>(divergence.kind));
            CAPTURE(divergence.beta);
            RowLoss loss;
            loss.temperature = temperature;
            loss.divergence = divergence;
            RowChunk expected = chunk_of(student.to(at::kDouble), teacher.to(at::kDouble), at::kDouble);
            expected.row_weights.fill_(weight);
            token_rows_with_operators(loss, expected);
            const double exact = expected.losses.item<double>();
            for (const bool with_gradient : {false, true}) {
              const at::Tensor a = student.clone(), b = teacher.clone();
              const double got =
                  kernels->divergence(a.data_ptr<float>(), b.data_ptr<float>(), vocab, s, t, inverse,
                                      divergence, scale, {to.data_ptr(), with_gradient ? form : Form::none});
              REQUIRE(std::abs(got - exact) < 1e-5 * (1 + exact));
            }
            REQUIRE(largest(to.to(at::kDouble) - expected.gradient) <=
                    largest(expected.gradient) * precision + 1e-7 * (1 + size));
          }
        }
      }
    }
  }
}

TEST_CASE("the k largest equal those of a sort; ties go to the lower index") {
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
    for (const Divergence& divergence : divergences) {
      CAPTURE(static_cast<int>(divergence.kind));
      float student[4] = {1, lowest, 2, lowest}, teacher[4] = {2, lowest, 1, lowest};
      const Softmax s = kernels->softmax(student, 4, 1, true), t = kernels->softmax(teacher, 4, 1, false);
      CHECK(s.moment / s.sum == doctest::Approx(-0.2689414));  // -1 · 1 / (1 + e)
      const double loss =
          kernels->divergence(student, teacher, 4, s, t, 1, divergence, 1, {student, Form::f32});
      if (divergence.kind == DivergenceKind::forward_kl || divergence.kind == DivergenceKind::reverse_kl) {
        CHECK(loss == doctest::Approx(0.4621172));  // (e - 1) / (e + 1)
      }
      CHECK(std::isfinite(loss));
      CHECK(student[1] == 0);
      CHECK(student[3] == 0);
      CHECK(student[0] + student[2] == doctest::Approx(0));
      CHECK(student[0] != 0);
    }
  }
}

TEST_CASE("a top-k support whose bucket has only logits of -inf gives it no gradient") {
  const float lowest = -std::numeric_limits<float>::infinity();
  for (const Divergence& divergence : divergences) {
    RowLoss loss;
    loss.divergence = divergence;
    loss.top_k = 2;
    const RowChunk chunk = chunk_of(at::tensor({1.0f, lowest, 2.0f, lowest}).view({1, 4}),
                                    at::tensor({2.0f, lowest, 1.0f, lowest}).view({1, 4}), at::kFloat);
    token_rows(loss, chunk);
    CHECK(at::isfinite(chunk.losses).all().item<bool>());
    const float* gradient = chunk.gradient.const_data_ptr<float>();
    CHECK(gradient[1] == 0);
    CHECK(gradient[3] == 0);
    CHECK(gradient[0] + gradient[2] == doctest::Approx(0));
    CHECK(gradient[0] != 0);
  }
}
