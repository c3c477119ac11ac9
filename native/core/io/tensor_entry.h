// One tensor of a weights file, after every bound has been checked. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nlac {

// Element or block types that nlac reads. A block type holds 32 values a block, one that ends in _k
// 256.
enum class StoredType {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  u8,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  mxfp4
};

struct TensorEntry {
  std::string name;
  StoredType type;
  std::vector<int64_t> shape;  // row-major, outermost first (GGUF's order is reversed on reading)
  const uint8_t* data;         // points into the mapped file; may be unaligned
  size_t bytes;
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

const char* stored_type_name(StoredType type);

// Expands `elements` values of `entry` starting at element `first` (for block types the first of a
// block) into float32, exactly as the format defines (bit-equal to the `gguf` Python package).
// Float types only.
void dequantize(const TensorEntry& entry, int64_t first, int64_t elements, float* out);

}  // namespace nlac
