// The sampler against a naive float64 reference that sorts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/generate/logit_kernels.h"
#include "core/generate/request.h"

using namespace nlac;

namespace {

std::vector<float> normal_logits(int64_t vocab, double scale, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) logit = static_cast<float>(scale) * normal(engine);
  return logits;
}

// The expected distribution: sort, then temperature, top-k, top-p, min-p.
std::vector<double> reference(const std::vector<float>& logits, const GenerateRequest& request) {
  const size_t vocab = logits.size();
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weight(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    weight[i] = std::exp((double{logits[order[i]]} - logits[order[0]]) / request.temperature);
  }
  size_t kept = vocab;
  if (request.top_k > 0) kept = std::min(kept, static_cast<size_t>(request.top_k));
  if (request.top_p < 1) {
    const double total = std::accumulate(weight.begin(), weight.begin() + static_cast<ptrdiff_t>(kept), 0.0);
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      sum += weight[i];
      if (sum >= request.top_p * total) kept = i + 1;
    }
  }
  while (kept > 1 && weight[kept - 1] < request.min_p) --kept;
  const double total = std::accumulate(weight.begin(), weight.begin() + static_cast<ptrdiff_t>(kept), 0.0);
  std::vector<double> probability(vocab, 0.0);
  for (size_t i = 0; i < kept; ++i) probability[order[i]] = weight[i] / total;
  return probability;
}

// Draws many tokens; each must be in the support, and Pearson's statistic within six standard
// deviations.
void check_distribution(const std::vector<float>& logits, const GenerateRequest& request, int64_t draws) {
  const std::vector<double> expected = reference(logits, request);
  std::vector<int64_t> seen(logits.size(), 0);
  for (int64_t step = 0; step < draws; ++step) {
    float log_prob = 0;
    ++seen[sample_token(logits.data(), static_cast<int64_t>(logits.size()), request, step, &log_prob)];
  }
  double statistic = 0, rest_expected = 0;
  int64_t cells = 0, rest_seen = 0, outside = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double mean = expected[i] * static_cast<double>(draws);
    if (expected[i] == 0) outside += seen[i];
    if (mean >= 5) {
      statistic += (seen[i] - mean) * (seen[i] - mean) / mean;
      ++cells;
    } else {
      rest_expected += mean;
      rest_seen += seen[i];
    }
  }
  if (rest_expected >= 5) {
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  CHECK(outside == 0);
  CHECK(statistic <= cells + 6 * std::sqrt(2.0 * cells) + 6);
}

GenerateRequest with(double temperature, int64_t top_k, double top_p, double min_p, uint64_t seed = 7) {
  GenerateRequest request;
  request.temperature = temperature;
  request.top_k = top_k;
  request.top_p = top_p;
  request.min_p = min_p;
  request.seed = seed;
  return request;
}

}  // namespace

TEST_CASE("kernels agree with float64 for every remainder of the vector width") {
  for (int64_t n : {1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 3001}) {
    CAPTURE(n);
    const std::vector<float> x = normal_logits(n, 20, 100 + static_cast<uint64_t>(n));
    const float top = kernels::max_value(x.data(), n);
    CHECK(top == *std::max_element(x.begin(), x.end()));

    const float scale = 0.7f;
    std::vector<float> e(static_cast<size_t>(n));
    kernels::exponentials(x.data(), n, top, scale, e.data());
    double mass = 0, above = 0, worst = 0;
    const float threshold = top - 10;
    std::vector<int32_t> chosen, selected;
    for (int64_t i = 0; i < n; ++i) {
      const double exact = std::exp(double{(x[i] - top) * scale});
      worst = std::max(worst, std::abs(e[i] - exact) / std::max(exact, 1e-30));
      mass += exact;
      if (x[i] >= threshold) above += exact, chosen.push_back(static_cast<int32_t>(i));
    }
    CHECK(worst < 3e-7);
    std::vector<double> sums(static_cast<size_t>((n + kernels::kSumBlock - 1) / kernels::kSumBlock));
    kernels::exp_block_sums(x.data(), n, top, scale, sums.data());
    CHECK(std::accumulate(sums.begin(), sums.end(), 0.0) == doctest::Approx(mass).epsilon(1e-6));
    CHECK(kernels::exp_mass_at_least(x.data(), n, top, scale, threshold) ==
          doctest::Approx(above).epsilon(1e-6));
    kernels::select_at_least(x.data(), n, threshold, selected);
    CHECK(selected == chosen);
    std::vector<float> maxima(static_cast<size_t>((n + kernels::kMaxBlock - 1) / kernels::kMaxBlock));
    kernels::block_maxima(x.data(), n, maxima.data());
    CHECK(*std::max_element(maxima.begin(), maxima.end()) == top);
    CHECK(maxima.back() == *std::max_element(x.end() - ((n - 1) % kernels::kMaxBlock + 1), x.end()));
  }
}

