#include "core/replay/priority_tree.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/replay/sum_tree_kernels.h"

namespace nlac {

void require_options(const TreeOptions& options) {
  NLAC_REQUIRE(options.capacity >= 1 && options.capacity <= tree_max_capacity, "ERR_VALUE",
               "capacity must be between 1 and 2^27, not ", options.capacity);
  NLAC_REQUIRE(std::isfinite(options.alpha) && options.alpha >= 0, "ERR_VALUE",
               "alpha must be finite and at least 0, not ", options.alpha);
  NLAC_REQUIRE(options.beta >= 0 && options.beta <= 1, "ERR_VALUE", "beta must be between 0 and 1, not ",
               options.beta);
}

float largest_priority(double alpha) {
  constexpr float largest = std::numeric_limits<float>::max();
  if (alpha * std::log2(largest) <= power_largest_log) return largest;
  const double priority = std::exp2(power_largest_log / alpha);
  const auto rounded = static_cast<float>(priority);
  return rounded > priority ? std::nextafter(rounded, 0.0f) : rounded;
}

PriorityTree::PriorityTree(const TreeOptions& options, uint64_t draws)
    : options_(options), draws_(draws), largest_(largest_priority(options.alpha)) {
  require_options(options);
}

void PriorityTree::require_index(const int32_t* indices, int64_t i) const {
  NLAC_REQUIRE(indices[i] >= 0 && indices[i] < options_.capacity, "ERR_INDEX", "index ", indices[i],
               " at position ", i, " is outside a sampler of capacity ", options_.capacity);
}

void PriorityTree::require_indices(const int32_t* indices, int64_t count) const {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  for (int64_t i = 0; i < count; ++i) require_index(indices, i);
}

void PriorityTree::require_entries(const int32_t* indices, const float* priorities, int64_t count) const {
  NLAC_REQUIRE(count >= 0, "ERR_VALUE", "count must not be negative");
  if (tree_kernels::kernels().valid(indices, priorities, count, options_.capacity, largest_)) return;
  for (int64_t i = 0; i < count; ++i) {
    require_index(indices, i);
    NLAC_REQUIRE(std::isfinite(priorities[i]) && priorities[i] >= 0, "ERR_PRIORITY", "priority ",
                 priorities[i], " at position ", i, " must be finite and at least 0");
    NLAC_REQUIRE(priorities[i] <= largest_, "ERR_PRIORITY", "priority ", priorities[i], " at position ", i,
                 " raised to alpha ", options_.alpha, " is too large");
  }
}

}  // namespace nlac
