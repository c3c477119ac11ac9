// Details of a loss on chunks of rows, against log_softmax and topk in float64.
#include "core/loss/row_detail.h"

#include "test/core/loss/linear_loss_reference.h"

using namespace linear_loss_test;

namespace {

struct Expected {
  at::Tensor log_probs, table;  // [rows], and [rows, vocab], float64
};

Expected expected(const at::Tensor& hidden, const at::Tensor& head, const Inputs& in, double temperature) {
  const at::Tensor table = at::log_softmax(hidden.to(wide).mm(head.to(wide).t()) / temperature, -1);
  return {table.gather(1, in.targets.unsqueeze(1)).squeeze(1), table};
}

void check_detail(const RowDetail& got, const Expected& expected, const at::Tensor& weights, int64_t k,
                  double within) {
  const at::Tensor used = weights != 0;
  const auto of_used = [&](const at::Tensor& all) { return all.index_select(0, used.nonzero().squeeze(1)); };
  CHECK(largest(of_used(got.log_probs), of_used(expected.log_probs)) < within);
  CHECK(got.log_probs.masked_select(used.logical_not()).count_nonzero().item<int64_t>() == 0);
  CHECK(got.top.defined() == (k > 0));
  if (k == 0) return;
  // Rounding may exchange ids whose probabilities are almost equal.
  const at::Tensor best = std::get<0>(expected.table.topk(k, -1));
  CHECK(largest(of_used(got.top_log_probs), of_used(best)) < within);
  CHECK(largest(of_used(expected.table.gather(1, got.top)), of_used(best)) < within);
  const at::Tensor sorted = std::get<0>(got.top.sort(1));
  if (k > 1) CHECK(of_used(sorted.diff(1, 1)).gt(0).all().item<bool>());  // no id occurs twice
  CHECK(got.top_log_probs.index({used.logical_not()}).count_nonzero().item<int64_t>() == 0);
}

}  // namespace

TEST_CASE("details are those of float64, and change no bit of losses and gradients") {
  for (const auto type : {at::kFloat, at::kBFloat16, wide}) {
    for (const Support& support : {supports[0], supports[2], supports[5]}) {
      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{8}, int64_t{301}}) {
        for (const double temperature : {1.0, 1.7}) {
          CAPTURE(c10::toString(type));
          CAPTURE(static_cast<int>(support.kind));
          CAPTURE(k);
          CAPTURE(temperature);
          Inputs in = make(150, 301, 24, 17, 3).to(type);
          in.weights.slice(0, 3, 40, 5).zero_();
          const auto run = [&](int64_t detail, const at::Tensor& grad_head) {
            LossOptions options{temperature, true, 40 * 301 * 8};  // several chunks
            options.detail = detail;
            return linear_token_kl(in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head,
                                   in.weights, in.targets, {}, support, options, grad_head);
          };
          const auto real = type == wide ? wide : at::kFloat;
          const at::Tensor with = at::zeros_like(in.student_head, real),
                           without = at::zeros_like(in.student_head, real);
          const LossResult plain = run(-1, without), got = run(k, with);
          CHECK(at::equal(got.losses, plain.losses));
          CHECK(at::equal(got.grad_hidden, plain.grad_hidden));
          CHECK(at::equal(with, without));
          CHECK(!plain.detail.log_probs.defined());
          CHECK(!plain.teacher_detail.log_probs.defined());
          const double within = type == wide ? 1e-12 : 2e-5;
          check_detail(got.detail, expected(in.student_hidden, in.student_head, in, temperature), in.weights,
                       k, within);
          check_detail(got.teacher_detail, expected(in.teacher_hidden, in.teacher_head, in, temperature),
                       in.weights, k, within);
        }
      }
    }
  }
}

TEST_CASE("the smaller id comes first among equals, and NaN does not disturb other rows") {
  const at::Tensor logits = at::zeros({3, 50});
  logits[0][7] = 2, logits[0][3] = 2, logits[0][40] = 3;
  logits[1].fill_(std::nan(""));
  logits[2][49] = 1;
  const RowDetail got = make_row_detail(3, 4, logits.options());
  row_detail(logits, 1, at::full({3}, 40, at::kLong), got);
  const auto ids = [&](int64_t row) {
    const at::Tensor list = got.top[row].contiguous();
    return std::vector<int64_t>(list.const_data_ptr<int64_t>(), list.const_data_ptr<int64_t>() + 4);
  };
  CHECK(ids(0) == std::vector<int64_t>{40, 3, 7, 0});
  CHECK(ids(2) == std::vector<int64_t>{49, 0, 1, 2});
  CHECK(got.log_probs[1].isnan().item<bool>());
  CHECK(got.log_probs[2].item<float>() == doctest::Approx(-std::log(49 + std::exp(1.0))));
}

TEST_CASE("details need targets, and a k within the vocabulary") {
  const Inputs in = make(4, 10, 6, 5);
  const auto code = [&](int64_t detail, const at::Tensor& targets, Support support = {}) {
    LossOptions options;
    options.detail = detail;
    return code_of([&] {
      linear_token_kl(in.student_hidden, in.student_head, in.teacher_hidden, in.teacher_head, in.weights,
                      targets, {}, support, options, {});
    });
  };
  for (const Support& support : {supports[0], supports[5]}) {
    CHECK(code(10, in.targets, support) == "none");
    CHECK(code(11, in.targets, support) == "ERR_VALUE");
    CHECK(code(0, in.targets + 10, support) == "ERR_INDEX");
    CHECK(code(0, {}, support) == "ERR_SHAPE");
  }
}
