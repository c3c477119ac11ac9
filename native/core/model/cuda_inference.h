// Inference on a GPU, by the kernels of native/cuda: between a layer's products there are at most six launches, the
// residual stream is added to where it is normed, and texts that are written attend to keys and values where they lie.
// Prompts attend by libtorch's operators. Thread rule: the learner's thread.
//
// With NLAC_CUDA_GRAPHS=1 in the environment, steps in which every text is written by one token are recorded as CUDA
// graphs, one for each number of texts (1, 2, 4, 8, 16, 24, …, with rows to fill it up) and each power of two of
// blocks, and played again: a step is then one launch. A recording holds good for the memory it was made with; where
// weights or blocks have moved, another is made, and where there are `most_recordings`, these go first. Off by default:
// not yet measured. A recording that fails ends the recording, and steps run as without it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/model/attention.h"
#include "core/model/config.h"
#include "core/model/kv_store.h"
#include "core/model/weights.h"

namespace nlac {

struct Rope;

class CudaInference {
 public:
  // More than two sets of weights need, each with a store that stays where it is.
  static constexpr size_t most_recordings = 512;

  CudaInference();

  // Whether the kernels take this: a model on a GPU, in bfloat16 or float32, with heads of a multiple of 8 dimensions, 256
  // at most. Never without CUDA.
  static bool takes(const Weights& weights, const ModelConfig& config, const KvStore& store);

  // What Decoder::infer returns; `rope` has room for every position.
  at::Tensor infer(const Weights& weights, const ModelConfig& config, const Rope& rope, const at::Tensor& ids,
                   const KvStore& store, const std::vector<KvSlice>& slices);
  // Must be called when weights change or go.
  void forget();

 private:
  bool records_;  // as the environment asked for
  struct Recordings;
  std::shared_ptr<Recordings> recordings_;  // null: there are none
};

}  // namespace nlac
