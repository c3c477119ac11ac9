// The three matrix products of a token loss, with float32 (or float64) results whatever the inputs
// are. `gradient` is of the results' type, or on CUDA, for bf16 matrices, bf16. Thread rule: the
// caller's thread, plus libtorch's own.
#pragma once

#include <ATen/ATen.h>

namespace nlac {

// logits [rows, vocab] ← hidden [rows, H] · weight [vocab, H]ᵀ, in the logits' type.
void product_logits(const at::Tensor& hidden, const at::Tensor& weight, at::Tensor logits);

// grad_hidden [rows, H] ← gradient [rows, vocab] · weight [vocab, H], in the results' type.
void product_hidden(const at::Tensor& gradient, const at::Tensor& weight, at::Tensor grad_hidden);

// grad_weight [vocab, H] += gradient [rows, vocab]ᵀ · hidden [rows, H].
void product_weight(const at::Tensor& gradient, const at::Tensor& hidden, at::Tensor grad_weight);

}  // namespace nlac
