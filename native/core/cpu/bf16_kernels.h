// Hand-written CPU kernels for bfloat16 with float32 accumulation, for processors that multiply
// pairs of bfloat16 (AVX-512 BF16). kernels.h calls them if available() and uses its own otherwise.
// Both are tested against float64. Plain pointers to bfloat16 bit patterns; work is split by
// at::parallel_for, and no result depends on the number of threads.
#pragma once

#include <cstdint>

namespace nlac::bf16 {

using Bits = uint16_t;

// Whether this processor runs the functions below; they must not be called otherwise.
bool available();

// x [rows, in], weight [out, in], bias [out] (null: none), all contiguous → y [rows, out]. A row's
// result does not depend on the other rows or their number. For few rows: the weights are read from
// memory once.
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            Bits* y);
void linear(const Bits* x, int64_t rows, const Bits* weight, const Bits* bias, int64_t out, int64_t in,
            float* y);

// The same from packed weights, several times as fast with many rows. A row's result depends only
// on the row and the weights. `in` is even; the weights are packed into packed_size(out, in)
// numbers.
int64_t packed_size(int64_t out, int64_t in);
void pack_weights(const Bits* weight, int64_t out, int64_t in, Bits* packed);
void packed_linear(const Bits* x, int64_t rows, const Bits* packed, const Bits* bias, int64_t out, int64_t in,
                   Bits* y);
// y f32, `y_stride` between rows, = or (with `add`) += the product.
void packed_linear(const Bits* x, int64_t rows, const Bits* packed, const Bits* bias, int64_t out, int64_t in,
                   float* y, int64_t y_stride, bool add);

// The same from weights rounded to int8, packed into packed_size(out, in) of them and
// int8_scales(out, in) scales: one for each int8_group neighbours of an output, of which the
// largest becomes 127. The other factor stays bfloat16.
constexpr int64_t int8_group = 64;
int64_t int8_scales(int64_t out, int64_t in);
void pack_int8(const Bits* weight, int64_t out, int64_t in, int8_t* packed, float* scales);
void packed_linear(const Bits* x, int64_t rows, const int8_t* packed, const float* scales, const Bits* bias,
                   int64_t out, int64_t in, Bits* y);
void packed_linear(const Bits* x, int64_t rows, const int8_t* packed, const float* scales, const Bits* bias,
                   int64_t out, int64_t in, float* y, int64_t y_stride, bool add);

// sum [m, n] f32 += aᵀ · b, with a [rows, m] and b [rows, n] contiguous.
void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum);

// Causal attention of one head; strides are between tokens.
struct Head {
  int64_t length;    // keys up to and including the last query's own
  int64_t head_dim;  // here a multiple of 64
  int64_t q_stride, kv_stride, output_stride;
  int64_t past = 0;    // keys before the first query's own; there are length - past queries
  int64_t window = 0;  // the last keys that a query sees, its own included; 0: all
  float scale = 0;     // of the scores; 0: 1 / sqrt(head_dim)
  // A further score, not scaled, of a key whose value is zero; null: none. Backward does not read it.
  const float* sink = nullptr;
};
// logsumexp [queries] of the scaled scores and the sink. Runs on the calling thread.
void attend(const Head& head, const Bits* q, const Bits* k, const Bits* v, Bits* output, float* logsumexp);
// `grad` has the layout of `output`, grad_q that of q; grad_k and grad_v [length, head_dim] f32 are
// overwritten. Runs on the calling thread.
void attend_backward(const Head& head, const Bits* q, const Bits* k, const Bits* v, const Bits* output,
                     const float* logsumexp, const Bits* grad, Bits* grad_q, float* grad_k, float* grad_v);

// Keys and values lie in blocks of kBlockTokens tokens, packed as products read them: a block's
// keys of one head are head_dim / 2 pairs of neighbours, each of all its tokens; its values are
// kBlockTokens / 2 pairs of tokens, each of all dimensions. Both take kBlockTokens · head_dim
// numbers. Contents of a block beyond its tokens are ignored, but the value beside an even last
// token must be finite.
constexpr int64_t kBlockTokens = 16;
// Stores one head of one token to slot 0 … 15. `last`: the block has no later token yet.
void store_key(const Bits* key, int64_t head_dim, int64_t slot, Bits* block);
void store_value(const Bits* value, int64_t head_dim, int64_t slot, bool last, Bits* block);

// Causal attention of the `group` query heads that share a key-value head, over blocks. Query i
// sees the first past + i + 1 tokens, or the last `window` of them. A query's result depends only
// on these and itself, bit for bit.
struct BlockHead {
  int64_t past, group, head_dim;    // here head_dim is a multiple of 64
  int64_t q_stride, output_stride;  // between tokens; heads lie head_dim apart
  int64_t window = 0;               // 0: all
  float scale = 0;                  // of the scores; 0: 1 / sqrt(head_dim)
  const float* sinks = nullptr;     // [group], as Head::sink
};
// The first of `own` tokens that a query sees.
inline int64_t first_seen(int64_t own, int64_t window) {
  return window > 0 && own > window ? own - window : 0;
}
// The largest of a query's scaled scores and its sink (null: none), and what the sink adds to the
// sum of e^(score - largest).
struct Sink {
  float largest, share;
  __attribute__((always_inline)) Sink(float largest_score, const float* sink)
      : largest(sink && *sink > largest_score ? *sink : largest_score),
        share(sink ? __builtin_expf(*sink - largest) : 0.0f) {}
};
// Queries [first, first + count) of those from q on. Block b's keys and values are at blocks[b] +
// keys and + values. Runs on the calling thread.
void attend_blocks(const BlockHead& head, int64_t first, int64_t count, const Bits* q,
                   const void* const* blocks, int64_t keys, int64_t values, Bits* output);

// As in core/model/elementwise.h, on contiguous [rows, n] unless said otherwise. Rounded once, at
// the end.
void rms_norm(const Bits* x, int64_t rows, int64_t n, const Bits* weight, bool plus_one, float eps, Bits* y);
void rms_norm(const float* x, int64_t rows, int64_t n, const Bits* weight, bool plus_one, float eps, Bits* y);
// grad_x = the gradient at x, plus `residual` [rows, n] (null: none); grad_weight [n] f32 += (null:
// left out).
void rms_norm_backward(const Bits* grad, const Bits* x, const Bits* residual, int64_t rows, int64_t n,
                       const Bits* weight, bool plus_one, float eps, Bits* grad_x, float* grad_weight);
// gate_up [rows, 2n] → y [rows, n]
void gated_silu(const Bits* gate_up, int64_t rows, int64_t n, Bits* y);
// grad [rows, n], gate_up [rows, 2n] → grad_gate_up [rows, 2n]
void gated_silu_backward(const Bits* grad, const Bits* gate_up, int64_t rows, int64_t n, Bits* grad_gate_up);
// In place: x [tokens, heads, 2 half] with `stride` between tokens; cos and sin [positions, half]
// f32; half is a multiple of 16; sign 1 turns, -1 turns back.
void rotate(Bits* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign);

}  // namespace nlac::bf16
