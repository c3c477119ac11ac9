// The inputs of a draw besides the logits, shared by sample.cc (CPU) and cuda_draw.cc (GPU). Pure
// functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/generate/request.h"
#include "core/random.h"

namespace nlac {

struct DrawSettings {
  double number;  // uniform in [0, 1): selects one of the kept tokens
  float scale;    // 1 / temperature; unused at temperature 0
  float reach;    // smallest logit that min_p keeps, minus the largest: at most 0
};

// `step` counts the request's new tokens.
inline DrawSettings draw_settings(const GenerateRequest& request, int64_t step) {
  constexpr uint64_t stream = 0x73616d706c65;  // keeps these draws apart from other uses of a seed
  // Above 1e30 only the largest logit has weight, below 1e-30 all weigh the same. The bounds avoid
  // 0·∞.
  const float scale = static_cast<float>(std::clamp(1.0 / request.temperature, 1e-30, 1e30));
  return {uniform(request.seed, stream, static_cast<uint64_t>(step)), scale,
          static_cast<float>(std::log(request.min_p) / scale)};
}

}  // namespace nlac
