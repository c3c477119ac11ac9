#include "cuda/rms_norm.h"

#include <algorithm>
#include <type_traits>

#include "cuda/elements.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int threads = 256;
constexpr int width = 8;            // elements a thread takes at a time: 16 bytes of bf16
constexpr int64_t short_row = 512;  // elements that one warp normalises

// Returns the sum over the `per_row` threads of a row, in a fixed order, in each of them. `memory`
// is not used for a warp.
template <int per_row>
__device__ float row_sum(float sum, float (&memory)[threads / 32]) {
  if constexpr (per_row == 32) {
    return warp_sum(sum);
  } else {
    return block_sum(sum, memory);
  }
}

template <int per_row>
__device__ int64_t own_row() {
  return static_cast<int64_t>(blockIdx.x) * (threads / per_row) + threadIdx.x / per_row;
}

template <typename Number>
__device__ const Number* row_of(const Heads& heads, int64_t row, int64_t per_token) {
  return static_cast<const Number*>(heads.data) + row / per_token * heads.of_token +
         row % per_token * heads.of_head;
}

// What a normalised value is multiplied by, and the product.
__device__ float factor_of(float weight, bool plus_one) { return plus_one ? weight + 1 : weight; }
template <typename Number>
__device__ float weighted(float normalised, float weight, bool plus_one) {
  return plus_one ? normalised * (weight + 1) : rounded_to<Number>(normalised) * weight;
}

// Calls `each` with the first of up to `width` elements of a row and a constant of how many, for
// the elements of this thread.
template <int per_row, typename Each>
__device__ void for_elements(int64_t n, bool wide, const Each& each) {
  const int lane = static_cast<int>(threadIdx.x) % per_row;
  const int64_t whole = wide ? n : 0;
  for (int64_t i = lane * width; i < whole; i += per_row * width)
    each(i, std::integral_constant<int, width>());
  for (int64_t i = whole + lane; i < n; i += per_row) each(i, std::integral_constant<int, 1>());
}

template <int count, typename Number>
__device__ Values<count> read(const Number* from) {
  if constexpr (count == 1) {
    return {{one(from)}};
  } else {
    return load<count>(from);
  }
}
template <int count, typename Number>
__device__ void write(Number* to, const Values<count>& values) {
  if constexpr (count == 1) {
    store_one(to, values.of[0]);
  } else {
    store(to, values);
  }
}

template <typename In, typename Number, int per_row>
__global__ void __launch_bounds__(threads)
    norm_kernel(const RmsNorm norm, const Heads given, const Heads result) {
  __shared__ float memory[threads / 32];
  const int64_t row = own_row<per_row>(), n = norm.n;
  if (row >= norm.tokens * norm.heads) return;
  const In* x = row_of<In>(given, row, norm.heads);
  const auto* weight = static_cast<const Number*>(norm.weight);
  auto* y = const_cast<Number*>(row_of<Number>(result, row, norm.heads));
  const bool wide = n % width == 0 && aligned<width>(x) && aligned<width>(weight) && aligned<width>(y);

  float squares = 0;
  for_elements<per_row>(n, wide, [&](int64_t i, auto taken) {
    const auto values = read<taken()>(x + i);
#pragma unroll
    for (int j = 0; j < taken(); ++j) squares += values.of[j] * values.of[j];
  });
  const float scale = rsqrtf(row_sum<per_row>(squares, memory) / static_cast<float>(n) + norm.eps);
  for_elements<per_row>(n, wide, [&](int64_t i, auto taken) {
    auto values = read<taken()>(x + i);
    const auto weights = read<taken()>(weight + i);
#pragma unroll
    for (int j = 0; j < taken(); ++j)
      values.of[j] = weighted<Number>(values.of[j] * scale, weights.of[j], norm.plus_one);
    write(y + i, values);
  });
}

// With g the gradient at x · scale: (g - x · scale · mean(g · x · scale)) · scale.
template <typename Number, int per_row>
__global__ void __launch_bounds__(threads) backward_kernel(const RmsNorm norm, const NormBackward given) {
  __shared__ float memory[threads / 32];
  __shared__ float more_memory[threads / 32];
  const int64_t row = own_row<per_row>(), n = norm.n;
  if (row >= norm.tokens * norm.heads) return;
  const Number* grad = row_of<Number>(given.grad, row, norm.heads);
  const Number* x = row_of<Number>(given.x, row, norm.heads);
  const auto* weight = static_cast<const Number*>(norm.weight);
  const auto* residual =
      given.residual == nullptr ? nullptr : static_cast<const Number*>(given.residual) + row * n;
  Number* result = static_cast<Number*>(given.result) + row * n;
  const bool wide = n % width == 0 && aligned<width>(grad) && aligned<width>(x) && aligned<width>(weight) &&
                    aligned<width>(residual) && aligned<width>(result);

  float squares = 0, along = 0;
  for_elements<per_row>(n, wide, [&](int64_t i, auto taken) {
    const auto values = read<taken()>(x + i), upstream = read<taken()>(grad + i),
               weights = read<taken()>(weight + i);
#pragma unroll
    for (int j = 0; j < taken(); ++j) {
      squares += values.of[j] * values.of[j];
      along += upstream.of[j] * factor_of(weights.of[j], norm.plus_one) * values.of[j];
    }
  });
  const float scale = rsqrtf(row_sum<per_row>(squares, memory) / static_cast<float>(n) + norm.eps);
  const float mean = row_sum<per_row>(along, more_memory) * scale / static_cast<float>(n);
  if (given.scales != nullptr && threadIdx.x % per_row == 0) given.scales[row] = scale;
  for_elements<per_row>(n, wide, [&](int64_t i, auto taken) {
    const auto values = read<taken()>(x + i), weights = read<taken()>(weight + i);
    auto results = read<taken()>(grad + i);
#pragma unroll
    for (int j = 0; j < taken(); ++j) {
      const float direct = results.of[j] * factor_of(weights.of[j], norm.plus_one);
      results.of[j] = (direct - values.of[j] * scale * mean) * scale;
    }
    if (residual != nullptr) {
      const auto added = read<taken()>(residual + i);
#pragma unroll
      for (int j = 0; j < taken(); ++j) results.of[j] += added.of[j];
    }
    write(result + i, results);
  });
}

