// Low-rank adapters (LoRA; Hu et al., 2021, equation 3): a projection whose matrix W [out, in] stays as it was
// computes y = W x + (alpha / rank) · B A x, and A [rank, in] and B [out, rank] are what is trained. B begins
// at zero, so that training begins at the model as it was. Thread rule: the learner's thread.
#pragma once

#include <torch/torch.h>

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

// The projections of a layer that an adapter may target, in the order in which a layer computes them.
const std::vector<std::string>& projection_names();

// The adapters of the projections that one fused matrix holds. Their A lie one below another, so that they take
// one product together, and so do their B.
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

// Throws ERR_VALUE for options out of their range.
void check_adapter(const AdapterOptions& options);

// Weights that hold new adapters for a model of `config` and nothing else, float32: A uniform in
// ±1 / sqrt(in) (Kaiming's with a slope of √5, as in peft), B zero. A projection's A depends on the seed, its
// layer and its name alone.
Weights make_adapters(const ModelConfig& config, const AdapterOptions& options, at::Device device);

// The model `base` with the adapters and heads of `adapters`; all tensors are shared.
Weights with_adapters(Weights base, const Weights& adapters);

// Adapted weights as a plain model: W + scale · B A, summed in float32 and rounded to W's type once, on the CPU,
// because a GPU that just holds the base has no room for another. What no adapter changes is shared.
Weights merge_adapters(const Weights& weights);

// Under this name peft keeps an adapter's tensors, and so do we.
constexpr const char* adapter_file = "adapter_model.safetensors";

// Writes what peft's PeftModel.from_pretrained loads, without heads, into `directory`, which exists: the tensors, float32, and
// adapter_config.json. `base` is what that calls the model. Throws ERR_IO.
void export_adapter(const std::string& directory, const ModelConfig& config, const AdapterOptions& options,
                    const Weights& adapters, const std::string& base);

}  // namespace nlac
