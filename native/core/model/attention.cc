#include "core/model/attention.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/cpu/tensors.h"
#include "core/model/flash_attention.h"

namespace nlac {
namespace {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// The kernels' view of x [tokens, heads, head_dim]: where a token's head begins.
template <typename Number>
const Number* numbers(const at::Tensor& x, int64_t token, int64_t head) {
  return static_cast<const Number*>(x.const_data_ptr()) + token * x.stride(0) + head * x.stride(1);
}
template <typename Number>
Number* mutable_numbers(const at::Tensor& x, int64_t token, int64_t head) {
  return static_cast<Number*>(x.data_ptr()) + token * x.stride(0) + head * x.stride(1);
}

// libtorch's flash kernels want as many key heads as query heads. With key-value heads as the batch
// dimension, the heads of a group share one key head through a stride of zero: nothing is copied.
at::Tensor grouped_queries(const at::Tensor& q, int64_t kv_heads) {
  return q.view({q.size(0), kv_heads, q.size(1) / kv_heads, q.size(2)}).permute({1, 2, 0, 3});
}  // [tokens, heads, head_dim] → [kv_heads, group, tokens, head_dim]
at::Tensor grouped_keys(const at::Tensor& keys, int64_t group) {
  return keys.unsqueeze(1).expand({-1, group, -1, -1});
}  // [kv_heads, tokens, head_dim] → [kv_heads, group, tokens, head_dim]
at::Tensor ungrouped(const at::Tensor& x) {
  return x.permute({2, 0, 1, 3}).reshape({x.size(2), x.size(0) * x.size(1), x.size(3)});
}  // the inverse of grouped_queries, as a copy

// Bytes of float32 scores of blockwise attention at a time.
constexpr int64_t block_score_bytes = int64_t{128} << 20;

int64_t queries_at_once(const at::Tensor& q, const at::Tensor& keys) {
  return std::max<int64_t>(1, block_score_bytes / (4 * q.size(1) * keys.size(1)));
}

// Whether libtorch's flash kernels, which are called without a mask, cannot be used.
bool limited(const Sight& sight) { return sight.window > 0 || sight.scale > 0 || sight.sinks.defined(); }

// The sinks of heads from `head` on; null: none.
const float* sinks_from(const Sight& sight, int64_t head) {
  return sight.sinks.defined() ? sight.sinks.const_data_ptr<float>() + head : nullptr;
}

bool by_flash(const at::Tensor& k, const Sequences& sequences) {
  return sequences.starts.defined() && takes_flash(k);
}
Starts starts_of(const Sequences& sequences) {
  return {sequences.starts, *std::max_element(sequences.lengths.begin(), sequences.lengths.end())};
}

// The first key that any of `count` queries sees, of which the last sees `seen` keys.
int64_t first_visible(int64_t seen, int64_t count, const Sight& sight) {
  return sight.window > 0 ? std::max<int64_t>(0, seen - count + 1 - sight.window) : 0;
}

// a [batch, m, k] · b [batch, k, n] of one type, summed and returned in wide precision.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() == at::kBFloat16) return at::bmm(a, b, at::kFloat);
  return at::bmm(a.to(wide(a)), b.to(wide(b)));
}

// Scaled scores of queries [kv_heads, group, count, head_dim] with keys [kv_heads, seen, head_dim],
// whose last `count` are the queries' own → [kv_heads, group * count, seen], -infinity where a
// query does not see a key.
at::Tensor block_scores(const at::Tensor& queries, const at::Tensor& keys, const Sight& sight) {
  const int64_t count = queries.size(2), seen = keys.size(1);
  at::Tensor scores =
      wide_product(queries.flatten(1, 2), keys.transpose(1, 2)).mul_(score_scale(queries, sight));
  const auto masks = queries.options().dtype(at::kBool);
  const at::Tensor of_heads = scores.unflatten(1, {-1, count});
  of_heads.narrow(-1, seen - count, count).masked_fill_(at::ones({count, count}, masks).triu_(1), -INFINITY);
  if (sight.window > 0 && seen > sight.window)
    of_heads.masked_fill_(at::ones({count, seen}, masks).tril_(seen - count - sight.window), -INFINITY);
  return scores;
}

// Queries of one sequence that a kernel attends at once, and the keys that they see.
struct Span {
  size_t sequence;
  int64_t first_key, first_query, end;  // in the packed stream
  int64_t own;                          // the first query in its sequence
};
// Without a window, whole sequences. With one, stretches of it, so that work grows with the window
// and not with the length.
std::vector<Span> spans_of(const std::vector<int64_t>& lengths, int64_t window) {
  constexpr int64_t least = 256;  // minimum queries for which packing the keys pays off
  std::vector<Span> spans;
  int64_t start = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const int64_t length = lengths[s], step = window > 0 ? std::max(window, least) : length;
    for (int64_t own = 0; own < length; own += step) {
      const int64_t first_key = window > 0 ? std::max<int64_t>(0, own + 1 - window) : 0;
      spans.push_back({s, start + first_key, start + own, start + std::min(length, own + step), own});
    }
    start += length;
  }
  return spans;
}
cpu::Head head_of(const Span& span, int64_t head, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& output, const Sight& sight) {
  return {span.end - span.first_key,
          q.size(2),
          q.stride(0),
          k.stride(0),
          output.stride(0),
          span.first_query - span.first_key,
          sight.window,
          static_cast<float>(sight.scale),
          sinks_from(sight, head)};
}

