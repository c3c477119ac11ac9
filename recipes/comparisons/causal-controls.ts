/**
 * Does the Bellman backup in words assign credit? Errands with nine dead ends, ten worlds, and
 * controls that would reach NLAC's success rate if it did not. Each seed has its own world.
 *
 * - `successor` generates the future as the paper's equation 1 has it, `request` as the paper's
 *   prompts ask for it, which is nlac's default.
 * - `none` has no bootstrapped future. With `frozen`, θ̄ stays the initial model: its futures know
 *   nothing of what the critic has learned, so nothing is passed back over several steps. `shuffled`
 *   gives each target the outcome of another transition. `rehearsal` trains the critic only on the
 *   labelled synthetic samples.
 * - `rft-rehearsal` adds the same labelled samples to a method that otherwise learns from the
 *   reward alone.
 * - `hindsight-episode` imitates with a line of code that reads everything NLAC's backup can read,
 *   including the dead end named at the end.
 * - `…-unnamed`: the end of a lost errand does not name the dead end.
 */
import { defineComparison } from "nlac/compare";
import { cost } from "./_notes.ts";

const unnamed = { options: { namesDeadEnd: false } };

export default defineComparison({
  name: "causal-controls",
  description:
    "the effect of the bootstrapped future on errands with dead ends, against its controls: ten worlds, on the CPU",
  notes: [
    "Every seed has its own world (hidden orders and dead ends); all runs share one base model.",
    "Beyond the reward, NLAC's targets read the desk's replies, which name the right action after a refusal and, except in …-unnamed, the dead end at the end of a lost errand. So does the code of hindsight-episode. rft-rehearsal learns from the reward and the labelled samples alone.",
    "All except the two of hindsight-episode rehearse 8 labelled samples of synthetic errands per update.",
    cost,
  ],
  environmentSteps: 2000,
  seeds: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
  seedFields: ["environment.options.seed"],
  paired: true,
  set: {
    environment: { options: { deadEnds: 9 } },
    config: { iterations: 200, evaluation: { every: 4, episodes: 128, temperature: 1 } },
  },
  methods: [
    { name: "successor", recipe: "errands", set: { config: { bootstrap: "successor" } } },
    { name: "request", recipe: "errands", set: { config: { bootstrap: "request" } } },
    { name: "none", recipe: "errands", set: { config: { bootstrap: "none" } } },
    { name: "frozen", recipe: "errands", set: { config: { bootstrap: "successor", targetRate: 0 } } },
    {
      name: "shuffled",
      recipe: "errands",
      set: { config: { bootstrap: "successor", shuffleOutcomes: true } },
    },
    {
      name: "rehearsal",
      recipe: "errands",
      set: { config: { bootstrap: "successor", criticWeight: 0 } },
    },
    { name: "rft-rehearsal", recipe: "errands-rft", set: { config: { rehearsal: 8 } } },
    {
      name: "hindsight-episode",
      recipe: "errands-hindsight",
      set: { config: { imitate: "hindsight-episode" } },
    },
    {
      name: "successor-unnamed",
      recipe: "errands",
      set: { environment: unnamed, config: { bootstrap: "successor" } },
    },
    {
      name: "none-unnamed",
      recipe: "errands",
      set: { environment: unnamed, config: { bootstrap: "none" } },
    },
    {
      name: "hindsight-episode-unnamed",
      recipe: "errands-hindsight",
      set: { environment: unnamed, config: { imitate: "hindsight-episode" } },
    },
  ],
});
