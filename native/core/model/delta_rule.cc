#include "core/model/delta_rule.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include "core/model/upload.h"

namespace nlac {
namespace {

int64_t chunk_count(int64_t length) { return (length + kDeltaChunk - 1) / kDeltaChunk; }

// Packed sequences cut into chunks of `size` tokens. Chunks are ordered by step: step i has the i-th chunk of
// each sequence that is so long, longest sequences first. So a scan over chunks advances all sequences at
// once.
struct Layout {
  int64_t size, chunks = 0;
  std::vector<int64_t> order;  // of sequences, longest first
  std::vector<int64_t> begin;  // [steps + 1], the first chunk of each step
  at::Tensor slots;            // [tokens] i64, the place of each token among all chunks' tokens

  Layout(const std::vector<int64_t>& lengths, at::Device device)
      : size(std::min(kDeltaChunk, *std::max_element(lengths.begin(), lengths.end()))),
        order(lengths.size()),
        begin{0} {
    std::iota(order.begin(), order.end(), 0);
    const auto length = [&](int64_t sequence) { return lengths[static_cast<size_t>(sequence)]; };
    std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return length(x) > length(y); });
    for (int64_t step = 0; step * size < length(order[0]); ++step, begin.push_back(chunks))
      for (const int64_t sequence : order) chunks += step * size < length(sequence) ? 1 : 0;
    std::vector<int64_t> rank(order.size()), places;
    for (size_t r = 0; r < order.size(); ++r) rank[static_cast<size_t>(order[r])] = static_cast<int64_t>(r);
    for (size_t i = 0; i < lengths.size(); ++i)
      for (int64_t t = 0; t < lengths[i]; ++t)
        places.push_back((begin[static_cast<size_t>(t / size)] + rank[i]) * size + t % size);
    slots = upload(at::tensor(places, at::kLong), device);
  }

  int64_t steps() const { return static_cast<int64_t>(begin.size()) - 1; }
  int64_t first(int64_t step) const { return begin[static_cast<size_t>(step)]; }
  int64_t active(int64_t step) const { return first(step + 1) - first(step); }

  // [tokens, heads, n] → [chunks · heads · group, size, n]. Zeros after a sequence's last token change
  // nothing.
  at::Tensor cut(const at::Tensor& x, int64_t group = 1) const {
    at::Tensor part = at::zeros({chunks * size, x.size(1), x.size(2)}, x.options());
    part = part.index_copy_(0, slots, x).unflatten(0, {chunks, size}).transpose(1, 2);
    if (group > 1) part = part.unsqueeze(2).expand({-1, -1, group, -1, -1});
    return part.reshape({-1, size, x.size(2)});
  }
  // The chunks of a step, of all in x [chunks · heads, …].
  at::Tensor of_step(const at::Tensor& x, int64_t step) const {
    const int64_t heads = x.size(0) / chunks;
    return x.narrow(0, first(step) * heads, active(step) * heads);
  }
  // The inverse of cut; heads of a group are added up.
  void join(const at::Tensor& x, at::Tensor to) const {
    at::Tensor rows = x.view({chunks, -1, size, x.size(2)});
    if (const int64_t group = rows.size(1) / to.size(1); group > 1)
      rows = rows.unflatten(1, {-1, group}).sum(2);
    to.copy_(rows.transpose(1, 2).flatten(0, 1).index_select(0, slots));
  }
};

// What chunks compute without the state. G_i is the sum of g up to token i of its chunk; C is the last
// token.
struct Chunks {
  at::Tensor q, k, v;    // [chunks · heads, size, …]
  at::Tensor beta;       // [chunks · heads, size, 1]
  at::Tensor passed;     // e^{G_i}, the same shape
  at::Tensor remaining;  // e^{G_C - G_i}, the same shape
  at::Tensor whole;      // e^{G_C} [chunks · heads, 1, 1]
  at::Tensor pairs;      // e^{G_i - G_j} for i ≥ j, else 0 [chunks · heads, size, size]
  at::Tensor keys;       // (k_i · k_j) e^{G_i - G_j} for i > j, else 0
  at::Tensor attention;  // (q_i · k_j) e^{G_i - G_j} for i ≥ j, else 0
  at::Tensor solved;     // T = (I + β keys)⁻¹

