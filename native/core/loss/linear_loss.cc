// Checks the arguments and drops rows of weight 0. Then computes, chunk by chunk, logits, losses
// and their gradient (rows.h), and for a group of chunks (plan.h) the products of the backward pass
// (products.h, or mixed_products.h for bf16 on a supported CPU). If a product takes the gradient as
// bf16, it is rounded once from float32. All sums are float32.
#include "core/loss/linear_loss.h"

#include <ATen/core/grad_mode.h>
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/loss/logit_cap.h"
#include "core/loss/mixed_products.h"
#include "core/loss/plan.h"
#include "core/loss/products.h"
#include "core/loss/rows.h"
#include "core/loss/used_rows.h"

namespace nlac {
namespace {

constexpr int64_t workspace_cpu[] = {int64_t{56} << 20, int64_t{76} << 20};  // of one head, of two
// On an H100, 4096 × 3584 × 152064 with a teacher: 55 ms with 272 MiB, 38 ms with 1 GiB, 34 ms with 6 GiB.
constexpr int64_t workspace_cuda = int64_t{1} << 30;
constexpr double min_beta = 1e-6;

bool is_supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kDouble;
}

void check_head(const char* whose, const at::Tensor& hidden, const at::Tensor& head) {
  NLAC_REQUIRE(hidden.defined() && head.defined() && hidden.dim() == 2 && head.dim() == 2, "ERR_SHAPE", whose,
               " hidden states and matrix must have two dimensions");
  NLAC_REQUIRE(hidden.size(1) == head.size(1), "ERR_SHAPE", whose, " hidden states are ", hidden.size(1),
               " wide, the matrix ", head.size(1));
  NLAC_REQUIRE(head.size(0) >= 1, "ERR_SHAPE", whose, " matrix has no rows");
  NLAC_REQUIRE(is_supported(hidden.scalar_type()) && is_supported(head.scalar_type()), "ERR_VALUE", whose,
               " hidden states and matrix must be float32, bfloat16 or float64");
  NLAC_REQUIRE(hidden.device() == head.device(), "ERR_DEVICE", whose, " hidden states are on ",
               hidden.device(), ", the matrix on ", head.device());
}

// The common form of all losses, after their arguments are checked.
struct Problem {
  at::Tensor hidden, head;                  // the student's
  at::Tensor teacher_hidden, teacher_head;  // undefined for a loss on targets
  RowLoss loss;
  RowChunk rows;  // the per-row inputs, [rows] each
  bool with_entropies = false;
  LossOptions options;
  at::Tensor grad_head;

