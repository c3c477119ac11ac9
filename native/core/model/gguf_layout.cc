#include "core/model/gguf_layout.h"

#include <functional>
#include <map>
#include <string_view>

#include "core/error.h"
#include "core/model/families.h"

namespace nlac {
namespace {

// Rows of a rotary projection of `heads` heads. For runtimes that rotate neighbours the converter
// interleaves the two halves of each head, (half, pair) → (pair, half); HF's rotary embedding pairs
// value i with value i + head_dim / 2.
std::vector<int64_t> interleaved(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> order;
  const int64_t half = head_dim / 2;
  for (int64_t row = 0; row < heads * head_dim; ++row) {
    const int64_t within = row % head_dim;
    order.push_back(row - within + within % half * 2 + within / half);
  }
  return order;
}

// The value heads of a gated delta net, `width` places each, after `first` others. HF has the heads
// that share a key head together; the converter has the first of every key head, then the second of
// every key head, …
std::vector<int64_t> tiled(const GatedDeltaShape& shape, int64_t width, int64_t first) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < first; ++i) order.push_back(i);
  const int64_t group = shape.heads / shape.key_heads;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t place = head % group * shape.key_heads + head / group;
    for (int64_t i = 0; i < width; ++i) order.push_back(first + place * width + i);
  }
  return order;
}

}  // namespace

std::string gguf_name(const std::string& name, const ModelConfig& config) {
  static const std::map<std::string, std::string, std::less<>> whole = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
      {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
      {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"}};
  static const std::map<std::string, std::string, std::less<>> parts = {
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"linear_attn.in_proj_qkv", "attn_qkv"},
      {"linear_attn.in_proj_z", "attn_gate"},
      {"linear_attn.in_proj_b", "ssm_beta"},
      {"linear_attn.in_proj_a", "ssm_alpha"},
      {"linear_attn.conv1d", "ssm_conv1d"},
      {"linear_attn.norm", "ssm_norm"},
      {"linear_attn.out_proj", "ssm_out"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.router", "ffn_gate_inp"},
      {"router", "ffn_gate_inp"},
      {"router.proj", "ffn_gate_inp"},
      {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
      {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
      {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
      {"per_layer_input_gate", "inp_gate"},
      {"per_layer_projection", "proj"},
      {"post_per_layer_input_norm", "post_norm"},
      {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
      {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
      {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
  };
  static const std::map<std::string, std::string, std::less<>> of_experts = {
      {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"}};
  if (const auto found = whole.find(name); found != whole.end()) return found->second;
  constexpr std::string_view prefix = "model.layers.";
  const std::string_view experts = config.experts.prefix();
  const size_t layer_end = name.find('.', prefix.size()), part_end = name.rfind('.');
  const std::string block = "blk." + name.substr(prefix.size(), layer_end - prefix.size()) + ".";
  const std::string part = name.substr(layer_end + 1, part_end - layer_end - 1), kind = name.substr(part_end);
  if (kind == ".A_log") return block + "ssm_a";
  if (kind == ".dt_bias") return block + "ssm_dt.bias";
  if (kind == ".sinks") return block + "attn_sinks.weight";
  if (kind == ".layer_scalar") return block + "layer_output_scale.weight";
  if (kind == ".per_expert_scale") return block + "ffn_down_exps.scale";
  if (config.experts.clamped() && part == "mlp.experts")
    return block + (kind.starts_with(".down") ? "ffn_down_exps" : "ffn_gate_exps") +
           (kind.ends_with("_bias") ? ".bias" : ".weight");
  const NormNames& norms = entry_of(config.family).norms;
  const std::pair<const char*, const char*> named_norms[] = {
      {norms.before_mixer, "attn_norm"},
      {norms.after_mixer, "post_attention_norm"},
      {norms.before_feed_forward,
       config.delta.heads > 0 || config.attention_sinks ? "post_attention_norm" : "ffn_norm"},
      {norms.after_feed_forward, "post_ffw_norm"}};
  for (const auto& [norm, gguf] : named_norms)
    if (norm != nullptr && part == norm) return block + gguf + kind;
  if (part.starts_with(experts)) {
    const size_t dot = part.rfind('.');
    const std::string expert = part.substr(experts.size(), dot - experts.size());
    return block + of_experts.at(part.substr(dot + 1)) + "." + expert + kind;
  }
  const auto found = parts.find(part);
  NLAC_REQUIRE(found != parts.end(), "ERR_INTERNAL", "no GGUF name for ", name);
  return block + found->second + kind;
}

Stored gguf_form(const std::string& name, const ModelConfig& config) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  Stored form;
  if (entry_of(config.family).gguf_interleaved) {
    if (has(".q_proj.")) form.rows = interleaved(config.heads, config.head_dim);
    if (has(".k_proj.")) form.rows = interleaved(config.kv_heads, config.head_dim);
  }
  if (config.experts.clamped() && has(".mlp.experts.")) {
    form.of_stack = true;
    if (has(".gate_up_proj")) {
      const std::string gate = gguf_name(name, config), middle = "ffn_gate_exps";
      form.up = gate;
      form.up.replace(gate.find(middle), middle.size(), "ffn_up_exps");
    }
  }
  const bool of_delta = has(".linear_attn.");
  if (config.norm_plus_one && name.ends_with("norm.weight") && !of_delta) form.shift = 1;
  if (!of_delta) return form;
  const GatedDeltaShape& delta = config.delta;
  form.negative_exponential = name.ends_with(".A_log");
  if (has(".in_proj_qkv.") || has(".conv1d.")) form.rows = tiled(delta, delta.value_dim, 2 * delta.keys());
  if (has(".in_proj_z.")) form.rows = tiled(delta, delta.value_dim, 0);
  if (has(".in_proj_a.") || has(".in_proj_b.") || name.ends_with(".A_log") || name.ends_with(".dt_bias"))
    form.rows = tiled(delta, 1, 0);
  if (has(".out_proj.")) form.columns = tiled(delta, delta.value_dim, 0);
  return form;
}

}  // namespace nlac
