#include "core/model/flash_attention.h"

#include <optional>
#include <tuple>

#include "core/environment.h"

namespace nlac {
namespace {

// The kernels' window: tokens before and after a query that it sees. Without one they are causal.
struct Window {
  std::optional<int64_t> before, after;
  explicit Window(const Sight& sight) {
    if (sight.window > 0) before = sight.window - 1, after = 0;
  }
};

// A sink takes its share of a softmax that was computed without it: output and logsumexp [heads,
// tokens] become those with it.
void add_sinks(const at::Tensor& sinks, at::Tensor output, at::Tensor& logsumexp) {
  const at::Tensor of_heads = sinks.unsqueeze(1);
  output.mul_(at::sigmoid(logsumexp - of_heads).t().unsqueeze(-1));
  logsumexp = at::logaddexp(logsumexp, of_heads);
}

}  // namespace

bool takes_flash(const at::Tensor& keys) {
  static const bool allowed = !is_set_to("NLAC_FLASH_ATTENTION", "0");
  const int64_t head_dim = keys.size(-1);
  return allowed && keys.device().type() == NLAC_KERNEL_DEVICE && keys.scalar_type() == at::kBFloat16 &&
         head_dim % 8 == 0 && head_dim <= 256;
}

Attended flash_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                         const Starts& queries_at, const Starts& keys_at, const Sight& sight) {
  const Window window(sight);
  // The kernels align a text's last query with its last key.
  auto [output, logsumexp, generator, unused, debugged] = at::_flash_attention_forward(
      q, keys, values, queries_at.of, keys_at.of, queries_at.longest, keys_at.longest, 0.0, true, false,
      score_scale(q, sight), window.before, window.after);
  if (sight.sinks.defined()) add_sinks(sight.sinks, output, logsumexp);
  return {output, {logsumexp}, generator, unused};
}

void flash_attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const Attended& attended, const Starts& starts,
                              at::Tensor grad_q, at::Tensor grad_k, at::Tensor grad_v, const Sight& sight) {
  const Window window(sight);
  // The kernels compute probabilities from the logsumexp, so the sinks are accounted for.
  const auto [at_q, at_k, at_v] =
      at::_flash_attention_backward(grad, q, k, v, attended.output, attended.logsumexp[0], starts.of,
                                    starts.of, starts.longest, starts.longest, 0.0, true, attended.generator,
                                    attended.unused, score_scale(q, sight), window.before, window.after);
  grad_q.copy_(at_q);
  grad_k.copy_(at_k);
  grad_v.copy_(at_v);
}

}  // namespace nlac