Attended packed_attention_by_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const std::vector<int64_t>& lengths, const Sight& sight) {
  const int64_t heads = q.size(1), group = heads / k.size(1);
  const std::vector<Span> spans = spans_of(lengths, sight.window);
  Attended result;
  result.output = at::empty(q.sizes(), q.options());
  for (const int64_t length : lengths)
    result.logsumexp.push_back(at::empty({heads, length}, q.options().dtype(at::kFloat)));
  cpu::with_number(q, [&]<typename Number>(Number) {
    at::parallel_for(0, static_cast<int64_t>(spans.size()) * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Span& span = spans[static_cast<size_t>(i / heads)];
        const int64_t h = i % heads;
        cpu::attend(head_of(span, h, q, k, result.output, sight), numbers<Number>(q, span.first_query, h),
                    numbers<Number>(k, span.first_key, h / group),
                    numbers<Number>(v, span.first_key, h / group),
                    mutable_numbers<Number>(result.output, span.first_query, h),
                    result.logsumexp[span.sequence].template data_ptr<float>() + h * lengths[span.sequence] +
                        span.own);
      }
    });
  });
  return result;
}

void packed_attention_backward_by_kernel(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const Attended& attended,
                                         const std::vector<int64_t>& lengths, at::Tensor grad_q,
                                         at::Tensor grad_k, at::Tensor grad_v, const Sight& sight) {
  const int64_t tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1), group = heads / kv_heads,
                d = q.size(2);
  const std::vector<Span> spans = spans_of(lengths, sight.window);
  const auto options = q.options().dtype(at::kFloat);
  // Per query head, so that heads do not wait for each other: [heads, tokens, head_dim]
  const at::Tensor for_k = at::empty({heads, tokens, d}, options),
                   for_v = at::empty({heads, tokens, d}, options);
  const auto run = [&]<typename Number>(const Span& span, int64_t h, float* to_k, float* to_v) {
    cpu::attend_backward(head_of(span, h, q, k, grad, sight), numbers<Number>(q, span.first_query, h),
                         numbers<Number>(k, span.first_key, h / group),
                         numbers<Number>(v, span.first_key, h / group),
                         numbers<Number>(attended.output, span.first_query, h),
                         attended.logsumexp[span.sequence].template const_data_ptr<float>() +
                             h * lengths[span.sequence] + span.own,
                         numbers<Number>(grad, span.first_query, h),
                         mutable_numbers<Number>(grad_q, span.first_query, h), to_k, to_v);
  };
  cpu::with_number(q, [&]<typename Number>(Number) {
    if (sight.window == 0) {
      at::parallel_for(0, static_cast<int64_t>(spans.size()) * heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const Span& span = spans[static_cast<size_t>(i / heads)];
          const int64_t h = i % heads, own = (h * tokens + span.first_key) * d;
          run.template operator()<Number>(span, h, for_k.data_ptr<float>() + own,
                                          for_v.data_ptr<float>() + own);
        }
      });
      return;
    }
    // Spans share keys, so one thread adds all of a head, in order.
    at::parallel_for(0, heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> part_k, part_v;
      for (int64_t h = begin; h < end; ++h) {
        float *const to_k = for_k.data_ptr<float>() + h * tokens * d, *const to_v = for_v.data_ptr<float>() +
                                                                                    h * tokens * d;
        std::fill(to_k, to_k + tokens * d, 0.0f);
        std::fill(to_v, to_v + tokens * d, 0.0f);
        for (const Span& span : spans) {
          const int64_t count = (span.end - span.first_key) * d, at = span.first_key * d;
          part_k.resize(static_cast<size_t>(count));
          part_v.resize(static_cast<size_t>(count));
          run.template operator()<Number>(span, h, part_k.data(), part_v.data());
          for (int64_t i = 0; i < count; ++i) to_k[at + i] += part_k[static_cast<size_t>(i)];
          for (int64_t i = 0; i < count; ++i) to_v[at + i] += part_v[static_cast<size_t>(i)];
        }
      }
    });
  });
  for (const auto& [share, into] : {std::pair{for_k, grad_k}, std::pair{for_v, grad_v}})
    at::Tensor(into).copy_(share.view({kv_heads, group, tokens, d}).sum(1).transpose(0, 1));
}

}  // namespace

