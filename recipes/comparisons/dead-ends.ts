/**
 * The effect of the bootstrap. In these errands the desk accepts nine other items by mistake before
 * the last step. Nothing shows this until the last item is brought. NLAC runs with d' as in the
 * paper's equation 1, with d' as its prompts ask for it, and without d'. Beside it are the methods
 * nearest to it, and a baseline that imitates the desk's replies, and so also clones items that were
 * accepted by mistake.
 */
import { defineComparison } from "nlac/compare";
import { besideTheReward, cost, knowsTheOrder, lostOver, oneWorld, sharedHeads } from "./_notes.ts";

export default defineComparison({
  name: "dead-ends",
  description:
    "bootstrapped futures on errands with dead ends: five seeds each, half a million parameters, on the CPU",
  notes: [besideTheReward, knowsTheOrder, sharedHeads, lostOver, cost, oneWorld],
  environmentSteps: 2000,
  seeds: [0, 1, 2, 3, 4],
  set: {
    // chain: the default, which hope/errands changes.
    environment: { options: { chain: 4, deadEnds: 9 } },
    config: { iterations: 200, evaluation: { every: 4, episodes: 128, temperature: 1 } },
  },
  methods: [
    { name: "successor", recipe: "errands", set: { config: { bootstrap: "successor" } } },
    { name: "request", recipe: "errands", set: { config: { bootstrap: "request" } } },
    { name: "monte-carlo", recipe: "errands-monte-carlo" },
    { name: "none", recipe: "errands", set: { config: { bootstrap: "none" } } },
    { name: "critique-grpo", recipe: "errands-critique-grpo" },
    { name: "archer", recipe: "errands-archer" },
    { name: "hindsight", recipe: "errands-hindsight" },
    {
      name: "hope",
      recipe: "hope/errands",
      // The recipe's own iterations take 6,600 steps.
      set: { config: { episodesPerTask: 8, branchedEpisodes: 4, evaluation: { every: 1 } } },
    },
  ],
});
