// Samples tokens on a GPU from logits on the device: the counterpart of core/generate/request.h,
// with the same order of filters and the same ties. Plain device pointers, no torch. Asynchronous
// on `stream`.
//
// One block computes a draw. Weights are summed as integers, in units of 2^-40 of the largest, so
// that sums do not depend on the order: a draw depends only on its logits and settings.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nlac::cuda {

constexpr int64_t max_drawn_vocab = int64_t{1} << 22;

struct TokenDraw {
  uint64_t number;  // uniform, in units of 2^-64
  double top_p;     // in (0, 1]; 1: off
  float scale;      // 1 / temperature, above 0
  float reach;      // a logit is kept if it is at least the largest plus this, at most 0; -inf: off
  float penalty;    // of the logits of ids that were seen
  int32_t greedy;   // 1: the largest logit, the first among equals, whatever the filters
  int32_t top_k;    // in [0, vocab); 0: off
  int32_t row;      // of the logits
  int32_t forced;   // in [0, vocab): nothing is drawn, the log probability is of this id; -1: none
  int32_t allowed;  // the mask of the ids that may be drawn; -1: all may
  int32_t seen;     // the mask of the ids that the penalty is for; -1: none
};

struct DrawnToken {
  int32_t id;      // -1: the logits are not finite
  float log_prob;  // under the softmax of the row's logits as they are
};

struct TokenDraws {
  const float* logits;  // [rows, vocab]
  int64_t vocab;        // in [1, max_drawn_vocab]
  const TokenDraw* draws;
  int64_t count;
  const uint32_t* masks;  // [masks, mask_words(vocab)], as core/generate/id_mask.h has them
  DrawnToken* drawn;      // [count]
};

// One launch.
cudaError_t draw_tokens(const TokenDraws& given, cudaStream_t stream);

}  // namespace nlac::cuda
