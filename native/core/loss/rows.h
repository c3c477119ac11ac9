// The part of a token loss between the products: from a chunk's logits to its losses and, in the logits' own
// place, to their gradient. Rows are independent. Thread rule: the caller's thread, plus at::parallel_for.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "core/loss/linear_loss.h"

namespace nlac {

// One chunk of rows. All tensors on one device; logits f32 or f64 with unit inner stride.
struct RowChunk {
  at::Tensor student;  // [rows, vocab] logits; becomes the gradient, see `rounded`
  at::Tensor teacher;  // [rows, vocab] logits; undefined for SupportKind::sampled; overwritten
  at::Tensor weights;  // [rows] of the logits' type
  at::Tensor targets;  // [rows] i64, for SupportKind::sampled
  at::Tensor losses;   // [rows] of the logits' type; receives the unweighted losses
  double temperature = 1;
  Support support;
  bool with_gradient = true;
  // The gradient is written as bf16 over the first half of each row's bytes (f32 logits on the CPU only).
  bool rounded = false;
};

// The fused kernels for f32 on the CPU, libtorch's operators for everything else.
void token_rows(RowChunk& chunk);

// Losses and gradient by libtorch's operators: any device, f32 or f64, not `rounded`. The reference.
void token_rows_with_operators(RowChunk& chunk);

}  // namespace nlac
