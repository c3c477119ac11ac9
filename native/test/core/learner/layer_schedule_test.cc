// The order in which ranks exchange layers.
#include "core/learner/layer_schedule.h"

#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

using namespace nlac;
using Kind = LayerStep::Kind;

namespace {

std::vector<LayerStep> of_kind(const std::vector<LayerStep>& steps, Kind kind) {
  std::vector<LayerStep> chosen;
  for (const LayerStep& step : steps)
    if (step.kind == kind) chosen.push_back(step);
  return chosen;
}

// Checks that each use finds its layer in its buffer, and that no buffer is filled while it is
// used.
void check_buffers(const std::vector<LayerStep>& steps) {
  std::array<std::optional<std::pair<bool, size_t>>, layer_buffers> held;
  for (size_t i = 0; i < steps.size(); ++i) {
    const LayerStep& step = steps[i];
    const std::pair held_layer{step.pass == LayerPass::teacher, step.layer};
    if (step.kind == Kind::gather) held[buffer_of(step.layer)] = held_layer;
    if (step.kind == Kind::use) CHECK(held[buffer_of(step.layer)] == held_layer);
  }
}

}  // namespace

TEST_CASE("a layer is gathered before each use, at most one use ahead") {
  for (size_t layers : {1, 2, 3, 4, 5, 8}) {
    for (const bool teacher : {false, true}) {
      for (const bool backward : {false, true}) {
        CAPTURE(layers);
        CAPTURE(teacher);
        CAPTURE(backward);
        const auto steps = round_of({layers, true, teacher, backward});
        check_buffers(steps);
        const auto uses = of_kind(steps, Kind::use);
        const size_t passes = 1 + (teacher ? 1 : 0) + (backward ? 1 : 0);
        CHECK(uses.size() == passes * layers);
        // The backward pass finds the last two layers where the forward pass has left them.
        const size_t kept = backward ? std::min(layers, layer_buffers) : 0;
        CHECK(of_kind(steps, Kind::gather).size() == passes * layers - kept);
        size_t used = 0, gathered = 0;
        for (const LayerStep& step : steps) {
          if (step.kind == Kind::use) ++used;
          if (step.kind == Kind::gather) ++gathered;
          CHECK(gathered <= used + 2);
        }
      }
    }
  }
}

TEST_CASE("gradients are exchanged after each backward use, from the last layer to the first") {
  for (const bool gathers : {false, true}) {
    const auto steps = round_of({4, gathers, gathers, true});
    const auto exchanges = of_kind(steps, Kind::exchange);
    REQUIRE(exchanges.size() == 4);
    for (size_t i = 0; i < 4; ++i) CHECK(exchanges[i].layer == 3 - i);
    for (size_t i = 1; i < steps.size(); ++i) {
      if (steps[i].kind != Kind::exchange) continue;
      CHECK(steps[i - 1].kind == Kind::use);
      CHECK(steps[i - 1].layer == steps[i].layer);
    }
  }
  // Parameters that are not divided are not gathered: only the backward pass has steps.
  CHECK(round_of({4, false, true, true}).size() == 8);
  CHECK(round_of({4, false, true, false}).empty());
}
