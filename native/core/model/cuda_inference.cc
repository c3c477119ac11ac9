#include "core/model/cuda_inference.h"

#ifdef NLAC_CUDA

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>

#include "core/cuda_error.h"
#include "core/environment.h"
#include "core/model/cuda_elementwise.h"
#include "core/model/decoder.h"
#include "core/model/families.h"
#include "core/model/linear.h"
#include "cuda/attention.h"
#include "cuda/elementwise.h"

namespace nlac {
namespace {

constexpr int64_t largest_recorded = 256;  // texts of a recorded step

bool is_bf16(const at::Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

void check(cudaError_t status) { check_cuda(status, "an inference kernel"); }

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// --- a step's inputs -----------------------------------------------------------------------------

int64_t blocks_of(const KvSlice& slice) {
  return (slice.past + slice.fresh + kBlockTokens - 1) / kBlockTokens;
}

// The inputs of a step's layers besides its ids, and their layout in one i32 tensor.
struct Step {
  int64_t rows, texts, width;  // texts: slices of one token; width: blocks in a text's table
  int64_t longest;             // the maximum number of tokens of a text
  // The slices of several tokens, if any, and their rows [prompt rows] i64.
  std::unique_ptr<PlainAttention> prompts;
  at::Tensor prompt_rows;
  at::Tensor told;

  const int32_t* at(int64_t place) const { return told.const_data_ptr<int32_t>() + place; }
  const int32_t* positions() const { return at(0); }
  const int32_t* places() const { return at(rows); }
  const int32_t* text_rows() const { return at(2 * rows); }
  const int32_t* lengths() const { return at(2 * rows + texts); }
  const int32_t* tables() const { return at(2 * rows + 2 * texts); }
};

int64_t told_size(int64_t rows, int64_t texts, int64_t width) { return 2 * rows + 2 * texts + texts * width; }

// Builds the inputs of `slices` on the CPU. Padding rows are not stored, and padding texts see
// nothing.
at::Tensor told_of(const std::vector<KvSlice>& slices, int64_t rows, int64_t texts, int64_t width) {
  const at::Tensor told = at::zeros({told_size(rows, texts, width)}, at::kInt);
  int32_t* const positions = told.mutable_data_ptr<int32_t>();
  int32_t *const places = positions + rows, *const text_rows = places + rows,
                 *const lengths = text_rows + texts, *const tables = lengths + texts;
  std::fill(places, places + rows, -1);
  int64_t row = 0, text = 0;
  for (const KvSlice& slice : slices) {
    if (slice.fresh == 1) {
      text_rows[text] = static_cast<int32_t>(row);
      lengths[text] = static_cast<int32_t>(slice.past + 1);
      std::copy_n(slice.blocks->begin(), blocks_of(slice), tables + text * width);
      ++text;
    }
    for (int64_t position = slice.past; position < slice.past + slice.fresh; ++position, ++row) {
      const int32_t block = (*slice.blocks)[static_cast<size_t>(position / kBlockTokens)];
      positions[row] = static_cast<int32_t>(position);
      places[row] = static_cast<int32_t>(block * kBlockTokens + position % kBlockTokens);
    }
  }
  for (; text < texts; ++text, ++row) text_rows[text] = static_cast<int32_t>(row);
  return told;
}

Step step_of(const KvStore& store, const std::vector<KvSlice>& slices, at::Device device) {
  Step step{};
  std::vector<KvSlice> prompts;
  std::vector<int64_t> prompt_rows;
  for (const KvSlice& slice : slices) {
    if (slice.fresh == 1) {
      ++step.texts;
      step.width = std::max(step.width, blocks_of(slice));
      step.longest = std::max(step.longest, slice.past + 1);
    } else {
      prompts.push_back(slice);
      for (int64_t i = 0; i < slice.fresh; ++i) prompt_rows.push_back(step.rows + i);
    }
    step.rows += slice.fresh;
  }
  if (!prompts.empty()) {
    step.prompts = std::make_unique<PlainAttention>(store, prompts);
    step.prompt_rows = at::tensor(prompt_rows, at::kLong).to(device);
  }
  step.told = told_of(slices, step.rows, step.texts, step.width).to(device);
  return step;
}

// --- the layers ----------------------------------------------------------------------------------

// One step's layers. Its arguments outlive it.
struct Layers {
  const Weights& weights;
  const ModelConfig& config;
  const Rope& rope;
  const KvStore& store;
  const Step& step;
  const std::function<void(size_t)> before_layer = {};
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();

  // x [rows, hidden] f32 += added (undefined: nothing) → x normed, in the weights' type.
  at::Tensor add_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight) const {
    const at::Tensor normed = at::empty(x.sizes(), weight.options());
    const at::Tensor rows = added.defined() ? added.contiguous() : added;
    check(cuda::add_rms_norm({x.mutable_data_ptr<float>(), rows.defined() ? rows.const_data_ptr() : nullptr,
                              weight.const_data_ptr(), normed.mutable_data_ptr(), x.size(0), x.size(1),
                              static_cast<float>(config.rms_norm_eps), is_bf16(weight)},
                             stream));
    return normed;
  }

  // Returns the attention output of qkv [rows, (heads + 2 kv_heads) head_dim], [rows, heads ·
  // head_dim].
  at::Tensor attended(int64_t l, const at::Tensor& qkv) const {
    const LayerWeights& layer = weights.layers[static_cast<size_t>(l)];
    const int64_t d = config.head_dim, heads = config.heads;
    const at::Tensor keys = store.plain_keys(l), values = store.plain_values(l);
    const cuda::KvBlocks blocks{keys.mutable_data_ptr(),           values.mutable_data_ptr(), keys.stride(0),
                                static_cast<int>(config.kv_heads), static_cast<int>(d),       is_bf16(keys)};
    const auto norm = [&](const at::Tensor& weight) {
      return config.qk_norm ? weight.const_data_ptr() : nullptr;
    };
    check(cuda::rotate_and_store(
        {qkv.mutable_data_ptr(), static_cast<int>(step.rows), static_cast<int>(heads),
         norm(layer.attention.q_norm), norm(layer.attention.k_norm), static_cast<float>(config.rms_norm_eps),
         rope.cos.const_data_ptr<float>(), rope.sin.const_data_ptr<float>(), step.positions(), step.places()},
        blocks, stream));

    const at::Tensor q = qkv.narrow(1, 0, heads * d).unflatten(1, {heads, d});
    if (step.texts == 0) return step.prompts->run(l, q).flatten(1);
    const at::Tensor output = at::empty({step.rows, heads, d}, qkv.options());
    if (step.prompts)
      output.index_copy_(0, step.prompt_rows, step.prompts->run(l, q.index_select(0, step.prompt_rows)));
    const cuda::Queries queries{q.const_data_ptr(),
                                qkv.stride(0),
                                output.mutable_data_ptr(),
                                static_cast<int>(step.texts),
                                static_cast<int>(heads),
                                step.text_rows(),
                                step.lengths(),
                                step.tables(),
                                step.width};
    const int splits = cuda::attention_splits(queries, blocks, step.longest, multiprocessors());
    const at::Tensor workspace =
        at::empty({cuda::attention_workspace(queries, blocks, splits)}, qkv.options().dtype(at::kFloat));
    check(cuda::attend(queries, blocks, splits, workspace.mutable_data_ptr<float>(), stream));
    return output.flatten(1);
  }

  // `ids` [rows] i64 → the final-normed hidden states [rows, hidden], in the weights' type.
  at::Tensor run(const at::Tensor& ids) const {
    const at::Tensor x = weights.embedding.index_select(0, ids).to(at::kFloat);
    at::Tensor added;  // what the layer before adds to x
    for (size_t l = 0; l < weights.layers.size(); ++l) {
      if (before_layer) before_layer(l);
      const LayerWeights& layer = weights.layers[l];
      const AttentionWeights& attention = layer.attention;
      const FeedForwardWeights& mlp = layer.feed_forward;
      at::Tensor normed = add_norm(x, added, layer.mixer_norms.before);
      const at::Tensor qkv =
          linear_forward(normed, attention.qkv, attention.qkv_bias, attention.qkv_adapter).contiguous();
      const at::Tensor mixed = attended(static_cast<int64_t>(l), qkv);
      normed = add_norm(
          x, linear_forward(mixed, attention.output, attention.output_bias, attention.output_adapter),
          layer.feed_forward_norms.before);
      const at::Tensor gate_up = linear_forward(normed, mlp.gate_up, mlp.gate_up_bias, mlp.gate_up_adapter);
      added =
          linear_forward(gpu::gated(gate_up, config.activation), mlp.down, mlp.down_bias, mlp.down_adapter);
    }
    return add_norm(x, added, weights.norm);
  }
};

// --- recorded steps ------------------------------------------------------------------------------

int64_t recorded_texts(int64_t texts) {
  for (const int64_t few : {1, 2, 4, 8})
    if (texts <= few) return few;
  return (texts + 7) / 8 * 8;
}

// The addresses that a recording reads.
std::vector<uintptr_t> memory_of(const Weights& weights, const Rope& rope, const KvStore& store) {
  std::vector<uintptr_t> memory;
  const auto add = [&](const at::Tensor& tensor) {
    memory.push_back(tensor.defined() ? reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) : 0);
  };
  for (const at::Tensor& tensor : {weights.embedding, weights.norm, rope.cos, rope.sin, store.plain_keys(0)})
    add(tensor);
  for (const LayerWeights& layer : weights.layers) {
    for (const at::Tensor* tensor : layer.tensors()) add(*tensor);
    for (const Adapter* adapter : layer.adapters()) add(adapter->a), add(adapter->b);
  }
  return memory;
}

}  // namespace

