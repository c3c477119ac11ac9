// The decoder: forward for inference with a key-value cache, forward and backward for training. Sequences
// are packed into one [tokens, hidden] stream, never padded; attention runs per sequence.
//
// No autograd: backward is written out, so that weight gradients accumulate in float32 over any number of
// micro batches and a layer can be recomputed from its input alone. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/model/attention.h"
#include "core/model/config.h"
#include "core/model/cuda_inference.h"
#include "core/model/kv_store.h"
#include "core/model/linear.h"
#include "core/model/weights.h"

namespace nlac {

struct Rope {
  at::Tensor cos, sin;  // [positions, head_dim / 2] f32, the attention factor of yarn multiplied in
  static Rope make(const ModelConfig& config, int64_t positions, at::Device device);
};

class Decoder {
 public:
  // `int8`: inference rounds the matrices that it packs to int8 (linear.h); training does not.
  explicit Decoder(const ModelConfig& config, bool int8 = false) : config_(config), int8_(int8) {}
  const ModelConfig& config() const { return config_; }

  // Inference. `ids`: [tokens] i64, the slices' tokens one after another; positions continue each slice's past. The
  // residual stream is float32 whatever the weights are, so bfloat16 is a little nearer to float32 than forward().
  // Returns the final-normed hidden states [tokens, hidden] in the weights' type. No gradients.
  //
  // Where the store is packed (on a CPU, float32, and bfloat16 where it has the kernels), a token's hidden state is the same to the last
  // bit whatever else is in the step, and however its past was read: at once, in pieces, or token by token.
  at::Tensor infer(const Weights& weights, const at::Tensor& ids, const KvStore& store,
                   const std::vector<KvSlice>& slices);
  // Logits [rows, vocab] f32 of what infer returned, with the same promise.
  at::Tensor infer_logits(const Weights& weights, const at::Tensor& hidden);
  // Inference keeps matrices packed as its products read them, and recorded steps on a GPU. Must be called when
  // `weights` change or go.
  void forget_packed(const Weights& weights);

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
  const PackedMatrix& packed(const at::Tensor& weight);
  ModelConfig config_;
  bool int8_;
  Rope rope_;
  std::unordered_map<const void*, PackedMatrix>
      packed_;  // by the weight's own identity, which it keeps alive
  CudaInference cuda_;
};

// Logits [rows, vocab] in float32 of hidden states [rows, hidden] (small inputs and sampling).
at::Tensor logits(const at::Tensor& hidden, const at::Tensor& head);

}  // namespace nlac
