// Reads and writes safetensors files. No torch. Files are untrusted: header length, JSON, dtypes,
// shapes, products, offsets, gaps and overlaps are checked before any tensor is read. A violation
// is ERR_MODEL_FORMAT and names the file, the tensor and the fault.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/mapped_file.h"
#include "core/io/tensor_entry.h"

namespace nlac {

struct SafetensorsFile {
  std::shared_ptr<const MappedFile> file;  // keeps `tensors` alive
  std::vector<TensorEntry> tensors;        // in file order
  std::map<std::string, std::string> metadata;
};

// Parses `size` bytes at `data`. Entry point of the fuzzer. `path` is for messages only.
void parse_safetensors(const uint8_t* data, size_t size, const std::string& path,
                       std::vector<TensorEntry>& tensors, std::map<std::string, std::string>& metadata);

SafetensorsFile open_safetensors(const std::string& path);

// Returns the tensors of each shard that the text of a model.safetensors.index.json names. Entry
// point of the fuzzer. `path` is for messages only.
std::map<std::string, std::set<std::string>> parse_weight_index(std::string_view text,
                                                                const std::string& path);

// The files of an HF directory: model.safetensors, or the shards that model.safetensors.index.json
// names (names with a path separator are refused; a tensor missing from its shard or present twice
// is an error).
std::vector<SafetensorsFile> open_huggingface_weights(const std::string& directory);

// Writes a temporary file beside `path`, syncs it, and renames it to `path`. `tensors[i].data` must
// hold `tensors[i].bytes` bytes; the types are written as given (no block types). Throws ERR_IO.
void write_safetensors(const std::string& path, const std::vector<TensorEntry>& tensors,
                       const std::map<std::string, std::string>& metadata);

// The same for `bytes`; also syncs the directory. Throws ERR_IO.
void write_file_atomically(const std::string& path, const void* data, size_t bytes);

}  // namespace nlac
