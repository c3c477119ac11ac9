#pragma GCC optimize("O3")

#include "core/cpu/delta_chunks.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/cpu/delta_kernels.h"
#include "core/cpu/kernels.h"
#include "core/cpu/panels.h"

namespace nlac::cpu {
namespace {

constexpr int64_t side = kDeltaChunk;  // rows of a chunk's matrices of pairs of tokens

const delta_kernels::Kernels& kernels() { return delta_kernels::kernels(); }

void scale_rows(const DeltaRows<const float>& x, const float* factors, int64_t rows, int64_t n, float* y) {
  kernels().scale_rows(x.data, x.stride, factors, rows, n, false, y, n);
}

// What a chunk's tokens compute, as delta_rule.cc names it. G_i is the sum of g up to token i.
class Chunk {
 public:
  int64_t n = 0;                                    // tokens
  DeltaHead<const float> at;                        // the inputs from the first token on
  float passed[side], remaining[side], beta[side];  // e^{G_i}, e^{G_C - G_i}, β_i
  float whole = 0;                                  // e^{G_C}
  // [n, side]: e^{G_i - G_j}, and times k_i · k_j (below the diagonal) and q_i · k_j; else 0
  const std::unique_ptr<float[]> pairs = scratch<float>(side * side), keys = scratch<float>(side * side),
                                 attention = scratch<float>(side * side);
  const std::unique_ptr<float[]> errors, changes;  // E and U [n, value_dim]
  const std::unique_ptr<float[]> queries, reads;   // q_i e^{G_i} and k_i e^{G_i} [n, key_dim]
  const std::unique_ptr<float[]> writes;           // k_i e^{G_C - G_i}

  explicit Chunk(const DeltaSizes& sizes)
      : errors(scratch<float>(side * sizes.value_dim)),
        changes(scratch<float>(side * sizes.value_dim)),
        queries(scratch<float>(side * sizes.key_dim)),
        reads(scratch<float>(side * sizes.key_dim)),
        writes(scratch<float>(side * sizes.key_dim)),
        key_dim_(sizes.key_dim),
        value_dim_(sizes.value_dim) {}

  // Of the `tokens` from `first` on; `state` is S before them.
  void compute(const DeltaHead<const float>& head, int64_t first, int64_t tokens, const Panels& state) {
    n = tokens;
    const auto from = [&](const DeltaRows<const float>& x) {
      return DeltaRows<const float>{x.at(first), x.stride};
    };
    at = {from(head.q), from(head.k), from(head.v), from(head.decay), from(head.beta)};
    set_powers();
    const Panels turned_keys(rows_factor(at.k.data, at.k.stride).transposed(), key_dim_, n);
    turned_keys.multiply(left_of(at.k.data, at.k.stride), n, keys.get(), side, false);
    turned_keys.multiply(left_of(at.q.data, at.q.stride), n, attention.get(), side, false);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        keys[i * side + j] = j < i ? keys[i * side + j] * pairs[i * side + j] : 0;
        attention[i * side + j] = j <= i ? attention[i * side + j] * pairs[i * side + j] : 0;
      }
    scale_rows(at.q, passed, n, key_dim_, queries.get());
    scale_rows(at.k, passed, n, key_dim_, reads.get());
    scale_rows(at.k, remaining, n, key_dim_, writes.get());
    state.multiply(left_of(reads.get(), key_dim_), n, errors.get(), value_dim_, false);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < value_dim_; ++c) {
        const int64_t e = i * value_dim_ + c;
        errors[e] = at.v.at(i)[c] - errors[e];
        changes[e] = beta[i] * errors[e];
      }
    kernels().solve(keys.get(), side, beta, false, n, value_dim_, changes.get());
  }

 private:
  void set_powers() {
    // Differences of sums would lose the small g of tokens after a large one in float32.
    double sums[side], sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sums[i] = sum += static_cast<double>(*at.decay.at(i));
      beta[i] = *at.beta.at(i);
    }
    const Kernels& of_rows = *all_kernels().front();
    for (int64_t i = 0; i < n; ++i) {
      float* const row = pairs.get() + i * side;
      for (int64_t j = 0; j <= i; ++j) row[j] = static_cast<float>(sums[i] - sums[j]);
      of_rows.exponentials(row, i + 1, n, 1, 0);
      passed[i] = std::exp(static_cast<float>(sums[i]));
      remaining[i] = std::exp(static_cast<float>(sum - sums[i]));
    }
    whole = passed[n - 1];
  }

  int64_t key_dim_, value_dim_;
};

