// Rotary position tables for the four scalings that transformers calls default, linear, llama3 and
// yarn. Intermediates are float32 where they are in transformers: at position 10^5 one ulp of an
// inverse frequency changes the angle by 0.01.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/model/decoder.h"

namespace nlac {
namespace {

constexpr double two_pi = 2.0 * M_PI;

// Llama 3 keeps short wavelengths, stretches long ones by the factor, and interpolates between.
void scale_llama3(const ModelConfig& config, float* frequency, int64_t count) {
  const float low = static_cast<float>(config.rope_low_freq_factor);
  const float high = static_cast<float>(config.rope_high_freq_factor);
  const float factor = static_cast<float>(config.rope_factor);
  const float context = static_cast<float>(config.rope_original_max_positions);
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
void scale_yarn(const ModelConfig& config, float* frequency, int64_t count) {
  const auto dimension_of = [&](double turns) {
    const double context = static_cast<double>(config.rope_original_max_positions);
    return static_cast<double>(config.head_dim) * std::log(context / (turns * two_pi)) /
           (2.0 * std::log(config.rope_theta));
  };
  double first = dimension_of(config.rope_beta_fast), last = dimension_of(config.rope_beta_slow);
  if (config.rope_truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(config.head_dim - 1));
  if (first == last) last += 0.001;  // a step instead of a ramp
  const float factor = static_cast<float>(config.rope_factor);
  for (int64_t i = 0; i < count; ++i) {
    const float along =
        (static_cast<float>(i) - static_cast<float>(first)) / static_cast<float>(last - first);
    const float stretched = std::clamp(along, 0.0f, 1.0f);
    frequency[i] = frequency[i] / factor * stretched + frequency[i] * (1.0f - stretched);
  }
}

double yarn_attention_factor(const ModelConfig& config) {
  if (config.rope_attention_factor != 0) return config.rope_attention_factor;
  const auto magnitude = [&](double scale) {
    return config.rope_factor <= 1 ? 1.0 : 0.1 * scale * std::log(config.rope_factor) + 1.0;
  };
  if (config.rope_mscale != 0 && config.rope_mscale_all_dim != 0)
    return magnitude(config.rope_mscale) / magnitude(config.rope_mscale_all_dim);
  return magnitude(1.0);
}

}  // namespace

Rope Rope::make(const ModelConfig& config, int64_t positions, at::Device device) {
  NLAC_REQUIRE(config.head_dim > 0 && config.head_dim % 2 == 0, "ERR_MODEL_FORMAT",
               "head_dim must be even, got ", config.head_dim);
  const int64_t half = config.head_dim / 2;
  const auto exponents = at::arange(0, config.head_dim, 2, at::kFloat) / static_cast<double>(config.head_dim);
  at::Tensor frequencies = at::reciprocal(at::pow(config.rope_theta, exponents)).contiguous();
  float* frequency = frequencies.data_ptr<float>();
  double attention_factor = 1.0;
  switch (config.rope_scaling) {
    case RopeScaling::none: break;
    case RopeScaling::linear: frequencies.div_(config.rope_factor); break;
    case RopeScaling::llama3: scale_llama3(config, frequency, half); break;
    case RopeScaling::yarn:
      scale_yarn(config, frequency, half);
      attention_factor = yarn_attention_factor(config);
      break;
  }
  const at::Tensor angles = at::outer(at::arange(positions, at::kFloat), frequencies);
  return {(angles.cos() * attention_factor).to(device), (angles.sin() * attention_factor).to(device)};
}

}  // namespace nlac
