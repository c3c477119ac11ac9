#pragma GCC optimize("O3")

#include "core/cpu/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "core/cpu/bf16_kernels.h"
#include "core/cpu/gemm.h"
#include "core/cpu/panels.h"
#include "core/cpu/shares.h"
#include "core/cpu/variants.h"

#define NLAC_VARIANT baseline
#define NLAC_LANES 4
#define NLAC_VECTORS 4
#ifdef __aarch64__  // 32 registers
#define NLAC_TALL 6
#define NLAC_WIDE 16
#else
#define NLAC_TALL 2
#define NLAC_WIDE 8
#endif
#include "core/cpu/kernels.inc"

#ifdef NLAC_X86_VARIANTS
NLAC_BEGIN_AVX2
#define NLAC_VARIANT avx2
#define NLAC_LANES 8
#define NLAC_VECTORS 2
#define NLAC_TALL 6
#define NLAC_WIDE 8
#include "core/cpu/kernels.inc"
NLAC_END_VARIANT

NLAC_BEGIN_AVX512
#define NLAC_VARIANT avx512
#define NLAC_LANES 16
#define NLAC_VECTORS 4
#define NLAC_TALL 6
#define NLAC_WIDE 4
#include "core/cpu/kernels.inc"
NLAC_END_VARIANT
#endif

namespace nlac::cpu {

NLAC_ALL_KERNELS

namespace {

const Kernels& kernels() { return *all_kernels().front(); }
template <typename Number>
const NumberKernels<Number>& kernels_of() {
  if constexpr (std::is_same_v<Number, float>)
    return kernels().f32;
  else
    return kernels().bf16;
}

// Whether bf16_kernels.h processes it instead.
template <typename Number>
bool by_pairs() {
  return std::is_same_v<Number, Bits> && bf16::available();
}
template <typename Number>
bool by_pairs_of_heads(int64_t head_dim) {
  return by_pairs<Number>() && head_dim % 64 == 0;
}

int64_t groups(int64_t in) { return parts(in, int8_group); }

// Numbers in float32: themselves, or widened into `room`.
const float* in_float(const float* x, int64_t, int64_t, std::unique_ptr<float[]>&) { return x; }
const float* in_float(const Bits* x, int64_t rows, int64_t n, std::unique_ptr<float[]>& room) {
  if (x == nullptr) return nullptr;
  room = scratch<float>(rows * n);
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels().bf16.widen(x + begin * n, n, end - begin, n, room.get() + begin * n);
  });
  return room.get();
}

// Panel p of a weight matrix [out, in], in the layout of kernels.h.
template <typename Number>
void pack_panel(const Number* weight, int64_t out, int64_t in, int64_t p, Number* panel) {
  constexpr int64_t step = 16;  // a cache line of every row at a time
  const Number* rows = weight + p * panel_columns * in;
  const int64_t count = std::min(panel_columns, out - p * panel_columns), columns = kernels().tile_columns;
  for (int64_t first = 0; first < in; first += step)
    for (int64_t c = 0; c < panel_columns; ++c) {
      Number* const to = panel + c / columns * columns * in + c % columns;
      for (int64_t k = first; k < std::min(in, first + step); ++k)
        to[k * columns] = c < count ? rows[c * in + k] : Number{};
    }
}

template <typename Packed>
constexpr Weights kind_of = std::is_same_v<Packed, float>  ? Weights::f32
                            : std::is_same_v<Packed, Bits> ? Weights::bf16
                                                           : Weights::int8;

}  // namespace

template <typename Number>
int64_t PackedWeights<Number>::size(int64_t out, int64_t in) {
  if (by_pairs<Number>() && in % 2 == 0) return bf16::packed_size(out, in);
  return panels(out) * panel_columns * in;
}

template <typename Number>
int64_t PackedWeights<Number>::scales(int64_t out, int64_t in) {
  return panels(out) * panel_columns * groups(in);
}

template <typename Number>
void PackedWeights<Number>::pack(const Number* weight, int64_t out, int64_t in, Number* packed) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>() && in % 2 == 0) return bf16::pack_weights(weight, out, in, packed);
  at::parallel_for(0, panels(out), grain(panel_columns * in), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) pack_panel(weight, out, in, p, packed + p * panel_columns * in);
  });
}

