// The rows of a token loss on a GPU (core/loss/rows.h): from float32 logits to losses and to the gradient at
// the logits. Plain pointers on the device, no torch. Asynchronous on `stream`; results are the same every
// time.
//
// A row is the work of one block, or, for a long row where the chip has them (Hopper and later), of a cluster
// of up to eight: then the rows in the works, some 30 of them, stay within the second-level cache, and what
// follows the first pass over the logits does not go to memory again. Any vocabulary and stride; 16 bytes at
// a time where pointers and strides are multiples of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/loss/row_loss.h"

namespace nlac::cuda {

// Strides are in elements. What a loss does not need, or is not asked for, is null. Results are not
// multiplied by the weights.
struct TokenRows {
  int64_t count = 0, vocab = 0;  // at least 0 and 1; count below 2^28
  float inverse_temperature = 1;
  float* student = nullptr;  // [count, vocab] logits
  int64_t student_stride = 0;
  // [count, vocab], float or bf16: `student` itself, or memory that shares nothing with the logits.
  void* gradient = nullptr;
  int64_t gradient_stride = 0;
  bool gradient_is_bf16 = false;
  const float* weights = nullptr;  // [count]
  float* losses = nullptr;         // [count]

  // A loss against a teacher:
  float* teacher = nullptr;  // [count, vocab] logits
  int64_t teacher_stride = 0;
  // With a bucket: the teacher's k best of each row and both rows' logits there, [count, top_k] each, top_k <
  // vocab. They are then overwritten with -inf in the rows themselves.
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

// One launch. RowLoss::temperature and RowLoss::top_k are not read: their likes above are.
cudaError_t token_rows(const RowLoss& loss, const TokenRows& rows, cudaStream_t stream);

}  // namespace nlac::cuda
