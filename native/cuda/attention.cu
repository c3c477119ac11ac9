#include "cuda/attention.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cuda/elements.h"

namespace nlac::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int width = 8;  // dimensions a lane holds: 16 bytes of bf16
constexpr int max_head_dim = 256;
constexpr unsigned all_lanes = 0xFFFFFFFFu;

// Returns the offset of a head's token `slot` in block `block`.
__device__ int64_t place_in(const KvBlocks& blocks, int64_t block, int head, int64_t slot) {
  return block * blocks.stride + (head * kBlockTokens + slot) * blocks.head_dim;
}

// --- before attention ----------------------------------------------------------------------------

constexpr int rotating_threads = 128;

// A warp processes a head of a row; its lanes hold dimensions i and i + head_dim / 2.
template <typename Number>
__global__ void __launch_bounds__(rotating_threads)
    rotate_and_store_kernel(const ProjectedRows given, const KvBlocks blocks) {
  constexpr int max_pairs = max_head_dim / 64;  // pairs of a lane
  const int d = blocks.head_dim, half = d / 2, lane = threadIdx.x % 32;
  const int heads = given.heads + 2 * blocks.kv_heads;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * rotating_threads + threadIdx.x) / 32;
  if (warp >= static_cast<int64_t>(given.rows) * heads) return;
  const int64_t row = warp / heads;
  const int head = static_cast<int>(warp % heads), key_head = head - given.heads,
            value_head = key_head - blocks.kv_heads;
  auto* from = static_cast<Number*>(given.qkv) + warp * d;
  auto* to = from;
  if (key_head >= 0) {
    const int32_t place = given.places[row];
    if (place < 0) return;
    auto* store = static_cast<Number*>(value_head < 0 ? blocks.keys : blocks.values);
    to = store +
         place_in(blocks, place / kBlockTokens, value_head < 0 ? key_head : value_head, place % kBlockTokens);
  }
  if (value_head >= 0) {
    for (int i = lane; i < d; i += 32) to[i] = from[i];
    return;
  }

  float low[max_pairs] = {}, high[max_pairs] = {};
#pragma unroll
  for (int c = 0; c < max_pairs; ++c) {
    const int i = lane + 32 * c;
    if (i < half) low[c] = one(from + i), high[c] = one(from + i + half);
  }
  const auto* norm = static_cast<const Number*>(key_head < 0 ? given.q_norm : given.k_norm);
  if (norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int c = 0; c < max_pairs; ++c) squares += low[c] * low[c] + high[c] * high[c];
    for (int mask = 16; mask > 0; mask /= 2) squares += __shfl_xor_sync(all_lanes, squares, mask);
    const float scale = rsqrtf(squares / static_cast<float>(d) + given.eps);
#pragma unroll
    for (int c = 0; c < max_pairs; ++c) {
      const int i = lane + 32 * c;
      if (i >= half) continue;
      low[c] = rounded_to<Number>(rounded_to<Number>(low[c] * scale) * one(norm + i));
      high[c] = rounded_to<Number>(rounded_to<Number>(high[c] * scale) * one(norm + i + half));
    }
  }
  const int64_t turn = static_cast<int64_t>(given.positions[row]) * half;
#pragma unroll
  for (int c = 0; c < max_pairs; ++c) {
    const int i = lane + 32 * c;
    if (i >= half) continue;
    const float cos = given.cos[turn + i], sin = given.sin[turn + i];
    store_one(to + i, low[c] * cos - high[c] * sin);
    store_one(to + i + half, high[c] * cos + low[c] * sin);
  }
}

// --- attention -----------------------------------------------------------------------------------
//
// A block processes a text, a key-value head, up to `queries` of the query heads that share it, and
// a part of the context. A team of lanes holds a head's dimensions, `width` per lane, and processes
// its own tokens with its own softmax. The teams are combined at the end.

constexpr int attending_threads = 128;
constexpr int attending_warps = attending_threads / 32;
constexpr int at_once = 4;             // tokens a team reads before it uses the first; they lie in one block
constexpr int64_t smallest_part = 64;  // tokens of a context per block of threads, at least
constexpr int max_queries = 8;
static_assert(kBlockTokens % at_once == 0);

