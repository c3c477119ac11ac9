#include "core/model/attention.h"

#include <cmath>
#include <cstring>
#include <tuple>

#include <ATen/Parallel.h>

#include "core/model/bf16_kernels.h"

namespace nlac {
namespace {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The flash kernels want as many key heads as query heads. With key-value heads as the batch dimension, the
// heads of a group can share one key head through a stride of zero: nothing is copied.
at::Tensor grouped_queries(const at::Tensor& q, int64_t kv_heads) {  // → [kv_heads, group, tokens, head_dim]
  return q.view({q.size(0), kv_heads, q.size(1) / kv_heads, q.size(2)}).permute({1, 2, 0, 3});
}
at::Tensor grouped_keys(const at::Tensor& keys, int64_t group) {  // [kv_heads, tokens, head_dim] → as above
  return keys.unsqueeze(1).expand({-1, group, -1, -1});
}
// The inverse of grouped_queries, as a copy: [kv_heads, group, tokens, head_dim] → [tokens, heads, head_dim]
at::Tensor ungrouped(const at::Tensor& x) {
  return x.permute({2, 0, 1, 3}).reshape({x.size(2), x.size(0) * x.size(1), x.size(3)});
}

// Softmax over keys [kv_heads, length, head_dim] of queries [kv_heads, group, new, head_dim], causal from the
// end, in wide precision.
at::Tensor reference_probabilities(const at::Tensor& q, const at::Tensor& keys) {
  const int64_t fresh = q.size(2), length = keys.size(1);
  at::Tensor scores = at::matmul(q.to(wide(q)), keys.to(wide(q)).unsqueeze(1).transpose(-2, -1));
  scores.mul_(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  const auto hidden = at::ones({fresh, length}, q.options().dtype(at::kBool)).triu_(length - fresh + 1);
  return at::softmax(scores.masked_fill_(hidden, -INFINITY), -1);
}

}  // namespace

at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values) {
  const at::Tensor probabilities = reference_probabilities(grouped_queries(q, keys.size(0)), keys);
  return ungrouped(at::matmul(probabilities, values.to(wide(q)).unsqueeze(1))).to(q.scalar_type());
}

Attended packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::vector<int64_t>& lengths) {
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Attended result;
  result.output = at::empty(q.sizes(), q.options());
  int64_t start = 0;
  for (const int64_t length : lengths) {
    const at::Tensor queries = q.narrow(0, start, length);
    const at::Tensor keys = k.narrow(0, start, length).transpose(0, 1);
    const at::Tensor values = v.narrow(0, start, length).transpose(0, 1);
    at::Tensor output = result.output.narrow(0, start, length);
    if (q.is_cpu()) {
      auto [attended, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          grouped_queries(queries, kv_heads), grouped_keys(keys, group), grouped_keys(values, group), 0.0, true);
      output.copy_(ungrouped(attended));
      result.logsumexp.push_back(logsumexp);
    } else {
      output.copy_(reference_attention(queries, keys, values));
    }
    start += length;
  }
  return result;
}

void packed_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Attended& attended, const std::vector<int64_t>& lengths,
                               at::Tensor grad_q, at::Tensor grad_k, at::Tensor grad_v) {
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i];
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, length); };
    const at::Tensor queries = grouped_queries(part(q), kv_heads);
    const at::Tensor keys = part(k).transpose(0, 1), values = part(v).transpose(0, 1);
    const at::Tensor upstream = grouped_queries(part(grad), kv_heads);
    const at::Tensor output = grouped_queries(part(attended.output), kv_heads);
    at::Tensor for_q, for_k, for_v;  // [kv_heads, group, length, head_dim]
    if (q.is_cpu()) {
      std::tie(for_q, for_k, for_v) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          upstream, queries, grouped_keys(keys, group), grouped_keys(values, group), output,
          attended.logsumexp[i], 0.0, true);
    } else {
      const at::Tensor p = reference_probabilities(queries, keys), gradient = upstream.to(wide(q));
      const at::Tensor at_p = at::matmul(gradient, values.to(wide(q)).unsqueeze(1).transpose(-2, -1));
      const at::Tensor dot = (gradient * output.to(wide(q))).sum(-1, true);
      const at::Tensor at_scores = p * (at_p - dot) * (1.0 / std::sqrt(static_cast<double>(q.size(2))));
      for_q = at::matmul(at_scores, keys.to(wide(q)).unsqueeze(1));
      for_k = at::matmul(at_scores.transpose(-2, -1), queries.to(wide(q)));
      for_v = at::matmul(p.transpose(-2, -1), gradient);
    }
    part(grad_q).copy_(ungrouped(for_q));
    part(grad_k).copy_(for_k.sum(1, false, wide(q)).transpose(0, 1));
    part(grad_v).copy_(for_v.sum(1, false, wide(q)).transpose(0, 1));
    start += length;
  }
}

