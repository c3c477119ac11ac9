// Soft Q-learning on tokens with the vocabulary matrices fused in, for soft actor-critic (Haarnoja
// et al., "Soft actor-critic algorithms and applications", 2018) in which a token is an action.
//
// A Q head has the dueling form Q(s, a) = V(s) + α·log softmax(advantage · h)_a with V(s) = value ·
// h, so that V is exactly the soft value α·log Σ_a exp(Q / α). With π = softmax(head · h), and a
// bar for what θ̄ predicts:
//
//   target   y = r + γ·V̄(s'),  V̄(s) = Σ_a π(a|s)·(min(Q̄1, Q̄2) - α·log π(a|s));
//            y = r at the last action
//   q        ½ (Q1(s, a) - y)² + ½ (Q2(s, a) - y)²              of the generated token
//   policy   KL(π ‖ softmax(min(Q1, Q2) / α))                   nats
//
// No gradient flows through y, nor from the policy's loss into Q. Tensors of the logits' size exist
// only a chunk of rows at a time. Chunks go from the last row to the first, because a target needs
// the value of the next row.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>

namespace nlac {

struct QHead {
  at::Tensor advantage;  // [vocab, H]
  at::Tensor value;      // [1, H]
};

// Two heads: their minimum reduces overestimation.
using TwinQ = std::array<QHead, 2>;

// Hidden states, and the parameters that score them. All f32, bf16 or f64, of one type.
struct SoftQSide {
  at::Tensor hidden;  // [rows, H]
  at::Tensor head;    // [vocab, H], the policy's matrix; not read of θ̄
  TwinQ q;
};

// Inputs by row, in the order of the texts' tokens.
struct SoftQRows {
  at::Tensor actions;   // [rows] i64 in [0, vocab): the generated token
  at::Tensor rewards;   // [rows] real: the reward after it
  at::Tensor terminal;  // [rows] bool: true where a text's actions end; elsewhere s' is the next row's state
  at::Tensor row_weights;  // [rows] real
};

struct SoftQOptions {
  double temperature = 1;         // α, finite, above 0
  double discount = 1;            // γ, from 0 to 1
  double q_coefficient = 1;       // ≥ 0
  double policy_coefficient = 1;  // ≥ 0
  bool with_gradient = true;
  bool detached = false;  // the gradient of q ends at the heads: grad_hidden has none of it
};

// Float32 buffers of the online side's shapes, to which gradients are added. `head` undefined:
// omitted.
struct SoftQGradients {
  at::Tensor head;
  TwinQ q;
};

// [rows] each; "real" is f32, or f64 for f64 inputs. Losses are unweighted.
struct SoftQResult {
  at::Tensor q_losses, policy_losses;
  at::Tensor q;            // of the generated token, the smaller of the two
  at::Tensor targets;      // y
  at::Tensor entropies;    // of π, nats
  at::Tensor grad_hidden;  // [rows, H] in the hidden's type; undefined without gradient
};

// The gradients are those of Σ row_weights·(q_coefficient·q + policy_coefficient·policy). Logits,
// log-sum-exp and values are real for every type of input. Inputs are not checked for NaN and
// infinity: these make the losses of their row non-finite, and those of the row before if they come
// from θ̄ or the policy. Throws ERR_SHAPE, ERR_VALUE.
//
// On CUDA the gradient at bf16 logits is rounded to bf16 once, for the products of the backward
// pass. Thread rule: any one thread at a time per buffer; asynchronous on the current stream.
SoftQResult linear_soft_q(const SoftQSide& online, const SoftQSide& target, const SoftQRows& rows,
                          const SoftQOptions& options, const SoftQGradients& gradients);

// Throws ERR_VALUE for an option out of range.
void check_soft_q(const SoftQOptions& options);

}  // namespace nlac