int64_t tokens_of(const DeltaSizes& sizes, int64_t chunk) {
  return std::min(side, sizes.tokens - chunk * side);
}

}  // namespace

void delta_chunks(const DeltaSizes& sizes, const DeltaHead<const float>& head, float* states,
                  int64_t state_stride, const DeltaRows<float>& output) {
  const int64_t keys = sizes.key_dim, values = sizes.value_dim;
  Chunk chunk(sizes);
  const auto room = scratch<float>((keys + best_gemm().tall) * side);
  for (int64_t c = 0; c * side < sizes.tokens; ++c, states += state_stride) {
    const int64_t n = tokens_of(sizes, c);
    const Panels state(rows_factor(states, values), keys, values);
    chunk.compute(head, c * side, n, state);
    const Panels changes(rows_factor(chunk.changes.get(), values), n, values);
    float *const to = output.at(c * side), *const next = states + state_stride;
    state.multiply(left_of(chunk.queries.get(), keys), n, to, output.stride, false);
    changes.multiply(left_of(chunk.attention.get(), side), n, to, output.stride, true);
    for (int64_t i = 0; i < keys * values; ++i) next[i] = chunk.whole * states[i];
    changes.multiply(turned(chunk.writes.get(), keys, keys, n, room.get()), keys, next, values, true);
  }
}

