// Decoding attention over keys and values in blocks (core/model/kv_store.h) on a GPU: the
// counterpart of CachedAttention in core/model/attention.h. Plain device pointers, no torch.
// Asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cpu/bf16_kernels.h"

namespace nlac::cuda {

using bf16::kBlockTokens;

// A layer's keys and values: those of block b are [kv_heads, kBlockTokens, head_dim] at b · stride.
// Aligned to 16 bytes.
struct KvBlocks {
  void *keys, *values;
  int64_t stride;  // numbers from a block to the next, a multiple of 8
  int kv_heads;
  int head_dim;  // a multiple of 8, 256 at most
  bool is_bf16;  // else f32
};

// The projections of a step's tokens: qkv [rows, (heads + 2 kv_heads) head_dim], of the blocks'
// type.
struct ProjectedRows {
  void* qkv;
  int rows, heads;
  const void *q_norm, *k_norm;  // [head_dim], of the blocks' type; null: queries and keys are not normed
  float eps;
  const float *cos, *sin;    // [positions, head_dim / 2]
  const int32_t* positions;  // [rows]
  const int32_t* places;     // [rows] block · kBlockTokens + slot; negative: a row that is stored nowhere
};
// Normalises queries and keys per head and rotates them by their positions, rounding as
// core/model/elementwise.h does. Queries stay in qkv; keys and values are written to their places.
cudaError_t rotate_and_store(const ProjectedRows& given, const KvBlocks& blocks, cudaStream_t stream);

// One query for each text, [heads, head_dim] in a row of q; query head h reads key-value head h /
// (heads / kv_heads).
struct Queries {
  const void* q;     // of the blocks' type, at multiples of 16 bytes
  int64_t q_stride;  // numbers between rows, a multiple of 8
  void* output;      // [rows, heads, head_dim], of the blocks' type
  int texts, heads;
  const int32_t* rows;     // [texts] each text's, of q and of output
  const int32_t* lengths;  // [texts] tokens the query sees; 0: its output is 0
  const int32_t* tables;   // [texts, width] the texts' blocks, as many as their lengths need
  int64_t width;
};
// Returns the number of parts (1 or more) into which contexts are split, so that few texts occupy
// all `multiprocessors`. `longest` is an upper bound of the lengths.
int attention_splits(const Queries& given, const KvBlocks& blocks, int64_t longest, int multiprocessors);
// Returns the size of attend's workspace in floats.
int64_t attention_workspace(const Queries& given, const KvBlocks& blocks, int splits);
// Scores are scaled by 1 / √head_dim. The softmax and all sums are float32. Each part reads its
// tokens once; a second pass combines the parts. A result depends only on its text and `splits`.
cudaError_t attend(const Queries& given, const KvBlocks& blocks, int splits, float* workspace,
                   cudaStream_t stream);

}  // namespace nlac::cuda
