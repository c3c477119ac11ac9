// Tables of rotary positions. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "core/model/config.h"

namespace nlac {

struct Rope {
  at::Tensor cos, sin;  // [positions, dimensions / 2] f32, the attention factor of yarn multiplied in
  // The scheme `which` of the configuration, which must not be Rotary::none.
  static Rope make(const ModelConfig& config, int64_t positions, at::Device device,
                   Rotary which = Rotary::global);
};

// The tables of all schemes of a model.
struct RopeTables {
  Rope global, local;
  int64_t positions = 0;

  static RopeTables make(const ModelConfig& config, int64_t positions, at::Device device);
  // Null: without rotary positions.
  const Rope* of(Rotary which) const {
    return which == Rotary::none ? nullptr : which == Rotary::local ? &local : &global;
  }
};

}  // namespace nlac
