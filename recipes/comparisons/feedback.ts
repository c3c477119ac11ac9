/**
 * When does language feedback help? Errands whose desk explains a refusal always, half of the time,
 * or never, in five worlds. The methods that learn from the reward alone get more environment
 * steps, so that they find enough successes: 12,000 for RFT, 50,000 for GRPO and PPO.
 *
 * A silent desk is tried with two lengths of errands. With four things the base model succeeds in 1
 * of 100 episodes, with two in 5, so that there is a reward to learn from.
 */
import { defineComparison } from "nlac/compare";
import { cost } from "./_notes.ts";

const regimes = [
  { group: "explained", options: { explained: 1 } },
  { group: "half", options: { explained: 0.5 } },
  { group: "silent", options: { explained: 0 } },
  { group: "silent-two", options: { explained: 0, chain: 2 } },
];

/** `every`: iterations between evaluations, so that each curve has about ten points. */
const methods = [
  { method: "nlac", recipe: "errands", environmentSteps: 4000, every: 4 },
  { method: "rft", recipe: "errands-rft", environmentSteps: 12_000, every: 8 },
  { method: "grpo", recipe: "errands-grpo", environmentSteps: 50_000, every: 32 },
  { method: "ppo", recipe: "errands-ppo", environmentSteps: 50_000, every: 32 },
];

export default defineComparison({
  name: "feedback",
  description: "NLAC, RFT, GRPO and PPO if the desk explains always, half of the time or never: five worlds",
  notes: [
    "The desk explains a refusal always (explained), half of the time (half) or never (silent). Errands take four things, those of silent-two two.",
    "Every seed has its own world (hidden orders); all runs share one base model, which does not know them.",
    "Beyond the reward, NLAC's targets read the desk's replies, and every update rehearses 8 labelled samples of synthetic errands; the others learn from the reward alone.",
    cost,
  ],
  environmentSteps: 4000,
  seeds: [1, 2, 3, 4, 5],
  seedFields: ["environment.options.seed"],
  paired: true,
  set: {
    config: { iterations: 4000, evaluation: { episodes: 128, temperature: 1 } },
  },
  methods: regimes.flatMap(({ group, options }) =>
    methods.map(({ method, recipe, environmentSteps, every }) => ({
      name: `${method}-${group}`,
      group,
      recipe,
      environmentSteps,
      set: { environment: { options }, config: { evaluation: { every } } },
    })),
  ),
});
