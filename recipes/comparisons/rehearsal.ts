/**
 * Why does NLAC learn nothing here without rehearsal, while the prototype only fell from 0.79 to
 * 0.63? The recipe takes 48 updates of 16 samples per 16 episodes, the prototype took 8 of 32. The
 * assumption tested: the more updates between two rounds of episodes, the further the critic and
 * the refiner drift from their tasks.
 */
import { defineComparison } from "nlac/compare";

const few = { updatesPerIteration: 8, batchSize: 32, schedule: { shape: "constant" } };

export default defineComparison({
  name: "rehearsal",
  description:
    "NLAC on errands with and without rehearsal, with the recipe's updates and with a third of the samples",
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
    { name: "seldom", recipe: "errands", set: { config: few } },
    { name: "seldom-without", recipe: "errands", set: { config: { ...few, rehearsal: 0 } } },
  ],
});
