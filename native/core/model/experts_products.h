// The products of a mixture of experts: rows that lie together by expert, each times its expert's matrix of
// a stack. In bfloat16 on a Hopper or Blackwell GPU (compute capability 9 or 10) one launch computes all
// experts, and the host does not wait for the rows' division among them; else the products run expert by
// expert. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include "core/model/adapter.h"
#include "core/model/experts_routing.h"

namespace nlac {

// The part of a stack that is an expert's; undefined if the stack is.
inline at::Tensor of_expert(const at::Tensor& stack, int64_t expert) {
  return stack.defined() ? stack[expert] : at::Tensor();
}

// Whether libtorch's grouped kernels support rows like x [rows, in], contiguous, and stack [experts, out,
// in] with its adapters: bfloat16 on such a GPU, fewer than 1024 experts, sizes that are multiples of 8
// elements, a stack at a multiple of 16 bytes.
// NLAC_GROUPED_PRODUCTS=0 in the environment refuses all.
bool takes_grouped(const at::Tensor& x, const at::Tensor& stack, const Adapter& adapter);

// x [rows, in], ordered by expert → [rows, out]: each row times its expert's matrix of stack [experts, out,
// in] and adapter, plus its bias of `biases` [experts, out] (undefined: none).
at::Tensor grouped_forward(const at::Tensor& x, const at::Tensor& stack, const at::Tensor& biases,
                           const Adapter& adapter, const GroupedRows& groups);

// Returns the gradient at x, and adds those at the stack, its biases and its adapters to `into`,
// `into_biases` and `into_adapter` (undefined: not computed). The grouped kernels round an expert's matrix
// gradient to bfloat16 before it is added.
at::Tensor grouped_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& stack,
                            const Adapter& adapter, const GroupedRows& groups, const at::Tensor& into,
                            const at::Tensor& into_biases, const Adapter& into_adapter);

// The product of each row with its expert's row of `vectors` [experts, n]: [rows], in the type of rows
// [rows, n].
at::Tensor grouped_dot(const at::Tensor& rows, const at::Tensor& vectors, const GroupedRows& groups);

// into [experts, n] += the sum of each expert's rows [rows, n].
void add_grouped_sums(const at::Tensor& rows, const GroupedRows& groups, at::Tensor into);

}  // namespace nlac
