// How a token loss cuts its rows, so that what it keeps of logits' size stays within a number of bytes. Pure
// arithmetic. Two ways:
//
//   in place  A chunk of rows at a time; the gradient, of the logits' own type, overwrites the student's
//             logits, and the products back take it at once.
//   packed    The gradient is bf16, half a row of float32 logits. All memory is one array of half rows: at
//             its front the gradients of the chunks before, at its back the chunk's logits. As rows turn from
//             logits into gradient, what they held becomes room for the gradients of the next ones, so that
//             the products back can take several chunks, a group, at once. That matters because each adds to
//             the whole gradient of the vocabulary matrix: reading and writing it takes as long as its
//             product with some 700 rows does on a GPU.
#pragma once

#include <cstdint>
#include <vector>

namespace nlac {

struct LossPlan {
  bool packed = false;
  // Rows of the chunks of a group. The last group may end early. Multiples of `row_multiple` when packed,
  // except where the rows end.
  std::vector<int64_t> chunks;
  // packed: half rows of the array. In place: rows of logits of one head.
  int64_t capacity = 0;
  int64_t group_rows() const {
    int64_t rows = 0;
    for (const int64_t chunk : chunks) rows += chunk;
    return rows;
  }
};

// For `rows` ≥ 1 rows of `heads` logits of `row_bytes` each. Keeps to `bytes`, but for the least a loss
// needs: one row in place, `row_multiple` rows packed. Without gradient a group is one chunk.
LossPlan plan_loss(int64_t rows, int heads, int64_t row_bytes, bool packed, bool with_gradient,
                   int64_t bytes);

// Of the chunk's rows from `first` on, as many as can turn into gradients in one go without writing where
// logits not yet read lie: `held` gradients of earlier chunks precede the chunk's.
int64_t plan_stretch(const LossPlan& plan, int heads, int64_t chunk_rows, int64_t held, int64_t first);

// Where the chunk's logits begin, in half rows.
int64_t plan_logits(const LossPlan& plan, int heads, int64_t chunk_rows);

}  // namespace nlac
