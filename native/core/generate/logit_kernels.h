// Passes over one row of logits, vectorised for the widest instructions of the processor. Sampling
// is built from these: scalar exponentials over 10^5 ids would cost as much as a decoder layer. No
// torch; pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace nlac::kernels {

constexpr int64_t kSumBlock = 1024;  // values behind one entry of exp_block_sums
constexpr int64_t kMaxBlock = 64;    // values behind one entry of block_maxima

// Returns the largest value; skips NaNs.
float max_value(const float* x, int64_t n);

// sums[b] = Σ exp((x_i - top)·scale) over block b of kSumBlock values. Requires top ≥ x_i or NaN,
// scale > 0. A NaN anywhere makes its block's sum NaN.
void exp_block_sums(const float* x, int64_t n, float top, float scale, double* sums);

// out_i = exp((x_i - top)·scale), bit for bit the terms of exp_block_sums.
void exponentials(const float* x, int64_t n, float top, float scale, float* out);

// Σ exp((x_i - top)·scale) over x_i ≥ threshold.
double exp_mass_at_least(const float* x, int64_t n, float top, float scale, float threshold);

// maxima[b] = the largest of block b of kMaxBlock values.
void block_maxima(const float* x, int64_t n, float* maxima);

// Appends the indices of x_i ≥ threshold, ascending.
void select_at_least(const float* x, int64_t n, float threshold, std::vector<int32_t>& indices);

// x_i becomes -inf where bit i % 32 of allowed[i / 32] is 0.
void keep_allowed(float* x, int64_t n, const uint32_t* allowed);

}  // namespace nlac::kernels