template <typename Number>
void PackedWeights<Number>::pack_int8(const Number* weight, int64_t out, int64_t in, int8_t* packed,
                                      float* scales) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>() && in % 2 == 0) return bf16::pack_int8(weight, out, in, packed, scales);
  const int64_t size = panel_columns * in;
  at::parallel_for(0, panels(out), grain(size), [&](int64_t begin, int64_t end) {
    const auto numbers = scratch<Number>(size);
    const auto wide = scratch<float>(size);
    for (int64_t p = begin; p < end; ++p) {
      pack_panel(weight, out, in, p, numbers.get());
      kernels_of<Number>().widen(numbers.get(), size, 1, size, wide.get());
      kernels().round_int8(wide.get(), in, packed + p * size, scales + p * groups(in) * panel_columns);
    }
  });
}

template <typename Number, typename Packed, typename Out>
void packed_linear(const Number* x, int64_t rows, const Packed* packed, const float* scales,
                   const Number* bias, int64_t out, int64_t in, Out* y, int64_t stride, bool add) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>() && in % 2 == 0) {
      if constexpr (std::is_same_v<Packed, int8_t> && std::is_same_v<Out, float>)
        return bf16::packed_linear(x, rows, packed, scales, bias, out, in, y, stride, add);
      else if constexpr (std::is_same_v<Packed, int8_t>)
        return bf16::packed_linear(x, rows, packed, scales, bias, out, in, y);
      else if constexpr (std::is_same_v<Out, float>)
        return bf16::packed_linear(x, rows, packed, bias, out, in, y, stride, add);
      else
        return bf16::packed_linear(x, rows, packed, bias, out, in, y);
    }
  std::unique_ptr<float[]> wide_x, wide_bias, steps;
  std::unique_ptr<int16_t[]> rounded;
  const float* const float_x = in_float(x, rows, in, wide_x);
  if constexpr (std::is_same_v<Packed, int8_t>)
    if (kernels().round_rows != nullptr && in % 2 == 0) {
      rounded = scratch<int16_t>(rows * in);
      steps = scratch<float>(rows * groups(in));
      at::parallel_for(0, rows, row_grain(in), [&](int64_t begin, int64_t end) {
        kernels().round_rows(float_x + begin * in, end - begin, in, rounded.get() + begin * in,
                             steps.get() + begin * groups(in));
      });
    }
  const Product product{float_x,
                        kind_of<Packed>,
                        packed,
                        scales,
                        in_float(bias, 1, out, wide_bias),
                        rounded.get(),
                        steps.get(),
                        rows,
                        out,
                        in,
                        y,
                        stride,
                        !std::is_same_v<Out, float>,
                        add};
  at::parallel_for(0, panels(out), grain(rows * panel_columns * in),
                   [&](int64_t begin, int64_t end) { kernels().linear(product, begin, end); });
}

template <typename In, typename Number>
void rms_norm(const In* x, int64_t rows, int64_t n, const Number* weight, bool plus_one, float eps,
              Number* y) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>()) return bf16::rms_norm(x, rows, n, weight, plus_one, eps, y);
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<In, Number>)
      kernels_of<Number>().rms_norm(x + begin * n, end - begin, n, weight, plus_one, eps, y + begin * n);
    else
      kernels_of<Number>().rms_norm_of_f32(x + begin * n, end - begin, n, weight, plus_one, eps,
                                           y + begin * n);
  });
}

template <typename Number>
void rms_norm_backward(const Number* grad, const Number* x, const Number* residual, int64_t rows, int64_t n,
                       const Number* weight, bool plus_one, float eps, Number* grad_x, float* grad_weight) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>())
      return bf16::rms_norm_backward(grad, x, residual, rows, n, weight, plus_one, eps, grad_x, grad_weight);
  constexpr int64_t block =
      64;  // rows whose weight gradients are summed together, whichever thread computes them
  const int64_t blocks = parts(rows, block);
  std::vector<float> partial(grad_weight ? static_cast<size_t>(blocks * n) : 0);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t at = b * block * n;
      kernels_of<Number>().rms_norm_backward(grad + at, x + at, residual ? residual + at : nullptr,
                                             std::min(block, rows - b * block), n, weight, plus_one, eps,
                                             grad_x + at, grad_weight ? partial.data() + b * n : nullptr);
    }
  });
  if (!grad_weight) return;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < n; ++i) grad_weight[i] += partial[static_cast<size_t>(b * n + i)];
}

