// Parameters, and what a step reads and writes.
#pragma once

#include "core/optim/optim.h"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/io/safetensors.h"
#include "core/optim/kernels.h"
#include "core/random.h"
#include "test/core/fixtures.h"

namespace optim_test {

using namespace nlac;
using nlac::test::code_of;
using Tensors = std::vector<at::Tensor>;

inline Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& t : tensors) result.push_back(t.clone());
  return result;
}

inline bool equal(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

// NaN and the sign of zero count too.
inline bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor left = a[i].cpu().contiguous(), right = b[i].cpu().contiguous();
    if (left.scalar_type() != right.scalar_type() || left.sizes() != right.sizes()) return false;
    if (left.nbytes() > 0 && std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) != 0) return false;
  }
  return true;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// More than one block, a size that no vector width divides, and a scalar's worth.
inline Tensors random_parameters() {
  at::manual_seed(3);
  return {at::randn({33, 601}), at::randn({40001}), at::randn({1}), at::randn({3, 1})};
}

// The same elements where no vector is aligned.
inline at::Tensor misaligned(const at::Tensor& tensor) {
  const at::Tensor room = at::empty({tensor.numel() + 1}, tensor.options());
  return room.narrow(0, 1, tensor.numel()).view(tensor.sizes()).copy_(tensor);
}

// All inputs and outputs of a step, with a bf16 copy and an EMA with a bf16 shadow.
struct Training {
  Tensors masters, compute, gradients;
  AdamWMoments moments;
  TargetUpdate update;

  explicit Training(const Tensors& start) : masters(copies(start)) {
    for (const at::Tensor& w : masters) {
      compute.push_back(w.to(at::kBFloat16));
      gradients.push_back(at::randn_like(w));
      moments.m.push_back(at::randn_like(w) * 0.1);
      moments.v.push_back(at::rand_like(w));
      update.target.push_back(at::randn_like(w));
      update.shadow.push_back(update.target.back().to(at::kBFloat16));
    }
    moments.steps = 3;
    update.target_rate = 0.05;
  }

  // Applies `change` to every tensor of every list.
  Training changed(const auto& change) const {
    Training other = *this;
    for (Tensors* list : {&other.masters, &other.compute, &other.gradients, &other.moments.m,
                          &other.moments.v, &other.update.target, &other.update.shadow}) {
      for (at::Tensor& tensor : *list) tensor = change(tensor);
    }
    return other;
  }
  Training copy() const {
    return changed([](const at::Tensor& t) { return t.clone(); });
  }

  StepResult step(const AdamWOptions& options) {
    return adamw_step(masters, compute, gradients, moments, options, &update);
  }
  Tensors all() const {
    Tensors result;
    for (const Tensors* list :
         {&masters, &compute, &gradients, &moments.m, &moments.v, &update.target, &update.shadow}) {
      result.insert(result.end(), list->begin(), list->end());
    }
    return result;
  }
};

inline AdamWOptions some_options() {
  AdamWOptions options;
  options.learning_rate = 0.01;
  options.weight_decay = 0.1;
  return options;
}

// Keeps the global thread count as it was.
struct Threads {
  int before = at::get_num_threads();
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace optim_test
