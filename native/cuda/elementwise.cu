#include "cuda/elementwise.h"

#include <type_traits>

#include "cuda/elements.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int threads = 256;
constexpr int width = 8;  // elements a thread takes at a time: 16 bytes of bf16
constexpr float gelu_scale = 0.7978845608f, gelu_cubic = 0.044715f;  // √(2 / π)

// A block processes a row.
template <typename Number>
__global__ void __launch_bounds__(threads) add_rms_norm_kernel(const NormedRows given) {
  __shared__ float warp_sums[threads / 32];
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
  const float scale = rsqrtf(block_sum(squares, warp_sums) / static_cast<float>(n) + given.eps);

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

// An activation of the gate and its derivative.
template <Gate gate>
__device__ float activated(float x) {
  if constexpr (gate == Gate::silu) {
    return x / (1 + expf(-x));
  } else {
    return 0.5f * x * (1 + tanhf(gelu_scale * (x + gelu_cubic * x * x * x)));
  }
}
template <Gate gate>
__device__ float slope(float x) {
  if constexpr (gate == Gate::silu) {
    const float share = 1 / (1 + expf(-x));
    return share * (1 + x * (1 - share));
  } else {
    const float t = tanhf(gelu_scale * (x + gelu_cubic * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * x * x);
  }
}

// Calls `each` with a row, the first of its elements for this thread, and how many they are.
template <typename Each>
__device__ void for_own_elements(int64_t rows, int64_t n, const Each& each) {
  const int64_t of_row = (n + width - 1) / width;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (place >= rows * of_row) return;
  const int64_t i = place % of_row * width;
  each(place / of_row, i, static_cast<int>(min(static_cast<int64_t>(width), n - i)));
}

// A thread processes `width` elements of a row.
template <typename Number, Gate activation>
__global__ void __launch_bounds__(threads)
    gated_kernel(const void* gate_up, int64_t rows, int64_t n, void* result) {
  for_own_elements(rows, n, [&](int64_t row, int64_t i, int count) {
    const Number *gate = static_cast<const Number*>(gate_up) + row * 2 * n + i, *up = gate + n;
    Number* y = static_cast<Number*>(result) + row * n + i;
    if (count == width && aligned<width>(gate) && aligned<width>(up) && aligned<width>(y)) {
      Values<width> values = load<width>(gate);
      const Values<width> factors = load<width>(up);
#pragma unroll
      for (int j = 0; j < width; ++j) values.of[j] = activated<activation>(values.of[j]) * factors.of[j];
      store(y, values);
    } else {
      for (int j = 0; j < count; ++j) store_one(y + j, activated<activation>(one(gate + j)) * one(up + j));
    }
  });
}

template <typename Number, Gate activation>
__global__ void __launch_bounds__(threads)
    gated_backward_kernel(const void* grad, const void* gate_up, int64_t rows, int64_t n, void* result) {
  for_own_elements(rows, n, [&](int64_t row, int64_t i, int count) {
    const Number* upstream = static_cast<const Number*>(grad) + row * n + i;
    const Number *gate = static_cast<const Number*>(gate_up) + row * 2 * n + i, *up = gate + n;
    Number *at_gate = static_cast<Number*>(result) + row * 2 * n + i, *at_up = at_gate + n;
    if (count == width && aligned<width>(upstream) && aligned<width>(gate) && aligned<width>(up) &&
        aligned<width>(at_gate) && aligned<width>(at_up)) {
      const Values<width> g = load<width>(upstream), x = load<width>(gate);
      Values<width> to_gate = load<width>(up), to_up;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        to_gate.of[j] *= g.of[j] * slope<activation>(x.of[j]);
        to_up.of[j] = g.of[j] * activated<activation>(x.of[j]);
      }
      store(at_gate, to_gate);
      store(at_up, to_up);
    } else {
      for (int j = 0; j < count; ++j) {
        const float g = one(upstream + j), x = one(gate + j);
        store_one(at_gate + j, g * one(up + j) * slope<activation>(x));
        store_one(at_up + j, g * activated<activation>(x));
      }
    }
  });
}

// A block processes a token, a thread pairs of dimensions.
template <typename Number>
__global__ void __launch_bounds__(threads) rotate_kernel(const Rotation given) {
  const int half = static_cast<int>(given.half), pairs = static_cast<int>(given.heads) * half;
  const int64_t token = blockIdx.x, turn = given.positions[token] * given.half;
  auto* x = static_cast<Number*>(given.x) + token * given.of_token;
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += threads) {
    const int head = pair / half, i = pair % half;
    Number *low = x + head * given.of_head + i, *high = low + half;
    const float cos = given.cos[turn + i], sin = given.sign * given.sin[turn + i];
    const float a = one(low), b = one(high);
    store_one(low, a * cos - b * sin);
    store_one(high, b * cos + a * sin);
  }
}

// Calls `launch` with a value of the elements' type and a constant of the activation.
template <typename Launch>
cudaError_t launch_gated(Gate activation, int64_t rows, int64_t n, bool is_bf16, const Launch& launch) {
  if (rows < 0 || n < 1) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const int64_t count = (rows * ((n + width - 1) / width) + threads - 1) / threads;
  if (count > INT32_MAX) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>(count);
  const auto of_type = [&](auto number) {
    if (activation == Gate::silu)
      launch(number, std::integral_constant<Gate, Gate::silu>(), blocks);
    else
      launch(number, std::integral_constant<Gate, Gate::gelu>(), blocks);
  };
  is_bf16 ? of_type(Bf16()) : of_type(float());
  return cudaGetLastError();
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

cudaError_t gated(Gate activation, const void* gate_up, int64_t rows, int64_t n, void* y, bool is_bf16,
                  cudaStream_t stream) {
  return launch_gated(activation, rows, n, is_bf16, [&](auto number, auto gate, unsigned blocks) {
    gated_kernel<decltype(number), gate()><<<blocks, threads, 0, stream>>>(gate_up, rows, n, y);
  });
}

cudaError_t gated_backward(Gate activation, const void* grad, const void* gate_up, int64_t rows, int64_t n,
                           void* result, bool is_bf16, cudaStream_t stream) {
  return launch_gated(activation, rows, n, is_bf16, [&](auto number, auto gate, unsigned blocks) {
    gated_backward_kernel<decltype(number), gate()>
        <<<blocks, threads, 0, stream>>>(grad, gate_up, rows, n, result);
  });
}

cudaError_t rotate(const Rotation& given, cudaStream_t stream) {
  if (given.tokens < 0 || given.tokens > INT32_MAX || given.heads < 1 || given.half < 1 ||
      given.heads > INT32_MAX / given.half)
    return cudaErrorInvalidValue;
  if (given.tokens == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(given.tokens);
  if (given.is_bf16)
    rotate_kernel<Bf16><<<blocks, threads, 0, stream>>>(given);
  else
    rotate_kernel<float><<<blocks, threads, 0, stream>>>(given);
  return cudaGetLastError();
}

}  // namespace nlac::cuda
