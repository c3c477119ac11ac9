#pragma GCC optimize("O3")

#include "core/model/f32_kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "core/instruction_set.h"

// Vectors never cross a function that is not inlined, so their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define NLAC_VARIANT baseline
#define NLAC_LANES 4
#define NLAC_VECTORS 4
#define NLAC_TALL 2
#include "core/model/f32_kernels.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 8
#define NLAC_VECTORS 2
#define NLAC_TALL 6
#include "core/model/f32_kernels.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 16
#define NLAC_VECTORS 4
#define NLAC_TALL 6
#include "core/model/f32_kernels.inc"
NLAC_END_VARIANT
#endif

namespace nlac::f32 {
namespace {

// Multiplications that are worth waking a thread for.
constexpr int64_t thread_work = int64_t{1} << 18;

int64_t grain(int64_t work) { return std::max<int64_t>(1, thread_work / std::max<int64_t>(1, work)); }
// Of passes over elements, which wait for memory and cost more each.
int64_t row_grain(int64_t n) { return grain(16 * n); }

int64_t panels(int64_t columns) { return (columns + panel_columns - 1) / panel_columns; }

}  // namespace

NLAC_ALL_KERNELS

int64_t packed_size(int64_t out, int64_t in) { return panels(out) * panel_columns * in; }

void pack_weights(const float* weight, int64_t out, int64_t in, float* packed) {
  constexpr int64_t step = 16;  // a cache line of every row at a time
  at::parallel_for(0, panels(out), grain(panel_columns * in), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const float* rows = weight + p * panel_columns * in;
      float* panel = packed + p * panel_columns * in;
      const int64_t count = std::min(panel_columns, out - p * panel_columns);
      for (int64_t first = 0; first < in; first += step)
        for (int64_t c = 0; c < panel_columns; ++c)
          for (int64_t k = first; k < std::min(in, first + step); ++k)
            panel[k * panel_columns + c] = c < count ? rows[c * in + k] : 0.0f;
    }
  });
}

void packed_linear(const float* x, int64_t rows, const float* packed, const float* bias, int64_t out,
                   int64_t in, float* y, int64_t y_stride, bool add) {
  const Product product{x, packed, bias, rows, out, in, y, y_stride, add};
  at::parallel_for(0, panels(out), grain(rows * panel_columns * in),
                   [&](int64_t begin, int64_t end) { kernels().linear(product, begin, end); });
}

void rms_norm(const float* x, int64_t rows, int64_t n, const float* weight, float eps, float* y) {
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels().rms_norm(x + begin * n, end - begin, n, weight, eps, y + begin * n);
  });
}

void gated_silu(const float* gate_up, int64_t rows, int64_t n, float* y) {
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels().gated_silu(gate_up + 2 * begin * n, end - begin, n, y + begin * n);
  });
}

void rotate(float* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign) {
  at::parallel_for(0, tokens, row_grain(2 * heads * half), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernels().rotate(x + t * stride, heads, half, cos + positions[t] * half, sin + positions[t] * half,
                       sign);
  });
}

void store_key(const float* key, int64_t head_dim, int64_t slot, float* block) {
  for (int64_t d = 0; d < head_dim; ++d) block[d * kBlockTokens + slot] = key[d];
}

void store_value(const float* value, int64_t head_dim, int64_t slot, bool, float* block) {
  std::copy(value, value + head_dim, block + slot * head_dim);
}

void attend_blocks(const BlockHead& head, int64_t first, int64_t count, const float* q,
                   const void* const* blocks, int64_t keys, int64_t values, float* output) {
  const int64_t padded = panels(head.past + first + count) * panel_columns;
  const std::unique_ptr<float[]> scores(new float[static_cast<size_t>(count * head.group * padded)]);
  kernels().attend({head, first, count, q, blocks, keys, values, output, scores.get(), padded});
}

}  // namespace nlac::f32