namespace {

// Queries of the last q.size(0) tokens against all keys and values of their sequence.
void attend_chunk(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, at::Tensor output) {
  const int64_t fresh = q.size(0), length = keys.size(1), past = length - fresh;
  const int64_t kv_heads = keys.size(0), group = q.size(1) / kv_heads;
  if (!q.is_cpu()) {
    output.copy_(reference_attention(q, keys, values));
    return;
  }
  if (fresh == 1) {
    // One query a head: the group takes the place of the query length, so keys and values are read once.
    const at::Tensor queries = q.view({1, kv_heads, group, q.size(2)});
    const auto attended = at::_scaled_dot_product_flash_attention_for_cpu(queries, keys.unsqueeze(0),
                                                                          values.unsqueeze(0), 0.0, false);
    output.copy_(std::get<0>(attended).reshape({1, q.size(1), q.size(2)}));
    return;
  }
  const at::Tensor queries = grouped_queries(q, kv_heads);
  const auto attend = [&](int64_t start, int64_t count, bool causal) {
    return at::_scaled_dot_product_flash_attention_for_cpu(queries, grouped_keys(keys.narrow(1, start, count), group),
                                                           grouped_keys(values.narrow(1, start, count), group), 0.0,
                                                           causal);
  };
  const auto [own, own_logsumexp] = attend(past, fresh, true);
  if (past == 0) {
    output.copy_(ungrouped(own));
    return;
  }
  // The new tokens see the past whole and themselves causally; the two softmaxes join by their sums.
  const auto [old, old_logsumexp] = attend(0, past, false);
  const at::Tensor joint = at::logaddexp(own_logsumexp, old_logsumexp);
  const at::Tensor joined = own * (own_logsumexp - joint).exp_().unsqueeze(-1) +
                            old * (old_logsumexp - joint).exp_().unsqueeze(-1);
  output.copy_(ungrouped(joined));
}

// Every sequence has one new token: sequences and key-value heads are shared out over the threads.
void attend_single_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const CachedSequence* sequences, at::Tensor output) {
  using bf16::Bits;
  const int64_t count = q.size(0), kv_heads = k.size(1), group = q.size(1) / kv_heads, d = q.size(2);
  const auto bits = [](const at::Tensor& x) { return static_cast<const Bits*>(x.const_data_ptr()); };
  const auto row = [&](const at::Tensor& x, int64_t token) { return bits(x) + token * x.stride(0); };
  Bits* const out = static_cast<Bits*>(output.data_ptr());
  at::parallel_for(0, count * kv_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / kv_heads, head = i % kv_heads;
      const CachedSequence& sequence = sequences[token];
      const int64_t length = sequence.past + 1, offset = head * sequence.keys.stride(0);
      Bits* const keys = static_cast<Bits*>(sequence.keys.data_ptr()) + offset;
      Bits* const values = static_cast<Bits*>(sequence.values.data_ptr()) + offset;
      std::memcpy(keys + sequence.past * d, row(k, token) + head * d, d * sizeof(Bits));
      std::memcpy(values + sequence.past * d, row(v, token) + head * d, d * sizeof(Bits));
      scratch.resize(group * ((length + 15) / 16 * 16));
      bf16::attend_one(row(q, token) + head * group * d, group, keys, values, length, d, scratch.data(),
                       out + (token * kv_heads + head) * group * d);
    }
  });
}

bool has_kernel(const at::Tensor& q) {
  return q.is_cpu() && q.scalar_type() == at::kBFloat16 && q.size(2) % 64 == 0 && bf16::available();
}

}  // namespace

void cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::vector<CachedSequence>& sequences, at::Tensor output) {
  int64_t start = 0;
  for (size_t i = 0; i < sequences.size();) {
    const auto part = [&](const at::Tensor& x, int64_t rows) { return x.narrow(0, start, rows); };
    size_t last = i;
    while (has_kernel(q) && last < sequences.size() && sequences[last].fresh == 1) ++last;
    if (const int64_t run = static_cast<int64_t>(last - i); run > 0) {
      attend_single_tokens(part(q, run), part(k, run), part(v, run), &sequences[i], part(output, run));
      start += run;
      i = last;
      continue;
    }
    const CachedSequence& sequence = sequences[i++];
    const int64_t past = sequence.past, fresh = sequence.fresh;
    sequence.keys.narrow(1, past, fresh).copy_(part(k, fresh).transpose(0, 1));
    sequence.values.narrow(1, past, fresh).copy_(part(v, fresh).transpose(0, 1));
    attend_chunk(part(q, fresh), sequence.keys.narrow(1, 0, past + fresh), sequence.values.narrow(1, 0, past + fresh),
                 part(output, fresh));
    start += fresh;
  }
}

}  // namespace nlac
