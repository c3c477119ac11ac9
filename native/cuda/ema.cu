#include "cuda/ema.h"

#include <vector>

#include "core/random.h"
#include "cuda/tensor_list.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;

struct Average {
  float target_rate;
  Rounding rounding;
};

// Returns `value` in bf16 bits, rounded stochastically by 16 random bits.
__device__ uint32_t rounded(float value, uint32_t noise) {
  const uint32_t bits = __float_as_uint(value);
  if (isfinite(value)) return (bits + noise) >> 16;
  return isnan(value) ? 0x7FC0u : bits >> 16;
}

// Elements i … of an f32 target, then of a bf16 one.
__device__ void put(float* target, Bf16* shadow, int64_t i, const Values<4>& next, const EmaTensor&,
                    const Rounding&) {
  store(target + i, next);
  if (shadow != nullptr) store(shadow + i, next);
}
__device__ void put(Bf16* target, Bf16*, int64_t i, const Values<8>& next, const EmaTensor& tensor,
                    const Rounding& rounding) {
  const auto words =
      philox(rounding.seed, rounding.stream, tensor.first_counter + static_cast<uint64_t>(i) / 8);
  uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t low = rounded(next.of[2 * j], words[j] & 0xFFFFu);
    pairs[j] = low | rounded(next.of[2 * j + 1], words[j] >> 16) << 16;
  }
  *reinterpret_cast<uint4*>(target + i) = {pairs[0], pairs[1], pairs[2], pairs[3]};
}

__device__ void put_one(float* target, Bf16* shadow, int64_t i, float next, const EmaTensor&,
                        const Rounding&) {
  target[i] = next;
  if (shadow != nullptr) shadow[i] = __float2bfloat16_rn(next);
}
__device__ void put_one(Bf16* target, Bf16*, int64_t i, float next, const EmaTensor& tensor,
                        const Rounding& rounding) {
  const auto words =
      philox(rounding.seed, rounding.stream, tensor.first_counter + static_cast<uint64_t>(i) / 8);
  const uint32_t noise = words[i % 8 / 2] >> (i % 2 * 16) & 0xFFFFu;
  target[i] = __ushort_as_bfloat16(static_cast<unsigned short>(rounded(next, noise)));
}

template <typename Target, typename Online>
__global__ void __launch_bounds__(threads)
    ema_kernel(const __grid_constant__ Batch<EmaTensor> batch, Average average) {
  constexpr int width = 16 / sizeof(Target);
  constexpr int chunks = 16 / width;  // vectors that a thread reads before it writes the first
  const Share share = share_of(batch);
  const EmaTensor& tensor = batch.tensors[share.tensor];
  auto* target = static_cast<Target*>(tensor.target);
  const auto* online = static_cast<const Online*>(tensor.online);
  auto* shadow = static_cast<Bf16*>(tensor.shadow);

  const bool wide = aligned<width>(target) && aligned<width>(online) && aligned<width>(shadow);
  const int64_t whole = wide ? share.end - (share.end - share.begin) % width : share.begin;
  for (int64_t first = share.begin + width * threadIdx.x; first < whole; first += chunks * width * threads) {
    Values<width> next[chunks], towards[chunks];
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int64_t i = first + c * width * threads;
      if (i >= whole) continue;
      next[c] = load<width>(target + i);
      towards[c] = load<width>(online + i);
    }
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int64_t i = first + c * width * threads;
      if (i >= whole) continue;
#pragma unroll
      for (int j = 0; j < width; ++j)
        next[c].of[j] = mixed(next[c].of[j], towards[c].of[j], average.target_rate);
      put(target, shadow, i, next[c], tensor, average.rounding);
    }
  }
  for (int64_t i = whole + threadIdx.x; i < share.end; i += threads) {
    const float next = mixed(one(target + i), one(online + i), average.target_rate);
    put_one(target, shadow, i, next, tensor, average.rounding);
  }
}

template <typename Target, typename Online>
cudaError_t update_all(const std::vector<EmaTensor>& tensors, const Average& average, cudaStream_t stream) {
  return each_batch(tensors.data(), static_cast<int64_t>(tensors.size()),
                    [&](const Batch<EmaTensor>& batch, unsigned blocks) {
                      ema_kernel<Target, Online><<<blocks, threads, 0, stream>>>(batch, average);
                    });
}

}  // namespace

cudaError_t ema_update(const EmaTensor* tensors, int64_t count, float target_rate, const Rounding& rounding,
                       cudaStream_t stream) {
  if (!(target_rate >= 0 && target_rate <= 1)) return cudaErrorInvalidValue;
  std::vector<EmaTensor> alike[2][2];  // by the target's type and the online tensor's
  for (int64_t i = 0; i < count; ++i) {
    alike[tensors[i].target_is_bf16][tensors[i].online_is_bf16].push_back(tensors[i]);
  }
  const Average average{target_rate, rounding};
  const cudaError_t launched[] = {
      update_all<float, float>(alike[0][0], average, stream),
      update_all<float, Bf16>(alike[0][1], average, stream),
      update_all<Bf16, float>(alike[1][0], average, stream),
      update_all<Bf16, Bf16>(alike[1][1], average, stream),
  };
  for (const cudaError_t error : launched) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace nlac::cuda
