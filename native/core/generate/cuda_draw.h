// Drawing tokens where a GPU has their logits, by native/cuda/draw.h: what goes there and comes back is a few numbers a
// token, and masks of ids for texts that are held to some. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/generate/request.h"

namespace nlac {

// One token, as sample_token chooses it after constrain.
struct CudaDraw {
  const GenerateRequest* request = nullptr;
  int64_t step = 0;     // the request's new tokens so far
  int64_t row = 0;      // of the logits
  int64_t forced = -1;  // the id that is taken; -1: one is drawn
  // Masks (id_mask.h) of the ids that may come, and of those in the prompt or written before. Empty: all may, and
  // there is no penalty. They stay while tokens are drawn.
  std::span<const uint32_t> allowed, seen;
  int64_t token = -1;  // what is drawn; -1: the logits are not finite
  float log_prob = 0;
};

// Whether draw_on_gpu takes `logits` [rows, vocab]: float32 ones on a GPU, of 2^22 ids at most. Never without CUDA.
bool can_draw_on_gpu(const at::Tensor& logits);
// Sets each draw's token and log_prob; waits for the GPU. Throws ERR_DEVICE.
void draw_on_gpu(const at::Tensor& logits, std::vector<CudaDraw>& draws);

}  // namespace nlac