struct CudaInference::Recordings {
  // Its tensors must not move: the graph has their addresses.
  struct Recording {
    Step step;
    at::Tensor ids;     // [rows] i64
    at::Tensor hidden;  // [rows, hidden]
    at::cuda::CUDAGraph graph;
  };

  std::map<std::vector<uintptr_t>, std::unique_ptr<Recording>> by_memory;  // and by their texts and width
  // Recordings use their own stream and share workspace: only one runs at a time.
  const c10::cuda::CUDAStream stream;
  const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  bool failed = false;

  explicit Recordings(at::Device device) : stream(c10::cuda::getStreamFromPool(false, device.index())) {}

  // Records `layers`, which read the recording's step and ids.
  void record(const Layers& layers, Recording& recording) const {
    // Once without recording, so that libraries initialise.
    recording.hidden.copy_(layers.run(recording.ids));
    stream.synchronize();
    recording.graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      recording.hidden.copy_(layers.run(recording.ids));
    } catch (...) {
      // Ends the capture of stream and allocator.
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream, &broken);
      cudaGetLastError();  // clears the error, so that the next launch is not taken to have failed
      c10::cuda::CUDACachingAllocator::endAllocateToPool(stream.device_index(), pool);
      throw;
    }
    recording.graph.capture_end();
  }

  // Runs a decoding step, and records it if needed.
  at::Tensor run(const Weights& weights, const ModelConfig& config, const Rope& rope, const at::Tensor& ids,
                 const KvStore& store, const std::vector<KvSlice>& slices) {
    int64_t width = 16;  // blocks of the narrowest table
    for (const KvSlice& slice : slices)
      while (width < blocks_of(slice)) width *= 2;
    const int64_t texts = recorded_texts(ids.size(0));
    std::vector<uintptr_t> made_with = memory_of(weights, rope, store);
    made_with.push_back(static_cast<uintptr_t>(texts));
    made_with.push_back(static_cast<uintptr_t>(width));

    // Otherwise recordings of freed memory would never be dropped.
    if (by_memory.size() == max_recordings && !by_memory.contains(made_with)) by_memory.clear();
    std::unique_ptr<Recording>& kept = by_memory[made_with];
    const bool fresh = kept == nullptr;
    if (fresh) {
      kept = std::make_unique<Recording>();
      kept->step = {texts, texts, width, width * kBlockTokens, {}, {}, {}};
      kept->step.told = at::empty({told_size(texts, texts, width)}, ids.options().dtype(at::kInt));
      kept->ids = at::zeros({texts}, ids.options());
      kept->hidden = at::empty({texts, config.hidden_size}, weights.embedding.options());
    }
    kept->step.told.copy_(told_of(slices, texts, texts, width));
    kept->ids.narrow(0, 0, ids.size(0)).copy_(ids);
    if (fresh) {
      c10::cuda::getCurrentCUDAStream().synchronize();
      const c10::cuda::CUDAStreamGuard guard(stream);
      record({weights, config, rope, store, kept->step}, *kept);
    }
    kept->graph.replay();
    return kept->hidden.narrow(0, 0, ids.size(0)).clone();
  }
};

