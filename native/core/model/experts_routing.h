// The router of a mixture of experts: which experts a token uses and with which weight, and the
// order in which the products run. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/model/experts_shape.h"

namespace nlac {

struct Routing {
  at::Tensor probabilities;  // [tokens, experts], the softmax; float32 (f64 for f64)
  at::Tensor chosen;         // [tokens, k] i64, most probable first; of equal ones the lower index
  at::Tensor weights;        // [tokens, k], of the chosen experts' outputs; float32 (f64 for f64)
};

// logits [tokens, experts], float32 or f64. On a CPU a token's routing does not depend on the other
// tokens, to the last bit.
Routing route(const at::Tensor& logits, const ExpertsShape& shape);

// Given the gradient at `weights`, returns that at the logits. `at_probabilities` [experts] is
// added to each token's gradient at its probabilities (undefined: none).
at::Tensor route_backward(const at::Tensor& at_weights, const Routing& routing, const ExpertsShape& shape,
                          const at::Tensor& at_probabilities);

// The pairs of a token and one of its experts, ordered by expert, so that each expert's rows lie
// together. Within an expert tokens keep their order.
class GroupedRows {
 public:
  at::Tensor ends;     // [experts] i32, the row after each expert's last
  at::Tensor tokens;   // [tokens * k] i64, the token of each row
  at::Tensor experts;  // [tokens * k] i64, the expert of each row
  at::Tensor rows;     // [tokens, k] i64, the row of each pair

  // [experts + 1], the first row of each expert. The first call waits for a GPU.
  const std::vector<int64_t>& begin() const;

  // Calls body(expert, first row, rows) for each expert that has rows.
  template <typename Body>
  void for_each(const Body& body) const {
    for (size_t e = 0; e + 1 < begin().size(); ++e) {
      const int64_t first = begin()[e], count = begin()[e + 1] - first;
      if (count > 0) body(static_cast<int64_t>(e), first, count);
    }
  }

 private:
  mutable std::vector<int64_t> begin_;  // empty until asked for
};
GroupedRows group_by_expert(const at::Tensor& chosen, int64_t experts);
// The same by libtorch's operators, as group_by_expert does it on a GPU.
GroupedRows group_by_sorting(const at::Tensor& chosen, int64_t experts);

// values [tokens * k, n] → [tokens, n]: the sum over a token's rows in the order of `chosen`, times
// `weights` [tokens, k] (undefined: 1), summed in float32 (f64 for f64). `sum` [tokens, n] is added
// to it, or to zero if it is undefined; the result has the type of `sum` or of `values`. On a CPU a
// token's sum does not depend on the other tokens, to the last bit.
at::Tensor combine(const at::Tensor& values, const GroupedRows& groups, const at::Tensor& weights,
                   const at::Tensor& sum);

}  // namespace nlac
