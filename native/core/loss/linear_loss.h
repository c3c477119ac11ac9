// Token losses with the vocabulary matrix fused in: logits exist only a chunk of rows at a time.
//
//   token KL   KL(p_T ‖ p_S) per row, p = softmax(logits / temperature); loss in nats, without a T² factor
//   token NLL  -log p_S(target) per row
//
// Both give d(Σ weights·losses)/d(student hidden) and add d/d(student matrix) into a float32 buffer. Logits
// and log-sum-exp are float32. Rows of weight 0 are left out of every product and get loss 0.
// Finite for logits of ±1e4. Thread rule: any one thread at a time per buffer.
// float64 inputs are computed in float64, and losses and the matrix's gradient are then float64 too.
// With bf16 inputs the gradient at the logits is rounded to bf16 once, as a factor of the products back.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>

namespace nlac {

enum class SupportKind { full, top_k, sampled };

struct Support {
  SupportKind kind = SupportKind::full;
  int64_t k = 0;  // top_k: the teacher's k most probable tokens and one bucket for the rest
};

struct LossResult {
  at::Tensor losses;       // [rows] f32, not multiplied by the weights; 0 where the weight is 0
  at::Tensor grad_hidden;  // [rows, hidden] in the student hidden's type; zero rows where the weight is 0;
                           // undefined without gradient
};

// student_hidden [rows, H], student_weight [V, H], teacher_hidden [rows, H'], teacher_weight [V, H'] (f32,
// bf16 or f64; student's and teacher's types may differ), weights [rows] f32.
// `targets` [rows] i64 is needed by SupportKind::sampled only (cross entropy on what was sampled).
// `grad_weight`: [V, H] f32 (f64 for f64 inputs), contiguous, added into; undefined: left out.
// With `with_gradient` false only losses are computed.
// Throws ERR_SHAPE, ERR_DEVICE, ERR_INDEX (a target outside the vocabulary where the weight is not 0),
// ERR_VALUE (temperature not finite or ≤ 0, weights not finite, k < 1, other types).
LossResult linear_token_kl(const at::Tensor& student_hidden, const at::Tensor& student_weight,
                           const at::Tensor& teacher_hidden, const at::Tensor& teacher_weight,
                           const at::Tensor& weights, double temperature, const Support& support,
                           const at::Tensor& targets, at::Tensor grad_weight, bool with_gradient = true);

// hidden [rows, H], weight [V, H], targets [rows] i64 in [0, V), weights [rows] f32.
LossResult linear_token_nll(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                            const at::Tensor& weights, double temperature, at::Tensor grad_weight,
                            bool with_gradient = true);

// Rows per chunk so that a chunk's float32 logits stay under ~64 MiB (CPU) / ~512 MiB (CUDA).
int64_t loss_chunk_rows(int64_t vocab, at::Device device);

}  // namespace nlac
