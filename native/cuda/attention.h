// Attention over keys and values in blocks (core/model/kv_store.h) on a GPU, for texts that are written token by token:
// the twin of core/model/attention.h's CachedAttention. Plain pointers on the device, no torch. Asynchronous on
// `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cpu/bf16_kernels.h"

namespace nlac::cuda {

using bf16::kBlockTokens;

// A layer's keys and values: those of block b are [kv_heads, kBlockTokens, head_dim] at b · stride. At addresses that
// are multiples of 16 bytes.
struct KvBlocks {
  void *keys, *values;
  int64_t stride;  // numbers from a block to the next, a multiple of 8
  int kv_heads;
  int head_dim;  // a multiple of 8, 256 at most
  bool is_bf16;  // else f32
};

// What a layer's projection made of a step's tokens: qkv [rows, (heads + 2 kv_heads) head_dim], of the blocks' type.
struct ProjectedRows {
  void* qkv;
  int rows, heads;
  const void *q_norm, *k_norm;  // [head_dim], of the blocks' type; null: queries and keys are not normed
  float eps;
  const float *cos, *sin;    // [positions, head_dim / 2]
  const int32_t* positions;  // [rows]
  const int32_t* places;     // [rows] block · kBlockTokens + slot; negative: a row that is stored nowhere
};
// Norms queries and keys head by head, and turns them by their positions, with core/model/elementwise.h's roundings.
// Queries stay in qkv; keys and values go to their places.
cudaError_t rotate_and_store(const ProjectedRows& given, const KvBlocks& blocks, cudaStream_t stream);

// One query for each text, [heads, head_dim] in a row of q; query head h reads key-value head h / (heads / kv_heads).
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
// How many parts of their contexts go side by side, so that few texts keep `multiprocessors` busy: 1 or more. `longest`
// is the largest length, or more than it.
int attention_splits(const Queries& given, const KvBlocks& blocks, int64_t longest, int multiprocessors);
// What attend needs of them: f32 numbers.
int64_t attention_workspace(const Queries& given, const KvBlocks& blocks, int splits);
// Scores are scaled by 1 / √head_dim. The softmax and all sums are float32, each of a text's parts goes over its
// tokens once, and a second pass joins the parts. The result depends on the text and on `splits` alone.
cudaError_t attend(const Queries& given, const KvBlocks& blocks, int splits, float* workspace,
                   cudaStream_t stream);

}  // namespace nlac::cuda