template <typename Number>
void gated_silu(const Number* gate_up, int64_t rows, int64_t n, Number* y) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>()) return bf16::gated_silu(gate_up, rows, n, y);
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels_of<Number>().gated_silu(gate_up + 2 * begin * n, end - begin, n, y + begin * n);
  });
}

template <typename Number>
void gated_silu_backward(const Number* grad, const Number* gate_up, int64_t rows, int64_t n,
                         Number* grad_gate_up) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>()) return bf16::gated_silu_backward(grad, gate_up, rows, n, grad_gate_up);
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels_of<Number>().gated_silu_backward(grad + begin * n, gate_up + 2 * begin * n, end - begin, n,
                                             grad_gate_up + 2 * begin * n);
  });
}

template <typename Number>
void gated_gelu(const Number* gate_up, int64_t rows, int64_t n, Number* y) {
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels_of<Number>().gated_gelu(gate_up + 2 * begin * n, end - begin, n, y + begin * n);
  });
}

template <typename Number>
void gated_gelu_backward(const Number* grad, const Number* gate_up, int64_t rows, int64_t n,
                         Number* grad_gate_up) {
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels_of<Number>().gated_gelu_backward(grad + begin * n, gate_up + 2 * begin * n, end - begin, n,
                                             grad_gate_up + 2 * begin * n);
  });
}

template <typename Number>
void clamped_gate(const Number* gate_up, int64_t rows, int64_t n, float limit, float alpha, Number* y) {
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels_of<Number>().clamped_gate(gate_up + 2 * begin * n, (end - begin) * n, limit, alpha,
                                      y + begin * n);
  });
}

template <typename Number>
void clamped_gate_backward(const Number* grad, const Number* gate_up, int64_t rows, int64_t n, float limit,
                           float alpha, Number* grad_gate_up) {
  at::parallel_for(0, rows, row_grain(n), [&](int64_t begin, int64_t end) {
    kernels_of<Number>().clamped_gate_backward(grad + begin * n, gate_up + 2 * begin * n, (end - begin) * n,
                                               limit, alpha, grad_gate_up + 2 * begin * n);
  });
}

template <typename Number>
void rotate(Number* x, int64_t tokens, int64_t stride, int64_t heads, int64_t half, const float* cos,
            const float* sin, const int64_t* positions, float sign) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs<Number>() && half % 16 == 0)
      return bf16::rotate(x, tokens, stride, heads, half, cos, sin, positions, sign);
  at::parallel_for(0, tokens, row_grain(2 * heads * half), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernels_of<Number>().rotate(x + t * stride, heads, half, cos + positions[t] * half,
                                  sin + positions[t] * half, sign);
  });
}

// --- attention over whole sequences: products of gemm.h, a block of queries at a time ------------

namespace {

constexpr int64_t query_block = 48;  // queries whose scores exist at a time

float scale_of(const Head& head) {
  return head.scale > 0 ? head.scale : 1.0f / __builtin_sqrtf(static_cast<float>(head.head_dim));
}

}  // namespace

template <typename Number>
void attend(const Head& head, const Number* q, const Number* k, const Number* v, Number* output,
            float* logsumexp) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs_of_heads<Number>(head.head_dim)) return bf16::attend(head, q, k, v, output, logsumexp);
  const int64_t d = head.head_dim, length = head.length, stride = panels(length) * panel_columns,
                queries_count = length - head.past;
  const float scale = scale_of(head);
  const Panels keys(rows_factor(k, head.kv_stride).transposed(), d, length),
      values(rows_factor(v, head.kv_stride), length, d);
  const auto queries = scratch<float>(query_block * d), scores = scratch<float>(query_block * stride),
             sums = scratch<float>(query_block * d);
  const auto& of_number = kernels_of<Number>();
  for (int64_t first = 0; first < queries_count; first += query_block) {
    const int64_t count = std::min(query_block, queries_count - first), seen = head.past + first + count;
    of_number.widen(q + first * head.q_stride, head.q_stride, count, d, queries.get());
    keys.multiply(left_of(queries.get(), d), count, d, seen, scores.get(), stride, false);
    float factors[query_block];
    for (int64_t i = 0; i < count; ++i) {
      float* const row = scores.get() + i * stride;
      const int64_t own = head.past + first + i + 1, from = first_seen(own, head.window);
      const Sink sink(scale * kernels().largest(row + from, own - from), head.sink);
      const float sum =
          kernels().exponentials(row + from, own - from, seen - from, scale, sink.largest) + sink.share;
      std::fill(row, row + from, 0.0f);
      factors[i] = 1.0f / sum;
      logsumexp[first + i] = sink.largest + __builtin_logf(sum);
    }
    values.multiply(left_of(scores.get(), stride), count, seen, d, sums.get(), d, false);
    for (int64_t i = 0; i < count; ++i)
      of_number.scale(sums.get() + i * d, d, factors[i], output + (first + i) * head.output_stride);
  }
}

