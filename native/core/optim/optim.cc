// Each of these takes one pass over memory: the norm, the AdamW step (which also updates the
// compute copy, zeroes the gradient and may update the moving average) and the moving average
// (which also updates its shadow). On the CPU by kernels.h, on a GPU by cuda/, otherwise by
// libtorch's operators.
#include "core/optim/optim.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "core/error.h"
#include "core/optim/kernels.h"
#include "core/optim/memory.h"
#ifdef NLAC_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/cuda_error.h"
#include "cuda/adamw.h"
#include "cuda/ema.h"
#endif

namespace nlac {
namespace {

using optim_kernels::Held;
using Tensors = std::vector<at::Tensor>;

// Elements of one kernel call. Fixed, so that sums do not depend on the number of threads. A step's
// data of a block fit the L2 cache, where the moving average reads the master again.
constexpr int64_t block = 8192;
constexpr uint64_t rounding_stream = 0x726F756E64;  // "round" in ASCII

// Blocks of all tensors of a list, numbered consecutively: one parallel loop serves small and large
// tensors.
struct Blocks {
  std::vector<int64_t> first;  // block number at which tensor i starts; one entry more than tensors

  explicit Blocks(const Tensors& tensors) : first{0} {
    for (const at::Tensor& tensor : tensors)
      first.push_back(first.back() + (tensor.numel() + block - 1) / block);
  }
  int64_t count() const { return first.back(); }

