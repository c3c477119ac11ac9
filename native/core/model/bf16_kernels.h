// Hand-written CPU kernels for bfloat16 with float32 accumulation (AVX-512 with BF16 dot products). They
// exist where libtorch has no such product or a slow one; each has a libtorch twin in the file that calls
// it, which is its reference and what other processors run. Plain pointers to bfloat16 bit patterns; work is
// split over at::parallel_for, and no result depends on the number of threads.
#pragma once

#include <cstdint>

namespace nlac::bf16 {

using Bits = uint16_t;

// Whether this processor runs the functions below; they must not be called otherwise.
bool available();

// A row's result does not depend on the other rows, nor on how many there are.
// x [rows, in], weight [out, in], bias [out] (null: none), all contiguous → y [rows, out]. Made for few
// rows: the weights are read once from memory.
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            Bits* y);
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            float* y);

// sum [m, n] f32 += aᵀ · b, with a [rows, m] and b [rows, n] contiguous.
void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum);

// Causal attention of one head; strides are between tokens.
struct Head {
  int64_t fresh, length;  // queries, and keys up to and including the last query's own
  int64_t head_dim;       // a multiple of 64
  int64_t q_stride, kv_stride, output_stride;
};
// logsumexp [fresh] of the scaled scores (null: not wanted). Runs on the calling thread.
void attend(const Head& head, const Bits* q, const Bits* k, const Bits* v, Bits* output, float* logsumexp);
// For whole sequences, fresh == length. `grad` lies as `output` does, grad_q as q; grad_k and grad_v
// [length, head_dim] f32 are overwritten. Runs on the calling thread.
void attend_backward(const Head& head, const Bits* q, const Bits* k, const Bits* v, const Bits* output,
                     const float* logsumexp, const Bits* grad, Bits* grad_q, float* grad_k, float* grad_v);

// Attention of one new token: `group` queries [group, head_dim] share the keys and values [length, head_dim]
// → output [group, head_dim]. head_dim is a multiple of 64. `scores`: room for group rows of length rounded
// up to 16.
void attend_one(const Bits* queries, int64_t group, const Bits* keys, const Bits* values, int64_t length,
                int64_t head_dim, float* scores, Bits* output);

// What core/model/elementwise.h describes, on contiguous [rows, n] unless said otherwise; one rounding at the
// end.
void rms_norm(const Bits* x, int64_t rows, int64_t n, const Bits* weight, float eps, Bits* y);
void rms_norm(const float* x, int64_t rows, int64_t n, const Bits* weight, float eps, Bits* y);
// grad_x = the gradient at x, plus `residual` [rows, n] (null: none); grad_weight [n] f32 += (null: left
// out).
void rms_norm_backward(const Bits* grad, const Bits* x, const Bits* residual, int64_t rows, int64_t n,
                       const Bits* weight, float eps, Bits* grad_x, float* grad_weight);
// gate_up [rows, 2n] → y [rows, n]
void gated_silu(const Bits* gate_up, int64_t rows, int64_t n, Bits* y);
// grad [rows, n], gate_up [rows, 2n] → grad_gate_up [rows, 2n]
void gated_silu_backward(const Bits* grad, const Bits* gate_up, int64_t rows, int64_t n, Bits* grad_gate_up);
// In place: x [tokens, heads, 2 half] with `stride` between tokens; cos and sin [positions, half] f32; half
// is a multiple of 16; sign 1 turns, -1 turns back.
void rotate(Bits* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign);

}  // namespace nlac::bf16
