// Whether the bfloat16 kernels run here. For processors other than x86-64, stubs that are never
// called.
#include "core/cpu/bf16_kernels.h"

#include "core/instruction_set.h"

namespace nlac::bf16 {

#if defined(__x86_64__)

bool available() {
  static const bool yes = runs(InstructionSet::avx512_bf16);
  return yes;
}

#else

bool available() { return false; }
void linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, float*) {}
void add_transposed_product(const Bits*, const Bits*, int64_t, int64_t, int64_t, float*) {}
int64_t packed_size(int64_t, int64_t) { return 0; }
void pack_weights(const Bits*, int64_t, int64_t, Bits*) {}
void packed_linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void packed_linear(const Bits*, int64_t, const Bits*, const Bits*, int64_t, int64_t, float*, int64_t, bool) {}
int64_t int8_scales(int64_t, int64_t) { return 0; }
void pack_int8(const Bits*, int64_t, int64_t, int8_t*, float*) {}
void packed_linear(const Bits*, int64_t, const int8_t*, const float*, const Bits*, int64_t, int64_t, Bits*) {}
void packed_linear(const Bits*, int64_t, const int8_t*, const float*, const Bits*, int64_t, int64_t, float*,
                   int64_t, bool) {}
void store_key(const Bits*, int64_t, int64_t, Bits*) {}
void store_value(const Bits*, int64_t, int64_t, bool, Bits*) {}
void attend_blocks(const BlockHead&, int64_t, int64_t, const Bits*, const void* const*, int64_t, int64_t,
                   Bits*) {}
void attend(const Head&, const Bits*, const Bits*, const Bits*, Bits*, float*) {}
void attend_backward(const Head&, const Bits*, const Bits*, const Bits*, const Bits*, const float*,
                     const Bits*, Bits*, float*, float*) {}
void rms_norm(const Bits*, int64_t, int64_t, const Bits*, bool, float, Bits*) {}
void rms_norm(const float*, int64_t, int64_t, const Bits*, bool, float, Bits*) {}
void rms_norm_backward(const Bits*, const Bits*, const Bits*, int64_t, int64_t, const Bits*, bool, float,
                       Bits*, float*) {}
void gated_silu(const Bits*, int64_t, int64_t, Bits*) {}
void gated_silu_backward(const Bits*, const Bits*, int64_t, int64_t, Bits*) {}
void rotate(Bits*, int64_t, int64_t, int64_t, int64_t, const float*, const float*, const int64_t*, float) {}

#endif

}  // namespace nlac::bf16