template <typename Number>
void attend_backward(const Head& head, const Number* q, const Number* k, const Number* v,
                     const Number* output, const float* logsumexp, const Number* grad, Number* grad_q,
                     float* grad_k, float* grad_v) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs_of_heads<Number>(head.head_dim))
      return bf16::attend_backward(head, q, k, v, output, logsumexp, grad, grad_q, grad_k, grad_v);
  const int64_t d = head.head_dim, length = head.length, stride = panels(length) * panel_columns,
                queries_count = length - head.past;
  const float scale = scale_of(head);
  const Panels keys(rows_factor(k, head.kv_stride).transposed(), d, length),
      values(rows_factor(v, head.kv_stride).transposed(), d, length),
      key_rows(rows_factor(k, head.kv_stride), length, d);
  const auto queries = scratch<float>(query_block * d), upstream = scratch<float>(query_block * d),
             sums = scratch<float>(query_block * d);
  const auto probabilities = scratch<float>(query_block * stride),
             at_scores = scratch<float>(query_block * stride);
  const auto room = scratch<float>((length + best_gemm().tall) * query_block);
  const auto& of_number = kernels_of<Number>();
  std::fill(grad_k, grad_k + length * d, 0.0f);
  std::fill(grad_v, grad_v + length * d, 0.0f);
  for (int64_t first = 0; first < queries_count; first += query_block) {
    const int64_t count = std::min(query_block, queries_count - first), seen = head.past + first + count;
    of_number.widen(q + first * head.q_stride, head.q_stride, count, d, queries.get());
    of_number.widen(grad + first * head.output_stride, head.output_stride, count, d, upstream.get());
    keys.multiply(left_of(queries.get(), d), count, d, seen, probabilities.get(), stride, false);
    values.multiply(left_of(upstream.get(), d), count, d, seen, at_scores.get(), stride, false);
    for (int64_t i = 0; i < count; ++i) {
      float* const row = probabilities.get() + i * stride;
      const int64_t own = head.past + first + i + 1, from = first_seen(own, head.window);
      kernels().exponentials(row + from, own - from, seen - from, scale, logsumexp[first + i]);
      std::fill(row, row + from, 0.0f);
      const int64_t at = (first + i) * head.output_stride;
      kernels().softmax_backward(row, seen, of_number.dot(grad + at, output + at, d), scale,
                                 at_scores.get() + i * stride);
    }
    key_rows.multiply(left_of(at_scores.get(), stride), count, seen, d, sums.get(), d, false);
    for (int64_t i = 0; i < count; ++i)
      of_number.scale(sums.get() + i * d, d, 1.0f, grad_q + (first + i) * head.q_stride);
    const Panels of_upstream(rows_factor(upstream.get(), d), count, d),
        of_queries(rows_factor(queries.get(), d), count, d);
    of_upstream.multiply(turned(probabilities.get(), stride, seen, count, room.get()), seen, count, d, grad_v,
                         d, true);
    of_queries.multiply(turned(at_scores.get(), stride, seen, count, room.get()), seen, count, d, grad_k, d,
                        true);
  }
}

// --- attention over blocks -----------------------------------------------------------------------

