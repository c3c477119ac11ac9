// How model files name a layer's tensors: the one description from which weights are allocated,
// loaded, exported and adapted. Each part has a function that lists its own (attention_parameters,
// …).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/model/adapter.h"

namespace nlac {

struct Parameter {
  at::Tensor* tensor;
  std::vector<int64_t> shape;  // empty: the model lacks it
  // The files' tensors, within the layer ("self_attn.q_proj.weight"), and their rows, which lie one
  // after another in `tensor`. Rows of a tensor of three dimensions are those of its matrices, one
  // after another. A single name that has all of the first dimension is the whole tensor.
  std::vector<std::pair<std::string, int64_t>> rows;
  Adapter* adapter = nullptr;  // of a matrix or stack that can be adapted
  bool transposed = false;     // files have each matrix of a stack with its columns first
  std::string stack = {};      // an export has the whole tensor under this name, not `rows`
};

// The part of `whole` [shape] that `parameter.rows[i]` names, as a view. `begin` is its first row.
at::Tensor rows_of(const Parameter& parameter, const at::Tensor& whole, size_t i, int64_t begin);

// How many matrices lie in the tensor: 1, or those of a stack [matrices, rows, columns].
int64_t matrices_of(const Parameter& parameter);

// "q_proj" of "self_attn.q_proj.weight"
std::string projection_name(const std::string& parameter_name);

}  // namespace nlac
