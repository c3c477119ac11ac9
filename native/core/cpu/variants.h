// What a source begins with that compiles its loops once per instruction set and includes
// core/cpu/vectors.inc: the sets, their intrinsics, and what GCC 12 warns of without cause.
#pragma once

#include "core/instruction_set.h"

#ifdef NLAC_X86_VARIANTS
#include <immintrin.h>
// GCC 12 takes its own intrinsics' deliberately undefined operands for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
// Vectors never cross a function that is not inlined, so their calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
