#include "core/model/decoder.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/loss/logit_cap.h"
#include "core/model/elementwise.h"
#include "core/model/embedding.h"
#include "core/model/layer.h"

namespace nlac {
namespace {

// This file does not use torch's autograd: its dispatch keys are excluded from every call.
using WithoutAutograd = at::AutoDispatchBelowADInplaceOrView;

at::ScalarType residual_type(const Weights& weights) {
  return weights.embedding.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void require_ids(const Weights& weights, const ModelConfig& config, const at::Tensor& ids) {
  NLAC_REQUIRE(ids.dim() == 1 && ids.scalar_type() == at::kLong, "ERR_SHAPE",
               "ids must be [tokens] int64, got ", ids.toString(), " of ", ids.dim(), " dimensions");
  NLAC_REQUIRE(ids.size(0) > 0, "ERR_SHAPE", "ids must hold at least one token");
  NLAC_REQUIRE(ids.device() == weights.embedding.device(), "ERR_DEVICE", "ids are on ", ids.device().str(),
               ", the weights on ", weights.embedding.device().str());
  NLAC_REQUIRE(static_cast<int64_t>(weights.layers.size()) == config.layers, "ERR_SHAPE", "the weights have ",
               weights.layers.size(), " layers, the config ", config.layers);
  if (!ids.is_cpu()) return;  // a GPU reports a bad id itself; a check would wait for it
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i)
    NLAC_REQUIRE(id[i * ids.stride(0)] >= 0 && id[i * ids.stride(0)] < config.vocab_size, "ERR_VALUE",
                 "token id ", id[i * ids.stride(0)], " is outside the vocabulary of ", config.vocab_size);
}

// Requires that no two slices write to the same block: a kernel may clear what lies behind a slice's
// last token. The blocks between the first and the last that a slice writes are its own.
void require_own_blocks(const std::vector<KvSlice>& slices) {
  std::unordered_set<int32_t> written;
  for (const KvSlice& slice : slices) {
    const int64_t first = slice.past / kBlockTokens, last = (slice.past + slice.fresh - 1) / kBlockTokens;
    for (int64_t place = first; place <= last; place += std::max<int64_t>(1, last - first)) {
      const int32_t block = (*slice.blocks)[static_cast<size_t>(place)];
      NLAC_REQUIRE(written.insert(block).second, "ERR_SHAPE", "two slices write to block ", block);
    }
  }
}

// 0, 1, …, lengths[0] - 1, 0, 1, …
at::Tensor packed_positions(const std::vector<int64_t>& lengths, at::Device device) {
  std::vector<int64_t> positions;
  for (const int64_t length : lengths)
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
  return at::tensor(positions, at::kLong).to(device);
}

}  // namespace

const RopeTables& Decoder::ropes(int64_t positions, at::Device device) {
  const at::Tensor& cos = ropes_.global.cos;
  const int64_t held = cos.defined() && cos.device() == device ? ropes_.positions : 0;
  if (positions > held)
    ropes_ = RopeTables::make(config_, std::max({positions, 2 * held, int64_t{1024}}), device);
  return ropes_;
}

void Decoder::forget_packed(const Weights& weights) {
  forget_packed(weights.list());
  cuda_.forget();
}

void Decoder::forget_packed(const std::vector<at::Tensor>& matrices) {
  for (const at::Tensor& matrix : matrices) packed_.forget(matrix);
}

at::Tensor Decoder::embedded(const Weights& weights, const at::Tensor& ids) const {
  return embedded_rows(weights.embedding, ids, config_.embedding_scale);
}

at::Tensor Decoder::infer(const Weights& weights, const at::Tensor& ids, const KvStore& store,
                          const std::vector<KvSlice>& slices, const BeforeLayer& before_layer) {
  WithoutAutograd guard;
  require_ids(weights, config_, ids);
  std::vector<int64_t> position_list;
  int64_t longest = 0;
  const bool recurrent = StateStore::slot_bytes(config_, at::kFloat) > 0;
  for (const KvSlice& slice : slices) {
    NLAC_REQUIRE(slice.fresh > 0, "ERR_SHAPE", "a slice must have at least one new token, got ", slice.fresh);
    NLAC_REQUIRE(slice.state >= 0 || !recurrent, "ERR_SHAPE", "a slice of a recurrent model has no state");
    const int64_t end = slice.past + slice.fresh;
    NLAC_REQUIRE(end <= static_cast<int64_t>(slice.blocks->size()) * kBlockTokens, "ERR_SHAPE", "a slice of ",
                 end, " tokens has ", slice.blocks->size(), " blocks");
    for (int64_t i = slice.past; i < end; ++i) position_list.push_back(i);
    longest = std::max(longest, end);
  }
  NLAC_REQUIRE(static_cast<int64_t>(position_list.size()) == ids.size(0), "ERR_SHAPE", "the slices have ",
               position_list.size(), " tokens, ids ", ids.size(0));
  require_own_blocks(slices);
  const RopeTables& tables = ropes(longest, ids.device());
  if (CudaInference::takes(weights, config_, store))
    return cuda_.infer(weights, config_, tables.global, ids, store, slices, before_layer);

  const CachedAttention attention(store, slices, ids.device());
  InferencePass pass{weights.embedding.scalar_type(),
                     at::tensor(position_list, at::kLong).to(ids.device()),
                     tables,
                     slices,
                     attention,
                     store.states(),
                     packed_};
  // The residual stream is float32: batches are small, and each layer would round it twice.
  const at::Tensor rows = embedded(weights, ids);
  if (config_.layer_input_size > 0)
    pass.layer_inputs = infer_layer_inputs(weights.layer_inputs, config_, packed_, ids, rows);
  const at::Tensor x = rows.to(residual_type(weights));
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    if (before_layer) before_layer(l);
    layer_infer(weights.layers[l], config_, static_cast<int64_t>(l), pass, x);
  }
  return rms_norm(x, weights.norm, config_);
}