  bool has_teacher() const { return teacher_hidden.defined(); }
};

bool is_wide(const at::Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == at::kDouble; }

// The type of logits and losses.
at::ScalarType type_of(const Problem& problem) {
  const bool wide = is_wide(problem.hidden) || is_wide(problem.head) || is_wide(problem.teacher_hidden) ||
                    is_wide(problem.teacher_head);
  return wide ? at::kDouble : at::kFloat;
}

struct RowInput {
  const char* name;
  at::Tensor RowChunk::* tensor;
};
constexpr RowInput real_inputs[] = {
    {"row weights", &RowChunk::row_weights},
    {"old log probabilities", &RowChunk::old_log_probs},
    {"advantages", &RowChunk::advantages},
    {"reference log probabilities", &RowChunk::reference_log_probs},
    {"gradients of the log probabilities", &RowChunk::grad_log_probs},
};

void check_row_input(const char* name, const at::Tensor& input, const at::Tensor& hidden) {
  NLAC_REQUIRE(input.defined() && input.dim() == 1 && input.size(0) == hidden.size(0), "ERR_SHAPE", name,
               ": one a row is needed, ", hidden.size(0));
  NLAC_REQUIRE(input.device() == hidden.device(), "ERR_DEVICE", name, " are on ", input.device(),
               ", hidden states on ", hidden.device());
}

void check_options(const Problem& problem) {
  const RowLoss& loss = problem.loss;
  NLAC_REQUIRE(std::isfinite(loss.temperature) && loss.temperature > 0, "ERR_VALUE",
               "temperature must be finite and above 0, not ", loss.temperature);
  NLAC_REQUIRE(std::isfinite(loss.z_loss) && loss.z_loss >= 0, "ERR_VALUE",
               "the z-loss's coefficient must be finite and at least 0, not ", loss.z_loss);
  NLAC_REQUIRE(std::isfinite(loss.entropy_coefficient), "ERR_VALUE",
               "the entropy's coefficient must be finite, not ", loss.entropy_coefficient);
  NLAC_REQUIRE(std::isfinite(problem.options.logit_cap) && problem.options.logit_cap >= 0, "ERR_VALUE",
               "the cap of logits must be finite and at least 0, not ", problem.options.logit_cap);
  NLAC_REQUIRE(problem.options.workspace_bytes >= 0, "ERR_VALUE", "workspace bytes must be at least 0, not ",
               problem.options.workspace_bytes);
  NLAC_REQUIRE(problem.options.detail <= problem.head.size(0), "ERR_VALUE", "detail must be at most ",
               problem.head.size(0), ", the vocabulary, not ", problem.options.detail);
  if (!problem.grad_head.defined()) return;
  const at::Tensor& gradient = problem.grad_head;
  NLAC_REQUIRE(gradient.sizes() == problem.head.sizes(), "ERR_SHAPE", "the gradient of the matrix has shape ",
               gradient.sizes(), ", ", problem.head.sizes(), " expected");
  NLAC_REQUIRE(gradient.is_contiguous(), "ERR_SHAPE", "the gradient of the matrix is not contiguous");
  NLAC_REQUIRE(gradient.scalar_type() == type_of(problem), "ERR_VALUE", "the gradient of the matrix must be ",
               type_of(problem));
  NLAC_REQUIRE(gradient.device() == problem.hidden.device(), "ERR_DEVICE",
               "the gradient of the matrix is on ", gradient.device(), ", hidden states on ",
               problem.hidden.device());
  for (const at::Tensor& input : {problem.hidden, problem.head, problem.teacher_hidden, problem.teacher_head})
    NLAC_REQUIRE(!input.defined() || !gradient.is_alias_of(input), "ERR_VALUE",
                 "the gradient of the matrix is in the memory of an input");
}

// Checks the per-row inputs and returns the number of rows of nonzero weight. Other inputs of rows
// of weight 0 are ignored, so they may be any padding. Waits for the device once.
int64_t count_used(const Problem& problem) {
  const RowChunk& rows = problem.rows;
  const at::Tensor used = rows.row_weights != 0;
  std::vector<at::Tensor> facts{used.count_nonzero()};
  std::vector<const char*> names;
  for (const auto& [name, tensor] : real_inputs) {
    if (!(rows.*tensor).defined()) continue;
    facts.push_back(at::isfinite(rows.*tensor).logical_not().logical_and(used).any().to(at::kLong));
    names.push_back(name);
  }
  if (rows.targets.defined()) {
    const at::Tensor outside = (rows.targets < 0).logical_or(rows.targets >= problem.head.size(0));
    facts.push_back(outside.logical_and(used).any().to(at::kLong));
  }
  const at::Tensor told = at::stack(facts).cpu();
  const int64_t* fact = told.const_data_ptr<int64_t>();
  for (size_t i = 0; i < names.size(); ++i) {
    NLAC_REQUIRE(fact[i + 1] == 0, "ERR_VALUE", names[i], " must be finite");
  }
  if (rows.targets.defined()) {
    NLAC_REQUIRE(fact[names.size() + 1] == 0, "ERR_INDEX", "a target is outside the vocabulary of ",
                 problem.head.size(0));
  }
  return fact[0];
}

void check_row_inputs(const Problem& problem) {
  for (const auto& [name, tensor] : real_inputs) {
    const at::Tensor& input = problem.rows.*tensor;
    if (!input.defined() && tensor != &RowChunk::row_weights) continue;
    check_row_input(name, input, problem.hidden);
    NLAC_REQUIRE(input.is_floating_point(), "ERR_VALUE", name, " must be floating-point numbers");
  }
  if (problem.has_teacher() && problem.options.detail < 0) return;
  check_row_input("targets", problem.rows.targets, problem.hidden);
  NLAC_REQUIRE(problem.rows.targets.scalar_type() == at::kLong, "ERR_VALUE", "targets must be int64");
}

// bf16 matrices, float32 results: by the products of mixed_products.h.
bool is_mixed(const at::Tensor& hidden, const at::Tensor& head, at::ScalarType type) {
  return hidden.is_cpu() && type == at::kFloat && hidden.scalar_type() == at::kBFloat16 &&
         head.scalar_type() == at::kBFloat16 && hidden.size(1) > 0 && mixed::available();
}

// The products of the student or the teacher: the mixed ones if supported.
class Side {
 public:
  Side(const at::Tensor& hidden, const at::Tensor& head, at::ScalarType type)
      : hidden_(hidden),
        mixed_(is_mixed(hidden, head, type)),
        head_(mixed_ ? head.contiguous() : head),
        type_(type),
        vocab_(head.size(0)),
        width_(head.size(1)) {}

