// What a kernel's source sees when it is compiled as C++ to run on the CPU (rewrite.cmake includes
// this first): CUDA's keywords, built-in variables and intrinsics, as far as the kernels use them,
// and launches.
//
// Every thread of a kernel is a fiber of its own, all on one thread of the host. A fiber runs until
// it waits for others or is about to use an atomic; then another runs, chosen by a seeded random
// order that differs from launch to launch (NLAC_EMULATION_SEED in the environment gives others).
// Several blocks run at once. Shared memory starts as bytes of 0xFF (NaN), each variable in an
// allocation of its own. What is not emulated: speed, the order in which memory becomes visible,
// and anything between two synchronising calls.
//
// A fault (threads that wait for others that have left or wait elsewhere, a shuffle that reads a
// lane that takes no part, …) throws Fault from the launch. It leaves the kernel where it was.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <tuple>
#include <type_traits>

#define __CUDACC__ 1
#define __CUDA_ARCH__ NLAC_EMULATED_ARCH
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulated {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Where = std::source_location;

// Yields to any other thread.
void pause();
void sync_block(const Where& where);
void sync_cluster(const Where& where);
[[noreturn]] void fault(const char* what, const Where& where);

// The values of the participating lanes of a warp.
struct Exchange {
  std::array<uint64_t, 32> bits;
  uint32_t taking_part;
};
// Waits for the lanes of `mask`.
const Exchange& sync_warp(const char* call, uint32_t mask, uint64_t bits, const Where& where);
unsigned lane();

unsigned cluster_size();
unsigned cluster_rank();
void* shared_of_rank(void* own, unsigned rank, const Where& where);

// --- shared memory -------------------------------------------------------------------------------

int new_shared_variable();
void* shared_memory(int variable, size_t bytes);
void* dynamic_shared_memory();

// The block's variable of one declaration. Declarations differ by the type of `Place`.
template <typename T, typename Place>
T& shared(Place) {
  static_assert(std::is_trivially_copyable_v<std::remove_all_extents_t<T>>);
  static const int variable = new_shared_variable();
  return *static_cast<T*>(shared_memory(variable, sizeof(T)));
}

// --- launches ------------------------------------------------------------------------------------

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;
};

// Runs a kernel to its end. cudaGetLastError also reports a configuration that no device supports.
cudaError_t run(const Configuration& configuration, const void* kernel, const std::function<void()>& body);

template <typename... Parameters, typename... Arguments>
cudaError_t launch(const Configuration& configuration, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  const std::tuple<std::decay_t<Parameters>...> copies(static_cast<std::decay_t<Parameters>>(arguments)...);
  return run(configuration, reinterpret_cast<const void*>(kernel), [&] { std::apply(kernel, copies); });
}

// `kernel<<<grid, block, shared, stream>>>(arguments)` is rewritten to
// `kernel * configured(grid, block, shared, stream)(arguments)`.
template <typename... Arguments>
struct Call {
  Configuration configuration;
  std::tuple<const Arguments&...> arguments;
};
struct Configured {
  Configuration configuration;
  template <typename... Arguments>
  Call<Arguments...> operator()(const Arguments&... arguments) const {
    return {configuration, {arguments...}};
  }
};
inline Configured configured(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  return {{grid, block, shared_bytes, stream}};
}
template <typename... Parameters, typename... Arguments>
void operator*(void (*kernel)(Parameters...), const Call<Arguments...>& call) {
  std::apply([&](const Arguments&... arguments) { launch(call.configuration, kernel, arguments...); },
             call.arguments);
}

}  // namespace emulated

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  emulated::Configuration configuration{config->gridDim, config->blockDim, config->dynamicSmemBytes,
                                        config->stream};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const VectorOf3<unsigned>& cluster = config->attrs[i].val.clusterDim;
    if (cluster.y != 1 || cluster.z != 1) return cudaErrorInvalidValue;
    configuration.cluster = cluster.x;
  }
  return emulated::launch(configuration, kernel, arguments...);
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  attributes->ptxVersion = NLAC_EMULATED_ARCH / 10;
  return cudaSuccess;
}

// --- waiting for others --------------------------------------------------------------------------

inline void __syncthreads(const emulated::Where& where = emulated::Where::current()) {
  emulated::sync_block(where);
}
inline void __syncwarp(unsigned mask = ~0u, const emulated::Where& where = emulated::Where::current()) {
  emulated::sync_warp("__syncwarp", mask, 0, where);
}
inline void __threadfence() { emulated::pause(); }
inline void __threadfence_block() { emulated::pause(); }

