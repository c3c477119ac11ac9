// Causal attention with grouped queries: over packed whole sequences (training) and over key-value caches
// (inference). Query head h reads key-value head h / (heads / kv_heads). Scores are scaled by
// 1 / sqrt(head_dim); softmax is float32. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace nlac {

// q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]; rows may be strided, the last
// dimension is contiguous. `lengths` sum to `tokens`; a sequence sees itself only.
struct Attended {
  at::Tensor output;                  // [tokens, heads, head_dim]
  std::vector<at::Tensor> logsumexp;  // per sequence, what backward needs of the softmax
};
Attended packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::vector<int64_t>& lengths);

// Writes the gradients into grad_q, grad_k, grad_v, shaped (and possibly strided) like q, k, v.
void packed_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Attended& attended,
                               const std::vector<int64_t>& lengths, at::Tensor grad_q, at::Tensor grad_k,
                               at::Tensor grad_v);

// One sequence's keys and values in one layer, and its share of a packed step.
struct CachedSequence {
  at::Tensor keys, values;  // [kv_heads, capacity, head_dim], room for past + fresh
  int64_t past;             // tokens held before this step
  int64_t fresh;            // rows of the packed step that are this sequence's
};

// q, k, v as in packed_attention, the sequences' rows one after another. Appends k and v to the caches and
// writes what the queries attend to, each its sequence's past and itself, into output [tokens, heads,
// head_dim].
void cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const std::vector<CachedSequence>& sequences, at::Tensor output);

// The same arithmetic by libtorch's operators, which any device has: `block` queries at a time, whose scores
// exist alone; backward makes them again from the logsumexp. Memory is linear in the length, and the heads of
// a group share their keys and values without copies. Products take factors of q's type and sum in float32
// (float64 for float64).
//
// Query i of q [fresh, heads, head_dim] sees the first length - fresh + i + 1 of keys and values [kv_heads,
// length, head_dim], length ≥ fresh.
struct AttendedBlocks {
  at::Tensor output;     // [fresh, heads, head_dim], q's type
  at::Tensor logsumexp;  // [kv_heads, group, fresh] of the scaled scores, f32 or f64
};
AttendedBlocks blockwise_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                   int64_t block);

// Its gradients, given the gradient at `attended.output`, shaped like it.
struct AttentionGradients {
  at::Tensor q;             // [fresh, heads, head_dim], q's type
  at::Tensor keys, values;  // [kv_heads, length, head_dim], f32 or f64
};
AttentionGradients blockwise_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const AttendedBlocks& attended, int64_t block);

}  // namespace nlac
