// Products of gemm.h within one thread, for kernels that make several of them from the same factor.
// Thread rule: pure functions of their arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/cpu/gemm.h"
#include "core/cpu/shares.h"

namespace nlac::cpu {

template <typename T>
std::unique_ptr<T[]> scratch(int64_t count) {
  return std::unique_ptr<T[]>(new T[static_cast<size_t>(count)]);
}

inline int64_t panels(int64_t columns) { return parts(columns, panel_columns); }

// A right factor's panels of 64 columns, packed whole.
class Panels {
 public:
  Panels(const Factor& factor, int64_t depth, int64_t columns)
      : depth_(depth), columns_(columns), numbers_(scratch<float>(panels(columns) * panel_columns * depth)) {
    for (int64_t c = 0; c < columns; c += panel_columns)
      best_gemm().pack(factor.from(0, c), depth, std::min(panel_columns, columns - c),
                       numbers_.get() + c * depth);
  }
  // to [rows, columns] = or += left [rows, depth] · the panels' first rows and columns.
  void multiply(const Rows& left, int64_t rows, int64_t depth, int64_t columns, float* to, int64_t stride,
                bool add) const {
    for (int64_t c = 0; c < columns; c += panel_columns)
      best_gemm().multiply(left, rows, depth, numbers_.get() + c * depth_, depth_,
                           std::min(panel_columns, columns - c), to + c, stride, add);
  }
  // The same with all of them.
  void multiply(const Rows& left, int64_t rows, float* to, int64_t stride, bool add) const {
    multiply(left, rows, depth_, columns_, to, stride, add);
  }

 private:
  int64_t depth_, columns_;
  std::unique_ptr<float[]> numbers_;
};

inline Factor rows_factor(const float* data, int64_t step) { return {data, Element::f32, step, 1}; }
inline Factor rows_factor(const uint16_t* data, int64_t step) { return {data, Element::bf16, step, 1}; }

// Left factors: rows as they lie, and the transpose of [depth, rows] numbers, made strips in
// `room` of (rows + best_gemm().tall) · depth numbers.
inline Rows left_of(const float* data, int64_t step) { return {data, best_gemm().tall * step, step, 1}; }
inline Rows turned(const float* data, int64_t step, int64_t rows, int64_t depth, float* room) {
  const int64_t tall = best_gemm().tall;
  best_gemm().strips({data, Element::f32, 1, step}, rows, depth, 0, parts(rows, tall), room);
  return {room, depth * tall, 1, tall};
}

}  // namespace nlac::cpu
