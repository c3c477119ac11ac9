/**
 * Five methods on eight errands, from the same model and at the same number of environment steps. Make the model first:
 * `nlac train errands-base --run runs/errands-base`.
 */
import { defineComparison } from "nlac";

export default defineComparison({
  name: "errands",
  description:
    "NLAC, RFT, GRPO, PPO and SAC on eight errands: five seeds each, half a million parameters, on the CPU",
  environmentSteps: 3000,
  seeds: [0, 1, 2, 3, 4],
  // Enough for the steps, whatever an episode's length: 3000 of them are at least 500 episodes of six.
  set: { config: { iterations: 200 } },
  methods: [
    { name: "nlac", recipe: "errands" },
    { name: "rft", recipe: "errands-rft" },
    { name: "grpo", recipe: "errands-grpo" },
    { name: "ppo", recipe: "errands-ppo" },
    { name: "sac", recipe: "errands-sac" },
  ],
});
