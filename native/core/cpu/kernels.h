// The model's arithmetic on a CPU in float32 and bfloat16, forward and backward. Compiled for
// several instruction sets and chosen at run time. Computes in float32; a result is rounded once,
// unless said otherwise. A row's result depends only on the row and the weights, bit for bit, and
// no result depends on the number of threads. On processors with products of bfloat16 pairs,
// bf16_kernels.h processes bfloat16 instead. Tested against float64 runs of libtorch's operators
// (test/core/cpu). Plain pointers; work is split by at::parallel_for unless said otherwise.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cpu/bf16_kernels.h"

namespace nlac::cpu {

using bf16::Bits, bf16::BlockHead, bf16::first_seen, bf16::Head, bf16::int8_group, bf16::kBlockTokens,
    bf16::Sink;

// `Number` below is float or Bits.

// A weight matrix [out, in] packed for products: panels of panel_columns outputs, the last padded
// with zeros, and in a panel the instruction set's tiles of columns,
// [panels][tiles][in][tile_columns]. `Packed` is Number, or int8_t: then each number is rounded to
// a multiple of its scale. Every int8_group neighbours of an output share a scale, for which the
// largest of them becomes 127. If the set has round_rows and `in` is even, the order is
// [panels][tiles][in / 2][tile_columns][2].
template <typename Number>
struct PackedWeights {
  // Size of a packed matrix in numbers, and of an int8 matrix's scales in floats.
  static int64_t size(int64_t out, int64_t in);
  static int64_t scales(int64_t out, int64_t in);
  static void pack(const Number* weight, int64_t out, int64_t in, Number* packed);
  static void pack_int8(const Number* weight, int64_t out, int64_t in, int8_t* packed, float* scales);
};

// x [rows, in] · weightᵀ + bias [out] (null: none) → y [rows, out], `stride` between rows, = or
// (with `add`, if Out is float) += the product. `scales` of int8 weights, else null.
template <typename Number, typename Packed, typename Out>
void packed_linear(const Number* x, int64_t rows, const Packed* packed, const float* scales,
                   const Number* bias, int64_t out, int64_t in, Out* y, int64_t stride, bool add);

// As in core/model/elementwise.h, on contiguous [rows, n] unless said otherwise. `In` is
// Number or float.
template <typename In, typename Number>
void rms_norm(const In* x, int64_t rows, int64_t n, const Number* weight, bool plus_one, float eps,
              Number* y);
// grad_x = the gradient at x, plus `residual` [rows, n] (null: none); grad_weight [n] f32 += (null:
// left out).
template <typename Number>
void rms_norm_backward(const Number* grad, const Number* x, const Number* residual, int64_t rows, int64_t n,
                       const Number* weight, bool plus_one, float eps, Number* grad_x, float* grad_weight);
// gate_up [rows, 2n] → y [rows, n]
template <typename Number>
void gated_silu(const Number* gate_up, int64_t rows, int64_t n, Number* y);
// grad [rows, n], gate_up [rows, 2n] → grad_gate_up [rows, 2n]
template <typename Number>
void gated_silu_backward(const Number* grad, const Number* gate_up, int64_t rows, int64_t n,
                         Number* grad_gate_up);
// The same with gelu(x) = x · σ(2 √(2/π) (x + 0.044715 x³)), the approximation by the hyperbolic
// tangent (Hendrycks and Gimpel, 2016).
template <typename Number>
void gated_gelu(const Number* gate_up, int64_t rows, int64_t n, Number* y);
template <typename Number>
void gated_gelu_backward(const Number* grad, const Number* gate_up, int64_t rows, int64_t n,
                         Number* grad_gate_up);
// gpt-oss: gate_up [rows, n, 2], gate first → y [rows, n], with c = min(gate, limit):
// c · σ(alpha c) · (clamp(up, ± limit) + 1).
template <typename Number>
void clamped_gate(const Number* gate_up, int64_t rows, int64_t n, float limit, float alpha, Number* y);
template <typename Number>
void clamped_gate_backward(const Number* grad, const Number* gate_up, int64_t rows, int64_t n, float limit,
                           float alpha, Number* grad_gate_up);
// In place: x [tokens, heads, 2 half] with `stride` between tokens; cos and sin [positions, half]
// f32; sign 1 turns, -1 turns back.
template <typename Number>
void rotate(Number* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign);

// Causal attention of one head of any size; strides are between tokens. logsumexp [queries] of the
// scaled scores. Both run on the calling thread.
template <typename Number>
void attend(const Head& head, const Number* q, const Number* k, const Number* v, Number* output,
            float* logsumexp);
// `grad` has the layout of `output`, grad_q that of q; grad_k and grad_v [length, head_dim] f32 are
// overwritten.
template <typename Number>
void attend_backward(const Head& head, const Number* q, const Number* k, const Number* v,
                     const Number* output, const float* logsumexp, const Number* grad, Number* grad_q,
                     float* grad_k, float* grad_v);

// Keys and values lie in blocks of kBlockTokens tokens: a block's keys of one head are [head_dim,
// kBlockTokens], its values [kBlockTokens, head_dim], or as in bf16_kernels.h if that is used.
// Contents of a block beyond its tokens are ignored. Stores one head of one token to slot 0 … 15;
// `last`: the block has no later token yet.
template <typename Number>
void store_key(const Number* key, int64_t head_dim, int64_t slot, Number* block);
template <typename Number>
void store_value(const Number* value, int64_t head_dim, int64_t slot, bool last, Number* block);

// Causal attention of the `group` query heads that share a key-value head, over blocks, of any
// head_dim. Query i sees the first past + i + 1 tokens, or the last `window` of them; blocks before
// these are not read. A query's result depends only on these and itself, bit for bit.
// Queries [first, first + count) of those from q on. Block b's keys and values are at blocks[b] +
// keys and + values. Runs on the calling thread.
template <typename Number>
void attend_blocks(const BlockHead& head, int64_t first, int64_t count, const Number* q,
                   const void* const* blocks, int64_t keys, int64_t values, Number* output);

// --- kernels of an instruction set ---------------------------------------------------------------

enum class Weights { f32, bf16, int8 };
struct Product {
  const float* x;  // [rows, in]
  Weights kind;
  const void* packed;
  const float *scales, *bias;
  // Of int8 weights: the result of round_rows. If it is null, x is multiplied as it is.
  const int16_t* rounded;
  const float* steps;
  int64_t rows, out, in;
  void* y;
  int64_t stride;
  bool narrow, add;  // y is bfloat16; y += the product
};
template <typename Number>
struct BlockAttention {
  BlockHead head;
  int64_t first, count;
  const float* q;  // [count, group, head_dim]
  const void* const* blocks;
  int64_t keys, values;
  Number* output;
  float* scores;   // scratch, [count · group, padded]
  int64_t padded;  // the tokens seen, rounded up to a multiple of 64
};
// Each on the calling thread.
template <typename Number>
struct NumberKernels {
  void (*rms_norm)(const Number* x, int64_t rows, int64_t n, const Number* weight, bool plus_one, float eps,
                   Number* y);
  void (*rms_norm_of_f32)(const float* x, int64_t rows, int64_t n, const Number* weight, bool plus_one,
                          float eps, Number* y);
  void (*rms_norm_backward)(const Number* grad, const Number* x, const Number* residual, int64_t rows,
                            int64_t n, const Number* weight, bool plus_one, float eps, Number* grad_x,
                            float* grad_weight);
  void (*gated_silu)(const Number* gate_up, int64_t rows, int64_t n, Number* y);
  void (*gated_silu_backward)(const Number* grad, const Number* gate_up, int64_t rows, int64_t n,
                              Number* grad_gate_up);
  void (*gated_gelu)(const Number* gate_up, int64_t rows, int64_t n, Number* y);
  void (*gated_gelu_backward)(const Number* grad, const Number* gate_up, int64_t rows, int64_t n,
                              Number* grad_gate_up);
  void (*clamped_gate)(const Number* gate_up, int64_t n, float limit, float alpha, Number* y);
  void (*clamped_gate_backward)(const Number* grad, const Number* gate_up, int64_t n, float limit,
                                float alpha, Number* grad_gate_up);
  void (*rotate)(Number* x, int64_t heads, int64_t half, const float* cos, const float* sin, float sign);
  void (*attend_blocks)(const BlockAttention<Number>&);
  // to [rows, n] f32 ← from, rows `stride` apart.
  void (*widen)(const Number* from, int64_t stride, int64_t rows, int64_t n, float* to);
  // to [n] ← from · factor.
  void (*scale)(const float* from, int64_t n, float factor, Number* to);
  float (*dot)(const Number* a, const Number* b, int64_t n);
};
struct Kernels {
  int64_t tile_columns;
  void (*linear)(const Product&, int64_t first_panel, int64_t last_panel);
  // x [rows, in] → multiples `rounded` [rows, in] of steps [rows, groups], one step for every
  // int8_group neighbours, of which the largest becomes 32767. Products with int8 weights are then
  // summed exactly within a group. Null: the set has no such products.
  void (*round_rows)(const float* x, int64_t rows, int64_t in, int16_t* rounded, float* steps);
  // Rounds a panel of `in` numbers a column. Where one is not finite its group's scale is NaN.
  void (*round_int8)(const float* panel, int64_t in, int8_t* packed, float* scales);
  float (*largest)(const float* values, int64_t n);
  // scores[0, own) ← e^(scale · score - offset), zeros up to `padded`. Returns their sum.
  float (*exponentials)(float* scores, int64_t own, int64_t padded, float scale, float offset);
  // at[i] ← probabilities[i] · (at[i] - along) · scale
  void (*softmax_backward)(const float* probabilities, int64_t n, float along, float scale, float* at);
  NumberKernels<float> f32;
  NumberKernels<Bits> bf16;
};
// The variants that run here, the fastest first.
const std::vector<const Kernels*>& all_kernels();

}  // namespace nlac::cpu