  Chunks(const DeltaInputs& inputs, const Layout& layout) {
    const int64_t group = inputs.v.size(1) / inputs.k.size(1), size = layout.size;
    q = layout.cut(inputs.q, group);
    k = layout.cut(inputs.k, group);
    v = layout.cut(inputs.v);
    beta = layout.cut(inputs.beta.unsqueeze(-1));
    // Differences of sums would lose the small g of tokens after a large one in float32.
    const at::Tensor sums = layout.cut(inputs.decay.unsqueeze(-1)).to(at::kDouble).cumsum(1);
    const auto power = [&](const at::Tensor& x) { return x.to(v.scalar_type()).exp(); };
    const at::Tensor last = sums.narrow(1, size - 1, 1);
    passed = power(sums);
    remaining = power(last - sums);
    whole = power(last);
    const at::Tensor ahead = at::ones({size, size}, v.options().dtype(at::kBool)).triu_(1);
    pairs = power((sums - sums.transpose(1, 2)).masked_fill_(ahead, -INFINITY));
    keys = at::bmm(k, k.transpose(1, 2)).mul_(pairs).tril_(-1);
    attention = at::bmm(q, k.transpose(1, 2)).mul_(pairs);
    const at::Tensor identity = at::eye(size, v.options());
    solved = at::linalg_solve_triangular(beta * keys + identity, identity.expand_as(keys), false, true, true);
  }
};

at::Tensor turned(const at::Tensor& x) { return x.transpose(-2, -1); }
at::Tensor row_sums(const at::Tensor& x) { return x.sum(-1, true); }
at::Tensor column_sums(const at::Tensor& x) { return x.sum(-2).unsqueeze(-1); }

// --- by the kernel, on a CPU in float32 ----------------------------------------------------------

bool by_kernel(const DeltaInputs& inputs) {
  return inputs.v.is_cpu() && inputs.v.scalar_type() == at::kFloat;
}

// With adjacent numbers of a token's head.
DeltaInputs in_rows(const DeltaInputs& x) {
  const auto rows = [](const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); };
  return {rows(x.q), rows(x.k), rows(x.v), x.decay, x.beta};
}

template <typename Number>
Number* data_of(const at::Tensor& x) {
  if constexpr (std::is_const_v<Number>)
    return x.const_data_ptr<float>();
  else
    return x.data_ptr<float>();
}

// A head's rows from token `start` on.
template <typename Number>
cpu::DeltaHead<Number> head_of(const DeltaInputs& x, int64_t start, int64_t head) {
  const int64_t group = x.v.size(1) / x.k.size(1);
  const auto rows = [&](const at::Tensor& t, int64_t h) {
    return cpu::DeltaRows<Number>{data_of<Number>(t) + start * t.stride(0) + h * t.stride(1), t.stride(0)};
  };
  return {rows(x.q, head / group), rows(x.k, head / group), rows(x.v, head), rows(x.decay, head),
          rows(x.beta, head)};
}

std::vector<int64_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts;
  int64_t start = 0;
  for (const int64_t length : lengths) starts.push_back(std::exchange(start, start + length));
  return starts;
}

DeltaResult delta_rule_by_kernel(const DeltaInputs& given, const std::vector<int64_t>& lengths,
                                 const at::Tensor& initial) {
  const DeltaInputs inputs = in_rows(given);
  const int64_t heads = inputs.v.size(1), key_dim = inputs.k.size(2), value_dim = inputs.v.size(2);
  DeltaResult result;
  result.output = at::empty(inputs.v.sizes(), inputs.v.options());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const at::Tensor states =
        at::empty({chunk_count(lengths[i]) + 1, heads, key_dim, value_dim}, inputs.v.options());
    if (initial.defined())
      states[0].copy_(initial[static_cast<int64_t>(i)]);
    else
      states[0].zero_();
    result.states.push_back(states);
    result.last.push_back(states[states.size(0) - 1]);
  }
  const std::vector<int64_t> starts = starts_of(lengths);
  at::parallel_for(0, static_cast<int64_t>(lengths.size()) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto s = static_cast<size_t>(i / heads);
      const int64_t h = i % heads;
      const at::Tensor &states = result.states[s], &output = result.output;
      cpu::delta_chunks(
          {lengths[s], key_dim, value_dim}, head_of<const float>(inputs, starts[s], h),
          states.data_ptr<float>() + h * states.stride(1), states.stride(0),
          {output.data_ptr<float>() + starts[s] * output.stride(0) + h * value_dim, output.stride(0)});
    }
  });
  return result;
}

