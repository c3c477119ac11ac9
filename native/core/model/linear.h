// Products with weight matrices and their adapters, forward and backward. Weights are [out, in]
// row-major as in torch. Weight gradients are summed in the gradient tensor's type (float32) for
// every type of input. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/model/adapter.h"

namespace nlac {

// x [rows, in] · weightᵀ [in, out] + bias [out] + residual [rows, out] (undefined: none) → [rows,
// out], all of one type. An adapter adds scale · B A x to the outputs of its projections.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const Adapter& adapter = {}, const at::Tensor& residual = {});

// sum [rows, out] += the same. A wider sum gets the unrounded product where that is free.
void add_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor sum,
                const Adapter& adapter = {});

// linear_forward without a bias, summed and returned in float32: logits. Allocates nothing of the
// weight's size.
at::Tensor linear_in_float(const at::Tensor& x, const at::Tensor& weight);

// A matrix for inference: a packed copy of the same size (on a CPU in float32 or bfloat16), else
// the matrix itself. With a packed matrix a row's result does not depend on the number of rows, to
// the last bit. Keeps the weight alive; does not see later changes of it.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `int8` rounds a packed matrix to int8, with a scale for every few neighbours of an output.
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

// The packed matrices of a decoder, made on first use and kept until they are forgotten. Thread
// rule: the learner's thread.
class PackedMatrices {
 public:
  explicit PackedMatrices(bool int8) : int8_(int8) {}
  // The matrix `weight` [out, in], or the `index`-th of a stack [matrices, out, in].
  // An `exact` one is never rounded to int8.
  const PackedMatrix& of(const at::Tensor& weight, int64_t index = 0, bool exact = false);
  // Must be called when a weight changes or is freed.
  void forget(const at::Tensor& weight) { packed_.erase(weight.unsafeGetTensorImpl()); }

 private:
  bool int8_;
  // By the weight's own identity, which a PackedMatrix keeps alive.
  std::unordered_map<const void*, std::vector<std::optional<PackedMatrix>>> packed_;
};

// Given the gradient at linear_forward's result, [rows, out], returns the gradient at x and adds
// the others to `grad_weight` [out, in], `grad_bias` [out] and the matrices of `grad_adapter` (f32,
// or f64 for f64 inputs; undefined: not computed).
at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           at::Tensor grad_weight, at::Tensor grad_bias, const Adapter& adapter = {},
                           const Adapter& grad_adapter = {});

}  // namespace nlac
