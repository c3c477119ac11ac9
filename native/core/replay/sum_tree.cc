// A tree of sums, 16 children a node. See sum_tree_math.h for its shape and arithmetic.
#include "core/replay/sum_tree.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace nlac {
namespace {

// Maximum number of marked leaves. Beyond it set() refreshes, which bounds memory.
constexpr size_t changed_limit = size_t{1} << 16;
constexpr int64_t prefetch_ahead = 16;

// Replaces each entry by its parent, and leaves each parent once. `marks` has a bit for every
// parent, all 0 before and after.
void climb(std::vector<int32_t>& nodes, std::vector<uint64_t>& marks) {
  size_t kept = 0;
  for (const int32_t child : nodes) {
    const int32_t node = child / tree_fanout;
    uint64_t& word = marks[static_cast<size_t>(node) / 64];
    const uint64_t bit = uint64_t{1} << (node % 64);
    nodes[kept] = node;  // overwritten unless it is new; avoids an unpredictable branch
    kept += (word & bit) == 0 ? 1 : 0;
    word |= bit;
  }
  nodes.resize(kept);
  for (const int32_t node : nodes) marks[static_cast<size_t>(node) / 64] = 0;
}

}  // namespace

SumTree::SumTree(const TreeOptions& options, const tree_kernels::Kernels& kernels)
    : PriorityTree(options, 0), kernels_(&kernels), shape_(make_tree_shape(options.capacity)) {
  raw_ = ZeroedMemory<float>(shape_.size[0]);
  tree_ = ZeroedMemory<double>(shape_.total);
  starts_ = ZeroedMemory<double>(shape_.inner());
  min_ = ZeroedMemory<float>(shape_.inner());
  max_ = ZeroedMemory<float>(shape_.inner());
  marks_.resize(static_cast<size_t>(shape_.size[1] + 63) / 64);
}

SumTree::SumTree(TreeState state, const tree_kernels::Kernels& kernels) : SumTree(state.options, kernels) {
  draws_ = state.draws;
  raw_ = std::move(state.priorities);
  for (int64_t leaf = 0; leaf < options_.capacity; ++leaf) {
    if (raw_[leaf] == 0) continue;
    if (changed_.size() == changed_limit) refresh();
    changed_.push_back(static_cast<int32_t>(leaf));
  }
}

void SumTree::set(const int32_t* indices, const float* priorities, int64_t count) {
  require_entries(indices, priorities, count);
  for (int64_t first = 0; first < count;) {
    if (changed_.size() == changed_limit) refresh();
    const int64_t end = std::min(count, first + static_cast<int64_t>(changed_limit - changed_.size()));
    changed_.insert(changed_.end(), indices + first, indices + end);
    // In order, so that the last of several priorities for one leaf stays.
    for (int64_t i = first; i < end; ++i) {
      if (i + prefetch_ahead < end) __builtin_prefetch(raw_.data() + indices[i + prefetch_ahead], 1);
      raw_[indices[i]] = priorities[i];
    }
    first = end;
  }
}

// Level by level, each touched node once.
void SumTree::refresh() {
  if (changed_.empty()) return;
  const auto count = static_cast<int64_t>(changed_.size());
  // Nothing below allocates: a failure midway would leave sums that no later refresh corrects.
  if (stale_.size() < static_cast<size_t>(shape_.size[0] / tree_fanout)) {
    const size_t room = stale_.size() + changed_.size();
    if (stale_.capacity() < room) stale_.reserve(std::max(room, 2 * stale_.capacity()));
  }
  kernels_->write_masses(raw_.data(), options_.alpha, changed_.data(), count, tree_.data());
  bool whole = false;
  for (int level = 1; level < shape_.levels; ++level) {
    // With as many changes as nodes, nearly all nodes are touched, and recomputing all is cheaper.
    const int64_t nodes = shape_.size[level - 1] / tree_fanout;
    whole = whole || static_cast<int64_t>(changed_.size()) >= nodes;
    if (!whole) climb(changed_, marks_);
    const int32_t* which = whole ? nullptr : changed_.data();
    const int64_t made = whole ? nodes : static_cast<int64_t>(changed_.size());
    const double* children = tree_.data() + shape_.offset[level - 1];
    double* starts = level > 1 ? starts_.data() + shape_.inner_offset(level - 1) : nullptr;
    kernels_->write_sums(children, which, made, starts, tree_.data() + shape_.offset[level]);
    if (level > 1 || stale_.size() >= static_cast<size_t>(nodes)) continue;
    if (whole) stale_.resize(static_cast<size_t>(nodes));
    if (!whole) stale_.insert(stale_.end(), changed_.begin(), changed_.end());
  }
  changed_.clear();
}

// Level by level, only changed nodes: most changes leave the extremes above them unchanged.
void SumTree::refresh_extremes() {
  refresh();
  if (stale_.empty()) return;
  bool whole = false;
  for (int level = 1; level < shape_.levels && !stale_.empty(); ++level) {
    const int64_t nodes = shape_.size[level - 1] / tree_fanout;
    whole = whole || static_cast<int64_t>(stale_.size()) >= nodes;
    if (!whole && level > 1) climb(stale_, marks_);
    const int64_t below = level > 1 ? shape_.inner_offset(level - 1) : 0, at = shape_.inner_offset(level);
    const float *minima = level > 1 ? min_.data() + below : raw_.data(),
                *maxima = level > 1 ? max_.data() + below : raw_.data();
    int32_t* which = whole ? nullptr : stale_.data();
    const int64_t made = whole ? nodes : static_cast<int64_t>(stale_.size());
    const int64_t kept =
        kernels_->write_extremes(minima, maxima, which, made, min_.data() + at, max_.data() + at);
    if (!whole) stale_.resize(static_cast<size_t>(kept));
  }
  stale_.clear();
  if (options_.beta == 0) return;
  const int32_t only = 0;
  kernels_->write_masses(&min_[min_.size() - 1], options_.alpha, &only, 1, &least_);
}

void SumTree::get(const int32_t* indices, float* priorities, int64_t count) {
  require_indices(indices, count);
  for (int64_t i = 0; i < count; ++i) priorities[i] = raw_[indices[i]];
}

double SumTree::total() {
  refresh();
  return tree_[shape_.total - 1];
}

float SumTree::min() {
  refresh_extremes();
  return min_[min_.size() - 1];
}

float SumTree::max() {
  refresh_extremes();
  return max_[max_.size() - 1];
}

void SumTree::sample(int64_t count, bool stratified, int32_t* indices, float* probabilities, float* weights) {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  const double sum = total();
  if (options_.beta > 0) refresh_extremes();
  NLAC_REQUIRE(sum > 0, "ERR_EMPTY", "no leaf has a positive priority");
  const tree_kernels::Draws draws{options_.seed, draws_, count, stratified, sum, least_, options_.beta};
  kernels_->sample(shape_, tree_.data(), starts_.data(), draws, indices, probabilities, weights);
  draws_ += static_cast<uint64_t>(count);
}

int64_t SumTree::host_bytes() const {
  const int64_t floats = raw_.size() + min_.size() + max_.size(), doubles = tree_.size() + starts_.size();
  return floats * static_cast<int64_t>(sizeof(float)) + doubles * static_cast<int64_t>(sizeof(double));
}

void SumTree::save(const std::string& path) { save_tree(path, options_, draws_, raw_.data()); }

}  // namespace nlac
