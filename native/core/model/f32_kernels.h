// Hand-written CPU kernels of inference in float32, for any processor: compiled for several instruction sets, chosen at
// run time. Small models spend their time in libtorch's calls rather than in arithmetic; and here a row's result
// depends on nothing but the row and the weights, bit for bit, however many there are. Their reference is the
// libtorch twin in the file that calls them. Plain pointers; work is split over at::parallel_for unless said otherwise,
// and no result depends on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/bf16_kernels.h"

namespace nlac::f32 {

using bf16::BlockHead;
using bf16::kBlockTokens;

// x [rows, in] · weightᵀ + bias [out] (null: none), the weights packed into packed_size(out, in) numbers: panels of
// panel_columns outputs, [panels][in][panel_columns], the last filled up with zeros. y, `y_stride` between rows, =
// or (with `add`) += the product.
constexpr int64_t panel_columns = 64;
int64_t packed_size(int64_t out, int64_t in);
void pack_weights(const float* weight, int64_t out, int64_t in, float* packed);
void packed_linear(const float* x, int64_t rows, const float* packed, const float* bias, int64_t out,
                   int64_t in, float* y, int64_t y_stride, bool add);

// What core/model/elementwise.h describes, on contiguous [rows, n].
void rms_norm(const float* x, int64_t rows, int64_t n, const float* weight, float eps, float* y);
// gate_up [rows, 2n] → y [rows, n]
void gated_silu(const float* gate_up, int64_t rows, int64_t n, float* y);
// In place: x [tokens, heads, 2 half] with `stride` between tokens; cos and sin [positions, half]; sign 1 turns,
// -1 turns back.
void rotate(float* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign);

// Blocks of keys and values as bf16_kernels.h has them, but a block's keys of one head are [head_dim, kBlockTokens] and
// its values [kBlockTokens, head_dim]; any head_dim. What a block holds beyond its tokens is never seen. `last`
// changes nothing here. All three run on the calling thread.
void store_key(const float* key, int64_t head_dim, int64_t slot, float* block);
void store_value(const float* value, int64_t head_dim, int64_t slot, bool last, float* block);
void attend_blocks(const BlockHead& head, int64_t first, int64_t count, const float* q,
                   const void* const* blocks, int64_t keys, int64_t values, float* output);

// The arguments of packed_linear and attend_blocks, for what an instruction set makes of them.
struct Product {
  const float *x, *packed, *bias;
  int64_t rows, out, in;
  float* y;
  int64_t y_stride;
  bool add;
};
struct Attention {
  BlockHead head;
  int64_t first, count;
  const float* q;
  const void* const* blocks;
  int64_t keys, values;
  float* output;
  float* scores;   // scratch, [count · group, padded]
  int64_t padded;  // the tokens seen, rounded up to a multiple of panel_columns
};
// Each on the calling thread.
struct Kernels {
  void (*linear)(const Product&, int64_t first_panel, int64_t last_panel);
  void (*rms_norm)(const float* x, int64_t rows, int64_t n, const float* weight, float eps, float* y);
  void (*gated_silu)(const float* gate_up, int64_t rows, int64_t n, float* y);
  void (*rotate)(float* x, int64_t heads, int64_t half, const float* cos, const float* sin, float sign);
  void (*attend)(const Attention&);
};
// All that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

}  // namespace nlac::f32
