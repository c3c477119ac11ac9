// The rows of a token loss on a GPU (core/loss/rows.h): from float32 logits to losses and to the
// gradient at the logits. Plain device pointers, no torch. Asynchronous on `stream`. Results are
// deterministic.
//
// A row is computed by one block, or, on Hopper and later, a long row by a cluster of up to eight
// blocks: the rows in flight, about 30, then stay in the L2 cache, and passes after the first do
// not read memory again. Any vocabulary and stride; accesses are 16 bytes wide if pointers and
// strides are multiples of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/loss/row_loss.h"

namespace nlac::cuda {

// Strides are in elements. Pointers that a loss does not need, or that are not requested, are null.
// Results are not multiplied by row_weights.
struct TokenRows {
  int64_t count = 0, vocab = 0;  // at least 0 and 1; count below 2^28
  float inverse_temperature = 1;
  float* student = nullptr;  // [count, vocab] logits
  int64_t student_stride = 0;
  // [count, vocab], float or bf16: `student` itself, or memory that shares nothing with the logits.
  void* gradient = nullptr;
  int64_t gradient_stride = 0;
  bool gradient_is_bf16 = false;
  const float* row_weights = nullptr;  // [count]
  float* losses = nullptr;             // [count]

  // A loss against a teacher:
  float* teacher = nullptr;  // [count, vocab] logits
  int64_t teacher_stride = 0;
  // With a bucket: the teacher's top k of each row and both rows' logits there, [count, top_k]
  // each, top_k < vocab. In the rows themselves these logits are -inf.
  int64_t top_k = 0;
  const int64_t* top = nullptr;
  const float *top_student = nullptr, *top_teacher = nullptr;

  // A loss on targets, [count] each:
  const int64_t* targets = nullptr;  // in [0, vocab)
  const float *old_log_probs = nullptr, *advantages = nullptr, *reference_log_probs = nullptr,
              *grad_log_probs = nullptr;
  float *log_probs = nullptr, *entropies = nullptr, *ratios = nullptr;
  int32_t* clipped = nullptr;
};

// One launch. RowLoss::temperature and RowLoss::top_k are ignored; the fields above replace them.
cudaError_t token_rows(const RowLoss& loss, const TokenRows& rows, cudaStream_t stream);

}  // namespace nlac::cuda
