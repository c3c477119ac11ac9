// The instruction sets that loops are compiled for, and which of them this processor runs. A source includes
// the bodies of its loops once a set, the x86 ones under NLAC_X86_VARIANTS and between NLAC_BEGIN_AVX2 or
// NLAC_BEGIN_AVX512 and NLAC_END_VARIANT, and hands the tables of what came out to `runnable`.
// Needs no torch. Thread rule: pure functions.
#pragma once

#include <initializer_list>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NLAC_X86_VARIANTS
// Each names what `runs` asks the processor for, and no more.
#define NLAC_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define NLAC_BEGIN_AVX512           \
  _Pragma("GCC push_options")       \
  _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512\")")
#define NLAC_END_VARIANT _Pragma("GCC pop_options")
#endif

namespace nlac {

enum class InstructionSet { baseline, avx2, avx512 };

// Whether the processor and the system under us run what was compiled for `set`.
inline bool runs(InstructionSet set) {
#ifdef NLAC_X86_VARIANTS
  __builtin_cpu_init();  // a static initializer may come here before libgcc's own
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  switch (set) {
    case InstructionSet::avx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case InstructionSet::avx2:
      return avx2;
    case InstructionSet::baseline:
      break;
  }
#endif
  return set == InstructionSet::baseline;
}

template <typename Table>
struct Variant {
  InstructionSet set;
  const Table* table;
};

// The tables that this processor runs, in the order given: the fastest first, the baseline's last.
template <typename Table>
std::vector<const Table*> runnable(std::initializer_list<Variant<Table>> variants) {
  std::vector<const Table*> found;
  for (const Variant<Table>& variant : variants) {
    if (runs(variant.set)) found.push_back(variant.table);
  }
  return found;
}

}  // namespace nlac
