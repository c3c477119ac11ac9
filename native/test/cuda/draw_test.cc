// Sampling on a GPU, against a naive float64 sampler that sorts; test/cuda/inference compares it
// with the CPU's.
#include "cuda/draw.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/generate/id_mask.h"
#include "test/cuda/device_memory.h"

using namespace nlac;
using namespace nlac::test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr uint64_t largest_number = ~uint64_t{0};

using Logits = std::vector<float>;
using Mask = std::vector<uint32_t>;

cuda::TokenDraw plain_draw(uint64_t number, int32_t row = 0) {
  return {.number = number,
          .top_p = 1,
          .scale = 1,
          .reach = -infinity,
          .penalty = 1,
          .greedy = 0,
          .top_k = 0,
          .row = row,
          .forced = -1,
          .allowed = -1,
          .seen = -1};
}

cuda::TokenDraw filtered(uint64_t number, int32_t top_k, double top_p, double min_p, float scale = 1) {
  cuda::TokenDraw draw = plain_draw(number);
  draw.top_k = top_k, draw.top_p = top_p, draw.scale = scale;
  draw.reach = static_cast<float>(std::log(min_p) / scale);
  return draw;
}

std::vector<cuda::DrawnToken> drawn(const Logits& logits, int64_t vocab,
                                    const std::vector<cuda::TokenDraw>& draws, const Mask& masks = {}) {
  const OnDevice on_logits(logits), on_draws(draws), on_masks(masks),
      result(std::vector<cuda::DrawnToken>(draws.size(), {-7, 7}));
  REQUIRE(cuda::draw_tokens(
              {on_logits.as<float>(), vocab, on_draws.as<cuda::TokenDraw>(),
               static_cast<int64_t>(draws.size()), on_masks.as<uint32_t>(), result.as<cuda::DrawnToken>()},
              nullptr) == cudaSuccess);
  return result.values<cuda::DrawnToken>();
}

std::vector<int32_t> ids(const Logits& row, const std::vector<cuda::TokenDraw>& draws,
                         const Mask& masks = {}) {
  std::vector<int32_t> ids;
  for (const auto& token : drawn(row, static_cast<int64_t>(row.size()), draws, masks))
    ids.push_back(token.id);
  return ids;
}

// --- the plain way -------------------------------------------------------------------------------

Logits changed(Logits row, const cuda::TokenDraw& draw, const Mask& masks) {
  const auto vocab = static_cast<int64_t>(row.size());
  const auto has = [&](int32_t mask, int64_t id) {
    return in_mask(masks.data() + mask * mask_words(vocab), id);
  };
  for (int64_t id = 0; id < vocab; ++id) {
    float& logit = row[static_cast<size_t>(id)];
    if (draw.seen >= 0 && has(draw.seen, id)) logit = logit > 0 ? logit / draw.penalty : logit * draw.penalty;
    if (draw.allowed >= 0 && !has(draw.allowed, id)) logit = -infinity;
  }
  return row;
}

// The probabilities that `draw` uses. `doubtful`: rounding decides where top_p cuts.
struct Law {
  std::vector<double> probabilities;
  bool doubtful = false;
};
Law law(const Logits& row, const cuda::TokenDraw& draw) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  std::vector<double> weights;
  for (const size_t id : order) weights.push_back(std::exp((double{row[id]} - row[order[0]]) * draw.scale));
  Law law{std::vector<double>(row.size(), 0.0)};
  if (draw.greedy != 0) {
    law.probabilities[order[0]] = 1;
    return law;
  }
  size_t kept = draw.top_k > 0 ? static_cast<size_t>(draw.top_k) : row.size();
  const auto mass = [&] {
    return std::accumulate(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(kept), 0.0);
  };
  if (draw.top_p < 1) {
    const double whole = mass();
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      sum += weights[i];
      if (std::abs(sum - draw.top_p * whole) < 1e-6 * whole && weights[i] > 1e-9) law.doubtful = true;
      if (sum >= draw.top_p * whole) kept = i + 1;
    }
  }
  while (kept > 1 && row[order[kept - 1]] < row[order[0]] + draw.reach) --kept;
  const double whole = mass();
  for (size_t i = 0; i < kept; ++i) law.probabilities[order[i]] = weights[i] / whole;
  return law;
}

