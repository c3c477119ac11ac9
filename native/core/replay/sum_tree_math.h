// The sum tree's arithmetic, the same on the CPU and in a CUDA kernel: shape, node sums, descent. Additions
// happen in one fixed order and no product is followed by a sum, so that both give the same bits.
//
// A node has 16 children that lie side by side: 128 bytes, two cache lines, a level. Level 0 holds the
// leaves' masses p^alpha, the last level the root alone. A node's sum is always made from its children, never
// incremented, so it cannot drift.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace nlac {

constexpr int tree_fanout = 16;
constexpr int tree_max_levels = 8;  // 2^27 leaves: 2^27, 2^23, 2^19, 2^15, 2^11, 2^7, 2^4, 1
constexpr int64_t tree_max_capacity = int64_t{1} << 27;

// All levels lie in one array of doubles, the leaves first. Every level but the root's is padded to whole
// nodes; padding is 0 and so is never drawn.
struct TreeShape {
  int levels;                       // the root's level is levels - 1
  int64_t offset[tree_max_levels];  // where a level starts; multiples of 16
  int64_t size[tree_max_levels];    // its entries, padding included
  int64_t total;                    // entries of all levels
};

NLAC_HOST_DEVICE inline TreeShape make_tree_shape(int64_t capacity) {
  TreeShape shape{};
  int64_t entries = capacity;
  do {
    const int64_t padded = (entries + tree_fanout - 1) / tree_fanout * tree_fanout;
    shape.offset[shape.levels] = shape.total;
    shape.size[shape.levels] = padded;
    shape.total += padded;
    entries = padded / tree_fanout;
    ++shape.levels;
  } while (entries > 1);
  shape.offset[shape.levels] = shape.total;
  shape.size[shape.levels] = 1;
  ++shape.levels;
  ++shape.total;
  return shape;
}

NLAC_HOST_DEVICE inline double node_sum(const double* children) {
  double a[8];
  for (int i = 0; i < 8; ++i) a[i] = children[i] + children[i + 8];
  for (int i = 0; i < 4; ++i) a[i] += a[i + 4];
  return (a[0] + a[2]) + (a[1] + a[3]);
}

// The least positive child; 0 where there is none.
NLAC_HOST_DEVICE inline double node_least(const double* children) {
  double least = 0;
  for (int i = 0; i < tree_fanout; ++i) {
    const double c = children[i];
    least = c > 0 && (least == 0 || c < least) ? c : least;
  }
  return least;
}

// Finds the child in which `target`, in [0, node's sum), falls and leaves in `target` what remains of it
// there. The running sum never decreases, so a child of mass 0 is never where it first exceeds the target.
// Should rounding have put the target at or past the end, the last child of positive mass is taken.
NLAC_HOST_DEVICE inline int choose_child(const double* children, double* target) {
  double sum = 0, before = 0;
  int chosen = 0;
  for (int i = 0; i < tree_fanout; ++i) {
    sum += children[i];
    const bool passed = sum <= *target;
    before = passed ? sum : before;
    chosen += passed ? 1 : 0;
  }
  if (chosen < tree_fanout) {
    *target -= before;
    return chosen;
  }
  int last = tree_fanout - 1;
  while (last > 0 && !(children[last] > 0)) --last;
  *target = children[last];
  return last;
}

// --- set() by many threads at once -------------------------------------------------------------------
//
// Two passes over the entries, every thread any entries in any order, with all of the first pass done before
// the second begins. The first finds for each leaf the last entry that names it, and counts for each node how
// many of its children will change. In the second the winners write their leaves and climb: whoever brings a
// node's last changed child makes its sum and goes on, everyone else stops. So each touched node is made
// once, from finished children.
//
// `Atomics` supplies add, subtract and maximum(uint32_t*, n), which return the old value, and take(uint32_t*,
// n), which turns n into 0 and says whether it did. subtract also orders memory both ways, and read(double*)
// sees what other threads wrote before their subtract.

struct TreeMemory {
  double* tree;       // [shape.total]
  double* least;      // [shape.total - shape.size[0]], as SumTree holds it; null: not kept
  float* raw;         // [capacity]
  uint32_t* claims;   // [capacity]; 0 between sets
  uint32_t* pending;  // [shape.total - shape.size[0]], for each inner node; 0 between sets
};

// First pass, for entry `entry` with a valid index and priority.
template <typename Atomics>
NLAC_HOST_DEVICE inline void claim_leaf(const TreeShape& shape, const TreeMemory& memory, int64_t leaf,
                                        uint32_t entry) {
  if (Atomics::maximum(memory.claims + leaf, entry + 1) != 0) return;
  int64_t node = leaf;
  for (int level = 1; level < shape.levels; ++level) {
    node /= tree_fanout;
    if (Atomics::add(memory.pending + shape.offset[level] - shape.size[0] + node, 1u) != 0) return;
  }
}

// Second pass. With `write` false only the first pass's marks are taken back.
template <typename Atomics>
NLAC_HOST_DEVICE inline void write_leaf(const TreeShape& shape, const TreeMemory& memory, int64_t leaf,
                                        uint32_t entry, float priority, double mass, bool write) {
  if (!Atomics::take(memory.claims + leaf, entry + 1)) return;
  if (write) {
    memory.raw[leaf] = priority;
    memory.tree[leaf] = mass;
  }
  int64_t node = leaf;
  for (int level = 1; level < shape.levels; ++level) {
    node /= tree_fanout;
    const int64_t inner = shape.offset[level] - shape.size[0] + node;
    if (Atomics::subtract(memory.pending + inner, 1u) != 1) return;
    if (!write) continue;
    double children[tree_fanout];
    const int64_t first = shape.offset[level - 1] + node * tree_fanout;
    for (int i = 0; i < tree_fanout; ++i) children[i] = Atomics::read(memory.tree + first + i);
    memory.tree[shape.offset[level] + node] = node_sum(children);
    if (memory.least == nullptr) continue;
    if (level > 1) {
      for (int i = 0; i < tree_fanout; ++i)
        children[i] = Atomics::read(memory.least + first - shape.size[0] + i);
    }
    memory.least[inner] = node_least(children);
  }
}

// --- draws -------------------------------------------------------------------------------------------

// The sampler's own stream of the run's randomness ("replay" in ASCII).
constexpr uint64_t draw_stream = 0x7265706C6179;

// Where draw `index` of `count` looks, given its uniform number in [0, 1).
NLAC_HOST_DEVICE inline double draw_target(double uniform, int64_t index, int64_t count, bool stratified,
                                           double total) {
  return stratified ? (static_cast<double>(index) + uniform) * (total / static_cast<double>(count))
                    : uniform * total;
}

// The leaf under `target`.
NLAC_HOST_DEVICE inline int64_t descend(const double* tree, const TreeShape& shape, double target) {
  int64_t node = 0;
  for (int level = shape.levels - 2; level >= 0; --level) {
    const int64_t first = node * tree_fanout;
    node = first + choose_child(tree + shape.offset[level] + first, &target);
  }
  return node;
}

}  // namespace nlac
