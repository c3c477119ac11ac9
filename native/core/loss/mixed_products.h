// The products of a token loss on bf16 matrices with float32 results, for processors that multiply pairs of
// bf16 (AVX512-BF16). Matrices are packed a panel at a time, so nothing of the vocabulary matrix's size is
// made. Results do not depend on the number of threads. Thread rule: the caller's thread, plus
// at::parallel_for.
//
// Rows come in multiples of 32 (`padded_rows`), the surplus filled with zeros: the kernels behind these
// products are made per shape, and so there are few of them.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace nlac::mixed {

// Whether this processor and this libtorch can.
bool available();

constexpr int64_t row_multiple = 32;
inline int64_t padded_rows(int64_t rows) { return (rows + row_multiple - 1) / row_multiple * row_multiple; }
// Elements from one row of logits to the next: even, and such that rows do not all share their cache sets.
inline int64_t logit_stride(int64_t vocab) { return (vocab + 63) / 64 * 64 + 9 * 16; }

// logits [rows, vocab] ← hidden [rows, width] · weight [vocab, width]ᵀ; `hidden_stride` is even and the
// column after an odd width is 0.
void logits(const at::BFloat16* hidden, int64_t hidden_stride, int64_t rows, const at::BFloat16* weight,
            int64_t vocab, int64_t width, float* logits, int64_t logit_stride);

// grad_hidden [rows, width] ← gradient [rows, vocab] · weight; the column after an odd vocabulary is 0.
void hidden_gradient(const at::BFloat16* gradient, int64_t gradient_stride, int64_t rows,
                     const at::BFloat16* weight, int64_t vocab, int64_t width, float* grad_hidden);

// grad_weight [vocab, width] += gradientᵀ · hidden.
void weight_gradient(const at::BFloat16* gradient, int64_t gradient_stride, int64_t rows,
                     const at::BFloat16* hidden, int64_t hidden_stride, int64_t vocab, int64_t width,
                     float* grad_weight);

}  // namespace nlac::mixed
