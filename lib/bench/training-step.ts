/** The measured work of a training step, on random texts. */

import type { Learner } from "../learner/learner.ts";
import { prompts } from "./prompts.ts";
import type { Subject } from "./suite.ts";

export type TrainingParameters = {
  texts: number;
  /** Tokens per text; all but the first have a loss. */
  tokens: number;
  learningRate: number;
};

/** Its figure is the mean loss. */
export function trainingStep(learner: Learner, { texts, tokens, learningRate }: TrainingParameters): Subject {
  const all = prompts({ groups: texts, texts: 1, shared: 0, own: tokens });
  const scored = all.map((ids) => ({ prompt: ids.slice(0, 1), response: ids.slice(1), weight: 1 / texts }));
  let loss = 0;
  return {
    async call() {
      const losses = await learner.tokenNll(scored);
      loss = losses.reduce((all, own) => own.reduce((sum, x) => sum + x, all), 0) / (texts * (tokens - 1));
      await learner.step({ learningRate });
    },
    check: () => loss,
  };
}
