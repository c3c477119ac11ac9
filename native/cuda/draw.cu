#include "cuda/draw.h"

#include <algorithm>

#include "core/generate/id_mask.h"
#include "cuda/elements.h"

namespace nlac::cuda {
namespace {

constexpr int max_threads = 1024, max_warps = max_threads / 32;
constexpr int width = 4;    // logits a thread reads at a time: 16 bytes
constexpr int at_once = 4;  // times a thread reads before it uses the first
constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ int warps() { return static_cast<int>(blockDim.x) / 32; }
__device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
__device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

// --- reductions ----------------------------------------------------------------------------------

struct Largest {
  using Number = float;
  static constexpr float nothing = -INFINITY;
  __device__ static float joined(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  using Number = uint64_t;
  static constexpr uint64_t nothing = 0;
  __device__ static uint64_t joined(uint64_t a, uint64_t b) { return a + b; }
};

template <typename Join>
__device__ typename Join::Number warp_reduce(typename Join::Number value) {
  for (int mask = 16; mask > 0; mask /= 2)
    value = Join::joined(value, __shfl_xor_sync(all_lanes, value, mask));
  return value;
}

// Reduces each of the values over the block. Every thread gets the results.
template <typename Join, int count>
__device__ void block_reduce(typename Join::Number (&values)[count]) {
  using Number = typename Join::Number;
  __shared__ Number warp_values[count][max_warps];
  __shared__ Number block_values[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = warp_reduce<Join>(values[i]);
    if (lane() == 0) warp_values[i][warp()] = values[i];
  }
  __syncthreads();
  for (int i = warp(); i < count; i += warps()) {
    Number value = Join::nothing;
    if (lane() < warps()) value = warp_values[i][lane()];
    value = warp_reduce<Join>(value);
    if (lane() == 0) block_values[i] = value;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = block_values[i];
}

// --- a row's logits ------------------------------------------------------------------------------

struct Row {
  const float* logits;
  const uint32_t *allowed, *seen;  // null: all, none
  float penalty;
  bool wide;  // 16 bytes may be read at a multiple of four

  // Returns the constrained logit, given the model's.
  __device__ float changed(int id, float logit) const {
    if (allowed != nullptr && !in_mask(allowed, id)) return -INFINITY;
    if (seen != nullptr && in_mask(seen, id)) return logit > 0 ? logit / penalty : logit * penalty;
    return logit;
  }

  __device__ Values<width> read(int id, int end) const {
    if (wide && id % width == 0 && id + width <= end) return load<width>(logits + id);
    Values<width> values = {};
    for (int j = 0; j < width && id + j < end; ++j) values.of[j] = logits[id + j];
    return values;
  }
};

// Calls use(id, logit) for the ids in [begin, end), split over `threads` threads. The caller is
// number `thread`.
template <typename Use>
__device__ void for_each(const Row& row, int begin, int end, int thread, int threads, Use use) {
  for (int turn = begin + thread * width; turn < end; turn += threads * width * at_once) {
    Values<width> logits[at_once];
#pragma unroll
    for (int t = 0; t < at_once; ++t) logits[t] = row.read(turn + t * threads * width, end);
#pragma unroll
    for (int t = 0; t < at_once; ++t) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const int id = turn + t * threads * width + j;
        if (id < end) use(id, logits[t].of[j]);
      }
    }
  }
}

// Maps logits to integers of the same order. Both zeros have the same key, and no logit has key 0.
__device__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  return bits >> 31 == 0 ? bits | 0x80000000u : ~bits;
}
__device__ float logit_of(uint32_t key) { return __uint_as_float(key >> 31 == 0 ? ~key : key & 0x7FFFFFFFu); }

constexpr float unit = 0x1p-40f;  // of weights
// exp((logit - top) · scale), of logits that are at most top.
struct Weights {
  float top, scale;
  __device__ uint64_t of(float logit) const {
    return static_cast<uint64_t>(rintf(expf((logit - top) * scale) / unit));
  }
};

// --- the tokens that are kept --------------------------------------------------------------------

// Every filter keeps a prefix of one order: larger logits first, smaller ids first among equals. A
// cut keeps the tokens with a larger key, and the first `ties` of those with this key.
struct Cut {
  uint32_t key;
  uint64_t ties;
};

// A stretch of the row: the weight of its tokens with a larger key than the cut's, and the number
// of tokens with the cut's key.
struct Stretch {
  uint64_t weight;
  uint64_t ties;
};

__device__ Stretch weigh(const Row& row, const Weights& weights, const Cut& cut, int begin, int end,
                         int thread, int threads) {
  Stretch stretch{};
  for_each(row, begin, end, thread, threads, [&](int id, float model_logit) {
    const float logit = row.changed(id, model_logit);
    const uint32_t key = key_of(logit);
    if (key > cut.key) stretch.weight += weights.of(logit);
    if (key == cut.key) ++stretch.ties;
  });
  return stretch;
}

// The position while walking the kept tokens: the rest of the drawn number and of the kept ties.
struct Walk {
  uint64_t target, ties, tie_weight;