  // Selects the rows for the calls below.
  void take(const UsedRows& used, int64_t first, int64_t rows) {
    group_ = used.take(hidden_, first, rows);
    if (!mixed_) return;
    const at::Tensor padded = at::zeros({mixed::padded_rows(rows), (width_ + 1) / 2 * 2}, group_.options());
    padded.narrow(0, 0, rows).narrow(1, 0, width_).copy_(group_);
    group_ = padded;
  }

  // `to` [rows, vocab] ← the logits of `rows` rows from `first` on. Memory after `to` has room for
  // mixed::padded_rows.
  void logits(int64_t first, const at::Tensor& to) const {
    const int64_t rows = to.size(0);
    if (!mixed_) return product_logits(group_.narrow(0, first, rows), head_, to);
    mixed::logits(group_.const_data_ptr<at::BFloat16>() + first * group_.size(1), group_.size(1),
                  mixed::padded_rows(rows), head_.const_data_ptr<at::BFloat16>(), vocab_, width_,
                  to.data_ptr<float>(), to.stride(0));
  }

  // Given the gradient at all rows' logits, [rows, vocab] (if bf16, with room after it as above),
  // returns the gradient at the hidden states, [rows, width], and adds the head's to `grad_head`
  // (if defined).
  at::Tensor backward(const at::Tensor& gradient, const at::Tensor& grad_head) const {
    const int64_t rows = gradient.size(0);
    const auto options = hidden_.options().dtype(type_);
    if (!mixed_) {
      const at::Tensor grad_hidden = at::empty({rows, width_}, options);
      product_hidden(gradient, head_, grad_hidden);
      if (grad_head.defined()) product_weight(gradient, group_, grad_head);
      return grad_hidden;
    }
    auto* const values = gradient.data_ptr<at::BFloat16>();
    const int64_t padded = group_.size(0), stride = gradient.stride(0);
    for (int64_t r = 0; r < padded; ++r) {
      // Padding rows and the column after an odd vocabulary must not affect sums.
      if (r >= rows) std::fill_n(values + r * stride, vocab_, at::BFloat16(0.0f));
      values[r * stride + vocab_] = 0.0f;
    }
    const at::Tensor grad_hidden = at::empty({padded, width_}, options);
    mixed::hidden_gradient(values, stride, padded, head_.const_data_ptr<at::BFloat16>(), vocab_, width_,
                           grad_hidden.data_ptr<float>());
    if (grad_head.defined()) {
      mixed::head_gradient(values, stride, padded, group_.const_data_ptr<at::BFloat16>(), group_.size(1),
                           vocab_, width_, grad_head.data_ptr<float>());
    }
    return grad_hidden.narrow(0, 0, rows);
  }

 private:
  at::Tensor hidden_;
  bool mixed_;
  at::Tensor head_;
  at::ScalarType type_;
  int64_t vocab_, width_;
  at::Tensor group_;  // hidden states of the chosen rows, padded for the mixed products
};

// The memory of plan.h.
class Workspace {
 public:
  // `padded`: in place too, a chunk is followed by room up to mixed::padded_rows.
  Workspace(const LossPlan& plan, int heads, int64_t vocab, int64_t stride, bool padded,
            at::TensorOptions logits)
      : plan_(plan), heads_(heads), vocab_(vocab), stride_(stride) {
    memory_ = plan.packed
                  ? at::empty({plan.capacity * stride}, logits.dtype(at::kBFloat16)).view(at::kFloat)
                  : at::empty({(padded ? mixed::padded_rows(plan.capacity) : plan.capacity) * heads * stride},
                              logits);
  }

