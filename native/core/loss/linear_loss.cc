// Checks, then rows of weight 0 are dropped, then chunk by chunk: logits, losses and their gradient in the
// logits' place (rows.h), and the products back (products.h, or mixed_products.h for bf16 on a CPU that can).
// Where a product takes the gradient as bf16, it is rounded once from float32; every sum stays float32.
#include "core/loss/linear_loss.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/loss/mixed_products.h"
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
  NLAC_REQUIRE(hidden.defined() && weight.defined() && hidden.dim() == 2 && weight.dim() == 2, "ERR_SHAPE",
               whose, " hidden states and matrix must have two dimensions");
  NLAC_REQUIRE(hidden.size(1) == weight.size(1), "ERR_SHAPE", whose, " hidden states are ", hidden.size(1),
               " wide, the matrix ", weight.size(1));
  NLAC_REQUIRE(weight.size(0) >= 1, "ERR_SHAPE", whose, " matrix has no rows");
  NLAC_REQUIRE(is_supported(hidden.scalar_type()) && is_supported(weight.scalar_type()), "ERR_VALUE", whose,
               " hidden states and matrix must be float32, bfloat16 or float64");
  NLAC_REQUIRE(hidden.device() == weight.device(), "ERR_DEVICE", whose, " hidden states are on ",
               hidden.device(), ", the matrix on ", weight.device());
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
  NLAC_REQUIRE(problem.weights.is_floating_point() && at::isfinite(problem.weights).all().item<bool>(),
               "ERR_VALUE", "weights must be finite floating-point numbers");
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
    NLAC_REQUIRE(problem.grad_weight.is_contiguous(), "ERR_SHAPE",
                 "the gradient of the matrix is not contiguous");
    NLAC_REQUIRE(problem.grad_weight.scalar_type() == type, "ERR_VALUE",
                 "the gradient of the matrix must be ", type);
    NLAC_REQUIRE(problem.grad_weight.device() == hidden.device(), "ERR_DEVICE",
                 "the gradient of the matrix is on ", problem.grad_weight.device(), ", hidden states on ",
                 hidden.device());
  }
}

// One side's products, chunk by chunk: the fast mixed ones where hidden states, matrix and processor allow.
class Head {
 public:
  Head(const at::Tensor& hidden, const at::Tensor& weight, at::ScalarType type, int64_t chunk_rows)
      : hidden_(hidden),
        mixed_(hidden.is_cpu() && type == at::kFloat && hidden.scalar_type() == at::kBFloat16 &&
               weight.scalar_type() == at::kBFloat16 && hidden.size(1) > 0 && mixed::available()),
        weight_(mixed_ ? weight.contiguous() : weight),
        vocab_(weight.size(0)),
        width_(weight.size(1)) {
    const bool cpu = hidden.is_cpu();
    stride_ = cpu ? mixed::logit_stride(vocab_) : vocab_;
    logits_ =
        at::empty({cpu ? mixed::padded_rows(chunk_rows) : chunk_rows, stride_}, hidden.options().dtype(type));
  }

  bool is_mixed() const { return mixed_; }

  // [rows, vocab] logits of the rows in `index`; valid until the next call.
  at::Tensor logits(const at::Tensor& index) {
    rows_ = index.size(0);
    const at::Tensor result = logits_.narrow(0, 0, rows_).narrow(1, 0, vocab_);
    chunk_ = hidden_.index_select(0, index);
    if (!mixed_) {
      product_logits(chunk_, weight_, result);
      return result;
    }
    const at::Tensor padded = at::zeros({mixed::padded_rows(rows_), (width_ + 1) / 2 * 2}, chunk_.options());
    padded.narrow(0, 0, rows_).narrow(1, 0, width_).copy_(chunk_);
    chunk_ = padded;
    mixed::logits(chunk_.const_data_ptr<at::BFloat16>(), chunk_.size(1), chunk_.size(0),
                  weight_.const_data_ptr<at::BFloat16>(), vocab_, width_, logits_.data_ptr<float>(), stride_);
    return result;
  }

