// The sum tree's arithmetic for the CPU and CUDA kernels: masses, shape, node sums, descent. It
// consists of additions in a fixed order, correctly rounded divisions, and products that are part
// of an fma, so that every processor gives the same bits.
//
// A node has 16 contiguous children. Level 0 holds the leaves' masses p^alpha, the last level the
// root. A node's sum is always recomputed from its children, never incremented, so it cannot drift.
// Each inner node also stores its children's starts: the running sums of their masses. A draw reads
// only the starts. Minima and maxima are of the priorities as set, so they are exact.
//
// All levels lie in one array of doubles, the leaves first. Every level except the root's is padded
// to whole nodes with 0, which is never drawn. Arrays for inner nodes (starts, minima, maxima) omit
// the leaves and have the same layout otherwise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/host_device.h"

namespace nlac {

constexpr int tree_fanout = 16;
constexpr int tree_max_levels = 8;  // 2^27 leaves: 2^27, 2^23, 2^19, 2^15, 2^11, 2^7, 2^4, 1
constexpr int64_t tree_max_capacity = int64_t{1} << 27;

// Where each level lies in the arrays described above.
struct TreeShape {
  int levels;                       // the root's level is levels - 1
  int64_t offset[tree_max_levels];  // where a level starts; multiples of 16
  int64_t size[tree_max_levels];    // its entries, padding included
  int64_t total;                    // entries of all levels