  __device__ uint64_t weight(const Stretch& stretch) const {
    return stretch.weight + min(stretch.ties, ties) * tie_weight;
  }
  __device__ bool ends_in(const Stretch& stretch) const { return target < weight(stretch); }
  __device__ void pass(const Stretch& stretch) {
    target -= weight(stretch);
    ties -= min(stretch.ties, ties);
  }
};

// Returns the first cut whose kept tokens have value(logit) of at least `needed` in sum, from 1 to
// the sum of all tokens. Finds the key from its highest bits down, one digit per pass over the row.
template <typename Value>
__device__ Cut cut_at(const Row& row, int vocab, uint64_t needed, Value value) {
  constexpr int digit_bits = 3, digits = 1 << digit_bits;
  uint32_t key = 0;  // the known digits; larger keys are subtracted from `needed`
  for (int shift = 31 / digit_bits * digit_bits; shift >= 0; shift -= digit_bits) {
    uint64_t reached[digits - 1] = {};  // by the next digit's values from 1, 2, … on
    for_each(row, 0, vocab, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x),
             [&](int id, float model_logit) {
               const float logit = row.changed(id, model_logit);
               const uint32_t digit = (key_of(logit) - key) >> shift;
               if (digit == 0 || digit >= digits) return;
               const uint64_t own = value(logit);
#pragma unroll
               for (int d = 1; d < digits; ++d) reached[d - 1] += digit >= static_cast<uint32_t>(d) ? own : 0;
             });
    block_reduce<Sum>(reached);
    uint32_t digit = 0;
    uint64_t beyond = 0;
#pragma unroll
    for (int d = digits - 1; d > 0; --d) {
      if (digit > 0) continue;
      if (reached[d - 1] >= needed) {
        digit = static_cast<uint32_t>(d);
      } else {
        beyond = reached[d - 1];
      }
    }
    needed -= beyond;
    key += digit << shift;
  }
  const uint64_t each = value(logit_of(key));
  return {key, (needed + each - 1) / each};
}

// Computes a stretch of the row for each warp, and returns the weight of the kept tokens. Requires
// a block synchronization since the last call's stretches were read.
__device__ uint64_t weigh_row(const Row& row, int vocab, const Weights& weights, const Cut& cut,
                              Stretch (&stretches)[max_warps]) {
  const int share = (vocab + warps() - 1) / warps(), begin = min(warp() * share, vocab);
  Stretch own = weigh(row, weights, cut, begin, min(begin + share, vocab), lane(), 32);
  own = {warp_reduce<Sum>(own.weight), warp_reduce<Sum>(own.ties)};
  if (lane() == 0) stretches[warp()] = own;
  __syncthreads();
  Stretch all{};
  for (int w = 0; w < warps(); ++w) all.weight += stretches[w].weight, all.ties += stretches[w].ties;
  return Walk{0, cut.ties, weights.of(logit_of(cut.key))}.weight(all);
}

