// Recorded runs of tiny decoders, and the gradients that the losses would give.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "test/core/fixtures.h"

namespace nlac::test {

inline std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const SafetensorsFile file = open_safetensors(path);
  std::map<std::string, at::Tensor> tensors;
  for (const TensorEntry& entry : file.tensors) {
    REQUIRE_MESSAGE((entry.type == StoredType::i64 || entry.type == StoredType::f32), entry.name);
    at::Tensor tensor = at::empty(entry.shape, entry.type == StoredType::i64 ? at::kLong : at::kFloat);
    std::memcpy(tensor.data_ptr(), entry.data, entry.bytes);
    tensors[entry.name] = tensor;
  }
  return tensors;
}

// A model of test/fixtures/models and a run of it, recorded in the folder `reference` of
// test/fixtures.
struct Example {
  std::map<std::string, at::Tensor> reference;
  LoadedModel model;
  std::vector<int64_t> lengths;
  at::Tensor ids;

  Example(const std::string& name, at::ScalarType dtype, const std::string& folder)
      : reference(read_tensors(fixture(folder + "/" + name + "/reference.safetensors"))),
        model(load_model(fixture("models/" + name), at::kFloat, at::kCPU)),
        ids(reference.at("ids")) {
    model.weights = model.weights.copy_as(dtype, at::kCPU);
    const at::Tensor& held = reference.at("lengths");
    lengths.assign(held.data_ptr<int64_t>(), held.data_ptr<int64_t>() + held.numel());
  }
};

// An export of the model in `directory` has the tensors of its fixture, and no others.
inline void check_exported_tensors(const std::string& name, const std::string& directory) {
  const auto before = read_tensors(fixture("models/" + name + "/model.safetensors"));
  const auto after = read_tensors(directory + "/model.safetensors");
  CHECK(before.size() == after.size());
  for (const auto& [key, tensor] : before) {
    CAPTURE(key);
    REQUIRE(after.count(key) == 1);
    CHECK(at::equal(tensor, after.at(key)));
  }
}

// Models with random weights, for inference on a GPU: heads of several widths in groups of several
// sizes, with and without what Qwen 2 and 3 have besides Llama.
inline std::vector<ModelConfig> shapes_for_gpu() {
  std::vector<ModelConfig> shapes;
  const auto add = [&](int64_t heads, int64_t kv_heads, int64_t head_dim, bool qk_norm, bool qkv_bias) {
    ModelConfig& config = shapes.emplace_back();
    config.vocab_size = 61;
    config.hidden_size = 48;
    config.intermediate_size = 72;
    config.layers = 2;
    config.heads = heads, config.kv_heads = kv_heads, config.head_dim = head_dim;
    config.qk_norm = qk_norm, config.qkv_bias = qkv_bias;
    config.max_positions = 256;
  };
  add(4, 2, 40, true, false);
  add(7, 1, 128, false, true);
  add(3, 3, 64, true, true);
  add(9, 1, 24, false, false);
  return shapes;
}
inline Weights random_weights(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  at::manual_seed(11);
  const Weights weights = allocate_weights(config, at::kFloat, at::kCPU);
  for (const at::Tensor& tensor : weights.list()) {
    tensor.normal_(0, 0.2);
    if (tensor.dim() == 1) tensor.add_(1);
  }
  return weights.copy_as(dtype, device);
}

inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

inline at::ScalarType gradient_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Adds the gradients of Σ -log p(next token), the head's part included, as the losses would give
// them.
inline void add_gradients(Decoder& decoder, const Weights& weights, const Example& example, bool recompute,
                          Weights& gradients) {
  std::shared_ptr<Decoder::Tape> tape;
  const at::Tensor hidden = decoder.forward(weights, example.ids, example.lengths, recompute, tape);
  at::Tensor capped = at::mm(hidden, weights.head.t()), slopes = at::ones_like(capped);
  if (example.model.config.logit_cap > 0) {
    const at::Tensor tangent = at::tanh(capped / example.model.config.logit_cap);
    capped = tangent * example.model.config.logit_cap;
    slopes = 1 - tangent.square();
  }
  at::Tensor at_logits = at::softmax(capped, -1);
  int64_t row = 0;
  for (const int64_t length : example.lengths) {
    for (int64_t i = 0; i + 1 < length; ++i, ++row) at_logits[row][example.ids[row + 1].item<int64_t>()] -= 1;
    at_logits[row++].zero_();  // the last token has no next
  }
  at_logits.mul_(slopes);
  if (gradients.head.defined()) gradients.head.add_(at::mm(at_logits.t(), hidden));
  decoder.backward(weights, tape, at::mm(at_logits, weights.head), gradients);
}

// Sequences that are read in chunks; each has its own block table, and its state, in one store.
class CachedTexts {
 public:
  CachedTexts(const ModelConfig& config, at::TensorOptions options)
      : store_(config, options),
        recurrent_(StateStore::slot_bytes(config, options.dtype().toScalarType()) > 0) {}

  struct Share {
    size_t text;
    int64_t tokens;
  };
  // The next tokens of some sequences, as input of Decoder::infer.
  at::Tensor infer(Decoder& decoder, const Weights& weights, const at::Tensor& ids,
                   const std::vector<Share>& shares) {
    std::vector<KvSlice> slices;
    for (const auto& [text, tokens] : shares) {
      if (text >= tables_.size()) {
        tables_.resize(text + 1);
        lengths_.resize(text + 1);
      }
      if (recurrent_ && lengths_[text] == 0) {
        const auto count = static_cast<int64_t>(tables_.size());
        store_.states().reserve(count, count);
        store_.states().zero(static_cast<int32_t>(text));
      }
      lengths_[text] += tokens;
      // Blocks in no order, with gaps.
      while (static_cast<int64_t>(tables_[text].size()) * kBlockTokens < lengths_[text])
        tables_[text].push_back(next_ += next_ % 3 == 0 ? 2 : 5);
    }
    store_.reserve(next_ + 1, 1 << 20);
    for (const auto& [text, tokens] : shares)
      slices.push_back(
          {&tables_[text], lengths_[text] - tokens, tokens, recurrent_ ? static_cast<int32_t>(text) : -1});
    return decoder.infer(weights, ids, store_, slices);
  }
  // Truncates `text` to its first `length` tokens, in the same blocks.
  void cut(size_t text, int64_t length) { lengths_[text] = length; }
  // A copy of `text` in its own blocks.
  size_t fork(size_t text) {
    tables_.emplace_back();
    lengths_.push_back(lengths_[text]);
    for (const int32_t block : tables_[text]) {
      tables_.back().push_back(next_ += 1);
      store_.reserve(next_ + 1, 1 << 20);
      store_.copy(block, next_);
    }
    return tables_.size() - 1;
  }

 private:
  KvStore store_;
  bool recurrent_;
  std::vector<BlockTable> tables_;
  std::vector<int64_t> lengths_;
  int32_t next_ = 0;
};

}  // namespace nlac::test
