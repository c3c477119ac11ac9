// The products of a token loss on bf16 matrices with float32 results, for processors that multiply
// pairs of bf16 (AVX512-BF16). Matrices are packed a panel at a time, so nothing of the head's size
// is allocated. Results do not depend on the number of threads. Thread rule: the caller's thread,
// plus at::parallel_for.
//
// Rows are padded with zeros to multiples of 32 (`padded_rows`): the underlying kernels are
// generated per shape, and this keeps their number small.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace nlac::mixed {

// Whether this processor and this libtorch support these products.
bool available();

constexpr int64_t row_multiple = 32;
inline int64_t padded_rows(int64_t rows) { return (rows + row_multiple - 1) / row_multiple * row_multiple; }
// Returns the stride between rows of logits: even, and chosen to avoid cache set conflicts.
inline int64_t logit_stride(int64_t vocab) { return (vocab + 63) / 64 * 64 + 9 * 16; }

// logits [rows, vocab] ← hidden [rows, width] · head [vocab, width]ᵀ; `hidden_stride` is even and
// the column after an odd width is 0.
void logits(const at::BFloat16* hidden, int64_t hidden_stride, int64_t rows, const at::BFloat16* head,
            int64_t vocab, int64_t width, float* logits, int64_t logit_stride);

// grad_hidden [rows, width] ← gradient [rows, vocab] · head; the column after an odd vocabulary is
// 0.
void hidden_gradient(const at::BFloat16* gradient, int64_t gradient_stride, int64_t rows,
                     const at::BFloat16* head, int64_t vocab, int64_t width, float* grad_hidden);

// grad_head [vocab, width] += gradientᵀ · hidden.
void head_gradient(const at::BFloat16* gradient, int64_t gradient_stride, int64_t rows,
                   const at::BFloat16* hidden, int64_t hidden_stride, int64_t vocab, int64_t width,
                   float* grad_head);

}  // namespace nlac::mixed
