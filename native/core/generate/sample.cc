// Samples one token from a row of logits.
//
// Every filter keeps a prefix of the same order: larger logit first, the smaller id first among
// equals. So a filter is a last kept candidate (a cut), found by selection without sorting the
// vocabulary. The draw then walks the kept tokens by ascending id.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/generate/draw_math.h"
#include "core/generate/id_mask.h"
#include "core/generate/logit_kernels.h"
#include "core/generate/request.h"

namespace nlac {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  float logit;
  float weight;  // exp((logit - top) / temperature)
  int32_t id;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Scratch memory of one thread, reused between calls.
struct Scratch {
  std::vector<double> sums, tempered;
  std::vector<float> values;
  std::vector<int32_t> ids;
  std::vector<Candidate> candidates, selection;
};

double block_sums(const float* logits, int64_t vocab, float top, float scale, std::vector<double>& sums) {
  sums.resize(static_cast<size_t>((vocab + kernels::kSumBlock - 1) / kernels::kSumBlock));
  kernels::exp_block_sums(logits, vocab, top, scale, sums.data());
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Converts a row's logits to log probabilities under its softmax.
struct Normalizer {
  float top;
  double log_total;  // of Σ exp(logit - top)
  float log_prob(float logit) const { return static_cast<float>((double{logit} - top) - log_total); }
};

// `sums`: scratch; on return the sums of the blocks at temperature 1.
Normalizer normalizer_of(const float* logits, int64_t vocab, std::vector<double>& sums) {
  const float top = kernels::max_value(logits, vocab);
  const double total = block_sums(logits, vocab, top, 1.0f, sums);
  NLAC_REQUIRE(std::isfinite(total), "ERR_NOT_FINITE", "the model's logits are not finite");
  return {top, std::log(total)};
}

// The candidates are the tokens with a logit of at least `threshold`.
void gather(const float* logits, int64_t vocab, float top, float scale, float threshold, Scratch& scratch) {
  scratch.ids.clear();
  kernels::select_at_least(logits, vocab, threshold, scratch.ids);
  const size_t count = scratch.ids.size();
  scratch.values.resize(count);
  scratch.candidates.resize(count);
  for (size_t i = 0; i < count; ++i) scratch.values[i] = logits[scratch.ids[i]];
  for (size_t i = 0; i < count; ++i) scratch.candidates[i] = {scratch.values[i], 0.0f, scratch.ids[i]};
  kernels::exponentials(scratch.values.data(), static_cast<int64_t>(count), top, scale,
                        scratch.values.data());
  for (size_t i = 0; i < count; ++i) scratch.candidates[i].weight = scratch.values[i];
}

void keep_up_to(const Candidate& cut, std::vector<Candidate>& candidates) {
  std::erase_if(candidates, [&](const Candidate& c) { return before(cut, c); });
}

double mass(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Returns a threshold that at least k logits reach: the k-th largest of the blocks' maxima.
float lower_bound_of_kth(const float* logits, int64_t vocab, int64_t k, std::vector<float>& maxima) {
  const int64_t blocks = (vocab + kernels::kMaxBlock - 1) / kernels::kMaxBlock;
  if (k > blocks) return -kInfinity;
  maxima.resize(static_cast<size_t>(blocks));
  kernels::block_maxima(logits, vocab, maxima.data());
  std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
  return maxima[static_cast<size_t>(k - 1)];
}

void keep_top_k(int64_t k, Scratch& scratch) {
  if (static_cast<size_t>(k) >= scratch.candidates.size()) return;
  scratch.selection = scratch.candidates;
  const auto last = scratch.selection.begin() + (k - 1);
  std::nth_element(scratch.selection.begin(), last, scratch.selection.end(), before);
  keep_up_to(*last, scratch.candidates);
}

// Returns the fewest most probable candidates that together weigh at least `needed`. Candidates
// with a logit of at least `certain` are known to be among them. Bisects the range of the last one
// by selection: linear in the other candidates.
void keep_top_mass(double needed, float certain, Scratch& scratch) {
  scratch.selection.clear();
  for (const Candidate& c : scratch.candidates) {
    if (c.logit >= certain) {
      needed -= c.weight;
    } else {
      scratch.selection.push_back(c);
    }
  }
  if (scratch.selection.empty()) return;
  auto low = scratch.selection.begin(), high = scratch.selection.end();
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, before);
    double sum = 0;
    for (auto c = low; c != middle; ++c) sum += c->weight;
    if (sum >= needed) {
      high = middle;
    } else {
      needed -= sum;
      low = middle;
    }
  }
  keep_up_to(*low, scratch.candidates);
}

// Finds two thresholds: the weights above `reached` sum to `needed`, those above `missed` do not.
// Doubles the distance from the top, then bisects: a pass costs less than selecting among
// thousands.
struct Bracket {
  float missed, reached;
};
Bracket bracket_mass(const float* logits, int64_t vocab, float top, float scale, double needed) {
  constexpr float kFarthest = 88;  // nats; lower logits have weight 0 in float32
  const auto threshold = [&](float nats) { return top - nats / scale; };
  const auto reaches = [&](float nats) {
    return kernels::exp_mass_at_least(logits, vocab, top, scale, threshold(nats)) >= needed;
  };
  float near = 0, far = 2;
  while (!reaches(far)) {
    near = far;
    far *= 2;
    if (far > kFarthest) return {threshold(near), -kInfinity};
  }
  for (int halving = 0; halving < 4; ++halving) {
    const float middle = (near + far) / 2;
    (reaches(middle) ? far : near) = middle;
  }
  // Distance 0 was not tried: one token may be enough.
  return {near > 0 ? threshold(near) : kInfinity, threshold(far)};
}

// Returns the index at which the running sum of `weight(i)` passes `target`. If rounding leaves the
// target beyond the last one, returns the last index of positive weight.
template <typename Weight>
int64_t walk(int64_t count, double& target, Weight weight) {
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const double w = weight(i);
    if (!(w > 0)) continue;
    last = i;
    if (target < w) return i;
    target -= w;
  }
  return last;
}

