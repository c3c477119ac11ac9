#include "core/io/tensor_entry.h"

#include <algorithm>
#include <bit>
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

// The block types. Nibble i of a block is value i in the low half of byte i, value i + 16 in the high half.
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

// scale · nibble is exact in float32 (11 + 4 bits), so that contraction to a fused product changes nothing.
void q4_1_block(const uint8_t* block, float* out) {
  const float scale = half_to_float(load<uint16_t>(block));
  const float minimum = half_to_float(load<uint16_t>(block + 2));
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(block[4 + i] & 0x0f) + minimum;
    out[i + 16] = scale * static_cast<float>(block[4 + i] >> 4) + minimum;
  }
}

template <typename Block>
void expand_blocks(const uint8_t* data, int64_t block_bytes, int64_t elements, float* out, Block block) {
  for (; elements >= 32; elements -= 32, data += block_bytes, out += 32) block(data, out);
  if (elements > 0) {
    float last[32];
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
    case StoredType::q8_0: return expand_blocks(data, block.bytes, elements, out, q8_0_block);
    case StoredType::q4_0: return expand_blocks(data, block.bytes, elements, out, q4_0_block);
    case StoredType::q4_1: return expand_blocks(data, block.bytes, elements, out, q4_1_block);
    case StoredType::i64:
    case StoredType::i32:
    case StoredType::u8: break;
  }
  fail("ERR_MODEL_FORMAT", "tensor ", printable(entry.name), " holds ", stored_type_name(entry.type),
       ", not floating-point values");
}

}  // namespace nlac
