// Splits the rows of a token loss so that tensors of the logits' size stay within a number of
// bytes. Pure arithmetic. There are two modes:
//
//   in place  A chunk of rows at a time; the gradient, of the logits' own type, overwrites the
//             student's logits, and the backward products follow at once.
//   packed    The gradient is bf16, half a row of float32 logits. All memory is one array of half
//             rows: the gradients of earlier chunks at the front, the chunk's logits at the back.
//             Rows whose logits have become gradients free memory for the next gradients, so that
//             the backward products can process a group of several chunks at once. Each product
//             adds to the whole gradient of the head, and on a GPU reading and writing that takes
//             as long as the product with about 1000 rows.
#pragma once

#include <cstdint>
#include <vector>

namespace nlac {

struct LossPlan {
  bool packed = false;
  // Rows of the chunks of a group. The last group may end early. Multiples of `row_multiple` when
  // packed, except where the rows end.
  std::vector<int64_t> chunks;
  // packed: half rows of the array. In place: rows of logits of one head.
  int64_t capacity = 0;
  int64_t group_rows() const {
    int64_t rows = 0;
    for (const int64_t chunk : chunks) rows += chunk;
    return rows;
  }
};

// Plans `rows` ≥ 1 rows of `heads` logits of `row_bytes` each. Uses at most `bytes`, or the
// minimum: one row in place, `row_multiple` rows packed. Without gradient a group is one chunk.
LossPlan plan_loss(int64_t rows, int heads, int64_t row_bytes, bool packed, bool with_gradient,
                   int64_t bytes);

// Returns how many of the chunk's rows from `first` on can become gradients in one call without
// overwriting unread logits. `held` gradients of earlier chunks precede the chunk's.
int64_t plan_stretch(const LossPlan& plan, int heads, int64_t chunk_rows, int64_t held, int64_t first);

// Returns the start of the chunk's logits, in half rows.
int64_t plan_logits(const LossPlan& plan, int heads, int64_t chunk_rows);

}  // namespace nlac
