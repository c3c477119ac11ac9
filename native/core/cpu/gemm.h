// Matrix products on the CPU, of float32 and bfloat16 factors with float32 sums. Compiled for
// several instruction sets and chosen at run time. bfloat16 is widened a panel at a time, so no
// factor is copied whole.
//
// The order of an element's sum depends only on the depth k. So it does not depend, to the last
// bit, on other rows and columns, on where they begin, or on the number of threads. Tested against
// libtorch's product. Thread rule: the caller's thread, plus at::parallel_for.
#pragma once

#include <cstdint>
#include <vector>

namespace nlac::cpu {

enum class Element { f32, bf16 };
inline const void* element_at(const void* data, Element type, int64_t at) {
  return static_cast<const char*>(data) + at * (type == Element::f32 ? 4 : 2);
}

// A factor in memory: element (i, j) at data[i · row_step + j · column_step]. One of the
// steps is 1.
struct Factor {
  const void* data;
  Element type;
  int64_t row_step, column_step;
  // Returns the part from a row and a column on.
  Factor from(int64_t row, int64_t column) const {
    return {element_at(data, type, row * row_step + column * column_step), type, row_step, column_step};
  }
  Factor transposed() const { return {data, type, column_step, row_step}; }
};

// The result [m, n]: rows `stride` apart. bfloat16 is rounded once, from the finished sum.
struct Result {
  void* data;
  Element type;
  int64_t stride;
};

// Added to a product before it is rounded: a bias [n], and a matrix [m, n] with rows `stride`
// apart, which may be the result's memory. Null: none.
struct Addends {
  const void* bias = nullptr;
  Element bias_type = Element::f32;
  const void* residual = nullptr;
  Element residual_type = Element::f32;
  int64_t stride = 0;
};

// to [m, n] = or (with `add`; float32 alone) += a [m, k] · b [k, n] + the addends. k may be 0.
void multiply(int64_t m, int64_t n, int64_t k, const Factor& a, const Factor& b, const Result& to,
              bool add = false, const Addends& addends = {});

// --- kernels of an instruction set ---------------------------------------------------------------

// Columns of the right factor that are packed at a time.
constexpr int64_t panel_columns = 64;
// The left factor in float32, a strip of `tall` rows after another: element (i, j) at
// data[i / tall · strip_step + i % tall · row_step + j · column_step].
struct Rows {
  const float* data;
  int64_t strip_step, row_step, column_step;
};
// Each on the calling thread.
struct GemmKernels {
  int64_t tall;
  // c [rows, count] (rows `stride` apart) = or += a [rows, depth] · the first `depth` rows of a
  // panel that was packed with `packed_depth`; count ≤ panel_columns.
  void (*multiply)(const Rows& a, int64_t rows, int64_t depth, const float* panel, int64_t packed_depth,
                   int64_t count, float* c, int64_t stride, bool add);
  // panel ← `count` columns of b [depth, …], zeros beyond, in the order that `multiply` reads them.
  void (*pack)(const Factor& b, int64_t depth, int64_t count, float* panel);
  // to [rows, columns] f32 ← from, bfloat16, whose columns lie side by side, rows `row_step` apart.
  void (*widen)(const uint16_t* from, int64_t row_step, int64_t rows, int64_t columns, float* to);
  // Strips [first, last) of a factor a [rows, depth] whose rows lie side by side → to [strips,
  // depth, tall].
  void (*strips)(const Factor& a, int64_t rows, int64_t depth, int64_t first, int64_t last, float* to);
  // to [count] ← sums + bias + residual (null: none), rounded to the nearest, ties to even; NaN
  // stays NaN.
  void (*finish)(const float* sums, int64_t count, const float* bias, const void* residual,
                 Element residual_type, void* to, Element type);
};
// The variants that this processor runs, the fastest first.
const std::vector<const GemmKernels*>& gemm_kernels();
inline const GemmKernels& best_gemm() { return *gemm_kernels().front(); }

}  // namespace nlac::cpu
