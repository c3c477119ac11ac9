/**
 * A baseline with NLAC's information on the errands of errands.ts: it imitates the actions that the
 * desk's replies name, read by a line of code. The same base model and number of episodes.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "errands-hindsight",
  description:
    "imitation of the actions that the desk names on eight errands, with half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "rft",
  config: {
    imitate: "hindsight",
    iterations: 26,
    episodesPerIteration: 16,
    updatesPerIteration: 24,
    batchSize: 32,
    learningRate: 2e-4,
    betas: [0.9, 0.98],
    maxPromptTokens: 256,
    maxActionTokens: 8,
  },
});
