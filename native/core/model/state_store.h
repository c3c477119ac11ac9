// Memory of recurrent states: numbered slots, each with the states of all recurrent layers of one
// text after some token. core/generate/state_pool.h manages ownership. Thread rule: the learner's
// thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/model/config.h"
#include "core/model/gated_delta.h"

namespace nlac {

class StateStore {
 public:
  // States are float32, of a float64 model float64. `options` are the weights'.
  StateStore(const ModelConfig& config, at::TensorOptions options);

  // Bytes of a slot of `config`'s model; 0: it has no recurrent layer.
  static size_t slot_bytes(const ModelConfig& config, at::ScalarType dtype);

  // Makes room for slots 0 … count - 1 and preserves their contents. Grows by doubling up to
  // `limit`, or to `count` if that is larger.
  void reserve(int64_t count, int64_t limit);
  void copy(int32_t from, int32_t to);
  void zero(int32_t slot);  // the state before a text's first token
  void clear() { slots_ = at::Tensor(); }

  // A view.
  DeltaState state(int64_t layer, int32_t slot) const;

 private:
  GatedDeltaShape shape_;
  at::TensorOptions options_;
  std::vector<int64_t> places_;  // of each layer among the recurrent ones
  int64_t recurrent_layers_ = 0;
  at::Tensor slots_;  // [capacity, recurrent layers, state_size]
};

}  // namespace nlac