TEST_CASE("draws follow the filtered distribution") {
  int64_t vocab = 5;
  uint64_t seed = 1;
  for (double temperature : {0.3, 1.0, 2.5}) {
    for (int64_t top_k : {0, 1, 4, 40}) {
      for (double top_p : {0.2, 0.9, 1.0}) {
        for (double min_p : {0.0, 0.15}) {
          vocab = vocab * 3 % 401 + 2;
          ++seed;
          CAPTURE(vocab);
          CAPTURE(temperature);
          CAPTURE(top_k);
          CAPTURE(top_p);
          CAPTURE(min_p);
          check_distribution(normal_logits(vocab, 1.5, seed), with(temperature, top_k, top_p, min_p, seed),
                             5000);
        }
      }
    }
  }
}

TEST_CASE("filters are correct for a vocabulary of realistic size") {
  const std::vector<float> peaked = normal_logits(49152, 3, 5), flat = normal_logits(49152, 0.5, 6);
  for (const auto* logits : {&peaked, &flat}) {
    for (const GenerateRequest& request :
         {with(1, 0, 1, 0), with(0.7, 0, 1, 0), with(1, 50, 1, 0), with(1, 0, 0.95, 0), with(1, 0, 1, 0.1),
          with(0.6, 2000, 0.9, 0.02), with(1, 0, 1e-9, 0)}) {
      CAPTURE(request.top_k);
      CAPTURE(request.top_p);
      CAPTURE(request.min_p);
      check_distribution(*logits, request, 400);
    }
  }
}

TEST_CASE("a nucleus is the smallest set; ties go to smaller ids") {
  // Levels of equally likely tokens, spread over a large vocabulary: 10 of 1/20 each, 40 of 1/80
  // each.
  std::vector<float> logits(49152, -60.0f);
  std::vector<int64_t> ranked;
  for (int64_t i = 0; i < 10; ++i) ranked.push_back(4000 * i + 77);
  for (int64_t i = 0; i < 40; ++i) ranked.push_back(1200 * i + 5);
  for (size_t i = 0; i < ranked.size(); ++i) {
    logits[static_cast<size_t>(ranked[i])] = i < 10 ? 0.0f : -std::log(4.0f);
  }
  for (const auto& [top_p, kept] :
       {std::pair{0.01, 1}, {0.12, 3}, {0.49, 10}, {0.52, 12}, {0.93, 45}, {0.999, 50}}) {
    CAPTURE(top_p);
    std::vector<int64_t> expected(ranked.begin(), ranked.begin() + kept), seen;
    for (int64_t step = 0; step < 2000; ++step) {
      seen.push_back(sample_token(logits.data(), 49152, with(1, 0, top_p, 0), step, nullptr));
    }
    std::sort(expected.begin(), expected.end());
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    CHECK(seen == expected);
  }
}

TEST_CASE("log probabilities are those of the unfiltered softmax") {
  const std::vector<float> logits = normal_logits(1500, 4, 9);
  double total = 0;
  for (float logit : logits) total += std::exp(double{logit});
  for (const GenerateRequest& request : {with(0, 0, 1, 0), with(1, 0, 1, 0), with(0.2, 3, 0.5, 0.1)}) {
    float log_prob = 0;
    const int64_t id = sample_token(logits.data(), 1500, request, 3, &log_prob);
    CHECK(log_prob == doctest::Approx(logits[static_cast<size_t>(id)] - std::log(total)).epsilon(1e-5));
  }
}

TEST_CASE("the most probable ids equal the start of the sorted vocabulary") {
  for (const int64_t vocab : {1, 63, 64, 65, 1500, 49152}) {
    std::vector<float> logits = normal_logits(vocab, 3, static_cast<uint64_t>(vocab));
    // Includes ties, also at the top.
    for (size_t i = 0; i < logits.size(); ++i)
      if (i % 3 == 0) logits[i] = std::round(logits[i]);
    double total = 0;
    for (const float logit : logits) total += std::exp(double{logit});
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (const int64_t count : {int64_t{1}, int64_t{5}, int64_t{20}, vocab}) {
      if (count > vocab) continue;
      GenerateResult result;
      for (int64_t step = 1; step <= 2; ++step) {
        append_top(logits.data(), vocab, count, &result);
        REQUIRE(static_cast<int64_t>(result.top_tokens.size()) == step * count);
      }
      double worst = 0;
      bool same = true;
      for (size_t i = 0; i < result.top_tokens.size(); ++i) {
        const int32_t id = order[i % static_cast<size_t>(count)];
        same = same && result.top_tokens[i] == id;
        worst = std::max(worst, std::abs(result.top_log_probs[i] - (logits[id] - std::log(total))));
        same = same && result.top_log_probs[i] == log_probability(logits.data(), vocab, id);
      }
      CHECK(same);
      CHECK(worst < 1e-5);
    }
  }
}

