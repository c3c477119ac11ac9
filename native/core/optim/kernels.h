// Loops over memory, one pass each, compiled for several instruction sets and chosen at run time.
// All round the same way (update_math.h), so a step has the same bits on every processor. Thread
// rule: pure functions of their arguments; callers split the range.
#pragma once

#include <cstdint>
#include <vector>

#include "core/optim/update_math.h"

namespace nlac::optim_kernels {

// The type of an element. bf16 is passed as its 16 bits.
enum class Held { f32, bf16 };

struct Kernels {
  // Σ g², in double.
  double (*square_sum)(const float* g, int64_t count);
  // One AdamW step; g becomes 0; `compute` (bf16 or f32, may be null) gets w.
  void (*adamw)(float* w, float* m, float* v, float* g, void* compute, Held held, int64_t count,
                const AdamWFactors& factors);
  // t ← t + target_rate·(o - t); `shadow` (may be null) gets t.
  void (*ema)(float* t, const void* o, Held online, void* shadow, Held held, int64_t count,
              float target_rate);
  // The same for a bf16 target, with stochastic rounding. t[0] is the first of the eight elements
  // of `counter`.
  void (*ema_rounded)(uint16_t* t, const void* o, Held online, int64_t count, float target_rate,
                      const Rounding& rounding, uint64_t counter);
};

// The variants that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

}  // namespace nlac::optim_kernels
