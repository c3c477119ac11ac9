#include "cuda/adamw.h"

#include "cuda/tensor_list.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;
using AdamWBatch = Batch<AdamWTensor>;

constexpr int width = 4;
constexpr int norm_chunks = 4;  // vectors that a thread reads before it uses the first
constexpr int step_chunks = 2;
constexpr int finishing_threads = 1024;

// The head of the workspace. A partial sum for each block follows.
struct Outcome {
  double norm, clip;
};
constexpr int64_t outcome_doubles = sizeof(Outcome) / sizeof(double);

// Returns the sum over a block's threads, in a fixed order, in thread 0.
__device__ double block_reduce(double sum) {
  __shared__ double warp_sums[32];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  sum = threadIdx.x < blockDim.x / 32 ? warp_sums[threadIdx.x] : 0;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
  return sum;
}

__device__ double square(float x) { return static_cast<double>(x) * x; }

__global__ void __launch_bounds__(threads)
    square_sums_kernel(const __grid_constant__ AdamWBatch batch, double* partial) {
  const Share share = share_of(batch);
  const float* g = batch.tensors[share.tensor].g;
  const int64_t whole = aligned<width>(g) ? share.end - (share.end - share.begin) % width : share.begin;
  double sum = 0;
  for (int64_t first = share.begin + width * threadIdx.x; first < whole;
       first += norm_chunks * width * threads) {
    Values<width> values[norm_chunks] = {};
#pragma unroll
    for (int c = 0; c < norm_chunks; ++c) {
      const int64_t i = first + c * width * threads;
      if (i < whole) values[c] = load<width>(g + i);
    }
#pragma unroll
    for (int c = 0; c < norm_chunks; ++c) {
#pragma unroll
      for (int j = 0; j < width; ++j) sum += square(values[c].of[j]);
    }
  }
  for (int64_t i = whole + threadIdx.x; i < share.end; i += threads) sum += square(g[i]);
  sum = block_reduce(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(finishing_threads)
    norm_kernel(const double* partial, int64_t count, double max_grad_norm, Outcome* outcome) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += finishing_threads) sum += partial[i];
  sum = block_reduce(sum);
  if (threadIdx.x != 0) return;
  outcome->norm = sqrt(sum);
  outcome->clip = max_grad_norm > 0 ? fmin(1.0, max_grad_norm / (outcome->norm + 1e-6)) : 1.0;
}

__global__ void __launch_bounds__(threads)
    step_kernel(const __grid_constant__ AdamWBatch batch, AdamWFactors factors, float target_rate,
                const Outcome* outcome) {
  const Share share = share_of(batch);
  const AdamWTensor& tensor = batch.tensors[share.tensor];
  float *w = tensor.w, *m = tensor.m, *v = tensor.v, *g = tensor.g, *target = tensor.target;
  auto* compute = static_cast<Bf16*>(tensor.compute);
  auto* shadow = static_cast<Bf16*>(tensor.shadow);
  factors.clip = static_cast<float>(outcome->clip);
  factors.decay = tensor.decay;
  const bool skipped = !isfinite(outcome->norm);

  const bool wide = aligned<width>(w) && aligned<width>(m) && aligned<width>(v) && aligned<width>(g) &&
                    aligned<width>(compute) && aligned<width>(target) && aligned<width>(shadow);
  const int64_t whole = wide ? share.end - (share.end - share.begin) % width : share.begin;
  for (int64_t first = share.begin + width * threadIdx.x; first < whole;
       first += step_chunks * width * threads) {
    if (skipped) {
#pragma unroll
      for (int c = 0; c < step_chunks; ++c) {
        const int64_t i = first + c * width * threads;
        if (i < whole) store(g + i, Values<width>{});
      }
      continue;
    }
    Values<width> weights[step_chunks], one_m[step_chunks], one_v[step_chunks], gradient[step_chunks],
        average[step_chunks];
#pragma unroll
    for (int c = 0; c < step_chunks; ++c) {
      const int64_t i = first + c * width * threads;
      if (i >= whole) continue;
      gradient[c] = load<width>(g + i);
      one_m[c] = load<width>(m + i);
      one_v[c] = load<width>(v + i);
      weights[c] = load<width>(w + i);
      if (target != nullptr) average[c] = load<width>(target + i);
    }
#pragma unroll
    for (int c = 0; c < step_chunks; ++c) {
      const int64_t i = first + c * width * threads;
      if (i >= whole) continue;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        adamw_moments(one_m[c].of[j], one_v[c].of[j], gradient[c].of[j], factors);
        weights[c].of[j] =
            adamw_weights(weights[c].of[j], one_m[c].of[j], __fsqrt_rn(one_v[c].of[j]), factors);
      }
      store(m + i, one_m[c]);
      store(v + i, one_v[c]);
      store(w + i, weights[c]);
      store(g + i, Values<width>{});
      if (compute != nullptr) store(compute + i, weights[c]);
      if (target == nullptr) continue;
#pragma unroll
      for (int j = 0; j < width; ++j)
        average[c].of[j] = mixed(average[c].of[j], weights[c].of[j], target_rate);
      store(target + i, average[c]);
      if (shadow != nullptr) store(shadow + i, average[c]);
    }
  }
  for (int64_t i = whole + threadIdx.x; i < share.end; i += threads) {
    if (!skipped) {
      adamw_moments(m[i], v[i], g[i], factors);
      w[i] = adamw_weights(w[i], m[i], __fsqrt_rn(v[i]), factors);
      if (compute != nullptr) compute[i] = __float2bfloat16_rn(w[i]);
      if (target != nullptr) target[i] = mixed(target[i], w[i], target_rate);
      if (shadow != nullptr) shadow[i] = __float2bfloat16_rn(target[i]);
    }
    g[i] = 0;
  }
}

int64_t partial_sums(const AdamWTensor* tensors, int64_t count) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) blocks += (tensors[i].count + tile - 1) / tile;
  return blocks;
}

}  // namespace

int64_t adamw_workspace(const AdamWTensor* tensors, int64_t count) {
  return outcome_doubles + partial_sums(tensors, count);
}

cudaError_t adamw_step(const AdamWTensor* tensors, int64_t count, const AdamWFactors& factors,
                       double max_grad_norm, float target_rate, double* workspace, cudaStream_t stream) {
  if (!(target_rate >= 0 && target_rate <= 1)) return cudaErrorInvalidValue;
  auto* outcome = reinterpret_cast<Outcome*>(workspace);
  double* partial = workspace + outcome_doubles;
  int64_t sums = 0;
  const cudaError_t squared = each_batch(tensors, count, [&](const AdamWBatch& batch, unsigned blocks) {
    square_sums_kernel<<<blocks, threads, 0, stream>>>(batch, partial + sums);
    sums += blocks;
  });
  if (squared != cudaSuccess) return squared;
  norm_kernel<<<1, finishing_threads, 0, stream>>>(partial, sums, max_grad_norm, outcome);
  const cudaError_t summed = cudaGetLastError();
  if (summed != cudaSuccess) return summed;
  return each_batch(tensors, count, [&](const AdamWBatch& batch, unsigned blocks) {
    step_kernel<<<blocks, threads, 0, stream>>>(batch, factors, target_rate, outcome);
  });
}

}  // namespace nlac::cuda
