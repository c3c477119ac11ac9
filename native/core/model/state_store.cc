#include "core/model/state_store.h"

#include <algorithm>

namespace nlac {
namespace {

at::ScalarType state_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

StateStore::StateStore(const ModelConfig& config, at::TensorOptions options)
    : shape_(config.delta), options_(options.dtype(state_type(options.dtype().toScalarType()))) {
  for (int64_t l = 0; l < config.layers; ++l)
    places_.push_back(config.kind(l).mixer == Mixer::delta ? recurrent_layers_++ : -1);
}

size_t StateStore::slot_bytes(const ModelConfig& config, at::ScalarType dtype) {
  const StateStore store(config, at::TensorOptions().dtype(dtype));
  return static_cast<size_t>(store.recurrent_layers_ * config.delta.state_size()) *
         c10::elementSize(state_type(dtype));
}

void StateStore::reserve(int64_t count, int64_t limit) {
  const int64_t held = slots_.defined() ? slots_.size(0) : 0;
  if (count <= held) return;
  const at::Tensor larger = at::empty(
      {std::max(count, std::min(2 * held, limit)), recurrent_layers_, shape_.state_size()}, options_);
  if (held > 0) larger.narrow(0, 0, held).copy_(slots_);
  slots_ = larger;
}

void StateStore::copy(int32_t from, int32_t to) {
  if (from != to) slots_[to].copy_(slots_[from]);
}

void StateStore::zero(int32_t slot) { slots_[slot].zero_(); }

DeltaState StateStore::state(int64_t layer, int32_t slot) const {
  const at::Tensor all = slots_[slot][places_[static_cast<size_t>(layer)]];
  const int64_t recurrent = shape_.heads * shape_.key_dim * shape_.value_dim;
  return {all.narrow(0, 0, recurrent).view({shape_.heads, shape_.key_dim, shape_.value_dim}),
          all.narrow(0, recurrent, all.size(0) - recurrent).view({shape_.kernel - 1, shape_.channels()})};
}

}  // namespace nlac