at::Tensor Decoder::infer_logits(const Weights& weights, const at::Tensor& hidden) {
  WithoutAutograd guard;
  at::Tensor result = packed_.of(weights.head).in_float(hidden);
  cap_logits(result, config_.logit_cap);
  return result;
}

struct Decoder::Tape {
  at::Tensor ids;
  PackedPass pass;
  bool recompute = false;
  std::vector<LayerTape> layers;
  RouterLoad load;
  at::Tensor last;  // [tokens, hidden], before the final norm
};

static void require_lengths(const at::Tensor& ids, const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (const int64_t length : lengths) {
    NLAC_REQUIRE(length > 0, "ERR_SHAPE", "a sequence must have at least one token, got ", length);
    total += length;
  }
  NLAC_REQUIRE(total == ids.size(0), "ERR_SHAPE", "the lengths sum to ", total, ", ids has ", ids.size(0));
}

PackedPass Decoder::packed_pass(const at::Tensor& ids, const std::vector<int64_t>& lengths) {
  require_lengths(ids, lengths);
  return {sequences_of(lengths, ids.device()),
          packed_positions(lengths, ids.device()),
          ropes(*std::max_element(lengths.begin(), lengths.end()), ids.device()),
          {},
          std::make_shared<std::map<int64_t, LentKeys>>()};
}

at::Tensor Decoder::forward(const Weights& weights, const at::Tensor& ids,
                            const std::vector<int64_t>& lengths, bool recompute, std::shared_ptr<Tape>& tape,
                            const BeforeLayer& before_layer) {
  WithoutAutograd guard;
  require_ids(weights, config_, ids);
  tape = std::make_shared<Tape>();
  tape->ids = ids;
  tape->pass = packed_pass(ids, lengths);
  tape->recompute = recompute;
  at::Tensor x = embedded(weights, ids);
  if (config_.layer_input_size > 0)
    tape->pass.layer_inputs = layer_inputs(weights.layer_inputs, config_, ids, x);
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    if (before_layer) before_layer(l);
    LayerTape now;
    x = layer_forward(weights.layers[l], config_, static_cast<int64_t>(l), tape->pass, x, now);
    if (now.experts.routing.probabilities.defined()) tape->load.add(now.experts.routing);
    if (recompute) {
      LayerTape kept;
      kept.input = now.input;
      now = kept;
    }
    tape->layers.push_back(std::move(now));
  }
  tape->last = x;
  return rms_norm(x, weights.norm, config_);
}

at::Tensor Decoder::forward(const Weights& weights, const at::Tensor& ids,
                            const std::vector<int64_t>& lengths, const BeforeLayer& before_layer) {
  WithoutAutograd guard;
  require_ids(weights, config_, ids);
  PackedPass pass = packed_pass(ids, lengths);
  at::Tensor x = embedded(weights, ids);
  if (config_.layer_input_size > 0) pass.layer_inputs = layer_inputs(weights.layer_inputs, config_, ids, x);
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    if (before_layer) before_layer(l);
    LayerTape dropped;
    x = layer_forward(weights.layers[l], config_, static_cast<int64_t>(l), pass, x, dropped);
  }
  return rms_norm(x, weights.norm, config_);
}

void Decoder::backward(const Weights& weights, std::shared_ptr<Tape> tape, const at::Tensor& grad_hidden,
                       Weights& gradients, const BeforeLayer& before_layer, double balance) {
  WithoutAutograd guard;
  NLAC_REQUIRE(tape && tape->last.defined(), "ERR_VALUE", "the tape is missing or was already consumed");
  NLAC_REQUIRE(grad_hidden.sizes() == tape->last.sizes(), "ERR_SHAPE", "grad_hidden must be [",
               tape->last.size(0), ", ", tape->last.size(1), "]");
  at::Tensor grad = rms_norm_backward(grad_hidden, tape->last, weights.norm, config_, gradients.norm, {});
  tape->last.reset();
  if (balance != 0 && tape->load.rows > 0)
    tape->pass.at_probabilities = tape->load.at_probabilities() * balance;
  const bool has_inputs = config_.layer_input_size > 0;
  if (has_inputs && gradients.embedding.defined())
    tape->pass.at_layer_inputs = at::empty_like(tape->pass.layer_inputs);
  for (size_t l = weights.layers.size(); l-- > 0;) {
    const LayerWeights& layer = weights.layers[l];
    const auto index = static_cast<int64_t>(l);
    if (before_layer) before_layer(l);
    LayerTape now = std::exchange(tape->layers[l], {});
    if (tape->recompute)
      layer_forward(layer, config_, index, tape->pass, at::Tensor(now.input), now, /*tape_only=*/true);
    grad = layer_backward(layer, config_, index, tape->pass, now, grad, gradients.layers[l]);
  }
  if (!gradients.embedding.defined()) return;
  if (has_inputs)
    grad = layer_inputs_backward(weights.layer_inputs, config_, tape->ids, embedded(weights, tape->ids),
                                 tape->pass.at_layer_inputs, gradients.layer_inputs)
               .add_(grad);
  add_embedding_gradient(gradients.embedding, tape->ids, grad, config_.embedding_scale);
}

double Decoder::balance_loss(const Tape& tape) { return tape.load.loss(); }

at::Tensor logits(const at::Tensor& hidden, const at::Tensor& head, double cap) {
  WithoutAutograd guard;
  at::Tensor result = linear_in_float(hidden, head);
  cap_logits(result, cap);
  return result;
}

}  // namespace nlac