// Whether the kernels can compute the layers: Llama's, with or without biases and norms of each
// head's queries and keys.
static bool like_llama(const ModelConfig& config) {
  const NormNames& norms = entry_of(config.family).norms;
  return config.layer_kinds.empty() && config.activation == Activation::silu && !config.norm_plus_one &&
         !config.whole_qk_norm && config.attention_scalar == 0 && config.rope.query_growth == 0 &&
         config.embedding_scale == 1 && config.rope.dimensions == 0 && !config.value_norm &&
         !config.layer_scalars && config.layer_input_size == 0 && norms.before_mixer &&
         norms.before_feed_forward && !norms.after_mixer && !norms.after_feed_forward;
}

void CudaInference::forget() {
  if (recordings_) recordings_->by_memory.clear();
}

CudaInference::CudaInference() : records_(is_set_to("NLAC_CUDA_GRAPHS", "1")) {}

bool CudaInference::takes(const Weights& weights, const ModelConfig& config, const KvStore& store) {
  const auto type = weights.embedding.scalar_type();
  return like_llama(config) && !store.packed() && weights.embedding.device().type() == NLAC_KERNEL_DEVICE &&
         (type == at::kBFloat16 || type == at::kFloat) && config.head_dim % 8 == 0 && config.head_dim <= 256;
}

