/** OpenAI's /v1/completions with token ids in and out, which vLLM, nlac serve and others have. */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { type Answer, logProbsOf, readAnswer, type Server } from "./engine.ts";
import { callServer } from "./http.ts";

const schema = z.object({
  model: z.string().nullish(),
  choices: z
    .array(
      z.object({
        finish_reason: z.string().nullish(),
        token_ids: z.array(z.int().min(0)).nullish(),
        prompt_token_ids: z.array(z.int()).nullish(),
        logprobs: z.object({ token_logprobs: z.array(z.number().nullable()) }).nullish(),
        weight_versions: z.array(z.object({ version: z.string() })).nullish(),
      }),
    )
    .length(1),
  usage: z
    .object({ prompt_tokens_details: z.object({ cached_tokens: z.int().nullish() }).nullish() })
    .nullish(),
});

export interface CompletionAnswer extends Answer {
  /** The model that the server says it used. */
  model: string | undefined;
}

/**
 * The completion of a prompt of token ids.
 *
 * @param fields of the request besides `prompt` and those that ask for ids and log probabilities
 * @throws NlacError ERR_ROLLOUTS if the answer has no token ids, or not those of the prompt;
 *   HttpFault
 */
export async function complete(
  { url, about }: Server,
  prompt: readonly number[],
  fields: object,
  signal: AbortSignal | undefined,
): Promise<CompletionAnswer> {
  const path = "/v1/completions";
  const body = { ...fields, prompt, logprobs: 0, return_token_ids: true };
  const answer = readAnswer(schema, await callServer(url, path, body, signal), url + path);
  const { finish_reason, token_ids, prompt_token_ids, logprobs, weight_versions } = answer.choices[0]!;
  const aborted = finish_reason === "abort";
  const fault = (why: string) => new NlacError("ERR_ROLLOUTS", `${url}${path} (${about}) ${why}.`);
  if (token_ids == null && !aborted)
    throw fault("returns no token_ids: it does not know return_token_ids, and text is never tokenized again");
  if (prompt_token_ids != null && !sameIds(prompt_token_ids, prompt))
    throw fault("did not read the prompt as it was sent");
  const tokens = token_ids ?? [];
  const scores = logprobs?.token_logprobs ?? tokens.map(() => null);
  if (scores.length !== tokens.length)
    throw fault(`returns ${scores.length} log probabilities for ${tokens.length} tokens`);
  const labels = new Set(weight_versions?.map(({ version }) => version));
  return {
    tokens,
    logProbs: logProbsOf(scores),
    cachedTokens: answer.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    aborted,
    label: labels.size === 0 ? undefined : [...labels].join(", "),
    model: answer.model ?? undefined,
  };
}

function sameIds(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((id, i) => id === b[i]);
}
