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

// Plain arithmetic for any device, and what the others are tested against: query i of q sees the first
// keys.size(1) - q.size(0) + i + 1 keys. q [new, heads, head_dim], keys and values [kv_heads, length,
// head_dim], length ≥ new → [new, heads, head_dim].
at::Tensor reference_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values);

// Its gradients, in q's type, given `output` (what it returned) and the gradient there, shaped like q.
struct AttentionGradients {
  at::Tensor q;             // [new, heads, head_dim]
  at::Tensor keys, values;  // [kv_heads, length, head_dim]
};
AttentionGradients reference_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const at::Tensor& output);

}  // namespace nlac
