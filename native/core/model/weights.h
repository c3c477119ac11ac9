// A decoder's parameters as torch tensors, fused as the core computes: q, k and v in one matrix,
// gate and up in one (layer.h). There are three kinds, each with or without heads: a plain model;
// an adapted model, with adapters; and adapters alone, where the model's tensors are undefined.
// Thread rule: owned by the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/loss/soft_q.h"
#include "core/model/config.h"
#include "core/model/layer.h"

namespace nlac {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Heads that read the final hidden states, besides the vocabulary matrix. They are trained,
// averaged and saved like any other parameter. A plain model has none.
enum class Heads {
  none,
  value,  // the value of the state before the token that is predicted; linear, begins at zero
  q,      // the twin soft Q heads of soft actor-critic; begin as the policy
};
const char* heads_name(Heads heads);                      // "none", "value", "q"
std::optional<Heads> heads_named(std::string_view name);  // nothing for another name

struct Weights {
  at::Tensor embedding;  // [vocab, hidden]
  LayerInputTables layer_inputs;
  std::vector<LayerWeights> layers;
  at::Tensor norm;        // [hidden]
  at::Tensor head;        // [vocab, hidden]; the same tensor as `embedding` when tied
  at::Tensor value;       // [1, hidden]; Heads::value
  at::Tensor value_bias;  // [1]
  TwinQ q;                // Heads::q

  bool adapted() const;
  // The trained tensors in a fixed order: the adapters' if there are any, else the model's (a tied
  // head once), then the heads'. The optimizer and the EMA use this list.
  std::vector<at::Tensor> list() const;
  // The same structure with make(tensor) for every defined tensor. Ties are preserved.
  Weights map(const std::function<at::Tensor(const at::Tensor&)>& make) const;
  // Tensors of the same shapes in another type: uninitialised, zeroed or copied.
  Weights like(at::ScalarType dtype, at::Device device) const;
  Weights zeros_like(at::ScalarType dtype) const;
  Weights copy_as(at::ScalarType dtype, at::Device device) const;
  // The same tensors as views, one per projection, with their Hugging Face names (peft's for
  // adapters). A tied head is omitted. The value head is value_head.weight and value_head.bias, Q
  // heads are q_heads.I.advantage and q_heads.I.value.
  // `stacks`: as an export has them, some families' experts as whole stacks.
  NamedTensors named_views(const ModelConfig& config, bool stacks = false) const;

  Heads heads() const {
    return value.defined() ? Heads::value : q[0].advantage.defined() ? Heads::q : Heads::none;
  }
  Weights without_heads() const;          // the same tensors
  void add_heads(Heads heads);            // as they begin, float32, if they are not there yet
  void take_heads(const Weights& other);  // those of another, shared
  // Initialises the Q heads on `model`: their maximum-entropy policy is its policy, their values
  // are small and differ.
  void reset_q_heads(const Weights& model) const;
};

// Allocates uninitialised weights of `config`. Heads are always float32.
Weights allocate_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device,
                         Heads heads = Heads::none);

struct LoadedModel {
  ModelConfig config;
  Weights weights;      // in the type asked for; heads float32
  int64_t skipped = 0;  // tensors of other parts, like a vision tower, that were not loaded
};

// Loads an HF directory (config.json + safetensors) or a .gguf file, whose rows, columns and values
// are converted to HF's (gguf_layout.h). MXFP4 is expanded. Every expected tensor must exist with
// its shape; unexpected tensors are an error, except known buffers (rotary_emb.inv_freq, a tied
// lm_head.weight), heads that are not requested, and all but the text part of a model of text and
// images. Requested `heads` that the directory lacks are initialised. `dtype` is float32 or
// bfloat16. generation_config.json may add to eos_token_ids. Throws ERR_MODEL_NOT_FOUND,
// ERR_MODEL_FORMAT, ERR_IO, ERR_VALUE.
LoadedModel load_model(const std::string& path, at::ScalarType dtype, at::Device device,
                       Heads heads = Heads::none);

// The configuration that load_model reads of a .gguf file, without its weights. Throws as load_model
// does.
ModelConfig gguf_config(const std::string& path);

// Returns a checksum of every tensor that load_model(path) reads: names, shapes, types and stored
// bytes. It does not depend on how the model is split into files. Throws as load_model does.
uint64_t model_checksum(const std::string& path);

// Writes a safetensors file. Throws ERR_IO.
void write_tensors(const std::string& path, const NamedTensors& tensors, at::ScalarType dtype = at::kFloat);

// Writes config.json, model.safetensors (HF names, `dtype`) and generation_config.json into
// `directory`. Heads are omitted, because other programs expect a plain model.
void export_huggingface(const std::string& directory, const ModelConfig& config, const Weights& weights,
                        at::ScalarType dtype);

}  // namespace nlac
