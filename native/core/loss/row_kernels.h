// Passes over one row of float32 logits on the CPU, for token losses. Compiled for several
// instruction sets and chosen at run time. Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "core/loss/row_loss.h"

namespace nlac::row_kernels {

// A row's largest logit, Σ e^x and Σ x·e^x with x = (logit - largest) / temperature.
struct Softmax {
  float largest;
  double sum;
  double moment;  // 0 unless requested
};

// The destination of a row's gradient: bf16 or f32 memory that does not overlap the row, or f32
// over the student's logits.
enum class Form { none, f32, bf16 };
struct GradientRow {
  void* at;
  Form form;
};

struct Kernels {
  Softmax (*softmax)(const float* logits, int64_t vocab, float inverse_temperature, bool with_moment);
  // to_i ← q_i·(a + b·log q_i). `to.form` is not `none`.
  void (*weighted)(const float* logits, int64_t vocab, const Softmax& softmax, float inverse_temperature,
                   float a, float b, const GradientRow& to);
  // Returns the divergence; to ← `scale` times temperature times its gradient at the student's
  // logits. Both rows are overwritten.
  double (*divergence)(float* student, float* teacher, int64_t vocab, const Softmax& student_softmax,
                       const Softmax& teacher_softmax, float inverse_temperature,
                       const Divergence& divergence, float scale, const GradientRow& to);
  // logits ← cap · tanh(logits / cap); `slopes` (null: left out) ← the derivatives. Each depends on its
  // own logit only, to the last bit.
  void (*cap)(float* logits, int64_t vocab, float cap, float* slopes);
};

// The variants that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

// Returns the indices of the k largest of `logits`, 1 ≤ k ≤ vocab, in any order. Ties go to the
// lower index.
void select_top(const float* logits, int64_t vocab, int64_t k, std::vector<int64_t>& indices);

}  // namespace nlac::row_kernels