int64_t draw_unfiltered(const float* logits, int64_t vocab, float top, float scale, double u,
                        const std::vector<double>& sums, std::vector<float>& values) {
  double target = u * std::accumulate(sums.begin(), sums.end(), 0.0);
  const int64_t block = walk(static_cast<int64_t>(sums.size()), target, [&](int64_t b) { return sums[b]; });
  const int64_t begin = block * kernels::kSumBlock;
  const int64_t count = std::min(kernels::kSumBlock, vocab - begin);
  values.resize(static_cast<size_t>(count));
  kernels::exponentials(logits + begin, count, top, scale, values.data());
  return begin + walk(count, target, [&](int64_t i) { return values[i]; });
}

}  // namespace

int64_t sample_token(const float* logits, int64_t vocab, const GenerateRequest& request, int64_t step,
                     float* log_prob) {
  thread_local Scratch scratch;
  const Normalizer normalizer = normalizer_of(logits, vocab, scratch.sums);
  const float top = normalizer.top;
  const auto chosen = [&](int64_t id) {
    if (log_prob) *log_prob = normalizer.log_prob(logits[id]);
    return id;
  };
  if (request.temperature == 0) return chosen(std::find(logits, logits + vocab, top) - logits);

  const auto [u, scale, reach] = draw_settings(request, step);
  const bool by_count = request.top_k > 0 && request.top_k < vocab;
  const bool by_mass = request.top_p < 1;
  const bool by_ratio = request.min_p > 0;
  const float ratio_threshold = top + reach;

  if (!by_count && !by_mass && !by_ratio) {
    if (scale == 1.0f)
      return chosen(draw_unfiltered(logits, vocab, top, scale, u, scratch.sums, scratch.values));
    block_sums(logits, vocab, top, scale, scratch.tempered);
    return chosen(draw_unfiltered(logits, vocab, top, scale, u, scratch.tempered, scratch.values));
  }
  if (by_count) {
    const float threshold = lower_bound_of_kth(logits, vocab, request.top_k, scratch.values);
    gather(logits, vocab, top, scale, threshold, scratch);
    keep_top_k(request.top_k, scratch);
    if (by_mass) keep_top_mass(request.top_p * mass(scratch.candidates), kInfinity, scratch);
  } else if (by_mass) {
    const double needed = request.top_p * block_sums(logits, vocab, top, scale, scratch.tempered);
    const Bracket bracket = bracket_mass(logits, vocab, top, scale, needed);
    gather(logits, vocab, top, scale, bracket.reached, scratch);
    keep_top_mass(needed, bracket.missed, scratch);
  } else {
    gather(logits, vocab, top, scale, ratio_threshold, scratch);
  }
  if (by_ratio) {
    std::erase_if(scratch.candidates, [&](const Candidate& c) { return c.logit < ratio_threshold; });
  }
  double target = u * mass(scratch.candidates);
  const int64_t kept = static_cast<int64_t>(scratch.candidates.size());
  return chosen(
      scratch.candidates[walk(kept, target, [&](int64_t i) { return scratch.candidates[i].weight; })].id);
}

bool constrained(const GenerateRequest& request) {
  return request.repetition_penalty != 1 || !request.forbidden.empty() || request.grammar.valid();
}

void constrain(const GenerateRequest& request, const std::vector<int64_t>& tokens, float* logits) {
  if (request.repetition_penalty != 1) {
    const float penalty = static_cast<float>(request.repetition_penalty);
    thread_local std::vector<uint32_t> seen;  // a mask: each id counts once
    seen.clear();
    for (const int64_t id : tokens) {
      seen.resize(std::max(seen.size(), static_cast<size_t>(mask_words(id + 1))));
      if (in_mask(seen.data(), id)) continue;
      add_to_mask(seen.data(), id);
      logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
  }
  for (const int64_t id : request.forbidden) logits[id] = -kInfinity;
}

float log_probability(const float* logits, int64_t vocab, int64_t id) {
  thread_local std::vector<double> sums;
  return normalizer_of(logits, vocab, sums).log_prob(logits[id]);
}

void append_top(const float* logits, int64_t vocab, int64_t count, GenerateResult* result) {
  thread_local Scratch scratch;
  const Normalizer normalizer = normalizer_of(logits, vocab, scratch.sums);
  const float threshold = lower_bound_of_kth(logits, vocab, count, scratch.values);
  gather(logits, vocab, normalizer.top, 1.0f, threshold, scratch);
  const auto end = scratch.candidates.begin() + count;
  std::partial_sort(scratch.candidates.begin(), end, scratch.candidates.end(), before);
  for (auto candidate = scratch.candidates.begin(); candidate != end; ++candidate) {
    result->top_tokens.push_back(candidate->id);
    result->top_log_probs.push_back(normalizer.log_prob(candidate->logit));
  }
}

}  // namespace nlac
