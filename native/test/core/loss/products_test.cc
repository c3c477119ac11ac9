#include "core/loss/products.h"

#include <doctest/doctest.h>

#include "core/loss/mixed_products.h"

using namespace nlac;

namespace {

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

at::Tensor random_bf16(int64_t rows, int64_t columns) { return at::randn({rows, columns}).to(at::kBFloat16); }

}  // namespace

TEST_CASE("products of bfloat16 matrices have float32 results, by every route") {
  at::manual_seed(4);
  for (const int64_t rows : {32, 96, 352}) {
    for (const int64_t vocab : {1, 3, 64, 65, 256, 333, 9001}) {
      for (const int64_t width : {1, 2, 31, 64, 100}) {
        CAPTURE(rows);
        CAPTURE(vocab);
        CAPTURE(width);
        const at::Tensor hidden = random_bf16(rows, width), weight = random_bf16(vocab, width);
        const at::Tensor gradient = random_bf16(rows, vocab);
        const at::Tensor h = hidden.to(at::kDouble), w = weight.to(at::kDouble), g = gradient.to(at::kDouble);
        const at::Tensor logits = h.mm(w.t()), grad_hidden = g.mm(w), grad_weight = g.t().mm(h) + 1;
        {
          const at::Tensor room = at::full({rows, vocab + 3}, 7.0f), result = room.narrow(1, 0, vocab);
          product_logits(hidden, weight, result);
          REQUIRE(distance(result, logits) < 1e-6);
          REQUIRE(at::equal(room.narrow(1, vocab, 3), at::full({rows, 3}, 7.0f)));
          const at::Tensor back = at::empty({rows, width}), sum = at::ones({vocab, width});
          product_hidden(gradient.to(at::kFloat), weight, back);
          product_weight(gradient.to(at::kFloat), hidden, sum);
          REQUIRE(distance(back, grad_hidden) < 3e-6);  // 9001 terms in float32
          REQUIRE(distance(sum, grad_weight) < 1e-6);
        }
        if (!mixed::available()) continue;
        const int64_t stride = mixed::logit_stride(vocab), even = (width + 1) / 2 * 2;
        const at::Tensor padded = at::zeros({rows, even}, at::kBFloat16);
        padded.narrow(1, 0, width).copy_(hidden);
        const at::Tensor room = at::full({rows, stride}, 7.0f);
        mixed::logits(padded.const_data_ptr<at::BFloat16>(), even, rows,
                      weight.const_data_ptr<at::BFloat16>(), vocab, width, room.data_ptr<float>(), stride);
        REQUIRE(distance(room.narrow(1, 0, vocab), logits) < 1e-6);
        REQUIRE(at::equal(room.narrow(1, vocab, stride - vocab), at::full({rows, stride - vocab}, 7.0f)));
        // Garbage follows the gradient's end, as in a row of logits.
        const at::Tensor wide = at::full({rows, 2 * stride}, std::nan(""), at::kBFloat16);
        wide.narrow(1, 0, vocab).copy_(gradient);
        wide.narrow(1, vocab, 1).zero_();
        const at::Tensor back = at::empty({rows, width}), sum = at::ones({vocab, width});
        mixed::hidden_gradient(wide.const_data_ptr<at::BFloat16>(), 2 * stride, rows,
                               weight.const_data_ptr<at::BFloat16>(), vocab, width, back.data_ptr<float>());
        mixed::head_gradient(wide.const_data_ptr<at::BFloat16>(), 2 * stride, rows,
                             padded.const_data_ptr<at::BFloat16>(), even, vocab, width,
                             sum.data_ptr<float>());
        REQUIRE(distance(back, grad_hidden) < 3e-6);
        REQUIRE(distance(sum, grad_weight) < 1e-6);
      }
    }
  }
}