  NLAC_HOST_DEVICE int64_t inner() const { return total - size[0]; }
  NLAC_HOST_DEVICE int64_t inner_offset(int level) const { return offset[level] - size[0]; }
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

// --- masses --------------------------------------------------------------------------------------

// log2 m = Σ log[k]·s^(2k+1) with s = (m - 1) / (m + 1), and 2^f = Σ exp[k]·f^k, truncated at 1e-14
// for m in [√½, √2) and |f| ≤ ½.
struct PowerTerms {
  static constexpr int logs = 9, exps = 12;
  double log[logs], exp[exps];
};

constexpr PowerTerms make_power_terms() {
  constexpr double ln2 = 0.693147180559945309417;
  PowerTerms terms{};
  for (int k = 0; k < PowerTerms::logs; ++k) terms.log[k] = 2 / (ln2 * (2 * k + 1));
  terms.exp[0] = 1;
  for (int k = 1; k < PowerTerms::exps; ++k) terms.exp[k] = terms.exp[k - 1] * ln2 / k;
  return terms;
}

// What power() does to the bits of a double.
constexpr uint64_t power_root_half = 0x3FE6A09E667F3BCD;  // √½
constexpr uint64_t power_one = 0x3FF0000000000000;
constexpr uint64_t power_two_52 = 0x4330000000000000;
constexpr double power_shift = 0x1.8p52;   // added to a small number, leaves its integer part in the low bits
constexpr double power_least = 0x1p-1022;  // so that what is positive stays positive
// The largest log2 of a mass. The sum of 2^27 such masses is finite.
constexpr double power_largest_log = 996;

// base^exponent to about 1e-14 for a normal base > 0 and exponent·log2 base ≤ 996; never below
// 2^-1022, and exactly 1 for base 1 or exponent 0.
NLAC_HOST_DEVICE inline double power(double base, double exponent) {
  constexpr PowerTerms terms = make_power_terms();
  uint64_t bits;
  memcpy(&bits, &base, 8);
  // base = 2^whole · m with m in [√½, √2).
  const uint64_t biased = (bits + (power_one - power_root_half)) >> 52;
  const uint64_t whole_bits = biased | power_two_52, m_bits = bits - (biased << 52) + power_one;
  double whole, m;
  memcpy(&whole, &whole_bits, 8);
  memcpy(&m, &m_bits, 8);
  whole -= 0x1p52 + 1023;
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = terms.log[PowerTerms::logs - 1];
  for (int k = PowerTerms::logs - 2; k >= 0; --k) series = fma(series, square, terms.log[k]);
  const double log2 = fma(s, series, whole);
  if (!(log2 * exponent >= -1022)) return power_least;
  const double shifted = fma(log2, exponent, power_shift);
  const double f = fma(log2, exponent, power_shift - shifted);
  double result = terms.exp[PowerTerms::exps - 1];
  for (int k = PowerTerms::exps - 2; k >= 0; --k) result = fma(result, f, terms.exp[k]);
  uint64_t shifted_bits;
  memcpy(&shifted_bits, &shifted, 8);
  const uint64_t scale_bits = (shifted_bits << 52) + power_one;
  double scale;
  memcpy(&scale, &scale_bits, 8);
  return result * scale;
}

// Returns p^alpha, and 0 for priority 0 and every alpha: a leaf that was never set is never drawn.
NLAC_HOST_DEVICE inline double mass_of(float priority, double alpha) {
  if (!(priority > 0)) return 0;
  return alpha == 1 ? static_cast<double>(priority) : power(priority, alpha);
}

// Returns the importance weight of a leaf of mass `mass`: (n·P)^-beta over its maximum. n and the
// total cancel; the rarest leaf gets 1. `least` is 0 if beta is.
NLAC_HOST_DEVICE inline float weight_of(double mass, double least, double beta) {
  return least > 0 ? static_cast<float>(power(mass / least, -beta)) : 1.0f;
}

// --- nodes ---------------------------------------------------------------------------------------

// Replaces 16 masses by their running sums: for halves of 2, 4, 8 and 16, adds the lower half's
// total to the upper half. So they never decrease, and are equal exactly where a mass is 0.
NLAC_HOST_DEVICE inline void running_sums(double* x) {
  for (int half = 1; half < tree_fanout; half *= 2) {
    for (int i = half; i < tree_fanout; ++i) {
      if (i & half) x[i] += x[(i & -half) - 1];
    }
  }
}

// Returns the masses' sum. `starts` [16] (null: not needed) receives where each child starts, and
// +inf after the last mass, so that no target falls there.
NLAC_HOST_DEVICE inline double node_sum(const double* children, double* starts) {
  double sums[tree_fanout];
  for (int i = 0; i < tree_fanout; ++i) sums[i] = children[i];
  running_sums(sums);
  const double total = sums[tree_fanout - 1];
  if (starts == nullptr) return total;
  starts[0] = 0;
  for (int i = 1; i < tree_fanout; ++i) {
    starts[i] = sums[i - 1] < total ? sums[i - 1] : std::numeric_limits<double>::infinity();
  }
  return total;
}

// The least positive of 16 priorities; 0 where there is none.
NLAC_HOST_DEVICE inline float node_min(const float* children) {
  float min = 0;
  for (int i = 0; i < tree_fanout; ++i) {
    const float c = children[i];
    min = c > 0 && (min == 0 || c < min) ? c : min;
  }
  return min;
}

// The largest of 16 priorities.
NLAC_HOST_DEVICE inline float node_max(const float* children) {
  float max = 0;
  for (int i = 0; i < tree_fanout; ++i) max = children[i] > max ? children[i] : max;
  return max;
}

// Returns the inner child in which `target` ≥ 0 falls, the last whose start is not past it, and
// subtracts its start from `target`. Its mass is positive, also if rounding has put the target past
// the end.
NLAC_HOST_DEVICE inline int choose_child(const double* starts, double* target) {
  int chosen = 0;
  for (int step = tree_fanout / 2; step > 0; step /= 2) chosen += starts[chosen + step] <= *target ? step : 0;
  *target -= starts[chosen];
  return chosen;
}

// Returns the leaf, of a node's 16 masses, in which `target` ≥ 0 falls. Its mass is positive too.
NLAC_HOST_DEVICE inline int choose_leaf(const double* masses, double target) {
  double sums[tree_fanout];
  for (int i = 0; i < tree_fanout; ++i) sums[i] = masses[i];
  running_sums(sums);
  int chosen = 0;
  for (int i = 0; i < tree_fanout; ++i)
    chosen += sums[i] <= target && sums[i] < sums[tree_fanout - 1] ? 1 : 0;
  return chosen;
}

// --- set() by many threads at once ---------------------------------------------------------------
//
// Two passes over the entries, in any order by any threads; the first ends before the second
// begins. The first finds the last entry for each leaf, and counts how many children of each node
// will change. In the second, these entries write their leaves and climb: the thread that brings a
// node's last changed child computes the node's sum and continues, the others stop. So each touched
// node is computed once, from finished children.
//
// `Atomics` supplies add, subtract and maximum(uint32_t*, n), which return the old value, and
// take(uint32_t*, n), which turns n into 0 and says whether it did. subtract also orders memory
// both ways, and read(double* or float*) sees what other threads wrote before their subtract.

struct TreeMemory {
  double* tree;       // [shape.total]
  double* starts;     // [shape.inner()]
  float* raw;         // [shape.size[0]]
  float *min, *max;   // [shape.inner()], the least positive and the largest priority under each node
  uint32_t* claims;   // [capacity]; 0 between sets
  uint32_t* pending;  // [shape.inner()], for each inner node; 0 between sets
};

// First pass, for entry `entry` with a valid index and priority.
template <typename Atomics>
NLAC_HOST_DEVICE inline void claim_leaf(const TreeShape& shape, const TreeMemory& memory, int64_t leaf,
                                        uint32_t entry) {
  if (Atomics::maximum(memory.claims + leaf, entry + 1) != 0) return;
  int64_t node = leaf;
  for (int level = 1; level < shape.levels; ++level) {
    node /= tree_fanout;
    if (Atomics::add(memory.pending + shape.inner_offset(level) + node, 1u) != 0) return;
  }
}

template <typename Atomics, typename T>
NLAC_HOST_DEVICE inline void read_children(const T* from, T* children) {
  for (int i = 0; i < tree_fanout; ++i) children[i] = Atomics::read(from + i);
}

// Second pass.
template <typename Atomics>
NLAC_HOST_DEVICE inline void write_leaf(const TreeShape& shape, const TreeMemory& memory, int64_t leaf,
                                        uint32_t entry, float priority, double mass) {
  if (!Atomics::take(memory.claims + leaf, entry + 1)) return;
  memory.raw[leaf] = priority;
  memory.tree[leaf] = mass;
  int64_t node = leaf;
  for (int level = 1; level < shape.levels; ++level) {
    node /= tree_fanout;
    if (Atomics::subtract(memory.pending + shape.inner_offset(level) + node, 1u) != 1) return;
    const int64_t first = node * tree_fanout, at = shape.inner_offset(level) + node;
    const int64_t below = level > 1 ? shape.inner_offset(level - 1) + first : 0;
    double masses[tree_fanout];
    read_children<Atomics>(memory.tree + shape.offset[level - 1] + first, masses);
    memory.tree[shape.offset[level] + node] = node_sum(masses, level > 1 ? memory.starts + below : nullptr);
    float priorities[tree_fanout];
    read_children<Atomics>(level > 1 ? memory.min + below : memory.raw + first, priorities);
    memory.min[at] = node_min(priorities);
    if (level > 1) read_children<Atomics>(memory.max + below, priorities);
    memory.max[at] = node_max(priorities);
  }
}

// --- draws ---------------------------------------------------------------------------------------

// The sampler's own stream of the run's randomness ("replay" in ASCII).
constexpr uint64_t draw_stream = 0x7265706C6179;

// Returns the target of draw `index` of `count`, given its uniform number in [0, 1).
NLAC_HOST_DEVICE inline double draw_target(double uniform, int64_t index, int64_t count, bool stratified,
                                           double total) {
  return stratified ? fma(static_cast<double>(index) + uniform, total / static_cast<double>(count), 0.0)
                    : fma(uniform, total, 0.0);
}

// Returns the leaf at `target`.
NLAC_HOST_DEVICE inline int64_t descend(const double* tree, const double* starts, const TreeShape& shape,
                                        double target) {
  int64_t node = 0;
  for (int level = shape.levels - 2; level >= 1; --level) {
    const int64_t first = node * tree_fanout;
    node = first + choose_child(starts + shape.inner_offset(level) + first, &target);
  }
  return node * tree_fanout + choose_leaf(tree + node * tree_fanout, target);
}

}  // namespace nlac
