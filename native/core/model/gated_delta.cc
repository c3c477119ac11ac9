#include "core/model/gated_delta.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cpu/delta_kernels.h"
#include "core/cpu/shares.h"
#include "core/cpu/tensors.h"
#include "core/error.h"
#include "core/model/short_convolution.h"

namespace nlac {
namespace {

constexpr double unit_eps = 1e-6;

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Views of `projected` by its parts, and of a gradient at it.
struct Parts {
  at::Tensor mixed;  // [tokens, channels]: q, k, v before the convolution
  at::Tensor z;      // [tokens, heads, value_dim]
  at::Tensor b, a;   // [tokens, heads]
};
Parts parts_of(const GatedDeltaShape& shape, const at::Tensor& projected) {
  NLAC_REQUIRE(projected.dim() == 2 && projected.size(1) == shape.projected(), "ERR_SHAPE",
               "projected must be [tokens, ", shape.projected(), "]");
  const auto part = [&](int64_t start, int64_t width) { return projected.narrow(1, start, width); };
  const int64_t gate = shape.channels(), b = gate + shape.values();
  return {part(0, gate), part(gate, shape.values()).unflatten(1, {shape.heads, shape.value_dim}),
          part(b, shape.heads), part(b + shape.heads, shape.heads)};
}

// Views of the convolution's result [tokens, channels] as heads.
struct Heads {
  at::Tensor q, k, v;
};
Heads heads_of(const GatedDeltaShape& shape, const at::Tensor& convolved) {
  const auto part = [&](int64_t start, int64_t width, int64_t heads) {
    return convolved.narrow(1, start, width).unflatten(1, {heads, -1});
  };
  return {part(0, shape.keys(), shape.key_heads), part(shape.keys(), shape.keys(), shape.key_heads),
          part(2 * shape.keys(), shape.values(), shape.heads)};
}

at::Tensor inverse_length(const at::Tensor& x) { return x.square().sum(-1, true).add_(unit_eps).rsqrt_(); }
// The gradient at x of x / |x| · factor.
at::Tensor unit_backward(const at::Tensor& grad, const at::Tensor& x, double factor) {
  const at::Tensor scale = inverse_length(x), unit = x * scale;
  return (grad - unit * (unit * grad).sum(-1, true)).mul_(scale).mul_(factor);
}
double query_factor(const GatedDeltaShape& shape) {
  return 1.0 / std::sqrt(static_cast<double>(shape.key_dim));
}

// The delta rule's inputs, with what backward reads again.
struct Prepared {
  at::Tensor convolved;  // [tokens, channels]
  at::Tensor rate;       // softplus(a + decay_bias) [tokens, heads]
  DeltaInputs inputs;
};
Prepared prepare(const GatedDeltaShape& shape, const GatedDeltaWeights& weights, const Parts& parts,
                 const std::vector<int64_t>& lengths, const at::Tensor& past = {}) {
  Prepared result;
  const auto type = wide(parts.mixed);
  result.convolved = short_convolution(parts.mixed, weights.convolution, lengths, past);
  const Heads heads = heads_of(shape, result.convolved);
  result.rate = at::softplus(parts.a.to(type) + weights.decay_bias.to(type));
  result.inputs = {heads.q * inverse_length(heads.q) * query_factor(shape), heads.k * inverse_length(heads.k),
                   heads.v, weights.decay_log.to(type).exp().neg() * result.rate,
                   at::sigmoid(parts.b.to(type))};
  return result;
}

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return x.square().mean(-1, true).add_(eps).rsqrt_();
}

// x [tokens, heads, value_dim] → [tokens, values] of z's type.
at::Tensor gated_norm(const GatedDeltaShape& shape, const GatedDeltaWeights& weights, const at::Tensor& x,
                      const at::Tensor& z) {
  const auto type = wide(z);
  return (x * inverse_rms(x, shape.eps))
      .mul_(weights.norm.to(type))
      .mul_(at::silu(z.to(type)))
      .flatten(1)
      .to(z.scalar_type());
}

}  // namespace

GatedDelta gated_delta(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                       const at::Tensor& projected, const std::vector<int64_t>& lengths) {
  const Parts parts = parts_of(shape, projected);
  DeltaResult rule = delta_rule(prepare(shape, weights, parts, lengths).inputs, lengths);
  return {gated_norm(shape, weights, rule.output, parts.z), std::move(rule)};
}

