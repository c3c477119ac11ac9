#include "core/io/tensor_entry.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/io/json.h"
#include "core/io/stored_types.h"

namespace nlac {
namespace {

static_assert(std::endian::native == std::endian::little,
              "both formats are little-endian and read as they lie");

template <typename T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);  // files promise no alignment
  return value;
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {  // zero or denormal: mantissa · 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f)
    return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);  // inf, NaN's payload
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// The block types. In a block of 32, byte i has value i in its low nibble and value i + 16 in its
// high one.
void q8_0_block(const uint8_t* block, float* out) {
  const float scale = half_to_float(load<uint16_t>(block));
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void q4_0_block(const uint8_t* block, float* out) {
  const float scale = half_to_float(load<uint16_t>(block));
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((block[2 + i] & 0x0f) - 8);
    out[i + 16] = scale * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// scale · nibble is exact in float32 (11 + 4 bits), so that contraction to a fused product changes
// nothing.
void q4_1_block(const uint8_t* block, float* out) {
  const float scale = half_to_float(load<uint16_t>(block));
  const float minimum = half_to_float(load<uint16_t>(block + 2));
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 0x0f) + minimum;
    out[i + 16] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

// Q5: the fifth bit of value i is bit i of a 32-bit word.
void q5_0_block(const uint8_t* block, float* out) {
  const float scale = half_to_float(load<uint16_t>(block));
  const uint32_t fifth = load<uint32_t>(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int low = (block[6 + i] & 0x0f) | static_cast<int>(fifth >> i & 1) << 4;
    const int high = (block[6 + i] >> 4) | static_cast<int>(fifth >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(low - 16);
    out[i + 16] = scale * static_cast<float>(high - 16);
  }
}

void q5_1_block(const uint8_t* block, float* out) {
  const float scale = half_to_float(load<uint16_t>(block));
  const float minimum = half_to_float(load<uint16_t>(block + 2));
  const uint32_t fifth = load<uint32_t>(block + 4);
  for (int i = 0; i < 16; ++i) {
    const int low = (block[8 + i] & 0x0f) | static_cast<int>(fifth >> i & 1) << 4;
    const int high = (block[8 + i] >> 4) | static_cast<int>(fifth >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(low) + minimum;
    out[i + 16] = scale * static_cast<float>(high) + minimum;
  }
}

// A nibble is twice a number of four bits, e2m1; the block has half of the power of two.
void mxfp4_block(const uint8_t* block, float* out) {
  static constexpr int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const float half = std::ldexp(1.0f, block[0] - 128);
  for (int i = 0; i < 16; ++i) {
    out[i] = half * static_cast<float>(doubled[block[1 + i] & 0x0f]);
    out[i + 16] = half * static_cast<float>(doubled[block[1 + i] >> 4]);
  }
}

// Of the K types' 12 bytes: scale (0 to 63) and minimum of the group of 32 values `group`, 0 to 7.
// The first four groups have theirs in six bits of a byte each; the last four in a nibble, and in
// the two bits that these bytes have left.
struct GroupScale {
  float scale, minimum;
};
GroupScale group_scale(const uint8_t* packed, int group) {
  if (group < 4)
    return {static_cast<float>(packed[group] & 0x3f), static_cast<float>(packed[group + 4] & 0x3f)};
  const int scale = (packed[group + 4] & 0x0f) | packed[group - 4] >> 6 << 4;
  const int minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
  return {static_cast<float>(scale), static_cast<float>(minimum)};
}

// Two groups share 32 bytes, the even one in the low nibbles; `fifth`, where there is one, has
// group g's in bit g. All products are exact in float32 (11 + 6 + 5 bits), so that the one
// subtraction rounds as it does everywhere.
void groups_of_k(const uint8_t* block, const uint8_t* fifth, const uint8_t* nibbles, float* out) {
  const float scales = half_to_float(load<uint16_t>(block));
  const float minima = half_to_float(load<uint16_t>(block + 2));
  for (int group = 0; group < 8; ++group, out += 32) {
    const GroupScale of = group_scale(block + 4, group);
    const float scale = scales * of.scale;
    const float minimum = minima * of.minimum;
    for (int i = 0; i < 32; ++i) {
      int value = nibbles[group / 2 * 32 + i] >> group % 2 * 4 & 0x0f;
      if (fifth != nullptr) value |= (fifth[i] >> group & 1) << 4;
      out[i] = scale * static_cast<float>(value) - minimum;
    }
  }
}

void q4_k_block(const uint8_t* block, float* out) { groups_of_k(block, nullptr, block + 16, out); }
void q5_k_block(const uint8_t* block, float* out) { groups_of_k(block, block + 16, block + 48, out); }

// Halves of 128 values: 64 bytes whose low nibbles are the first 64 values and whose high ones the
// rest; 32 bytes with two further bits of value i of each 32 in byte i. A scale for every 16
// values.
void q6_k_block(const uint8_t* block, float* out) {
  const uint8_t* scales = block + 192;
  const float scale = half_to_float(load<uint16_t>(block + 208));
  for (int half = 0; half < 2; ++half) {
    const uint8_t* nibbles = block + half * 64;
    const uint8_t* upper = block + 128 + half * 32;
    for (int i = 0; i < 128; ++i, ++out) {
      const int nibble = nibbles[i % 64] >> i / 64 * 4 & 0x0f;
      const int value = (nibble | (upper[i % 32] >> i / 32 * 2 & 3) << 4) - 32;
      const float group = scale * static_cast<float>(static_cast<int8_t>(scales[half * 8 + i / 16]));
      *out = group * static_cast<float>(value);
    }
  }
}

template <typename Block>
void expand_blocks(const uint8_t* data, BlockSize size, int64_t elements, float* out, Block block) {
  for (; elements >= size.values; elements -= size.values, data += size.bytes, out += size.values)
    block(data, out);
  if (elements > 0) {
    float last[256];
    block(data, last);
    std::copy_n(last, elements, out);
  }
}

}  // namespace

const char* stored_type_name(StoredType type) {
  switch (type) {
    case StoredType::f64: return "F64";
    case StoredType::f32: return "F32";
    case StoredType::f16: return "F16";
    case StoredType::bf16: return "BF16";
    case StoredType::i64: return "I64";
    case StoredType::i32: return "I32";
    case StoredType::u8: return "U8";
    case StoredType::q8_0: return "Q8_0";
    case StoredType::q4_0: return "Q4_0";
    case StoredType::q4_1: return "Q4_1";
    case StoredType::q5_0: return "Q5_0";
    case StoredType::q5_1: return "Q5_1";
    case StoredType::q4_k: return "Q4_K";
    case StoredType::q5_k: return "Q5_K";
    case StoredType::q6_k: return "Q6_K";
    case StoredType::mxfp4: return "MXFP4";
  }
  return "?";
}

void dequantize(const TensorEntry& entry, int64_t first, int64_t elements, float* out) {
  const int64_t total = entry.elements();
  NLAC_REQUIRE(first >= 0 && elements >= 0 && first <= total && elements <= total - first, "ERR_INDEX",
               elements, " elements from ", first, " on of tensor ", printable(entry.name), ", which has ",
               total);
  const BlockSize block = block_size(entry.type);
  NLAC_REQUIRE(first % block.values == 0, "ERR_INDEX", "element ", first, " of tensor ",
               printable(entry.name), " is inside a block of ", block.values);
  if (elements == 0) return;  // an empty tensor has no data to point at
  const uint8_t* data = entry.data + first / block.values * block.bytes;

  switch (entry.type) {
    case StoredType::f64:
      for (int64_t i = 0; i < elements; ++i) out[i] = static_cast<float>(load<double>(data + 8 * i));
      return;
    case StoredType::f32: std::memcpy(out, data, static_cast<size_t>(elements) * 4); return;
    case StoredType::f16:
      for (int64_t i = 0; i < elements; ++i) out[i] = half_to_float(load<uint16_t>(data + 2 * i));
      return;
    case StoredType::bf16:
      for (int64_t i = 0; i < elements; ++i) {
        const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(data + 2 * i)) << 16;
        std::memcpy(out + i, &bits, 4);
      }
      return;
    case StoredType::q8_0: return expand_blocks(data, block, elements, out, q8_0_block);
    case StoredType::q4_0: return expand_blocks(data, block, elements, out, q4_0_block);
    case StoredType::q4_1: return expand_blocks(data, block, elements, out, q4_1_block);
    case StoredType::q5_0: return expand_blocks(data, block, elements, out, q5_0_block);
    case StoredType::q5_1: return expand_blocks(data, block, elements, out, q5_1_block);
    case StoredType::q4_k: return expand_blocks(data, block, elements, out, q4_k_block);
    case StoredType::q5_k: return expand_blocks(data, block, elements, out, q5_k_block);
    case StoredType::q6_k: return expand_blocks(data, block, elements, out, q6_k_block);
    case StoredType::mxfp4: return expand_blocks(data, block, elements, out, mxfp4_block);
    case StoredType::i64:
    case StoredType::i32:
    case StoredType::u8: break;
  }
  fail("ERR_MODEL_FORMAT", "tensor ", printable(entry.name), " holds ", stored_type_name(entry.type),
       ", not floating-point values");
}

}  // namespace nlac
