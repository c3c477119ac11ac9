#include "cuda/sum_tree.h"

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
  // Bypasses the L1 cache, which may hold values that another multiprocessor has changed.
  template <typename T>
  static __device__ T read(const T* at) {
    return __ldcg(at);
  }
};

__device__ int64_t position() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

__global__ void claim_kernel(SumTreeView view, TreeShape shape, const int32_t* indices, int64_t count) {
  const int64_t i = position();
  if (i < count) claim_leaf<DeviceAtomics>(shape, view.memory, indices[i], static_cast<uint32_t>(i));
}

__global__ void write_kernel(SumTreeView view, TreeShape shape, const int32_t* indices,
                             const float* priorities, int64_t count) {
  const int64_t i = position();
  if (i >= count) return;
  const float priority = priorities[i];
  write_leaf<DeviceAtomics>(shape, view.memory, indices[i], static_cast<uint32_t>(i), priority,
                            mass_of(priority, view.alpha));
}

__global__ void sample_kernel(SumTreeView view, TreeShape shape, uint64_t seed, uint64_t first_draw,
                              int64_t count, bool stratified, int32_t* indices, float* probabilities,
                              float* weights) {
  const int64_t i = position();
  if (i >= count) return;
  const double* tree = view.memory.tree;
  const double total = tree[shape.total - 1];
  if (!(total > 0)) {
    indices[i] = -1;
    probabilities[i] = weights[i] = 0;
    return;
  }
  const double u = uniform(seed, draw_stream, first_draw + static_cast<uint64_t>(i));
  const int64_t leaf = descend(tree, view.memory.starts, shape, draw_target(u, i, count, stratified, total));
  const double least = view.beta > 0 ? mass_of(view.memory.min[shape.inner() - 1], view.alpha) : 0;
  indices[i] = static_cast<int32_t>(leaf);
  probabilities[i] = static_cast<float>(tree[leaf] / total);
  weights[i] = weight_of(tree[leaf], least, view.beta);
}

__global__ void get_kernel(const float* raw, const int32_t* indices, float* priorities, int64_t count) {
  const int64_t i = position();
  if (i < count) priorities[i] = raw[indices[i]];
}

unsigned blocks(int64_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

bool launchable(int64_t count) { return count >= 0 && count <= INT32_MAX; }

}  // namespace

cudaError_t sum_tree_set(const SumTreeView& tree, const int32_t* indices, const float* priorities,
                         int64_t count, cudaStream_t stream) {
  if (!launchable(count)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const TreeShape shape = make_tree_shape(tree.capacity);
  claim_kernel<<<blocks(count), threads, 0, stream>>>(tree, shape, indices, count);
  const cudaError_t claimed = cudaGetLastError();
  if (claimed != cudaSuccess) return claimed;
  write_kernel<<<blocks(count), threads, 0, stream>>>(tree, shape, indices, priorities, count);
  return cudaGetLastError();
}

cudaError_t sum_tree_sample(const SumTreeView& tree, uint64_t seed, uint64_t first_draw, int64_t count,
                            bool stratified, int32_t* indices, float* probabilities, float* weights,
                            cudaStream_t stream) {
  if (!launchable(count)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  const TreeShape shape = make_tree_shape(tree.capacity);
  sample_kernel<<<blocks(count), threads, 0, stream>>>(tree, shape, seed, first_draw, count, stratified,
                                                       indices, probabilities, weights);
  return cudaGetLastError();
}

cudaError_t sum_tree_get(const SumTreeView& tree, const int32_t* indices, float* priorities, int64_t count,
                         cudaStream_t stream) {
  if (!launchable(count)) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  get_kernel<<<blocks(count), threads, 0, stream>>>(tree.memory.raw, indices, priorities, count);
  return cudaGetLastError();
}

}  // namespace nlac::cuda
