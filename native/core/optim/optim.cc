// One pass over memory each: the norm, the AdamW step (which also refreshes the compute copy and zeroes the
// gradient) and the moving average (which also refreshes its shadow). Tensors on the CPU go through
// kernels.h, all others through libtorch's operators.
#include "core/optim/optim.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/optim/kernels.h"
#include "core/random.h"

namespace nlac {
namespace {

using optim_kernels::Held;

// Elements handed to a kernel at once. Fixed, so that sums do not depend on the number of threads; a block of
// master, moments, gradient and copy fits the second-level cache.
constexpr int64_t block = 16384;
constexpr uint64_t rounding_stream = 0x726F756E64;  // "round" in ASCII

// Blocks of all tensors of a list, numbered through: one parallel loop serves small tensors and large.
struct Blocks {
  std::vector<int64_t> first;  // block number at which tensor i starts; one entry more than tensors

  explicit Blocks(const std::vector<at::Tensor>& tensors) : first{0} {
    for (const at::Tensor& tensor : tensors)
      first.push_back(first.back() + (tensor.numel() + block - 1) / block);
  }
  int64_t count() const { return first.back(); }

  // Calls body(tensor, offset, elements, block number) for each block, on all threads.
  template <typename Body>
  void each(const std::vector<at::Tensor>& tensors, const Body& body) const {
    at::parallel_for(0, count(), 1, [&](int64_t begin, int64_t end) {
      size_t i = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), begin) - first.begin()) - 1;
      for (int64_t b = begin; b < end; ++b) {
        while (b >= first[i + 1]) ++i;
        const int64_t offset = (b - first[i]) * block;
        body(i, offset, std::min(block, tensors[i].numel() - offset), b);
      }
    });
  }
};

bool on_cpu(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.is_cpu(); });
}

Held held_as(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat ? Held::f32 : Held::bf16; }

bool is_f32_or_bf16(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

void check_pair(const char* what, size_t i, const at::Tensor& tensor, const at::Tensor& like) {
  NLAC_REQUIRE(tensor.defined() && tensor.sizes() == like.sizes(), "ERR_SHAPE", what, " ", i, " has shape ",
               tensor.defined() ? tensor.sizes() : at::IntArrayRef{}, ", ", like.sizes(), " expected");
  NLAC_REQUIRE(tensor.device() == like.device(), "ERR_DEVICE", what, " ", i, " is on ", tensor.device(),
               ", not on ", like.device());
  NLAC_REQUIRE(tensor.is_contiguous(), "ERR_SHAPE", what, " ", i, " is not contiguous");
}

char* bytes_at(const at::Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.data_ptr()) + offset * static_cast<int64_t>(tensor.element_size());
}

double global_norm(const std::vector<at::Tensor>& gradients) {
  if (!on_cpu(gradients)) {
    double sum = 0;
    for (const at::Tensor& g : gradients) sum += g.to(at::kDouble).square().sum().item<double>();
    return std::sqrt(sum);
  }
  const auto& kernels = optim_kernels::kernels();
  const Blocks blocks(gradients);
  std::vector<double> sums(static_cast<size_t>(blocks.count()));
  blocks.each(gradients, [&](size_t i, int64_t offset, int64_t count, int64_t b) {
    sums[static_cast<size_t>(b)] = kernels.square_sum(gradients[i].const_data_ptr<float>() + offset, count);
  });
  double sum = 0;
  for (const double s : sums) sum += s;
  return std::sqrt(sum);
}

void zero_all(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.zero_();
}

// The same update by libtorch's operators, for devices that kernels.h does not serve.
void adamw_with_operators(const at::Tensor& w, const at::Tensor& compute, const at::Tensor& g,
                          const at::Tensor& m, const at::Tensor& v, const optim_kernels::AdamWFactors& f) {
  g.mul_(f.clip);
  m.lerp_(g, 1 - f.beta1);
  v.mul_(f.beta2).addcmul_(g, g, 1 - f.beta2);
  const at::Tensor root = v.sqrt().mul_(f.inverse_root_bias).add_(f.epsilon);
  w.mul_(f.decay).addcdiv_(m, root, -f.step);
  if (!compute.is_same(w)) compute.copy_(w);
  g.zero_();
}

// Adds 16 random bits below bf16's last one and cuts: the expectation is the value itself.
void ema_rounded_stochastically(at::BFloat16* target, const at::Tensor& online, int64_t offset, int64_t count,
                                double tau, uint64_t seed, uint64_t step, uint64_t first_counter) {
  const auto online_at = [&](int64_t i) -> double {
    switch (online.scalar_type()) {
      case at::kFloat: return online.const_data_ptr<float>()[offset + i];
      case at::kDouble: return online.const_data_ptr<double>()[offset + i];
      default: return online.const_data_ptr<at::BFloat16>()[offset + i];
    }
  };
  for (int64_t i = 0; i < count; i += 8) {
    const auto words =
        philox(seed ^ rounding_stream, step, first_counter + static_cast<uint64_t>(offset + i) / 8);
    for (int64_t j = i; j < std::min(i + 8, count); ++j) {
      const double before = target[j];
      const auto next = static_cast<float>(before + tau * (online_at(j) - before));
      if (!std::isfinite(next)) {
        target[j] = next;
        continue;
      }
      uint32_t bits;
      std::memcpy(&bits, &next, 4);
      const uint32_t noise = (words[static_cast<size_t>(j - i) / 2] >> (j % 2 * 16)) & 0xFFFFu;
      target[j].x = static_cast<uint16_t>((bits + noise) >> 16);
    }
  }
}

