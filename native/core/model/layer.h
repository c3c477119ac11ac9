// One layer: two residual branches, x + after(part(before(x))), the mixer's and the feed-forward
// part's; in some families a third of the layer's own inputs (layer_inputs.h), and a number that
// multiplies the result. LayerKind says which parts; norms that the family lacks are undefined and left
// out. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/model/attention_part.h"
#include "core/model/config.h"
#include "core/model/delta_part.h"
#include "core/model/experts_beside.h"
#include "core/model/experts_part.h"
#include "core/model/feed_forward.h"
#include "core/model/layer_inputs.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

struct BranchNorms {
  at::Tensor before, after;  // [hidden]
};

// Only the tensors of the layer's own parts are defined.
struct LayerWeights {
  BranchNorms mixer_norms;
  AttentionWeights attention;  // Mixer::attention
  DeltaWeights delta;          // Mixer::delta
  BranchNorms feed_forward_norms;
  FeedForwardWeights feed_forward;  // FeedForward::gated or beside
  ExpertsWeights experts;           // FeedForward::experts or beside
  BesideNorms beside;               // FeedForward::beside
  LayerInputWeights inputs;         // with config.layer_input_size
  // [1], with config.layer_scalars. It is not trained: its gradient stays 0, and with it the optimizer's
  // updates.
  at::Tensor scalar;

  // All that a layer of any kind can have, in the order of Weights::list().
  std::vector<at::Tensor*> tensors();
  std::vector<const at::Tensor*> tensors() const;
  std::vector<AdaptedMatrix> adapted();
  std::vector<Adapter*> adapters();
  std::vector<const Adapter*> adapters() const;
};

// The parameters of layer `layer` of `config`'s model, in the order of tensors(). They point into
// `weights`.
std::vector<Parameter> layer_parameters(const ModelConfig& config, int64_t layer, LayerWeights& weights);

// A layer's activations. With recomputation only `input` is kept.
struct LayerTape {
  at::Tensor input;  // [tokens, hidden]
  AttentionTape attention;
  DeltaTape delta;
  at::Tensor mixed;   // [tokens, hidden], the mixer's output; defined if a norm follows
  at::Tensor middle;  // [tokens, hidden], the residual stream between the branches
  FeedForwardTape feed_forward;
  ExpertsTape experts;
  BesideTape beside;
  at::Tensor fed;  // [tokens, hidden], the feed-forward part's output; defined if a norm follows
  LayerInputTape inputs;
};

// input [tokens, hidden] → [tokens, hidden]. `index` is the layer's. With `tape_only` the result may be
// undefined: only the tape is wanted, for backward.
at::Tensor layer_forward(const LayerWeights& layer, const ModelConfig& config, int64_t index,
                         const PackedPass& pass, const at::Tensor& input, LayerTape& tape,
                         bool tape_only = false);
// `grad` is the gradient at layer_forward's result. Returns the gradient at its input, and adds the
// others to `into`.
at::Tensor layer_backward(const LayerWeights& layer, const ModelConfig& config, int64_t index,
                          const PackedPass& pass, const LayerTape& tape, const at::Tensor& grad,
                          LayerWeights& into);
// Inference: x [tokens, hidden] f32 (f64 for f64) becomes the layer's output.
void layer_infer(const LayerWeights& layer, const ModelConfig& config, int64_t index, InferencePass& pass,
                 const at::Tensor& x);

}  // namespace nlac
