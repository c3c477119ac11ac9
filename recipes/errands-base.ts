/**
 * The model that recipes/errands.ts starts from: half a million parameters, trained from random
 * weights on synthetic errands. It knows the output format of every role, reads the desk's replies
 * and follows critiques. It knows nothing of the environment's own errands: its policy brings the
 * item that the desk has just named, most of the time, and otherwise any item.
 *
 * The synthetic errands have nine dead ends: the desk's reply then cannot be guessed from the item
 * brought, so the model must learn to read it exactly. Without dead ends it repeated the desk's
 * reply wrongly in one target of thirteen, and NLAC needed more steps (docs/experiments.md).
 */
import { defineRecipe } from "nlac";
import { errandsModel } from "nlac/environments";

export default defineRecipe({
  name: "errands-base",
  description:
    "a model of half a million parameters learns the output formats of all roles from random weights, in minutes",
  model: errandsModel(),
  learner: { dtype: "float32" },
  environment: { name: "errands", options: { deadEnds: 9 } },
  warmup: {
    steps: 700,
    batchSize: 96,
    learningRate: 2e-3,
    rampSteps: 30,
    betas: [0.9, 0.98],
    episodes: 2400,
    observedTargets: true,
  },
  config: { iterations: 0 },
  run: { keepCheckpoints: 1 },
});
