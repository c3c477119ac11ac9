#include "core/model/elementwise.h"

#include <ATen/Parallel.h>

#include "core/cpu/delta_kernels.h"
#include "core/cpu/shares.h"
#include "core/cpu/tensors.h"
#include "core/model/cuda_elementwise.h"

namespace nlac {
namespace {

// The type of intermediate results: float32, or float64 if the model is float64.
at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return x.square().mean(-1, true).add_(eps).rsqrt_();
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const Norm& norm) {
  const double eps = norm.eps;
  const bool fits = x.scalar_type() == at::kFloat || x.scalar_type() == weight.scalar_type();
  if (gpu::takes(weight) && fits) {
    const at::Tensor result = at::empty(x.sizes(), weight.options());
    gpu::rms_norm_heads(x, weight, norm, result);
    return result;
  }
  if (cpu::takes(weight) && fits) {
    const at::Tensor rows = x.contiguous(), result = at::empty(x.sizes(), weight.options());
    cpu::with_number(weight, [&]<typename Number>(Number) {
      const auto run = [&](const auto* values) {
        cpu::rms_norm(values, x.numel() / x.size(-1), x.size(-1), cpu::numbers<Number>(weight), norm.plus_one,
                      static_cast<float>(eps), cpu::mutable_numbers<Number>(result));
      };
      if (x.scalar_type() == at::kFloat)
        run(rows.const_data_ptr<float>());
      else
        run(cpu::numbers<Number>(rows));
    });
    return result;
  }
  const at::Tensor values = x.to(wide(x));
  const at::Tensor normalised = values * inverse_rms(values, eps);
  if (norm.plus_one) return (normalised * (weight.to(wide(x)) + 1)).to(weight.scalar_type());
  return normalised.to(weight.scalar_type()) * weight;
}

void rms_norm_heads(const at::Tensor& x, const at::Tensor& weight, const Norm& norm, at::Tensor y) {
  if (gpu::takes(weight) && x.scalar_type() == weight.scalar_type())
    return gpu::rms_norm_heads(x, weight, norm, y);
  if (!cpu::takes(weight) || x.scalar_type() != weight.scalar_type()) {
    y.copy_(rms_norm(x, weight, norm));
    return;
  }
  const int64_t heads = x.size(1), n = x.size(2);
  const bool adjacent = heads == 1 || (x.stride(1) == n && y.stride(1) == n);
  const int64_t together = adjacent ? heads : 1;
  cpu::with_number(weight, [&]<typename Number>(Number) {
    at::parallel_for(0, x.size(0), cpu::row_grain(heads * n), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < heads; h += together)
          cpu::rms_norm(cpu::numbers<Number>(x) + t * x.stride(0) + h * x.stride(1), together, n,
                        cpu::numbers<Number>(weight), norm.plus_one, static_cast<float>(norm.eps),
                        cpu::mutable_numbers<Number>(y) + t * y.stride(0) + h * y.stride(1));
    });
  });
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const Norm& norm, at::Tensor grad_weight, const at::Tensor& residual) {
  const double eps = norm.eps;
  if (gpu::takes(x) && grad.scalar_type() == x.scalar_type() && weight.scalar_type() == x.scalar_type())
    return gpu::rms_norm_backward(grad, x, weight, norm, grad_weight, residual);
  if (cpu::takes(x)) {
    const at::Tensor upstream = grad.contiguous(), rows = x.contiguous();
    const at::Tensor added = residual.defined() ? residual.contiguous() : residual;
    const at::Tensor result = at::empty(x.sizes(), x.options());
    cpu::with_number(x, [&]<typename Number>(Number) {
      cpu::rms_norm_backward(cpu::numbers<Number>(upstream), cpu::numbers<Number>(rows),
                             cpu::numbers<Number>(added), x.numel() / x.size(-1), x.size(-1),
                             cpu::numbers<Number>(weight), norm.plus_one, static_cast<float>(eps),
                             cpu::mutable_numbers<Number>(result),
                             grad_weight.defined() ? grad_weight.data_ptr<float>() : nullptr);
    });
    return result;
  }
  const at::Tensor values = x.to(wide(x)), upstream = grad.to(wide(x));
  const at::Tensor scale = inverse_rms(values, eps);
  const at::Tensor normalised = values * scale;
  if (grad_weight.defined()) grad_weight.add_((upstream * normalised).reshape({-1, x.size(-1)}).sum(0));
  at::Tensor factor = weight.to(wide(x));
  if (norm.plus_one) factor = factor + 1;
  const at::Tensor direct = upstream * factor;
  const at::Tensor along = (direct * normalised).mean(-1, true);
  at::Tensor result = (direct - normalised * along) * scale;
  if (residual.defined()) result.add_(residual);
  return result.to(x.scalar_type());
}

