/**
 * Any server with OpenAI's completions that takes and returns token ids. OpenAI's API has no call
 * that changes weights, so such a server plays as a fixed policy.
 */

import { NlacError } from "../base/errors.ts";
import { complete } from "./completions.ts";
import { type Engine, firstModel } from "./engine.ts";

const takesNone = new NlacError("ERR_ROLLOUTS", "OpenAI's API has no call that changes a server's weights.");

export const openai: Engine = {
  readFrom: "nlac serve",
  scoredAt: () => 1,

  async open(url) {
    const { id, maxPositions } = await firstModel(url);
    return { url, model: id, maxPositions, about: `the model ${id}`, labels: false };
  },

  install: () => Promise.reject(takesNone),
  release: () => Promise.reject(takesNone),

  // Fields without an effect are left out, because servers refuse those that they do not know.
  async generate(server, request, _weights, signal) {
    const fields = {
      model: server.model,
      max_tokens: request.maxNewTokens,
      temperature: request.temperature,
      top_p: request.topP,
      ...(request.topK === 0 ? {} : { top_k: request.topK }),
      ...(request.minP === 0 ? {} : { min_p: request.minP }),
      ...(request.repetitionPenalty === 1 ? {} : { repetition_penalty: request.repetitionPenalty }),
      ...(request.seed === undefined ? {} : { seed: request.seed }),
    };
    const { model: _model, ...answer } = await complete(server, request.tokens, fields, signal);
    return answer;
  },
};
