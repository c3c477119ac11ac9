/**
 * Settings of the other methods of errands.ts, tried on seeds that errands.ts does not use. Each
 * method's first row is its recipe; every other row changes one setting, or goes back to an earlier
 * recipe (ppo-more-steps, archer-shared).
 */
import { defineComparison } from "nlac/compare";
import { oneWorld } from "./_notes.ts";

export default defineComparison({
  name: "errands-tuning",
  description: "settings of the methods beside NLAC on eight errands: three seeds each, on the CPU",
  notes: [oneWorld],
  environmentSteps: 2500,
  seeds: [10, 11, 12],
  set: { config: { iterations: 200, evaluation: { every: 4, episodes: 128, temperature: 1 } } },
  methods: [
    { name: "grpo", recipe: "errands-grpo" },
    { name: "grpo-slower", recipe: "errands-grpo", set: { config: { learningRate: 5e-5 } } },
    { name: "grpo-faster", recipe: "errands-grpo", set: { config: { learningRate: 5e-4 } } },
    { name: "grpo-one-epoch", recipe: "errands-grpo", set: { config: { epochs: 1 } } },
    { name: "grpo-kl", recipe: "errands-grpo", set: { config: { klCoefficient: 0.04 } } },
    { name: "grpo-groups-of-8", recipe: "errands-grpo", set: { config: { groupSize: 8 } } },
    { name: "ppo", recipe: "errands-ppo" },
    { name: "ppo-slower", recipe: "errands-ppo", set: { config: { learningRate: 5e-5 } } },
    { name: "ppo-more-steps", recipe: "errands-ppo", set: { config: { epochs: 4, batchSize: 8 } } },
    { name: "ppo-kl", recipe: "errands-ppo", set: { config: { klCoefficient: 0.05 } } },
    { name: "ppo-entropy", recipe: "errands-ppo", set: { config: { entropyCoefficient: 0.01 } } },
    { name: "rft", recipe: "errands-rft" },
    { name: "rft-slower", recipe: "errands-rft", set: { config: { learningRate: 5e-5 } } },
    { name: "rft-faster", recipe: "errands-rft", set: { config: { learningRate: 5e-4 } } },
    { name: "rft-fewer-updates", recipe: "errands-rft", set: { config: { updatesPerIteration: 8 } } },
    { name: "rft-balanced", recipe: "errands-rft", set: { config: { balance: "tasks" } } },
    { name: "sac", recipe: "errands-sac" },
    { name: "sac-slower", recipe: "errands-sac", set: { config: { learningRate: 5e-5 } } },
    { name: "sac-colder", recipe: "errands-sac", set: { config: { temperature: 0.005 } } },
    { name: "sac-warmer", recipe: "errands-sac", set: { config: { temperature: 0.1 } } },
    { name: "turn-half", recipe: "errands-grpo", set: { config: { credit: "turn", discount: 0.5 } } },
    { name: "turn-nine-tenths", recipe: "errands-grpo", set: { config: { credit: "turn", discount: 0.9 } } },
    { name: "turn-undiscounted", recipe: "errands-grpo", set: { config: { credit: "turn", discount: 1 } } },
    { name: "critique", recipe: "errands-critique-grpo" },
    { name: "critique-slower", recipe: "errands-critique-grpo", set: { config: { learningRate: 5e-5 } } },
    { name: "critique-faster", recipe: "errands-critique-grpo", set: { config: { learningRate: 5e-4 } } },
    { name: "critique-one-epoch", recipe: "errands-critique-grpo", set: { config: { epochs: 1 } } },
    {
      name: "critique-all-refined",
      recipe: "errands-critique-grpo",
      set: { config: { refinedPerGroup: 4 } },
    },
    { name: "archer", recipe: "errands-archer" },
    { name: "archer-faster", recipe: "errands-archer", set: { config: { policyLearningRate: 2e-4 } } },
    { name: "archer-more", recipe: "errands-archer", set: { config: { policyUpdatesPerIteration: 16 } } },
    { name: "archer-cautious", recipe: "errands-archer", set: { config: { criticLearningRate: 3e-4 } } },
    {
      name: "archer-shared",
      recipe: "errands-archer",
      set: { config: { sharedCritic: true, criticLearningRate: 3e-5 } },
    },
    { name: "archer-baseline", recipe: "errands-archer", set: { config: { baselineCoefficient: 0.1 } } },
    { name: "monte-carlo", recipe: "errands-monte-carlo" },
    {
      name: "monte-carlo-slower",
      recipe: "errands-monte-carlo",
      set: { config: { criticLearningRate: 1e-4, policyLearningRate: 1e-4 } },
    },
    {
      name: "monte-carlo-fewer-updates",
      recipe: "errands-monte-carlo",
      set: { config: { updatesPerIteration: 16 } },
    },
    { name: "monte-carlo-rehearsal", recipe: "errands-monte-carlo", set: { config: { rehearsal: 16 } } },
  ],
});
