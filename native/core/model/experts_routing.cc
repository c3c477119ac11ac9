#include "core/model/experts_routing.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace nlac {
namespace {

constexpr int64_t tokens_per_thread = 16;

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// One token: its softmax, and its k most probable experts.
template <typename Real>
void route_row(const Real* logits, const ExpertsShape& shape, std::vector<int64_t>& order,
               Real* probabilities, int64_t* chosen, Real* weights) {
  const int64_t experts = shape.count, k = shape.per_token;
  const double most = *std::max_element(logits, logits + experts);
  double total = 0;
  for (int64_t e = 0; e < experts; ++e) total += std::exp(static_cast<double>(logits[e]) - most);
  for (int64_t e = 0; e < experts; ++e)
    probabilities[e] = static_cast<Real>(std::exp(static_cast<double>(logits[e]) - most) / total);
  std::iota(order.begin(), order.end(), 0);
  // By logit: probabilities of distinct logits can round to the same number. NaN would break the
  // order.
  const auto before = [&](int64_t a, int64_t b) {
    const Real x = std::isnan(logits[a]) ? -INFINITY : logits[a];
    const Real y = std::isnan(logits[b]) ? -INFINITY : logits[b];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
  double sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(probabilities[order[static_cast<size_t>(j)]]);
  for (int64_t j = 0; j < k; ++j) {
    chosen[j] = order[static_cast<size_t>(j)];
    const auto p = static_cast<double>(probabilities[chosen[j]]);
    weights[j] = static_cast<Real>(shape.normalised ? p / sum : p);
  }
}

}  // namespace

Routing route(const at::Tensor& logits, const ExpertsShape& shape) {
  if (!logits.is_cpu()) {
    Routing routing;
    routing.probabilities = at::softmax(logits, -1);
    std::tie(routing.weights, routing.chosen) = at::topk(routing.probabilities, shape.per_token, -1);
    if (shape.normalised) routing.weights = routing.weights / routing.weights.sum(-1, true);
    return routing;
  }
  const int64_t tokens = logits.size(0), k = shape.per_token;
  const at::Tensor rows = logits.contiguous();
  const Routing routing{at::empty(rows.sizes(), rows.options()),
                        at::empty({tokens, k}, rows.options().dtype(at::kLong)),
                        at::empty({tokens, k}, rows.options())};
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "route", [&] {
    at::parallel_for(0, tokens, tokens_per_thread, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> order(static_cast<size_t>(shape.count));
      for (int64_t t = begin; t < end; ++t)
        route_row(rows.const_data_ptr<scalar_t>() + t * shape.count, shape, order,
                  routing.probabilities.mutable_data_ptr<scalar_t>() + t * shape.count,
                  routing.chosen.mutable_data_ptr<int64_t>() + t * k,
                  routing.weights.mutable_data_ptr<scalar_t>() + t * k);
    });
  });
  return routing;
}

at::Tensor route_backward(const at::Tensor& at_weights, const Routing& routing, const ExpertsShape& shape,
                          const at::Tensor& at_probabilities) {
  const at::Tensor& p = routing.probabilities;
  at::Tensor at_chosen = at_weights;
  if (shape.normalised) {
    // weights_j = p_j / Σ p
    const at::Tensor total = p.gather(1, routing.chosen).sum(-1, true);
    at_chosen = (at_weights - (at_weights * routing.weights).sum(-1, true)) / total;
  }
  at::Tensor at_p = at::zeros(p.sizes(), p.options()).scatter_(1, routing.chosen, at_chosen);
  if (at_probabilities.defined()) at_p.add_(at_probabilities.to(p.scalar_type()));
  return p * (at_p - (at_p * p).sum(-1, true));
}

const std::vector<int64_t>& GroupedRows::begin() const {
  if (begin_.empty()) {
    const at::Tensor on_host = ends.cpu();
    const auto* const end = on_host.const_data_ptr<int32_t>();
    begin_.assign(1, 0);
    begin_.insert(begin_.end(), end, end + on_host.numel());
  }
  return begin_;
}

GroupedRows group_by_sorting(const at::Tensor& chosen, int64_t experts) {
  const auto [sorted, pairs] = chosen.flatten().sort(/*stable=*/true, 0, /*descending=*/false);
  GroupedRows groups;
  groups.experts = sorted;
  groups.tokens = pairs.div(chosen.size(1), "floor");
  groups.rows = at::empty_like(pairs)
                    .scatter_(0, pairs, at::arange(pairs.numel(), pairs.options()))
                    .view(chosen.sizes());
  groups.ends = at::searchsorted(sorted, at::arange(1, experts + 1, pairs.options()), /*out_int32=*/true);
  return groups;
}

