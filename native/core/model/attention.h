// Causal attention with grouped queries: over packed whole sequences (training) and over key-value
// caches (inference). Query head h reads key-value head h / (heads / kv_heads). Softmax is float32.
// Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/model/kv_store.h"

namespace nlac {

// What a query sees, and how scores are scaled.
struct Sight {
  int64_t window = 0;  // the last tokens up to its own; 0: all
  double scale = 0;    // of the scores; 0: 1 / sqrt(head_dim)
  // [heads] f32 (f64 for f64): a further score of each head, not scaled, whose value is zero. Undefined:
  // none.
  at::Tensor sinks = {};
};

// 1 / sqrt(head_dim) unless `sight` has another.
double score_scale(const at::Tensor& q, const Sight& sight = {});

// Whole sequences, one after another in a packed stream.
struct Sequences {
  std::vector<int64_t> lengths;
  // [sequences + 1] i32 on a GPU: where each begins, and the end. Undefined: no flash kernels.
  at::Tensor starts = {};
};
Sequences sequences_of(std::vector<int64_t> lengths, at::Device device);

// q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]; rows may be strided, the last
// dimension is contiguous. The lengths sum to `tokens`; a sequence sees itself only.
struct Attended {
  at::Tensor output;  // [tokens, heads, head_dim]
  // Of the softmax, for backward: per sequence, or, by flash kernels, one [heads, tokens].
  std::vector<at::Tensor> logsumexp;
  // The flash kernels' generator, for their backward; nothing is drawn from it.
  at::Tensor generator, unused;
};
Attended packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const Sequences& sequences, const Sight& sight = {});

// Writes the gradients to grad_q, grad_k, grad_v, shaped (and possibly strided) like q, k, v.
void packed_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const Attended& attended, const Sequences& sequences,
                               at::Tensor grad_q, at::Tensor grad_k, at::Tensor grad_v,
                               const Sight& sight = {});

// Returns the gradient at the sinks, [heads] f32 (f64 for f64), given that at the output.
at::Tensor sinks_backward(const at::Tensor& grad, const Attended& attended, const Sequences& sequences,
                          const at::Tensor& sinks);

// The rows of one text in a packed inference step.
struct KvSlice {
  const BlockTable* blocks;  // room for past + fresh tokens; not owned
  int64_t past;              // tokens whose keys and values are there, or are another slice's of this step
  int64_t fresh;             // rows of the packed step that are this text's
  int32_t state = -1;        // of a recurrent model: its slot of the store's states, after `past` tokens
};

// Causal attention of the slices' rows over plain blocks, by libtorch's operators: one call of the
// flash kernel for all slices if it takes them, else slice by slice (on a GPU by
// blockwise_attention). The store must not change during its lifetime.
class PlainAttention {
 public:
  PlainAttention(const KvStore& store, const std::vector<KvSlice>& slices);

  // Returns the attention output of queries as in CachedAttention::run, [tokens, heads, head_dim].
  at::Tensor run(int64_t layer, const at::Tensor& q, const Sight& sight = {}) const;

 private:
  const KvStore& store_;
  std::vector<int32_t> first_row_, first_key_;  // [slices + 1], of q and of what is gathered
  at::Tensor row_starts_, key_starts_;          // the same on the GPU, i32; undefined on the CPU
  at::Tensor blocks_, slots_;                   // [keys] i64: where a key lies
  int64_t max_rows_ = 0, max_keys_ = 0;         // of a slice
};

// The attention of a packed inference step, for any layer. Its arguments must not change during its
// lifetime.
class CachedAttention {
 public:
  CachedAttention(const KvStore& store, const std::vector<KvSlice>& slices, at::Device device);

  // q, k, v as in packed_attention, the slices' rows one after another. Writes k and v to the
  // slices' blocks, then the attention of each query over its text's past and itself to output
  // [tokens, heads, head_dim]. A block in several tables is written by at most one slice. With k and v
  // undefined, of a layer that borrows its keys, nothing is written.
  void run(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor output,
           const Sight& sight = {}) const;

 private:
  struct Place {
    size_t slice;
    int64_t position;  // of a row in its text
  };
  struct Stretch {
    size_t slice;
    int64_t start, first, count;  // the slice's first row; queries of it
  };
  template <typename Number>
  void run_packed(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  at::Tensor output, const Sight& sight) const;
  void run_plain(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 at::Tensor output, const Sight& sight) const;

  const KvStore& store_;
  const std::vector<KvSlice>& slices_;
  std::vector<Place> places_;       // of every row
  std::vector<Stretch> stretches_;  // packed: what a thread attends at a time, for each key-value head
  std::vector<std::vector<const void*>> starts_;  // packed: where each slice's blocks begin
  at::Tensor row_blocks_, row_slots_;             // plain: [rows] i64, where a row's keys and values go
  std::optional<PlainAttention> plain_;
};

// The same arithmetic by libtorch's operators, on any device. Only the scores of `block` queries
// exist at a time; backward recomputes them from the logsumexp. Memory is linear in the length. The
// heads of a group share keys and values without copies. Products have factors of q's type and
// float32 sums (float64 for float64).
//
// Query i of q [fresh, heads, head_dim] sees the first length - fresh + i + 1 of keys and values
// [kv_heads, length, head_dim], length ≥ fresh.
struct AttendedBlocks {
  at::Tensor output;     // [fresh, heads, head_dim], q's type
  at::Tensor logsumexp;  // [kv_heads, group, fresh] of the scaled scores and the sinks, f32 or f64
};
AttendedBlocks blockwise_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                   int64_t block, const Sight& sight = {});

// Returns the gradients, given the gradient at `attended.output`, shaped like it.
struct AttentionGradients {
  at::Tensor q;             // [fresh, heads, head_dim], q's type
  at::Tensor keys, values;  // [kv_heads, length, head_dim], f32 or f64
};
AttentionGradients blockwise_attention_backward(const at::Tensor& grad, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const AttendedBlocks& attended, int64_t block,
                                                const Sight& sight = {});

}  // namespace nlac
