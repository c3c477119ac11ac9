#include "core/ranks/shard_layout.h"

#include <algorithm>

#include "core/error.h"

namespace nlac {

// Parameters and parts begin at multiples of this many elements, because kernels read vectors.
constexpr int64_t kAlignment = 64;

static int64_t aligned(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// The trained tensors of a layer, as Weights::list() has them.
static std::vector<at::Tensor> trained(const LayerWeights& layer) {
  Weights alone;
  alone.layers = {layer};
  std::vector<at::Tensor> list = alone.list();
  std::erase_if(list, [](const at::Tensor& tensor) { return !tensor.defined(); });
  return list;
}

ShardLayout::ShardLayout(const Weights& weights, int rank, int ranks)
    : rank_(rank), ranks_(ranks), layers_(weights.layers.size()) {
  const std::vector<at::Tensor> list = weights.list();
  const bool valued = weights.value.defined();
  units_.resize(layers_ + 1 + (valued ? 1 : 0));
  unit_of_.assign(list.size(), layers_);
  const auto assign = [&](const at::Tensor& tensor, size_t unit) {
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].is_same(tensor)) unit_of_[i] = unit;
  };
  for (size_t l = 0; l < layers_; ++l)
    for (const at::Tensor& tensor : trained(weights.layers[l])) assign(tensor, l);
  if (valued) {
    assign(weights.value, value_unit());
    assign(weights.value_bias, value_unit());
  }
  std::vector<int64_t> sizes(units_.size());
  for (size_t i = 0; i < list.size(); ++i) {
    Unit& unit = units_[unit_of_[i]];
    unit.tensors.push_back(i);
    unit.offsets.push_back(sizes[unit_of_[i]]);
    sizes[unit_of_[i]] += aligned(list[i].numel(), kAlignment);
  }
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    unit.part = aligned(sizes[u], ranks_ * kAlignment) / ranks_;
    const int64_t from = rank_ * unit.part, to = from + unit.part;
    for (size_t k = 0; k < unit.tensors.size(); ++k) {
      const at::Tensor& tensor = list[unit.tensors[k]];
      const int64_t start = unit.offsets[k];
      const int64_t begin = std::max(from, start), end = std::min(to, start + tensor.numel());
      if (begin < end)
        pieces_.push_back({unit.tensors[k], u, begin - start, end - begin, begin - from, tensor.dim() >= 2});
    }
  }
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.tensor < b.tensor; });
}

int64_t ShardLayout::largest_layer() const {
  int64_t largest = 0;
  for (size_t l = 0; l < layers_; ++l) largest = std::max(largest, elements(l));
  return largest;
}

at::Tensor ShardLayout::whole(size_t unit, const at::TensorOptions& options) const {
  return at::zeros({elements(unit)}, options);
}

at::Tensor ShardLayout::own(size_t unit, const at::TensorOptions& options) const {
  return at::zeros({units_[unit].part}, options);
}

Units ShardLayout::all_whole(const at::TensorOptions& options) const {
  Units all;
  for (size_t u = 0; u < units_.size(); ++u) all.push_back(whole(u, options));
  return all;
}

Units ShardLayout::all_own(const at::TensorOptions& options) const {
  Units all;
  for (size_t u = 0; u < units_.size(); ++u) all.push_back(own(u, options));
  return all;
}

at::Tensor ShardLayout::own_of(size_t unit, const at::Tensor& whole) const {
  return whole.narrow(0, rank_ * units_[unit].part, units_[unit].part);
}

void ShardLayout::point(const std::vector<at::Tensor>& list, size_t unit, const at::Tensor& whole) const {
  const Unit& chosen = units_[unit];
  for (size_t k = 0; k < chosen.tensors.size(); ++k) {
    at::Tensor tensor = list[chosen.tensors[k]];
    NLAC_REQUIRE(tensor.is_contiguous() && tensor.scalar_type() == whole.scalar_type(), "ERR_INTERNAL",
                 "parameter ", chosen.tensors[k], " cannot become a view of its unit");
    tensor.set_(whole.storage(), whole.storage_offset() + chosen.offsets[k], tensor.sizes(),
                tensor.strides());
  }
}

at::Tensor ShardLayout::view(size_t tensor, const at::Tensor& like, const at::Tensor& whole) const {
  const Unit& unit = units_[unit_of_[tensor]];
  const auto place = std::find(unit.tensors.begin(), unit.tensors.end(), tensor);
  const int64_t offset = unit.offsets[static_cast<size_t>(place - unit.tensors.begin())];
  return whole.narrow(0, offset, like.numel()).view(like.sizes());
}

std::vector<at::Tensor> ShardLayout::pieces(const Units& own) const {
  std::vector<at::Tensor> views;
  for (const Piece& piece : pieces_) {
    at::Tensor view = own[piece.unit].narrow(0, piece.offset, piece.length);
    views.push_back(piece.matrix ? view.unsqueeze(0) : view);
  }
  return views;
}

std::vector<at::Tensor> ShardLayout::cut(const std::vector<at::Tensor>& list) const {
  std::vector<at::Tensor> views;
  for (const Piece& piece : pieces_) {
    at::Tensor view = list[piece.tensor].view({-1}).narrow(0, piece.begin, piece.length);
    views.push_back(piece.matrix ? view.unsqueeze(0) : view);
  }
  return views;
}

}  // namespace nlac
