// The instruction sets that loops are compiled for, and which of them this processor runs. A source includes
// the bodies of its loops once a set, the x86 ones under NLAC_X86_VARIANTS and between NLAC_BEGIN_AVX2 or
// NLAC_BEGIN_AVX512 and NLAC_END_VARIANT, each in a namespace of the set's name with a table of what came out,
// and defines all_kernels() with NLAC_ALL_KERNELS. Needs no torch. Thread rule: pure
// functions.
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
#define NLAC_X86_TABLES {InstructionSet::avx512, &avx512::table}, {InstructionSet::avx2, &avx2::table},
#else
#define NLAC_X86_TABLES
#endif

// all_kernels() of the namespace that this stands in.
#define NLAC_ALL_KERNELS                                                                  \
  const std::vector<const Kernels*>& all_kernels() {                                      \
    static const auto all =                                                               \
        runnable<Kernels>({NLAC_X86_TABLES{InstructionSet::baseline, &baseline::table}}); \
    return all;                                                                           \
  }

namespace nlac {

enum class InstructionSet { baseline, avx2, avx512, avx512_bf16 };

// Whether the processor and the system under us run what was compiled for `set`.
inline bool runs(InstructionSet set) {
#ifdef __x86_64__
  __builtin_cpu_init();  // a static initializer may come here before libgcc's own
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (set) {
    case InstructionSet::avx512_bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16");
    case InstructionSet::avx512:
      return avx512;
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
