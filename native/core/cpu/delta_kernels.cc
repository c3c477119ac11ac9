#pragma GCC optimize("O3")

#include "core/cpu/delta_kernels.h"

#include "core/cpu/variants.h"

#define NLAC_VARIANT baseline
#define NLAC_LANES 4
#include "core/cpu/delta_kernels.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 8
#include "core/cpu/delta_kernels.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 16
#include "core/cpu/delta_kernels.inc"
NLAC_END_VARIANT
#endif

namespace nlac::delta_kernels {

NLAC_ALL_KERNELS

}  // namespace nlac::delta_kernels
