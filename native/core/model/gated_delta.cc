#include "core/model/gated_delta.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cpu/delta_kernels.h"
#include "core/cpu/shares.h"
#include "core/cpu/tensors.h"
#include "core/error.h"
#include "core/model/cuda_delta.h"
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
double query_factor(const GatedDeltaShape& shape) {
  return 1.0 / std::sqrt(static_cast<double>(shape.key_dim));
}

using delta_kernels::kernels;

// x [tokens, heads, n] with adjacent heads → each head of length `factor`, contiguous.
at::Tensor unit(const at::Tensor& x, double factor) {
  if (x.scalar_type() != at::kFloat || !x.is_cpu()) return x * inverse_length(x) * factor;
  const int64_t heads = x.size(1), n = x.size(2);
  const at::Tensor y = at::empty(x.sizes(), x.options());
  at::parallel_for(0, x.size(0), cpu::row_grain(heads * n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const row = y.data_ptr<float>() + t * heads * n;
      std::copy_n(x.const_data_ptr<float>() + t * x.stride(0), heads * n, row);
      kernels().unit(row, heads, n, n, static_cast<float>(unit_eps), static_cast<float>(factor));
    }
  });
  return y;
}
// Writes the gradient at x to `at_x`, given that at the result; strides as x's.
void unit_backward(const at::Tensor& grad, const at::Tensor& x, double factor, at::Tensor at_x) {
  if (x.scalar_type() != at::kFloat || !x.is_cpu()) {
    const at::Tensor scale = inverse_length(x), direction = x * scale;
    at_x.copy_((grad - direction * (direction * grad).sum(-1, true)).mul_(scale).mul_(factor));
    return;
  }
  const int64_t heads = x.size(1), n = x.size(2);
  const at::Tensor upstream = grad.contiguous();
  at::parallel_for(0, x.size(0), cpu::row_grain(heads * n), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      kernels().unit_backward(upstream.const_data_ptr<float>() + t * heads * n,
                              x.const_data_ptr<float>() + t * x.stride(0), heads, n, n,
                              static_cast<float>(unit_eps), static_cast<float>(factor),
                              at_x.data_ptr<float>() + t * at_x.stride(0));
  });
}

// The delta rule's inputs, with what backward reads again.
struct Prepared {
  at::Tensor convolved;  // [tokens, channels]
  at::Tensor rate;       // softplus(a + decay_bias) [tokens, heads]
  DeltaInputs inputs;
};
Prepared prepare(const GatedDeltaShape& shape, const GatedDeltaWeights& weights, const Parts& parts,
                 const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& past = {}) {
  Prepared result;
  const auto type = wide(parts.mixed);
  result.convolved = short_convolution(parts.mixed, weights.convolution, lengths, past);
  const Heads heads = heads_of(shape, result.convolved);
  result.rate = at::softplus(parts.a.to(type) + weights.decay_bias.to(type));
  result.inputs = {unit(heads.q, query_factor(shape)), unit(heads.k, 1), heads.v,
                   weights.decay_log.to(type).exp().neg() * result.rate, at::sigmoid(parts.b.to(type))};
  return result;
}

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return x.square().mean(-1, true).add_(eps).rsqrt_();
}

// The kernels' norm of token t, without a result. x [tokens, heads, value_dim] f32, contiguous.
template <typename Number>
delta_kernels::GatedNorm<Number> norm_of(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                                         const at::Tensor& x, const at::Tensor& z, int64_t t) {
  return {shape.heads,
          shape.value_dim,
          x.const_data_ptr<float>() + t * shape.values(),
          cpu::numbers<Number>(z) + t * z.stride(0),
          shape.value_dim,
          cpu::numbers<Number>(weights.norm),
          static_cast<float>(shape.eps),
          nullptr};
}

// x [tokens, heads, value_dim] → [tokens, values] of z's type.
at::Tensor gated_norm(const GatedDeltaShape& shape, const GatedDeltaWeights& weights, const at::Tensor& x,
                      const at::Tensor& z) {
  if (cpu::takes(z)) {
    const at::Tensor result = at::empty({x.size(0), shape.values()}, z.options());
    cpu::with_number(z, [&]<typename Number>(Number) {
      at::parallel_for(0, x.size(0), cpu::row_grain(shape.values()), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          auto work = norm_of<Number>(shape, weights, x, z, t);
          work.y = cpu::mutable_numbers<Number>(result) + t * shape.values();
          delta_kernels::gated_norm(work);
        }
      });
    });
    return result;
  }
  const auto type = wide(z);
  return (x * inverse_rms(x, shape.eps))
      .mul_(weights.norm.to(type))
      .mul_(at::silu(z.to(type)))
      .flatten(1)
      .to(z.scalar_type());
}