// Of scores in units of log 2: the largest, Σ 2^(score - largest), and Σ 2^(score - largest) ·
// value in `total`. `largest` starts at the lowest finite float, to avoid -inf - -inf.
struct Part {
  float largest, sum;
};
__device__ Part nothing() { return {-FLT_MAX, 0}; }

// A part in the workspace: head_dim totals, then these two.
__device__ int64_t part_size(const KvBlocks& blocks) { return blocks.head_dim + 2; }

template <typename Number, int lanes, int queries>
__global__ void __launch_bounds__(attending_threads)
    attend_kernel(const Queries given, const KvBlocks blocks, float scale, int chunks, float* parts) {
  constexpr int teams = attending_threads / lanes;
  __shared__ alignas(16) float queried[queries][lanes * width];
  __shared__ alignas(16) float totals[attending_warps][queries][lanes * width];
  __shared__ Part joined[attending_warps][queries];

  const int text = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y) / chunks,
            split = static_cast<int>(blockIdx.z), splits = static_cast<int>(gridDim.z);
  const int d = blocks.head_dim, group = given.heads / blocks.kv_heads;
  const int of_group = static_cast<int>(blockIdx.y) % chunks * queries;
  const int count = min(queries, group - of_group), first_head = kv_head * group + of_group;
  const int64_t row = given.rows[text];
  const int length = given.lengths[text];
  // Whole blocks for each part, so that at_once tokens stay in one.
  const int whole_blocks = (length + kBlockTokens - 1) / kBlockTokens;
  const int share = (whole_blocks + splits - 1) / splits * static_cast<int>(kBlockTokens);
  const int begin = min(split * share, length), end = min(begin + share, length);

  const auto* q = static_cast<const Number*>(given.q) + row * given.q_stride + first_head * d;
  for (int i = threadIdx.x; i < queries * lanes * width; i += attending_threads) {
    const int g = i / (lanes * width), dimension = i % (lanes * width);
    queried[g][dimension] = g < count && dimension < d ? one(q + g * d + dimension) * scale : 0;
  }
  __syncthreads();

  const int team = threadIdx.x / lanes, dimension = threadIdx.x % lanes * width;
  const int32_t* table = given.tables + text * given.width;
  const auto* all_keys = static_cast<const Number*>(blocks.keys);
  const auto* all_values = static_cast<const Number*>(blocks.values);
  Part seen[queries];
  for (Part& part : seen) part = nothing();
  Values<width> total[queries] = {};
  // All teams have the same number of iterations, because their lanes shuffle together.
  for (int turn = begin; turn < end; turn += teams * at_once) {
    const int first = turn + team * at_once;
    Values<width> keys[at_once] = {}, values[at_once] = {};
    if (first < end && dimension < d) {
      const int64_t at =
          place_in(blocks, table[first / kBlockTokens], kv_head, first % kBlockTokens) + dimension;
#pragma unroll
      for (int t = 0; t < at_once; ++t) {
        if (first + t < end) keys[t] = load<width>(all_keys + at + t * d);
      }
#pragma unroll
      for (int t = 0; t < at_once; ++t) {
        if (first + t < end) values[t] = load<width>(all_values + at + t * d);
      }
    }
#pragma unroll
    for (int g = 0; g < queries; ++g) {
      if (g >= count) continue;
      const Values<width> query = load<width>(queried[g] + dimension);
      float scores[at_once], largest = seen[g].largest;
#pragma unroll
      for (int t = 0; t < at_once; ++t) {
        float score = 0;
#pragma unroll
        for (int j = 0; j < width; ++j) score += query.of[j] * keys[t].of[j];
#pragma unroll
        for (int mask = lanes / 2; mask > 0; mask /= 2) score += __shfl_xor_sync(all_lanes, score, mask);
        scores[t] = first + t < end ? score : -INFINITY;
        largest = fmaxf(largest, scores[t]);
      }
      const float factor = exp2f(seen[g].largest - largest);
      seen[g].largest = largest;
      seen[g].sum *= factor;
#pragma unroll
      for (int j = 0; j < width; ++j) total[g].of[j] *= factor;
#pragma unroll
      for (int t = 0; t < at_once; ++t) {
        const float weight = exp2f(scores[t] - largest);
        seen[g].sum += weight;
#pragma unroll
        for (int j = 0; j < width; ++j) total[g].of[j] += weight * values[t].of[j];
      }
    }
  }

  // The teams of a warp …
