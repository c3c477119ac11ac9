// Inputs that each layer gets of every token, besides the stream (Gemma 4's per-layer embeddings). A
// token's input to layer l has n numbers,
//
//   input_l = (norm(project_l(e) / √hidden) + √n · table_l[token]) / √2
//
// with the token's embedding e. After the other branches, the layer adds one of its own to the stream x:
//
//   x + norm(projection(act(gate(x)) · input_l))
//
// Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/model/config.h"
#include "core/model/parameters.h"
#include "core/model/passes.h"

namespace nlac {

// What the inputs of all layers are made from. Undefined without config.layer_input_size.
struct LayerInputTables {
  at::Tensor rows;     // [layer_input_vocab, layers * n]
  at::Tensor project;  // [layers * n, hidden]
  at::Tensor norm;     // [n]

  std::vector<at::Tensor*> tensors() { return {&rows, &project, &norm}; }
};

// The parameters of the tables, in the order of tensors(), with the names of files.
std::vector<Parameter> layer_table_parameters(const ModelConfig& config, LayerInputTables& tables);

// The inputs [tokens, layers, n] of `ids`, whose embeddings are `embedded` [tokens, hidden].
at::Tensor layer_inputs(const LayerInputTables& tables, const ModelConfig& config, const at::Tensor& ids,
                        const at::Tensor& embedded);
// The same of inference: on a CPU a token's inputs have the same bits in every batch.
at::Tensor infer_layer_inputs(const LayerInputTables& tables, const ModelConfig& config,
                              PackedMatrices& matrices, const at::Tensor& ids, const at::Tensor& embedded);
// Given the gradient at the inputs, returns that at `embedded`, and adds the others to `into`.
at::Tensor layer_inputs_backward(const LayerInputTables& tables, const ModelConfig& config,
                                 const at::Tensor& ids, const at::Tensor& embedded, const at::Tensor& grad,
                                 LayerInputTables& into);

// A layer's branch. It is not adapted.
struct LayerInputWeights {
  at::Tensor gate;        // [n, hidden]
  at::Tensor projection;  // [hidden, n]
  at::Tensor norm;        // [hidden]

  std::vector<at::Tensor*> tensors() { return {&gate, &projection, &norm}; }
};
std::vector<Parameter> layer_input_parameters(const ModelConfig& config, LayerInputWeights& weights);

// What backward needs.
struct LayerInputTape {
  at::Tensor x;           // [tokens, hidden], the stream before
  at::Tensor gate_input;  // [tokens, 2n]: gate(x), and the input
  at::Tensor projected;   // [tokens, hidden], before the norm
};

// `inputs` [tokens, n] are this layer's.
at::Tensor layer_input_forward(const LayerInputWeights& weights, const ModelConfig& config,
                               const at::Tensor& x, const at::Tensor& inputs, LayerInputTape& tape);
// Returns the gradient at x, writes that at the inputs to `at_inputs` [tokens, n] (undefined: left out),
// and adds the others to `into`.
at::Tensor layer_input_backward(const LayerInputWeights& weights, const ModelConfig& config,
                                const LayerInputTape& tape, const at::Tensor& grad, at::Tensor at_inputs,
                                LayerInputWeights& into);
// x [tokens, hidden] f32 (f64 for f64) becomes the sum.
void layer_input_infer(const LayerInputWeights& weights, const ModelConfig& config, InferencePass& pass,
                       int64_t layer, at::Tensor x);

}  // namespace nlac
