// The file of a saved priority tree. No torch. Thread rule: pure functions of their arguments and
// the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/replay/priority_tree.h"
#include "core/replay/zeroed_memory.h"

namespace nlac {

struct TreeState {
  TreeOptions options;
  uint64_t draws;
  ZeroedMemory<float> priorities;  // [capacity], padded to whole nodes
};

// `priorities` [capacity], padded to whole nodes with 0. Written atomically. Throws ERR_IO.
void save_tree(const std::string& path, const TreeOptions& options, uint64_t draws, const float* priorities);
// Throws ERR_CHECKPOINT. The result is valid for a tree. Entry point of the fuzzer. `path` is for
// messages only.
TreeState parse_tree(const uint8_t* data, size_t size, const std::string& path);
// The same for a file. Throws ERR_IO, ERR_CHECKPOINT.
TreeState load_tree(const std::string& path);

}  // namespace nlac
