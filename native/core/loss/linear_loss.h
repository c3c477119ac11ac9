// Token losses with the vocabulary matrix fused in: logits exist only a chunk of rows at a time (plan.h).
//
//   token KL         a divergence of the student's distribution from the teacher's, both heads fused
//   token NLL        -log q(target), with z-loss and entropy
//   token log probs  log q(target), with its gradient given from outside
//   token surrogate  the clipped surrogate of PPO on targets, with GRPO's estimate of a KL
//
// q = softmax(logits / temperature) and p, the teacher's, likewise; losses in nats, without a T² factor;
// row_loss.h has every formula. All give d(Σ weights·losses)/d(student hidden) and add d/d(student matrix)
// into a float32 buffer. Logits and log-sum-exp are float32. Rows of weight 0 are left out of every product
// and get 0 for every result, whatever their other inputs are. Finite for logits of ±1e4, but for a surrogate
// whose ratio is beyond float32. float64 inputs are computed in float64, and every real result is then
// float64 too; libtorch's operators take several times the bound on memory then. With bf16 inputs the
// gradient at the logits is rounded to bf16 once, as a factor of the products back.
//
// A hidden state or an entry of a matrix that is not finite is not looked for: it makes the losses of its own
// rows NaN or infinite, and with them the gradient of the matrix. Per-row inputs are looked at, in the one
// wait for the device that a call makes.
//
// Thread rule: any one thread at a time per buffer. On CUDA: asynchronous on the current stream but for that
// wait.
//
// All throw ERR_SHAPE, ERR_DEVICE, ERR_INDEX (a target outside the vocabulary where the weight is not 0), and
// ERR_VALUE (an option out of its range, a per-row input that is not finite, other types).
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "core/loss/row_loss.h"

namespace nlac {

struct LossOptions {
  double temperature = 1;  // finite, above 0
  bool with_gradient = true;
  // Bytes for logits and the gradient at them; more is faster where the matrix's gradient is large. 0:
  // default_workspace(). Besides it a call makes what is of the hidden states' size, and for 32 rows of
  // logits there is always room.
  int64_t workspace_bytes = 0;
  bool real_gradient = false;  // grad_hidden in "real" (below), for a caller that has something to add to it
};

// Of losses on targets.
struct TokenOptions {
  double z_loss = 0;               // ≥ 0: adds z_loss·(log Σ exp(logits / temperature))²
  double entropy_coefficient = 0;  // subtracts entropy_coefficient·H(q)
  bool with_entropies = false;     // also gives H(q)
};

// Results by row; undefined where not asked for. "real" is f32, or f64 for f64 inputs.
struct LossResult {
  at::Tensor losses;  // [rows] real, not multiplied by the weights; undefined for log probs
  at::Tensor
      grad_hidden;       // [rows, hidden] in the (student) hidden's type, or real; undefined without gradient
  at::Tensor log_probs;  // [rows] real: log q(target), of losses on targets
  at::Tensor entropies;  // [rows] real: H(q), with `with_entropies`
  at::Tensor ratios;     // [rows] real: q(target) now over then, of the surrogate
  at::Tensor clipped;    // [rows] i32: 1 where the upper bound holds the surrogate, -1 where the lower does
};

// Throws ERR_VALUE for what linear_token_kl refuses of these two: beta of jensen_shannon outside
// [1e-6, 1 - 1e-6] (towards 0 the divergence over beta goes to forward_kl, towards 1 that over 1 - beta to
// reverse_kl), k < 1, and a sampled token for anything but a cross entropy.
void check_divergence(const Divergence& divergence, const Support& support);

// Of student_hidden [rows, H], student_weight [V, H], teacher_hidden [rows, H'], teacher_weight [V, H'] (f32,
// bf16 or f64; student's and teacher's types may differ), weights [rows] real.
// Every divergence takes the supports full and top_k. SupportKind::sampled is the cross entropy on what was
// sampled: `targets` [rows] i64, needed for it only; the teacher is not read.
// `grad_weight`: [V, H] f32 (f64 for f64 inputs), contiguous, added into; undefined: left out.
LossResult linear_token_kl(const at::Tensor& student_hidden, const at::Tensor& student_weight,
                           const at::Tensor& teacher_hidden, const at::Tensor& teacher_weight,
                           const at::Tensor& weights, const at::Tensor& targets, const Divergence& divergence,
                           const Support& support, const LossOptions& options, const at::Tensor& grad_weight);

// hidden [rows, H], weight [V, H], targets [rows] i64 in [0, V), weights [rows] real.
LossResult linear_token_nll(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                            const at::Tensor& weights, const TokenOptions& token, const LossOptions& options,
                            const at::Tensor& grad_weight);

// `grad_log_probs` [rows] real: d loss / d log probability, from outside; the gradients are those of
// Σ weights·grad_log_probs·log_probs. Undefined: no gradient.
LossResult linear_token_log_probs(const at::Tensor& hidden, const at::Tensor& weight,
                                  const at::Tensor& targets, const at::Tensor& weights,
                                  const at::Tensor& grad_log_probs, bool with_entropies,
                                  const LossOptions& options, const at::Tensor& grad_weight);

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

// Throws ERR_VALUE for what linear_token_surrogate refuses of these.
void check_surrogate(const SurrogateOptions& surrogate);

LossResult linear_token_surrogate(const at::Tensor& hidden, const at::Tensor& weight,
                                  const SurrogateInputs& inputs, const at::Tensor& weights,
                                  const SurrogateOptions& surrogate, const TokenOptions& token,
                                  const LossOptions& options, const at::Tensor& grad_weight);

// What LossOptions::workspace_bytes is by default. On CUDA all that a call then holds, besides its results,
// is below an eighth of the bf16 logits of 8192 rows of 152064 tokens; on the CPU, below an eighth of what
// torch's own operators hold for 1024 rows of 49152. `heads`: 2 with a teacher, else 1.
int64_t default_workspace(at::Device device, int heads);

}  // namespace nlac