  // Calls body(tensor, offset, elements, block number) for each block, on all threads.
  template <typename Body>
  void each(const Tensors& tensors, const Body& body) const {
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

// --- checks --------------------------------------------------------------------------------------

bool is_f32(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }
bool is_bf16(const at::Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }
bool is_f64(const at::Tensor& tensor) { return tensor.scalar_type() == at::kDouble; }
Held held_as(const at::Tensor& tensor) { return is_f32(tensor) ? Held::f32 : Held::bf16; }

void check_pair(const char* what, size_t i, const at::Tensor& tensor, const at::Tensor& like) {
  NLAC_REQUIRE(tensor.defined() && tensor.sizes() == like.sizes(), "ERR_SHAPE", what, " ", i, " has shape ",
               tensor.defined() ? tensor.sizes() : at::IntArrayRef{}, ", ", like.sizes(), " expected");
  NLAC_REQUIRE(tensor.device() == like.device(), "ERR_DEVICE", what, " ", i, " is on ", tensor.device(),
               ", not on ", like.device());
  NLAC_REQUIRE(tensor.is_contiguous(), "ERR_SHAPE", what, " ", i, " is not contiguous");
}

// Checks a pair of tensors of two lists.
void check_leading(const char* what, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    NLAC_REQUIRE(tensors[i].defined() && tensors[i].is_contiguous(), "ERR_SHAPE", what, " ", i,
                 " is not contiguous");
    NLAC_REQUIRE(tensors[i].device() == tensors[0].device(), "ERR_DEVICE", what, " ", i, " is on ",
                 tensors[i].device(), ", the first is on ", tensors[0].device());
  }
}

void check_target_rate(double target_rate) {
  NLAC_REQUIRE(target_rate >= 0 && target_rate <= 1, "ERR_VALUE",
               "the target rate must be between 0 and 1, not ", target_rate);
}

void check_options(const AdamWOptions& options) {
  // A step computes in float32. There an epsilon of 0 would make a parameter without gradients NaN,
  // and a beta of 1 would keep its moment at 0.
  const auto is_beta = [](double beta) { return beta >= 0 && static_cast<float>(beta) < 1; };
  NLAC_REQUIRE(std::isfinite(options.learning_rate) && options.learning_rate >= 0 && is_beta(options.beta1) &&
                   is_beta(options.beta2) && static_cast<float>(options.epsilon) > 0 &&
                   std::isfinite(options.epsilon) && std::isfinite(options.weight_decay) &&
                   options.weight_decay >= 0 && !std::isnan(options.max_grad_norm),
               "ERR_VALUE", "an AdamW option is out of its range: learning rate ", options.learning_rate,
               ", betas ", options.beta1, " and ", options.beta2, ", epsilon ", options.epsilon,
               ", weight decay ", options.weight_decay, ", largest norm ", options.max_grad_norm);
}

void check_step(const Tensors& masters, const Tensors& compute, const Tensors& gradients,
                const AdamWMoments& moments, const TargetUpdate* update) {
  const size_t count = masters.size();
  NLAC_REQUIRE(compute.size() == count && gradients.size() == count, "ERR_SHAPE", count, " masters, ",
               compute.size(), " compute copies and ", gradients.size(), " gradients");
  check_leading("master", masters);
  for (size_t i = 0; i < count; ++i) {
    check_pair("gradient", i, gradients[i], masters[i]);
    check_pair("compute copy", i, compute[i], masters[i]);
    NLAC_REQUIRE(is_f32(masters[i]) && is_f32(gradients[i]), "ERR_SHAPE", "master ", i,
                 " and its gradient must be float32");
  }
  NLAC_REQUIRE(moments.m.size() == moments.v.size() && (moments.m.empty() || moments.m.size() == count),
               "ERR_SHAPE", moments.m.size(), " moments for ", count, " masters");
  for (size_t i = 0; i < moments.m.size(); ++i) {
    check_pair("first moment", i, moments.m[i], masters[i]);
    check_pair("second moment", i, moments.v[i], masters[i]);
    NLAC_REQUIRE(is_f32(moments.m[i]) && is_f32(moments.v[i]), "ERR_SHAPE", "moments ", i,
                 " must be float32");
  }
  Memory memory;
  for (size_t i = 0; i < count; ++i) {
    memory.writes("master", i, masters[i]);
    memory.writes("gradient", i, gradients[i]);
    if (!same_memory(compute[i], masters[i])) memory.writes("compute copy", i, compute[i]);
    if (moments.m.empty()) continue;
    memory.writes("first moment", i, moments.m[i]);
    memory.writes("second moment", i, moments.v[i]);
  }
  if (update == nullptr) return memory.check();
  check_target_rate(update->target_rate);
  NLAC_REQUIRE(update->target.size() == count && (update->shadow.empty() || update->shadow.size() == count),
               "ERR_SHAPE", count, " masters, ", update->target.size(), " targets and ",
               update->shadow.size(), " shadows");
  for (size_t i = 0; i < count; ++i) {
    check_pair("target", i, update->target[i], masters[i]);
    NLAC_REQUIRE(is_f32(update->target[i]), "ERR_SHAPE", "target ", i, " must be float32");
    memory.writes("target", i, update->target[i]);
    if (update->shadow.empty()) continue;
    check_pair("shadow", i, update->shadow[i], masters[i]);
    NLAC_REQUIRE(is_f32(update->shadow[i]) || is_bf16(update->shadow[i]), "ERR_SHAPE", "shadow ", i,
                 " must be float32 or bfloat16");
    if (!same_memory(update->shadow[i], update->target[i])) memory.writes("shadow", i, update->shadow[i]);
  }
  memory.check();
}

// --- AdamW ---------------------------------------------------------------------------------------

// Views of a tensor's elements, at most `length` each, so that copies of them in float64 stay small.
std::vector<at::Tensor> pieces_of(const at::Tensor& tensor, int64_t length) {
  return tensor.reshape({-1}).split(length);
}

double global_norm(const Tensors& gradients) {
  double sum = 0;
  if (!gradients.empty() && !gradients[0].is_cpu()) {
    const at::Tensor squares = at::zeros({}, gradients[0].options().dtype(at::kDouble));
    for (const at::Tensor& g : gradients)
      for (const at::Tensor& piece : pieces_of(g, int64_t{1} << 22))
        squares.add_(piece.to(at::kDouble).square().sum());
    return std::sqrt(squares.item<double>());
  }
  const auto& kernels = optim_kernels::kernels();
  const Blocks blocks(gradients);
  std::vector<double> sums(static_cast<size_t>(blocks.count()));
  blocks.each(gradients, [&](size_t i, int64_t offset, int64_t count, int64_t b) {
    sums[static_cast<size_t>(b)] = kernels.square_sum(gradients[i].const_data_ptr<float>() + offset, count);
  });
  for (const double s : sums) sum += s;
  return std::sqrt(sum);
}

// The other ranks wait for this one's part, also if there is no memory to compute it. They get NaN then,
// with which no rank takes the step.
double norm_over_ranks(const Tensors& gradients, const SumOverRanks& sum_over_ranks) {
  if (!sum_over_ranks) return global_norm(gradients);
  double own = std::numeric_limits<double>::quiet_NaN();
  std::exception_ptr failure;
  try {
    own = global_norm(gradients);
  } catch (...) {
    failure = std::current_exception();
  }
  const double sum = sum_over_ranks(own * own);
  if (failure) std::rethrow_exception(failure);
  return std::sqrt(sum);
}

// The tensors and factors of a step. `factors` has neither clip nor decay.
struct Step {
  const Tensors &masters, &compute, &gradients, &m, &v;
  const TargetUpdate* update;
  AdamWFactors factors;
  float decay;  // of matrices
  double max_grad_norm;

