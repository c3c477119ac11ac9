/**
 * Why does NLAC learn nothing here without rehearsal, while the prototype only fell from 0.79 to
 * 0.63? The recipe takes 48 updates of 16 samples per 16 episodes, the prototype took 8 of 32. Two
 * assumptions are tested: that many updates let the model drift from its tasks, and that what
 * drifts is the writer of the targets. Its weights follow the policy's more slowly in
 * `paper-rate-without` (the paper's 0.005) and `slow-without`, and not at all in `frozen-without`.
 */
import { defineComparison } from "nlac/compare";

const few = { updatesPerIteration: 8, batchSize: 32, schedule: { shape: "constant" } };

export default defineComparison({
  name: "rehearsal",
  description:
    "NLAC on errands with and without rehearsal, with many updates and with few, and with slower and frozen writers of targets",
  notes: [
    "Every seed has its own world (hidden orders); all runs share one base model, which does not know them.",
  ],
  environmentSteps: 2000,
  seeds: [1, 2, 3],
  seedFields: ["environment.options.seed"],
  paired: true,
  set: {
    config: {
      iterations: 200,
      evaluation: { every: 4, episodes: 128, temperature: 1 },
      diagnostics: { every: 4 },
    },
  },
  methods: [
    { name: "often", recipe: "errands" },
    { name: "often-without", recipe: "errands", set: { config: { rehearsal: 0 } } },
    { name: "paper-rate-without", recipe: "errands", set: { config: { rehearsal: 0, targetRate: 0.005 } } },
    { name: "slow-without", recipe: "errands", set: { config: { rehearsal: 0, targetRate: 0.002 } } },
    { name: "frozen-without", recipe: "errands", set: { config: { rehearsal: 0, targetRate: 0 } } },
    { name: "seldom", recipe: "errands", set: { config: few } },
    { name: "seldom-without", recipe: "errands", set: { config: { ...few, rehearsal: 0 } } },
  ],
});
