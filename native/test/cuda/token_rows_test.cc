// The token-rows kernel against the definitions in float64, for row lengths that end anywhere in a
// vector, or in the tile of a block or cluster.
#include "cuda/token_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;

namespace {

constexpr double temperature = 0.7;
constexpr float untouched = 7;

const Divergence divergences[] = {
    {DivergenceKind::forward_kl, 0},        {DivergenceKind::cross_entropy, 0},
    {DivergenceKind::reverse_kl, 0},        {DivergenceKind::jensen_shannon, 0.5},
    {DivergenceKind::jensen_shannon, 0.02}, {DivergenceKind::jensen_shannon, 0.9}};

// --- definitions ---------------------------------------------------------------------------------

using Row = std::vector<double>;

double log_sum(const Row& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  if (std::isinf(largest)) return largest;
  double sum = 0;
  for (const double each : x) sum += std::exp(each - largest);
  return largest + std::log(sum);
}

// Categories of probability 0 have logarithm -1e30, as core/loss/row_loss.h has them.
Row log_probs(Row x) {
  const double all = log_sum(x);
  for (double& each : x) each = std::max(each - all, -1e30);
  return x;
}

struct Result {
  double loss = 0;
  Row gradient;  // at the logits, of weight times loss
};

// A divergence of the categories' distributions; the gradient is at the logarithms of their masses.
Result divergence_of(const Divergence& divergence, const Row& log_p, const Row& log_q) {
  Result result;
  Row slopes;  // d loss / d q_i, less what is the same for all i
  double mean = 0;
  const double beta = divergence.beta;
  for (size_t i = 0; i < log_p.size(); ++i) {
    const double lp = log_p[i], lq = log_q[i], p = std::exp(lp), q = std::exp(lq);
    double slope = 0;
    switch (divergence.kind) {
      case DivergenceKind::forward_kl: result.loss += p * (lp - lq); break;
      case DivergenceKind::cross_entropy: result.loss -= p * lq; break;
      case DivergenceKind::reverse_kl:
        result.loss += q * (lq - lp);
        slope = lq - lp;
        break;
      case DivergenceKind::jensen_shannon: {
        const double log_m = log_sum({std::log(beta) + lp, std::log(1 - beta) + lq});
        result.loss += beta * p * (lp - log_m) + (1 - beta) * q * (lq - log_m);
        slope = (1 - beta) * (lq - log_m);
      }
    }
    slopes.push_back(slope);
    mean += q * slope;
  }
  for (size_t i = 0; i < log_p.size(); ++i) {
    const double p = std::exp(log_p[i]), q = std::exp(log_q[i]);
    result.gradient.push_back(gradient_by_score(divergence.kind) ? q * (slopes[i] - mean) : q - p);
  }
  return result;
}

// The same if all categories except those in `top` are merged into one.
Result bucket_of(const Divergence& divergence, const Row& log_p, const Row& log_q,
                 const std::vector<int64_t>& top) {
  Row rest_p = log_p, rest_q = log_q, p, q;
  for (const int64_t i : top) {
    p.push_back(log_p[i]), q.push_back(log_q[i]);
    rest_p[i] = rest_q[i] = -1e30;
  }
  p.push_back(log_sum(rest_p)), q.push_back(log_sum(rest_q));
  const Result inner = divergence_of(divergence, p, q);
  Result result{inner.loss, Row(log_p.size())};
  for (size_t i = 0; i < log_q.size(); ++i)
    result.gradient[i] = std::exp(rest_q[i] - q.back()) * inner.gradient.back();
  for (size_t i = 0; i < top.size(); ++i) result.gradient[top[i]] = inner.gradient[i];
  return result;
}

struct Target {
  int64_t token;
  double old_log_prob, advantage, reference_log_prob, slope;
};

struct TargetResult : Result {
  double log_prob, entropy = 0, ratio = 1;
  int32_t clipped = 0;
};

TargetResult target_of(const RowLoss& loss, const Row& x, const Target& target) {
  const Row log_q = log_probs(x);
  TargetResult result;
  const double all = log_sum(x), lq = result.log_prob = log_q[target.token];
  for (const double each : log_q) result.entropy -= std::exp(each) * each;
  double slope = -1;
  result.loss = -lq;
  if (loss.token == TokenLossKind::log_prob) result.loss = lq, slope = target.slope;
  if (loss.token == TokenLossKind::surrogate) {
    const double ratio = result.ratio = std::exp(lq - target.old_log_prob), a = target.advantage;
    const double held = std::clamp(ratio, 1 - loss.clip_low, 1 + loss.clip_high);
    result.clipped = held * a < ratio * a ? (ratio > held ? 1 : -1) : 0;
    const double d = target.reference_log_prob - lq;
    result.loss = -std::min(ratio * a, held * a) + loss.kl_coefficient * (std::exp(d) - d - 1);
    slope = (result.clipped != 0 ? 0 : -ratio * a) - loss.kl_coefficient * (std::exp(d) - 1);
  }
  result.loss += loss.z_loss * all * all - loss.entropy_coefficient * result.entropy;
  for (size_t i = 0; i < x.size(); ++i) {
    const double q = std::exp(log_q[i]), is_target = static_cast<int64_t>(i) == target.token ? 1 : 0;
    result.gradient.push_back(slope * (is_target - q) + 2 * loss.z_loss * all * q +
                              loss.entropy_coefficient * q * (log_q[i] + result.entropy));
  }
  return result;
}

// --- rows on the device --------------------------------------------------------------------------

enum class Form { f32, bf16, in_place, none };

// Rows of `vocab` numbers, each followed by `gap` others.
struct Rows {
  int64_t count, vocab, gap;
  std::vector<float> values;

