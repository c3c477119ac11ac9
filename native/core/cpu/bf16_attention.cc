#include "core/cpu/bf16_kernels.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cmath>

#include "core/cpu/bf16_products.h"
#include "core/cpu/bf16_vectors.h"

namespace nlac::bf16 {
namespace {

// One row of exponentials e^(scale · score - offset) of the first `length` scores, as bf16, 0 up to
// `padded`. Returns their sum (before rounding). Both counts are read in steps of 16.
NLAC_AVX512 float exponentials_to(const float* scores, int64_t length, int64_t padded, float scale,
                                  float offset, Bits* into) {
  __m512 total = _mm512_setzero_ps();
  for (int64_t j = 0; j < padded; j += 16) {
    const int64_t count = std::clamp<int64_t>(length - j, 0, 16);
    const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << count) - 1);
    const __m512 shifted =
        _mm512_fmsub_ps(_mm512_loadu_ps(scores + j), _mm512_set1_ps(scale), _mm512_set1_ps(offset));
    const __m512 value = _mm512_maskz_mov_ps(mask, exponential(shifted));
    total = _mm512_add_ps(total, value);
    store16(into + j, value);
  }
  return _mm512_reduce_add_ps(total);
}

NLAC_AVX512 float largest_of(const float* values, int64_t length) {
  __m512 largest = _mm512_set1_ps(-INFINITY);
  for (int64_t j = 0; j < length; j += 16) {
    const __mmask16 mask = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(length - j, 16)) - 1);
    largest = _mm512_mask_max_ps(largest, mask, largest, _mm512_maskz_loadu_ps(mask, values + j));
  }
  return _mm512_reduce_max_ps(largest);
}

// values [n] · factor → bf16; n is a multiple of 16
NLAC_AVX512 void round_scaled(const float* values, int64_t n, float factor, Bits* into) {
  for (int64_t i = 0; i < n; i += 16)
    store16(into + i, _mm512_mul_ps(_mm512_loadu_ps(values + i), _mm512_set1_ps(factor)));
}

NLAC_AVX512 float dot(const Bits* a, const Bits* b, int64_t n) {  // n is a multiple of 32
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 32) sum = _mm512_dpbf16_ps(sum, load32(a + i), load32(b + i));
  return _mm512_reduce_add_ps(sum);
}

// at_scores = probabilities · (at_probabilities - along) · scale, bf16; `count` is a multiple of 16
NLAC_AVX512 void softmax_backward(const Bits* probabilities, const float* at_probabilities, int64_t count,
                                  float along, float scale, Bits* at_scores) {
  for (int64_t j = 0; j < count; j += 16) {
    const __m512 off = _mm512_sub_ps(_mm512_loadu_ps(at_probabilities + j), _mm512_set1_ps(along));
    store16(at_scores + j,
            _mm512_mul_ps(_mm512_mul_ps(off, _mm512_set1_ps(scale)), load16(probabilities + j)));
  }
}

constexpr int64_t query_block = 48;  // queries whose scores exist at a time

float scale_of(const auto& head) {
  return head.scale > 0 ? head.scale : 1.0f / std::sqrt(static_cast<float>(head.head_dim));
}

// exponentials_to of the scores [from, own), and zeros before. Starts with the 16 scores that hold
// `from`.
float window_exponentials_to(float* scores, int64_t from, int64_t own, int64_t padded, float scale,
                             float offset, Bits* into) {
  const int64_t begin = from / 16 * 16;
  std::fill(into, into + begin, Bits{0});
  std::fill(scores + begin, scores + from, -INFINITY);
  return exponentials_to(scores + begin, own - begin, padded - begin, scale, offset, into + begin);
}

// --- attention over blocks -----------------------------------------------------------------------

const Pair* pairs_at(const void* block, int64_t part) {
  return reinterpret_cast<const Pair*>(static_cast<const Bits*>(block) + part);
}

// scores[m][0, 64) of M queries with the keys of four blocks. If `count` is less, the last one is
// repeated.
template <int M>
NLAC_AVX512 void score_tile(const Pair* const* queries, const void* const* blocks, int64_t keys,
                            int64_t count, int64_t pairs, float* scores, int64_t stride) {
  const Pair* block[4];
  __m512 tile[M][4];
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    block[c] = pairs_at(blocks[std::min<int64_t>(c, count - 1)], keys);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) tile[m][c] = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh key[4];
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) key[c] = (__m512bh)_mm512_loadu_si512(block[c] + p * kBlockTokens);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512bh query = (__m512bh)_mm512_set1_epi32(static_cast<int>(queries[m][p]));
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_dpbf16_ps(tile[m][c], query, key[c]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) _mm512_storeu_ps(scores + m * stride + 16 * c, tile[m][c]);
}

