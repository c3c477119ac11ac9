// Low-rank adapters (LoRA; Hu et al., 2021, equation 3). A projection with frozen matrix W [out,
// in] computes y = W x + (alpha / rank) · B A x. A [rank, in] and B [out, rank] are trained. B
// starts at zero, so that training starts at the unchanged model. Each expert of a mixture has its
// own A and B, which lie in stacks. Thread rule: the learner's thread.
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
  std::vector<std::string> targets;  // of projection_names() or qualified_names(), each once
  uint64_t seed = 0;                 // of A; nothing else depends on it
};

// The projections of a layer that an adapter may target, in the order in which a layer computes
// them. A name stands for all projections of that name: of layers without experts, of experts and
// of shared experts.
const std::vector<std::string>& projection_names();
// Names of those of experts or shared experts only: "experts.gate_proj", "shared_expert.gate_proj".
const std::vector<std::string>& qualified_names();

// The adapters of the projections in one fused matrix, or in each matrix of a stack. Their A are
// stacked, so that one product serves all, and so are their B.
struct Adapter {
  struct Part {
    std::string name;  // of the projection, "gate_proj"
    int64_t row;       // its first row in the fused matrix
    int64_t begin;     // its first row in b
    int64_t rows;
  };
  std::vector<Part> parts;
  at::Tensor a;      // [parts * rank, in], or [matrices, …]; undefined: no projection is adapted
  at::Tensor b;      // [rows of all parts, rank], or [matrices, …]
  double scale = 0;  // alpha / rank

  int64_t rank() const { return b.size(-1); }
  // The i-th part's own matrices (stacks of them), as views.
  at::Tensor part_a(size_t i) const { return a.narrow(-2, static_cast<int64_t>(i) * rank(), rank()); }
  at::Tensor part_b(size_t i) const { return b.narrow(-2, parts[i].begin, parts[i].rows); }
  // Its share of `down` [rows, parts * rank] and of `y` [rows, rows of the fused matrix], or of gradients
  // at them, as views.
  at::Tensor part_of_down(const at::Tensor& down, size_t i) const {
    return down.narrow(1, static_cast<int64_t>(i) * rank(), rank());
  }
  at::Tensor part_of_output(const at::Tensor& y, size_t i) const {
    return y.narrow(1, parts[i].row, parts[i].rows);
  }
  // The adapter of the `index`-th matrix of a stack, as views.
  Adapter of(int64_t index) const {
    return a.defined() ? Adapter{parts, a[index], b[index], scale} : Adapter{};
  }
};

// A matrix of a layer or a stack of matrices, and its adapter.
struct AdaptedMatrix {
  at::Tensor* matrix;
  Adapter* adapter;
};

// Throws ERR_VALUE for an option out of range.
void check_adapter(const AdapterOptions& options);

// Returns weights that hold only new adapters for a model of `config`, in float32. A is uniform in
// ±1 / sqrt(in) (Kaiming with a slope of √5, as in peft), B is zero. A depends only on the seed,
// the layer, the expert and the projection's name. Throws ERR_VALUE if the model has none of the
// targets.
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
// which must exist: float32 tensors and adapter_config.json, which names the model `base`.
//
// Experts are one stack of parameters in transformers 5. peft adapts it through
// `target_parameters`, gate and up with one A and B: B is then block diagonal, of twice the rank.
// Of Qwen3-MoE each expert's matrices are written instead if all three are adapted and no layer
// without experts is: peft stacks those itself, and servers read them. Throws ERR_IO.
void export_adapter(const std::string& directory, const ModelConfig& config, const AdapterOptions& options,
                    const Weights& adapters, const std::string& base);

}  // namespace nlac