  // [rows, vocab], for the chunk at hand.
  at::Tensor logits(int head, int64_t rows) const {
    const int64_t start = plan_.packed ? plan_logits(plan_, heads_, rows) * stride_ / 2 : 0;
    return memory_.as_strided({rows, vocab_}, {heads_ * stride_, 1}, start + head * stride_);
  }
  // packed: [rows, vocab] bf16 after `held` others.
  at::Tensor gradient(int64_t held, int64_t rows) const {
    return memory_.view(at::kBFloat16).as_strided({rows, vocab_}, {stride_, 1}, held * stride_);
  }

 private:
  const LossPlan& plan_;
  int heads_;
  int64_t vocab_, stride_;
  at::Tensor memory_;
};

LossResult run(const Problem& problem) {
  const at::NoGradGuard no_grad;
  const at::Tensor& hidden = problem.hidden;
  const at::ScalarType type = type_of(problem);
  const bool with_gradient = problem.options.with_gradient;
  const int64_t vocab = problem.head.size(0);
  const int heads = problem.has_teacher() ? 2 : 1;
  const UsedRows used(problem.rows.row_weights, count_used(problem));
  const int64_t count = used.count();

  // Per-row tensors of the rows of nonzero weight.
  RowChunk rows;
  const auto options = hidden.options().dtype(type);
  for (const auto& [name, tensor] : real_inputs) {
    if ((problem.rows.*tensor).defined())
      rows.*tensor = used.take(problem.rows.*tensor, 0, count).to(type).contiguous();
  }
  rows.losses = at::empty({count}, options);
  if (!problem.has_teacher()) {
    rows.targets = used.take(problem.rows.targets, 0, count).contiguous();
    rows.log_probs = at::empty({count}, options);
    if (problem.with_entropies) rows.entropies = at::empty({count}, options);
    if (problem.loss.token == TokenLossKind::surrogate) {
      rows.ratios = at::empty({count}, options);
      rows.clipped = at::empty({count}, options.dtype(at::kInt));
    }
  }
  const bool with_detail = problem.options.detail >= 0;
  RowDetail detail, teacher_detail;
  at::Tensor detail_targets;
  if (with_detail) {
    detail = make_row_detail(count, problem.options.detail, options);
    if (problem.has_teacher()) teacher_detail = make_row_detail(count, problem.options.detail, options);
    detail_targets = used.take(problem.rows.targets, 0, count).contiguous();
  }
  LossResult result;
  if (with_gradient) {
    const auto made = problem.options.real_gradient ? options : hidden.options();
    result.grad_hidden =
        count < hidden.size(0) ? at::zeros(hidden.sizes(), made) : at::empty(hidden.sizes(), made);
  }

  if (count > 0) {
    Side student(hidden, problem.head, type);
    std::optional<Side> teacher;
    if (problem.has_teacher()) teacher.emplace(problem.teacher_hidden, problem.teacher_head, type);
    const bool bf16 = hidden.scalar_type() == at::kBFloat16 && problem.head.scalar_type() == at::kBFloat16;
    const bool packed =
        type == at::kFloat && (hidden.is_cuda() ? bf16 : is_mixed(hidden, problem.head, type));
    const int64_t stride = hidden.is_cpu() ? mixed::logit_stride(vocab) : (vocab + 63) / 64 * 64;
    const int64_t bytes = problem.options.workspace_bytes > 0 ? problem.options.workspace_bytes
                                                              : default_workspace(hidden.device(), heads);
    // The slopes of capped logits are as large as the student's logits.
    const double cap = problem.options.logit_cap;
    const bool sloped = cap > 0 && with_gradient;
    const LossPlan plan = plan_loss(count, heads, stride * static_cast<int64_t>(at::elementSize(type)),
                                    packed, with_gradient, sloped ? bytes / 2 : bytes);
    const bool padded = problem.has_teacher() && is_mixed(problem.teacher_hidden, problem.teacher_head, type);
    const Workspace workspace(plan, heads, vocab, stride, padded, options);

    for (int64_t done = 0; done < count;) {
      const int64_t total = std::min(plan.group_rows(), count - done);
      student.take(used, done, total);
      if (teacher) teacher->take(used, done, total);
      int64_t held = 0;
      for (size_t i = 0; held < total; ++i) {
        const int64_t chunk_rows = std::min(plan.chunks[i], total - held);
        RowChunk chunk = narrow(rows, done + held, chunk_rows);
        chunk.student = workspace.logits(0, chunk_rows);
        student.logits(held, chunk.student);
        const at::Tensor slopes = sloped ? at::empty({chunk_rows, vocab}, options) : at::Tensor();
        cap_logits(chunk.student, cap, slopes);
        if (teacher) {
          chunk.teacher = workspace.logits(1, chunk_rows);
          teacher->logits(held, chunk.teacher);
          cap_logits(chunk.teacher, cap);
        }
        if (with_detail) {  // the rows overwrite their logits
          const int64_t first = done + held;
          const at::Tensor targets = detail_targets.narrow(0, first, chunk_rows);
          const double temperature = problem.loss.temperature;
          row_detail(chunk.student, temperature, targets, narrow(detail, first, chunk_rows));
          if (teacher)
            row_detail(chunk.teacher, temperature, targets, narrow(teacher_detail, first, chunk_rows));
        }
        if (with_gradient) chunk.gradient = packed ? workspace.gradient(held, chunk_rows) : chunk.student;
        for (int64_t first = 0; first < chunk_rows;) {
          const int64_t stretch =
              packed && with_gradient ? plan_stretch(plan, heads, chunk_rows, held, first) : chunk_rows;
          token_rows(problem.loss, narrow(chunk, first, stretch));
          first += stretch;
        }
        if (sloped) chunk.gradient.mul_(slopes);
        held += chunk_rows;
      }
      if (with_gradient) {
        const at::Tensor gradient = packed ? workspace.gradient(0, total) : workspace.logits(0, total);
        used.put(result.grad_hidden, done, student.backward(gradient, problem.grad_head));
      }
      done += total;
    }
  }
  result.losses = used.spread(rows.losses);
  result.log_probs = used.spread(rows.log_probs);
  result.entropies = used.spread(rows.entropies);
  result.ratios = used.spread(rows.ratios);
  result.clipped = used.spread(rows.clipped);
  result.detail = used.spread(detail);
  result.teacher_detail = used.spread(teacher_detail);
  return result;
}

LossResult run_on_targets(Problem problem, const TokenOptions& token) {
  check_head("the", problem.hidden, problem.head);
  problem.loss.temperature = problem.options.temperature;
  problem.loss.z_loss = token.z_loss;
  problem.loss.entropy_coefficient = token.entropy_coefficient;
  problem.with_entropies = token.with_entropies;
  check_options(problem);
  check_row_inputs(problem);
  return run(problem);
}

}  // namespace