  float decay_of(size_t i) const { return masters[i].dim() >= 2 ? decay : 1.0f; }
  at::Tensor shadow_of(size_t i) const {
    if (update == nullptr || update->shadow.empty()) return {};
    return same_memory(update->shadow[i], update->target[i]) ? at::Tensor() : update->shadow[i];
  }
};

float clip_factor(double norm, double max_grad_norm) {
  // torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6 too.
  return max_grad_norm > 0 ? static_cast<float>(std::min(1.0, max_grad_norm / (norm + 1e-6))) : 1.0f;
}

// Calls `begin` once all memory is there, before anything changes.
void step_on_cpu(const Step& step, const std::function<void()>& begin) {
  const auto& kernels = optim_kernels::kernels();
  const Blocks blocks(step.masters);
  begin();
  const auto floats = [](const at::Tensor& tensor, int64_t offset) {
    return tensor.data_ptr<float>() + offset;
  };
  blocks.each(step.masters, [&](size_t i, int64_t offset, int64_t elements, int64_t) {
    auto own = step.factors;
    own.decay = step.decay_of(i);
    const at::Tensor &master = step.masters[i], &compute = step.compute[i];
    kernels.adamw(floats(master, offset), floats(step.m[i], offset), floats(step.v[i], offset),
                  floats(step.gradients[i], offset),
                  same_memory(compute, master) ? nullptr : bytes_at(compute, offset), held_as(compute),
                  elements, own);
    if (step.update == nullptr) return;
    const at::Tensor shadow = step.shadow_of(i);
    kernels.ema(floats(step.update->target[i], offset), floats(master, offset), Held::f32,
                shadow.defined() ? bytes_at(shadow, offset) : nullptr,
                shadow.defined() ? held_as(shadow) : Held::f32, elements,
                static_cast<float>(step.update->target_rate));
  });
}

// The same update by libtorch's operators, for compute copies of other types and other devices.
void step_with_operators(const Step& step) {
  const AdamWFactors& f = step.factors;
  for (size_t i = 0; i < step.masters.size(); ++i) {
    const at::Tensor &w = step.masters[i], &m = step.m[i], &v = step.v[i], &g = step.gradients[i];
    g.mul_(f.clip);
    m.lerp_(g, 1 - f.beta1);
    v.mul_(f.beta2).addcmul_(g, g, 1 - f.beta2);
    const at::Tensor root = v.sqrt().mul_(f.inverse_root_bias).add_(f.epsilon);
    w.mul_(step.decay_of(i)).addcdiv_(m, root, -f.step);
    if (!same_memory(step.compute[i], w)) step.compute[i].copy_(w);
    g.zero_();
    if (step.update == nullptr) continue;
    step.update->target[i].lerp_(w, step.update->target_rate);
    if (step.shadow_of(i).defined()) step.shadow_of(i).copy_(step.update->target[i]);
  }
}

// --- the moving average --------------------------------------------------------------------------

// The tensors of one pass over memory.
struct Averages {
  Tensors target;                       // f32 or bf16
  Tensors online;                       // f32 or bf16
  Tensors shadow;                       // undefined: none
  std::vector<uint64_t> first_counter;  // of the bits that round a bf16 target
};

void average_on_cpu(const Averages& lists, float target_rate, const Rounding& rounding) {
  const auto& kernels = optim_kernels::kernels();
  Blocks(lists.target).each(lists.target, [&](size_t i, int64_t offset, int64_t elements, int64_t) {
    const at::Tensor &target = lists.target[i], &online = lists.online[i], &shadow = lists.shadow[i];
    if (is_bf16(target)) {
      kernels.ema_rounded(reinterpret_cast<uint16_t*>(bytes_at(target, offset)), bytes_at(online, offset),
                          held_as(online), elements, target_rate, rounding,
                          lists.first_counter[i] + static_cast<uint64_t>(offset) / 8);
    } else {
      kernels.ema(target.data_ptr<float>() + offset, bytes_at(online, offset), held_as(online),
                  shadow.defined() ? bytes_at(shadow, offset) : nullptr,
                  shadow.defined() ? held_as(shadow) : Held::f32, elements, target_rate);
    }
  });
}

// --- on a GPU ------------------------------------------------------------------------------------

#ifdef NLAC_CUDA

bool on_gpu(const at::Tensor& tensor) { return tensor.is_cuda(); }

// Norm, clip factor and update follow each other on the stream; the host waits once, for the norm,
// which it returns. Gradients are zeroed, and nothing else is changed where the norm is not finite.
// Calls `begin` as step_on_cpu does.
double step_on_gpu(const Step& step, const std::function<void()>& begin) {
  const size_t count = step.masters.size();
  const auto floats = [](const at::Tensor& tensor) { return tensor.data_ptr<float>(); };
  std::vector<cuda::AdamWTensor> tensors(count);
  for (size_t i = 0; i < count; ++i) {
    cuda::AdamWTensor& tensor = tensors[i];
    tensor.w = floats(step.masters[i]), tensor.m = floats(step.m[i]), tensor.v = floats(step.v[i]);
    tensor.g = floats(step.gradients[i]);
    tensor.compute = is_bf16(step.compute[i]) ? step.compute[i].data_ptr() : nullptr;
    if (step.update != nullptr) tensor.target = floats(step.update->target[i]);
    const at::Tensor shadow = step.shadow_of(i);
    tensor.shadow = shadow.defined() && is_bf16(shadow) ? shadow.data_ptr() : nullptr;
    tensor.count = step.masters[i].numel();
    tensor.decay = step.decay_of(i);
  }
  const auto size = static_cast<int64_t>(count);
  const c10::cuda::CUDAGuard guard(step.masters[0].device());
  const at::Tensor workspace =
      at::empty({cuda::adamw_workspace(tensors.data(), size)}, step.masters[0].options().dtype(at::kDouble));
  begin();
  check_cuda(cuda::adamw_step(tensors.data(), size, step.factors, step.max_grad_norm,
                              step.update == nullptr ? 0.0f : static_cast<float>(step.update->target_rate),
                              workspace.data_ptr<double>(), c10::cuda::getCurrentCUDAStream()),
             "a step's kernel");
  const auto norm = workspace[0].item<double>();
  if (!std::isfinite(norm)) return norm;
  // Copies that the pass does not write.
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor &w = step.masters[i], &compute = step.compute[i], shadow = step.shadow_of(i);
    if (is_f32(compute) && !same_memory(compute, w)) compute.copy_(w);
    if (shadow.defined() && is_f32(shadow)) shadow.copy_(step.update->target[i]);
  }
  return norm;
}

void average_on_gpu(const Averages& lists, float target_rate, const Rounding& rounding) {
  std::vector<cuda::EmaTensor> tensors(lists.target.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor &target = lists.target[i], &online = lists.online[i], &shadow = lists.shadow[i];
    tensors[i] = {target.data_ptr(), online.data_ptr(),      shadow.defined() ? shadow.data_ptr() : nullptr,
                  target.numel(),    lists.first_counter[i], is_bf16(target),
                  is_bf16(online)};
  }
  const c10::cuda::CUDAGuard guard(lists.target[0].device());
  check_cuda(cuda::ema_update(tensors.data(), static_cast<int64_t>(tensors.size()), target_rate, rounding,
                              c10::cuda::getCurrentCUDAStream()),
             "a moving average's kernel");
}

#else

bool on_gpu(const at::Tensor&) { return false; }
double step_on_gpu(const Step&, const std::function<void()>&) {
  fail("ERR_DEVICE", "this build has no CUDA kernels");
}
void average_on_gpu(const Averages&, float, const Rounding&) {
  fail("ERR_DEVICE", "this build has no CUDA kernels");
}

#endif

}  // namespace

StepResult adamw_step(const Tensors& masters, const Tensors& compute, const Tensors& gradients,
                      AdamWMoments& moments, const AdamWOptions& options, const TargetUpdate* update,
                      const SumOverRanks& sum_over_ranks) {
  check_step(masters, compute, gradients, moments, update);
  check_options(options);
  at::NoGradGuard no_grad;
  // All or nothing: memory may run out midway.
  Tensors m = moments.m, v = moments.v;
  if (m.empty()) {
    for (const at::Tensor& w : masters) {
      m.push_back(at::zeros_like(w));
      v.push_back(at::zeros_like(w));
    }
  }
  const auto t = static_cast<double>(moments.steps + 1);
  AdamWFactors factors{};
  factors.beta1 = static_cast<float>(options.beta1);
  factors.beta2 = static_cast<float>(options.beta2);
  factors.step = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, t)));
  factors.inverse_root_bias = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, t)));
  factors.epsilon = static_cast<float>(options.epsilon);
  Step step{masters,
            compute,
            gradients,
            m,
            v,
            update,
            factors,
            static_cast<float>(1 - options.learning_rate * options.weight_decay),
            options.max_grad_norm};

  // Parameters change from here on: if anything is thrown, the step counts as begun.
  const AdamWMoments before = moments;
  const auto begin = [&] { moments = {m, v, before.steps + 1}; };

  StepResult result;
  const bool plain = std::all_of(compute.begin(), compute.end(),
                                 [](const at::Tensor& c) { return is_f32(c) || is_bf16(c); });
  const bool gpu = plain && !masters.empty() && on_gpu(masters[0]);
  if (gpu && !sum_over_ranks) {
    result.grad_norm = step_on_gpu(step, begin);
    result.skipped = !std::isfinite(result.grad_norm);
    if (result.skipped) moments = before;
    return result;
  }
  result.grad_norm = norm_over_ranks(gradients, sum_over_ranks);
  result.skipped = !std::isfinite(result.grad_norm);
  step.factors.clip = clip_factor(result.grad_norm, options.max_grad_norm);
  if (result.skipped) {
    for (const at::Tensor& g : gradients) g.zero_();
    return result;
  }
  if (gpu) {
    // The kernels would clip by the norm of this rank's part.
    step.max_grad_norm = 0;
    step_on_gpu(step, [&] {
      begin();
      for (const at::Tensor& g : gradients) g.mul_(step.factors.clip);
    });
  } else if (plain && (masters.empty() || masters[0].is_cpu())) {
    step_on_cpu(step, begin);
  } else {
    begin();
    step_with_operators(step);
  }
  return result;
}

