#if defined(__x86_64__)

#include "core/cpu/bf16_amx.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "core/cpu/bf16_vectors.h"
#include "core/instruction_set.h"

#define NLAC_AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")))

namespace nlac::bf16::amx {
namespace {

// A tile has up to 16 rows of 64 bytes: 16 float32, or 16 pairs of bfloat16.
constexpr int64_t side = 16;

// Tiles 0 to 3 are sums; 4 and 5 hold the left factor's rows, 6 and 7 the right factor's columns.
struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t words) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(4 * words);
  }
};

NLAC_AMX inline void apply(const Configuration& configuration) {
  // GCC 12's intrinsic names only the first bytes as its input; the others must be written by then.
  asm volatile("" : : "m"(configuration));
  _tile_loadconfig(&configuration);
}

// Sums of `first` rows in tiles 0 and 1 (2 and 3), and of `second` rows in the other two.
NLAC_AMX void apply_two_by_two(int64_t first, int64_t second, int64_t left_columns, int64_t right_columns) {
  Configuration configuration;
  configuration.set(0, first, left_columns);
  configuration.set(1, first, right_columns);
  configuration.set(2, second, left_columns);
  configuration.set(3, second, right_columns);
  configuration.set(4, first, side);
  configuration.set(5, second, side);
  configuration.set(6, side, left_columns);
  configuration.set(7, side, right_columns);
  apply(configuration);
}

// GCC 12's _tile_loadd does not say that it reads memory, so a store before it could be moved
// behind it.
NLAC_AMX inline void finish_stores() { asm volatile("" : : : "memory"); }

// 16 pairs of a panel. The hardware does not recognize a tile's rows as a stream.
NLAC_AMX inline void prefetch_step(const Pair* pairs) {
  const char* const bytes = reinterpret_cast<const char*>(pairs);
#pragma GCC unroll 8
  for (int64_t line = 0; line < side * wide * 4; line += 64) _mm_prefetch(bytes + line, _MM_HINT_T0);
}