double score_scale(const at::Tensor& q, const Sight& sight) {
  return sight.scale > 0 ? sight.scale : 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

Sequences sequences_of(std::vector<int64_t> lengths, at::Device device) {
  Sequences sequences{std::move(lengths)};
  if (device.type() != NLAC_KERNEL_DEVICE) return sequences;
  std::vector<int32_t> starts{0};
  for (const int64_t length : sequences.lengths)
    starts.push_back(starts.back() + static_cast<int32_t>(length));
  sequences.starts = at::tensor(starts, at::kInt).to(device);
  return sequences;
}

AttendedBlocks blockwise_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                   int64_t block, const Sight& sight) {
  const int64_t fresh = q.size(0), past = keys.size(1) - fresh, kv_heads = keys.size(0);
  const at::Tensor queries = grouped_queries(q, kv_heads);
  AttendedBlocks result;
  result.output = at::empty(q.sizes(), q.options());
  result.logsumexp = at::empty(queries.sizes().slice(0, 3), q.options().dtype(wide(q)));
  const at::Tensor output = grouped_queries(result.output, kv_heads);
  for (int64_t first = 0; first < fresh; first += block) {
    const int64_t count = std::min(block, fresh - first), seen = past + first + count,
                  from = first_visible(seen, count, sight);
    const auto visible = [&](const at::Tensor& x) { return x.narrow(1, from, seen - from); };
    at::Tensor weights = block_scores(queries.narrow(2, first, count), visible(keys), sight);
    at::Tensor largest = weights.amax(-1, true), sinks;
    if (sight.sinks.defined()) {
      sinks = sight.sinks.view({kv_heads, -1, 1}).repeat_interleave(count, 1);  // as the scores' rows
      largest = at::maximum(largest, sinks);
    }
    weights.sub_(largest).exp_();
    at::Tensor sum = weights.sum(-1, true);
    if (sinks.defined()) sum.add_((sinks - largest).exp_());
    const at::Tensor attended = wide_product(weights.to(q.scalar_type()), visible(values)).div_(sum);
    output.narrow(2, first, count).copy_(attended.unflatten(1, {-1, count}));
    result.logsumexp.narrow(2, first, count)
        .copy_((largest + sum.log()).squeeze(-1).unflatten(1, {-1, count}));
  }
  return result;
}

AttentionGradients blockwise_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const AttendedBlocks& attended, int64_t block,
                                                const Sight& sight) {
  const int64_t fresh = q.size(0), past = keys.size(1) - fresh, kv_heads = keys.size(0);
  const auto type = q.scalar_type();
  const at::Tensor queries = grouped_queries(q, kv_heads), upstream = grouped_queries(grad, kv_heads),
                   output = grouped_queries(attended.output, kv_heads);
  const auto options = q.options().dtype(wide(q));
  AttentionGradients result{at::empty(q.sizes(), q.options()), at::zeros(keys.sizes(), options),
                            at::zeros(values.sizes(), options)};
  const at::Tensor at_queries = grouped_queries(result.q, kv_heads);
  for (int64_t first = 0; first < fresh; first += block) {
    const int64_t count = std::min(block, fresh - first), seen = past + first + count,
                  from = first_visible(seen, count, sight);
    // [kv_heads, group * count, …]: a group's heads share the same keys.
    const auto rows = [&](const at::Tensor& x) { return x.narrow(2, first, count).flatten(1, 2); };
    const auto visible = [&](const at::Tensor& x) { return x.narrow(1, from, seen - from); };
    const at::Tensor probabilities = block_scores(queries.narrow(2, first, count), visible(keys), sight)
                                         .sub_(rows(attended.logsumexp).unsqueeze(-1))
                                         .exp_();
    const at::Tensor along = (rows(upstream).to(wide(q)) * rows(output)).sum(-1, true);
    const at::Tensor at_scores = wide_product(rows(upstream), visible(values).transpose(1, 2))
                                     .sub_(along)
                                     .mul_(probabilities)
                                     .mul_(score_scale(q, sight))
                                     .to(type);
    at_queries.narrow(2, first, count)
        .copy_(wide_product(at_scores, visible(keys)).unflatten(1, {-1, count}));
    visible(result.keys).add_(wide_product(at_scores.transpose(1, 2), rows(queries)));
    visible(result.values).add_(wide_product(probabilities.to(type).transpose(1, 2), rows(upstream)));
  }
  return result;
}

