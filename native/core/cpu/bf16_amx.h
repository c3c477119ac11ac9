// Products of packed bfloat16 factors (bf16_products.h) on a processor's matrix tiles (Intel AMX).
// A tile multiplication sums 32 products before it adds them to the result, so that results differ
// from those of bf16_products.h by rounding. The tile configuration is a thread's own; `release`
// frees it.
#pragma once

#include <cstdint>

#include "core/cpu/bf16_products.h"

namespace nlac::bf16::amx {

// Whether this processor runs the functions below; they must not be called otherwise.
bool available();

// Rows that a call of panel_product takes, and the pairs of which its sums are made.
constexpr int64_t most_rows = 32, pair_step = 16;

// sum [rows, wide] ← x [rows, 2 pairs] · one panel [pairs, wide]; rows <= most_rows, and pairs is a
// multiple of pair_step. A row's result does not depend on the other rows or their number.
void panel_product(const Bits* x, int64_t rows, const Pair* panel, int64_t pairs, float* sum);

// As bf16::add_transposed_product.
void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum);

// Call on a thread when its products are done.
void release();

}  // namespace nlac::bf16::amx