#pragma unroll
  for (int g = 0; g < queries; ++g) {
    if (g >= count) continue;
#pragma unroll
    for (int mask = lanes; mask < 32; mask *= 2) {
      const float largest = fmaxf(seen[g].largest, __shfl_xor_sync(all_lanes, seen[g].largest, mask));
      const float factor = exp2f(seen[g].largest - largest);
      seen[g].largest = largest;
      seen[g].sum *= factor;
      seen[g].sum += __shfl_xor_sync(all_lanes, seen[g].sum, mask);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        total[g].of[j] *= factor;
        total[g].of[j] += __shfl_xor_sync(all_lanes, total[g].of[j], mask);
      }
    }
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 < lanes) store(totals[warp][g] + dimension, total[g]);
    if (threadIdx.x % 32 == 0) joined[warp][g] = seen[g];
  }
  __syncthreads();

  // … and the warps.
  for (int i = threadIdx.x; i < count * d; i += attending_threads) {
    const int g = i / d, column = i % d;
    Part all = nothing();
    float sum = 0;
    for (int w = 0; w < attending_warps; ++w) all.largest = fmaxf(all.largest, joined[w][g].largest);
    for (int w = 0; w < attending_warps; ++w) {
      const float factor = exp2f(joined[w][g].largest - all.largest);
      all.sum += joined[w][g].sum * factor;
      sum += totals[w][g][column] * factor;
    }
    const int head = first_head + g;
    if (splits == 1) {
      auto* output = static_cast<Number*>(given.output) + (row * given.heads + head) * d;
      store_one(output + column, all.sum == 0 ? 0 : sum / all.sum);
      continue;
    }
    float* part =
        parts + ((static_cast<int64_t>(text) * given.heads + head) * splits + split) * part_size(blocks);
    part[column] = sum;
    if (column == 0) part[d] = all.largest, part[d + 1] = all.sum;
  }
}

// A block processes a query; a thread, some of its dimensions.
template <typename Number>
__global__ void __launch_bounds__(max_head_dim)
    join_kernel(const Queries given, const KvBlocks blocks, int splits, const float* parts) {
  const int d = blocks.head_dim, size = static_cast<int>(part_size(blocks));
  const int text = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  parts += (static_cast<int64_t>(text) * given.heads + head) * splits * size;
  auto* output =
      static_cast<Number*>(given.output) + (static_cast<int64_t>(given.rows[text]) * given.heads + head) * d;
  if (static_cast<int>(threadIdx.x) >= d) return;
  Part all = nothing();
  float sum = 0;
  for (int s = 0; s < splits; ++s) all.largest = fmaxf(all.largest, parts[s * size + d]);
  for (int s = 0; s < splits; ++s) {
    const float factor = exp2f(parts[s * size + d] - all.largest);
    all.sum += parts[s * size + d + 1] * factor;
    sum += parts[s * size + threadIdx.x] * factor;
  }
  store_one(output + threadIdx.x, all.sum == 0 ? 0 : sum / all.sum);
}

// --- launching -----------------------------------------------------------------------------------

bool in_sixteens(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

bool valid(const KvBlocks& blocks) {
  return blocks.kv_heads > 0 && blocks.head_dim > 0 && blocks.head_dim % width == 0 &&
         blocks.head_dim <= max_head_dim && blocks.stride % width == 0 && in_sixteens(blocks.keys) &&
         in_sixteens(blocks.values);
}

// Returns the query heads of a group per block.
int queries_of(const Queries& given, const KvBlocks& blocks) {
  const int group = given.heads / blocks.kv_heads;
  return group == 1 ? 1 : group <= 4 ? 4 : max_queries;
}
int chunks_of(const Queries& given, const KvBlocks& blocks) {
  const int group = given.heads / blocks.kv_heads, queries = queries_of(given, blocks);
  return (group + queries - 1) / queries;
}

template <typename Number, int lanes, int queries>
void launch(const Queries& given, const KvBlocks& blocks, int splits, float* parts, cudaStream_t stream) {
  const float scale =
      static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(blocks.head_dim)));
  const int chunks = chunks_of(given, blocks);
  const dim3 grid(static_cast<unsigned>(given.texts), static_cast<unsigned>(blocks.kv_heads * chunks),
                  static_cast<unsigned>(splits));
  attend_kernel<Number, lanes, queries>
      <<<grid, attending_threads, 0, stream>>>(given, blocks, scale, chunks, parts);
}

