// The decoder: forward for inference with a key-value cache, forward and backward for training. Sequences
// are packed into one [tokens, hidden] stream, never padded; attention runs per sequence.
//
// No autograd: backward is written out, so that weight gradients accumulate in float32 over any number of
// micro batches and a layer can be recomputed from its input alone. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/config.h"
#include "core/model/weights.h"

namespace nlac {

// Keys and values of one sequence, all layers. Grows by doubling. Copyable (a deep copy) for forks.
struct KvCache {
  // [layers][2] tensors of shape [kv_heads, capacity, head_dim] in the weights' type
  std::vector<at::Tensor> keys, values;
  int64_t length = 0;  // tokens held
  KvCache clone() const;
  size_t bytes() const;
};

// One sequence's share of a packed inference step.
struct CacheSlice {
  KvCache* cache;      // new keys and values are appended; not owned
  int64_t new_tokens;  // how many rows of the packed stream are this sequence's
};

struct Rope {
  at::Tensor cos, sin;  // [positions, head_dim / 2] f32, the attention factor of yarn multiplied in
  static Rope make(const ModelConfig& config, int64_t positions, at::Device device);
};

class Decoder {
 public:
  explicit Decoder(const ModelConfig& config) : config_(config) {}
  const ModelConfig& config() const { return config_; }

  // Inference. `ids`: [tokens] i64, the slices' tokens one after another; positions continue each cache. The
  // residual stream is float32 whatever the weights are, so bfloat16 is a little nearer to float32 than forward().
  // Returns the final-normed hidden states [tokens, hidden] in the weights' type. No gradients.
  at::Tensor infer(const Weights& weights, const at::Tensor& ids, const std::vector<CacheSlice>& slices);

  // Training. What backward needs; opaque to callers.
  struct Tape;
  // `ids`: [tokens] i64 packed; `lengths`: tokens of each sequence (sum = tokens). Returns final-normed
  // hidden states [tokens, hidden]. With `recompute` only each layer's input is kept.
  at::Tensor forward(const Weights& weights, const at::Tensor& ids, const std::vector<int64_t>& lengths,
                     bool recompute, std::shared_ptr<Tape>& tape);
  // The same without a tape (log probabilities, the teacher).
  at::Tensor forward(const Weights& weights, const at::Tensor& ids, const std::vector<int64_t>& lengths);
  // `grad_hidden`: [tokens, hidden], the gradient at what forward returned. Adds into `gradients`
  // (float32 tensors of the weights' shapes; what is undefined is frozen, and its gradient is not computed);
  // consumes the tape.
  void backward(const Weights& weights, std::shared_ptr<Tape> tape, const at::Tensor& grad_hidden,
                Weights& gradients);

 private:
  const Rope& rope(int64_t positions, at::Device device);
  ModelConfig config_;
  Rope rope_;
};

// Logits [rows, vocab] in float32 of hidden states [rows, hidden] (small inputs and sampling).
at::Tensor logits(const at::Tensor& hidden, const at::Tensor& head);

}  // namespace nlac
