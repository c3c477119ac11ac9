#include "core/replay/sum_tree_kernels.h"

#include "core/instruction_set.h"

#ifdef NLAC_X86_VARIANTS
#include <immintrin.h>
#endif

// Vectors are never passed to a function that is not inlined, so their calling convention does not
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"

// Of two vectors of doubles; of floats.
#ifdef __clang__
#define NLAC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define NLAC_SHUFFLE_FLOATS(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define NLAC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Longs{__VA_ARGS__})
#define NLAC_SHUFFLE_FLOATS(a, b, ...) __builtin_shuffle(a, b, Integers{__VA_ARGS__})
#endif

#define NLAC_VARIANT baseline
#define NLAC_LANES 8
#define NLAC_INTRINSICS 0
#include "core/replay/sum_tree_kernels.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 4
#define NLAC_INTRINSICS 256
#include "core/replay/sum_tree_kernels.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 8
#define NLAC_INTRINSICS 512
#include "core/replay/sum_tree_kernels.inc"
NLAC_END_VARIANT
#endif

namespace nlac::tree_kernels {

NLAC_ALL_KERNELS

}  // namespace nlac::tree_kernels
