// The kernels are templates over a vector of W floats, compiled for W = 4, 8 and 16 and chosen at
// run time.
#include "core/generate/logit_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/instruction_set.h"

// Vectors are never passed to a real call: everything below is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"
#define NLAC_INLINE inline __attribute__((always_inline))

namespace nlac::kernels {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

template <int W>
struct Lanes {
  typedef float Float __attribute__((vector_size(W * 4)));
  typedef int32_t Int __attribute__((vector_size(W * 4)));
};
template <int W>
using Float = typename Lanes<W>::Float;
template <int W>
using Int = typename Lanes<W>::Int;

template <int W>
NLAC_INLINE Float<W> splat(float value) {
  return Float<W>{} + value;
}

// Loads W values at x, or the remaining `count` < W padded with -inf, which is neutral in maxima
// and sums.
template <int W>
NLAC_INLINE Float<W> load(const float* x, int64_t count) {
  Float<W> v;
  if (count >= W) {
    std::memcpy(&v, x, sizeof v);
  } else {
    v = splat<W>(kNegativeInfinity);
    for (int64_t i = 0; i < count; ++i) v[i] = x[i];
  }
  return v;
}

template <int W>
NLAC_INLINE double horizontal_sum(const Float<W>& v) {
  double sum = 0;
  for (int i = 0; i < W; ++i) sum += v[i];
  return sum;
}

// exp(y) for y ≤ 0 to about one unit in the last place; 0 below the smallest normal number; NaN
// stays NaN. y = n·ln2 + r, |r| ≤ ln2/2; e^r by its Taylor series to r^7 (the rest is below 6e-9).
template <int W>
NLAC_INLINE Float<W> exp_nonpositive(const Float<W>& y) {
  constexpr float kRound = 0x1.8p23f;  // adding and subtracting it rounds to the nearest integer
  constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  const Float<W> n = (y * 0x1.715476p0f + kRound) - kRound;
  const Float<W> r = (y - n * kLn2High) - n * kLn2Low;
  Float<W> p = splat<W>(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Int<W> bits = (__builtin_convertvector(n, Int<W>) + 127) << 23;
  Float<W> power;
  std::memcpy(&power, &bits, sizeof power);
  const Float<W> zero{};
  return y < -87.3f ? zero : p * power;
}

template <int W>
NLAC_INLINE float max_body(const float* x, int64_t n) {
  Float<W> best = splat<W>(kNegativeInfinity);
  for (int64_t i = 0; i < n; i += W) {
    const Float<W> v = load<W>(x + i, n - i);
    best = v > best ? v : best;
  }
  float top = best[0];
  for (int i = 1; i < W; ++i) top = std::max(top, best[i]);
  return top;
}

template <int W>
NLAC_INLINE void sums_body(const float* x, int64_t n, float top, float scale, double* sums) {
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = std::min(n, begin + kSumBlock);
    Float<W> sum{};
    for (int64_t i = begin; i < end; i += W) {
      sum += exp_nonpositive<W>((load<W>(x + i, end - i) - top) * scale);
    }
    *sums++ = horizontal_sum<W>(sum);
  }
}

template <int W>
NLAC_INLINE void exponentials_body(const float* x, int64_t n, float top, float scale, float* out) {
  for (int64_t i = 0; i < n; i += W) {
    const Float<W> e = exp_nonpositive<W>((load<W>(x + i, n - i) - top) * scale);
    if (n - i >= W) {
      std::memcpy(out + i, &e, sizeof e);
    } else {
      std::memcpy(out + i, &e, static_cast<size_t>(n - i) * sizeof(float));
    }
  }
}

template <int W>
NLAC_INLINE double mass_body(const float* x, int64_t n, float top, float scale, float threshold) {
  const Float<W> least = splat<W>(threshold), nothing = splat<W>(kNegativeInfinity);
  double mass = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    const int64_t end = std::min(n, begin + kSumBlock);
    Float<W> sum{};
    for (int64_t i = begin; i < end; i += W) {
      const Float<W> v = load<W>(x + i, end - i);
      const Float<W> counted = v < least ? nothing : v;
      sum += exp_nonpositive<W>((counted - top) * scale);
    }
    mass += horizontal_sum<W>(sum);
  }
  return mass;
}

template <int W>
NLAC_INLINE void maxima_body(const float* x, int64_t n, float* maxima) {
  for (int64_t begin = 0; begin < n; begin += kMaxBlock) {
    *maxima++ = max_body<W>(x + begin, std::min(kMaxBlock, n - begin));
  }
}

