/**
 * An agent of the OpenAI Agents SDK that learns while it works; started as openai.ts. The SDK's
 * traces would go to OpenAI: they are off.
 */

import {
  Agent,
  type AgentInputItem,
  assistant,
  OpenAIChatCompletionsModel,
  run,
  setTracingDisabled,
  user,
} from "@openai/agents";
import OpenAI from "openai";
import { type Answer, runErrands } from "./run-errands.ts";

export function openaiAgentsAgent(baseURL: string, model: string): Answer {
  setTracingDisabled(true);
  return async ([system, ...messages], episode) => {
    const client = new OpenAI({
      baseURL,
      apiKey: process.env.NLAC_SERVE_TOKEN ?? "none",
      defaultHeaders: { "x-episode-id": episode },
    });
    const agent = new Agent({
      name: "errands",
      instructions: system!.content,
      model: new OpenAIChatCompletionsModel(client, model),
      modelSettings: { maxTokens: 8, temperature: 1 },
    });
    const items = messages.map(
      ({ role, content }): AgentInputItem => (role === "assistant" ? assistant(content) : user(content)),
    );
    const { finalOutput } = await run(agent, items);
    return finalOutput ?? "";
  };
}

if (import.meta.filename === process.argv[1]) await runErrands(openaiAgentsAgent);
