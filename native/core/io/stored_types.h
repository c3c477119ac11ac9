// Sizes of the stored types: blocks of `values` elements in `bytes` bytes. Shared by the readers.
#pragma once

#include <cstdint>

#include "core/io/tensor_entry.h"

namespace nlac {

struct BlockSize {
  int64_t values;
  int64_t bytes;
};

constexpr BlockSize block_size(StoredType type) {
  switch (type) {
    case StoredType::f64:
    case StoredType::i64: return {1, 8};
    case StoredType::f32:
    case StoredType::i32: return {1, 4};
    case StoredType::f16:
    case StoredType::bf16: return {1, 2};
    case StoredType::u8: return {1, 1};
    case StoredType::q8_0: return {32, 34};   // a half scale, 32 signed bytes
    case StoredType::q4_0: return {32, 18};   // a half scale, 32 nibbles
    case StoredType::q4_1: return {32, 20};   // a half scale, a half minimum, 32 nibbles
    case StoredType::q5_0: return {32, 22};   // a half scale, 32 fifth bits, 32 nibbles
    case StoredType::mxfp4: return {32, 17};  // a power of two, 32 nibbles
    case StoredType::q5_1:
      return {32, 24};  // a half scale, a half minimum, 32 fifth bits, 32 nibbles
    // Of a block of 256: two halves, 8 scales and 8 minima of 6 bits, (fifth bits,) nibbles
    case StoredType::q4_k: return {256, 144};
    case StoredType::q5_k: return {256, 176};
    case StoredType::q6_k:
      return {256, 210};  // nibbles, fifth and sixth bits, 16 signed scales, a half scale
  }
  return {1, 1};
}

}  // namespace nlac