at::Tensor CudaInference::infer(const Weights& weights, const ModelConfig& config, const Rope& rope,
                                const at::Tensor& ids, const KvStore& store,
                                const std::vector<KvSlice>& slices,
                                const std::function<void(size_t)>& before_layer) {
  const c10::cuda::OptionalCUDAGuard guard(ids.device());
  const bool writing =
      std::all_of(slices.begin(), slices.end(), [](const KvSlice& slice) { return slice.fresh == 1; });
  if (records_ && writing && !before_layer && ids.size(0) <= largest_recorded) {
    if (!recordings_) recordings_ = std::make_shared<Recordings>(ids.device());
    if (!recordings_->failed) {
      try {
        return recordings_->run(weights, config, rope, ids, store, slices);
      } catch (const std::exception& error) {
        TORCH_WARN("steps are not recorded as CUDA graphs: ", error.what());
        recordings_->failed = true;
        recordings_->by_memory.clear();
      }
    }
  }
  const Step step = step_of(store, slices, ids.device());
  return Layers{weights, config, rope, store, step, before_layer}.run(ids);
}

}  // namespace nlac

#else

namespace nlac {

CudaInference::CudaInference() : records_(false) {}

bool CudaInference::takes(const Weights&, const ModelConfig&, const KvStore&) { return false; }

void CudaInference::forget() {}

at::Tensor CudaInference::infer(const Weights&, const ModelConfig&, const Rope&, const at::Tensor&,
                                const KvStore&, const std::vector<KvSlice>&,
                                const std::function<void(size_t)>&) {
  return {};
}

}  // namespace nlac

#endif
