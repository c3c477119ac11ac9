// The sizes of a gated delta net (gated_delta.h). Needs no torch.
#pragma once

#include <cstdint>

namespace nlac {

struct GatedDeltaShape {
  int64_t key_heads = 0, heads = 0;  // a key head serves heads / key_heads neighbouring heads
  int64_t key_dim = 0, value_dim = 0;
  int64_t kernel = 0;  // tokens of the convolution
  double eps = 1e-6;   // of the output's norm

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }               // of the convolution
  int64_t projected() const { return channels() + values() + 2 * heads; }  // q, k, v, z, b, a
  // Floats of a text's state: S of every head, and the convolution's last inputs.
  int64_t state_size() const { return heads * key_dim * value_dim + (kernel - 1) * channels(); }

  bool operator==(const GatedDeltaShape&) const = default;
};

}  // namespace nlac
