// Inference on a GPU by the kernels of native/cuda. There are at most six launches between a
// layer's products; the residual addition is fused with the norm; decoding reads keys and values in
// place. Prefill uses libtorch's operators. Thread rule: the learner's thread.
//
// With NLAC_CUDA_GRAPHS=1 in the environment, steps in which every text decodes one token are
// recorded as CUDA graphs and replayed, so that a step is one launch. There is one graph for each
// number of texts (1, 2, 4, 8, 16, 24, …, padded with rows) and each power of two of blocks. A
// recording is valid for the memory it was made with: if weights or blocks have moved, another is
// made. If there are `max_recordings`, they are dropped first. If a recording fails, no further one
// is tried. Off by default: docs/decisions/0011.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <functional>
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
  // More than two sets of weights need, each with a store that does not move.
  static constexpr size_t max_recordings = 512;

  CudaInference();

  // Whether the kernels support this model: layers like Llama's, on a GPU, bfloat16 or float32, and
  // a head dimension that is a multiple of 8 and at most 256. False without CUDA.
  static bool takes(const Weights& weights, const ModelConfig& config, const KvStore& store);

  // Returns the result of Decoder::infer. `rope` covers every position. A step with `before_layer`
  // is not recorded.
  at::Tensor infer(const Weights& weights, const ModelConfig& config, const Rope& rope, const at::Tensor& ids,
                   const KvStore& store, const std::vector<KvSlice>& slices,
                   const std::function<void(size_t)>& before_layer = {});
  // Must be called when weights change or are freed.
  void forget();

 private:
  bool records_;  // as the environment asked for
  struct Recordings;
  std::shared_ptr<Recordings> recordings_;  // null: there are none
};

}  // namespace nlac
