// AdamW with float32 master weights, global-norm clipping, and the moving average of the parameters.
// Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace nlac {

struct AdamWOptions {
  double learning_rate = 5e-6;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.0;   // decoupled: w ← w - lr·wd·w, matrices only (dim ≥ 2)
  double max_grad_norm = 1.0;  // ≤ 0: no clipping
};

struct StepResult {
  double grad_norm = 0;  // before clipping; not finite when the step was skipped
  bool skipped = false;  // a gradient was not finite: nothing was changed
};

// First and second moments of one list of parameters.
struct AdamWState {
  std::vector<at::Tensor> m, v;  // f32, shapes of the masters; empty until the first step
  int64_t steps = 0;             // steps taken (skipped ones not counted)
};

// One step on `masters` (f32) with `gradients` (f32, summed already), then `compute[i]` ← masters[i] rounded
// to its type (skipped where the two are the same tensor). Gradients are zeroed afterwards, also when the
// step is skipped. Lists have equal length; throws ERR_SHAPE otherwise.
StepResult adamw_step(const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& compute,
                      const std::vector<at::Tensor>& gradients, AdamWState& state,
                      const AdamWOptions& options);

// target ← tau·online + (1 - tau)·target, in place. target[i] is f32 (or f64), online[i] f32 or bf16 (or
// f64); `shadow` (may be empty) receives target rounded to its own type in the same pass. A bf16 target is
// rounded stochastically from (seed, step). Throws ERR_SHAPE, ERR_VALUE (tau outside [0, 1]).
void ema_update(const std::vector<at::Tensor>& target, const std::vector<at::Tensor>& online,
                const std::vector<at::Tensor>& shadow, double tau, uint64_t seed, uint64_t step);

// sqrt(Σ (a - b)²) / sqrt(Σ b²) over all elements, in float64: how far θ̄ is behind θ.
double relative_distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace nlac