void ema_update(const Tensors& target, const Tensors& online, const Tensors& shadow, double target_rate,
                uint64_t seed, uint64_t step) {
  check_target_rate(target_rate);
  NLAC_REQUIRE(online.size() == target.size() && (shadow.empty() || shadow.size() == target.size()),
               "ERR_SHAPE", target.size(), " targets, ", online.size(), " online tensors and ", shadow.size(),
               " shadows");
  check_leading("target", target);
  if (target.empty()) return;
  const bool cpu = target[0].is_cpu(), kernels = cpu || on_gpu(target[0]);
  Memory memory;
  for (size_t i = 0; i < target.size(); ++i) {
    check_pair("online tensor", i, online[i], target[i]);
    const at::Tensor low = shadow.empty() ? at::Tensor() : shadow[i];
    if (low.defined()) check_pair("shadow", i, low, target[i]);
    for (const at::Tensor& tensor : {target[i], online[i], low}) {
      NLAC_REQUIRE(!tensor.defined() || is_f32(tensor) || is_bf16(tensor) || is_f64(tensor), "ERR_VALUE",
                   "tensor ", i, " is ", tensor.scalar_type(),
                   ": a moving average takes float32, bfloat16 and float64");
    }
    NLAC_REQUIRE(kernels || !is_bf16(target[i]), "ERR_DEVICE", "a bfloat16 target is not rounded on ",
                 target[i].device());
    memory.writes("target", i, target[i]);
    if (!same_memory(online[i], target[i])) memory.reads("online tensor", i, online[i]);
    if (low.defined() && !same_memory(low, target[i])) memory.writes("shadow", i, low);
  }
  memory.check();

  at::NoGradGuard no_grad;
  Averages lists;
  std::vector<size_t> left;  // tensors whose shadow is copied at the end
  uint64_t counter = 0;
  for (size_t i = 0; i < target.size(); ++i) {
    at::Tensor low = shadow.empty() ? at::Tensor() : shadow[i];
    if (low.defined() && same_memory(low, target[i])) low.reset();
    const bool one_pass = kernels && !is_f64(target[i]);
    const bool taken =
        one_pass && low.defined() && is_f32(target[i]) && (is_bf16(low) || (cpu && is_f32(low)));
    if (low.defined() && !taken) left.push_back(i);
    if (one_pass) {
      lists.target.push_back(target[i]);
      lists.online.push_back(is_f64(online[i]) ? online[i].to(at::kFloat) : online[i]);
      lists.shadow.push_back(taken ? low : at::Tensor());
      lists.first_counter.push_back(counter);
      counter += static_cast<uint64_t>(target[i].numel() + 7) / 8;
    } else {
      target[i].lerp_(online[i].to(target[i].scalar_type()), target_rate);
    }
  }
  if (!lists.target.empty()) {
    const Rounding rounding{seed ^ rounding_stream, step};
    cpu ? average_on_cpu(lists, static_cast<float>(target_rate), rounding)
        : average_on_gpu(lists, static_cast<float>(target_rate), rounding);
  }
  for (const size_t i : left) shadow[i].copy_(target[i]);
}

double DistanceSums::relative() const {
  return difference == 0 ? 0 : std::sqrt(difference) / std::sqrt(size);
}

DistanceSums distance_sums(const Tensors& a, const Tensors& b) {
  NLAC_REQUIRE(a.size() == b.size(), "ERR_SHAPE", a.size(), " tensors against ", b.size());
  DistanceSums sums;
  for (size_t i = 0; i < a.size(); ++i) {
    NLAC_REQUIRE(a[i].sizes() == b[i].sizes(), "ERR_SHAPE", "tensor ", i, " has shape ", a[i].sizes(), ", ",
                 b[i].sizes(), " expected");
    constexpr int64_t length = int64_t{1} << 20;
    const auto left = pieces_of(a[i], length), right = pieces_of(b[i], length);
    for (size_t k = 0; k < left.size(); ++k) {
      const at::Tensor r = right[k].to(at::kDouble);
      sums.difference += (left[k].to(at::kDouble) - r).square().sum().item<double>();
      sums.size += r.square().sum().item<double>();
    }
  }
  return sums;
}

}  // namespace nlac