  Rows(int64_t count, int64_t vocab, int64_t gap, uint64_t stream, float size)
      : count(count), vocab(vocab), gap(gap), values(numbers(count * (vocab + gap), stream, size)) {}
  int64_t stride() const { return vocab + gap; }
  float& at(int64_t row, int64_t i) { return values[row * stride() + i]; }
  Row scaled(int64_t row) const {
    const auto first = values.begin() + row * stride();
    Row x(first, first + vocab);
    for (double& each : x) each /= temperature;
    return x;
  }
};

float weight_of(int64_t row) { return row % 2 == 0 ? 0.3f : -1.2f; }

void require_close(double got, double expected, double tolerance) {
  if (std::abs(got - expected) <= tolerance) return;
  CAPTURE(got);
  CAPTURE(expected);
  REQUIRE(std::abs(got - expected) <= tolerance);  // NaN comes here too
}

// A gradient and its destination; the elements between the rows must not change.
class Gradient {
 public:
  Gradient(const Rows& rows, const OnDevice& student, Form form)
      : rows_(rows), form_(form), student_(student) {
    const std::vector<float> before(rows.values.size(), untouched);
    if (form == Form::f32 || form == Form::bf16) own_.emplace(before, form == Form::bf16);
  }
  void tell(cuda::TokenRows& to) const {
    if (form_ == Form::none) return;
    to.gradient = form_ == Form::in_place ? student_.data() : own_->data();
    to.gradient_stride = rows_.stride();
    to.gradient_is_bf16 = form_ == Form::bf16;
  }
  void require(int64_t row, const Row& expected, double precision) const {
    if (form_ == Form::none) return;
    const std::vector<float> got = (form_ == Form::in_place ? student_ : *own_).floats();
    const double scale = weight_of(row) / temperature;
    double size = 0;
    for (const double each : expected) size = std::max(size, std::abs(each * scale));
    const double tolerance = size * (form_ == Form::bf16 ? 5e-3 : precision) + precision / 30;
    const float* at = got.data() + row * rows_.stride();
    for (int64_t i = 0; i < rows_.vocab; ++i) require_close(at[i], expected[i] * scale, tolerance);
    for (int64_t i = rows_.vocab; i < rows_.stride(); ++i)
      REQUIRE(at[i] == (form_ == Form::in_place ? rows_.values[row * rows_.stride() + i] : untouched));
  }