void delta_rule_backward_by_kernel(const at::Tensor& given_grad, const DeltaInputs& given,
                                   const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& states,
                                   const DeltaInputs& into) {
  const DeltaInputs inputs = in_rows(given);
  const at::Tensor grad = given_grad.contiguous();
  const int64_t heads = inputs.v.size(1), key_heads = inputs.k.size(1), group = heads / key_heads,
                key_dim = inputs.k.size(2), value_dim = inputs.v.size(2);
  const std::vector<int64_t> starts = starts_of(lengths);
  // The heads of a group add up to the gradients of their keys, one after another.
  at::parallel_for(0, static_cast<int64_t>(lengths.size()) * key_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto s = static_cast<size_t>(i / key_heads);
      for (int64_t h = i % key_heads * group; h < (i % key_heads + 1) * group; ++h)
        cpu::delta_chunks_backward(
            {lengths[s], key_dim, value_dim}, head_of<const float>(inputs, starts[s], h),
            states[s].const_data_ptr<float>() + h * states[s].stride(1), states[s].stride(0),
            {grad.const_data_ptr<float>() + starts[s] * grad.stride(0) + h * value_dim, grad.stride(0)},
            head_of<float>(into, starts[s], h), h % group > 0);
    }
  });
}

}  // namespace

DeltaResult delta_rule(const DeltaInputs& inputs, const std::vector<int64_t>& lengths,
                       const at::Tensor& initial) {
  if (by_kernel(inputs)) return delta_rule_by_kernel(inputs, lengths, initial);
  const int64_t heads = inputs.v.size(1), key_dim = inputs.k.size(2), value_dim = inputs.v.size(2);
  const Layout layout(lengths, inputs.v.device());
  const Chunks all(inputs, layout);
  const at::Tensor queries = all.q * all.passed, reads = all.k * all.passed * all.beta,
                   values = all.v * all.beta, writes = turned(all.k * all.remaining),
                   before = at::empty({layout.chunks * heads, key_dim, value_dim}, inputs.v.options()),
                   output = at::empty_like(all.v);
  at::Tensor state =
      initial.defined()
          ? initial.index_select(0, upload(at::tensor(layout.order), inputs.v.device())).flatten(0, 1)
          : at::zeros({layout.active(0) * heads, key_dim, value_dim}, inputs.v.options());
  DeltaResult result;
  result.last.resize(lengths.size());
  for (int64_t step = 0; step < layout.steps(); ++step) {
    const int64_t count = layout.active(step), next = step + 1 < layout.steps() ? layout.active(step + 1) : 0;
    const auto now = [&](const at::Tensor& x) { return layout.of_step(x, step); };
    state = state.narrow(0, 0, count * heads);
    now(before).copy_(state);
    const at::Tensor changes =
        at::bmm(now(all.solved), at::baddbmm(now(values), now(reads), state, 1, /*alpha=*/-1));
    at::Tensor into = now(output);
    at::bmm_out(into, now(queries), state).baddbmm_(now(all.attention), changes);
    state = at::baddbmm(state * now(all.whole), now(writes), changes);
    for (int64_t rank = next; rank < count; ++rank)
      result.last[static_cast<size_t>(layout.order[static_cast<size_t>(rank)])] =
          state.narrow(0, rank * heads, heads);
  }
  result.output = at::empty(inputs.v.sizes(), inputs.v.options());
  layout.join(output, result.output);
  result.states = {before};
  return result;
}

