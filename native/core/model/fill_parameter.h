// Reads the numbers of one parameter from a file's tensors. Functions run on any thread, and use
// several; tensors that they fill are contiguous on the CPU unless stated otherwise.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/io/tensor_entry.h"

namespace nlac {

// Reads matrix `entry` into `out`, contiguous on the CPU, float32 or bfloat16, with the same number
// of elements. `order`: Stored::rows.
void fill(const TensorEntry& entry, const std::vector<int64_t>& order, at::Tensor out);

// Blocks of MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of four bits in 16 bytes, the lower half
// first, times a power of two that is stored apart.
constexpr int64_t mx_values = 32, mx_bytes = 16;

// Expands the stack `blocks` [matrices, rows, n, 16] with `scales` [matrices, rows, n] into `out`,
// contiguous on the CPU, float32 or bfloat16, of 32 · n columns.
void fill_mxfp4(const TensorEntry& blocks, const TensorEntry& scales, at::Tensor out);

// Where a parameter's numbers are: in one tensor, as blocks of MXFP4 with their scales, or as rows of
// gate and up by turns (Stored::of_stack).
struct StoredPlace {
  const TensorEntry* entry;
  const TensorEntry *scales = nullptr, *up = nullptr;
};

// Reads a stack of experts' matrices, or their biases, that a GGUF file does not have transposed. `view` is
// shaped as in a Hugging Face file.
void fill_stack(const StoredPlace& place, const at::Tensor& view);

}  // namespace nlac
