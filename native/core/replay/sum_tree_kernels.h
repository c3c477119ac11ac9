// The hot loops of the sum tree, compiled per instruction set and chosen at run time. Each does for
// many nodes or draws what sum_tree_math.h does for one, with the same bits. No torch. Thread rule:
// pure functions of their arguments and the memory these point to.
#pragma once

#include <cstdint>
#include <vector>

#include "core/replay/sum_tree_math.h"

namespace nlac::tree_kernels {

struct Draws {
  uint64_t seed, first;  // draws `first` … `first + count - 1` of the seed's sequence
  int64_t count;
  bool stratified;
  double total;  // > 0
  double least;  // the least positive mass; 0 when beta is 0
  double beta;
};

struct Kernels {
  // Whether every index is in [0, capacity) and every priority in [0, largest].
  bool (*valid)(const int32_t* indices, const float* priorities, int64_t count, int64_t capacity,
                float largest);
  // masses[leaf] = mass_of(raw[leaf], alpha) for each of `leaves` [count], which may repeat.
  void (*write_masses)(const float* raw, double alpha, const int32_t* leaves, int64_t count, double* masses);
  // sums[node] = node_sum of its children, and the children's starts unless that is null, for each
  // of `nodes` [count]; for nodes 0 … count - 1 when `nodes` is null.
  void (*write_sums)(const double* children, const int32_t* nodes, int64_t count, double* starts,
                     double* sums);
  // min[node] = node_min of its `minima`, max[node] = node_max of its `maxima`, for the same nodes.
  // Just above the leaves both are their priorities. Returns how many nodes it changed, which
  // become the first of `nodes`.
  int64_t (*write_extremes)(const float* minima, const float* maxima, int32_t* nodes, int64_t count,
                            float* min, float* max);
  // As SumTree::sample.
  void (*sample)(const TreeShape& shape, const double* tree, const double* starts, const Draws& draws,
                 int32_t* indices, float* probabilities, float* weights);
};

// The variants that this processor runs, the fastest first.
const std::vector<const Kernels*>& all_kernels();
inline const Kernels& kernels() { return *all_kernels().front(); }

}  // namespace nlac::tree_kernels
