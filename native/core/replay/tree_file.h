// The file a priority tree is saved in. Needs no torch. Thread rule: pure functions of their arguments and
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

// `priorities` [capacity], padded to whole nodes with 0. Written beside and renamed. Throws ERR_IO.
void save_tree(const std::string& path, const TreeOptions& options, uint64_t draws, const float* priorities);
// Throws ERR_IO, ERR_CHECKPOINT; what it returns a tree can hold.
TreeState load_tree(const std::string& path);

}  // namespace nlac