at::Tensor gated_delta_backward(const at::Tensor& grad, const GatedDeltaShape& shape,
                                const GatedDeltaWeights& weights, const at::Tensor& projected,
                                const std::vector<int64_t>& lengths, const DeltaResult& rule,
                                const GatedDeltaWeights& into) {
  const Parts parts = parts_of(shape, projected);
  const auto type = wide(projected);
  const Prepared prepared = prepare(shape, weights, parts, lengths);
  const DeltaInputs& inputs = prepared.inputs;
  const at::Tensor result = at::empty(projected.sizes(), projected.options());
  const Parts at_parts = parts_of(shape, result);

  const at::Tensor scale = inverse_rms(rule.output, shape.eps), normed = rule.output * scale;
  const at::Tensor z = parts.z.to(type), gate = at::silu(z), weight = weights.norm.to(type);
  const at::Tensor upstream = grad.unflatten(1, {shape.heads, shape.value_dim}).to(type);
  at::Tensor(at_parts.z).copy_(at::silu_backward(upstream * normed * weight, z));
  if (into.norm.defined()) into.norm.add_((upstream * normed * gate).flatten(0, 1).sum(0));
  const at::Tensor at_normed = upstream * weight * gate;
  const at::Tensor at_x = (at_normed - normed * (at_normed * normed).mean(-1, true)).mul_(scale);

  const DeltaInputs at_inputs = delta_rule_backward(at_x, inputs, lengths, rule.states);
  at::Tensor(at_parts.b).copy_(at_inputs.beta * inputs.beta * (1 - inputs.beta));
  const at::Tensor at_rate = at_inputs.decay * weights.decay_log.to(type).exp().neg();
  const at::Tensor at_a = at_rate * at::sigmoid(parts.a.to(type) + weights.decay_bias.to(type));
  at::Tensor(at_parts.a).copy_(at_a);
  if (into.decay_bias.defined()) into.decay_bias.add_(at_a.sum(0));
  if (into.decay_log.defined()) into.decay_log.add_((at_rate * prepared.rate).sum(0));

  const Heads heads = heads_of(shape, prepared.convolved);
  const at::Tensor at_convolved = at::empty_like(prepared.convolved);
  const Heads at_heads = heads_of(shape, at_convolved);
  at::Tensor(at_heads.q).copy_(unit_backward(at_inputs.q, heads.q, query_factor(shape)));
  at::Tensor(at_heads.k).copy_(unit_backward(at_inputs.k, heads.k, 1));
  at::Tensor(at_heads.v).copy_(at_inputs.v);
  at::Tensor(at_parts.mixed)
      .copy_(short_convolution_backward(at_convolved, parts.mixed, weights.convolution, lengths,
                                        into.convolution));
  return result;
}

DeltaState DeltaState::zeros(const GatedDeltaShape& shape, at::ScalarType dtype, at::Device device) {
  const auto options =
      at::TensorOptions().device(device).dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return {at::zeros({shape.heads, shape.key_dim, shape.value_dim}, options),
          at::zeros({shape.kernel - 1, shape.channels()}, options)};
}

