// Logits that are capped: cap · tanh(logit / cap). A cap of 0 leaves them as they are. Thread rule: the
// caller's thread, plus at::parallel_for.
#pragma once

#include <ATen/ATen.h>

namespace nlac {

// Caps logits [rows, vocab] in place, f32 or f64 with unit inner stride. On a CPU a logit's result does
// not depend on the others, to the last bit. `slopes` of the same shape and type, if defined, receive the
// derivative at each.
void cap_logits(at::Tensor logits, double cap, at::Tensor slopes = {});

}  // namespace nlac