// Any mix of types on any device, without the single pass. A bf16 target off the CPU goes through the CPU, so
// that its rounding is the same everywhere.
void ema_with_operators(const at::Tensor& target, const at::Tensor& online, const at::Tensor& shadow,
                        double tau) {
  target.lerp_(online.to(target.scalar_type()), tau);
  if (shadow.defined()) shadow.copy_(target);
}

}  // namespace

StepResult adamw_step(const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& compute,
                      const std::vector<at::Tensor>& gradients, AdamWState& state,
                      const AdamWOptions& options) {
  const size_t count = masters.size();
  NLAC_REQUIRE(compute.size() == count && gradients.size() == count, "ERR_SHAPE", count, " masters, ",
               compute.size(), " compute copies and ", gradients.size(), " gradients");
  for (size_t i = 0; i < count; ++i) {
    NLAC_REQUIRE(masters[i].scalar_type() == at::kFloat && gradients[i].scalar_type() == at::kFloat,
                 "ERR_SHAPE", "master ", i, " and its gradient must be float32");
    NLAC_REQUIRE(masters[i].is_contiguous(), "ERR_SHAPE", "master ", i, " is not contiguous");
    check_pair("gradient", i, gradients[i], masters[i]);
    check_pair("compute copy", i, compute[i], masters[i]);
  }
  NLAC_REQUIRE(state.m.size() == state.v.size() && (state.m.empty() || state.m.size() == count), "ERR_SHAPE",
               state.m.size(), " moments for ", count, " masters");
  for (size_t i = 0; i < state.m.size(); ++i) {
    check_pair("first moment", i, state.m[i], masters[i]);
    check_pair("second moment", i, state.v[i], masters[i]);
    NLAC_REQUIRE(state.m[i].scalar_type() == at::kFloat && state.v[i].scalar_type() == at::kFloat,
                 "ERR_SHAPE", "moments ", i, " must be float32");
  }
  NLAC_REQUIRE(std::isfinite(options.learning_rate) && options.learning_rate >= 0 && options.beta1 >= 0 &&
                   options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1 && options.epsilon >= 0 &&
                   std::isfinite(options.epsilon) && std::isfinite(options.weight_decay) &&
                   options.weight_decay >= 0 && !std::isnan(options.max_grad_norm),
               "ERR_VALUE", "an AdamW option is out of its range: learning rate ", options.learning_rate,
               ", betas ", options.beta1, " and ", options.beta2, ", epsilon ", options.epsilon,
               ", weight decay ", options.weight_decay, ", largest norm ", options.max_grad_norm);

  at::NoGradGuard no_grad;
  StepResult result;
  result.grad_norm = global_norm(gradients);
  if (!std::isfinite(result.grad_norm)) {
    result.skipped = true;
    zero_all(gradients);
    return result;
  }
  if (state.m.empty()) {
    // Whole or not at all: memory may run out midway.
    std::vector<at::Tensor> m, v;
    for (const at::Tensor& w : masters) {
      m.push_back(at::zeros_like(w));
      v.push_back(at::zeros_like(w));
    }
    state.m = std::move(m);
    state.v = std::move(v);
  }
  ++state.steps;
  const auto t = static_cast<double>(state.steps);
  optim_kernels::AdamWFactors factors{};
  // torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6 too.
  factors.clip = options.max_grad_norm > 0
                     ? static_cast<float>(std::min(1.0, options.max_grad_norm / (result.grad_norm + 1e-6)))
                     : 1.0f;
  factors.beta1 = static_cast<float>(options.beta1);
  factors.beta2 = static_cast<float>(options.beta2);
  factors.step = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t)));
  factors.inverse_root_bias = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t)));
  factors.epsilon = static_cast<float>(options.epsilon);
  const auto decay = static_cast<float>(1 - options.learning_rate * options.weight_decay);

  const bool plain = on_cpu(masters) && std::all_of(compute.begin(), compute.end(), is_f32_or_bf16);
  if (!plain) {
    for (size_t i = 0; i < count; ++i) {
      factors.decay = masters[i].dim() >= 2 ? decay : 1.0f;
      adamw_with_operators(masters[i], compute[i], gradients[i], state.m[i], state.v[i], factors);
    }
    return result;
  }
  const auto& kernels = optim_kernels::kernels();
  Blocks(masters).each(masters, [&](size_t i, int64_t offset, int64_t elements, int64_t) {
    auto own = factors;
    own.decay = masters[i].dim() >= 2 ? decay : 1.0f;
    const bool shared = compute[i].data_ptr() == masters[i].data_ptr();
    kernels.adamw(masters[i].data_ptr<float>() + offset, state.m[i].data_ptr<float>() + offset,
                  state.v[i].data_ptr<float>() + offset, gradients[i].data_ptr<float>() + offset,
                  shared ? nullptr : bytes_at(compute[i], offset), held_as(compute[i]), elements, own);
  });
  return result;
}

