// Losses of preference pairs (preference_math.h) with the vocabulary matrix fused in.
//
// The gradient at a token's log probability is one number per response, and is known only once both
// responses of the pair are. So the vocabulary's products are computed twice: log probabilities
// first, then an NLL whose row weights are minus that number. The alternative, to hold each
// response's gradient of the matrix until its factor is known, takes [vocab, hidden] per response.
// The second pass costs one more product on response tokens, and none in the decoder: 2·vocab·H of
// about 6·parameters operations, which is 7 % for SmolLM2-135M and 4 % for Llama-3.2-3B, less with
// a prompt.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/loss/linear_loss.h"
#include "core/loss/preference_math.h"

namespace nlac {

// Pair i consists of the texts 2i (chosen) and 2i + 1 (rejected).
struct PreferenceInputs {
  at::Tensor targets;              // [rows] i64 in [0, vocab): the texts' tokens, one after another
  std::vector<int64_t> offsets;    // [2·pairs + 1]: text k has the rows offsets[k] to offsets[k + 1]
  std::vector<double> references;  // [2·pairs] log probabilities of the texts under the reference
  std::vector<double> weights;     // [pairs]; a pair of weight 0 is left out, and its results are 0
};

struct PreferenceResult {
  std::vector<double> losses;     // [pairs], unweighted
  std::vector<double> log_probs;  // [2·pairs], summed over a text's tokens, nats
  at::Tensor grad_hidden;         // [rows, H] in the hidden's type; undefined without gradient
};

// hidden [rows, H], head [vocab, H]; both as in linear_loss.h, which also has `options`,
// `grad_head`, the errors and the thread rule. Gradients are those of Σ weights·losses. If a loss
// is not finite, no gradient is computed and grad_hidden is NaN. Waits for the device three times.
PreferenceResult linear_token_preference(const at::Tensor& hidden, const at::Tensor& head,
                                         const PreferenceInputs& inputs, const PreferenceLoss& loss,
                                         const LossOptions& options, const at::Tensor& grad_head);

// Throws ERR_VALUE for an option out of range.
void check_preference(const PreferenceLoss& loss);

}  // namespace nlac