namespace {

void keep_last_inputs(at::Tensor inputs, const at::Tensor& rows) {
  const int64_t kept = inputs.size(0), fresh = rows.size(0);
  if (fresh < kept) inputs.narrow(0, 0, kept - fresh).copy_(inputs.narrow(0, fresh, kept - fresh).clone());
  const int64_t count = std::min(kept, fresh);
  inputs.narrow(0, kept - count, count).copy_(rows.narrow(0, fresh - count, count));
}

// By libtorch's operators, on any device.
at::Tensor steps_by_chunks(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                           const at::Tensor& projected, const std::vector<DeltaSlice>& slices) {
  const Parts parts = parts_of(shape, projected);
  std::vector<int64_t> lengths;
  std::vector<at::Tensor> past, states;
  for (const DeltaSlice& slice : slices) {
    lengths.push_back(slice.fresh);
    past.push_back(slice.state.inputs);
    states.push_back(slice.state.recurrent);
  }
  const Prepared prepared = prepare(shape, weights, parts, lengths, at::stack(past));
  const DeltaResult mixed = delta_rule(prepared.inputs, lengths, at::stack(states));
  int64_t start = 0;
  for (size_t i = 0; i < slices.size(); start += lengths[i], ++i) {
    at::Tensor(slices[i].state.recurrent).copy_(mixed.states[i][mixed.states[i].size(0) - 1]);
    keep_last_inputs(slices[i].state.inputs, parts.mixed.narrow(0, start, lengths[i]));
  }
  return gated_norm(shape, weights, mixed.output, parts.z);
}

using delta_kernels::kernels;

void convolve(const delta_kernels::Convolution<float>& work) { kernels().convolve(work); }
void convolve(const delta_kernels::Convolution<cpu::Bits>& work) { kernels().convolve_bf16(work); }
void norm_rows(const delta_kernels::GatedNorm<float>& work) { kernels().gated_norm(work); }
void norm_rows(const delta_kernels::GatedNorm<cpu::Bits>& work) { kernels().gated_norm_bf16(work); }

// e^g and β [tokens, heads] f32. Scalar, so that a token's bits do not depend on its place.
struct Gates {
  at::Tensor decay, beta;
};
Gates gates_of(const GatedDeltaWeights& weights, const Parts& parts) {
  const auto in_float = [](const at::Tensor& x) { return x.to(at::kFloat).contiguous(); };
  const at::Tensor a = in_float(parts.a), b = in_float(parts.b), log = in_float(weights.decay_log),
                   bias = in_float(weights.decay_bias);
  const Gates gates{at::empty_like(a), at::empty_like(a)};
  const int64_t heads = a.size(1);
  for (int64_t i = 0; i < a.numel(); ++i) {
    const float x = a.const_data_ptr<float>()[i] + bias.const_data_ptr<float>()[i % heads];
    const float rate = x > 20 ? x : std::log1p(std::exp(x));  // softplus, as libtorch has it
    gates.decay.data_ptr<float>()[i] = std::exp(-std::exp(log.const_data_ptr<float>()[i % heads]) * rate);
    gates.beta.data_ptr<float>()[i] = 1 / (1 + std::exp(-b.const_data_ptr<float>()[i]));
  }
  return gates;
}

template <typename Number>
at::Tensor steps_by_kernel(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                           const at::Tensor& projected, const std::vector<DeltaSlice>& slices) {
  const Parts parts = parts_of(shape, projected);
  const int64_t tokens = projected.size(0), channels = shape.channels(), values = shape.values(),
                keys = shape.keys(), count = static_cast<int64_t>(slices.size());
  const auto options = projected.options().dtype(at::kFloat);
  const at::Tensor convolved = at::empty({tokens, channels}, options),
                   mixed = at::empty({tokens, values}, options),
                   result = at::empty({tokens, values}, projected.options());
  const at::Tensor factors = weights.convolution.to(at::kFloat).t().contiguous();
  const Gates gates = gates_of(weights, parts);
  std::vector<int64_t> starts;
  int64_t start = 0;
  for (const DeltaSlice& slice : slices) starts.push_back(std::exchange(start, start + slice.fresh));

  constexpr int64_t part = 256;  // channels of a thread's share
  const int64_t shares = cpu::parts(channels, part);
  at::parallel_for(0, count * shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const DeltaSlice& slice = slices[static_cast<size_t>(i / shares)];
      const int64_t row = starts[static_cast<size_t>(i / shares)], c = i % shares * part;
      convolve(delta_kernels::Convolution<Number>{
          slice.fresh, std::min(part, channels - c), shape.kernel,
          cpu::numbers<Number>(parts.mixed) + row * parts.mixed.stride(0) + c, parts.mixed.stride(0),
          slice.state.inputs.const_data_ptr<float>() + c, factors.const_data_ptr<float>() + c, channels,
          channels, convolved.data_ptr<float>() + row * channels + c, channels});
    }
  });
  float* const q = convolved.data_ptr<float>();
  at::parallel_for(0, tokens, cpu::row_grain(keys), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels().unit(q + t * channels, shape.key_heads, shape.key_dim, shape.key_dim,
                     static_cast<float>(unit_eps), static_cast<float>(query_factor(shape)));
      kernels().unit(q + t * channels + keys, shape.key_heads, shape.key_dim, shape.key_dim,
                     static_cast<float>(unit_eps), 1.0f);
    }
  });
  const int64_t group = shape.heads / shape.key_heads;
  at::parallel_for(0, count * shape.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const DeltaSlice& slice = slices[static_cast<size_t>(i / shape.heads)];
      const int64_t row = starts[static_cast<size_t>(i / shape.heads)], head = i % shape.heads;
      const float* const of_key_head = q + row * channels + head / group * shape.key_dim;
      kernels().recur({slice.fresh, shape.key_dim, shape.value_dim, of_key_head, of_key_head + keys,
                       q + row * channels + 2 * keys + head * shape.value_dim, channels, channels,
                       gates.decay.const_data_ptr<float>() + row * shape.heads + head,
                       gates.beta.const_data_ptr<float>() + row * shape.heads + head, shape.heads,
                       slice.state.recurrent.data_ptr<float>() + head * shape.key_dim * shape.value_dim,
                       mixed.data_ptr<float>() + row * values + head * shape.value_dim, values});
    }
  });
  at::parallel_for(0, tokens, cpu::row_grain(values), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      norm_rows(delta_kernels::GatedNorm<Number>{
          shape.heads, shape.value_dim, mixed.const_data_ptr<float>() + t * values,
          cpu::numbers<Number>(parts.z) + t * parts.z.stride(0), shape.value_dim,
          cpu::numbers<Number>(weights.norm), static_cast<float>(shape.eps),
          cpu::mutable_numbers<Number>(result) + t * values});
  });
  for (size_t i = 0; i < slices.size(); ++i)
    keep_last_inputs(slices[i].state.inputs, parts.mixed.narrow(0, starts[i], slices[i].fresh));
  return result;
}

}  // namespace

at::Tensor gated_delta_steps(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                             const at::Tensor& projected, const std::vector<DeltaSlice>& slices) {
  if (!cpu::takes(projected)) return steps_by_chunks(shape, weights, projected, slices);
  at::Tensor result;
  cpu::with_number(projected, [&]<typename Number>(Number) {
    result = steps_by_kernel<Number>(shape, weights, projected, slices);
  });
  return result;
}

}  // namespace nlac