// --- the gradient at the weight ------------------------------------------------------------------

constexpr int columns = 32;               // of a block
constexpr int lines = threads / columns;  // rows that a block reads at once
constexpr int64_t enough_blocks = 1024;
constexpr int64_t least_rows = 4 * lines;  // of a part

// A block sums `columns` of the rows of one part; its threads of a column are added in order.
template <typename Number>
__global__ void __launch_bounds__(threads)
    weight_kernel(const RmsNorm norm, const Heads grads, const Heads xs, const float* scales, float* parts) {
  __shared__ float sums[lines][columns];
  const int line = static_cast<int>(threadIdx.x) / columns, column = static_cast<int>(threadIdx.x) % columns;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * columns + column, rows = norm.tokens * norm.heads;
  const int64_t share = (rows + gridDim.y - 1) / gridDim.y, begin = share * blockIdx.y,
                end = min(begin + share, rows);
  float sum = 0;
  if (i < norm.n) {
    for (int64_t row = begin + line; row < end; row += lines) {
      const float upstream = one(row_of<Number>(grads, row, norm.heads) + i);
      sum += upstream * (one(row_of<Number>(xs, row, norm.heads) + i) * scales[row]);
    }
  }
  sums[line][column] = sum;
  __syncthreads();
  if (line != 0 || i >= norm.n) return;
  for (int other = 1; other < lines; ++other) sum += sums[other][column];
  parts[blockIdx.y * norm.n + i] = sum;
}

bool possible(const RmsNorm& norm) {
  return norm.tokens >= 0 && norm.heads >= 1 && norm.n >= 1 && norm.tokens <= INT32_MAX / norm.heads;
}

// Calls `launch` with constants of the threads of a row and the number of blocks.
template <typename Launch>
cudaError_t by_rows(const RmsNorm& norm, const Launch& launch) {
  if (!possible(norm)) return cudaErrorInvalidValue;
  const int64_t rows = norm.tokens * norm.heads;
  if (rows == 0) return cudaSuccess;
  if (norm.n <= short_row) {
    constexpr int64_t of_block = threads / 32;
    launch(std::integral_constant<int, 32>(), static_cast<unsigned>((rows + of_block - 1) / of_block));
  } else {
    launch(std::integral_constant<int, threads>(), static_cast<unsigned>(rows));
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t rms_norm(const RmsNorm& norm, const Heads& x, bool x_is_f32, const Heads& y,
                     cudaStream_t stream) {
  return by_rows(norm, [&](auto per_row, unsigned blocks) {
    if (!norm.is_bf16)
      norm_kernel<float, float, per_row()><<<blocks, threads, 0, stream>>>(norm, x, y);
    else if (x_is_f32)
      norm_kernel<float, Bf16, per_row()><<<blocks, threads, 0, stream>>>(norm, x, y);
    else
      norm_kernel<Bf16, Bf16, per_row()><<<blocks, threads, 0, stream>>>(norm, x, y);
  });
}

cudaError_t rms_norm_backward(const RmsNorm& norm, const NormBackward& given, cudaStream_t stream) {
  return by_rows(norm, [&](auto per_row, unsigned blocks) {
    if (norm.is_bf16)
      backward_kernel<Bf16, per_row()><<<blocks, threads, 0, stream>>>(norm, given);
    else
      backward_kernel<float, per_row()><<<blocks, threads, 0, stream>>>(norm, given);
  });
}

int64_t weight_parts(const RmsNorm& norm) {
  const int64_t rows = norm.tokens * norm.heads, across = (norm.n + columns - 1) / columns;
  return std::clamp<int64_t>(enough_blocks / across, 1, std::max<int64_t>(1, rows / least_rows));
}

cudaError_t rms_norm_weight_gradient(const RmsNorm& norm, const Heads& grad, const Heads& x,
                                     const float* scales, float* parts, cudaStream_t stream) {
  if (!possible(norm) || norm.n > INT32_MAX) return cudaErrorInvalidValue;
  const dim3 blocks(static_cast<unsigned>((norm.n + columns - 1) / columns),
                    static_cast<unsigned>(weight_parts(norm)));
  if (norm.is_bf16)
    weight_kernel<Bf16><<<blocks, threads, 0, stream>>>(norm, grad, x, scales, parts);
  else
    weight_kernel<float><<<blocks, threads, 0, stream>>>(norm, grad, x, scales, parts);
  return cudaGetLastError();
}

}  // namespace nlac::cuda
