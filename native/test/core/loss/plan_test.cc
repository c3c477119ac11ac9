#include "core/loss/plan.h"

#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "core/loss/linear_loss.h"
#include "core/loss/mixed_products.h"

using namespace nlac;

TEST_CASE(
    "at 8192 rows of 152064 tokens, 3584 wide, a loss uses an eighth of the memory of two heads' logits") {
  const int64_t rows = 8192, vocab = 152064, hidden = 3584, eighth = 2 * rows * vocab * 4 / 8;
  for (const int heads : {1, 2}) {
    const LossPlan plan = plan_loss(rows, heads, vocab * 4, true, true, default_workspace(at::kCUDA, heads));
    // Besides the array: hidden states of a group for each head in bf16, their gradient in float32
    // and in bf16, and what there is by row, far below 1 KiB each.
    const int64_t group = plan.group_rows();
    const int64_t besides = group * hidden * (2 * heads + 4 + 2) + rows * 1024;
    CHECK(plan.capacity * vocab * 2 + besides <= eighth);
    // Enough rows for compute-bound products: from about 250 rows for one that reads the vocabulary
    // matrix, from about 1000 for one that adds to its float32 gradient.
    for (const int64_t chunk : plan.chunks) CHECK(chunk >= 256);
    CHECK(group >= 2500);
  }
}

TEST_CASE(
    "at 1024 rows of 49152 tokens, 576 wide, the CPU uses an eighth of the memory of torch's operators") {
  const int64_t rows = 1024, vocab = 49152, hidden = 576, stride = mixed::logit_stride(vocab);
  // Peak memory of torch 2.11, MiB. Two heads: logits in bf16, log_softmax of both, kl_div and
  // backward; one head: logits in bf16, cross_entropy in float32 and backward.
  for (const auto& [heads, torch] : {std::pair<int, int64_t>{2, 679}, {1, 526}}) {
    CAPTURE(heads);
    const LossPlan plan = plan_loss(rows, heads, stride * 4, true, true, default_workspace(at::kCPU, heads));
    // Hidden states of a group for each head, as they are and padded, the student's again packed
    // for the product, and their gradient in float32.
    const int64_t besides = plan.group_rows() * hidden * (heads * 2 * 2 + 2 + 4) + rows * 1024;
    CHECK(plan.capacity * stride * 2 + besides <= (torch << 20) / 8);
    CHECK(plan.group_rows() >= 256);
  }
}

TEST_CASE(
    "a plan keeps to its memory, takes every row, and never writes a gradient over logits not yet read") {
  for (const int heads : {1, 2}) {
    for (const int64_t vocab : {1, 1000, 49152, 152064, 1 << 20}) {
      for (const int64_t rows : {1, 31, 32, 33, 500, 8191}) {
        for (const bool with_gradient : {false, true}) {
          for (const int64_t bytes : {int64_t{1}, int64_t{8} << 20, int64_t{96} << 20, int64_t{272} << 20}) {
            CAPTURE(heads);
            CAPTURE(vocab);
            CAPTURE(rows);
            CAPTURE(bytes);
            const int64_t row_bytes = mixed::logit_stride(vocab) * 4;
            const LossPlan plan = plan_loss(rows, heads, row_bytes, true, with_gradient, bytes);
            const int64_t least = (2 * heads * mixed::row_multiple + 32) * (row_bytes / 2);
            REQUIRE(plan.capacity * (row_bytes / 2) <= std::max(bytes, least));
            REQUIRE(plan.group_rows() <= rows);
            // Half rows, each 'l' for logits, 'g' for a gradient, ' ' for room.
            std::string memory(static_cast<size_t>(plan.capacity), ' ');
            int64_t held = 0;
            for (size_t i = 0; i < plan.chunks.size(); ++i) {
              const int64_t chunk = plan.chunks[i];
              REQUIRE(chunk >= 1);
              REQUIRE((chunk % mixed::row_multiple == 0 || held + chunk == rows));
              const int64_t start = plan_logits(plan, heads, chunk);
              REQUIRE(start >= held);
              for (int64_t h = start; h < plan.capacity; ++h) {
                REQUIRE(memory[static_cast<size_t>(h)] != 'g');
                memory[static_cast<size_t>(h)] = 'l';
              }
              if (!with_gradient) break;
              int stretches = 0;
              for (int64_t first = 0; first < chunk; ++stretches) {
                const int64_t stretch = plan_stretch(plan, heads, chunk, held, first);
                REQUIRE(stretch >= 1);
                for (int64_t r = first; r < first + stretch; ++r) {
                  REQUIRE(memory[static_cast<size_t>(held + r)] != 'l');
                  memory[static_cast<size_t>(held + r)] = 'g';
                }
                first += stretch;
                for (int64_t h = start; h < start + 2 * heads * first; ++h) {
                  if (memory[static_cast<size_t>(h)] == 'l') memory[static_cast<size_t>(h)] = ' ';
                }
              }
              REQUIRE(stretches <= 12);
              held += chunk;
            }
            if (with_gradient) REQUIRE(mixed::padded_rows(held) <= plan.capacity);

            const LossPlan plain = plan_loss(rows, heads, row_bytes, false, with_gradient, bytes);
            REQUIRE(plain.chunks.size() == 1);
            REQUIRE(plain.capacity >= 1);
            REQUIRE(plain.capacity <= rows);
            REQUIRE((plain.capacity == 1 || plain.capacity * heads * row_bytes <= bytes));
          }
        }
      }
    }
  }
}
