// The order in which ranks exchange layers while they compute losses. The order must be the same on
// all ranks, so it is a list that every rank makes from the same arguments. Private to the learner.
#pragma once

#include <cstddef>
#include <vector>

namespace nlac {

// A layer is used by θ̄'s forward pass, and by the forward and backward pass of what is scored.
enum class LayerPass { teacher, forward, backward };

struct LayerStep {
  enum class Kind {
    gather,    // start to collect the layer's parameters
    use,       // the layer's parameters are there; a rank with texts computes with them
    exchange,  // sum the layer's gradients, which `use` has computed
  };
  Kind kind;
  LayerPass pass;
  size_t layer;
};

// Two buffers hold the layers that are gathered, so that one is filled while the other is used.
constexpr size_t layer_buffers = 2;
constexpr size_t buffer_of(size_t layer) { return layer % layer_buffers; }

struct RoundOptions {
  size_t layers = 0;
  bool gathers = false;   // the parameters are divided; otherwise there are no steps of forward passes
  bool teacher = false;   // the round begins with the forward pass of θ̄
  bool backward = false;  // and ends with a backward pass and the exchange of gradients
};

// The steps of one micro-batch. A layer is gathered one use ahead if its buffer is free then, and
// not again if its buffer still holds it.
std::vector<LayerStep> round_of(const RoundOptions& options);

}  // namespace nlac