int64_t default_workspace(at::Device device, int heads) {
  return device.is_cuda() ? workspace_cuda : workspace_cpu[heads - 1];
}

void check_divergence(const Divergence& divergence, const Support& support) {
  const bool jensen_shannon = divergence.kind == DivergenceKind::jensen_shannon;
  NLAC_REQUIRE(!jensen_shannon || (divergence.beta >= min_beta && divergence.beta <= 1 - min_beta),
               "ERR_VALUE", "beta of the Jensen-Shannon divergence must be from ", min_beta, " to 1 - ",
               min_beta, ", not ", divergence.beta,
               "; at 0 and 1 the divergence itself is 0: take the forward or the reverse KL");
  NLAC_REQUIRE(support.kind != SupportKind::sampled || !gradient_by_score(divergence.kind), "ERR_VALUE",
               "the sampled token alone gives a cross entropy; the ",
               jensen_shannon ? "Jensen-Shannon divergence" : "reverse KL", " needs a full or top-k support");
  NLAC_REQUIRE(support.kind != SupportKind::top_k || support.k >= 1, "ERR_VALUE",
               "k of a top-k support must be at least 1, not ", support.k);
}

LossResult linear_token_kl(const at::Tensor& student_hidden, const at::Tensor& student_head,
                           const at::Tensor& teacher_hidden, const at::Tensor& teacher_head,
                           const at::Tensor& row_weights, const at::Tensor& targets,
                           const Divergence& divergence, const Support& support, const LossOptions& options,
                           const at::Tensor& grad_head) {
  check_divergence(divergence, support);
  if (support.kind == SupportKind::sampled) {
    LossResult result =
        linear_token_nll(student_hidden, student_head, targets, row_weights, {}, options, grad_head);
    result.log_probs.reset();
    if (options.detail < 0) return result;
    LossOptions forward = options;
    forward.with_gradient = false;
    result.teacher_detail =
        linear_token_nll(teacher_hidden, teacher_head, targets, row_weights, {}, forward, {}).detail;
    return result;
  }
  check_head("the student's", student_hidden, student_head);
  check_head("the teacher's", teacher_hidden, teacher_head);
  NLAC_REQUIRE(teacher_hidden.size(0) == student_hidden.size(0), "ERR_SHAPE", "the student has ",
               student_hidden.size(0), " rows, the teacher ", teacher_hidden.size(0));
  NLAC_REQUIRE(teacher_head.size(0) == student_head.size(0), "ERR_SHAPE", "the student's vocabulary has ",
               student_head.size(0), " tokens, the teacher's ", teacher_head.size(0));
  NLAC_REQUIRE(teacher_hidden.device() == student_hidden.device(), "ERR_DEVICE", "the student is on ",
               student_hidden.device(), ", the teacher on ", teacher_hidden.device());
  Problem problem{student_hidden, student_head, teacher_hidden, teacher_head, {}, {},
                  false,          options,      grad_head};
  problem.loss.temperature = options.temperature;
  problem.loss.divergence = divergence;
  if (support.kind == SupportKind::top_k) problem.loss.top_k = support.k;
  problem.rows.row_weights = row_weights;
  if (options.detail >= 0) problem.rows.targets = targets;
  check_options(problem);
  check_row_inputs(problem);
  return run(problem);
}

