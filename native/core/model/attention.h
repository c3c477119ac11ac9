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
  at::Tensor output;                   // [tokens, heads, head_dim]
  std::vector<at::Tensor> logsumexp;   // per sequence, what backward needs of the softmax
};
Attended packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::vector<int64_t>& lengths);

// Writes the gradients into grad_q, grad_k, grad_v, shaped (and possibly strided) like q, k, v.
void packed_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Attended& attended, const std::vector<int64_t>& lengths,
                               at::Tensor grad_q, at::Tensor grad_k, at::Tensor grad_v);

// The last q.size(0) tokens of a sequence, q [new, heads, head_dim], against all its keys and values so far,
// [kv_heads, length, head_dim] with length ≥ new. Writes output [new, heads, head_dim].
void cached_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, at::Tensor output);

// Plain arithmetic for any device, and what the others are tested against: query i of q sees the first
// keys.size(1) - q.size(0) + i + 1 keys. Shapes as in cached_attention.
at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values);

}  // namespace nlac
