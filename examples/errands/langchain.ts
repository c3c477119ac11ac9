/** An agent of LangChain.js that learns while it works; started as openai.ts. */

import { ChatOpenAI } from "@langchain/openai";
import { type Answer, runErrands } from "./run-errands.ts";

export function langchainAgent(baseURL: string, model: string): Answer {
  const apiKey = process.env.NLAC_SERVE_TOKEN ?? "none";
  const chat = new ChatOpenAI({ model, apiKey, maxTokens: 8, temperature: 1, configuration: { baseURL } });
  return async (messages, episode) => {
    const turns = messages.map(({ role, content }): [string, string] => [role, content]);
    const { text } = await chat.invoke(turns, { options: { headers: { "x-episode-id": episode } } });
    return text;
  };
}

if (import.meta.filename === process.argv[1]) await runErrands(langchainAgent);