namespace emulated {

template <typename T>
uint64_t bits_of(const T& value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename T>
T value_of(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// The value of lane source(own lane) within the same `width` lanes; its own value if there is no
// such lane.
template <typename T, typename Source>
T shuffled(const char* call, unsigned mask, const T& value, int width, const Where& where,
           const Source& source) {
  const Exchange& exchange = sync_warp(call, mask, bits_of(value), where);
  const int own = static_cast<int>(lane()), first = own / width * width, from = source(own - first);
  if (from < 0 || from >= width) return value;
  const int at = first + from;
  if ((exchange.taking_part >> at & 1) == 0) fault("reads a lane that takes no part", where);
  return value_of<T>(exchange.bits[at]);
}

// Combines the values of all lanes of `mask`.
template <typename T, typename Join>
T joined(const char* call, unsigned mask, const T& value, const Where& where, const Join& join) {
  const Exchange& exchange = sync_warp(call, mask, bits_of(value), where);
  bool first = true;
  T all = value;
  for (int i = 0; i < warpSize; ++i) {
    if ((exchange.taking_part >> i & 1) == 0) continue;
    const T next = value_of<T>(exchange.bits[i]);
    all = first ? next : join(all, next);
    first = false;
  }
  return all;
}

}  // namespace emulated

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              const emulated::Where& where = emulated::Where::current()) {
  return emulated::shuffled("__shfl_sync", mask, value, width, where, [&](int) { return source % width; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 const emulated::Where& where = emulated::Where::current()) {
  return emulated::shuffled("__shfl_up_sync", mask, value, width, where,
                            [&](int own) { return own - static_cast<int>(delta); });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   const emulated::Where& where = emulated::Where::current()) {
  return emulated::shuffled("__shfl_down_sync", mask, value, width, where,
                            [&](int own) { return own + static_cast<int>(delta); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize,
                  const emulated::Where& where = emulated::Where::current()) {
  return emulated::shuffled("__shfl_xor_sync", mask, value, width, where,
                            [&](int own) { return own ^ lanes; });
}

inline unsigned __ballot_sync(unsigned mask, bool predicate,
                              const emulated::Where& where = emulated::Where::current()) {
  return emulated::joined("__ballot_sync", mask, predicate ? 1u << emulated::lane() : 0u, where,
                          std::bit_or<>());
}
inline bool __any_sync(unsigned mask, bool predicate,
                       const emulated::Where& where = emulated::Where::current()) {
  return emulated::joined("__any_sync", mask, predicate, where, std::logical_or<>());
}
inline bool __all_sync(unsigned mask, bool predicate,
                       const emulated::Where& where = emulated::Where::current()) {
  return emulated::joined("__all_sync", mask, predicate, where, std::logical_and<>());
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value, const emulated::Where& where = emulated::Where::current()) {
  return emulated::joined("__reduce_add_sync", mask, value, where, std::plus<>());
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, const emulated::Where& where = emulated::Where::current()) {
  return emulated::joined("__reduce_max_sync", mask, value, where, [](T a, T b) { return std::max(a, b); });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, const emulated::Where& where = emulated::Where::current()) {
  return emulated::joined("__reduce_min_sync", mask, value, where, [](T a, T b) { return std::min(a, b); });
}

// --- atomics: all but the waiting is as in any program, since one fiber runs at a time -----------

namespace emulated {

template <typename T, typename Change>
T changed(T* at, const Change& change) {
  pause();
  const T old = *at;
  *at = static_cast<T>(change(old));
  return old;
}

}  // namespace emulated

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return emulated::changed(at, [&](T old) { return old + value; });
}
template <typename T>
T atomicSub(T* at, std::type_identity_t<T> value) {
  return emulated::changed(at, [&](T old) { return old - value; });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return emulated::changed(at, [&](T old) { return std::max(old, value); });
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return emulated::changed(at, [&](T old) { return std::min(old, value); });
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return emulated::changed(at, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return emulated::changed(at, [&](T old) { return old == expected ? value : old; });
}

// --- loads, stores and arithmetic ----------------------------------------------------------------

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, std::type_identity_t<T> value) {
  *at = value;
}

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1; }

using std::max;
using std::min;
