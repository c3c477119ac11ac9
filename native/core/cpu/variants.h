// Included first by sources that compile their loops once per instruction set with
// core/cpu/vectors.inc: the sets, their intrinsics, and pragmas against false warnings of GCC 12.
#pragma once

#include "core/instruction_set.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef NLAC_X86_VARIANTS
// GCC 12 warns of the deliberately undefined operands in its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
// Vectors are never passed to a function that is not inlined, so their calling convention does not
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"