template <typename Number, int lanes>
void launch_for_group(const Queries& given, const KvBlocks& blocks, int splits, float* parts,
                      cudaStream_t stream) {
  switch (queries_of(given, blocks)) {
    case 1: return launch<Number, lanes, 1>(given, blocks, splits, parts, stream);
    case 4: return launch<Number, lanes, 4>(given, blocks, splits, parts, stream);
    default: return launch<Number, lanes, max_queries>(given, blocks, splits, parts, stream);
  }
}

template <typename Number>
cudaError_t attend_all(const Queries& given, const KvBlocks& blocks, int splits, float* parts,
                       cudaStream_t stream) {
  if (blocks.head_dim <= 64) {
    launch_for_group<Number, 8>(given, blocks, splits, parts, stream);
  } else if (blocks.head_dim <= 128) {
    launch_for_group<Number, 16>(given, blocks, splits, parts, stream);
  } else {
    launch_for_group<Number, 32>(given, blocks, splits, parts, stream);
  }
  const cudaError_t launched = cudaGetLastError();
  if (launched != cudaSuccess || splits == 1) return launched;
  const dim3 grid(static_cast<unsigned>(given.texts), static_cast<unsigned>(given.heads));
  const int whole_warps = (blocks.head_dim + 31) / 32 * 32;
  join_kernel<Number><<<grid, static_cast<unsigned>(whole_warps), 0, stream>>>(given, blocks, splits, parts);
  return cudaGetLastError();
}

}  // namespace

cudaError_t rotate_and_store(const ProjectedRows& given, const KvBlocks& blocks, cudaStream_t stream) {
  if (!valid(blocks) || given.rows < 0 || given.heads < 1) return cudaErrorInvalidValue;
  if (given.rows == 0) return cudaSuccess;
  const int64_t warps = static_cast<int64_t>(given.rows) * (given.heads + 2 * blocks.kv_heads);
  const int64_t grid = (warps * 32 + rotating_threads - 1) / rotating_threads;
  if (grid > INT32_MAX) return cudaErrorInvalidValue;
  if (blocks.is_bf16) {
    rotate_and_store_kernel<Bf16>
        <<<static_cast<unsigned>(grid), rotating_threads, 0, stream>>>(given, blocks);
  } else {
    rotate_and_store_kernel<float>
        <<<static_cast<unsigned>(grid), rotating_threads, 0, stream>>>(given, blocks);
  }
  return cudaGetLastError();
}

int attention_splits(const Queries& given, const KvBlocks& blocks, int64_t longest, int multiprocessors) {
  constexpr int blocks_each = 4;  // blocks of threads per multiprocessor
  const int64_t whole =
      std::max<int64_t>(1, static_cast<int64_t>(given.texts) * blocks.kv_heads * chunks_of(given, blocks));
  const int64_t wanted = (static_cast<int64_t>(multiprocessors) * blocks_each + whole - 1) / whole;
  const int64_t max_pairs = std::max<int64_t>(1, longest / smallest_part);
  return static_cast<int>(std::min({wanted, max_pairs, int64_t{UINT16_MAX}}));
}

int64_t attention_workspace(const Queries& given, const KvBlocks& blocks, int splits) {
  return splits == 1 ? 0 : int64_t{given.texts} * given.heads * splits * (blocks.head_dim + 2);
}

cudaError_t attend(const Queries& given, const KvBlocks& blocks, int splits, float* workspace,
                   cudaStream_t stream) {
  if (!valid(blocks) || !in_sixteens(given.q) || given.q_stride % width != 0 || given.texts < 0 ||
      given.heads < 1 || given.heads % blocks.kv_heads != 0 || given.heads > UINT16_MAX || splits < 1 ||
      splits > UINT16_MAX) {
    return cudaErrorInvalidValue;
  }
  if (given.texts == 0) return cudaSuccess;
  return blocks.is_bf16 ? attend_all<Bf16>(given, blocks, splits, workspace, stream)
                        : attend_all<float>(given, blocks, splits, workspace, stream);
}

}  // namespace nlac::cuda
