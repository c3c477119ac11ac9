#include "core/loss/mixed_products.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/instruction_set.h"

#if defined(__x86_64__)
#include "core/cpu/bf16_vectors.h"
#endif

namespace nlac::mixed {
namespace {

using at::BFloat16;

// Products are split into `columns` columns, `tall` then `row_multiple` rows, and sums of `deep`
// terms.
constexpr int64_t columns = 64, tall = 64, deep = 256;

// c [m, n] (+)= a [m, k] · b [k, n], b packed in pairs along k: b[k / 2][n][2].
void multiply(int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t a_stride, const uint32_t* b,
              int64_t b_stride, float* c, int64_t c_stride, bool add) {
  at::native::cpublas::brgemm(m, n, k, a_stride, b_stride, c_stride, add, a,
                              reinterpret_cast<const BFloat16*>(b), c, true);
}

#if defined(__x86_64__)

// Up to sixteen elements of two rows as pairs; `second` may be null: zeros.
NLAC_AVX512 inline __m512i pairs(const BFloat16* first, const BFloat16* second, int64_t count) {
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1 << count) - 1);
  const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first));
  if (second == nullptr) return a;
  const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second));
  return _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
}

// panel[p][c] = (rows 2p and 2p + 1 of `from` at column c), for `depth` rows and `count` columns.
NLAC_AVX512 void pack_rows(const BFloat16* from, int64_t stride, int64_t depth, int64_t count,
                           uint32_t* panel, int64_t panel_stride) {
  for (int64_t row = 0; row < depth; row += 2) {
    const BFloat16* first = from + row * stride;
    const BFloat16* second = row + 1 < depth ? first + stride : nullptr;
    uint32_t* to = panel + row / 2 * panel_stride;
    for (int64_t c = 0; c < count; c += 16) {
      const auto mask = static_cast<__mmask16>(count - c >= 16 ? 0xFFFF : (1 << (count - c)) - 1);
      const __m512i words = pairs(first + c, second == nullptr ? nullptr : second + c, count - c);
      _mm512_mask_storeu_epi32(to + c, mask, words);
    }
  }
}

// panel[p][c] = (elements 2p and 2p + 1 of row c of `from`), for `count` ≤ columns rows of `depth`
// elements.
NLAC_AVX512 void pack_columns(const BFloat16* from, int64_t stride, int64_t depth, int64_t count,
                              uint32_t* panel) {
  for (int64_t c = 0; c < columns; c += 16) {
    for (int64_t p = 0; p < depth; p += 32) {
      const int64_t elements = std::min<int64_t>(32, depth - p);
      const auto mask = static_cast<__mmask32>(elements >= 32 ? ~0u : (1u << elements) - 1);
      __m512i rows[16];
      for (int64_t j = 0; j < 16; ++j) {
        // Prefetches the next sixteen rows: they are too far apart for the hardware prefetcher.
        _mm_prefetch(reinterpret_cast<const char*>(from + (c + j + 16) * stride + p), _MM_HINT_T0);
        rows[j] = c + j < count ? _mm512_maskz_loadu_epi16(mask, from + (c + j) * stride + p)
                                : _mm512_setzero_si512();
      }
      bf16::transpose_words(rows);
      for (int64_t j = 0; j < (elements + 1) / 2; ++j) {
        _mm512_storeu_si512(panel + (p / 2 + j) * columns + c, rows[j]);
      }
    }
  }
}

// to[c][r] = from[r][c] for `rows` (a multiple of 32) rows and `count` ≤ columns columns.
NLAC_AVX512 void transpose_block(const BFloat16* from, int64_t stride, int64_t rows, int64_t count,
                                 BFloat16* to, int64_t to_stride) {
  for (int64_t c = 0; c < count; c += 16) {
    for (int64_t r = 0; r < rows; r += 32) {
      __m512i words[16];
      for (int64_t j = 0; j < 16; ++j) {
        const BFloat16* first = from + (r + 2 * j) * stride + c;
        words[j] = pairs(first, first + stride, count - c);
      }
      bf16::transpose_words(words);
      for (int64_t j = 0; j < std::min<int64_t>(16, count - c); ++j) {
        _mm512_storeu_si512(to + (c + j) * to_stride + r, words[j]);
      }
    }
  }
}

bool probe() {
  if (!runs(InstructionSet::avx512_bf16)) return false;
  // libtorch detects the processor itself, and the environment may limit it, so a product is tried.
  try {
    std::vector<BFloat16> a(32 * 32, BFloat16(0.5f));
    std::vector<uint32_t> b(16 * 64, 0x3F803F80u);  // pairs of 1
    std::vector<float> c(32 * 64, -1.0f);
    multiply(32, 64, 32, a.data(), 32, b.data(), 64, c.data(), 64, false);
    multiply(32, 64, 32, a.data(), 32, b.data(), 64, c.data(), 64, true);
    at::native::cpublas::brgemm_release(true);
    return std::all_of(c.begin(), c.end(), [](float x) { return x == 32; });
  } catch (const std::exception&) {
    return false;
  }
}

