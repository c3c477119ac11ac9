// Checks, then rows of weight 0 are dropped, then chunk by chunk: logits, losses and their gradient in the
// logits' place (rows.h), and the products back (products.h).
#include "core/loss/linear_loss.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/loss/products.h"
#include "core/loss/rows.h"

namespace nlac {
namespace {

constexpr int64_t chunk_bytes_cpu = int64_t{64} << 20;
constexpr int64_t chunk_bytes_cuda = int64_t{512} << 20;

bool is_supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kDouble;
}

void check_head(const char* whose, const at::Tensor& hidden, const at::Tensor& weight) {
  NLAC_REQUIRE(hidden.defined() && weight.defined() && hidden.dim() == 2 && weight.dim() == 2, "ERR_SHAPE", whose,
               " hidden states and matrix must have two dimensions");
  NLAC_REQUIRE(hidden.size(1) == weight.size(1), "ERR_SHAPE", whose, " hidden states are ", hidden.size(1),
               " wide, the matrix ", weight.size(1));
  NLAC_REQUIRE(weight.size(0) >= 1, "ERR_SHAPE", whose, " matrix has no rows");
  NLAC_REQUIRE(is_supported(hidden.scalar_type()) && is_supported(weight.scalar_type()), "ERR_VALUE", whose,
               " hidden states and matrix must be float32, bfloat16 or float64");
  NLAC_REQUIRE(hidden.device() == weight.device(), "ERR_DEVICE", whose, " hidden states are on ", hidden.device(),
               ", the matrix on ", weight.device());
}

// What both losses have in common once their arguments are checked.
struct Problem {
  at::Tensor student_hidden, student_weight, teacher_hidden, teacher_weight, weights, targets, grad_weight;
  double temperature;
  Support support;
  bool with_gradient;
};

void check_common(const Problem& problem, at::ScalarType type) {
  const at::Tensor& hidden = problem.student_hidden;
  const int64_t rows = hidden.size(0), vocab = problem.student_weight.size(0);
  NLAC_REQUIRE(std::isfinite(problem.temperature) && problem.temperature > 0, "ERR_VALUE",
               "temperature must be finite and above 0, not ", problem.temperature);
  NLAC_REQUIRE(problem.weights.defined() && problem.weights.dim() == 1 && problem.weights.size(0) == rows,
               "ERR_SHAPE", "one weight a row is needed: ", rows);
  NLAC_REQUIRE(problem.weights.device() == hidden.device(), "ERR_DEVICE", "weights are on ",
               problem.weights.device(), ", hidden states on ", hidden.device());
  NLAC_REQUIRE(problem.weights.is_floating_point() && at::isfinite(problem.weights).all().item<bool>(), "ERR_VALUE",
               "weights must be finite floating-point numbers");
  if (problem.support.kind == SupportKind::sampled) {
    NLAC_REQUIRE(problem.targets.defined() && problem.targets.dim() == 1 && problem.targets.size(0) == rows,
                 "ERR_SHAPE", "one target a row is needed: ", rows);
    NLAC_REQUIRE(problem.targets.scalar_type() == at::kLong, "ERR_VALUE", "targets must be int64");
    NLAC_REQUIRE(problem.targets.device() == hidden.device(), "ERR_DEVICE", "targets are on ",
                 problem.targets.device(), ", hidden states on ", hidden.device());
    // A masked row's target is not read, so padding of any value may stand there.
    const at::Tensor bad =
        (problem.weights != 0).logical_and((problem.targets < 0).logical_or(problem.targets >= vocab));
    NLAC_REQUIRE(!bad.any().item<bool>(), "ERR_INDEX", "a target is outside the vocabulary of ", vocab);
  }
  if (problem.grad_weight.defined()) {
    NLAC_REQUIRE(problem.grad_weight.sizes() == problem.student_weight.sizes(), "ERR_SHAPE",
                 "the gradient of the matrix has shape ", problem.grad_weight.sizes(), ", ",
                 problem.student_weight.sizes(), " expected");
    NLAC_REQUIRE(problem.grad_weight.scalar_type() == type, "ERR_VALUE", "the gradient of the matrix must be ", type);
    NLAC_REQUIRE(problem.grad_weight.device() == hidden.device(), "ERR_DEVICE", "the gradient of the matrix is on ",
                 problem.grad_weight.device(), ", hidden states on ", hidden.device());
  }
}

LossResult run(const Problem& problem, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const at::Tensor& hidden = problem.student_hidden;
  const int64_t rows = hidden.size(0), vocab = problem.student_weight.size(0);
  const bool distilled = problem.support.kind != SupportKind::sampled;
  const auto options = hidden.options().dtype(type);

  LossResult result;
  result.losses = at::zeros({rows}, options);
  if (problem.with_gradient) result.grad_hidden = at::zeros_like(hidden, at::MemoryFormat::Contiguous);
  const at::Tensor kept = problem.weights.nonzero().squeeze(1);
  const int64_t count = kept.size(0);
  if (count == 0) return result;

  const int64_t chunk_rows = std::min(count, loss_chunk_rows(vocab, hidden.device()));
  const at::Tensor logits = at::empty({chunk_rows, vocab}, options);
  const at::Tensor teacher_logits = distilled ? at::empty({chunk_rows, vocab}, options) : at::Tensor();
  for (int64_t first = 0; first < count; first += chunk_rows) {
    const int64_t here = std::min(chunk_rows, count - first);
    const at::Tensor index = kept.narrow(0, first, here);
    const at::Tensor chunk_hidden = hidden.index_select(0, index);
    RowChunk chunk;
    chunk.student = logits.narrow(0, 0, here);
    product_logits(chunk_hidden, problem.student_weight, chunk.student);
    if (distilled) {
      chunk.teacher = teacher_logits.narrow(0, 0, here);
      product_logits(problem.teacher_hidden.index_select(0, index), problem.teacher_weight, chunk.teacher);
    } else {
      chunk.targets = problem.targets.index_select(0, index);
    }
    chunk.weights = problem.weights.index_select(0, index).to(type);
    chunk.losses = at::empty({here}, options);
    chunk.temperature = problem.temperature;
    chunk.support = problem.support;
    chunk.with_gradient = problem.with_gradient;
    token_rows_with_operators(chunk);
    result.losses.index_copy_(0, index, chunk.losses);
    if (!problem.with_gradient) continue;
    at::Tensor grad_hidden = at::empty({here, hidden.size(1)}, options);
    product_hidden(chunk.student, problem.student_weight, grad_hidden);
    result.grad_hidden.index_copy_(0, index, grad_hidden.to(hidden.scalar_type()));
    if (problem.grad_weight.defined()) product_weight(chunk.student, chunk_hidden, problem.grad_weight);
  }
  return result;
}

}  // namespace

