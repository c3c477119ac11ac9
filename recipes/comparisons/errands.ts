/**
 * NLAC and other methods on eight errands, from the same base model and at the same number of
 * environment steps: the paper's baselines, and imitation of the actions that the desk's replies
 * name.
 */
import { defineComparison } from "nlac/compare";
import { besideTheReward, cost, oneWorld } from "./_notes.ts";

export default defineComparison({
  name: "errands",
  description:
    "NLAC and five other methods on eight errands: five seeds each, half a million parameters, on the CPU",
  notes: [besideTheReward, cost, oneWorld],
  environmentSteps: 2000,
  seeds: [0, 1, 2, 3, 4],
  set: {
    config: {
      // Enough for the steps at any episode length: 2000 are at least 333 episodes of six.
      iterations: 200,
      evaluation: { every: 4, episodes: 128, temperature: 1 },
    },
  },
  methods: [
    { name: "nlac", recipe: "errands" },
    { name: "hindsight", recipe: "errands-hindsight" },
    { name: "rft", recipe: "errands-rft" },
    { name: "grpo", recipe: "errands-grpo" },
    { name: "ppo", recipe: "errands-ppo" },
    { name: "sac", recipe: "errands-sac" },
  ],
});
