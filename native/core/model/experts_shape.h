// Sizes of a mixture of experts (experts_part.h). Needs no torch.
#pragma once

#include <cstdint>

namespace nlac {

struct ExpertsShape {
  int64_t count = 0;         // experts of a layer
  int64_t per_token = 0;     // experts that a token uses
  int64_t intermediate = 0;  // width of one expert
  bool normalised = false;   // the probabilities of a token's experts are scaled to sum to 1
  // Coefficient of the load-balance loss that the model's files name. Training uses it on request.
  double balance = 0;
  int64_t shared = 0;  // width of an expert that every token uses besides; 0: none
  // gpt-oss: the rows of gate and up alternate, everything has biases, and the activation is
  // clamped_gate of elementwise.h. 0: not so.
  double limit = 0, alpha = 0;
  // Gemma 4: the router reads the layer's stream with a norm of its own, and a number multiplies each
  // expert's output.
  bool scaled_router = false;

  bool clamped() const { return limit > 0; }
  // Opens the names of the experts' parameters.
  const char* prefix() const { return scaled_router ? "experts." : "mlp.experts."; }

  bool operator==(const ExpertsShape&) const = default;
};

}  // namespace nlac
