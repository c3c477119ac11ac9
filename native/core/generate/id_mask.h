// Sets of ids as bit masks, for grammars and the CUDA kernel: id is bit id % 32 of word id / 32.
#pragma once

#include <cstdint>

namespace nlac {

constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }
constexpr bool in_mask(const uint32_t* mask, int64_t id) { return (mask[id / 32] >> id % 32 & 1) != 0; }
constexpr void add_to_mask(uint32_t* mask, int64_t id) { mask[id / 32] |= uint32_t{1} << id % 32; }
constexpr void take_from_mask(uint32_t* mask, int64_t id) { mask[id / 32] &= ~(uint32_t{1} << id % 32); }

}  // namespace nlac