int64_t loss_chunk_rows(int64_t vocab, at::Device device) {
  const int64_t bytes = device.is_cuda() ? chunk_bytes_cuda : chunk_bytes_cpu;
  return std::max<int64_t>(1, bytes / (std::max<int64_t>(1, vocab) * 4));
}

LossResult linear_token_kl(const at::Tensor& student_hidden, const at::Tensor& student_weight,
                           const at::Tensor& teacher_hidden, const at::Tensor& teacher_weight,
                           const at::Tensor& weights, double temperature, const Support& support,
                           const at::Tensor& targets, at::Tensor grad_weight, bool with_gradient) {
  const Problem problem{student_hidden, student_weight, teacher_hidden, teacher_weight, weights,
                        targets,        grad_weight,    temperature,    support,        with_gradient};
  check_head("the student's", student_hidden, student_weight);
  bool wide = student_hidden.scalar_type() == at::kDouble || student_weight.scalar_type() == at::kDouble;
  if (support.kind != SupportKind::sampled) {
    check_head("the teacher's", teacher_hidden, teacher_weight);
    NLAC_REQUIRE(teacher_hidden.size(0) == student_hidden.size(0), "ERR_SHAPE", "the student has ",
                 student_hidden.size(0), " rows, the teacher ", teacher_hidden.size(0));
    NLAC_REQUIRE(teacher_weight.size(0) == student_weight.size(0), "ERR_SHAPE", "the student's vocabulary has ",
                 student_weight.size(0), " tokens, the teacher's ", teacher_weight.size(0));
    NLAC_REQUIRE(teacher_hidden.device() == student_hidden.device(), "ERR_DEVICE", "the student is on ",
                 student_hidden.device(), ", the teacher on ", teacher_hidden.device());
    NLAC_REQUIRE(support.kind != SupportKind::top_k || support.k >= 1, "ERR_VALUE",
                 "k of a top-k support must be at least 1, not ", support.k);
    wide = wide || teacher_hidden.scalar_type() == at::kDouble || teacher_weight.scalar_type() == at::kDouble;
  }
  const auto type = wide ? at::kDouble : at::kFloat;
  check_common(problem, type);
  return run(problem, type);
}

LossResult linear_token_nll(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                            const at::Tensor& weights, double temperature, at::Tensor grad_weight,
                            bool with_gradient) {
  return linear_token_kl(hidden, weight, {}, {}, weights, temperature, {SupportKind::sampled, 0}, targets, grad_weight,
                         with_gradient);
}

}  // namespace nlac
