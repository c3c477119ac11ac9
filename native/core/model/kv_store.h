// Memory of keys and values: numbered blocks of kBlockTokens tokens, each with all attention layers of
// these tokens. Layers may differ in the number and width of their heads; a layer that borrows its keys
// has no room of its own. A text's cache is a list of block numbers (BlockTable).
// core/generate/block_pool.h manages ownership. Thread rule: the learner's thread.
//
// Recurrent layers take no room in blocks. Their states are as large as the keys and values of a
// thousand tokens; they are stored in slots of states(), and not for every block.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/cpu/kernels.h"
#include "core/model/config.h"
#include "core/model/state_store.h"

// The device of the kernels of native/cuda. A test compiles them, and their callers, for the CPU.
#ifndef NLAC_KERNEL_DEVICE
#define NLAC_KERNEL_DEVICE at::kCUDA
#endif

namespace nlac {

using cpu::kBlockTokens;

// Blocks of one text, in order: the first holds tokens 0 … kBlockTokens - 1.
using BlockTable = std::vector<int32_t>;

class KvStore {
 public:
  KvStore(const ModelConfig& config, at::TensorOptions options);

  // Bytes of a block of `config`'s model.
  static size_t block_bytes(const ModelConfig& config, at::ScalarType dtype);

  // Makes room for blocks 0 … count - 1 and preserves their contents. Grows by doubling up to
  // `limit`, or to `count` if that is larger.
  void reserve(int64_t count, int64_t limit);
  int64_t capacity() const { return blocks_.defined() ? blocks_.size(0) : 0; }
  void copy(int32_t from, int32_t to);
  void clear() {
    blocks_ = at::Tensor();
    states_.clear();
  }
  StateStore& states() { return states_; }
  const StateStore& states() const { return states_; }

  // Whether blocks are packed for the kernels of core/cpu/kernels.h. Otherwise a block's keys or
  // values are plain [kv_heads, kBlockTokens, head_dim].
  bool packed() const;

  // Packed stores: where a block begins, and the offsets of a layer's keys and values [kv_heads,
  // kBlockTokens · head_dim] in it, in elements of the store's type.
  void* block(int32_t number) const;
  int64_t keys_at(int64_t layer) const { return place(layer).start; }
  int64_t values_at(int64_t layer) const { return place(layer).start + place(layer).part_size(); }
  int64_t kv_heads(int64_t layer) const { return place(layer).kv_heads; }
  // Some layer that has keys and values.
  int64_t attention_layer() const;
  // Plain stores: a view of all blocks, [capacity, kv_heads, kBlockTokens, head_dim].
  at::Tensor plain_keys(int64_t layer) const { return plain(layer, 0); }
  at::Tensor plain_values(int64_t layer) const { return plain(layer, 1); }

 private:
  // Where a layer's keys begin in a block, in elements; its values follow.
  struct Place {
    int64_t start = -1, kv_heads = 0, head_dim = 0;
    int64_t part_size() const { return kv_heads * kBlockTokens * head_dim; }
  };
  const Place& place(int64_t layer) const { return places_[static_cast<size_t>(layer)]; }
  at::Tensor plain(int64_t layer, int64_t which) const;

  at::TensorOptions options_;
  std::vector<Place> places_;  // of each layer
  int64_t block_size_ = 0;     // elements
  StateStore states_;
  at::Tensor blocks_;  // [capacity, block_size_]
};

}  // namespace nlac
