#include "cuda/delta.h"

#include <type_traits>

#include "cuda/elements.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int threads = 128;
constexpr int most_taps = 4;  // tokens of the convolution
constexpr int stretch = 64;   // tokens that a block convolves
constexpr int parts = 4;      // threads that share a column of a head's state
constexpr int columns = threads / parts;
constexpr int tile = 8;  // tokens whose queries and keys a block holds
constexpr float unit_eps = 1e-6f;

__host__ __device__ int channels_of(const DeltaShape& shape) {
  return 2 * shape.key_heads * shape.key_dim + shape.heads * shape.value_dim;
}

__device__ float silu(float x) { return x / (1 + expf(-x)); }

// The convolution's input of channel c at token t of a text, which may lie before its first row of this
// step.
template <typename Number>
__device__ float input_at(const DeltaSteps& steps, const DeltaText& text, int64_t t, int c) {
  if (t >= 0) return one(static_cast<const Number*>(steps.projected) + (text.first + t) * steps.stride + c);
  return text.inputs[(steps.shape.kernel - 1 + t) * channels_of(steps.shape) + c];
}

// convolved = silu of the convolution. A thread has a channel of a stretch of a text.
template <typename Number>
__global__ void __launch_bounds__(threads) convolve_kernel(const DeltaSteps steps) {
  const DeltaText text = steps.texts[blockIdx.z];
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * stretch;
  const int64_t end = begin + stretch < text.fresh ? begin + stretch : text.fresh;
  const int kernel = steps.shape.kernel, channels = channels_of(steps.shape);
  const int c = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (c >= channels || begin >= end) return;
  // taps[0] is of the token itself, seen[i] is the input i + 1 tokens before it.
  float taps[most_taps], seen[most_taps - 1];
#pragma unroll
  for (int i = 0; i < most_taps; ++i)
    taps[i] =
        i < kernel ? one(static_cast<const Number*>(steps.convolution) + c * kernel + kernel - 1 - i) : 0;
#pragma unroll
  for (int i = 0; i < most_taps - 1; ++i)
    seen[i] = i + 1 < kernel ? input_at<Number>(steps, text, begin - 1 - i, c) : 0;
  for (int64_t t = begin; t < end; ++t) {
    const float now = input_at<Number>(steps, text, t, c);
    float sum = now * taps[0];
#pragma unroll
    for (int i = 0; i < most_taps - 1; ++i) sum += seen[i] * taps[i + 1];
#pragma unroll
    for (int i = most_taps - 2; i > 0; --i) seen[i] = seen[i - 1];
    seen[0] = now;
    steps.convolved[(text.first + t) * channels + c] = silu(sum);
  }
}

// What a block holds of a token: its head's query and key, of length key_dim^-1/2 and 1, e^g and β. The
// elements of a part lie together, and parts begin in different banks.
template <int rows>
struct Token {
  float query[parts * (rows + 1)], key[parts * (rows + 1)];
  float decay, beta;
};

// Fills `token` of row `row` and head `head`, by one warp.
template <typename Number, int rows>
__device__ void read_token(const DeltaSteps& steps, int64_t row, int head, Token<rows>& token) {
  const DeltaShape& shape = steps.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, channels = channels_of(shape);
  const float* const query =
      steps.convolved + row * channels + head / (shape.heads / shape.key_heads) * shape.key_dim;
  const float* const key = query + shape.key_heads * shape.key_dim;
  float of_query = 0, of_key = 0;
  for (int i = lane; i < parts * rows; i += 32) {
    of_query += query[i] * query[i];
    of_key += key[i] * key[i];
  }
  const float query_scale = rsqrtf(warp_sum(of_query) + unit_eps) * rsqrtf(static_cast<float>(parts * rows)),
              key_scale = rsqrtf(warp_sum(of_key) + unit_eps);
  for (int i = lane; i < parts * rows; i += 32) {
    const int place = i / rows * (rows + 1) + i % rows;
    token.query[place] = query[i] * query_scale;
    token.key[place] = key[i] * key_scale;
  }
  if (lane != 0) return;
  const Number* const b = static_cast<const Number*>(steps.projected) + row * steps.stride + channels +
                          shape.heads * shape.value_dim + head;
  const float a = one(b + shape.heads) + one(static_cast<const Number*>(steps.decay_bias) + head);
  const float rate = a > 20 ? a : log1pf(expf(a));
  token.decay = expf(-expf(one(static_cast<const Number*>(steps.decay_log) + head)) * rate);
  token.beta = 1 / (1 + expf(-one(b)));
}

