// Counter-based random numbers: each is a pure function of (seed, stream, counter), so that a
// resumed run repeats bit for bit for every thread and batch. Philox4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011). No torch. constexpr, so CUDA kernels can
// call it.
#pragma once

#include <array>
#include <cstdint>

namespace nlac {

// The four 32-bit words at `counter` of stream `stream` under `seed`.
constexpr std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = static_cast<uint32_t>(p1), c2 = n2, c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// Uniform in [0, 1) with 53 bits.
constexpr double uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  const auto w = philox(seed, stream, counter);
  const uint64_t bits = (uint64_t{w[0]} << 32 | w[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace nlac
