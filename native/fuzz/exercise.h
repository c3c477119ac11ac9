// Used by the fuzzers, and by the mutation test that runs without libFuzzer: parses an input; if it
// was accepted, checks the parser's guarantees and uses the result. A refusal is an nlac::Error;
// any other exception, a broken guarantee (abort) or a sanitizer's finding is a bug.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/io/gguf.h"
#include "core/io/safetensors.h"
#include "core/model/config.h"

namespace nlac::fuzz {

inline void promise(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Whether `use` finished; false when it refused its input with an error of ours.
template <typename Use>
bool accepted(Use use) {
  try {
    use();
    return true;
  } catch (const Error& error) {
    promise(std::string_view(error.code()).starts_with("ERR_"), "an error has a code");
    const std::string_view text = error.what();
    promise(!text.empty() && text.size() < 4096, "an error has a message of sane length");
    return false;
  }
}

// Tensors lie inside the file and beside each other, and hold what their shapes say.
inline void check_tensors(const uint8_t* data, size_t size, const std::vector<TensorEntry>& tensors) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& tensor : tensors) {
    promise(tensor.data >= data && tensor.data <= data + size, "a tensor starts inside the file");
    promise(tensor.bytes <= static_cast<size_t>(data + size - tensor.data), "a tensor ends inside the file");
    promise(tensor.elements() >= 0, "a tensor's size is not negative");
    promise(static_cast<uint64_t>(tensor.elements()) <= 2 * tensor.bytes,
            "a value takes half a byte or more");
    if (tensor.bytes > 0) order.push_back(&tensor);

    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    accepted([&] { dequantize(tensor, 0, tensor.elements(), values.data()); });
    if (tensor.elements() > 32) {
      accepted([&] { dequantize(tensor, 32, tensor.elements() - 33, values.data()); });
    }
    promise(!accepted([&] { dequantize(tensor, 0, tensor.elements() + 1, values.data()); }),
            "reading past a tensor is refused");
  }
  std::sort(order.begin(), order.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->data < b->data; });
  for (size_t i = 1; i < order.size(); ++i) {
    promise(order[i - 1]->data + order[i - 1]->bytes <= order[i]->data, "tensors do not overlap");
  }
}

// An accepted configuration is one that can be written and read again.
inline void check_config(const ModelConfig& config) {
  promise(config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0, "heads divide");
  promise(config.head_dim > 0 && config.head_dim % 2 == 0, "the head dimension is even");
  promise(config.hidden_size > 0 && config.layers > 0 && config.vocab_size > 0, "sizes are positive");
  const std::string json = config.to_json("float32");
  promise(accepted([&] {
            promise(ModelConfig::from_json(json).to_json("float32") == json, "a configuration survives JSON");
          }),
          "a written configuration is read");
}

inline void exercise_safetensors(const uint8_t* data, size_t size) {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  if (accepted([&] { parse_safetensors(data, size, "fuzz", tensors, metadata); })) {
    check_tensors(data, size, tensors);
  }
}

inline void exercise_gguf(const uint8_t* data, size_t size) {
  std::vector<TensorEntry> tensors;
  GgufMetadata metadata;
  if (!accepted([&] { parse_gguf(data, size, "fuzz", metadata, tensors); })) return;
  check_tensors(data, size, tensors);
  for (const bool has_output : {false, true}) {
    ModelConfig config;
    if (accepted([&] { config = ModelConfig::from_gguf(metadata, has_output); })) check_config(config);
  }
}

inline void exercise_config(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  ModelConfig config;
  if (accepted([&] { config = ModelConfig::from_json(text); })) check_config(config);
}

}  // namespace nlac::fuzz