// Returns the gradient at x, given that at the result [tokens, values]; writes that at z, whose
// strides are z's, and adds that at the weight to `into` (undefined: not computed).
at::Tensor gated_norm_backward(const at::Tensor& grad, const GatedDeltaShape& shape,
                               const GatedDeltaWeights& weights, const at::Tensor& x, const at::Tensor& z,
                               at::Tensor at_z, at::Tensor into) {
  if (cpu::takes(z)) {
    constexpr int64_t block = 64;  // tokens whose weight gradients are summed together
    const int64_t tokens = x.size(0), blocks = cpu::parts(tokens, block);
    const at::Tensor upstream = grad.contiguous(), at_x = at::empty(x.sizes(), x.options()),
                     sums = at::zeros({blocks, shape.value_dim}, x.options());
    cpu::with_number(z, [&]<typename Number>(Number) {
      at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin * block; t < std::min(tokens, end * block); ++t)
          delta_kernels::gated_norm_backward(delta_kernels::GatedNormBackward<Number>{
              norm_of<Number>(shape, weights, x, z, t), cpu::numbers<Number>(upstream) + t * shape.values(),
              at_x.data_ptr<float>() + t * shape.values(),
              cpu::mutable_numbers<Number>(at_z) + t * at_z.stride(0),
              into.defined() ? sums.data_ptr<float>() + t / block * shape.value_dim : nullptr});
      });
    });
    if (into.defined()) into.add_(sums.sum(0));
    return at_x;
  }
  const auto type = wide(z);
  const at::Tensor scale = inverse_rms(x, shape.eps), normed = x * scale;
  const at::Tensor gates = z.to(type), gate = at::silu(gates), weight = weights.norm.to(type);
  const at::Tensor upstream = grad.unflatten(1, {shape.heads, shape.value_dim}).to(type);
  at_z.copy_(at::silu_backward(upstream * normed * weight, gates));
  if (into.defined()) into.add_((upstream * normed * gate).flatten(0, 1).sum(0));
  const at::Tensor at_normed = upstream * weight * gate;
  return (at_normed - normed * (at_normed * normed).mean(-1, true)).mul_(scale);
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

  const at::Tensor at_x =
      gated_norm_backward(grad, shape, weights, rule.output, parts.z, at_parts.z, into.norm);
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
  unit_backward(at_inputs.q, heads.q, query_factor(shape), at_heads.q);
  unit_backward(at_inputs.k, heads.k, 1, at_heads.k);
  at::Tensor(at_heads.v).copy_(at_inputs.v);
  short_convolution_backward(at_convolved, parts.mixed, weights.convolution, lengths, at_parts.mixed,
                             into.convolution);
  return result;
}

DeltaState DeltaState::zeros(const GatedDeltaShape& shape, at::ScalarType dtype, at::Device device) {
  const auto options =
      at::TensorOptions().device(device).dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return {at::zeros({shape.heads, shape.key_dim, shape.value_dim}, options),
          at::zeros({shape.kernel - 1, shape.channels()}, options)};
}

namespace {

// inputs [kernel - 1, channels] ← the last of itself and `rows` [fresh, channels].
void keep_last_inputs(at::Tensor inputs, const at::Tensor& rows) {
  const int64_t kept = inputs.size(0), fresh = rows.size(0), channels = inputs.size(1);
  if (cpu::takes(rows)) {  // far fewer instructions than libtorch's operators take for one row
    float* const to = inputs.data_ptr<float>();
    if (fresh < kept) std::copy(to + fresh * channels, to + kept * channels, to);
    const int64_t count = std::min(kept, fresh);
    const cpu::Kernels& all = *cpu::all_kernels().front();
    const auto widen = [&](const auto& of_number, const auto* from) {
      of_number.widen(from + (fresh - count) * rows.stride(0), rows.stride(0), count, channels,
                      to + (kept - count) * channels);
    };
    if (rows.scalar_type() == at::kFloat)
      widen(all.f32, cpu::numbers<float>(rows));
    else
      widen(all.bf16, cpu::numbers<cpu::Bits>(rows));
    return;
  }
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
  const Prepared prepared = prepare(shape, weights, parts, lengths, past);
  const DeltaResult mixed = delta_rule(prepared.inputs, lengths, at::stack(states));
  int64_t start = 0;
  for (size_t i = 0; i < slices.size(); start += lengths[i], ++i) {
    at::Tensor(slices[i].state.recurrent).copy_(mixed.last[i]);
    keep_last_inputs(slices[i].state.inputs, parts.mixed.narrow(0, start, lengths[i]));
  }
  return gated_norm(shape, weights, mixed.output, parts.z);
}

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
  at::parallel_for(0, a.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float x = a.const_data_ptr<float>()[i] + bias.const_data_ptr<float>()[i % heads];
      const float rate = x > 20 ? x : std::log1p(std::exp(x));  // softplus, as libtorch has it
      gates.decay.data_ptr<float>()[i] = std::exp(-std::exp(log.const_data_ptr<float>()[i % heads]) * rate);
      gates.beta.data_ptr<float>()[i] = 1 / (1 + std::exp(-b.const_data_ptr<float>()[i]));
    }
  });
  return gates;
}

at::Tensor steps_by_kernel(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                           const at::Tensor& projected, const std::vector<DeltaSlice>& slices) {
  const Parts parts = parts_of(shape, projected);
  const int64_t tokens = projected.size(0), channels = shape.channels(), values = shape.values(),
                keys = shape.keys(), count = static_cast<int64_t>(slices.size());
  std::vector<int64_t> starts, lengths;
  std::vector<at::Tensor> past;
  int64_t start = 0;
  for (const DeltaSlice& slice : slices) {
    starts.push_back(std::exchange(start, start + slice.fresh));
    lengths.push_back(slice.fresh);
    past.push_back(slice.state.inputs);
  }
  const at::Tensor convolved = short_convolution(parts.mixed, weights.convolution, lengths, past),
                   mixed = at::empty({tokens, shape.heads, shape.value_dim}, convolved.options());
  const Gates gates = gates_of(weights, parts);
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
  for (size_t i = 0; i < slices.size(); ++i)
    keep_last_inputs(slices[i].state.inputs, parts.mixed.narrow(0, starts[i], slices[i].fresh));
  return gated_norm(shape, weights, mixed, parts.z);
}

}  // namespace

at::Tensor gated_delta_steps(const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                             const at::Tensor& projected, const std::vector<DeltaSlice>& slices) {
  if (gpu::takes_delta(shape, weights, projected)) return gpu::delta_steps(shape, weights, projected, slices);
  if (!cpu::takes(projected)) return steps_by_chunks(shape, weights, projected, slices);
  return steps_by_kernel(shape, weights, projected, slices);
}

}  // namespace nlac
