/** Short trainings of NLAC on the errand environment with a scripted model. */

import { type NlacConfigInput, trainNlac } from "../../lib/algorithms/nlac.ts";
import type { DistilledText } from "../../lib/model/language-model.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment } from "./errand.ts";
import type { ScriptedModel } from "./scripted-model.ts";

export const small: NlacConfigInput = {
  iterations: 1,
  episodesPerIteration: 1,
  updatesPerIteration: 1,
  batchSize: 8,
  maxActionTokens: 100,
  maxCriticTokens: 100,
  maxPromptTokens: 50_000,
};

export async function train(
  model: ScriptedModel,
  config: NlacConfigInput = {},
  environment = errandEnvironment(),
) {
  const run = memoryRun();
  const result = await trainNlac({ model, environment, config: { ...small, ...config }, run });
  return { run, result, events: model.events };
}

export const kls = (model: ScriptedModel): DistilledText[] =>
  model.events.flatMap((event) => (event.kind === "kl" ? event.texts : []));
