// Samples tokens on the GPU that holds their logits, by native/cuda/draw.h. Only a few numbers per
// token, and masks of ids, cross between host and device. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/generate/request.h"

namespace nlac {

// One draw, with the result of constrain and sample_token.
struct CudaDraw {
  const GenerateRequest* request = nullptr;
  int64_t step = 0;     // the request's new tokens so far
  int64_t row = 0;      // of the logits
  int64_t forced = -1;  // the id that is taken; -1: one is drawn
  // Masks (id_mask.h) of the allowed ids, and of those in the prompt or generated before. Empty:
  // all are allowed, and there is no penalty. They must outlive the call.
  std::span<const uint32_t> allowed, seen;
  int64_t token = -1;  // the drawn id; -1: the logits are not finite
  float log_prob = 0;
};

// Whether draw_on_gpu accepts `logits` [rows, vocab]: float32 on a GPU, at most 2^22 ids. False
// without CUDA.
bool can_draw_on_gpu(const at::Tensor& logits);
// Sets token and log_prob of each draw. Waits for the GPU. Throws ERR_DEVICE.
void draw_on_gpu(const at::Tensor& logits, std::vector<CudaDraw>& draws);

}  // namespace nlac
