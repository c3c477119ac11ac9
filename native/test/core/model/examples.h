// Recorded runs of tiny decoders, and the gradients that the losses would give.
#pragma once

#include <torch/torch.h>

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
    at::Tensor tensor = at::empty(entry.shape, entry.type == StoredType::i64 ? at::kLong : at::kFloat);
    std::memcpy(tensor.data_ptr(), entry.data, entry.bytes);
    tensors[entry.name] = tensor;
  }
  return tensors;
}

// A model of test/fixtures/models and a run of it, recorded in the folder `reference` of test/fixtures.
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

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

inline at::ScalarType gradient_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Adds the gradients of Σ -log p(next token), the head's part included, as the losses would give them.
inline void add_gradients(Decoder& decoder, const Weights& weights, const Example& example, bool recompute,
                          Weights& gradients) {
  std::shared_ptr<Decoder::Tape> tape;
  const at::Tensor hidden = decoder.forward(weights, example.ids, example.lengths, recompute, tape);
  at::Tensor at_logits = at::softmax(at::mm(hidden, weights.head.t()), -1);
  int64_t row = 0;
  for (const int64_t length : example.lengths) {
    for (int64_t i = 0; i + 1 < length; ++i, ++row) at_logits[row][example.ids[row + 1].item<int64_t>()] -= 1;
    at_logits[row++].zero_();  // the last token has no next
  }
  if (gradients.head.defined()) gradients.head.add_(at::mm(at_logits.t(), hidden));
  decoder.backward(weights, tape, at::mm(at_logits, weights.head), gradients);
}

}  // namespace nlac::test
