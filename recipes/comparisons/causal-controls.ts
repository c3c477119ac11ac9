/**
 * Whether the Bellman backup in words assigns credit: errands with nine dead ends, ten worlds, and
 * controls that would end as high as NLAC if it did not. Each seed has a world of its own.
 *
 * - `none` takes away the bootstrapped future, `shuffled` gives each target the outcome of another
 *   transition, `rehearsal` trains the critic on the made-up labelled texts alone.
 * - `rft-rehearsal` gives the same labelled texts to a method of the reward alone.
 * - `hindsight-episode` imitates by a line of code that reads all that NLAC's backup can read, the
 *   dead end named at the end included.
 * - `…-unnamed`: the end of a lost errand does not name the dead end.
 */
import { defineComparison } from "nlac";
import { cost } from "./_notes.ts";

const unnamed = { options: { namesDeadEnd: false } };

export default defineComparison({
  name: "causal-controls",
  description:
    "what the bootstrapped future is worth on errands with dead ends, beside seven controls: ten worlds, on the CPU",
  notes: [
    "Every seed has a world (hidden orders and dead ends) of its own; all runs share one base model.",
    "All but hindsight-episode rehearse 8 labelled texts of made-up errands an update.",
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
    { name: "none", recipe: "errands", set: { config: { bootstrap: "none" } } },
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