// With S, S' the states before and after a chunk, E = V - e^G K S, U = T (β E) the changes:
//   O = e^G Q S + attention U,  S' = e^{G_C} S + (e^{G_C - G} K)ᵀ U
DeltaInputs delta_rule_backward(const at::Tensor& grad, const DeltaInputs& inputs,
                                const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& states) {
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  DeltaInputs result{like(inputs.q), like(inputs.k), like(inputs.v), like(inputs.decay), like(inputs.beta)};
  if (by_kernel(inputs)) {
    delta_rule_backward_by_kernel(grad, inputs, lengths, states, result);
    return result;
  }
  const Layout layout(lengths, inputs.v.device());
  const Chunks all(inputs, layout);
  const at::Tensor upstream = layout.cut(grad), &before = states[0];

  // From the last chunk to the first: the gradients at βE and at the states.
  const int64_t heads = inputs.v.size(1);
  const at::Tensor queries = turned(all.q * all.passed), reads = turned(all.k * all.passed),
                   writes = all.k * all.remaining, at_scaled = at::empty_like(all.v),
                   at_after = at::empty_like(before),
                   at_states = at::zeros_like(before.narrow(0, 0, layout.active(0) * heads));
  for (int64_t step = layout.steps(); step-- > 0;) {
    const int64_t count = layout.active(step);
    const auto now = [&](const at::Tensor& x) { return layout.of_step(x, step); };
    at::Tensor at_state = at_states.narrow(0, 0, count * heads), into = now(at_scaled);
    now(at_after).copy_(at_state);
    const at::Tensor at_changes =
        at::bmm(now(writes), at_state).baddbmm_(turned(now(all.attention)), now(upstream));
    at::bmm_out(into, turned(now(all.solved)), at_changes);
    at_state.mul_(now(all.whole)).baddbmm_(now(queries), now(upstream));
    at_state.baddbmm_(now(reads), into * now(all.beta), 1, /*alpha=*/-1);
  }

  // The rest, for all chunks at once.
  const at::Tensor errors = at::baddbmm(all.v, all.k * all.passed, before, 1, /*alpha=*/-1);
  const at::Tensor changes = at::bmm(all.solved, all.beta * errors);
  const at::Tensor at_values = at_scaled * all.beta;  // at V, and minus that at e^G K S
  const at::Tensor at_system = at::bmm(at_scaled, turned(changes)).neg_().tril_(-1);  // at β keys
  const at::Tensor at_attention = at::bmm(upstream, turned(changes)).mul_(all.pairs);
  const at::Tensor for_keys = at_system * all.pairs * all.beta;
  const at::Tensor of_keys = at_system * all.keys;

  const at::Tensor read_queries = at::bmm(upstream, turned(before)).mul_(all.passed);
  const at::Tensor read_keys = at::bmm(at_values, turned(before)).mul_(all.passed);
  const at::Tensor written_keys = at::bmm(changes, turned(at_after)).mul_(all.remaining);
  const at::Tensor at_q = at::baddbmm(read_queries, at_attention, all.k);
  const at::Tensor at_k = (written_keys - read_keys)
                              .baddbmm_(turned(at_attention), all.q)
                              .baddbmm_(for_keys, all.k)
                              .baddbmm_(turned(for_keys), all.k);
  const at::Tensor at_beta = row_sums(at_scaled * errors).add_(row_sums(of_keys));

  // At G: each power of e times the gradient at it.
  const at::Tensor of_attention = at_attention * at::bmm(all.q, turned(all.k));
  const at::Tensor of_system = of_keys * all.beta, of_writes = row_sums(written_keys * all.k);
  at::Tensor at_sums = row_sums(of_attention).sub_(column_sums(of_attention));
  at_sums.add_(row_sums(of_system)).sub_(column_sums(of_system));
  at_sums.add_(row_sums(read_queries * all.q)).sub_(row_sums(read_keys * all.k)).sub_(of_writes);
  at_sums.narrow(1, layout.size - 1, 1)
      .add_(of_writes.sum(1, true))
      .add_((at_after * before).sum({1, 2}, true).mul_(all.whole));

  layout.join(at_q, result.q);
  layout.join(at_k, result.k);
  layout.join(at_values, result.v);
  layout.join(at_sums.flip(1).cumsum(1).flip(1), result.decay.unsqueeze(-1));
  layout.join(at_beta, result.beta.unsqueeze(-1));
  return result;
}

}  // namespace nlac