// into[m][0, 64) = factors[m] · Σ weights · values, of the first `seen` tokens and 64 columns.
template <int M>
NLAC_AVX512 void weigh_tile(const Pair* const* weights, const void* const* blocks, int64_t values,
                            int64_t seen, int64_t head_dim, const float* factors, Bits* const* into) {
  __m512 tile[M][4];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_setzero_ps();
  const int64_t pairs = (seen + 1) / 2;
  for (int64_t begin = 0; begin < pairs; begin += kBlockTokens / 2) {
    const Pair* block = pairs_at(blocks[begin / (kBlockTokens / 2)], values);
    const int64_t end = std::min(pairs, begin + kBlockTokens / 2);
    for (int64_t p = begin; p < end; ++p, block += head_dim) {
      __m512bh value[4];
#pragma GCC unroll 16
      for (int c = 0; c < 4; ++c) value[c] = (__m512bh)_mm512_loadu_si512(block + 16 * c);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const __m512bh weight = (__m512bh)_mm512_set1_epi32(static_cast<int>(weights[m][p]));
#pragma GCC unroll 16
        for (int c = 0; c < 4; ++c) tile[m][c] = _mm512_dpbf16_ps(tile[m][c], weight, value[c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c)
      store16(into[m] + 16 * c, _mm512_mul_ps(tile[m][c], _mm512_set1_ps(factors[m])));
}

}  // namespace

void store_key(const Bits* key, int64_t head_dim, int64_t slot, Bits* block) {
  Pair* into = reinterpret_cast<Pair*>(block) + slot;
  const Pair* pairs = reinterpret_cast<const Pair*>(key);
  for (int64_t p = 0; p < head_dim / 2; ++p) into[p * kBlockTokens] = pairs[p];
}

void store_value(const Bits* value, int64_t head_dim, int64_t slot, bool last, Bits* block) {
  Bits* into = block + slot / 2 * 2 * head_dim + slot % 2;
  for (int64_t d = 0; d < head_dim; ++d) into[2 * d] = value[d];
  if (last && slot % 2 == 0)
    for (int64_t d = 0; d < head_dim; ++d) into[2 * d + 1] = 0;
}

void attend_blocks(const BlockHead& head, int64_t first, int64_t count, const Bits* q,
                   const void* const* blocks, int64_t keys, int64_t values, Bits* output) {
  const int64_t d = head.head_dim, rows = count * head.group;
  const int64_t seen = head.past + first + count;
  const int64_t block_count = panels(seen, kBlockTokens), padded = panels(seen, wide) * wide;
  const float scale = scale_of(head);
  const auto scores = scratch<float>(rows * padded);
  const auto probabilities = scratch<Bits>(rows * padded);
  const auto query = [&](int64_t row) {
    return reinterpret_cast<const Pair*>(q + (first + row / head.group) * head.q_stride +
                                         row % head.group * d);
  };
  const auto probability = [&](int64_t row) {
    return reinterpret_cast<const Pair*>(probabilities.get() + row * padded);
  };
  for (int64_t block = 0; block < block_count; block += wide / kBlockTokens)
    in_tiles(rows, [&]<int M>(int64_t row) {
      const Pair* queries[M];
      for (int m = 0; m < M; ++m) queries[m] = query(row + m);
      score_tile<M>(queries, blocks + block, keys, std::min(block_count - block, wide / kBlockTokens), d / 2,
                    scores.get() + row * padded + block * kBlockTokens, padded);
    });
  const auto factors = scratch<float>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t own = head.past + first + row / head.group + 1;
    const int64_t from = first_seen(own, head.window);
    float* of_row = scores.get() + row * padded;
    const Sink sink(scale * largest_of(of_row + from, own - from),
                    head.sinks ? head.sinks + row % head.group : nullptr);
    factors[row] = 1.0f / (window_exponentials_to(of_row, from, own, block_count * kBlockTokens, scale,
                                                  sink.largest, probabilities.get() + row * padded) +
                           sink.share);
  }
  for (int64_t column = 0; column < d; column += wide)
    in_tiles(rows, [&]<int M>(int64_t row) {
      const Pair* weights[M];
      Bits* into[M];
      for (int m = 0; m < M; ++m) {
        weights[m] = probability(row + m);
        into[m] = output + (first + (row + m) / head.group) * head.output_stride +
                  (row + m) % head.group * d + column;
      }
      weigh_tile<M>(weights, blocks, values + 2 * column, seen, d, factors.get() + row, into);
    });
}

void attend(const Head& head, const Bits* q, const Bits* k, const Bits* v, Bits* output, float* logsumexp) {
  const int64_t d = head.head_dim, past = head.past, fresh = head.length - past,
                padded = panels(head.length, wide) * wide;
  const float scale = scale_of(head);
  const auto keys = scratch<Pair>(padded * d / 2), values = scratch<Pair>(padded * d / 2);
  pack_transposed(k, head.kv_stride, head.length, d / 2, keys.get());
  const int64_t value_pairs = (head.length + 1) / 2;
  for (int64_t p = 0; p < d / wide; ++p)
    pack_row_pairs<wide>(v, head.kv_stride, head.length, d, p * wide, values.get() + p * value_pairs * wide);
  const auto scores = scratch<float>(query_block * padded), sums = scratch<float>(query_block * d);
  const auto probabilities = scratch<Bits>(query_block * padded);
  float factors[query_block];
  for (int64_t first = 0; first < fresh; first += query_block) {
    const int64_t count = std::min(query_block, fresh - first), seen = past + first + count;
    const int64_t seen_padded = panels(seen, wide) * wide;
    product(rows_of(q + first * head.q_stride, head.q_stride), keys.get(), d / 2 * wide, d / 2, count,
            seen_padded, scores.get(), padded, false);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t own = past + first + i + 1, from = first_seen(own, head.window);
      float* const row = scores.get() + i * padded;
      const Sink sink(scale * largest_of(row + from, own - from), head.sink);
      const float sum = window_exponentials_to(row, from, own, seen_padded, scale, sink.largest,
                                               probabilities.get() + i * padded) +
                        sink.share;
      factors[i] = 1.0f / sum;
      logsumexp[first + i] = sink.largest + std::log(sum);
    }
    product(rows_of(probabilities.get(), padded), values.get(), value_pairs * wide, (seen + 1) / 2, count, d,
            sums.get(), d, false);
    for (int64_t i = 0; i < count; ++i)
      round_scaled(sums.get() + i * d, d, factors[i], output + (first + i) * head.output_stride);
  }
}

