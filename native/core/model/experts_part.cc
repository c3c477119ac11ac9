#include "core/model/experts_part.h"

#include <ATen/Dispatch.h>

#include <cmath>

#include "core/model/elementwise.h"
#include "core/model/experts_products.h"
#include "core/model/linear.h"

namespace nlac {
namespace {

// The sigmoid of each value, float32 or f64. On a CPU its bits do not depend on how many values
// there are; those of at::sigmoid do, because it computes the last few in another way than whole
// vectors.
at::Tensor share_of(const at::Tensor& logits) {
  if (!logits.is_cpu()) return at::sigmoid(logits);
  at::Tensor share = at::empty_like(logits);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "share_of", [&] {
    const auto* from = logits.const_data_ptr<scalar_t>();
    auto* to = share.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < logits.numel(); ++i)
      to[i] = static_cast<scalar_t>(1 / (1 + std::exp(-static_cast<double>(from[i]))));
  });
  return share;
}

// The activation of gate_up [rows, 2 intermediate], and its gradient.
at::Tensor activated(const at::Tensor& gate_up, const ModelConfig& config) {
  const ExpertsShape& shape = config.experts;
  return shape.clamped() ? clamped_gate(gate_up, shape.limit, shape.alpha)
                         : gated(gate_up, config.activation);
}
at::Tensor activated_backward(const at::Tensor& grad, const at::Tensor& gate_up, const ModelConfig& config) {
  const ExpertsShape& shape = config.experts;
  return shape.clamped() ? clamped_gate_backward(grad, gate_up, shape.limit, shape.alpha)
                         : gated_backward(grad, gate_up, config.activation);
}

// What the router multiplies: x, or norm(stream) · router_scale.
at::Tensor router_input(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& x,
                        const at::Tensor& stream) {
  return weights.router_scale.defined() ? rms_norm(stream, weights.router_scale, config) : x;
}

// The product of a scaled router is divided by √hidden.
double router_factor(const ExpertsWeights& weights) {
  return weights.router_scale.defined() ? 1 / std::sqrt(static_cast<double>(weights.router.size(1))) : 1;
}

// The routing, given the router's product.
Routing route_product(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& product) {
  at::Tensor logits = product;
  if (weights.router_scale.defined()) logits = logits * router_factor(weights);
  if (weights.router_bias.defined()) logits = logits + weights.router_bias;
  return route(logits, config.experts);
}

// expert_scale of the chosen experts, in the shape and type of the routing's weights.
at::Tensor chosen_scale(const ExpertsWeights& weights, const Routing& routing) {
  return weights.expert_scale.index_select(0, routing.chosen.flatten())
      .view(routing.chosen.sizes())
      .to(routing.weights.scalar_type());
}

// What the chosen experts' outputs are multiplied by, [tokens, k].
at::Tensor output_weights(const ExpertsWeights& weights, const Routing& routing) {
  return weights.expert_scale.defined() ? routing.weights * chosen_scale(weights, routing) : routing.weights;
}

// Products that are not rounded to bfloat16.
at::Tensor unrounded(const at::Tensor& x, const at::Tensor& weight) {
  return x.scalar_type() == at::kDouble ? linear_forward(x, weight, {}) : linear_in_float(x, weight);
}
at::Tensor unrounded(const at::Tensor& x, const PackedMatrix& matrix) {
  return x.scalar_type() == at::kDouble ? matrix.forward(x, {}) : matrix.in_float(x);
}

// The outputs [rows, hidden] of the experts of rows [rows, hidden] in inference, in bfloat16 or `type`.
at::Tensor experts_output(const ExpertsWeights& weights, const ModelConfig& config, InferencePass& pass,
                          const at::Tensor& rows, const GroupedRows& groups, at::ScalarType type) {
  const Adapter &of_gate_up = weights.gate_up_adapter, &of_down = weights.down_adapter;
  if (takes_grouped(rows, weights.gate_up, of_gate_up) && takes_grouped(rows, weights.down, of_down)) {
    const at::Tensor gate_up =
        grouped_forward(rows, weights.gate_up, weights.gate_up_bias, of_gate_up, groups);
    return grouped_forward(activated(gate_up, config), weights.down, weights.down_bias, of_down, groups);
  }
  const at::Tensor out = at::zeros({rows.size(0), weights.down.size(1)}, rows.options().dtype(type));
  groups.for_each([&](int64_t e, int64_t first, int64_t count) {
    const at::Tensor gate_up =
        pass.matrices.of(weights.gate_up, e)
            .forward(rows.narrow(0, first, count), of_expert(weights.gate_up_bias, e), of_gate_up.of(e));
    pass.matrices.of(weights.down, e)
        .add(activated(gate_up, config), of_expert(weights.down_bias, e), out.narrow(0, first, count),
             of_down.of(e));
  });
  return out;
}

