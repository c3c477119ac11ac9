#include "core/model/kv_store.h"

#include <algorithm>

#include "core/error.h"

namespace nlac {

static bool has_keys(const ModelConfig& config, int64_t layer) {
  return config.kind(layer).mixer == Mixer::attention;
}

KvStore::KvStore(const ModelConfig& config, at::TensorOptions options)
    : config_(config), options_(options), states_(config, options) {
  for (int64_t l = 0; l < config.layers; ++l)
    places_.push_back(has_keys(config, l) ? attention_layers_++ : -1);
}

int64_t KvStore::attention_layer() const {
  const auto found = std::find(places_.begin(), places_.end(), 0);
  NLAC_REQUIRE(found != places_.end(), "ERR_INTERNAL", "a model without attention has no keys");
  return found - places_.begin();
}

size_t KvStore::block_bytes(const ModelConfig& config, at::ScalarType dtype) {
  int64_t layers = 0;
  for (int64_t l = 0; l < config.layers; ++l) layers += has_keys(config, l) ? 1 : 0;
  return static_cast<size_t>(layers * 2 * config.kv_heads * kBlockTokens * config.head_dim) *
         c10::elementSize(dtype);
}

void KvStore::reserve(int64_t count, int64_t limit) {
  constexpr int64_t first = 8;  // blocks of the smallest allocation
  const int64_t held = capacity();
  if (count <= held) return;
  const int64_t wanted = std::max(count, std::min(std::max(2 * held, first), limit));
  at::Tensor larger =
      at::empty({wanted, attention_layers_, 2, config_.kv_heads, kBlockTokens, config_.head_dim}, options_);
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
         number * block_bytes(config_, options_.dtype().toScalarType());
}

at::Tensor KvStore::plain(int64_t layer, int64_t which) const {
  return blocks_.select(1, place(layer)).select(1, which);
}

}  // namespace nlac