// Up to 16 rows with all 64 columns. Weights that come from memory are read once, in order.
NLAC_AMX void one_by_four(const Bits* x, int64_t rows, const Pair* panel, int64_t pairs, float* sum) {
  finish_stores();
  Configuration configuration;
  for (int tile = 0; tile < 4; ++tile) configuration.set(tile, rows, side);
  configuration.set(4, rows, side);
  for (int tile = 5; tile < 8; ++tile) configuration.set(tile, side, side);
  apply(configuration);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int64_t x_bytes = 4 * pairs;
  constexpr int64_t panel_bytes = 4 * wide;
  for (int64_t p = 0; p < pairs; p += side) {
    const Pair* const here = panel + p * wide;
    prefetch_step(here + 2 * side * wide);
    _tile_loadd(4, x + 2 * p, x_bytes);
    _tile_loadd(5, here, panel_bytes);
    _tile_loadd(6, here + side, panel_bytes);
    _tile_loadd(7, here + 2 * side, panel_bytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, here + 3 * side, panel_bytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, sum, panel_bytes);
  _tile_stored(1, sum + side, panel_bytes);
  _tile_stored(2, sum + 2 * side, panel_bytes);
  _tile_stored(3, sum + 3 * side, panel_bytes);
}

// 17 to 32 rows, half of the columns at a time.
NLAC_AMX void two_by_two(const Bits* x, int64_t rows, const Pair* panel, int64_t pairs, float* sum) {
  finish_stores();
  apply_two_by_two(side, rows - side, side, side);
  const int64_t x_bytes = 4 * pairs;
  constexpr int64_t panel_bytes = 4 * wide;
  for (int64_t column = 0; column < wide; column += 2 * side) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < pairs; p += side) {
      const Pair* const here = panel + p * wide + column;
      if (column == 0) prefetch_step(here + 2 * side * wide);
      _tile_loadd(4, x + 2 * p, x_bytes);
      _tile_loadd(5, x + 2 * (side * pairs + p), x_bytes);
      _tile_loadd(6, here, panel_bytes);
      _tile_loadd(7, here + side, panel_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    float* const into = sum + column;
    _tile_stored(0, into, panel_bytes);
    _tile_stored(1, into + side, panel_bytes);
    _tile_stored(2, into + side * wide, panel_bytes);
    _tile_stored(3, into + side * wide + side, panel_bytes);
  }
}

// --- the transposed product ----------------------------------------------------------------------

// Packs columns [first, first + 16) of `rows` rows of `source` [rows, columns] as the rows of tiles
// [rows / 32][16 columns][16 pairs of rows], padded with zeros.
NLAC_AMX void pack_columns(const Bits* source, int64_t rows, int64_t columns, int64_t first, Pair* packed) {
  for (int64_t row = 0; row < rows; row += 2 * side, packed += side * side) {
    alignas(64) Pair lines[side * side] = {};
    pack_row_pairs<side>(source + row * columns, columns, std::min(2 * side, rows - row), columns, first,
                         lines);
    __m512i words[side];
    for (int64_t i = 0; i < side; ++i) words[i] = _mm512_load_si512(lines + i * side);
    transpose_words(words);
    for (int64_t i = 0; i < side; ++i) _mm512_storeu_si512(packed + i * side, words[i]);
  }
}

// sum [m, n] (rows `stride` apart) += tiles of m <= 32 rows · n <= 32 columns of a panel, over
// `steps` times 16 pairs. The tiles of the second 16 rows are `tiles_step` behind the first.
template <bool two_rows, bool two_columns>
NLAC_AMX void add_block(const Pair* tiles, int64_t tiles_step, const Pair* panel, int64_t steps, float* sum,
                        int64_t stride) {
  constexpr int64_t panel_bytes = 4 * wide;
  const int64_t sum_bytes = 4 * stride;
  finish_stores();
  _tile_loadd(0, sum, sum_bytes);
  if constexpr (two_columns) _tile_loadd(1, sum + side, sum_bytes);
  if constexpr (two_rows) _tile_loadd(2, sum + side * stride, sum_bytes);
  if constexpr (two_rows && two_columns) _tile_loadd(3, sum + side * stride + side, sum_bytes);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, tiles + step * side * side, 4 * side);
    _tile_loadd(6, panel + step * side * wide, panel_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (two_columns) {
      _tile_loadd(7, panel + step * side * wide + side, panel_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (two_rows) {
      _tile_loadd(5, tiles + tiles_step + step * side * side, 4 * side);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (two_columns) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sum, sum_bytes);
  if constexpr (two_columns) _tile_stored(1, sum + side, sum_bytes);
  if constexpr (two_rows) _tile_stored(2, sum + side * stride, sum_bytes);
  if constexpr (two_rows && two_columns) _tile_stored(3, sum + side * stride + side, sum_bytes);
}

}  // namespace

bool available() {
  static const bool yes = runs(InstructionSet::amx_bf16);
  return yes;
}

NLAC_AMX void release() { _tile_release(); }

void panel_product(const Bits* x, int64_t rows, const Pair* panel, int64_t pairs, float* sum) {
  if (rows <= side)
    one_by_four(x, rows, panel, pairs, sum);
  else
    two_by_two(x, rows, panel, pairs, sum);
}

void add_transposed_product(const Bits* a, const Bits* b, int64_t rows, int64_t m, int64_t n, float* sum) {
  constexpr int64_t depth = 512;  // rows packed at a time: a panel of b then fits the L2 cache
  const int64_t m_tiles = panels(m, side), n_panels = panels(n, wide);
  const auto packed_a = scratch<Pair>(m_tiles * side * depth / 2),
             packed_b = scratch<Pair>(n_panels * wide * depth / 2);
  for (int64_t begin = 0; begin < rows; begin += depth) {
    const int64_t count = std::min(rows - begin, depth), steps = panels(count, 2 * side);
    const int64_t tiles_step = steps * side * side, panel_step = steps * side * wide;
    at::parallel_for(0, m_tiles, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p)
        pack_columns(a + begin * m, count, m, p * side, packed_a.get() + p * tiles_step);
    });
    at::parallel_for(0, n_panels, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        Pair* const panel = packed_b.get() + p * panel_step;
        const int64_t packed = (count + 1) / 2 * wide;
        pack_row_pairs<wide>(b + begin * n, n, count, n, p * wide, panel);
        std::memset(panel + packed, 0, (panel_step - packed) * sizeof(Pair));
      }
    });
    at::parallel_for(0, panels(m, 2 * side), 1, [&](int64_t first, int64_t last) {
      for (int64_t q = 0; q < n; q += 2 * side) {
        const int64_t columns = std::min(2 * side, n - q), left = std::min(side, columns);
        const bool two_columns = columns > side;
        const Pair* const panel = packed_b.get() + q / wide * panel_step + q % wide;
        int64_t configured = 0;
        for (int64_t p = first; p < last; ++p) {
          const int64_t row = p * 2 * side, height = std::min(2 * side, m - row);
          const bool two_rows = height > side;
          // Tiles that are not used keep a legal size.
          if (configured != height)
            apply_two_by_two(std::min(side, height), two_rows ? height - side : side, left,
                             two_columns ? columns - side : side);
          configured = height;
          const auto add = two_rows      ? two_columns ? add_block<true, true> : add_block<true, false>
                           : two_columns ? add_block<false, true>
                                         : add_block<false, false>;
          add(packed_a.get() + row / side * tiles_step, tiles_step, panel, steps, sum + row * n + q, n);
        }
      }
      release();
    });
  }
}

}  // namespace nlac::bf16::amx

#endif
