/**
 * NLAC and other methods on eight errands, from the same base model and at the same number of
 * environment steps: the paper's baselines, the methods nearest to NLAC, and imitation of the
 * actions that the desk's replies name.
 */
import { defineComparison } from "nlac/compare";
import { besideTheReward, cost, knowsTheOrder, oneWorld, sharedHeads } from "./_notes.ts";

export default defineComparison({
  name: "errands",
  description:
    "NLAC and ten other methods on eight errands: five seeds each, half a million parameters, on the CPU",
  notes: [besideTheReward, knowsTheOrder, sharedHeads, cost, oneWorld],
  environmentSteps: 2000,
  seeds: [0, 1, 2, 3, 4],
  set: {
    // The default, which hope/errands changes.
    environment: { options: { chain: 4 } },
    config: {
      // Enough for the steps at any episode length: 2000 are at least 333 episodes of six.
      iterations: 200,
      evaluation: { every: 4, episodes: 128, temperature: 1 },
    },
  },
  methods: [
    { name: "nlac", recipe: "errands" },
    { name: "monte-carlo", recipe: "errands-monte-carlo" },
    { name: "hindsight", recipe: "errands-hindsight" },
    { name: "rft", recipe: "errands-rft" },
    { name: "grpo", recipe: "errands-grpo" },
    {
      name: "grpo-turn",
      recipe: "errands-grpo",
      set: { config: { credit: "turn", discount: 0.9 } },
    },
    { name: "critique-grpo", recipe: "errands-critique-grpo" },
    { name: "ppo", recipe: "errands-ppo" },
    { name: "archer", recipe: "errands-archer" },
    { name: "sac", recipe: "errands-sac" },
    {
      name: "hope",
      recipe: "hope/errands",
      // The recipe's own iterations take 6,600 steps.
      set: { config: { episodesPerTask: 8, branchedEpisodes: 4, evaluation: { every: 1 } } },
    },
  ],
});
