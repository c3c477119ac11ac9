// Stands in for the flash kernels of libtorch's CUDA half on the CPU, as far as
// core/model/flash_attention.cc calls them: packed texts, causal, with or without a window. It refuses what
// they refuse, and of the backward pass it computes what they compute: probabilities from the given
// logsumexp.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace {

using at::Tensor;

struct Call {
  Tensor q, k, v, queries_at, keys_at;  // the last two i32
  double scale;
  std::optional<int64_t> before, after;
};

void check(const Call& call, int64_t longest_query, int64_t longest_key, double dropout, bool causal) {
  for (const Tensor& x : {call.q, call.k, call.v}) {
    TORCH_CHECK(x.dim() == 3 && x.scalar_type() == at::kBFloat16 && x.stride(-1) == 1);
    TORCH_CHECK(x.size(2) % 8 == 0 && x.size(2) <= 256 && x.size(2) == call.q.size(2));
  }
  TORCH_CHECK(call.k.sizes() == call.v.sizes() && call.q.size(1) % call.k.size(1) == 0);
  for (const auto& [starts, rows, longest] : {std::tuple{call.queries_at, call.q.size(0), longest_query},
                                              {call.keys_at, call.k.size(0), longest_key}}) {
    TORCH_CHECK(starts.scalar_type() == at::kInt && starts.is_contiguous());
    TORCH_CHECK(starts[0].item<int>() == 0 && starts[-1].item<int>() == rows);
    TORCH_CHECK(starts.diff().max().item<int>() == longest && starts.diff().min().item<int>() > 0);
  }
  TORCH_CHECK(call.queries_at.sizes() == call.keys_at.sizes() && dropout == 0 && causal);
  TORCH_CHECK(call.before.has_value() == call.after.has_value() && call.after.value_or(0) == 0);
}

// Calls body(queries, keys, scores) for each text, with its rows and its scaled scores [heads, queries, keys]
// f32, -infinity where a query does not see a key.
template <typename Body>
void for_each_text(const Call& call, const Body& body) {
  const int64_t group = call.q.size(1) / call.k.size(1);
  for (int64_t i = 0; i + 1 < call.queries_at.size(0); ++i) {
    const auto rows = [&](const Tensor& starts) {
      return at::indexing::Slice(starts[i].item<int>(), starts[i + 1].item<int>());
    };
    const auto queries = rows(call.queries_at), keys = rows(call.keys_at);
    const Tensor k = call.k.index({keys}).to(at::kFloat).repeat_interleave(group, 1);
    Tensor scores = at::einsum("qhd,khd->hqk", {call.q.index({queries}).to(at::kFloat), k}) * call.scale;
    const int64_t past = scores.size(2) - scores.size(1);
    const Tensor all = at::ones(scores.sizes().slice(1), at::kBool);
    Tensor unseen = all.triu(past + 1);
    if (call.before) unseen = unseen.logical_or(all.tril(past - *call.before - 1));
    body(queries, keys, scores.masked_fill_(unseen, -INFINITY));
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& queries_at,
    const std::optional<Tensor>& keys_at, int64_t longest_query, int64_t longest_key, double dropout,
    bool causal, bool debugged, std::optional<double> scale, std::optional<int64_t> before,
    std::optional<int64_t> after, const std::optional<Tensor>&, const std::optional<Tensor>&) {
  const Call call{q, k, v, queries_at.value(), keys_at.value(), scale.value(), before, after};
  check(call, longest_query, longest_key, dropout, causal);
  TORCH_CHECK(!debugged);
  const Tensor output = at::empty(q.sizes(), q.options()),
               logsumexp = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  for_each_text(call, [&](const auto& queries, const auto& keys, const Tensor& scores) {
    const Tensor values = v.index({keys}).to(at::kFloat).repeat_interleave(q.size(1) / v.size(1), 1);
    output.index({queries}).copy_(at::einsum("hqk,khd->qhd", {at::softmax(scores, -1), values}));
    logsumexp.index({at::indexing::Slice(), queries}).copy_(scores.logsumexp(-1));
  });
  const Tensor generator = at::empty({2}, at::kUInt64), unused = at::empty({}, at::kUInt64);
  return {output, logsumexp, generator, unused, at::empty({0}, q.options())};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                            const Tensor& v, const Tensor& output, const Tensor& logsumexp,
                                            const Tensor& queries_at, const Tensor& keys_at,
                                            int64_t longest_query, int64_t longest_key, double dropout,
                                            bool causal, const Tensor& generator, const Tensor& unused,
                                            std::optional<double> scale, std::optional<int64_t> before,
                                            std::optional<int64_t> after) {
  const Call call{q, k, v, queries_at, keys_at, scale.value(), before, after};
  check(call, longest_query, longest_key, dropout, causal);
  TORCH_CHECK(grad.sizes() == q.sizes() && output.sizes() == q.sizes() && generator.defined() &&
              unused.defined() && grad.scalar_type() == at::kBFloat16 &&
              output.scalar_type() == at::kBFloat16);
  TORCH_CHECK(logsumexp.is_contiguous() && logsumexp.scalar_type() == at::kFloat &&
              logsumexp.sizes() == at::IntArrayRef({q.size(1), q.size(0)}));
  const int64_t kv_heads = k.size(1), group = q.size(1) / kv_heads;
  const Tensor at_q = at::empty(q.sizes(), q.options()), at_k = at::empty(k.sizes(), k.options()),
               at_v = at::empty(v.sizes(), v.options());
  for_each_text(call, [&](const auto& queries, const auto& keys, const Tensor& scores) {
    const auto of_queries = [&](const Tensor& x) { return x.index({queries}).to(at::kFloat); };
    const auto of_keys = [&](const Tensor& x) {
      return x.index({keys}).to(at::kFloat).repeat_interleave(group, 1);
    };
    const auto of_groups = [&](const Tensor& x) { return x.unflatten(1, {kv_heads, group}).sum(2); };
    const Tensor shares = (scores - logsumexp.index({at::indexing::Slice(), queries}).unsqueeze(-1)).exp();
    const Tensor upstream = of_queries(grad),
                 along = (upstream * of_queries(output)).sum(-1).t().unsqueeze(-1);
    const Tensor at_scores =
        shares * (at::einsum("qhd,khd->hqk", {upstream, of_keys(v)}) - along) * call.scale;
    at_q.index({queries}).copy_(at::einsum("hqk,khd->qhd", {at_scores, of_keys(k)}));
    at_k.index({keys}).copy_(of_groups(at::einsum("hqk,qhd->khd", {at_scores, of_queries(q)})));
    at_v.index({keys}).copy_(of_groups(at::einsum("hqk,qhd->khd", {shares, upstream})));
  });
  return {at_q, at_k, at_v};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_flash_attention_forward", &forward);
  m.impl("_flash_attention_backward", &backward);
}
