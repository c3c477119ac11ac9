#include "core/model/layer.h"

#include "core/model/elementwise.h"
#include "core/model/families.h"

namespace nlac {
namespace {

void append(auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); }

// The input of a branch's part, in `type`.
at::Tensor before(const BranchNorms& norms, const ModelConfig& config, const at::Tensor& x,
                  at::ScalarType type) {
  return norms.before.defined() ? rms_norm(x, norms.before, config) : x.to(type);
}

// One branch. `part` takes the normed input and a residual (undefined: none) that it adds. `output`
// is set to the part's output if a norm follows.
template <typename Part>
at::Tensor branch_forward(const BranchNorms& norms, const ModelConfig& config, const at::Tensor& x,
                          at::Tensor& output, const Part& part) {
  const at::Tensor inner = before(norms, config, x, x.scalar_type());
  if (!norms.after.defined()) return part(inner, x);
  output = part(inner, at::Tensor());
  return rms_norm(output, norms.after, config).add_(x);
}

// `part` takes the normed input and the gradient at its output, and returns that at its input.
template <typename Part>
at::Tensor branch_backward(const BranchNorms& norms, const ModelConfig& config, const at::Tensor& x,
                           const at::Tensor& output, const at::Tensor& grad, BranchNorms& into,
                           const Part& part) {
  const at::Tensor at_output =
      norms.after.defined() ? rms_norm_backward(grad, output, norms.after, config, into.after, {}) : grad;
  const at::Tensor at_inner = part(before(norms, config, x, x.scalar_type()), at_output);
  if (norms.before.defined()) return rms_norm_backward(at_inner, x, norms.before, config, into.before, grad);
  return at_inner.add(grad);
}

// `part` takes the normed input and adds its output to a sum.
template <typename Part>
void branch_infer(const BranchNorms& norms, const ModelConfig& config, const at::Tensor& x,
                  at::ScalarType type, const Part& part) {
  const at::Tensor inner = before(norms, config, x, type);
  if (!norms.after.defined()) return part(inner, x);
  const at::Tensor output = at::zeros(x.sizes(), x.options());
  part(inner, output);
  x.add_(rms_norm(output, norms.after, config));
}

}  // namespace

std::vector<at::Tensor*> LayerWeights::tensors() {
  std::vector<at::Tensor*> all{&mixer_norms.before};
  append(all, attention.tensors());
  append(all, delta.tensors());
  append(all, std::vector{&mixer_norms.after, &feed_forward_norms.before});
  append(all, feed_forward.tensors());
  append(all, experts.tensors());
  append(all, beside.tensors());
  all.push_back(&feed_forward_norms.after);
  append(all, inputs.tensors());
  all.push_back(&scalar);
  return all;
}

std::vector<AdaptedMatrix> LayerWeights::adapted() {
  std::vector<AdaptedMatrix> all = attention.adapted();
  append(all, delta.adapted());
  append(all, feed_forward.adapted());
  append(all, experts.adapted());
  return all;
}

std::vector<Adapter*> LayerWeights::adapters() {
  std::vector<Adapter*> all;
  for (const AdaptedMatrix& one : adapted()) all.push_back(one.adapter);
  return all;
}

std::vector<const at::Tensor*> LayerWeights::tensors() const {
  const auto all = const_cast<LayerWeights*>(this)->tensors();
  return {all.begin(), all.end()};
}

std::vector<const Adapter*> LayerWeights::adapters() const {
  const auto all = const_cast<LayerWeights*>(this)->adapters();
  return {all.begin(), all.end()};
}

std::vector<Parameter> layer_parameters(const ModelConfig& config, int64_t layer, LayerWeights& weights) {
  const NormNames& names = entry_of(config.family).norms;
  const LayerKind kind = config.kind(layer);
  std::vector<Parameter> all;
  const auto add_norm = [&](at::Tensor& tensor, const char* name) {
    if (name != nullptr)
      all.push_back({&tensor, {config.hidden_size}, {{std::string(name) + ".weight", config.hidden_size}}});
  };
  add_norm(weights.mixer_norms.before, names.before_mixer);
  switch (kind.mixer) {
    case Mixer::attention: append(all, attention_parameters(config, kind, weights.attention)); break;
    case Mixer::delta: append(all, delta_parameters(config, weights.delta)); break;
  }
  add_norm(weights.mixer_norms.after, names.after_mixer);
  add_norm(weights.feed_forward_norms.before, names.before_feed_forward);
  if (kind.feed_forward != FeedForward::experts)
    append(all, feed_forward_parameters(config, weights.feed_forward, "mlp.", config.intermediate_of(kind)));
  if (kind.feed_forward != FeedForward::gated) append(all, experts_parameters(config, weights.experts));
  if (kind.feed_forward == FeedForward::beside) append(all, beside_parameters(config, weights.beside));
  add_norm(weights.feed_forward_norms.after, names.after_feed_forward);
  if (config.layer_input_size > 0) append(all, layer_input_parameters(config, weights.inputs));
  if (config.layer_scalars) all.push_back({&weights.scalar, {1}, {{"layer_scalar", 1}}});
  return all;
}