double log_prob(const Logits& row, int32_t id) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) sum += std::exp(logit - top);
  return row[static_cast<size_t>(id)] - top - std::log(sum);
}

// Whether the number lies in the token's interval of the cumulative probabilities, up to rounding.
bool fits(const std::vector<double>& probabilities, uint64_t number, int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= probabilities.size()) return false;
  const double begin = std::accumulate(probabilities.begin(), probabilities.begin() + id, 0.0);
  const double end = begin + probabilities[static_cast<size_t>(id)],
               u = static_cast<double>(number) * 0x1p-64;
  return end > begin && u > begin - 2e-6 && u < end + 2e-6;
}

// A seeded random choice from `values`.
template <typename T>
T choice(uint64_t counter, uint64_t stream, const std::vector<T>& values) {
  return values[philox(11, stream, counter)[0] % values.size()];
}

uint64_t random_number(uint64_t counter) {
  const auto words = philox(5, 1, counter);
  return uint64_t{words[0]} << 32 | words[1];
}

Mask random_mask(int64_t vocab, uint64_t stream) {
  Mask mask(static_cast<size_t>(mask_words(vocab)));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = philox(3, stream, i)[0];
  add_to_mask(mask.data(), vocab / 2);
  return mask;
}

}  // namespace

TEST_CASE("cuda: each draw follows the distribution of its own settings") {
  if (!has_device()) return;
  uint64_t counter = 0;
  int64_t doubtful = 0, checked = 0;
  const auto check = [&](int64_t vocab, int64_t rows, size_t count) {
    CAPTURE(vocab);
    const Logits logits = numbers(rows * vocab, static_cast<uint64_t>(vocab), 9);
    Mask masks = random_mask(vocab, 1);
    const Mask second = random_mask(vocab, 2);
    masks.insert(masks.end(), second.begin(), second.end());
    std::vector<cuda::TokenDraw> draws;
    for (size_t i = 0; i < count; ++i, ++counter) {
      const auto at_most = [&](int32_t top_k) {
        return std::min<int32_t>(top_k, static_cast<int32_t>(vocab) - 1);
      };
      cuda::TokenDraw draw = filtered(
          random_number(counter), at_most(choice<int32_t>(counter, 1, {0, 0, 1, 3, 40, 1 << 30})),
          choice<double>(counter, 2, {1, 1, 0.9, 0.3, 1e-9}), choice<double>(counter, 3, {0, 0, 0.05, 1}),
          choice<float>(counter, 4, {1, 1, 0.4f, 3, 1e30f, 1e-30f}));
      draw.greedy = choice<int32_t>(counter, 5, {0, 0, 0, 0, 1});
      draw.row = static_cast<int32_t>(philox(11, 6, counter)[0] % static_cast<uint64_t>(rows));
      draw.allowed = choice<int32_t>(counter, 7, {-1, -1, 0, 1});
      draw.seen = choice<int32_t>(counter, 8, {-1, -1, 0, 1});
      draw.penalty = choice<float>(counter, 9, {1.3f, 0.8f});
      draws.push_back(draw);
    }
    const auto got = drawn(logits, vocab, draws, masks);
    for (size_t i = 0; i < count; ++i) {
      const auto& draw = draws[i];
      CAPTURE(i);
      CAPTURE(draw.top_k);
      CAPTURE(draw.top_p);
      CAPTURE(draw.reach);
      CAPTURE(draw.scale);
      const Logits row(logits.begin() + draw.row * vocab, logits.begin() + (draw.row + 1) * vocab);
      const Law expected = law(changed(row, draw, masks), draw);
      ++checked;
      doubtful += expected.doubtful;
      CHECK((expected.doubtful || fits(expected.probabilities, draw.number, got[i].id)));
      CHECK(excess(got[i].log_prob, log_prob(row, got[i].id), false) == 0);
    }
    // Independent of the other draws and of the order of threads.
    const auto alone = drawn(logits, vocab, {draws.back()}, masks);
    CHECK(alone[0].id == got.back().id);
    CHECK(alone[0].log_prob == got.back().log_prob);
  };
  for (const int64_t vocab : {1, 2, 7, 31, 32, 33, 97, 509, 1021, 2053}) check(vocab, 3, 24);
  check(49152, 2, 3);
  check(152064, 2, 2);
  CHECK(doubtful * 20 < checked);
}

