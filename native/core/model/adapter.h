// Low-rank adapters (LoRA; Hu et al., 2021, equation 3). A projection with frozen matrix W [out,
// in] computes y = W x + (alpha / rank) · B A x. A [rank, in] and B [out, rank] are trained. B
// starts at zero, so that training starts at the unchanged model. Thread rule: the learner's
// thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/config.h"

namespace nlac {

struct Weights;

struct AdapterOptions {
  int64_t rank = 0;                  // at least 1
  double alpha = 0;                  // finite, above 0
  std::vector<std::string> targets;  // Hugging Face names of the projections, each once
  uint64_t seed = 0;                 // of A; nothing else depends on it
};

// The projections of a layer that an adapter may target, in the order in which a layer computes
// them.
const std::vector<std::string>& projection_names();

// The adapters of the projections in one fused matrix. Their A are stacked, so that one product
// serves all, and so are their B.
struct Adapter {
  struct Part {
    std::string name;  // of the projection
    int64_t row;       // its first row in the fused matrix
    int64_t begin;     // its first row in b
    int64_t rows;
  };
  std::vector<Part> parts;
  at::Tensor a;      // [parts * rank, in]; undefined: no projection is adapted
  at::Tensor b;      // [rows of all parts, rank]
  double scale = 0;  // alpha / rank

  int64_t rank() const { return b.size(1); }
  // The i-th part's own matrices, as views.
  at::Tensor part_a(size_t i) const { return a.narrow(0, static_cast<int64_t>(i) * rank(), rank()); }
  at::Tensor part_b(size_t i) const { return b.narrow(0, parts[i].begin, parts[i].rows); }
};

// A matrix of a layer, and its adapter.
struct AdaptedMatrix {
  at::Tensor* matrix;
  Adapter* adapter;
};

// Throws ERR_VALUE for an option out of range.
void check_adapter(const AdapterOptions& options);

// Returns weights that hold only new adapters for a model of `config`, in float32. A is uniform in
// ±1 / sqrt(in) (Kaiming with a slope of √5, as in peft), B is zero. A depends only on the seed,
// the layer and the projection's name. Of a mixture of experts only the shared expert has adapters: without
// one, ERR_VALUE for a target of the feed-forward part, unless `targets` is projection_names().
Weights make_adapters(const ModelConfig& config, const AdapterOptions& options, at::Device device);

// Returns `base` with the adapters and heads of `adapters`. All tensors are shared.
Weights with_adapters(Weights base, const Weights& adapters);

// Returns adapted weights as a plain model: W + scale · B A, summed in float32 and rounded once to
// W's type. Runs on the CPU, because the GPU may have no memory for a second base. Unchanged
// tensors are shared.
Weights merge_adapters(const Weights& weights);

// peft's name of the file with an adapter's tensors.
constexpr const char* adapter_file = "adapter_model.safetensors";

// Writes the adapter without heads, as peft's PeftModel.from_pretrained loads it, to `directory`,
// which must exist: float32 tensors and adapter_config.json, which names the model `base`. Throws
// ERR_IO.
void export_adapter(const std::string& directory, const ModelConfig& config, const AdapterOptions& options,
                    const Weights& adapters, const std::string& base);

}  // namespace nlac