GroupedRows group_by_expert(const at::Tensor& chosen, int64_t experts) {
  if (!chosen.is_cpu()) return group_by_sorting(chosen, experts);
  const at::Tensor pairs = chosen.contiguous();
  const int64_t count = pairs.numel(), k = pairs.size(1);
  const int64_t* expert = pairs.const_data_ptr<int64_t>();
  GroupedRows groups;
  groups.ends = at::zeros({experts}, pairs.options().dtype(at::kInt));
  auto* const end = groups.ends.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) ++end[expert[i]];
  std::partial_sum(end, end + experts, end);
  groups.tokens = at::empty({count}, pairs.options()), groups.rows = at::empty_like(pairs);
  groups.experts = at::empty_like(groups.tokens);
  int64_t* const expert_of = groups.experts.mutable_data_ptr<int64_t>();
  int64_t *const token = groups.tokens.mutable_data_ptr<int64_t>(), *const row =
                                                                        groups.rows
                                                                            .mutable_data_ptr<int64_t>();
  std::vector<int64_t> next = groups.begin();
  for (int64_t i = 0; i < count; ++i) {
    row[i] = next[static_cast<size_t>(expert[i])]++;
    token[row[i]] = i / k;
    expert_of[row[i]] = expert[i];
  }
  return groups;
}

at::Tensor combine(const at::Tensor& values, const GroupedRows& groups, const at::Tensor& weights,
                   const at::Tensor& sum) {
  const int64_t tokens = groups.rows.size(0), k = groups.rows.size(1), n = values.size(1);
  const at::ScalarType type = sum.defined() ? sum.scalar_type() : values.scalar_type();
  const at::ScalarType real = wide(values);
  if (!values.is_cpu()) {
    at::Tensor picked = values.index_select(0, groups.rows.flatten()).view({tokens, k, n}).to(real);
    if (weights.defined()) picked = picked * weights.unsqueeze(-1);
    const at::Tensor total = picked.sum(1);
    return (sum.defined() ? total + sum : total).to(type);
  }
  const at::Tensor from = values.contiguous(), added = sum.defined() ? sum.contiguous() : sum;
  const at::Tensor result = at::empty({tokens, n}, values.options().dtype(type));
  const int64_t* row = groups.rows.const_data_ptr<int64_t>();
  const auto run = [&]<typename Value, typename Result, typename Real>(Value, Result, Real) {
    const auto* const value = from.const_data_ptr<Value>();
    const auto* const more = added.defined() ? added.const_data_ptr<Result>() : nullptr;
    auto* const to = result.mutable_data_ptr<Result>();
    const auto* const weight = weights.defined() ? weights.const_data_ptr<Real>() : nullptr;
    at::parallel_for(0, tokens, tokens_per_thread, [&](int64_t begin, int64_t end) {
      std::vector<Real> total(static_cast<size_t>(n));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(total.begin(), total.end(), Real{0});
        for (int64_t j = 0; j < k; ++j) {
          const Value* const x = value + row[t * k + j] * n;
          const Real w = weight ? weight[t * k + j] : Real{1};
          for (int64_t i = 0; i < n; ++i) total[static_cast<size_t>(i)] += w * static_cast<Real>(x[i]);
        }
        for (int64_t i = 0; i < n; ++i) {
          const Real base = more ? static_cast<Real>(more[t * n + i]) : Real{0};
          to[t * n + i] = static_cast<Result>(base + total[static_cast<size_t>(i)]);
        }
      }
    });
  };
  if (real == at::kDouble)
    run(double{}, double{}, double{});
  else if (values.scalar_type() == at::kFloat && type == at::kFloat)
    run(float{}, float{}, float{});
  else if (values.scalar_type() == at::kBFloat16 && type == at::kBFloat16)
    run(at::BFloat16{}, at::BFloat16{}, float{});
  else if (values.scalar_type() == at::kBFloat16 && type == at::kFloat)
    run(at::BFloat16{}, float{}, float{});
  else
    TORCH_CHECK(false, "combine: ", values.scalar_type(), " into ", type);
  return result;
}

}  // namespace nlac
