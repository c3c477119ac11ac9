/**
 * An agent of Vercel's ai SDK, with streaming, that learns while it works; started as openai.ts.
 */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
import { type Answer, runErrands } from "./run-errands.ts";

export function aiSdkAgent(baseURL: string, model: string): Answer {
  const apiKey = process.env.NLAC_SERVE_TOKEN ?? "none";
  return async ([system, ...messages], episode) => {
    const provider = createOpenAICompatible({
      name: "nlac",
      baseURL,
      apiKey,
      headers: { "x-episode-id": episode },
    });
    const { text } = streamText({
      model: provider.chatModel(model),
      system: system!.content,
      messages,
      maxOutputTokens: 8,
      temperature: 1,
    });
    return text;
  };
}

if (import.meta.filename === process.argv[1]) await runErrands(aiSdkAgent);
