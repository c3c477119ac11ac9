#include "cuda/sum_tree.h"

#include <cfloat>
#include <cmath>

#include "core/random.h"

namespace nlac::cuda {
namespace {

constexpr int threads = 128;

struct DeviceAtomics {
  static __device__ uint32_t add(uint32_t* at, uint32_t n) { return atomicAdd(at, n); }
  static __device__ uint32_t maximum(uint32_t* at, uint32_t n) { return atomicMax(at, n); }
  static __device__ bool take(uint32_t* at, uint32_t n) { return atomicCAS(at, n, 0u) == n; }
  static __device__ uint32_t subtract(uint32_t* at, uint32_t n) {
    __threadfence();
    const uint32_t old = atomicSub(at, n);
    __threadfence();
    return old;
  }
  // Past the first-level cache, which may hold what another multiprocessor has since changed.
  static __device__ double read(const double* at) { return __ldcg(at); }
};

__device__ double mass(float priority, double alpha) {
  if (!(priority > 0)) return 0;
  return alpha == 1 ? priority : pow(static_cast<double>(priority), alpha);
}

__device__ int fault_of(int64_t capacity, int64_t index, float priority, double mass) {
  if (index < 0 || index >= capacity) return bad_index;
  // As on the CPU: the sum of 2^27 such masses is still finite.
  if (!isfinite(priority) || priority < 0 || !(mass <= DBL_MAX * 0x1p-28)) return bad_priority;
  return none;
}

__device__ int64_t position() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__global__ void claim_kernel(SumTreeView view, TreeShape shape, const int64_t* indices,
                             const float* priorities, int64_t count) {
  const int64_t i = position();
  if (i >= count) return;
  const int fault = fault_of(view.capacity, indices[i], priorities[i], mass(priorities[i], view.alpha));
  if (fault != none) {
    atomicMax(view.fault, fault);
  } else {
    claim_leaf<DeviceAtomics>(shape, view.memory, indices[i], static_cast<uint32_t>(i));
  }
}

__global__ void write_kernel(SumTreeView view, TreeShape shape, const int64_t* indices,
                             const float* priorities, int64_t count) {
  const int64_t i = position();
  if (i >= count) return;
  const float priority = priorities[i];
  const double m = mass(priority, view.alpha);
  if (fault_of(view.capacity, indices[i], priority, m) != none) return;
  write_leaf<DeviceAtomics>(shape, view.memory, indices[i], static_cast<uint32_t>(i), priority, m,
                            *view.fault == none);
}

__global__ void sample_kernel(SumTreeView view, TreeShape shape, uint64_t seed, uint64_t first_draw,
                              int64_t count, bool stratified, int64_t* indices, float* probabilities,
                              float* weights) {
  const int64_t i = position();
  if (i >= count) return;
  const double* tree = view.memory.tree;
  const double total = tree[shape.total - 1];
  if (!(total > 0)) {
    indices[i] = -1;
    probabilities[i] = weights[i] = 0;
    if (i == 0) atomicMax(view.fault, empty);
    return;
  }
  const double u = uniform(seed, draw_stream, first_draw + static_cast<uint64_t>(i));
  const int64_t leaf = descend(tree, shape, draw_target(u, i, count, stratified, total));
  indices[i] = leaf;
  probabilities[i] = static_cast<float>(tree[leaf] / total);
  const double least = view.memory.least == nullptr ? 0 : view.memory.least[shape.total - shape.size[0] - 1];
  weights[i] = least > 0 ? static_cast<float>(pow(tree[leaf] / least, -view.beta)) : 1.0f;
}

unsigned blocks(int64_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

}  // namespace

cudaError_t sum_tree_set(const SumTreeView& tree, const int64_t* indices, const float* priorities,
                         int64_t count, cudaStream_t stream) {
  if (count < 0 || count >= INT64_C(0xFFFFFFFF)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const TreeShape shape = make_tree_shape(tree.capacity);
  claim_kernel<<<blocks(count), threads, 0, stream>>>(tree, shape, indices, priorities, count);
  const cudaError_t claimed = cudaGetLastError();
  if (claimed != cudaSuccess) return claimed;
  write_kernel<<<blocks(count), threads, 0, stream>>>(tree, shape, indices, priorities, count);
  return cudaGetLastError();
}

cudaError_t sum_tree_sample(const SumTreeView& tree, uint64_t seed, uint64_t first_draw, int64_t count,
                            bool stratified, int64_t* indices, float* probabilities, float* weights,
                            cudaStream_t stream) {
  if (count < 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const TreeShape shape = make_tree_shape(tree.capacity);
  sample_kernel<<<blocks(count), threads, 0, stream>>>(tree, shape, seed, first_draw, count, stratified,
                                                       indices, probabilities, weights);
  return cudaGetLastError();
}

}  // namespace nlac::cuda
