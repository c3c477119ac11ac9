// The part of a token loss between the products: from a chunk's logits to its losses and to the
// gradient at the logits. Rows are independent. Thread rule: the caller's thread, plus
// at::parallel_for.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/loss/row_loss.h"

namespace nlac {

// One chunk of rows, all tensors on one device. Logits are f32 or f64 with unit inner stride;
// "real" is their type. Tensors that a loss does not need, or that are not requested, stay
// undefined.
struct RowChunk {
  at::Tensor student;  // [rows, vocab] logits; overwritten
  at::Tensor teacher;  // [rows, vocab] logits; overwritten; defined for a loss against a teacher
  // [rows, vocab] real or bf16, receives the row's weight times the gradient. It may be `student`
  // itself; else it shares no memory with the logits.
  at::Tensor gradient;
  // [rows], contiguous. Inputs:
  at::Tensor row_weights;          // real
  at::Tensor targets;              // i64, in [0, vocab); this and the following for a loss on targets
  at::Tensor old_log_probs;        // real
  at::Tensor advantages;           // real
  at::Tensor reference_log_probs;  // real
  at::Tensor grad_log_probs;       // real: the gradient at the log probability, for TokenLossKind::log_prob
  // Results; nothing here is multiplied by row_weights:
  at::Tensor losses;     // real
  at::Tensor log_probs;  // real, of the targets
  at::Tensor entropies;  // real
  at::Tensor ratios;     // real
  at::Tensor clipped;    // i32
};

// Rows `first` … of a chunk; undefined tensors stay so.
RowChunk narrow(const RowChunk& chunk, int64_t first, int64_t rows);

// Fused kernels for f32 on the CPU and on CUDA, libtorch's operators for everything else.
void token_rows(const RowLoss& loss, const RowChunk& chunk);

// The same by libtorch's operators: any device, f32 or f64. The reference.
void token_rows_with_operators(const RowLoss& loss, const RowChunk& chunk);

}  // namespace nlac