Attended packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const Sequences& sequences, const Sight& sight) {
  const std::vector<int64_t>& lengths = sequences.lengths;
  if (by_flash(k, sequences)) {
    const Starts starts = starts_of(sequences);
    return flash_attention(q, k, v, starts, starts, sight);
  }
  if (cpu::takes(q)) return packed_attention_by_kernel(q, k, v, lengths, sight);
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Attended result;
  result.output = at::empty(q.sizes(), q.options());
  int64_t start = 0;
  for (const int64_t length : lengths) {
    const at::Tensor queries = q.narrow(0, start, length);
    const at::Tensor keys = k.narrow(0, start, length).transpose(0, 1);
    const at::Tensor values = v.narrow(0, start, length).transpose(0, 1);
    at::Tensor output = result.output.narrow(0, start, length);
    if (q.is_cpu() && !limited(sight)) {
      auto [attended, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          grouped_queries(queries, kv_heads), grouped_keys(keys, group), grouped_keys(values, group), 0.0,
          true);
      output.copy_(ungrouped(attended));
      result.logsumexp.push_back(logsumexp);
    } else {
      const AttendedBlocks attended =
          blockwise_attention(queries, keys, values, queries_at_once(queries, keys), sight);
      output.copy_(attended.output);
      result.logsumexp.push_back(attended.logsumexp);
    }
    start += length;
  }
  return result;
}

void packed_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Attended& attended, const Sequences& sequences,
                               at::Tensor grad_q, at::Tensor grad_k, at::Tensor grad_v, const Sight& sight) {
  const std::vector<int64_t>& lengths = sequences.lengths;
  if (by_flash(k, sequences)) {
    flash_attention_backward(grad, q, k, v, attended, starts_of(sequences), grad_q, grad_k, grad_v, sight);
    return;
  }
  if (cpu::takes(q)) {
    packed_attention_backward_by_kernel(grad, q, k, v, attended, lengths, grad_q, grad_k, grad_v, sight);
    return;
  }
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i];
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, start, length); };
    const at::Tensor keys = part(k).transpose(0, 1), values = part(v).transpose(0, 1);
    if (!q.is_cpu() || limited(sight)) {
      const AttentionGradients gradients = blockwise_attention_backward(
          part(grad), part(q), keys, values, {part(attended.output), attended.logsumexp[i]},
          queries_at_once(q, keys), sight);
      part(grad_q).copy_(gradients.q);
      part(grad_k).copy_(gradients.keys.transpose(0, 1));
      part(grad_v).copy_(gradients.values.transpose(0, 1));
    } else {
      const auto [for_q, for_k, for_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grouped_queries(part(grad), kv_heads), grouped_queries(part(q), kv_heads),
          grouped_keys(keys, group), grouped_keys(values, group),
          grouped_queries(part(attended.output), kv_heads), attended.logsumexp[i], 0.0,
          true);  // each [kv_heads, group, length, head_dim]
      part(grad_q).copy_(ungrouped(for_q));
      part(grad_k).copy_(for_k.sum(1, false, wide(q)).transpose(0, 1));
      part(grad_v).copy_(for_v.sum(1, false, wide(q)).transpose(0, 1));
    }
    start += length;
  }
}

at::Tensor sinks_backward(const at::Tensor& grad, const Attended& attended, const Sequences& sequences,
                          const at::Tensor& sinks) {
  // A sink's share of the softmax is e^(sink - logsumexp). Its value is zero, so the gradient at its score
  // is the share times -grad · output, as for the other scores.
  const at::Tensor along = (grad.to(wide(grad)) * attended.output).sum(-1);  // [tokens, heads]
  const at::Tensor result = at::zeros_like(sinks);
  const bool together = attended.logsumexp.size() < sequences.lengths.size();
  const std::vector<int64_t> lengths = together ? std::vector{grad.size(0)} : sequences.lengths;
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); start += lengths[i], ++i) {
    const at::Tensor logsumexp = attended.logsumexp[i].reshape({sinks.size(0), lengths[i]});
    const at::Tensor share = (sinks.unsqueeze(1) - logsumexp).exp_();  // [heads, length]
    result.sub_((share * along.narrow(0, start, lengths[i]).t()).sum(1));
  }
  return result;
}