 private:
  const Rows& rows_;
  Form form_;
  const OnDevice& student_;
  std::optional<OnDevice> own_;
};

std::vector<float> weights_of(int64_t count) {
  std::vector<float> weights;
  for (int64_t row = 0; row < count; ++row) weights.push_back(weight_of(row));
  return weights;
}

cuda::TokenRows told(const Rows& rows, const OnDevice& student, const OnDevice& weights,
                     const OnDevice& losses, const Gradient& gradient) {
  cuda::TokenRows to;
  to.count = rows.count;
  to.vocab = rows.vocab;
  to.inverse_temperature = static_cast<float>(1 / temperature);
  to.student = student.as<float>();
  to.student_stride = rows.stride();
  to.row_weights = weights.as<float>();
  to.losses = losses.as<float>();
  gradient.tell(to);
  return to;
}

// The k largest of each row, in no order.
std::vector<int64_t> top_of(const Rows& rows, int64_t row, int64_t k) {
  std::vector<int64_t> order(static_cast<size_t>(rows.vocab));
  std::iota(order.begin(), order.end(), 0);
  const float* values = rows.values.data() + row * rows.stride();
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

void check_teacher(const RowLoss& loss, const Rows& student, const Rows& teacher, Form form,
                   double precision) {
  const int64_t count = student.count, k = loss.top_k < student.vocab ? loss.top_k : 0;
  const OnDevice s(student.values), t(teacher.values), weights(weights_of(count)),
      losses(std::vector<float>(static_cast<size_t>(count), untouched));
  const Gradient gradient(student, s, form);
  cuda::TokenRows rows = told(student, s, weights, losses, gradient);
  rows.teacher = t.as<float>();
  rows.teacher_stride = teacher.stride();
  std::vector<int64_t> top;
  std::vector<float> top_student, top_teacher;
  for (int64_t row = 0; row < count; ++row) {
    for (const int64_t i : top_of(teacher, row, k)) {
      top.push_back(i);
      top_student.push_back(student.values[row * student.stride() + i]);
      top_teacher.push_back(teacher.values[row * teacher.stride() + i]);
    }
  }
  const OnDevice top_there(top), top_student_there(top_student), top_teacher_there(top_teacher);
  rows.top_k = k;
  rows.top = top_there.as<int64_t>();
  rows.top_student = top_student_there.as<float>();
  rows.top_teacher = top_teacher_there.as<float>();

  REQUIRE(cuda::token_rows(loss, rows, nullptr) == cudaSuccess);
  const std::vector<float> got = losses.floats();
  for (int64_t row = 0; row < count; ++row) {
    const Row log_p = log_probs(teacher.scaled(row)), log_q = log_probs(student.scaled(row));
    const Result expected = k > 0 ? bucket_of(loss.divergence, log_p, log_q, top_of(teacher, row, k))
                                  : divergence_of(loss.divergence, log_p, log_q);
    require_close(got[row], expected.loss, 1e-5 * (1 + std::abs(expected.loss)));
    gradient.require(row, expected.gradient, precision);
  }
}

void check_target(const RowLoss& loss, const Rows& student, Form form, double precision) {
  const int64_t count = student.count;
  std::vector<Target> targets;
  std::vector<int64_t> tokens;
  std::vector<float> old, advantages, reference, slopes;
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = row * 7919 % student.vocab;
    const double log_prob = log_probs(student.scaled(row))[token];
    // Close to the true log probabilities: a ratio of e^100 does not occur.
    old.push_back(static_cast<float>(log_prob + (row % 3 - 1) * 0.5));
    advantages.push_back(row % 3 == 0 ? 1.5f : -2);  // clipped above, not at all, and below
    reference.push_back(static_cast<float>(log_prob + 0.4 - 0.3 * static_cast<double>(row)));
    slopes.push_back(static_cast<float>(row) - 1);
    tokens.push_back(token);
    targets.push_back({token, old.back(), advantages.back(), reference.back(), slopes.back()});
  }
  const std::vector<float> empty(static_cast<size_t>(count), untouched);
  const OnDevice s(student.values), weights(weights_of(count)), losses(empty), tokens_there(tokens),
      old_there(old), advantages_there(advantages), reference_there(reference), slopes_there(slopes),
      log_probs_there(empty), entropies(empty), ratios(empty), clipped(empty);
  const Gradient gradient(student, s, form);
  cuda::TokenRows rows = told(student, s, weights, losses, gradient);
  rows.targets = tokens_there.as<int64_t>();
  rows.old_log_probs = old_there.as<float>();
  rows.advantages = advantages_there.as<float>();
  rows.reference_log_probs = reference_there.as<float>();
  rows.grad_log_probs = slopes_there.as<float>();
  const bool told_all = form != Form::none;  // else losses alone
  if (told_all) {
    rows.log_probs = log_probs_there.as<float>();
    rows.entropies = entropies.as<float>();
    rows.ratios = ratios.as<float>();
    rows.clipped = clipped.as<int32_t>();
  }

  REQUIRE(cuda::token_rows(loss, rows, nullptr) == cudaSuccess);
  for (int64_t row = 0; row < count; ++row) {
    const TargetResult expected = target_of(loss, student.scaled(row), targets[row]);
    require_close(losses.floats()[row], expected.loss, 1e-5 * (1 + std::abs(expected.loss)));
    gradient.require(row, expected.gradient, precision);
    if (!told_all) continue;
    require_close(log_probs_there.floats()[row], expected.log_prob, 1e-5 * (1 + std::abs(expected.log_prob)));
    require_close(entropies.floats()[row], expected.entropy, 1e-5 * (1 + expected.entropy));
    require_close(ratios.floats()[row], expected.ratio, 1e-4 * (1 + expected.ratio));
    REQUIRE(clipped.values<int32_t>()[row] == expected.clipped);
  }
}

}  // namespace