  // Takes what token_rows made of the last logits. Returns the gradient at that chunk's hidden states and
  // adds the matrix's into `grad_weight` (if defined).
  at::Tensor backward(const at::Tensor& grad_weight) {
    if (!mixed_) {
      const at::Tensor gradient = logits_.narrow(0, 0, rows_).narrow(1, 0, vocab_);
      const at::Tensor grad_hidden = at::empty({rows_, width_}, logits_.options());
      product_hidden(gradient, weight_, grad_hidden);
      if (grad_weight.defined()) product_weight(gradient, chunk_, grad_weight);
      return grad_hidden;
    }
    auto* const gradient = reinterpret_cast<at::BFloat16*>(logits_.data_ptr<float>());
    const int64_t rows = chunk_.size(0), stride = 2 * stride_;
    for (int64_t r = 0; r < rows; ++r) {
      // What pads the rows and an odd vocabulary must not disturb sums.
      if (r >= rows_) std::fill_n(gradient + r * stride, vocab_, at::BFloat16(0.0f));
      gradient[r * stride + vocab_] = 0.0f;
    }
    const at::Tensor grad_hidden = at::empty({rows, width_}, logits_.options());
    mixed::hidden_gradient(gradient, stride, rows, weight_.const_data_ptr<at::BFloat16>(), vocab_, width_,
                           grad_hidden.data_ptr<float>());
    if (grad_weight.defined()) {
      mixed::weight_gradient(gradient, stride, rows, chunk_.const_data_ptr<at::BFloat16>(), chunk_.size(1),
                             vocab_, width_, grad_weight.data_ptr<float>());
    }
    return grad_hidden.narrow(0, 0, rows_);
  }

 private:
  at::Tensor hidden_;
  bool mixed_;
  at::Tensor weight_;
  int64_t vocab_, width_, stride_ = 0, rows_ = 0;
  at::Tensor logits_;  // [rows, stride_]: room for a chunk
  at::Tensor chunk_;   // hidden states of the last chunk, padded for the mixed products
};

LossResult run(const Problem& problem, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const at::Tensor& hidden = problem.student_hidden;
  const int64_t rows = hidden.size(0), vocab = problem.student_weight.size(0);
  const auto options = hidden.options().dtype(type);

  LossResult result;
  result.losses = at::zeros({rows}, options);
  if (problem.with_gradient) result.grad_hidden = at::zeros_like(hidden, at::MemoryFormat::Contiguous);
  const at::Tensor kept = problem.weights.nonzero().squeeze(1);
  const int64_t count = kept.size(0);
  if (count == 0) return result;

  const int64_t chunk_rows = std::min(count, loss_chunk_rows(vocab, hidden.device()));
  Head student(hidden, problem.student_weight, type, chunk_rows);
  std::optional<Head> teacher;
  if (problem.support.kind != SupportKind::sampled) {
    teacher.emplace(problem.teacher_hidden, problem.teacher_weight, type, chunk_rows);
  }
  for (int64_t first = 0; first < count; first += chunk_rows) {
    const at::Tensor index = kept.narrow(0, first, std::min(chunk_rows, count - first));
    RowChunk chunk;
    chunk.student = student.logits(index);
    if (teacher) {
      chunk.teacher = teacher->logits(index);
    } else {
      chunk.targets = problem.targets.index_select(0, index);
    }
    chunk.weights = problem.weights.index_select(0, index).to(type);
    chunk.losses = at::empty({index.size(0)}, options);
    chunk.temperature = problem.temperature;
    chunk.support = problem.support;
    chunk.with_gradient = problem.with_gradient;
    chunk.rounded = student.is_mixed();
    token_rows(chunk);
    result.losses.index_copy_(0, index, chunk.losses);
    if (!problem.with_gradient) continue;
    const at::Tensor grad_hidden = student.backward(problem.grad_weight);
    result.grad_hidden.index_copy_(0, index, grad_hidden.to(hidden.scalar_type()));
  }
  return result;
}

}  // namespace

int64_t loss_chunk_rows(int64_t vocab, at::Device device) {
  const int64_t bytes = device.is_cuda() ? chunk_bytes_cuda : chunk_bytes_cpu;
  const int64_t rows = std::max<int64_t>(1, bytes / (std::max<int64_t>(1, vocab) * 4));
  // Whole blocks of the products' kernels.
  return rows < mixed::row_multiple ? rows : rows / mixed::row_multiple * mixed::row_multiple;
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
    NLAC_REQUIRE(teacher_weight.size(0) == student_weight.size(0), "ERR_SHAPE",
                 "the student's vocabulary has ", student_weight.size(0), " tokens, the teacher's ",
                 teacher_weight.size(0));
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
  return linear_token_kl(hidden, weight, {}, {}, weights, temperature, {SupportKind::sampled, 0}, targets,
                         grad_weight, with_gradient);
}

}  // namespace nlac