#else

void pack_rows(const BFloat16*, int64_t, int64_t, int64_t, uint32_t*, int64_t) {}
void pack_columns(const BFloat16*, int64_t, int64_t, int64_t, uint32_t*) {}
void transpose_block(const BFloat16*, int64_t, int64_t, int64_t, BFloat16*, int64_t) {}
bool probe() { return false; }

#endif

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Calls body(start, length) for the pieces of [0, n): `large` ones while they fit, `small` ones, a
// rest.
template <typename Body>
void pieces(int64_t n, int64_t large, int64_t small, const Body& body) {
  int64_t at = 0;
  for (; at + large <= n; at += large) body(at, large);
  for (; at + small <= n; at += small) body(at, small);
  if (at < n) body(at, n - at);
}

}  // namespace

bool available() {
  static const bool yes = probe();
  return yes;
}

void logits(const BFloat16* hidden, int64_t hidden_stride, int64_t rows, const BFloat16* head, int64_t vocab,
            int64_t width, float* logits, int64_t logit_stride) {
  const int64_t depth = (width + 1) / 2 * 2;
  at::parallel_for(0, blocks(vocab, columns), 1, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> panel(static_cast<size_t>(depth / 2 * columns));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t v = block * columns, count = std::min(columns, vocab - v);
      pack_columns(head + v * width, width, width, count, panel.data());
      pieces(rows, tall, row_multiple, [&](int64_t row, int64_t m) {
        multiply(m, count, depth, hidden + row * hidden_stride, hidden_stride, panel.data(), columns,
                 logits + row * logit_stride + v, logit_stride, false);
      });
    }
    at::native::cpublas::brgemm_release(true);
  });
}

void hidden_gradient(const BFloat16* gradient, int64_t gradient_stride, int64_t rows, const BFloat16* head,
                     int64_t vocab, int64_t width, float* grad_hidden) {
  // Each task owns a tile of the result. Rows are split only if there are more threads than column
  // tiles, because tasks with the same columns pack the same panels.
  const int64_t column_blocks = blocks(width, columns), row_blocks = blocks(rows, tall);
  const int64_t row_groups = std::clamp<int64_t>(at::get_num_threads() / column_blocks, 1, row_blocks);
  const int64_t group_rows = blocks(row_blocks, row_groups) * tall;
  at::parallel_for(0, row_groups * column_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> panel(static_cast<size_t>(deep / 2 * columns));
    for (int64_t v = 0; v < vocab; v += deep) {
      const int64_t depth = std::min(deep, vocab - v);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first_row = task / column_blocks * group_rows, column = task % column_blocks * columns;
        const int64_t here = std::min(group_rows, rows - first_row),
                      count = std::min(columns, width - column);
        if (here <= 0) continue;
        pack_rows(head + v * width + column, width, depth, count, panel.data(), columns);
        pieces(here, tall, row_multiple, [&](int64_t row, int64_t m) {
          multiply(m, count, (depth + 1) / 2 * 2, gradient + (first_row + row) * gradient_stride + v,
                   gradient_stride, panel.data(), columns, grad_hidden + (first_row + row) * width + column,
                   width, v > 0);
        });
      }
    }
    at::native::cpublas::brgemm_release(true);
  });
}

void head_gradient(const BFloat16* gradient, int64_t gradient_stride, int64_t rows, const BFloat16* hidden,
                   int64_t hidden_stride, int64_t vocab, int64_t width, float* grad_head) {
  std::vector<uint32_t> packed(static_cast<size_t>(rows / 2 * width));
  at::parallel_for(0, rows / row_multiple, 1, [&](int64_t begin, int64_t end) {
    pack_rows(hidden + begin * row_multiple * hidden_stride, hidden_stride, (end - begin) * row_multiple,
              width, packed.data() + begin * row_multiple / 2 * width, width);
  });
  at::parallel_for(0, blocks(vocab, columns), 1, [&](int64_t begin, int64_t end) {
    std::vector<BFloat16> turned(static_cast<size_t>(columns * deep));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t v = block * columns, m = std::min(columns, vocab - v);
      pieces(rows, deep, row_multiple, [&](int64_t row, int64_t depth) {
        transpose_block(gradient + row * gradient_stride + v, gradient_stride, depth, m, turned.data(), deep);
        pieces(width, columns, columns, [&](int64_t column, int64_t count) {
          multiply(m, count, depth, turned.data(), deep, packed.data() + row / 2 * width + column, width,
                   grad_head + v * width + column, width, true);
        });
      });
    }
    at::native::cpublas::brgemm_release(true);
  });
}

}  // namespace nlac::mixed