namespace {

// Queries of the last q.size(0) tokens against all keys and values of their sequence.
void attend_text(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, at::Tensor output,
                 const Sight& sight) {
  const int64_t fresh = q.size(0), length = keys.size(1), past = length - fresh;
  const int64_t kv_heads = keys.size(0), group = q.size(1) / kv_heads;
  if (!q.is_cpu() || limited(sight)) {
    output.copy_(blockwise_attention(q, keys, values, queries_at_once(q, keys), sight).output);
    return;
  }
  if (fresh == 1) {
    // One query per head: the group becomes the query dimension, so keys and values are read once.
    const at::Tensor queries = q.view({1, kv_heads, group, q.size(2)});
    const auto attended = at::_scaled_dot_product_flash_attention_for_cpu(queries, keys.unsqueeze(0),
                                                                          values.unsqueeze(0), 0.0, false);
    output.copy_(std::get<0>(attended).reshape({1, q.size(1), q.size(2)}));
    return;
  }
  const at::Tensor queries = grouped_queries(q, kv_heads);
  const auto attend = [&](int64_t start, int64_t count, bool causal) {
    const auto part = [&](const at::Tensor& x) { return grouped_keys(x.narrow(1, start, count), group); };
    return at::_scaled_dot_product_flash_attention_for_cpu(queries, part(keys), part(values), 0.0, causal);
  };
  const auto [own, own_logsumexp] = attend(past, fresh, true);
  if (past == 0) {
    output.copy_(ungrouped(own));
    return;
  }
  // The new tokens see all of the past, and themselves causally. The two softmaxes are combined by
  // their sums.
  const auto [old, old_logsumexp] = attend(0, past, false);
  const at::Tensor joint = at::logaddexp(own_logsumexp, old_logsumexp);
  const at::Tensor joined =
      own * (own_logsumexp - joint).exp_().unsqueeze(-1) + old * (old_logsumexp - joint).exp_().unsqueeze(-1);
  output.copy_(ungrouped(joined));
}

}  // namespace

PlainAttention::PlainAttention(const KvStore& store, const std::vector<KvSlice>& slices)
    : store_(store), first_row_{0}, first_key_{0} {
  std::vector<int64_t> blocks, slots;
  for (const KvSlice& slice : slices) {
    const int64_t length = slice.past + slice.fresh;
    for (int64_t position = 0; position < length; ++position) {
      blocks.push_back((*slice.blocks)[static_cast<size_t>(position / kBlockTokens)]);
      slots.push_back(position % kBlockTokens);
    }
    first_row_.push_back(first_row_.back() + static_cast<int32_t>(slice.fresh));
    first_key_.push_back(first_key_.back() + static_cast<int32_t>(length));
    max_rows_ = std::max(max_rows_, slice.fresh);
    max_keys_ = std::max(max_keys_, length);
  }
  const at::Device device = store.plain_keys(store.attention_layer()).device();
  if (device.type() == NLAC_KERNEL_DEVICE) {
    row_starts_ = at::tensor(first_row_, at::kInt).to(device);
    key_starts_ = at::tensor(first_key_, at::kInt).to(device);
  }
  blocks_ = at::tensor(blocks, at::kLong).to(device);
  slots_ = at::tensor(slots, at::kLong).to(device);
}

at::Tensor PlainAttention::run(int64_t layer, const at::Tensor& q, const Sight& sight) const {
  const auto gathered = [&](const at::Tensor& all) {  // [keys, kv_heads, head_dim]
    return all.index({blocks_, at::indexing::Slice(), slots_});
  };
  const at::Tensor keys = gathered(store_.plain_keys(layer)), values = gathered(store_.plain_values(layer));
  if (row_starts_.defined() && takes_flash(keys))
    return flash_attention(q, keys, values, {row_starts_, max_rows_}, {key_starts_, max_keys_}, sight).output;
  const at::Tensor output = at::empty(q.sizes(), q.options());
  for (size_t i = 0; i + 1 < first_row_.size(); ++i) {
    const auto rows = [&](const at::Tensor& x) { return x.slice(0, first_row_[i], first_row_[i + 1]); };
    const auto own = [&](const at::Tensor& x) {
      return x.slice(0, first_key_[i], first_key_[i + 1]).transpose(0, 1);
    };
    attend_text(rows(q), own(keys), own(values), rows(output), sight);
  }
  return output;
}

