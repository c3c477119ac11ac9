// Token losses with the vocabulary matrix fused in: logits exist only a chunk of rows at a time
// (plan.h).
//
//   token KL         a divergence of the student's distribution from the teacher's; fuses both heads
//   token NLL        -log q(target), with z-loss and entropy
//   token log probs  log q(target), with its gradient given from outside
//   token surrogate  the clipped surrogate of PPO on targets, with GRPO's estimate of a KL
//
// q = softmax(logits / temperature), and p likewise for the teacher. Losses are in nats, without a
// T² factor; row_loss.h has the formulas. All return d(Σ row_weights·losses)/d(student hidden) and
// add d/d(student head) to a float32 buffer. Logits and log-sum-exp are float32. Rows of weight 0
// are left out of every product and all their results are 0, whatever their other inputs are.
// Results are finite for logits of ±1e4, except a surrogate whose ratio exceeds float32. float64
// inputs are computed in float64 by libtorch's operators, which use several times the bound on
// memory; results are then float64. With bf16 inputs the gradient at the logits is rounded to bf16
// once, for the products of the backward pass.
//
// Hidden states and heads are not checked for NaN and infinity: these make the losses of their rows
// and the head's gradient non-finite. Per-row inputs are checked. A call waits for the device once.
//
// Thread rule: any one thread at a time per buffer. On CUDA: asynchronous on the current stream,
// except for that wait.
//
// All throw ERR_SHAPE, ERR_DEVICE, ERR_INDEX (a target outside the vocabulary in a row of nonzero
// weight) and ERR_VALUE (an option out of range, a non-finite per-row input, an unsupported type).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/loss/row_detail.h"
#include "core/loss/row_loss.h"

namespace nlac {

struct LossOptions {
  double temperature = 1;  // finite, above 0
  bool with_gradient = true;
  // Bytes for logits and their gradient. More is faster if the head's gradient is large. 0:
  // default_workspace(). A call also allocates tensors of the hidden states' size, and always room
  // for 32 rows of logits.
  int64_t workspace_bytes = 0;
  bool real_gradient = false;  // grad_hidden in "real" (below), for a caller that has something to add to it
  // From 0 on, a call also gives the targets' log probabilities and the `detail` most probable
  // tokens (row_detail.h), at most the vocabulary. Losses and gradients have the same bits.
  int64_t detail = -1;
  // Above 0: logits are capped (logit_cap.h), the teacher's too. A gradient in bf16 is then rounded twice.
  double logit_cap = 0;
};

// Options of losses on targets.
struct TokenOptions {
  double z_loss = 0;               // ≥ 0: adds z_loss·(log Σ exp(logits / temperature))²
  double entropy_coefficient = 0;  // subtracts entropy_coefficient·H(q)
  bool with_entropies = false;     // also gives H(q)
};

// Results by row; undefined if not requested. "real" is f32, or f64 for f64 inputs.
struct LossResult {
  at::Tensor losses;  // [rows] real, not multiplied by the weights; undefined for log probs
  at::Tensor
      grad_hidden;       // [rows, hidden] in the (student) hidden's type, or real; undefined without gradient
  at::Tensor log_probs;  // [rows] real: log q(target), of losses on targets
  at::Tensor entropies;  // [rows] real: H(q), with `with_entropies`
  at::Tensor ratios;     // [rows] real: q(target) / its old value, of the surrogate
  at::Tensor clipped;    // [rows] i32: 1 where the surrogate's upper bound is active, -1 where the lower is
  RowDetail detail, teacher_detail;  // with `detail`; the teacher's of a divergence
};

// Throws ERR_VALUE for beta of jensen_shannon outside [1e-6, 1 - 1e-6], for k < 1, and for
// SupportKind::sampled with anything but a cross entropy. As beta goes to 0, the divergence over
// beta goes to forward_kl; as it goes to 1, the divergence over 1 - beta goes to reverse_kl.
void check_divergence(const Divergence& divergence, const Support& support);

// Of student_hidden [rows, H], student_head [V, H], teacher_hidden [rows, H'], teacher_head [V, H']
// (f32, bf16 or f64; student's and teacher's types may differ), row_weights [rows] real. Every
// divergence takes the supports full and top_k. SupportKind::sampled is the cross entropy on
// `targets` [rows] i64, which only it needs, unless there is `detail`; the teacher is then used for
// its detail alone. `grad_head`: [V, H] f32 (f64 for f64 inputs), contiguous, added into;
// undefined: left out.
LossResult linear_token_kl(const at::Tensor& student_hidden, const at::Tensor& student_head,
                           const at::Tensor& teacher_hidden, const at::Tensor& teacher_head,
                           const at::Tensor& row_weights, const at::Tensor& targets,
                           const Divergence& divergence, const Support& support, const LossOptions& options,
                           const at::Tensor& grad_head);

// hidden [rows, H], head [V, H], targets [rows] i64 in [0, V), row_weights [rows] real.
LossResult linear_token_nll(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                            const at::Tensor& row_weights, const TokenOptions& token,
                            const LossOptions& options, const at::Tensor& grad_head);

// `grad_log_probs` [rows] real is d loss / d log probability, given by the caller. The gradients
// are those of Σ row_weights·grad_log_probs·log_probs. Undefined: no gradient.
LossResult linear_token_log_probs(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                                  const at::Tensor& row_weights, const at::Tensor& grad_log_probs,
                                  bool with_entropies, const LossOptions& options,
                                  const at::Tensor& grad_head);

struct SurrogateInputs {
  at::Tensor targets;              // [rows] i64 in [0, V)
  at::Tensor old_log_probs;        // [rows] real
  at::Tensor advantages;           // [rows] real
  at::Tensor reference_log_probs;  // [rows] real; needed where kl_coefficient is not 0
};

struct SurrogateOptions {
  double clip_low = 0.2,
         clip_high = 0.2;     // the ratio counts from 1 - clip_low to 1 + clip_high; low at most 1
  double kl_coefficient = 0;  // ≥ 0
};

// Throws ERR_VALUE for an option out of range.
void check_surrogate(const SurrogateOptions& surrogate);

LossResult linear_token_surrogate(const at::Tensor& hidden, const at::Tensor& head,
                                  const SurrogateInputs& inputs, const at::Tensor& row_weights,
                                  const SurrogateOptions& surrogate, const TokenOptions& token,
                                  const LossOptions& options, const at::Tensor& grad_head);

// The default of LossOptions::workspace_bytes. `heads`: 2 with a teacher, else 1. On CUDA a call
// then holds, besides its results, less than an eighth of the bf16 logits of 8192 rows of 152064
// tokens. On the CPU it holds less than an eighth of what torch's operators hold for 1024 rows of
// 49152.
int64_t default_workspace(at::Device device, int heads);

}  // namespace nlac
