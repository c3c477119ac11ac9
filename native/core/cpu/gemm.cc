#pragma GCC optimize("O3")

#include "core/cpu/gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/cpu/shares.h"
#include "core/cpu/variants.h"

#define NLAC_VARIANT baseline
#define NLAC_LANES 4
#define NLAC_VECTORS 4
#ifdef __aarch64__  // 32 registers
#define NLAC_TALL 6
#else
#define NLAC_TALL 2
#endif
#include "core/cpu/gemm.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 8
#define NLAC_VECTORS 2
#define NLAC_TALL 6
#include "core/cpu/gemm.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 16
#define NLAC_VECTORS 2
#define NLAC_TALL 12
#include "core/cpu/gemm.inc"
NLAC_END_VARIANT
#endif

namespace nlac::cpu {
namespace {

// Sums run over at most so many elements before they are added to the result: a panel then fits the
// second cache.
constexpr int64_t deepest = 768;
// Rows that are prepared at a time, and those of them that a task takes: whole strips.
constexpr int64_t tallest = 768, task_rows = 96;

// The left factor's rows [first, first + rows) and columns [k, k + depth): in place, or as float32
// strips in `wide`.
Rows rows_of(const Factor& a, int64_t first, int64_t rows, int64_t k, int64_t depth, float* wide) {
  const int64_t tall = best_gemm().tall;
  const Factor part = a.from(first, k);
  if (a.column_step != 1) {
    const int64_t strips = parts(rows, tall);
    at::parallel_for(0, strips, row_grain(tall * depth), [&](int64_t begin, int64_t end) {
      best_gemm().strips(part, rows, depth, begin, end, wide);
    });
    return {wide, depth * tall, 1, tall};
  }
  if (a.type == Element::f32) return {static_cast<const float*>(part.data), tall * a.row_step, a.row_step, 1};
  at::parallel_for(0, rows, row_grain(depth), [&](int64_t begin, int64_t end) {
    best_gemm().widen(static_cast<const uint16_t*>(part.data) + begin * a.row_step, a.row_step, end - begin,
                      depth, wide + begin * depth);
  });
  return {wide, tall * depth, depth, 1};
}

}  // namespace

const std::vector<const GemmKernels*>& gemm_kernels() {
  static const auto all =
      runnable<GemmKernels>({NLAC_X86_TABLES{InstructionSet::baseline, &baseline::table}});
  return all;
}

void multiply(int64_t m, int64_t n, int64_t k, const Factor& a, const Factor& b, const Result& to, bool add,
              const Addends& addends) {
  if (m <= 0 || n <= 0) return;
  // Equal shares of the depth: a function of k alone.
  const int64_t shares = std::max<int64_t>(1, parts(k, deepest)), share = parts(parts(k, shares), 16) * 16;
  const int64_t tall = std::min(m, tallest);
  const bool narrow = to.type == Element::bf16;
  const bool as_it_lies = a.type == Element::f32 && a.column_step == 1;
  const std::unique_ptr<float[]> wide(
      as_it_lies ? nullptr : new float[static_cast<size_t>((tall + best_gemm().tall) * std::min(k, share))]);
  // A bfloat16 result is summed in float32 first.
  const std::unique_ptr<float[]> finished(narrow ? new float[static_cast<size_t>(tall * n)] : nullptr);

  std::unique_ptr<float[]> wide_bias;
  const auto* bias = static_cast<const float*>(addends.bias);
  if (bias != nullptr && addends.bias_type == Element::bf16) {
    wide_bias.reset(new float[static_cast<size_t>(n)]);
    best_gemm().widen(static_cast<const uint16_t*>(addends.bias), n, 1, n, wide_bias.get());
    bias = wide_bias.get();
  }

  for (int64_t first = 0; first < m; first += tallest) {
    const int64_t rows = std::min(tallest, m - first), stride = narrow ? n : to.stride;
    float* const c = narrow ? finished.get() : static_cast<float*>(to.data) + first * to.stride;
    int64_t at = 0;
    do {
      const int64_t depth = std::min(share, k - at);
      const Rows left = rows_of(a, first, rows, at, depth, wide.get());
      const int64_t row_tasks = parts(rows, task_rows), tasks = parts(n, panel_columns) * row_tasks;
      at::parallel_for(
          0, tasks, grain(panel_columns * std::min(rows, task_rows) * depth),
          [&](int64_t begin, int64_t end) {
            const std::unique_ptr<float[]> panel(new float[static_cast<size_t>(depth * panel_columns)]);
            for (int64_t task = begin; task < end; ++task) {
              const int64_t column = task / row_tasks * panel_columns, row = task % row_tasks * task_rows;
              const int64_t count = std::min(panel_columns, n - column);
              if (task == begin || row == 0) best_gemm().pack(b.from(at, column), depth, count, panel.get());
              best_gemm().multiply({left.data + row / best_gemm().tall * left.strip_step, left.strip_step,
                                    left.row_step, left.column_step},
                                   std::min(task_rows, rows - row), depth, panel.get(), depth, count,
                                   c + row * stride + column, stride, at > 0 || add);
            }
          });
      at += depth;
    } while (at < k);
    if (!narrow && addends.bias == nullptr && addends.residual == nullptr) continue;
    at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const void* const residual =
            addends.residual == nullptr
                ? nullptr
                : element_at(addends.residual, addends.residual_type, (first + row) * addends.stride);
        best_gemm().finish(c + row * stride, n, bias, residual, addends.residual_type,
                           const_cast<void*>(element_at(to.data, to.type, (first + row) * to.stride)),
                           to.type);
      }
    });
  }
}

}  // namespace nlac::cpu
