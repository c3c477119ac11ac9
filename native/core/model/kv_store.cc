#include "core/model/kv_store.h"

#include <algorithm>

#include "core/error.h"

namespace nlac {

KvStore::KvStore(const ModelConfig& config, at::TensorOptions options)
    : options_(options), states_(config, options) {
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerKind kind = config.kind(l);
    Place& place = places_.emplace_back();
    if (kind.mixer != Mixer::attention) continue;
    if (kind.keys == Keys::borrowed) {
      place = places_[static_cast<size_t>(kind.keys_of)];
      continue;
    }
    place = {block_size_, config.kv_heads_of(kind), config.head_dim_of(kind)};
    block_size_ += 2 * place.part_size();
  }
}

int64_t KvStore::attention_layer() const {
  const auto found =
      std::find_if(places_.begin(), places_.end(), [](const Place& place) { return place.start == 0; });
  NLAC_REQUIRE(found != places_.end(), "ERR_INTERNAL", "a model without attention has no keys");
  return found - places_.begin();
}

size_t KvStore::block_bytes(const ModelConfig& config, at::ScalarType dtype) {
  return static_cast<size_t>(KvStore(config, dtype).block_size_) * c10::elementSize(dtype);
}

void KvStore::reserve(int64_t count, int64_t limit) {
  constexpr int64_t first = 8;  // blocks of the smallest allocation
  const int64_t held = capacity();
  if (count <= held) return;
  const int64_t wanted = std::max(count, std::min(std::max(2 * held, first), limit));
  at::Tensor larger = at::empty({wanted, block_size_}, options_);
  if (held > 0) larger.narrow(0, 0, held).copy_(blocks_);
  blocks_ = larger;
}

void KvStore::copy(int32_t from, int32_t to) { blocks_[to].copy_(blocks_[from]); }

bool KvStore::packed() const {
  const at::Device device = options_.device();
  if (!device.is_cpu() || device.type() == NLAC_KERNEL_DEVICE) return false;
  return options_.dtype() == at::kFloat || options_.dtype() == at::kBFloat16;
}

void* KvStore::block(int32_t number) const {
  return static_cast<char*>(blocks_.data_ptr()) +
         number * block_size_ * static_cast<int64_t>(options_.dtype().itemsize());
}

at::Tensor KvStore::plain(int64_t layer, int64_t which) const {
  const Place& of = place(layer);
  return blocks_.narrow(1, of.start + which * of.part_size(), of.part_size())
      .unflatten(1, {of.kv_heads, kBlockTokens, of.head_dim});
}

}  // namespace nlac
