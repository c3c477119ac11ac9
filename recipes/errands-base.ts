/**
 * The model that recipes/errands.ts starts from: half a million parameters, trained from random
 * weights on errands that are made up for the occasion. It answers in every role's form, reads the
 * desk's replies and follows a critique; of the errands it will meet it knows nothing, and its
 * policy brings anything but what it has just been told.
 *
 * In the errands it learns from, nine other things are taken by mistake: there what the desk says
 * cannot be guessed from what was brought, so that reading it is learned, and to the letter.
 * Without them it repeated the desk wrongly in one target of thirteen, and NLAC needed more steps
 * (docs/experiments.md).
 */
import { defineRecipe, errandsModel } from "nlac";

export default defineRecipe({
  name: "errands-base",
  description: "a model of half a million parameters learns the forms of all roles from nothing, in minutes",
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