// Clusters of two, four and eight blocks take rows from 8192, 16384 and 32768 on.
TEST_CASE("cuda: token rows equal their definitions in float64") {
  if (!has_device()) return;
  int64_t cases = 0;
  for (const int64_t vocab : {1, 2, 3, 17, 1000, 4099, 8192, 16385, 40001}) {
    for (const float size : {0.1f, 3.0f, 30.0f}) {
      if (vocab > 4099 && size != 3) continue;
      CAPTURE(vocab);
      CAPTURE(size);
      const int64_t count = vocab > 4099 ? 2 : 3;
      // The tolerance of a float32 logarithm of the logits' magnitude, in ulps.
      const double precision = 1e-5 * (1 + size);
      // Twelve cases per row size; their inputs rotate from size to size.
      const auto turn = [&](int64_t among) { return (cases / 12 + cases) % among; };
      // Rows in which vectors are aligned, and rows in which they are not.
      const auto gap = [&] { return turn(2) == 0 ? 3 : (-vocab & 7) + 8; };
      const auto form = [&] { return static_cast<Form>(cases / 2 % 4); };
      RowLoss loss;
      loss.temperature = temperature;
      for (const Divergence& divergence : divergences) {
        CAPTURE(static_cast<int>(divergence.kind));
        CAPTURE(divergence.beta);
        loss.divergence = divergence;
        constexpr int64_t supports[] = {0, 1, 700};
        loss.top_k = supports[turn(3)];
        CAPTURE(loss.top_k);
        check_teacher(loss, Rows(count, vocab, gap(), 1, size), Rows(count, vocab, gap(), 2, size), form(),
                      precision);
        ++cases;
      }
      for (const auto token : {TokenLossKind::nll, TokenLossKind::log_prob, TokenLossKind::surrogate}) {
        CAPTURE(static_cast<int>(token));
        for (const double extra : {0.0, 1.0}) {
          loss.token = token;
          loss.z_loss = 1e-2 * extra, loss.entropy_coefficient = 0.1 * extra;
          loss.kl_coefficient = 0.05 * extra;
          check_target(loss, Rows(count, vocab, gap(), 1, size), form(), precision);
          ++cases;
        }
      }
    }
  }
}

TEST_CASE("cuda: tokens with a logit of -inf do not contribute to a row") {
  if (!has_device()) return;
  RowLoss loss;
  for (const Divergence& divergence : divergences) {
    CAPTURE(static_cast<int>(divergence.kind));
    loss.divergence = divergence;
    for (const int64_t k : {0, 2}) {  // with two, nothing is left for the bucket
      CAPTURE(k);
      loss.top_k = k;
      Rows student(1, 4, 0, 1, 1), teacher(1, 4, 0, 2, 1);
      for (Rows* rows : {&student, &teacher}) rows->at(0, 1) = rows->at(0, 3) = -INFINITY;
      check_teacher(loss, student, teacher, Form::f32, 1e-5);
    }
  }
}

TEST_CASE("cuda: token rows reject an empty vocabulary and accept zero rows") {
  if (!has_device()) return;
  cuda::TokenRows rows;
  CHECK(cuda::token_rows({}, rows, nullptr) == cudaErrorInvalidValue);
  rows.vocab = 1;
  CHECK(cuda::token_rows({}, rows, nullptr) == cudaSuccess);
  rows.count = -1;
  CHECK(cuda::token_rows({}, rows, nullptr) == cudaErrorInvalidValue);
}

#ifdef NLAC_EMULATED_ARCH
TEST_CASE("cuda: a launch of token rows that fails is reported once") {
  cuda::TokenRows rows;
  rows.count = rows.vocab = 1;
  emulated::capture_broken = true;
  CHECK(cuda::token_rows({}, rows, nullptr) == cudaErrorStreamCaptureInvalidated);
  emulated::capture_broken = false;
  CHECK(cudaGetLastError() == cudaSuccess);
}
#endif
