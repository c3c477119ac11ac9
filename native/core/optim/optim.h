// AdamW with float32 master weights, global-norm clipping, and the moving average of the parameters.
// Thread rule: the learner's thread. Tensors of one call lie on one device; on a GPU the work goes to its
// current stream.
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
  int64_t steps = 0;             // steps begun (skipped ones not counted)
};

// A moving average of the masters for a step to take along: what ema_update would do after it.
struct TargetUpdate {
  std::vector<at::Tensor> target;  // f32, shapes of the masters
  std::vector<at::Tensor> shadow;  // f32 or bf16, gets the target rounded; may be empty
  double tau = 0;
};

// One step on `masters` (f32) with `gradients` (f32, summed already), then `compute[i]` ← masters[i] rounded
// to its type (skipped where the two are the same tensor), then `update`, where it is given and the step was
// not skipped. Gradients are zeroed afterwards, also when the step is skipped. Lists have equal length.
// Throws ERR_SHAPE, ERR_DEVICE, ERR_VALUE. Where it throws and `state.steps` is what it was, nothing was
// changed; where the step is counted, some parameters may have moved.
//
// Bytes moved for each parameter: 36. The norm, which must be known before anything moves, reads the gradient
// (4); one pass reads and writes master and moments (24), reads the gradient and zeroes it (8). A bf16 copy
// adds 2. The update adds 8, and 2 for a bf16 shadow: a pass of its own would read the master (4) once more.
StepResult adamw_step(const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& compute,
                      const std::vector<at::Tensor>& gradients, AdamWState& state,
                      const AdamWOptions& options, const TargetUpdate* update = nullptr);

// target ← tau·online + (1 - tau)·target, in place. Each of target[i], online[i] is f32, bf16 or f64;
// `shadow` (may be empty, or hold undefined tensors) receives target rounded to its own type. A bf16 target is
// rounded stochastically from (seed, step). Throws ERR_SHAPE, ERR_DEVICE, ERR_VALUE (tau outside [0, 1], other
// types).
//
// One pass over memory for all but f64: an f32 target and a bf16 online tensor move 10 bytes a parameter, a
// bf16 shadow 2 more.
void ema_update(const std::vector<at::Tensor>& target, const std::vector<at::Tensor>& online,
                const std::vector<at::Tensor>& shadow, double tau, uint64_t seed, uint64_t step);

// sqrt(Σ (a - b)²) / sqrt(Σ b²) over all elements, in float64: how far θ̄ is behind θ.
double relative_distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace nlac
