// How trained parameters are cut over ranks. The parameters of each layer form a unit, the value
// head forms one, and all others form one. A unit is one flat tensor, padded and cut into one equal
// part per rank. Thread rule: the learner's thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/model/weights.h"

namespace nlac {

// One flat tensor per unit: the whole unit [part * ranks], or one rank's part of it [part].
using Units = std::vector<at::Tensor>;

class ShardLayout {
 public:
  // Only the shapes of `weights` are used.
  ShardLayout(const Weights& weights, int rank, int ranks);

  // Unit l is layer l. The others follow.
  size_t units() const { return units_.size(); }
  size_t layers() const { return layers_; }
  size_t value_unit() const { return layers_ + 1; }                 // exists if there is a value head
  size_t unit_of(size_t tensor) const { return unit_of_[tensor]; }  // index in Weights::list()
  int64_t elements(size_t unit) const { return units_[unit].part * ranks_; }  // of the whole unit

  int64_t largest_layer() const;  // elements

  // Zeroed units.
  at::Tensor whole(size_t unit, const at::TensorOptions& options) const;
  at::Tensor own(size_t unit, const at::TensorOptions& options) const;
  Units all_whole(const at::TensorOptions& options) const;
  Units all_own(const at::TensorOptions& options) const;
  // This rank's part, as a view.
  at::Tensor own_of(size_t unit, const at::Tensor& whole) const;

  // Makes the tensors of the unit, among `list` (a Weights::list()), views of `whole`.
  void point(const std::vector<at::Tensor>& list, size_t unit, const at::Tensor& whole) const;
  // The tensor of index `tensor`, with the shape of `like`, as a view of its whole unit.
  at::Tensor view(size_t tensor, const at::Tensor& like, const at::Tensor& whole) const;

  // What this rank holds, cut where parameters end, in the order of Weights::list(), as views. A
  // piece of a matrix has two dimensions, as AdamW's decay requires. cut() takes whole parameters.
  std::vector<at::Tensor> pieces(const Units& own) const;
  std::vector<at::Tensor> cut(const std::vector<at::Tensor>& list) const;
  size_t tensor_of(size_t piece) const { return pieces_[piece].tensor; }

 private:
  struct Unit {
    std::vector<size_t> tensors;   // indices in Weights::list()
    std::vector<int64_t> offsets;  // of each, in the unit
    int64_t part = 0;              // elements of one rank's part
  };
  struct Piece {
    size_t tensor, unit;
    int64_t begin, length;  // in the parameter
    int64_t offset;         // in this rank's part of the unit
    bool matrix;
  };
  int rank_, ranks_;
  size_t layers_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_;
  std::vector<Piece> pieces_;
};

}  // namespace nlac
