// Plain loops over memory, one pass each, compiled for several instruction sets and chosen at run time.
// Thread rule: pure functions of their arguments; callers split the range.
#pragma once

#include <cstdint>
#include <vector>

namespace nlac::optim_kernels {

struct AdamWFactors {
  float decay;              // 1 - lr·wd, 1 where nothing decays
  float clip;               // multiplies the gradient
  float beta1, beta2;       // moments' decays
  float step;               // lr / (1 - beta1^t)
  float inverse_root_bias;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

// What an element is held in. bf16 travels as its 16 bits.
enum class Held { f32, bf16 };

struct Kernels {
  // Σ g², in double.
  double (*square_sum)(const float* g, int64_t count);
  // One AdamW step; g becomes 0; `compute` (bf16 or f32, may be null) gets w.
  void (*adamw)(float* w, float* m, float* v, float* g, void* compute, Held held, int64_t count,
                const AdamWFactors& factors);
  // t ← t + tau·(o - t); `shadow` (may be null) gets t.
  void (*ema)(float* t, const void* o, Held online, void* shadow, Held held, int64_t count, float tau);
};

// All that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

}  // namespace nlac::optim_kernels
