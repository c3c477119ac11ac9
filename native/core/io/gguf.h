// Reads GGUF v3 (little-endian): metadata and tensors, with the same checks as safetensors.h.
// Tensor types F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0 and MXFP4; another type
// is ERR_MODEL_FORMAT that names it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/io/mapped_file.h"
#include "core/io/tensor_entry.h"

namespace nlac {

// A metadata value. Arrays are homogeneous; nested arrays are refused.
using GgufValue =
    std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<uint64_t>, std::vector<int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;
using GgufMetadata = std::map<std::string, GgufValue>;

struct GgufFile {
  std::shared_ptr<const MappedFile> file;
  GgufMetadata metadata;
  std::vector<TensorEntry> tensors;  // names as in the file: blk.0.attn_q.weight, …
};

// Entry point of the fuzzer. `path` is for messages only.
void parse_gguf(const uint8_t* data, size_t size, const std::string& path, GgufMetadata& metadata,
                std::vector<TensorEntry>& tensors);

GgufFile open_gguf(const std::string& path);

}  // namespace nlac
