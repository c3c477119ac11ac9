/**
 * Why nothing is learned without rehearsal here, where the prototype of the method went from 0.79 to 0.63: the
 * recipe takes 48 updates of 16 samples for 16 episodes, the prototype took 8 of 32. The more updates there are
 * between two rounds of episodes, the longer the critic and the refiner drift away from their tasks.
 */
import { defineComparison } from "nlac";

const few = { updatesPerIteration: 8, batchSize: 32, schedule: { shape: "constant" } };

export default defineComparison({
  name: "rehearsal",
  description:
    "NLAC on errands with and without rehearsal, at the recipe's updates and at a third of the samples",
  notes: [
    "Every seed has a world (hidden orders) of its own; all runs share one base model, which does not know them.",
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
