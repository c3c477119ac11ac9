// Causal attention over packed texts by libtorch's flash kernels of a GPU, whose memory is linear in
// the length. Thread rule: the learner's thread.
#pragma once

#include <cstdint>

#include "core/model/attention.h"

namespace nlac {

// Whether the kernels support these keys or values: bfloat16 on a GPU, heads of up to 256 dimensions.
// NLAC_FLASH_ATTENTION=0 in the environment refuses all.
bool takes_flash(const at::Tensor& keys);

// Where the texts of a packed stream begin, and the end: [texts + 1] i32 on the device.
struct Starts {
  at::Tensor of;
  int64_t longest;  // text, tokens
};

// Queries of each text's last tokens against all of its keys. The result's logsumexp is one tensor.
Attended flash_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                         const Starts& queries_at, const Starts& keys_at, const Sight& sight);

// packed_attention_backward. It adds in no fixed order: its last bits differ from call to call.
void flash_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const Attended& attended, const Starts& starts,
                              at::Tensor grad_q, at::Tensor grad_k, at::Tensor grad_v, const Sight& sight);

}  // namespace nlac
