// AdamW with float32 master weights, global-norm clipping, and the moving average of the
// parameters. Thread rule: the learner's thread. Tensors of one call lie on one device; on a GPU
// the work goes to its current stream.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
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
struct AdamWMoments {
  std::vector<at::Tensor> m, v;  // f32, shapes of the masters; empty until the first step
  int64_t steps = 0;             // steps begun (skipped ones not counted)
};

// A moving average of the masters that a step updates in the same pass, as ema_update would after
// it.
struct TargetUpdate {
  std::vector<at::Tensor> target;  // f32, shapes of the masters
  // f32 or bf16, gets the target rounded; may be empty, and a tensor may be the target itself.
  std::vector<at::Tensor> shadow;
  double target_rate = 0;
};

// Sums a number over all ranks, for lists that are one rank's part of the parameters. Empty: the
// lists are whole. A step calls it once it has checked its arguments, with NaN if the rank has no
// memory to compute its number; the ranks then skip the step, and this one throws.
using SumOverRanks = std::function<double(double)>;

// One step on `masters` (f32) with `gradients` (f32). Then compute[i] ← masters[i], rounded to its
// type (skipped if the two are the same tensor), then `update`, if given and the step was not
// skipped. Gradients are zeroed afterwards, also if the step is skipped. Lists have equal length.
// Throws ERR_SHAPE, ERR_DEVICE, ERR_VALUE (two tensors in the same memory, except for a compute copy
// and its master, and a shadow and its target). If it throws and `moments.steps` is unchanged, nothing
// was changed; otherwise some parameters may have moved.
//
// Memory traffic per parameter: 36 bytes. The norm must be known first and reads the gradient (4).
// One pass reads and writes master and moments (24), reads the gradient and zeroes it (8). A bf16
// copy adds 2. The update adds 8, and 2 for a bf16 shadow; a separate pass would read the master
// (4) again.
StepResult adamw_step(const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& compute,
                      const std::vector<at::Tensor>& gradients, AdamWMoments& moments,
                      const AdamWOptions& options, const TargetUpdate* update = nullptr,
                      const SumOverRanks& sum_over_ranks = {});

// target ← target_rate·online + (1 - target_rate)·target, in place. Each of target[i], online[i] is
// f32, bf16 or f64. `shadow` (may be empty, or hold undefined tensors) receives target rounded to
// its own type, one of these. A bf16 target is rounded stochastically from (seed, step). Throws
// ERR_SHAPE, ERR_DEVICE, ERR_VALUE (target_rate outside [0, 1], another type, or a target or shadow
// in the memory of another tensor; target[i] may be online[i] or shadow[i]).
//
// One pass over memory, except for f64. An f32 target with a bf16 online tensor moves 10 bytes per
// parameter; a bf16 shadow adds 2.
void ema_update(const std::vector<at::Tensor>& target, const std::vector<at::Tensor>& online,
                const std::vector<at::Tensor>& shadow, double target_rate, uint64_t seed, uint64_t step);

// Sums over elements of a and b, in float64. Those of all ranks may be added up.
struct DistanceSums {
  double difference = 0;  // Σ (a - b)²
  double size = 0;        // Σ b²

  // sqrt(Σ (a - b)²) / sqrt(Σ b²)
  double relative() const;
};

DistanceSums distance_sums(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace nlac