// --- cached attention ----------------------------------------------------------------------------

CachedAttention::CachedAttention(const KvStore& store, const std::vector<KvSlice>& slices, at::Device device)
    : store_(store), slices_(slices) {
  constexpr int64_t stretch = 16;  // queries whose scores exist at a time
  int64_t start = 0;
  for (size_t s = 0; s < slices.size(); ++s) {
    const KvSlice& slice = slices[s];
    for (int64_t position = slice.past; position < slice.past + slice.fresh; ++position)
      places_.push_back({s, position});
    if (store.packed()) {
      const auto end = slice.blocks->begin() + (slice.past + slice.fresh + kBlockTokens - 1) / kBlockTokens;
      std::vector<const void*>& of_slice = starts_.emplace_back();
      for (auto block = slice.blocks->begin(); block != end; ++block) of_slice.push_back(store.block(*block));
      for (int64_t first = 0; first < slice.fresh; first += stretch)
        stretches_.push_back({s, start, first, std::min(stretch, slice.fresh - first)});
    }
    start += slice.fresh;
  }
  if (store.packed()) return;
  std::vector<int64_t> blocks, slots;
  for (const auto& [s, position] : places_) {
    blocks.push_back((*slices[s].blocks)[static_cast<size_t>(position / kBlockTokens)]);
    slots.push_back(position % kBlockTokens);
  }
  row_blocks_ = at::tensor(blocks, at::kLong).to(device);
  row_slots_ = at::tensor(slots, at::kLong).to(device);
  plain_.emplace(store, slices);
}

void CachedAttention::run(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          at::Tensor output, const Sight& sight) const {
  if (!store_.packed()) return run_plain(layer, q, k, v, output, sight);
  cpu::with_number(q, [&]<typename Number>(Number) { run_packed<Number>(layer, q, k, v, output, sight); });
}

template <typename Number>
void CachedAttention::run_packed(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 at::Tensor output, const Sight& sight) const {
  const int64_t kv_heads = store_.kv_heads(layer), group = q.size(1) / kv_heads, d = q.size(2);
  const int64_t keys = store_.keys_at(layer), values = store_.values_at(layer);
  at::parallel_for(0, k.defined() ? k.size(0) : 0, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto& [s, position] = places_[static_cast<size_t>(row)];
      const KvSlice& slice = slices_[s];
      Number* const block =
          static_cast<Number*>(store_.block((*slice.blocks)[static_cast<size_t>(position / kBlockTokens)]));
      const int64_t slot = position % kBlockTokens;
      const bool last = position + 1 == slice.past + slice.fresh;
      for (int64_t h = 0; h < kv_heads; ++h) {
        const int64_t of_head = h * kBlockTokens * d;
        cpu::store_key(numbers<Number>(k, row, h), d, slot, block + keys + of_head);
        cpu::store_value(numbers<Number>(v, row, h), d, slot, last, block + values + of_head);
      }
    }
  });
  at::parallel_for(0, static_cast<int64_t>(stretches_.size()) * kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [s, start, first, count] = stretches_[static_cast<size_t>(i / kv_heads)];
      const int64_t head = i % kv_heads, of_head = head * kBlockTokens * d;
      const cpu::BlockHead shape{slices_[s].past,
                                 group,
                                 d,
                                 q.stride(0),
                                 output.stride(0),
                                 sight.window,
                                 static_cast<float>(sight.scale),
                                 sinks_from(sight, head * group)};
      cpu::attend_blocks(shape, first, count, numbers<Number>(q, start, head * group), starts_[s].data(),
                         keys + of_head, values + of_head,
                         mutable_numbers<Number>(output, start, head * group));
    }
  });
}

// Any device and type.
void CachedAttention::run_plain(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                at::Tensor output, const Sight& sight) const {
  if (k.defined()) {
    at::Tensor keys = store_.plain_keys(layer), values = store_.plain_values(layer);
    keys.index_put_({row_blocks_, at::indexing::Slice(), row_slots_}, k);
    values.index_put_({row_blocks_, at::indexing::Slice(), row_slots_}, v);
  }
  output.copy_(plain_->run(layer, q, sight));
}

}  // namespace nlac