TEST_CASE("cuda: evenly spaced uniforms draw each token in proportion to its probability") {
  if (!has_device()) return;
  constexpr int count = 400;
  const Logits row = numbers(203, 4, 3);
  for (const cuda::TokenDraw& settings : {plain_draw(0), filtered(0, 0, 1, 0, 0.5f), filtered(0, 12, 1, 0),
                                          filtered(0, 0, 0.8, 0), filtered(0, 0, 1, 0.2)}) {
    std::vector<cuda::TokenDraw> draws(count, settings);
    for (size_t i = 0; i < count; ++i)
      draws[i].number = largest_number / count * i + largest_number / (2 * count);
    std::map<int32_t, int> times;
    for (const int32_t id : ids(row, draws)) ++times[id];
    const Law expected = law(row, settings);
    for (size_t id = 0; id < row.size(); ++id)
      CHECK(std::abs(times[static_cast<int32_t>(id)] - count * expected.probabilities[id]) <= 1 + 1e-3);
  }
}

TEST_CASE("cuda: ties go to smaller ids, and 0 equals -0") {
  if (!has_device()) return;
  for (const int64_t vocab : {1, 5, 64, 1000, 20000}) {
    CAPTURE(vocab);
    const auto count = static_cast<int32_t>(vocab);
    for (const float value : {0.0f, -3.0f, 1e30f, -3e38f}) {
      Logits equal(static_cast<size_t>(vocab), value);
      if (value == 0)
        for (size_t i = 0; i < equal.size(); i += 3) equal[i] = -0.0f;
      cuda::TokenDraw greedy = plain_draw(largest_number);
      greedy.greedy = 1;
      const int32_t few = std::min(3, count - 1), half = (count + 1) / 2;
      CHECK(
          ids(equal, {plain_draw(0), plain_draw(largest_number), greedy, filtered(largest_number, few, 1, 0),
                      filtered(largest_number, 0, 0.5, 0), filtered(largest_number, 0, 1e-30, 0),
                      filtered(largest_number, 0, 1, 1), filtered(largest_number, few, 0.5, 1)}) ==
          std::vector<int32_t>{0, count - 1, 0, few > 0 ? few - 1 : count - 1, half - 1, 0, count - 1,
                               few > 0 ? (few + 1) / 2 - 1 : half - 1});
    }
  }
  // Ten tokens of probability 1/20 and forty of 1/80, in no order: the last that are kept.
  Logits row(4999, -60.0f);
  std::vector<int32_t> ranked;
  for (int32_t i = 0; i < 10; ++i) ranked.push_back(400 * i + 77);
  for (int32_t i = 0; i < 40; ++i) ranked.push_back(120 * i + 5);
  for (size_t i = 0; i < ranked.size(); ++i)
    row[static_cast<size_t>(ranked[i])] = i < 10 ? 0 : -std::log(4.0f);
  for (const auto& [top_p, top_k, kept] : {std::tuple{0.01, 0, 1},
                                           {0.12, 0, 3},
                                           {0.49, 0, 10},
                                           {0.52, 0, 12},
                                           {0.93, 0, 45},
                                           {0.999, 0, 50},
                                           {1.0, 13, 13},
                                           {0.95, 13, 11}}) {
    CAPTURE(top_p);
    CAPTURE(top_k);
    const auto end = ranked.begin() + kept;
    CHECK(
        ids(row, {filtered(0, top_k, top_p, 0), filtered(largest_number, top_k, top_p, 0)}) ==
        std::vector<int32_t>{*std::min_element(ranked.begin(), end), *std::max_element(ranked.begin(), end)});
  }
}