void delta_chunks_backward(const DeltaSizes& sizes, const DeltaHead<const float>& head, const float* states,
                           int64_t state_stride, const DeltaRows<const float>& grad,
                           const DeltaHead<float>& into, bool add) {
  const int64_t keys = sizes.key_dim, values = sizes.value_dim;
  const auto matrix = [](int64_t columns) { return scratch<float>(side * columns); };
  Chunk chunk(sizes);
  const auto at_scaled = matrix(values), at_reads = matrix(values);  // at βE, and at e^G K S
  const auto at_attention = matrix(side), at_keys = matrix(side), of_keys = matrix(keys);
  const auto room = scratch<float>((std::max(keys, side) + best_gemm().tall) * side);
  const auto at_state = scratch<float>(keys * values);  // at S after the chunk, then before it
  std::fill(at_state.get(), at_state.get() + keys * values, 0.0f);
  for (int64_t c = (sizes.tokens - 1) / side; c >= 0; --c) {
    const int64_t first = c * side, n = tokens_of(sizes, c);
    const float *const before = states + c * state_stride, *const upstream = grad.at(first);
    chunk.compute(head, first, n, Panels(rows_factor(before, values), keys, values));
    const auto times = [&](float* sums, const float* factors, const float* a,
                           const DeltaRows<const float>& b) {
      for (int64_t i = 0; i < n; ++i) sums[i] = factors[i] * kernels().dot(a + i * keys, b.at(i), keys);
    };

    // The gradient at βE: Tᵀ (attentionᵀ dO + e^{G_C - G} K dS').
    const Panels of_upstream(rows_factor(upstream, grad.stride), n, values);
    of_upstream.multiply(turned(chunk.attention.get(), side, n, n, room.get()), n, at_scaled.get(), values,
                         false);
    Panels(rows_factor(at_state.get(), values), keys, values)
        .multiply(left_of(chunk.writes.get(), keys), n, at_scaled.get(), values, true);
    kernels().solve(chunk.keys.get(), side, chunk.beta, true, n, values, at_scaled.get());

    // At G: each power of e times the gradient at it.
    float at_sums[side], of_writes[side], of_reads[side], of_queries[side], at_beta[side], minus_beta[side];
    const auto by_changes = Panels(rows_factor(chunk.changes.get(), values).transposed(), values, n);
    by_changes.multiply(left_of(upstream, grad.stride), n, at_attention.get(), side, false);
    by_changes.multiply(left_of(at_scaled.get(), values), n, at_keys.get(), side, false);
    std::fill(at_sums, at_sums + n, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      float row = 0, of_row = 0;
      for (int64_t j = 0; j < n; ++j) {
        const int64_t e = i * side + j;
        const float of_system = j < i ? -at_keys[e] * chunk.keys[e] : 0;
        const float both = of_system * chunk.beta[i] + at_attention[e] * chunk.attention[e];
        of_row += of_system;
        row += both;
        at_sums[j] -= both;
        at_attention[e] = j <= i ? at_attention[e] * chunk.pairs[e] : 0;
        at_keys[e] = j < i ? -at_keys[e] * chunk.pairs[e] * chunk.beta[i] : 0;
      }
      at_sums[i] += row;
      at_beta[i] =
          of_row + kernels().dot(at_scaled.get() + i * values, chunk.errors.get() + i * values, values);
      minus_beta[i] = -chunk.beta[i];
    }
    const DeltaRows<const float> scaled{at_scaled.get(), values};
    kernels().scale_rows(scaled.data, scaled.stride, chunk.beta, n, values, false, into.v.at(first),
                         into.v.stride);
    scale_rows(scaled, minus_beta, n, values, at_reads.get());

    // At q and k.
    float *const at_q = into.q.at(first), *const at_k = into.k.at(first);
    const Panels by_keys(rows_factor(chunk.at.k.data, chunk.at.k.stride), n, keys);
    by_keys.multiply(left_of(at_attention.get(), side), n, at_q, into.q.stride, add);
    Panels(rows_factor(chunk.at.q.data, chunk.at.q.stride), n, keys)
        .multiply(turned(at_attention.get(), side, n, n, room.get()), n, at_k, into.k.stride, add);
    by_keys.multiply(left_of(at_keys.get(), side), n, at_k, into.k.stride, true);
    by_keys.multiply(turned(at_keys.get(), side, n, n, room.get()), n, at_k, into.k.stride, true);
    const Panels by_state(rows_factor(before, values).transposed(), values, keys);
    const auto add_rows = [&](const float* factors, const DeltaRows<float>& to, int64_t row) {
      kernels().scale_rows(of_keys.get(), keys, factors, n, keys, true, to.at(row), to.stride);
    };
    by_state.multiply(left_of(upstream, grad.stride), n, of_keys.get(), keys, false);
    times(of_queries, chunk.passed, of_keys.get(), chunk.at.q);
    add_rows(chunk.passed, into.q, first);
    by_state.multiply(left_of(at_reads.get(), values), n, of_keys.get(), keys, false);
    times(of_reads, chunk.passed, of_keys.get(), chunk.at.k);
    add_rows(chunk.passed, into.k, first);
    Panels(rows_factor(at_state.get(), values).transposed(), values, keys)
        .multiply(left_of(chunk.changes.get(), values), n, of_keys.get(), keys, false);
    times(of_writes, chunk.remaining, of_keys.get(), chunk.at.k);
    add_rows(chunk.remaining, into.k, first);

    float at_last = chunk.whole * kernels().dot(at_state.get(), before, keys * values);
    for (int64_t i = 0; i < n; ++i) {
      at_sums[i] += of_queries[i] + of_reads[i] - of_writes[i];
      at_last += of_writes[i];
    }
    at_sums[n - 1] += at_last;
    float sum = 0;
    for (int64_t i = n; i-- > 0;) {
      *into.decay.at(first + i) = sum += at_sums[i];
      *into.beta.at(first + i) = at_beta[i];
    }

    // At S: e^{G_C} dS' + (e^G Q)ᵀ dO + (e^G K)ᵀ d(e^G K S).
    for (int64_t i = 0; i < keys * values; ++i) at_state[i] *= chunk.whole;
    of_upstream.multiply(turned(chunk.queries.get(), keys, keys, n, room.get()), keys, at_state.get(), values,
                         true);
    Panels(rows_factor(at_reads.get(), values), n, values)
        .multiply(turned(chunk.reads.get(), keys, keys, n, room.get()), keys, at_state.get(), values, true);
  }
}

}  // namespace nlac::cpu
