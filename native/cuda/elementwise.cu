#include "cuda/elementwise.h"

#include "cuda/elements.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int threads = 256;
constexpr int width = 8;  // elements a thread takes at a time: 16 bytes of bf16

// Returns the sum over a block's threads, in a fixed order, in every thread.
__device__ float block_reduce(float sum) {
  __shared__ float warp_sums[threads / 32];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (const float part : warp_sums) sum += part;
  return sum;
}

// A block processes a row.
template <typename Number>
__global__ void __launch_bounds__(threads) add_rms_norm_kernel(const NormedRows given) {
  const int64_t n = given.n, start = static_cast<int64_t>(blockIdx.x) * n;
  float* x = given.x + start;
  const auto* weight = static_cast<const Number*>(given.weight);
  const auto* added = given.added == nullptr ? nullptr : static_cast<const Number*>(given.added) + start;
  auto* normed = static_cast<Number*>(given.normed) + start;
  const bool wide = n % width == 0 && aligned<width>(x) && aligned<width>(added) && aligned<width>(weight) &&
                    aligned<width>(normed);
  const int64_t whole = wide ? n : 0;

  float squares = 0;
  for (int64_t i = threadIdx.x * width; i < whole; i += threads * width) {
    Values<width> values = load<width>(x + i);
    if (added != nullptr) {
      const Values<width> more = load<width>(added + i);
#pragma unroll
      for (int j = 0; j < width; ++j) values.of[j] += more.of[j];
      store(x + i, values);
    }
#pragma unroll
    for (int j = 0; j < width; ++j) squares += values.of[j] * values.of[j];
  }
  for (int64_t i = whole + threadIdx.x; i < n; i += threads) {
    if (added != nullptr) x[i] += one(added + i);
    squares += x[i] * x[i];
  }
  const float scale = rsqrtf(block_reduce(squares) / static_cast<float>(n) + given.eps);

  // Every thread reads its own writes.
  for (int64_t i = threadIdx.x * width; i < whole; i += threads * width) {
    Values<width> values = load<width>(x + i);
    const Values<width> factors = load<width>(weight + i);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      values.of[j] = rounded_to<Number>(values.of[j] * scale) * factors.of[j];
    }
    store(normed + i, values);
  }
  for (int64_t i = whole + threadIdx.x; i < n; i += threads) {
    store_one(normed + i, rounded_to<Number>(x[i] * scale) * one(weight + i));
  }
}

__device__ float gated(float gate, float up) { return gate / (1 + expf(-gate)) * up; }

// A thread processes `width` elements of a row.
template <typename Number>
__global__ void __launch_bounds__(threads)
    gated_silu_kernel(const void* gate_up, int64_t rows, int64_t n, void* result) {
  const int64_t of_row = (n + width - 1) / width;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (place >= rows * of_row) return;
  const int64_t row = place / of_row, i = place % of_row * width;
  const Number *gate = static_cast<const Number*>(gate_up) + row * 2 * n + i, *up = gate + n;
  Number* y = static_cast<Number*>(result) + row * n + i;
  if (aligned<width>(gate) && aligned<width>(up) && aligned<width>(y) && i + width <= n) {
    Values<width> values = load<width>(gate);
    const Values<width> factors = load<width>(up);
#pragma unroll
    for (int j = 0; j < width; ++j) values.of[j] = gated(values.of[j], factors.of[j]);
    store(y, values);
  } else {
    for (int j = 0; j < width && i + j < n; ++j) store_one(y + j, gated(one(gate + j), one(up + j)));
  }
}

}  // namespace

cudaError_t add_rms_norm(const NormedRows& given, cudaStream_t stream) {
  if (given.rows < 0 || given.rows > INT32_MAX || given.n < 1) return cudaErrorInvalidValue;
  if (given.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(given.rows);
  if (given.is_bf16) {
    add_rms_norm_kernel<Bf16><<<blocks, threads, 0, stream>>>(given);
  } else {
    add_rms_norm_kernel<float><<<blocks, threads, 0, stream>>>(given);
  }
  return cudaGetLastError();
}

cudaError_t gated_silu(const void* gate_up, int64_t rows, int64_t n, void* y, bool is_bf16,
                       cudaStream_t stream) {
  if (rows < 0 || n < 1) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const int64_t count = (rows * ((n + width - 1) / width) + threads - 1) / threads;
  if (count > INT32_MAX) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>(count);
  if (is_bf16) {
    gated_silu_kernel<Bf16><<<blocks, threads, 0, stream>>>(gate_up, rows, n, y);
  } else {
    gated_silu_kernel<float><<<blocks, threads, 0, stream>>>(gate_up, rows, n, y);
  }
  return cudaGetLastError();
}

}  // namespace nlac::cuda