TEST_CASE("cuda: a token of probability 0 is never drawn, and non-finite logits are reported") {
  if (!has_device()) return;
  for (const size_t vocab : {size_t{3}, size_t{40}, size_t{700}}) {
    CAPTURE(vocab);
    const auto last = static_cast<int32_t>(vocab) - 1;
    const auto seen = [](int32_t top_k, float penalty) {
      cuda::TokenDraw draw = filtered(largest_number, top_k, 1, 0);
      draw.seen = 0, draw.penalty = penalty;
      return draw;
    };
    Logits masked(vocab, -infinity);
    masked[1] = 2;
    const std::vector<cuda::TokenDraw> all = {plain_draw(0),
                                              plain_draw(largest_number),
                                              filtered(largest_number, 2, 1, 0),
                                              filtered(largest_number, 0, 0.9999, 0),
                                              filtered(largest_number, 0, 1, 1e-30),
                                              filtered(largest_number, 0, 1, 0, 1e-30f),
                                              seen(0, 1.5f)};
    const Mask mask(static_cast<size_t>(mask_words(last + 1)), ~0u);
    const auto expect = [&](const Logits& row, int32_t id) {
      CHECK(ids(row, all, mask) == std::vector<int32_t>(all.size(), id));
    };
    expect(masked, 1);
    Logits steep(vocab, -3e38f);
    steep[1] = 3e38f;
    expect(steep, 1);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
      for (const size_t place : {size_t{0}, vocab / 2, vocab - 1}) {
        Logits row(vocab, 1);
        row[place] = bad;
        expect(row, -1);
      }
    }
    expect(Logits(vocab, -infinity), -1);
    // Logits that the penalty makes infinite, and logits that it removes.
    CHECK(ids(Logits(vocab, 1e38f), {seen(0, 1e-5f), seen(0, 2)}, mask) == std::vector<int32_t>{-1, last});
    CHECK(ids(Logits(vocab, -1e38f), {seen(0, 1e5f)}, mask) == std::vector<int32_t>{-1});
  }
}

TEST_CASE("cuda: masks that leave one id, no id, or only ids of probability 0") {
  if (!has_device()) return;
  constexpr int64_t vocab = 70;
  Logits row = numbers(vocab, 8, 4);
  row[5] = -infinity;
  const auto words = static_cast<size_t>(mask_words(vocab));
  const auto with = [](int32_t mask, int32_t top_k, double top_p) {
    cuda::TokenDraw draw = filtered(largest_number, top_k, top_p, 0);
    draw.allowed = mask;
    return draw;
  };
  Mask masks(4 * words, 0);  // none, 69 alone, 5 alone, 5 and 69
  add_to_mask(masks.data() + words, 69);
  add_to_mask(masks.data() + 2 * words, 5);
  for (const int64_t id : {5, 69}) add_to_mask(masks.data() + 3 * words, id);
  std::vector<cuda::TokenDraw> draws;
  for (const int32_t mask : {0, 1, 2, 3})
    for (const auto& draw : {with(mask, 0, 1), with(mask, 69, 1), with(mask, 2, 0.9), with(mask, 0, 0.1)})
      draws.push_back(draw);
  CHECK(ids(row, draws, masks) ==
        std::vector<int32_t>{-1, -1, -1, -1, 69, 69, 69, 69, -1, -1, -1, -1, 69, 69, 69, 69});
  // A forced id is taken regardless of the mask; masked logits must be finite too.
  cuda::TokenDraw forced = with(0, 0, 1);
  forced.forced = 7;
  const auto taken = drawn(row, vocab, {forced}, masks);
  CHECK(taken[0].id == 7);
  CHECK(excess(taken[0].log_prob, log_prob(row, 7), false) == 0);
  forced.forced = 5;
  CHECK(drawn(row, vocab, {forced}, masks)[0].log_prob == -infinity);
  row[0] = std::numeric_limits<float>::quiet_NaN();
  CHECK(ids(row, {with(1, 0, 1), forced}, masks) == std::vector<int32_t>{-1, -1});
}

TEST_CASE("cuda: no draws need no work, and invalid inputs are rejected") {
  CHECK(cuda::draw_tokens({nullptr, 8, nullptr, 0, nullptr, nullptr}, nullptr) == cudaSuccess);
  for (const int64_t vocab : {int64_t{0}, cuda::max_drawn_vocab + 1})
    CHECK(cuda::draw_tokens({nullptr, vocab, nullptr, 1, nullptr, nullptr}, nullptr) ==
          cudaErrorInvalidValue);
}