// Adds the shared expert's output to `sum` [tokens, hidden].
void add_shared(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& x,
                ExpertsTape& tape, bool tape_only, at::Tensor sum) {
  tape.share = share_of(unrounded(x, weights.shared_gate));
  const at::Tensor out = feed_forward(weights.shared, config, x, {}, tape.shared, tape_only);
  if (!tape_only) sum.add_(out * tape.share);
}

// Returns the gradient at x.
at::Tensor shared_backward(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& x,
                           const ExpertsTape& tape, const at::Tensor& grad, ExpertsWeights& into) {
  const at::ScalarType type = x.scalar_type();
  const FeedForwardWeights& shared = weights.shared;
  const at::Tensor out =
      linear_forward(gated(tape.shared.gate_up, config.activation), shared.down, {}, shared.down_adapter);
  const at::Tensor at_share = (grad.to(tape.share.scalar_type()) * out).sum(1, /*keepdim=*/true);
  const at::Tensor at_logits = at_share * tape.share * (1 - tape.share);
  const at::Tensor at_x =
      feed_forward_backward(shared, config, x, tape.shared, (grad * tape.share).to(type), into.shared);
  return at_x + linear_backward(at_logits.to(type), x, weights.shared_gate, into.shared_gate, {});
}

}  // namespace

std::vector<at::Tensor*> ExpertsWeights::tensors() {
  std::vector<at::Tensor*> all{&router_scale, &router, &router_bias, &expert_scale, &gate_up,
                               &gate_up_bias, &down,   &down_bias,   &shared_gate};
  for (at::Tensor* tensor : shared.tensors()) all.push_back(tensor);
  return all;
}

std::vector<AdaptedMatrix> ExpertsWeights::adapted() {
  std::vector<AdaptedMatrix> all{{&gate_up, &gate_up_adapter}, {&down, &down_adapter}};
  for (const AdaptedMatrix& one : shared.adapted()) all.push_back(one);
  return all;
}

std::vector<Parameter> experts_parameters(const ModelConfig& config, ExpertsWeights& weights) {
  const int64_t hidden = config.hidden_size, n = config.experts.intermediate, count = config.experts.count;
  if (config.experts.clamped()) {
    const std::string experts = "mlp.experts.";
    return {{&weights.router, {count, hidden}, {{"mlp.router.weight", count}}},
            {&weights.router_bias, {count}, {{"mlp.router.bias", count}}},
            {&weights.gate_up, {count, 2 * n, hidden}, {{experts + "gate_up_proj", count}}, nullptr, true},
            {&weights.gate_up_bias, {count, 2 * n}, {{experts + "gate_up_proj_bias", count}}},
            {&weights.down, {count, hidden, n}, {{experts + "down_proj", count}}, nullptr, true},
            {&weights.down_bias, {count, hidden}, {{experts + "down_proj_bias", count}}}};
  }
  Parameter gate_up{&weights.gate_up, {count, 2 * n, hidden}, {}, &weights.gate_up_adapter},
      down{&weights.down, {count, hidden, n}, {}, &weights.down_adapter};
  const std::string stacks = config.experts.prefix();
  for (int64_t e = 0; e < count; ++e) {
    const std::string prefix = stacks + std::to_string(e) + ".";
    gate_up.rows.emplace_back(prefix + "gate_proj.weight", n);
    gate_up.rows.emplace_back(prefix + "up_proj.weight", n);
    down.rows.emplace_back(prefix + "down_proj.weight", hidden);
  }
  if (config.experts.scaled_router) {
    gate_up.stack = stacks + "gate_up_proj";
    down.stack = stacks + "down_proj";
    return {{&weights.router_scale, {hidden}, {{"router.scale", hidden}}},
            {&weights.router, {count, hidden}, {{"router.proj.weight", count}}},
            {&weights.expert_scale, {count}, {{"router.per_expert_scale", count}}},
            gate_up,
            down};
  }
  std::vector<Parameter> all{{&weights.router, {count, hidden}, {{"mlp.gate.weight", count}}}, gate_up, down};
  const int64_t shared = config.experts.shared;
  if (shared == 0) return all;
  all.push_back({&weights.shared_gate, {1, hidden}, {{"mlp.shared_expert_gate.weight", 1}}});
  for (Parameter& one : feed_forward_parameters(config, weights.shared, "mlp.shared_expert.", shared))
    all.push_back(std::move(one));
  return all;
}

at::Tensor experts_forward(const ExpertsWeights& weights, const ModelConfig& config, const at::Tensor& x,
                           const at::Tensor& stream, const at::Tensor& residual, ExpertsTape& tape,
                           bool tape_only) {
  tape.routing =
      route_product(weights, config, unrounded(router_input(weights, config, x, stream), weights.router));
  tape.groups = group_by_expert(tape.routing.chosen, config.experts.count);
  tape.gate_up = grouped_forward(x.index_select(0, tape.groups.tokens), weights.gate_up, weights.gate_up_bias,
                                 weights.gate_up_adapter, tape.groups);
  at::Tensor sum;
  if (!tape_only) {
    const at::Tensor out = grouped_forward(activated(tape.gate_up, config), weights.down, weights.down_bias,
                                           weights.down_adapter, tape.groups);
    sum = combine(out, tape.groups, output_weights(weights, tape.routing), residual);
  }
  if (config.experts.shared > 0) add_shared(weights, config, x, tape, tape_only, sum);
  return sum;
}