at::Tensor layer_forward(const LayerWeights& layer, const ModelConfig& config, int64_t index,
                         const PackedPass& pass, const at::Tensor& input, LayerTape& tape, bool tape_only) {
  const LayerKind kind = config.kind(index);
  const bool has_inputs = config.layer_input_size > 0;
  tape.input = input;
  tape.middle = branch_forward(
      layer.mixer_norms, config, input, tape.mixed, [&](const at::Tensor& x, const at::Tensor& residual) {
        if (kind.mixer == Mixer::delta)
          return delta_forward(layer.delta, config, pass, x, residual, tape.delta);
        return attention_forward(layer.attention, config, kind, pass, x, residual, tape.attention);
      });
  at::Tensor output = branch_forward(
      layer.feed_forward_norms, config, tape.middle, tape.fed,
      [&](const at::Tensor& x, const at::Tensor& residual) {
        const bool last = tape_only && !layer.feed_forward_norms.after.defined() && !has_inputs;
        if (kind.feed_forward == FeedForward::experts)
          return experts_forward(layer.experts, config, x, {}, residual, tape.experts, last);
        const at::Tensor out = feed_forward(layer.feed_forward, config, x, residual, tape.feed_forward, last);
        if (kind.feed_forward == FeedForward::gated) return out;
        return beside_forward(layer.beside, layer.experts, config, tape.middle, out, tape.beside,
                              tape.experts);
      });
  if (has_inputs)
    output =
        layer_input_forward(layer.inputs, config, output, pass.layer_inputs.select(1, index), tape.inputs);
  if (layer.scalar.defined() && !tape_only) output.mul_(layer.scalar);
  return output;
}

at::Tensor layer_backward(const LayerWeights& layer, const ModelConfig& config, int64_t index,
                          const PackedPass& pass, const LayerTape& tape, const at::Tensor& grad,
                          LayerWeights& into) {
  const LayerKind kind = config.kind(index);
  at::Tensor at_fed = layer.scalar.defined() ? grad * layer.scalar : grad;
  if (config.layer_input_size > 0) {
    at::Tensor at_inputs;
    if (pass.at_layer_inputs.defined()) at_inputs = pass.at_layer_inputs.select(1, index);
    at_fed = layer_input_backward(layer.inputs, config, tape.inputs, at_fed, at_inputs, into.inputs);
  }
  at::Tensor at_stream;  // of the experts beside
  at::Tensor at_middle = branch_backward(
      layer.feed_forward_norms, config, tape.middle, tape.fed, at_fed, into.feed_forward_norms,
      [&](const at::Tensor& x, const at::Tensor& at_output) {
        if (kind.feed_forward == FeedForward::experts)
          return experts_backward(layer.experts, config, pass, x, {}, tape.experts, at_output, into.experts,
                                  at_stream);
        const at::Tensor at_fed =
            kind.feed_forward == FeedForward::gated
                ? at_output
                : beside_backward(layer.beside, layer.experts, config, pass, tape.middle, tape.beside,
                                  tape.experts, at_output, into.beside, into.experts, at_stream);
        return feed_forward_backward(layer.feed_forward, config, x, tape.feed_forward, at_fed,
                                     into.feed_forward);
      });
  if (at_stream.defined()) at_middle = at_middle + at_stream;
  return branch_backward(layer.mixer_norms, config, tape.input, tape.mixed, at_middle, into.mixer_norms,
                         [&](const at::Tensor& x, const at::Tensor& at_output) {
                           if (kind.mixer == Mixer::delta)
                             return delta_backward(layer.delta, config, pass, x, tape.delta, at_output,
                                                   into.delta);
                           return attention_backward(layer.attention, config, kind, pass, x, tape.attention,
                                                     at_output, into.attention);
                         });
}

void layer_infer(const LayerWeights& layer, const ModelConfig& config, int64_t index, InferencePass& pass,
                 const at::Tensor& x) {
  const LayerKind kind = config.kind(index);
  branch_infer(layer.mixer_norms, config, x, pass.type, [&](const at::Tensor& inner, const at::Tensor& sum) {
    if (kind.mixer == Mixer::delta) return delta_infer(layer.delta, config, pass, index, inner, sum);
    attention_infer(layer.attention, config, kind, pass, index, inner, sum);
  });
  branch_infer(layer.feed_forward_norms, config, x, pass.type,
               [&](const at::Tensor& inner, const at::Tensor& sum) {
                 if (kind.feed_forward == FeedForward::experts)
                   return experts_infer(layer.experts, config, pass, inner, {}, sum);
                 feed_forward_infer(layer.feed_forward, config, pass, inner, sum);
                 if (kind.feed_forward == FeedForward::beside)
                   beside_infer(layer.beside, layer.experts, config, pass, x, sum);
               });
  if (config.layer_input_size > 0) layer_input_infer(layer.inputs, config, pass, index, x);
  if (layer.scalar.defined()) at::Tensor(x).mul_(layer.scalar);
}

}  // namespace nlac