template <typename Number>
void store_key(const Number* key, int64_t head_dim, int64_t slot, Number* block) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs_of_heads<Number>(head_dim)) return bf16::store_key(key, head_dim, slot, block);
  for (int64_t d = 0; d < head_dim; ++d) block[d * kBlockTokens + slot] = key[d];
}

template <typename Number>
void store_value(const Number* value, int64_t head_dim, int64_t slot, bool last, Number* block) {
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs_of_heads<Number>(head_dim)) return bf16::store_value(value, head_dim, slot, last, block);
  std::copy(value, value + head_dim, block + slot * head_dim);
}

template <typename Number>
void attend_blocks(const BlockHead& whole, int64_t first, int64_t count, const Number* q,
                   const void* const* blocks, int64_t keys, int64_t values, Number* output) {
  // Blocks before every query's window are left out: to the kernels the text begins after them.
  const int64_t skipped = first_seen(whole.past + first + 1, whole.window) / kBlockTokens;
  BlockHead head = whole;
  head.past -= skipped * kBlockTokens;
  blocks += skipped;
  if constexpr (std::is_same_v<Number, Bits>)
    if (by_pairs_of_heads<Number>(head.head_dim))
      return bf16::attend_blocks(head, first, count, q, blocks, keys, values, output);
  const int64_t padded = panels(head.past + first + count) * panel_columns,
                width = head.group * head.head_dim;
  const auto scores = scratch<float>(count * head.group * padded), queries = scratch<float>(count * width);
  kernels_of<Number>().widen(q + first * head.q_stride, head.q_stride, count, width, queries.get());
  kernels_of<Number>().attend_blocks(
      {head, first, count, queries.get(), blocks, keys, values, output, scores.get(), padded});
}

// --- instantiations ------------------------------------------------------------------------------

#define NLAC_INSTANTIATE(Number)                                                                           \
  template struct PackedWeights<Number>;                                                                   \
  template void packed_linear(const Number*, int64_t, const Number*, const float*, const Number*, int64_t, \
                              int64_t, Number*, int64_t, bool);                                            \
  template void packed_linear(const Number*, int64_t, const int8_t*, const float*, const Number*, int64_t, \
                              int64_t, Number*, int64_t, bool);                                            \
  template void rms_norm(const Number*, int64_t, int64_t, const Number*, bool, float, Number*);            \
  template void rms_norm_backward(const Number*, const Number*, const Number*, int64_t, int64_t,           \
                                  const Number*, bool, float, Number*, float*);                            \
  template void gated_silu(const Number*, int64_t, int64_t, Number*);                                      \
  template void gated_silu_backward(const Number*, const Number*, int64_t, int64_t, Number*);              \
  template void gated_gelu(const Number*, int64_t, int64_t, Number*);                                      \
  template void gated_gelu_backward(const Number*, const Number*, int64_t, int64_t, Number*);              \
  template void clamped_gate(const Number*, int64_t, int64_t, float, float, Number*);                      \
  template void clamped_gate_backward(const Number*, const Number*, int64_t, int64_t, float, float,        \
                                      Number*);                                                            \
  template void rotate(Number*, int64_t, int64_t, int64_t, int64_t, const float*, const float*,            \
                       const int64_t*, float);                                                             \
  template void attend(const Head&, const Number*, const Number*, const Number*, Number*, float*);         \
  template void attend_backward(const Head&, const Number*, const Number*, const Number*, const Number*,   \
                                const float*, const Number*, Number*, float*, float*);                     \
  template void store_key(const Number*, int64_t, int64_t, Number*);                                       \
  template void store_value(const Number*, int64_t, int64_t, bool, Number*);                               \
  template void attend_blocks(const BlockHead&, int64_t, int64_t, const Number*, const void* const*,       \
                              int64_t, int64_t, Number*);
NLAC_INSTANTIATE(float)
NLAC_INSTANTIATE(Bits)
#undef NLAC_INSTANTIATE
template void packed_linear(const Bits*, int64_t, const Bits*, const float*, const Bits*, int64_t, int64_t,
                            float*, int64_t, bool);
template void packed_linear(const Bits*, int64_t, const int8_t*, const float*, const Bits*, int64_t, int64_t,
                            float*, int64_t, bool);
template void rms_norm(const float*, int64_t, int64_t, const Bits*, bool, float, Bits*);

}  // namespace nlac::cpu
