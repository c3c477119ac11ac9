#include "core/model/experts_part.h"

#include "core/model/elementwise.h"
#include "core/model/linear.h"

namespace nlac {
namespace {

// Calls body(expert, first row, rows) for each expert that has rows.
template <typename Body>
void for_each_expert(const GroupedRows& groups, const Body& body) {
  for (size_t e = 0; e + 1 < groups.begin.size(); ++e) {
    const int64_t first = groups.begin[e], rows = groups.begin[e + 1] - first;
    if (rows > 0) body(static_cast<int64_t>(e), first, rows);
  }
}

// x [rows, in], ordered by expert → [rows, out], each row times its expert's matrix of stack [experts, out,
// in].
at::Tensor grouped_forward(const at::Tensor& x, const at::Tensor& stack, const GroupedRows& groups) {
  const at::Tensor y = at::empty({x.size(0), stack.size(1)}, x.options());
  for_each_expert(groups, [&](int64_t e, int64_t first, int64_t rows) {
    y.narrow(0, first, rows).copy_(linear_forward(x.narrow(0, first, rows), stack[e], {}));
  });
  return y;
}

// Returns the gradient at x, and adds that at the stack to `into` (undefined: not computed).
at::Tensor grouped_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& stack,
                            const GroupedRows& groups, const at::Tensor& into) {
  const at::Tensor at_x = at::empty_like(x);
  for_each_expert(groups, [&](int64_t e, int64_t first, int64_t rows) {
    at_x.narrow(0, first, rows)
        .copy_(linear_backward(grad.narrow(0, first, rows), x.narrow(0, first, rows), stack[e],
                               into.defined() ? into[e] : at::Tensor(), {}));
  });
  return at_x;
}

}  // namespace

std::vector<Parameter> experts_parameters(const ModelConfig& config, ExpertsWeights& weights) {
  const int64_t hidden = config.hidden_size, n = config.experts.intermediate, count = config.experts.count;
  Parameter gate_up{&weights.gate_up, {count, 2 * n, hidden}, {}},
      down{&weights.down, {count, hidden, n}, {}};
  for (int64_t e = 0; e < count; ++e) {
    const std::string prefix = "mlp.experts." + std::to_string(e) + ".";
    gate_up.rows.emplace_back(prefix + "gate_proj.weight", n);
    gate_up.rows.emplace_back(prefix + "up_proj.weight", n);
    down.rows.emplace_back(prefix + "down_proj.weight", hidden);
  }
  return {{&weights.router, {count, hidden}, {{"mlp.gate.weight", count}}}, gate_up, down};
}

at::Tensor experts_forward(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& x,
                           const at::Tensor& residual, ExpertsTape& tape, bool tape_only) {
  const at::Tensor logits = x.scalar_type() == at::kDouble ? linear_forward(x, weights.router, {})
                                                           : linear_in_float(x, weights.router);
  tape.routing = route(logits, config.experts);
  tape.groups = group_by_expert(tape.routing.chosen, config.experts.count);
  tape.gate_up = grouped_forward(x.index_select(0, tape.groups.tokens), weights.gate_up, tape.groups);
  if (tape_only) return {};
  const at::Tensor out = grouped_forward(gated(tape.gate_up, config.activation), weights.down, tape.groups);
  return combine(out, tape.groups, tape.routing.weights, residual);
}

at::Tensor experts_backward(const ExpertsWeights& weights, const ModelConfig& config, const PackedPass& pass,
                            const at::Tensor& x, const ExpertsTape& tape, const at::Tensor& grad,
                            ExpertsWeights& into) {
  const GroupedRows& groups = tape.groups;
  const at::Tensor inner = gated(tape.gate_up, config.activation);
  const at::ScalarType type = x.scalar_type(), real = tape.routing.weights.scalar_type();
  // A row's output is w · down(inner). `at_inner` is the gradient at inner without w.
  at::Tensor w = at::empty({groups.tokens.size(0)}, tape.routing.weights.options());
  w.index_copy_(0, groups.rows.flatten(), tape.routing.weights.flatten());
  w = w.unsqueeze(1);
  const at::Tensor at_inner = grouped_backward(grad.index_select(0, groups.tokens), (inner * w).to(type),
                                               weights.down, groups, into.down);
  const at::Tensor at_w = (at_inner.to(real) * inner.to(real)).sum(1).index_select(0, groups.rows.flatten());
  const at::Tensor at_gate_up = gated_backward((at_inner * w).to(type), tape.gate_up, config.activation);
  const at::Tensor at_rows =
      grouped_backward(at_gate_up, x.index_select(0, groups.tokens), weights.gate_up, groups, into.gate_up);
  const at::Tensor at_logits = route_backward(at_w.view(tape.routing.weights.sizes()), tape.routing,
                                              config.experts, pass.at_probabilities);
  const at::Tensor at_x = linear_backward(at_logits.to(type), x, weights.router, into.router, {});
  return combine(at_rows, groups, {}, at_x);
}

void RouterLoad::add(const Routing& routing) {
  const at::Tensor& p = routing.probabilities;
  if (rows == 0) choices = at::zeros({p.size(1)}, p.options()), probabilities = at::zeros_like(choices);
  choices.add_(at::bincount(routing.chosen.flatten(), {}, p.size(1)).to(p.scalar_type()));
  probabilities.add_(p.sum(0));
  rows += p.size(0);
}

at::Tensor RouterLoad::at_probabilities() const {
  const auto count = static_cast<double>(rows);
  return choices * (static_cast<double>(choices.size(0)) / count / count);
}

double RouterLoad::loss() const {
  return rows == 0 ? 0 : (at_probabilities() * probabilities).sum().item<double>();
}

void experts_infer(const ExpertsWeights& weights, const ModelConfig& config, InferencePass& pass,
                   const at::Tensor& x, const at::Tensor& sum) {
  // Rounding to int8 would change which experts are chosen.
  const PackedMatrix& router = pass.matrices.of(weights.router, 0, /*exact=*/true);
  const at::Tensor logits = x.scalar_type() == at::kDouble ? router.forward(x, {}) : router.in_float(x);
  const Routing routing = route(logits, config.experts);
  const GroupedRows groups = group_by_expert(routing.chosen, config.experts.count);
  const at::Tensor rows = x.index_select(0, groups.tokens);
  const at::Tensor out = at::zeros({rows.size(0), sum.size(1)}, sum.options());
  for_each_expert(groups, [&](int64_t e, int64_t first, int64_t count) {
    const at::Tensor gate_up = pass.matrices.of(weights.gate_up, e).forward(rows.narrow(0, first, count), {});
    pass.matrices.of(weights.down, e).add(gated(gate_up, config.activation), {}, out.narrow(0, first, count));
  });
  sum.copy_(combine(out, groups, routing.weights, sum));
}

}  // namespace nlac
