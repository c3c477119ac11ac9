// Rotary position tables for the scalings that transformers calls default, linear, llama3, yarn
// and proportional. Intermediates are float32 where they are in transformers: at position 10^5 one ulp of an
// inverse frequency changes the angle by 0.01.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/model/rope.h"

namespace nlac {
namespace {

constexpr double two_pi = 2.0 * M_PI;

// Llama 3 keeps short wavelengths, stretches long ones by the factor, and interpolates between.
void scale_llama3(const RopeConfig& rope, float* frequency, int64_t count) {
  const float low = static_cast<float>(rope.low_freq_factor);
  const float high = static_cast<float>(rope.high_freq_factor);
  const float factor = static_cast<float>(rope.factor);
  const float context = static_cast<float>(rope.original_max_positions);
  for (int64_t i = 0; i < count; ++i) {
    const float wavelength = static_cast<float>(two_pi) / frequency[i];
    if (wavelength > context / low) {
      frequency[i] /= factor;
    } else if (wavelength >= context / high) {
      const float keep = (context / wavelength - low) / (high - low);
      frequency[i] = (1.0f - keep) * frequency[i] / factor + keep * frequency[i];
    }
  }
}

// YaRN (Peng et al. 2023): dimensions that turn more than beta_fast times within the original
// context keep their frequency, those below beta_slow turns are stretched, a linear ramp joins
// them.
void scale_yarn(const RopeConfig& rope, int64_t dimensions, float* frequency) {
  const auto dimension_of = [&](double turns) {
    const double context = static_cast<double>(rope.original_max_positions);
    return static_cast<double>(dimensions) * std::log(context / (turns * two_pi)) /
           (2.0 * std::log(rope.theta));
  };
  double first = dimension_of(rope.beta_fast), last = dimension_of(rope.beta_slow);
  if (rope.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(dimensions - 1));
  if (first == last) last += 0.001;  // a step instead of a ramp
  const float factor = static_cast<float>(rope.factor);
  for (int64_t i = 0; i < dimensions / 2; ++i) {
    const float along =
        (static_cast<float>(i) - static_cast<float>(first)) / static_cast<float>(last - first);
    const float stretched = std::clamp(along, 0.0f, 1.0f);
    frequency[i] = frequency[i] / factor * stretched + frequency[i] * (1.0f - stretched);
  }
}

double yarn_attention_factor(const RopeConfig& rope) {
  if (rope.attention_factor != 0) return rope.attention_factor;
  const auto magnitude = [&](double scale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0;
  };
  if (rope.mscale != 0 && rope.mscale_all_dim != 0)
    return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim);
  return magnitude(1.0);
}

}  // namespace

Rope Rope::make(const ModelConfig& config, int64_t positions, at::Device device, Rotary which) {
  const RopeConfig& rope = which == Rotary::local ? config.local_rope.value() : config.rope;
  const int64_t dimensions = rope.dimensions > 0 ? rope.dimensions : config.head_dim;
  NLAC_REQUIRE(dimensions > 0 && dimensions % 2 == 0, "ERR_MODEL_FORMAT", "head_dim must be even, got ",
               dimensions);
  const auto exponents = at::arange(0, dimensions, 2, at::kFloat) / static_cast<double>(dimensions);
  at::Tensor frequencies = at::reciprocal(at::pow(rope.theta, exponents)).contiguous();
  float* frequency = frequencies.data_ptr<float>();
  double attention_factor = 1.0;
  switch (rope.scaling) {
    case RopeScaling::none: break;
    case RopeScaling::linear: frequencies.div_(rope.factor); break;
    case RopeScaling::llama3: scale_llama3(rope, frequency, dimensions / 2); break;
    case RopeScaling::yarn:
      scale_yarn(rope, dimensions, frequency);
      attention_factor = yarn_attention_factor(rope);
      break;
    case RopeScaling::proportional: {
      // Pairs beyond the proportion do not turn.
      const auto turning = static_cast<int64_t>(rope.proportion * static_cast<double>(dimensions) / 2);
      frequencies.div_(rope.factor).narrow(0, turning, dimensions / 2 - turning).zero_();
      break;
    }
  }
  const at::Tensor angles = at::outer(at::arange(positions, at::kFloat), frequencies);
  return {(angles.cos() * attention_factor).to(device), (angles.sin() * attention_factor).to(device)};
}

RopeTables RopeTables::make(const ModelConfig& config, int64_t positions, at::Device device) {
  RopeTables tables{Rope::make(config, positions, device), {}, positions};
  if (config.local_rope) tables.local = Rope::make(config, positions, device, Rotary::local);
  return tables;
}

}  // namespace nlac