// A block computes a draw.
__global__ void __launch_bounds__(max_threads) draw_kernel(const TokenDraws given) {
  __shared__ Stretch stretches[max_warps];
  __shared__ Stretch warp_values[max_warps];
  const TokenDraw draw = given.draws[blockIdx.x];
  DrawnToken& drawn = given.drawn[blockIdx.x];
  const int vocab = static_cast<int>(given.vocab);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int64_t words = mask_words(given.vocab);
  Row row{given.logits + draw.row * given.vocab,
          draw.allowed < 0 ? nullptr : given.masks + draw.allowed * words,
          draw.seen < 0 ? nullptr : given.masks + draw.seen * words, draw.penalty, false};
  row.wide = aligned<width>(row.logits);

  // The largest of the model's logits and of the constrained ones; infinite if there is a NaN.
  float largest[2] = {-INFINITY, -INFINITY};
  for_each(row, 0, vocab, thread, threads, [&](int id, float logit) {
    const float changed = row.changed(id, logit);
    largest[0] = fmaxf(largest[0], logit == logit ? logit : INFINITY);
    largest[1] = fmaxf(largest[1], changed == changed ? changed : INFINITY);
  });
  block_reduce<Largest>(largest);
  const float top = largest[0], changed_top = largest[1];
  if (fabsf(top) == INFINITY || (draw.forced < 0 && fabsf(changed_top) == INFINITY)) {
    if (thread == 0) drawn = {-1, 0};
    return;
  }
  const Weights model_weights{top, 1};
  uint64_t total[1] = {};
  for_each(row, 0, vocab, thread, threads, [&](int, float logit) { total[0] += model_weights.of(logit); });
  block_reduce<Sum>(total);
  const auto taken = [&](int id) -> DrawnToken {
    const double log_total = log(static_cast<double>(total[0]) * unit);
    return {id, static_cast<float>((static_cast<double>(row.logits[id]) - top) - log_total)};
  };
  if (draw.forced >= 0) {
    if (thread == 0) drawn = taken(draw.forced);
    return;
  }

  const Weights weights{changed_top, draw.scale};
  Cut cut{key_of(-INFINITY), 0};  // all tokens of positive weight
  if (draw.greedy != 0) {
    cut = {key_of(changed_top), 1};
  } else {
    if (draw.top_k > 0)
      cut = cut_at(row, vocab, static_cast<uint64_t>(draw.top_k), [](float) { return uint64_t{1}; });
    if (draw.top_p < 1) {
      const uint64_t kept = weigh_row(row, vocab, weights, cut, stretches);
      const auto needed = static_cast<uint64_t>(ceil(draw.top_p * static_cast<double>(kept)));
      cut = cut_at(row, vocab, min(needed, kept), [&](float logit) { return weights.of(logit); });
    }
    const uint32_t least = key_of(changed_top + draw.reach);
    if (least > cut.key) cut = {least - 1, 0};
  }

  // The token is in one of the warps' stretches …
  Walk walk{0, cut.ties, weights.of(logit_of(cut.key))};
  walk.target = __umul64hi(draw.number, weigh_row(row, vocab, weights, cut, stretches));
  int found = 0;
  for (; !walk.ends_in(stretches[found]); ++found) walk.pass(stretches[found]);
  // … of which each thread now has a part.
  const int share = (vocab + warps() - 1) / warps(), begin = found * share, end = min(begin + share, vocab);
  const int part = (end - begin + threads - 1) / threads, first = min(begin + thread * part, end);
  const Stretch own = weigh(row, weights, cut, first, min(first + part, end), 0, 1);
  Stretch before = own;  // up to the thread's own, included
  for (unsigned d = 1; d < 32; d *= 2) {
    const Stretch lower{__shfl_up_sync(all_lanes, before.weight, d),
                        __shfl_up_sync(all_lanes, before.ties, d)};
    if (lane() >= static_cast<int>(d)) before.weight += lower.weight, before.ties += lower.ties;
  }
  if (lane() == 31) warp_values[warp()] = before;
  __syncthreads();
  before.weight -= own.weight, before.ties -= own.ties;
  for (int w = 0; w < warp(); ++w) before.weight += warp_values[w].weight, before.ties += warp_values[w].ties;
  if (walk.ends_in(before)) return;
  walk.pass(before);
  if (!walk.ends_in(own)) return;
  for (int id = first;; ++id) {
    const float logit = row.changed(id, row.logits[id]);
    const uint32_t key = key_of(logit);
    const Stretch token{key > cut.key ? weights.of(logit) : 0, key == cut.key ? uint64_t{1} : 0};
    if (walk.ends_in(token)) {
      drawn = taken(id);
      return;
    }
    walk.pass(token);
  }
}

}  // namespace

cudaError_t draw_tokens(const TokenDraws& given, cudaStream_t stream) {
  if (given.vocab < 1 || given.vocab > max_drawn_vocab || given.count < 0 || given.count > INT32_MAX)
    return cudaErrorInvalidValue;
  if (given.count == 0) return cudaSuccess;
  // As many threads as have elements in the first iteration.
  const int64_t wanted = (given.vocab + width * at_once - 1) / (width * at_once);
  const auto threads = static_cast<unsigned>(std::min<int64_t>((wanted + 31) / 32 * 32, max_threads));
  draw_kernel<<<static_cast<unsigned>(given.count), threads, 0, stream>>>(given);
  return cudaGetLastError();
}

}  // namespace nlac::cuda
