// The instruction sets that loops are compiled for, and which of them run here: those of the
// processor, up to the one that the environment variable NLAC_INSTRUCTION_SET names. A source
// includes the bodies of its loops once per set, each in a namespace of the set's name with a table
// of its kernels. The x86 sets are under NLAC_X86_VARIANTS, between NLAC_BEGIN_AVX2 or
// NLAC_BEGIN_AVX512 and NLAC_END_VARIANT. NLAC_ALL_KERNELS defines all_kernels(). No torch. Thread
// rule: pure functions, except limit_libraries.
#pragma once

#include <array>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/platform.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NLAC_X86_VARIANTS
// Each names exactly the features that processor_runs() checks.
#define NLAC_BEGIN_AVX2 _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define NLAC_BEGIN_AVX512     \
  _Pragma("GCC push_options") \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512\")")
#define NLAC_END_VARIANT _Pragma("GCC pop_options")
#define NLAC_X86_TABLES {InstructionSet::avx512, &avx512::table}, {InstructionSet::avx2, &avx2::table},
#else
#define NLAC_X86_TABLES
#endif

// Defines all_kernels() of the enclosing namespace.
#define NLAC_ALL_KERNELS                                                                  \
  const std::vector<const Kernels*>& all_kernels() {                                      \
    static const auto all =                                                               \
        runnable<Kernels>({NLAC_X86_TABLES{InstructionSet::baseline, &baseline::table}}); \
    return all;                                                                           \
  }

namespace nlac {

// Each includes those before it. On ARM the baseline is NEON.
enum class InstructionSet { baseline, avx2, avx512, avx512_bf16, amx_bf16 };
inline constexpr std::array instruction_set_names{"baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
inline const char* name_of(InstructionSet set) { return instruction_set_names[static_cast<size_t>(set)]; }

// Whether the processor has matrix tiles for bfloat16 (AMX) and the kernel lets this process use
// them: it has to be asked once, because the tiles are 8 KiB of state per thread.
inline bool has_tiles() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && platform::permit_tiles();
#else
  return false;
#endif
}

// Whether the processor and the operating system run what was compiled for `set`.
inline bool processor_runs(InstructionSet set) {
#ifdef __x86_64__
  __builtin_cpu_init();  // a static initializer may come here before libgcc's own
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (set) {
    case InstructionSet::amx_bf16: return avx512 && __builtin_cpu_supports("avx512bf16") && has_tiles();
    case InstructionSet::avx512_bf16: return avx512 && __builtin_cpu_supports("avx512bf16");
    case InstructionSet::avx512: return avx512;
    case InstructionSet::avx2: return avx2;
    case InstructionSet::baseline: break;
  }
#endif
  return set == InstructionSet::baseline;
}

// The set that NLAC_INSTRUCTION_SET names, else the largest. Throws std::invalid_argument for
// another name.
inline InstructionSet instruction_set_limit() {
  static const InstructionSet limit = [] {
    const char* const name = std::getenv("NLAC_INSTRUCTION_SET");
    if (name == nullptr || *name == '\0') return InstructionSet::amx_bf16;
    for (size_t i = 0; i < instruction_set_names.size(); ++i)
      if (std::string_view(name) == instruction_set_names[i]) return static_cast<InstructionSet>(i);
    throw std::invalid_argument(
        "NLAC_INSTRUCTION_SET must be baseline, avx2, avx512, avx512_bf16 or amx_bf16, not " +
        std::string(name));
  }();
  return limit;
}

// Whether code compiled for `set` may run. No other code checks the processor.
inline bool runs(InstructionSet set) { return set <= instruction_set_limit() && processor_runs(set); }

inline InstructionSet best_instruction_set() {
  InstructionSet best = InstructionSet::baseline;
  for (const auto set :
       {InstructionSet::avx2, InstructionSet::avx512, InstructionSet::avx512_bf16, InstructionSet::amx_bf16})
    if (runs(set)) best = set;
  return best;
}

// Applies the limit to libtorch, oneDNN and MKL. Call at the start of a program, before any of them
// is used. Does nothing without a limit.
inline void limit_libraries() {
  const char* const limit = std::getenv("NLAC_INSTRUCTION_SET");
  if (limit == nullptr || *limit == '\0') return;
  struct Names {
    const char *torch, *onednn, *mkl;
  };
  constexpr std::array<Names, 5> names{{{"default", "SSE41", "SSE4_2"},
                                        {"avx2", "AVX2", "AVX2"},
                                        {"avx512", "AVX512_CORE", "AVX512"},
                                        {"avx512", "AVX512_CORE_BF16", "AVX512"},
                                        {"avx512", "AVX512_CORE_AMX", "AVX512"}}};
  const Names& name = names[static_cast<size_t>(instruction_set_limit())];
  setenv("ATEN_CPU_CAPABILITY", name.torch, 1);
  setenv("ONEDNN_MAX_CPU_ISA", name.onednn, 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", name.mkl, 1);
}

template <typename Table>
struct Variant {
  InstructionSet set;
  const Table* table;
};

// Returns the tables that run here, in the given order: the fastest first, the baseline's last.
template <typename Table>
std::vector<const Table*> runnable(std::initializer_list<Variant<Table>> variants) {
  std::vector<const Table*> found;
  for (const Variant<Table>& variant : variants) {
    if (runs(variant.set)) found.push_back(variant.table);
  }
  return found;
}

}  // namespace nlac