at::Tensor experts_backward(const ExpertsWeights& weights, const ModelConfig& config, const PackedPass& pass,
                            const at::Tensor& x, const at::Tensor& stream, const ExpertsTape& tape,
                            const at::Tensor& grad, ExpertsWeights& into, at::Tensor& at_stream) {
  const GroupedRows& groups = tape.groups;
  const at::Tensor inner = activated(tape.gate_up, config);
  const at::ScalarType type = x.scalar_type(), real = tape.routing.weights.scalar_type();
  // A row's output is w · (down(inner) + bias). `at_inner` is the gradient at inner without w.
  at::Tensor w = at::empty({groups.tokens.size(0)}, tape.routing.weights.options());
  w.index_copy_(0, groups.rows.flatten(), output_weights(weights, tape.routing).flatten());
  w = w.unsqueeze(1);
  const at::Tensor at_out = grad.index_select(0, groups.tokens);
  const at::Tensor at_inner =
      grouped_backward(at_out, (inner * w).to(type), weights.down, weights.down_adapter, groups, into.down,
                       {}, into.down_adapter);
  at::Tensor at_rows_w = (at_inner.to(real) * inner.to(real)).sum(1);
  if (weights.down_bias.defined()) {
    const at::Tensor at = at_out.to(real);
    at_rows_w.add_(grouped_dot(at, weights.down_bias, groups));
    if (into.down_bias.defined()) add_grouped_sums(at * w, groups, into.down_bias);
  }
  at::Tensor at_w = at_rows_w.index_select(0, groups.rows.flatten()).view(tape.routing.weights.sizes());
  if (weights.expert_scale.defined()) {
    if (into.expert_scale.defined())
      into.expert_scale.index_add_(0, tape.routing.chosen.flatten(), (at_w * tape.routing.weights).flatten());
    at_w = at_w * chosen_scale(weights, tape.routing);
  }
  const at::Tensor at_gate_up = activated_backward((at_inner * w).to(type), tape.gate_up, config);
  const at::Tensor at_rows =
      grouped_backward(at_gate_up, x.index_select(0, groups.tokens), weights.gate_up, weights.gate_up_adapter,
                       groups, into.gate_up, into.gate_up_bias, into.gate_up_adapter);
  const at::Tensor at_logits =
      route_backward(at_w, tape.routing, config.experts, pass.at_probabilities).mul_(router_factor(weights));
  at::Tensor at_x = linear_backward(at_logits.to(type), router_input(weights, config, x, stream),
                                    weights.router, into.router, into.router_bias);
  if (weights.router_scale.defined()) {
    at_stream = rms_norm_backward(at_x, stream, weights.router_scale, config, into.router_scale, {});
    at_x.zero_();
  }
  if (config.experts.shared > 0) at_x.add_(shared_backward(weights, config, x, tape, grad, into));
  return combine(at_rows, groups, {}, at_x);
}

void RouterLoad::add(const Routing& routing) {
  const at::Tensor& p = routing.probabilities;
  if (rows == 0) choices = at::zeros({p.size(1)}, p.options()), probabilities = at::zeros_like(choices);
  // Not by at::bincount, which waits for a GPU. Sums of ones are exact in any order.
  choices.index_add_(0, routing.chosen.flatten(), at::ones({routing.chosen.numel()}, p.options()));
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
                   const at::Tensor& x, const at::Tensor& stream, const at::Tensor& sum) {
  // Rounding to int8 would change which experts are chosen.
  const PackedMatrix& router = pass.matrices.of(weights.router, 0, /*exact=*/true);
  const Routing routing =
      route_product(weights, config, unrounded(router_input(weights, config, x, stream), router));
  const GroupedRows groups = group_by_expert(routing.chosen, config.experts.count);
  const at::Tensor out =
      experts_output(weights, config, pass, x.index_select(0, groups.tokens), groups, sum.scalar_type());
  sum.copy_(combine(out, groups, output_weights(weights, routing), sum));
  if (config.experts.shared == 0) return;
  const at::Tensor of_shared = at::zeros(sum.sizes(), sum.options());
  feed_forward_infer(weights.shared, config, pass, x, of_shared);
  const PackedMatrix& gate = pass.matrices.of(weights.shared_gate, 0, /*exact=*/true);
  sum.add_(of_shared.mul_(share_of(unrounded(x, gate))));
}

}  // namespace nlac