LossResult linear_token_nll(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                            const at::Tensor& row_weights, const TokenOptions& token,
                            const LossOptions& options, const at::Tensor& grad_head) {
  Problem problem{hidden, head, {}, {}, {}, {}, false, options, grad_head};
  problem.rows.row_weights = row_weights;
  problem.rows.targets = targets;
  return run_on_targets(problem, token);
}

LossResult linear_token_log_probs(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                                  const at::Tensor& row_weights, const at::Tensor& grad_log_probs,
                                  bool with_entropies, const LossOptions& options,
                                  const at::Tensor& grad_head) {
  Problem problem{hidden, head, {}, {}, {}, {}, false, options, grad_head};
  problem.loss.token = TokenLossKind::log_prob;
  problem.rows.row_weights = row_weights;
  problem.rows.targets = targets;
  problem.rows.grad_log_probs = grad_log_probs;
  problem.options.with_gradient = options.with_gradient && grad_log_probs.defined();
  LossResult result = run_on_targets(problem, {0, 0, with_entropies});
  result.losses.reset();
  return result;
}

void check_surrogate(const SurrogateOptions& surrogate) {
  NLAC_REQUIRE(surrogate.clip_low >= 0 && surrogate.clip_low <= 1, "ERR_VALUE",
               "the lower clip range must be from 0 to 1, not ", surrogate.clip_low);
  NLAC_REQUIRE(surrogate.clip_high >= 0 && std::isfinite(surrogate.clip_high), "ERR_VALUE",
               "the upper clip range must be finite and at least 0, not ", surrogate.clip_high);
  NLAC_REQUIRE(surrogate.kl_coefficient >= 0 && std::isfinite(surrogate.kl_coefficient), "ERR_VALUE",
               "the KL's coefficient must be finite and at least 0, not ", surrogate.kl_coefficient);
}

LossResult linear_token_surrogate(const at::Tensor& hidden, const at::Tensor& head,
                                  const SurrogateInputs& inputs, const at::Tensor& row_weights,
                                  const SurrogateOptions& surrogate, const TokenOptions& token,
                                  const LossOptions& options, const at::Tensor& grad_head) {
  check_surrogate(surrogate);
  check_head("the", hidden, head);
  check_row_input("old log probabilities", inputs.old_log_probs, hidden);
  check_row_input("advantages", inputs.advantages, hidden);
  Problem problem{hidden, head, {}, {}, {}, {}, false, options, grad_head};
  problem.loss.token = TokenLossKind::surrogate;
  problem.loss.clip_low = surrogate.clip_low;
  problem.loss.clip_high = surrogate.clip_high;
  problem.loss.kl_coefficient = surrogate.kl_coefficient;
  problem.rows.row_weights = row_weights;
  problem.rows.targets = inputs.targets;
  problem.rows.old_log_probs = inputs.old_log_probs;
  problem.rows.advantages = inputs.advantages;
  if (surrogate.kl_coefficient != 0) {
    check_row_input("reference log probabilities", inputs.reference_log_probs, hidden);
    problem.rows.reference_log_probs = inputs.reference_log_probs;
  }
  return run_on_targets(problem, token);
}

}  // namespace nlac
