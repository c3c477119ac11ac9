// An AdamW step and an EMA step on a number or a vector of numbers. The loops of kernels.h and the
// CUDA kernels share these, so that all round the same way. No product is fused with a sum: nvcc is
// told here, a host compiler needs -ffp-contract=off. No torch.
#pragma once

#include <cstdint>

#include "core/host_device.h"

#define NLAC_UPDATE NLAC_HOST_DEVICE inline __attribute__((always_inline))

namespace nlac {

struct AdamWFactors {
  float decay;              // 1 - lr·wd, 1 where nothing decays
  float clip;               // multiplies the gradient
  float beta1, beta2;       // moments' decays
  float step;               // lr / (1 - beta1^t)
  float inverse_root_bias;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

// The source of the bits of stochastic rounding. Element e of a tensor takes 16 bits of philox
// (random.h) at the tensor's first counter + e / 8: the lower half of word e % 8 / 2 if e is even,
// else the upper.
struct Rounding {
  uint64_t seed, stream;
};

template <typename V, typename Factor>
NLAC_UPDATE V times(const V& v, const Factor& factor) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(v, factor);
#else
  return v * factor;
#endif
}

template <typename V>
NLAC_UPDATE void adamw_moments(V& m, V& v, const V& g, const AdamWFactors& f) {
  const V gradient = times(g, f.clip);
  m = m + times(gradient - m, 1 - f.beta1);
  v = times(v, f.beta2) + times(times(gradient, gradient), 1 - f.beta2);
}

// Returns the parameters after a step, given the first moment m and the square root of the second.
template <typename V>
NLAC_UPDATE V adamw_weights(const V& w, const V& m, const V& root, const AdamWFactors& f) {
  return times(w, f.decay) - times(m, f.step) / (times(root, f.inverse_root_bias) + f.epsilon);
}

// t + target_rate·(o - t), computed from the nearer end, so that target_rate = 1 gives the online
// value exactly.
template <typename V>
NLAC_UPDATE V mixed(const V& t, const V& o, float target_rate) {
  return target_rate < 0.5f ? t + times(o - t, target_rate) : o - times(o - t, 1 - target_rate);
}

}  // namespace nlac

#undef NLAC_UPDATE