void attend_backward(const Head& head, const Bits* q, const Bits* k, const Bits* v, const Bits* output,
                     const float* logsumexp, const Bits* grad, Bits* grad_q, float* grad_k, float* grad_v) {
  const int64_t d = head.head_dim, length = head.length, padded = panels(length, wide) * wide,
                past = head.past, fresh = length - past;
  const float scale = scale_of(head);
  const int64_t key_pairs = (length + 1) / 2, d_panels = d / wide, block_pairs = query_block / 2;
  const auto keys = scratch<Pair>(padded * d / 2), values = scratch<Pair>(padded * d / 2);
  const auto key_rows = scratch<Pair>(key_pairs * d);
  pack_transposed(k, head.kv_stride, length, d / 2, keys.get());
  pack_transposed(v, head.kv_stride, length, d / 2, values.get());
  for (int64_t p = 0; p < d_panels; ++p)
    pack_row_pairs<wide>(k, head.kv_stride, length, d, p * wide, key_rows.get() + p * key_pairs * wide);
  const auto scores = scratch<float>(query_block * padded),
             at_probabilities = scratch<float>(query_block * padded);
  const auto probabilities = scratch<Bits>(query_block * padded),
             at_scores = scratch<Bits>(query_block * padded);
  const auto turned = scratch<Pair>(panels(padded, tall) * tall * block_pairs);
  const auto right = scratch<Pair>(block_pairs * d);
  const auto sums = scratch<float>(query_block * d);
  std::fill(grad_k, grad_k + length * d, 0.0f);
  std::fill(grad_v, grad_v + length * d, 0.0f);

  for (int64_t first = 0; first < fresh; first += query_block) {
    const int64_t count = std::min(query_block, fresh - first), seen = past + first + count,
                  pairs = (count + 1) / 2;
    const int64_t seen_padded = panels(seen, wide) * wide;
    const Bits* const queries = q + first * head.q_stride;
    const Bits* const upstream = grad + first * head.output_stride;
    product(rows_of(queries, head.q_stride), keys.get(), d / 2 * wide, d / 2, count, seen_padded,
            scores.get(), padded, false);
    product(rows_of(upstream, head.output_stride), values.get(), d / 2 * wide, d / 2, count, seen_padded,
            at_probabilities.get(), padded, false);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t own = past + first + i + 1;
      window_exponentials_to(scores.get() + i * padded, first_seen(own, head.window), own, seen_padded, scale,
                             logsumexp[first + i], probabilities.get() + i * padded);
      softmax_backward(probabilities.get() + i * padded, at_probabilities.get() + i * padded, seen_padded,
                       dot(upstream + i * head.output_stride, output + (first + i) * head.output_stride, d),
                       scale, at_scores.get() + i * padded);
    }
    product(rows_of(at_scores.get(), padded), key_rows.get(), key_pairs * wide, (seen + 1) / 2, count, d,
            sums.get(), d, false);
    for (int64_t i = 0; i < count; ++i)
      round_scaled(sums.get() + i * d, d, 1.0f, grad_q + (first + i) * head.q_stride);

    const auto add_turned = [&](const Bits* left, const Bits* rows, int64_t stride, float* sum) {
      for (int64_t p = 0; p < panels(seen, tall); ++p)
        pack_row_pairs<tall>(left, padded, count, seen, p * tall, turned.get() + p * pairs * tall);
      for (int64_t p = 0; p < d_panels; ++p)
        pack_row_pairs<wide>(rows, stride, count, d, p * wide, right.get() + p * pairs * wide);
      product({turned.get(), pairs * tall, 1, tall}, right.get(), pairs * wide, pairs, seen, d, sum, d, true);
    };
    add_turned(probabilities.get(), upstream, head.output_stride, grad_v);
    add_turned(at_scores.get(), queries, head.q_stride, grad_k);
  }
}

}  // namespace nlac::bf16

#endif
