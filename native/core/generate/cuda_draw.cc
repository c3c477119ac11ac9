#include "core/generate/cuda_draw.h"

#ifdef NLAC_CUDA

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

#include "core/cuda_error.h"
#include "core/generate/draw_math.h"
#include "core/generate/id_mask.h"
#include "core/model/kv_store.h"  // NLAC_KERNEL_DEVICE
#include "cuda/draw.h"

namespace nlac {
namespace {

cuda::TokenDraw told_of(const CudaDraw& draw, int64_t vocab) {
  const GenerateRequest& request = *draw.request;
  const DrawSettings settings = draw_settings(request, draw.step);
  return {.number = static_cast<uint64_t>(settings.number * 0x1p64),
          .top_p = request.top_p,
          .scale = settings.scale,
          .reach = settings.reach,
          .penalty = static_cast<float>(request.repetition_penalty),
          .greedy = request.temperature == 0,
          .top_k = static_cast<int32_t>(request.top_k < vocab ? request.top_k : 0),
          .row = static_cast<int32_t>(draw.row),
          .forced = static_cast<int32_t>(draw.forced),
          .allowed = -1,
          .seen = -1};
}

}  // namespace

bool can_draw_on_gpu(const at::Tensor& logits) {
  return logits.device().type() == NLAC_KERNEL_DEVICE && logits.scalar_type() == at::kFloat &&
         logits.size(1) <= cuda::max_drawn_vocab;
}

void draw_on_gpu(const at::Tensor& logits, std::vector<CudaDraw>& draws) {
  if (draws.empty()) return;
  const c10::cuda::OptionalCUDAGuard guard(logits.device());
  const at::Tensor rows = logits.contiguous();
  const int64_t vocab = rows.size(1), words = mask_words(vocab), count = static_cast<int64_t>(draws.size());

  // One tensor holds all inputs: the draws, then the masks.
  std::vector<cuda::TokenDraw> told;
  std::vector<std::span<const uint32_t>> masks;
  const auto add = [&](std::span<const uint32_t> mask) {
    if (mask.empty()) return -1;
    NLAC_REQUIRE(static_cast<int64_t>(mask.size()) == words, "ERR_INTERNAL",
                 "a mask is for another vocabulary");
    masks.push_back(mask);
    return static_cast<int32_t>(masks.size()) - 1;
  };
  for (const CudaDraw& draw : draws) {
    told.push_back(told_of(draw, vocab));
    told.back().allowed = add(draw.allowed);
    told.back().seen = add(draw.seen);
  }
  const int64_t draw_bytes = count * static_cast<int64_t>(sizeof(cuda::TokenDraw)), mask_bytes = words * 4;
  const at::Tensor here =
      at::empty({draw_bytes + mask_bytes * static_cast<int64_t>(masks.size())}, at::TensorOptions(at::kByte));
  uint8_t* to = here.mutable_data_ptr<uint8_t>();
  std::memcpy(to, told.data(), static_cast<size_t>(draw_bytes));
  to += draw_bytes;
  for (const auto mask : masks) {
    std::memcpy(to, mask.data(), mask.size_bytes());
    to += mask_bytes;
  }
  const at::Tensor there = here.to(rows.device());
  const at::Tensor drawn =
      at::empty({count * static_cast<int64_t>(sizeof(cuda::DrawnToken))}, there.options());
  const uint8_t* from = there.const_data_ptr<uint8_t>();
  const cudaError_t status =
      cuda::draw_tokens({rows.const_data_ptr<float>(), vocab, reinterpret_cast<const cuda::TokenDraw*>(from),
                         count, reinterpret_cast<const uint32_t*>(from + draw_bytes),
                         reinterpret_cast<cuda::DrawnToken*>(drawn.mutable_data_ptr<uint8_t>())},
                        c10::cuda::getCurrentCUDAStream());
  check_cuda(status, "drawing tokens");

  const at::Tensor back = drawn.to(at::kCPU);
  const auto* result = reinterpret_cast<const cuda::DrawnToken*>(back.const_data_ptr<uint8_t>());
  for (CudaDraw& draw : draws) {
    draw.token = result->id;
    draw.log_prob = result->log_prob;
    ++result;
  }
}

}  // namespace nlac

#else

namespace nlac {

bool can_draw_on_gpu(const at::Tensor&) { return false; }

void draw_on_gpu(const at::Tensor&, std::vector<CudaDraw>&) {}

}  // namespace nlac

#endif