void rotate(at::Tensor x, const Rope& rope, const at::Tensor& positions, bool inverse) {
  if (gpu::takes(x)) return gpu::rotate(x, rope, positions, inverse);
  const int64_t half = rope.cos.size(1);
  if (2 * half < x.size(-1)) {
    at::Tensor part = x.narrow(-1, 0, 2 * half);
    const at::Tensor turned = part.contiguous();
    rotate(turned, rope, positions, inverse);
    part.copy_(turned);
    return;
  }
  if (cpu::takes(x)) {
    cpu::with_number(x, [&]<typename Number>(Number) {
      cpu::rotate(cpu::mutable_numbers<Number>(x), x.size(0), x.stride(0), x.size(1), half,
                  rope.cos.const_data_ptr<float>(), rope.sin.const_data_ptr<float>(),
                  positions.const_data_ptr<int64_t>(), inverse ? -1.0f : 1.0f);
    });
    return;
  }
  const at::Tensor cos = rope.cos.index_select(0, positions).unsqueeze(1).to(wide(x));
  at::Tensor sin = rope.sin.index_select(0, positions).unsqueeze(1).to(wide(x));
  if (inverse) sin = sin.neg();
  at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  const at::Tensor a = low.to(wide(x), false, true), b = high.to(wide(x), false, true);
  low.copy_(a * cos - b * sin);
  high.copy_(b * cos + a * sin);
}

at::Tensor gate_by_sigmoid(const at::Tensor& x, const at::Tensor& gate) {
  if (!cpu::takes(x)) return (x.to(wide(x)) * at::sigmoid(gate.to(wide(x)))).to(x.scalar_type());
  const at::Tensor rows = x.contiguous(), result = at::empty(x.sizes(), x.options());
  const int64_t tokens = x.size(0), heads = x.size(1), n = x.size(2);
  cpu::with_number(x, [&]<typename Number>(Number) {
    at::parallel_for(0, tokens, cpu::row_grain(heads * n), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        delta_kernels::gate(cpu::numbers<Number>(rows) + t * heads * n,
                            cpu::numbers<Number>(gate) + t * gate.stride(0), gate.stride(1), heads, n,
                            cpu::mutable_numbers<Number>(result) + t * heads * n);
    });
  });
  return result;
}

at::Tensor gate_by_sigmoid_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& gate) {
  const at::Tensor s = at::sigmoid(gate.to(wide(x)));
  return (grad.to(wide(x)) * x * s * (1 - s)).to(x.scalar_type());
}

at::Tensor gated_silu(const at::Tensor& gate_up) {
  if (gpu::takes(gate_up)) return gpu::gated(gate_up, Activation::silu);
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  if (cpu::takes(gate_up)) {
    const at::Tensor result = at::empty({rows, n}, gate_up.options());
    cpu::with_number(gate_up, [&]<typename Number>(Number) {
      cpu::gated_silu(cpu::numbers<Number>(gate_up), rows, n, cpu::mutable_numbers<Number>(result));
    });
    return result;
  }
  return at::silu(gate_up.narrow(1, 0, n)).mul_(gate_up.narrow(1, n, n));
}

at::Tensor gated_silu_backward(const at::Tensor& grad, const at::Tensor& gate_up) {
  if (gpu::takes(gate_up)) return gpu::gated_backward(grad, gate_up, Activation::silu);
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  at::Tensor result = at::empty_like(gate_up);
  if (cpu::takes(gate_up)) {
    const at::Tensor upstream = grad.contiguous();
    cpu::with_number(gate_up, [&]<typename Number>(Number) {
      cpu::gated_silu_backward(cpu::numbers<Number>(upstream), cpu::numbers<Number>(gate_up), rows, n,
                               cpu::mutable_numbers<Number>(result));
    });
    return result;
  }
  const at::Tensor gate = gate_up.narrow(1, 0, n), up = gate_up.narrow(1, n, n);
  result.narrow(1, 0, n).copy_(at::silu_backward(grad * up, gate));
  result.narrow(1, n, n).copy_(grad * at::silu(gate));
  return result;
}