template <int W>
NLAC_INLINE void select_body(const float* x, int64_t n, float threshold, std::vector<int32_t>& indices) {
  // Usually few values pass, so a block is scanned only if its maximum passes. There, every index
  // is written and only passing ones are counted, because a branch would be mispredicted half of
  // the time.
  for (int64_t begin = 0; begin < n; begin += kMaxBlock) {
    const int64_t count = std::min(kMaxBlock, n - begin);
    if (!(max_body<W>(x + begin, count) >= threshold)) continue;
    size_t held = indices.size();
    indices.resize(held + kMaxBlock);
    int32_t* out = indices.data();
    for (int64_t i = begin; i < begin + count; ++i) {
      out[held] = static_cast<int32_t>(i);
      held += x[i] >= threshold;
    }
    indices.resize(held);
  }
}

template <int W>
NLAC_INLINE void allowed_body(float* x, int64_t n, const uint32_t* allowed) {
  Int<W> lanes;
  for (int i = 0; i < W; ++i) lanes[i] = int32_t{1} << i;
  const Float<W> nothing = splat<W>(kNegativeInfinity);
  const Int<W> none{};
  for (int64_t i = 0; i < n; i += W) {
    const uint32_t bits = allowed[i / 32] >> (i % 32);
    const Float<W> v = load<W>(x + i, n - i);
    const Float<W> kept = ((none + static_cast<int32_t>(bits)) & lanes) != none ? v : nothing;
    std::memcpy(x + i, &kept, static_cast<size_t>(std::min<int64_t>(W, n - i)) * sizeof(float));
  }
}

struct Table {
  float (*max_value)(const float*, int64_t);
  void (*exp_block_sums)(const float*, int64_t, float, float, double*);
  void (*exponentials)(const float*, int64_t, float, float, float*);
  double (*exp_mass_at_least)(const float*, int64_t, float, float, float);
  void (*block_maxima)(const float*, int64_t, float*);
  void (*select_at_least)(const float*, int64_t, float, std::vector<int32_t>&);
  void (*keep_allowed)(float*, int64_t, const uint32_t*);
};

#define NLAC_KERNELS(name, W, target)                                                                      \
  struct name {                                                                                            \
    target static float max(const float* x, int64_t n) { return max_body<W>(x, n); }                       \
    target static void sums(const float* x, int64_t n, float top, float scale, double* out) {              \
      sums_body<W>(x, n, top, scale, out);                                                                 \
    }                                                                                                      \
    target static void exps(const float* x, int64_t n, float top, float scale, float* out) {               \
      exponentials_body<W>(x, n, top, scale, out);                                                         \
    }                                                                                                      \
    target static double mass(const float* x, int64_t n, float top, float scale, float threshold) {        \
      return mass_body<W>(x, n, top, scale, threshold);                                                    \
    }                                                                                                      \
    target static void maxima(const float* x, int64_t n, float* out) { maxima_body<W>(x, n, out); }        \
    target static void select(const float* x, int64_t n, float threshold, std::vector<int32_t>& indices) { \
      select_body<W>(x, n, threshold, indices);                                                            \
    }                                                                                                      \
    target static void keep(float* x, int64_t n, const uint32_t* allowed) {                                \
      allowed_body<W>(x, n, allowed);                                                                      \
    }                                                                                                      \
    static constexpr Table table{max, sums, exps, mass, maxima, select, keep};                             \
  };

NLAC_KERNELS(Baseline, 4, )
#if defined(__x86_64__)
NLAC_KERNELS(Avx2, 8, __attribute__((target("avx2,fma"))))
NLAC_KERNELS(Avx512, 16, __attribute__((target("avx512f,avx2,fma"))))
#endif
#undef NLAC_KERNELS

const Table& table() {
  static const auto tables = runnable<Table>({
#if defined(__x86_64__)
      {InstructionSet::avx512, &Avx512::table},
      {InstructionSet::avx2, &Avx2::table},
#endif
      {InstructionSet::baseline, &Baseline::table},
  });
  return *tables.front();
}

}  // namespace

float max_value(const float* x, int64_t n) { return table().max_value(x, n); }

void exp_block_sums(const float* x, int64_t n, float top, float scale, double* sums) {
  table().exp_block_sums(x, n, top, scale, sums);
}

void exponentials(const float* x, int64_t n, float top, float scale, float* out) {
  table().exponentials(x, n, top, scale, out);
}

double exp_mass_at_least(const float* x, int64_t n, float top, float scale, float threshold) {
  return table().exp_mass_at_least(x, n, top, scale, threshold);
}

void block_maxima(const float* x, int64_t n, float* maxima) { table().block_maxima(x, n, maxima); }

void select_at_least(const float* x, int64_t n, float threshold, std::vector<int32_t>& indices) {
  table().select_at_least(x, n, threshold, indices);
}

void keep_allowed(float* x, int64_t n, const uint32_t* allowed) { table().keep_allowed(x, n, allowed); }

}  // namespace nlac::kernels
