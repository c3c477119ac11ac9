// Products with weight matrices and their adapters, forward and backward. Weights are [out, in] row-major as
// torch keeps them; weight gradients are summed in the gradient tensor's own type (float32), whatever the
// inputs are. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include "core/model/adapter.h"

namespace nlac {

// x [rows, in] · weightᵀ [in, out] + bias [out] + residual [rows, out] (undefined: none) → [rows, out], all of one type.
// An adapter adds scale · B A x to the outputs of its projections.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const Adapter& adapter = {}, const at::Tensor& residual = {});

// sum [rows, out] += the same; a wider sum is added to without rounding the product first, where that is free.
void add_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor sum,
                const Adapter& adapter = {});

// linear_forward without a bias, whatever the type summed and returned in float32: logits. Nothing of the weight's
// size is made.
at::Tensor linear_in_float(const at::Tensor& x, const at::Tensor& weight);

// A matrix as inference multiplies by it: on a CPU in float32 or bfloat16 a packed copy as large as the matrix, else the
// matrix itself. Where it is packed a row's result is the same to the last bit however many rows there are. Keeps the
// weight alive; knows nothing of later changes of it.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `int8` rounds a matrix that is packed to int8, with a scale for each few neighbours of an output.
  explicit PackedMatrix(const at::Tensor& weight, bool int8 = false);

  // As linear_forward, add_linear and linear_in_float.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias, const Adapter& adapter = {}) const;
  void add(const at::Tensor& x, const at::Tensor& bias, at::Tensor sum, const Adapter& adapter = {}) const;
  at::Tensor in_float(const at::Tensor& x) const;

 private:
  // y [rows, out] = or += the product, by the kernels.
  void run(const at::Tensor& x, const at::Tensor& bias, at::Tensor y, bool add) const;
  at::Tensor weight_;  // [out, in]
  at::Tensor panels_;  // as cpu::PackedWeights packs; undefined: not packed
  at::Tensor scales_;  // f32, of int8 panels; undefined: they are of the weight's type
};

// Given the gradient at linear_forward's result, [rows, out], returns the gradient at x and adds the others
// into `grad_weight` [out, in], `grad_bias` [out] and the matrices of `grad_adapter` (f32, or f64 for f64 inputs;
// undefined: left out, and not computed).
at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           at::Tensor grad_weight, at::Tensor grad_bias, const Adapter& adapter = {},
                           const Adapter& grad_adapter = {});

}  // namespace nlac
