// One row of a token loss on the CPU, float32: a pass that reads the logits for their log-sum-exp, and one
// that turns them into the gradient where they lie. Compiled for several instruction sets, chosen at run
// time. Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <vector>

namespace nlac::row_kernels {

// What becomes of the student's logits: left alone, a gradient in float32, or one in bf16 that fills the
// first half of the row's bytes.
enum class Form { none, f32, bf16 };

struct RowScale {
  float inverse_temperature;
  float gradient;  // weight / temperature
  Form form;
};

// A row's k best logits of the teacher, and room for what both rows hold there.
struct Top {
  const int64_t* indices;
  float *student, *teacher;
  int64_t k;
};

struct Kernels {
  // Each returns the row's loss. `teacher` is overwritten by top_k only, which needs k < vocab.
  float (*kl)(float* student, const float* teacher, int64_t vocab, const RowScale& scale);
  float (*top_k)(float* student, float* teacher, int64_t vocab, const Top& top, const RowScale& scale);
  float (*nll)(float* student, int64_t target, int64_t vocab, const RowScale& scale);
};

// All that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

// The indices of the k largest of `logits`, 1 ≤ k ≤ vocab, in any order; ties go to the lower index.
void select_top(const float* logits, int64_t vocab, int64_t k, std::vector<int64_t>& indices);

}  // namespace nlac::row_kernels
