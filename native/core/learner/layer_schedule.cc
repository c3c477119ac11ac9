#include "core/learner/layer_schedule.h"

#include <array>
#include <optional>
#include <utility>

namespace nlac {

std::vector<LayerStep> round_of(const RoundOptions& options) {
  struct Use {
    LayerPass pass;
    size_t layer;
  };
  std::vector<Use> uses;
  for (const LayerPass pass : {LayerPass::teacher, LayerPass::forward}) {
    if (!options.gathers || (pass == LayerPass::teacher && !options.teacher)) continue;
    for (size_t l = 0; l < options.layers; ++l) uses.push_back({pass, l});
  }
  for (size_t l = options.layers; options.backward && l-- > 0;) uses.push_back({LayerPass::backward, l});

  std::vector<LayerStep> steps;
  using Held = std::pair<bool, size_t>;  // whether it is θ̄'s, and which layer
  std::array<std::optional<Held>, layer_buffers> held;
  const auto gather = [&](const Use& use) {
    const Held wanted{use.pass == LayerPass::teacher, use.layer};
    std::optional<Held>& buffer = held[buffer_of(use.layer)];
    if (!options.gathers || buffer == wanted) return;
    steps.push_back({LayerStep::Kind::gather, use.pass, use.layer});
    buffer = wanted;
  };
  for (size_t k = 0; k < uses.size(); ++k) {
    gather(uses[k]);
    if (k + 1 < uses.size() && buffer_of(uses[k + 1].layer) != buffer_of(uses[k].layer)) gather(uses[k + 1]);
    steps.push_back({LayerStep::Kind::use, uses[k].pass, uses[k].layer});
    if (uses[k].pass == LayerPass::backward)
      steps.push_back({LayerStep::Kind::exchange, uses[k].pass, uses[k].layer});
  }
  return steps;
}

}  // namespace nlac
