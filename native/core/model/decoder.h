// The decoder: forward with a KV cache for inference, forward and backward for training. It embeds
// ids, runs the layers (layer.h) and normalises. Sequences are packed into one [tokens, hidden]
// stream without padding; mixers run per sequence.
//
// No autograd: backward is written by hand, so that weight gradients accumulate in float32 over any
// number of micro-batches and a layer can be recomputed from its input. Thread rule: the learner's
// thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/model/attention.h"
#include "core/model/config.h"
#include "core/model/cuda_inference.h"
#include "core/model/kv_store.h"
#include "core/model/linear.h"
#include "core/model/passes.h"
#include "core/model/rope.h"
#include "core/model/weights.h"

namespace nlac {

class Decoder {
 public:
  // `int8`: inference rounds packed matrices to int8 (linear.h). Training does not.
  explicit Decoder(const ModelConfig& config, bool int8 = false) : config_(config), packed_(int8) {}
  const ModelConfig& config() const { return config_; }

  // Inference. `ids`: [tokens] i64, the slices' tokens one after another; positions continue each
  // slice's past. The residual stream is always float32, so bfloat16 results are slightly closer to
  // float32 than those of forward(). Returns the final-normed hidden states [tokens, hidden] in the
  // weights' type. No gradients.
  //
  // If the store is packed (on a CPU, float32 or bfloat16 with the kernels), a token's hidden state
  // is the same to the last bit for every batch and every chunking of its past.
  //
  // `before_layer`, if any, is called with each layer's index before its weights are read.
  using BeforeLayer = std::function<void(size_t)>;
  at::Tensor infer(const Weights& weights, const at::Tensor& ids, const KvStore& store,
                   const std::vector<KvSlice>& slices, const BeforeLayer& before_layer = {});
  // Returns logits [rows, vocab] f32 of hidden states from infer(), with the same guarantee.
  at::Tensor infer_logits(const Weights& weights, const at::Tensor& hidden);
  // Frees the packed matrices and recorded GPU steps of `weights`. Must be called when they change
  // or are freed.
  void forget_packed(const Weights& weights);
  // The same for some of the trained matrices that are used in infer() with `before_layer`, for which
  // no GPU steps are recorded.
  void forget_packed(const std::vector<at::Tensor>& matrices);

  // Training: activations for backward, opaque to callers.
  struct Tape;
  // `ids`: [tokens] i64 packed; `lengths`: tokens of each sequence (sum = tokens). Returns
  // final-normed hidden states [tokens, hidden]. With `recompute` only each layer's input is kept.
  // `before_layer` as above.
  at::Tensor forward(const Weights& weights, const at::Tensor& ids, const std::vector<int64_t>& lengths,
                     bool recompute, std::shared_ptr<Tape>& tape, const BeforeLayer& before_layer = {});
  // The same without a tape, for log probabilities and teachers.
  at::Tensor forward(const Weights& weights, const at::Tensor& ids, const std::vector<int64_t>& lengths,
                     const BeforeLayer& before_layer = {});
  // `grad_hidden`: [tokens, hidden], the gradient at the result of forward. Adds to `gradients`,
  // float32 tensors of the weights' shapes; undefined ones are frozen and not computed. Consumes
  // the tape. `before_layer` is called from the last layer to the first, when the gradients of the
  // layer after it have been added. `balance` is the coefficient of the load-balance loss of a
  // mixture of experts, whose gradients are added too.
  void backward(const Weights& weights, std::shared_ptr<Tape> tape, const at::Tensor& grad_hidden,
                Weights& gradients, const BeforeLayer& before_layer = {}, double balance = 0);
  // The load-balance loss over the tape's tokens (experts_part.h), without the coefficient; 0 for a
  // model without experts.
  static double balance_loss(const Tape& tape);

 private:
  const RopeTables& ropes(int64_t positions, at::Device device);
  at::Tensor embedded(const Weights& weights, const at::Tensor& ids) const;
  PackedPass packed_pass(const at::Tensor& ids, const std::vector<int64_t>& lengths);
  ModelConfig config_;
  RopeTables ropes_;
  PackedMatrices packed_;
  CudaInference cuda_;
};

// Returns logits [rows, vocab] f32 of hidden states [rows, hidden], for small inputs and sampling. `cap`:
// ModelConfig::logit_cap.
at::Tensor logits(const at::Tensor& hidden, const at::Tensor& head, double cap = 0);

}  // namespace nlac