void ema_update(const std::vector<at::Tensor>& target, const std::vector<at::Tensor>& online,
                const std::vector<at::Tensor>& shadow, double tau, uint64_t seed, uint64_t step) {
  NLAC_REQUIRE(tau >= 0 && tau <= 1, "ERR_VALUE", "tau must be between 0 and 1, not ", tau);
  NLAC_REQUIRE(online.size() == target.size() && (shadow.empty() || shadow.size() == target.size()),
               "ERR_SHAPE", target.size(), " targets, ", online.size(), " online tensors and ", shadow.size(),
               " shadows");
  for (size_t i = 0; i < target.size(); ++i) {
    NLAC_REQUIRE(target[i].is_contiguous(), "ERR_SHAPE", "target ", i, " is not contiguous");
    check_pair("online tensor", i, online[i], target[i]);
    if (!shadow.empty() && shadow[i].defined()) check_pair("shadow", i, shadow[i], target[i]);
    for (const at::Tensor& tensor : {target[i], online[i]}) {
      NLAC_REQUIRE(is_f32_or_bf16(tensor) || tensor.scalar_type() == at::kDouble, "ERR_VALUE", "tensor ", i,
                   " is ", tensor.scalar_type(), ": a moving average takes float32, bfloat16 and float64");
    }
  }

  at::NoGradGuard no_grad;
  const auto& kernels = optim_kernels::kernels();
  const Blocks blocks(target);
  const auto shadow_of = [&](size_t i) { return shadow.empty() ? at::Tensor() : shadow[i]; };
  // Which tensors the single pass serves: it covers what training uses.
  const auto is_plain = [&](size_t i) {
    return target[i].is_cpu() && target[i].scalar_type() == at::kFloat && is_f32_or_bf16(online[i]) &&
           (!shadow_of(i).defined() || is_f32_or_bf16(shadow_of(i)));
  };
  std::vector<char> plain(target.size());
  for (size_t i = 0; i < target.size(); ++i) plain[i] = is_plain(i);
  blocks.each(target, [&](size_t i, int64_t offset, int64_t elements, int64_t) {
    if (plain[i]) {
      const bool has_shadow = !shadow.empty() && shadow[i].defined();
      kernels.ema(target[i].data_ptr<float>() + offset, bytes_at(online[i], offset), held_as(online[i]),
                  has_shadow ? bytes_at(shadow[i], offset) : nullptr,
                  has_shadow ? held_as(shadow[i]) : Held::f32, elements, static_cast<float>(tau));
    } else if (target[i].is_cpu() && target[i].scalar_type() == at::kBFloat16) {
      // Every tensor starts at a block, so no two elements of a call share a counter.
      ema_rounded_stochastically(target[i].data_ptr<at::BFloat16>() + offset, online[i], offset, elements,
                                 tau, seed, step, static_cast<uint64_t>(blocks.first[i]) * (block / 8));
    }
  });
  for (size_t i = 0; i < target.size(); ++i) {
    if (plain[i]) continue;
    if (target[i].scalar_type() != at::kBFloat16) {
      ema_with_operators(target[i], online[i], shadow_of(i), tau);
      continue;
    }
    if (!target[i].is_cpu()) {
      const at::Tensor here = target[i].cpu(), other = online[i].cpu();
      ema_rounded_stochastically(here.data_ptr<at::BFloat16>(), other, 0, here.numel(), tau, seed, step,
                                 static_cast<uint64_t>(blocks.first[i]) * (block / 8));
      target[i].copy_(here);
    }
    if (shadow_of(i).defined()) shadow_of(i).copy_(target[i]);
  }
}

double relative_distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  NLAC_REQUIRE(a.size() == b.size(), "ERR_SHAPE", a.size(), " tensors against ", b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    NLAC_REQUIRE(a[i].sizes() == b[i].sizes(), "ERR_SHAPE", "tensor ", i, " has shape ", a[i].sizes(), ", ",
                 b[i].sizes(), " expected");
    // In pieces, so that the float64 copies stay small.
    const at::Tensor left = a[i].reshape({-1}), right = b[i].reshape({-1});
    constexpr int64_t piece = int64_t{1} << 20;
    for (int64_t at = 0; at < left.numel(); at += piece) {
      const int64_t length = std::min(piece, left.numel() - at);
      const at::Tensor r = right.narrow(0, at, length).to(at::kDouble);
      difference += (left.narrow(0, at, length).to(at::kDouble) - r).square().sum().item<double>();
      size += r.square().sum().item<double>();
    }
  }
  return difference == 0 ? 0 : std::sqrt(difference) / std::sqrt(size);
}

}  // namespace nlac
