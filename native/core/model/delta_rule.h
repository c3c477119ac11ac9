// The gated delta rule by chunks of tokens, forward and backward, for training. Every head has a
// state S [key_dim, value_dim], which begins at zero:
//   S_t = e^{g_t} (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ,  o_t = S_tᵀ q_t
// Within a chunk the tokens' changes of S are the solution of a triangular system (the WY
// representation, "Parallelizing Linear Transformers with the Delta Rule", section 3.2), so that
// all work is products of matrices. Computes in the inputs' type, float32 (on a CPU by
// cpu/delta_chunks.h) or float64. Memory is linear in the length. No autograd. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/cpu/delta_chunks.h"

namespace nlac {

using cpu::kDeltaChunk;

// Rows of packed sequences. A key head serves heads / key_heads neighbouring heads. Any strides.
struct DeltaInputs {
  at::Tensor q, k;         // [tokens, key_heads, key_dim], k of length 1 or less
  at::Tensor v;            // [tokens, heads, value_dim]
  at::Tensor decay, beta;  // [tokens, heads], g ≤ 0 and β in [0, 1]
};

struct DeltaResult {
  at::Tensor output;  // [tokens, heads, value_dim]
  // For delta_rule_backward. By a CPU's kernels, each sequence's S before each chunk and after the last;
  // else one tensor of S before all chunks.
  std::vector<at::Tensor> states;
  std::vector<at::Tensor> last;  // S after each sequence, [heads, key_dim, value_dim]
};

// `lengths` sum to `tokens`; each is at least 1. `initial`, if any, is S before each sequence,
// [sequences, heads, key_dim, value_dim].
DeltaResult delta_rule(const DeltaInputs& inputs, const std::vector<int64_t>& lengths,
                       const at::Tensor& initial = {});

// Returns the gradients at the inputs, contiguous. `grad` is that at the output; `states` are
// delta_rule's, which began at zero.
DeltaInputs delta_rule_backward(const at::Tensor& grad, const DeltaInputs& inputs,
                                const std::vector<int64_t>& lengths, const std::vector<at::Tensor>& states);

}  // namespace nlac