// The recurrence. A block has `columns` columns of a head's state, a thread `rows` elements of a column.
template <typename Number, int rows>
__global__ void __launch_bounds__(threads) recur_kernel(const DeltaSteps steps) {
  __shared__ Token<rows> tokens[tile];
  const DeltaShape& shape = steps.shape;
  const DeltaText text = steps.texts[blockIdx.z];
  const int head = static_cast<int>(blockIdx.y), part = static_cast<int>(threadIdx.x) % parts;
  const int column = static_cast<int>(blockIdx.x) * columns + static_cast<int>(threadIdx.x) / parts;
  const bool inside = column < shape.value_dim;
  const int channels = channels_of(shape), values = shape.heads * shape.value_dim;
  float* const state =
      text.recurrent + static_cast<int64_t>(head * parts * rows + part * rows) * shape.value_dim + column;
  float held[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) held[i] = inside ? state[static_cast<int64_t>(i) * shape.value_dim] : 0;

  for (int64_t begin = 0; begin < text.fresh; begin += tile) {
    const int count = static_cast<int>(text.fresh - begin < tile ? text.fresh - begin : tile);
    __syncthreads();  // the tokens before have been read
    for (int t = static_cast<int>(threadIdx.x) / 32; t < count; t += threads / 32)
      read_token<Number, rows>(steps, text.first + begin + t, head, tokens[t]);
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const int64_t row = text.first + begin + t;
      const Token<rows>& token = tokens[t];
      const float *const query = token.query + part * (rows + 1), *const key = token.key + part * (rows + 1);
      const float value =
          inside ? steps.convolved[row * channels + channels - values + head * shape.value_dim + column] : 0;
      float read = 0;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        held[i] *= token.decay;
        read += held[i] * key[i];
      }
      for (int mask = 1; mask < parts; mask *= 2) read += __shfl_xor_sync(0xFFFFFFFFu, read, mask);
      const float change = (value - read) * token.beta;
      float result = 0;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        held[i] += key[i] * change;
        result += held[i] * query[i];
      }
      for (int mask = 1; mask < parts; mask *= 2) result += __shfl_xor_sync(0xFFFFFFFFu, result, mask);
      if (inside && part == 0) steps.mixed[row * values + head * shape.value_dim + column] = result;
    }
  }
#pragma unroll
  for (int i = 0; i < rows; ++i)
    if (inside) state[static_cast<int64_t>(i) * shape.value_dim] = held[i];

  // The convolution, which ran before, has read the last inputs: the text's blocks replace them.
  const int blocks = static_cast<int>(gridDim.x * gridDim.y);
  const int block = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  for (int c = block * threads + static_cast<int>(threadIdx.x); c < channels; c += blocks * threads) {
    float kept[most_taps - 1];
#pragma unroll
    for (int i = 0; i < most_taps - 1; ++i)
      kept[i] = i + 1 < shape.kernel ? input_at<Number>(steps, text, text.fresh - 1 - i, c) : 0;
#pragma unroll
    for (int i = 0; i < most_taps - 1; ++i)
      if (i + 1 < shape.kernel)
        text.inputs[static_cast<int64_t>(shape.kernel - 2 - i) * channels + c] = kept[i];
  }
}

// output = mixed / rms · weight · silu(z), over each head. A warp has a head of a token.
template <typename Number>
__global__ void __launch_bounds__(threads) gated_norm_kernel(const DeltaSteps steps) {
  const DeltaShape& shape = steps.shape;
  const int64_t head = (static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x) / 32;
  if (head >= steps.tokens * shape.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, n = shape.value_dim;
  const float* const x = steps.mixed + head * n;
  const Number* const z = static_cast<const Number*>(steps.projected) + head / shape.heads * steps.stride +
                          channels_of(shape) + head % shape.heads * n;
  Number* const y = static_cast<Number*>(steps.output) + head * n;
  float squares = 0;
  for (int i = lane; i < n; i += 32) squares += x[i] * x[i];
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(n) + shape.eps);
  for (int i = lane; i < n; i += 32)
    store_one(y + i, x[i] * scale * one(static_cast<const Number*>(steps.norm) + i) * silu(one(z + i)));
}

template <typename Number, int rows>
void launch(const DeltaSteps& steps, cudaStream_t stream) {
  const DeltaShape& shape = steps.shape;
  const auto ceiling = [](int64_t x, int64_t of) { return static_cast<unsigned>((x + of - 1) / of); };
  const auto count = static_cast<unsigned>(steps.count);
  const dim3 stretches(ceiling(channels_of(shape), threads), ceiling(steps.longest, stretch), count),
      heads(ceiling(shape.value_dim, columns), static_cast<unsigned>(shape.heads), count);
  convolve_kernel<Number><<<stretches, threads, 0, stream>>>(steps);
  recur_kernel<Number, rows><<<heads, threads, 0, stream>>>(steps);
  const unsigned warps = ceiling(steps.tokens * shape.heads, threads / 32);
  gated_norm_kernel<Number><<<warps, threads, 0, stream>>>(steps);
}

// Calls `body` with a constant of the elements of a column that a thread holds; false if there is none.
template <typename Body>
bool with_rows(int key_dim, const Body& body) {
  switch (key_dim) {
    case 8: body(std::integral_constant<int, 2>()); return true;
    case 16: body(std::integral_constant<int, 4>()); return true;
    case 32: body(std::integral_constant<int, 8>()); return true;
    case 64: body(std::integral_constant<int, 16>()); return true;
    case 128: body(std::integral_constant<int, 32>()); return true;
    case 256: body(std::integral_constant<int, 64>()); return true;
    default: return false;
  }
}

}  // namespace

bool takes_delta(const DeltaShape& shape) {
  return shape.key_heads >= 1 && shape.heads >= 1 && shape.heads <= 65535 &&
         shape.heads % shape.key_heads == 0 && shape.value_dim >= 1 && shape.kernel >= 2 &&
         shape.kernel <= most_taps && with_rows(shape.key_dim, [](auto) {});
}

cudaError_t delta_steps(const DeltaSteps& steps, cudaStream_t stream) {
  if (!takes_delta(steps.shape) || steps.count < 0 || steps.count > 65535 || steps.longest > 65535 * stretch)
    return cudaErrorInvalidValue;
  if (steps.count == 0) return cudaSuccess;
  with_rows(steps.shape.key_dim, [&](auto rows) {
    if (steps.is_bf16)
      launch<Bf16, rows()>(steps, stream);
    else
      launch<float, rows()>(steps, stream);
  });
  return cudaGetLastError();
}

}  // namespace nlac::cuda
