/**
 * An agent of the openai package that learns while it works.
 *
 *   npx tsx examples/errands/world.ts 8100
 *   nlac serve errands-base --train errands --run runs/live
 *   npx tsx examples/errands/openai.ts http://127.0.0.1:8000/v1 http://127.0.0.1:8100 errands-base 400
 */

import OpenAI from "openai";
import { type Answer, runErrands } from "./run-errands.ts";

export function openaiAgent(baseURL: string, model: string): Answer {
  const client = new OpenAI({ baseURL, apiKey: process.env.NLAC_SERVE_TOKEN ?? "none" });
  return async (messages, episode) => {
    const { choices } = await client.chat.completions.create(
      { model, messages, max_tokens: 8, temperature: 1 },
      { headers: { "x-episode-id": episode } },
    );
    return choices[0]!.message.content ?? "";
  };
}

if (import.meta.filename === process.argv[1]) await runErrands(openaiAgent);
