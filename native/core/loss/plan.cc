#include "core/loss/plan.h"

#include <algorithm>

#include "core/loss/mixed_products.h"

namespace nlac {
namespace {

// Half rows kept free between gradients and logits: a chunk's first stretch, each next one being
// 2·heads times as long.
constexpr int64_t margin = 32;
// A further chunk is worth its passes over the vocabulary matrices from this many rows on.
constexpr int64_t worthwhile = 256;

int64_t whole(int64_t rows) { return rows / mixed::row_multiple * mixed::row_multiple; }

}  // namespace

LossPlan plan_loss(int64_t rows, int heads, int64_t row_bytes, bool packed, bool with_gradient,
                   int64_t bytes) {
  LossPlan plan;
  plan.packed = packed;
  const int64_t units = 2 * heads;  // half rows of logits a row takes
  if (!packed) {
    const int64_t room = std::max<int64_t>(1, bytes / (heads * row_bytes));
    // Whole blocks of the products' kernels, where there is a choice.
    plan.capacity = std::min(rows, room < mixed::row_multiple ? room : whole(room));
    plan.chunks = {plan.capacity};
    return plan;
  }
  const int64_t free = with_gradient ? margin : 0;
  const int64_t least = units * mixed::row_multiple + free;
  const int64_t most = std::max(least, bytes / (row_bytes / 2));
  int64_t held = 0;
  do {
    const int64_t room = whole((most - free - held) / units);
    if (held > 0 && room < std::min(worthwhile, plan.chunks.front() / 2)) break;
    const int64_t chunk = std::min(rows - held, room);
    plan.chunks.push_back(chunk);
    plan.capacity = std::max(plan.capacity, held + free + units * mixed::padded_rows(chunk));
    held += chunk;
  } while (held < rows && with_gradient);
  return plan;
}

int64_t plan_logits(const LossPlan& plan, int heads, int64_t chunk_rows) {
  return plan.capacity - 2 * heads * mixed::padded_rows(chunk_rows);
}

int64_t plan_stretch(const LossPlan& plan, int heads, int64_t chunk_rows, int64_t held, int64_t first) {
  const int64_t read = plan_logits(plan, heads, chunk_rows) + 2 * heads * first;
  return std::min(chunk_rows - first, read - (held + first));
}

}  // namespace nlac