at::Tensor gated(const at::Tensor& gate_up, Activation activation) {
  if (activation == Activation::silu) return gated_silu(gate_up);
  if (gpu::takes(gate_up)) return gpu::gated(gate_up, activation);
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  if (cpu::takes(gate_up)) {
    const at::Tensor result = at::empty({rows, n}, gate_up.options());
    cpu::with_number(gate_up, [&]<typename Number>(Number) {
      cpu::gated_gelu(cpu::numbers<Number>(gate_up), rows, n, cpu::mutable_numbers<Number>(result));
    });
    return result;
  }
  return at::gelu(gate_up.narrow(1, 0, n), "tanh").mul_(gate_up.narrow(1, n, n));
}

at::Tensor gated_backward(const at::Tensor& grad, const at::Tensor& gate_up, Activation activation) {
  if (activation == Activation::silu) return gated_silu_backward(grad, gate_up);
  if (gpu::takes(gate_up)) return gpu::gated_backward(grad, gate_up, activation);
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  const at::Tensor result = at::empty_like(gate_up);
  if (cpu::takes(gate_up)) {
    const at::Tensor upstream = grad.contiguous();
    cpu::with_number(gate_up, [&]<typename Number>(Number) {
      cpu::gated_gelu_backward(cpu::numbers<Number>(upstream), cpu::numbers<Number>(gate_up), rows, n,
                               cpu::mutable_numbers<Number>(result));
    });
    return result;
  }
  const at::Tensor gate = gate_up.narrow(1, 0, n), up = gate_up.narrow(1, n, n);
  result.narrow(1, 0, n).copy_(at::gelu_backward(grad * up, gate, "tanh"));
  result.narrow(1, n, n).copy_(grad * at::gelu(gate, "tanh"));
  return result;
}

namespace {

// Clamped pairs of gate and up, in wide precision, and the gate's share σ(alpha c).
struct Clamped {
  at::Tensor gate, up, c, share, clamped;
  Clamped(const at::Tensor& gate_up, double limit, double alpha) {
    const at::Tensor pairs = gate_up.to(wide(gate_up)).unflatten(-1, {-1, 2});
    gate = pairs.select(-1, 0), up = pairs.select(-1, 1);
    c = gate.clamp_max(limit), clamped = up.clamp(-limit, limit);
    share = at::sigmoid(c * alpha);
  }
};

}  // namespace

at::Tensor clamped_gate(const at::Tensor& gate_up, double limit, double alpha) {
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  if (cpu::takes(gate_up)) {
    const at::Tensor result = at::empty({rows, n}, gate_up.options());
    cpu::with_number(gate_up, [&]<typename Number>(Number) {
      cpu::clamped_gate(cpu::numbers<Number>(gate_up), rows, n, static_cast<float>(limit),
                        static_cast<float>(alpha), cpu::mutable_numbers<Number>(result));
    });
    return result;
  }
  const Clamped of(gate_up, limit, alpha);
  return (of.c * of.share * (of.clamped + 1)).to(gate_up.scalar_type());
}

at::Tensor clamped_gate_backward(const at::Tensor& grad, const at::Tensor& gate_up, double limit,
                                 double alpha) {
  const int64_t rows = gate_up.size(0), n = gate_up.size(1) / 2;
  if (cpu::takes(gate_up)) {
    const at::Tensor upstream = grad.contiguous(), result = at::empty_like(gate_up);
    cpu::with_number(gate_up, [&]<typename Number>(Number) {
      cpu::clamped_gate_backward(cpu::numbers<Number>(upstream), cpu::numbers<Number>(gate_up), rows, n,
                                 static_cast<float>(limit), static_cast<float>(alpha),
                                 cpu::mutable_numbers<Number>(result));
    });
    return result;
  }
  const Clamped of(gate_up, limit, alpha);
  const at::Tensor upstream = grad.to(wide(gate_up)), &s = of.share;
  const at::Tensor slope = s + of.c * alpha * s * (1 - s);
  const at::Tensor at_gate = (upstream * (of.clamped + 1) * slope).masked_fill_(of.gate > limit, 0),
                   at_up = (upstream * of.c * s).masked_fill_(of.up.abs() > limit, 0);
  return at::stack({at_gate, at_up}, -1).flatten(-2).to(gate_up.scalar_type());
}

}  // namespace nlac
