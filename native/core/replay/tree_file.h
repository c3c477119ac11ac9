// The file of a saved priority tree. No torch. Thread rule: pure functions of their arguments and
// the file.
#pragma once

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
// Throws ERR_IO, ERR_CHECKPOINT. The result is valid for a tree.
TreeState load_tree(const std::string& path);

}  // namespace nlac