TEST_CASE("a draw is a function of seed and step") {
  const std::vector<float> logits = normal_logits(300, 1, 2);
  const auto draw = [&](uint64_t seed, int64_t step) {
    return sample_token(logits.data(), 300, with(1, 0, 1, 0, seed), step, nullptr);
  };
  std::vector<int64_t> first, again, other;
  for (int64_t step = 0; step < 50; ++step) {
    first.push_back(draw(1, step));
    other.push_back(draw(2, step));
  }
  for (int64_t step = 49; step >= 0; --step) again.insert(again.begin(), draw(1, step));
  CHECK(first == again);
  CHECK(first != other);
  // Filters that keep everything do not change the draws.
  for (int64_t step = 0; step < 50; ++step) {
    CHECK(sample_token(logits.data(), 300, with(1, 299, 1 - 1e-12, 1e-9, 1), step, nullptr) == first[step]);
  }
}

TEST_CASE("greedy takes the largest logit, the first among equals") {
  std::vector<float> logits = {0, 3, -1, 3, 2};
  float log_prob = 0;
  CHECK(sample_token(logits.data(), 5, with(0, 0, 1, 0), 0, &log_prob) == 1);
  CHECK(sample_token(logits.data(), 5, with(5, 1, 1, 0), 0, nullptr) == 1);
  // A temperature so low that the scale overflows: the largest logit still wins.
  CHECK(sample_token(logits.data() + 2, 3, with(1e-300, 0, 1, 0), 0, nullptr) == 1);
}

TEST_CASE("extreme logits") {
  const float infinity = std::numeric_limits<float>::infinity();
  float log_prob = 0;
  SUBCASE("±1e4 stays finite") {
    const std::vector<float> logits = {-1e4f, 1e4f, -1e4f};
    CHECK(sample_token(logits.data(), 3, with(1, 0, 1, 0), 0, &log_prob) == 1);
    CHECK(log_prob == 0.0f);
  }
  SUBCASE("a masked token is never drawn") {
    std::vector<float> logits(40, -infinity);
    logits[7] = 0, logits[39] = 0.1f;
    // Also a temperature so high that the scale would be 0.
    for (const GenerateRequest& request : {with(1, 0, 1, 0), with(3, 10, 1, 0), with(3, 0, 0.9999, 0),
                                           with(1e300, 0, 1, 0), with(1e300, 0, 0.9999, 0)}) {
      for (int64_t step = 0; step < 200; ++step) {
        const int64_t id = sample_token(logits.data(), 40, request, step, nullptr);
        CHECK((id == 7 || id == 39));
      }
    }
  }
  SUBCASE("not finite is an error") {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
      for (size_t place : {size_t{0}, size_t{20}, size_t{32}}) {
        std::vector<float> logits(33, 0.0f);
        logits[place] = bad;
        CHECK_THROWS_AS(sample_token(logits.data(), 33, with(1, 0, 1, 0), 0, &log_prob), Error);
      }
    }
    const std::vector<float> masked(9, -infinity);
    CHECK_THROWS_AS(sample_token(masked.data(), 9, with(0, 0, 1, 0), 0, &log_prob), Error);
  }
}

TEST_CASE("forbidden tokens get no weight, and the others are unchanged") {
  for (const int64_t vocab : {1, 15, 16, 31, 32, 33, 1000, 49152}) {
    const std::vector<float> logits = normal_logits(vocab, 3, static_cast<uint64_t>(vocab));
    std::mt19937 numbers(static_cast<uint32_t>(vocab));
    std::vector<uint32_t> allowed(static_cast<size_t>((vocab + 31) / 32));
    for (uint32_t& word : allowed) word = numbers() % 4 ? numbers() : numbers() % 2 ? 0 : ~0u;
    std::vector<float> kept = logits;
    kernels::keep_allowed(kept.data(), vocab, allowed.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const size_t at = static_cast<size_t>(i);
      const bool is_allowed = allowed[at / 32] >> (at % 32) & 1;
      wrong += kept[at] != (is_allowed ? logits[at] : -std::numeric_limits<float>::infinity());
    }
    CHECK(wrong == 0);
  }
}
