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
  ZeroedMemory<float> priorities;  // [tree_file_floats(capacity)]
};

// Priorities are read and written in pairs: the memory that holds `capacity` of them is this long.
constexpr int64_t tree_file_floats(int64_t capacity) { return (capacity + 1) / 2 * 2; }

// `priorities` [tree_file_floats(capacity)], 0 past the capacity. Written beside and renamed. Throws ERR_IO.
void save_tree(const std::string& path, const TreeOptions& options, uint64_t draws, const float* priorities);
// Throws ERR_IO, ERR_CHECKPOINT; what it returns a tree can hold.
TreeState load_tree(const std::string& path);

}  // namespace nlac
