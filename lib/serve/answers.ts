/** Answers in the shapes that clients of OpenAI's endpoints read. */

import { randomUUID } from "node:crypto";
import type { Generation } from "../model.ts";
import { argumentsText, parseCallTurn } from "../prompts/calls.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import type { ServedModel } from "./conversations.ts";
import type { ChatRequest, CompletionRequest, Said } from "./protocol.ts";

/** What the model said, as the client will repeat it. */
export function answerOf({ text }: Generation, calls: boolean): Said {
  const parsed = calls ? parseCallTurn(withoutThought(text)) : undefined;
  if (!parsed?.ok || parsed.action.tool === undefined) return { role: "assistant", content: text };
  const { thought = "", tool } = parsed.action;
  return {
    role: "assistant",
    content: thought,
    call: { name: tool.name, arguments: argumentsText(parsed.action) },
  };
}

/** One text of a chat's answer. */
export function chatChoice(
  model: ServedModel,
  request: ChatRequest,
  index: number,
  said: Said,
  generation: Generation,
) {
  return {
    index,
    message: { role: "assistant", ...message(said), refusal: null },
    logprobs: request.logprobs ? { content: tokenLogProbs(model, generation), refusal: null } : null,
    finish_reason: said.call === undefined ? finishReason(generation) : "tool_calls",
    ...(request.return_token_ids ? { token_ids: generation.tokens } : {}),
  };
}

/** One text of a completion, or a piece of one that is being written. */
export function completionChoice(
  model: ServedModel,
  request: CompletionRequest,
  index: number,
  text: string,
  generation?: Generation,
) {
  return {
    index,
    text,
    logprobs:
      generation && request.logprobs != null
        ? {
            tokens: generation.tokens.map((id) => model.decode([id])),
            token_logprobs: Array.from(generation.logProbs),
            top_logprobs: null,
            text_offset: [],
          }
        : null,
    finish_reason: generation ? finishReason(generation) : null,
    ...(generation && request.return_token_ids ? { token_ids: generation.tokens } : {}),
  };
}

/** Clients know no "stuck": the text is as cut off as one at its limit. */
function finishReason({ finishReason }: Generation): "stop" | "length" {
  return finishReason === "stop" ? "stop" : "length";
}

function message({ content, call }: Said) {
  if (call === undefined) return { content };
  const id = `call_${randomUUID()}`;
  return { content: content === "" ? null : content, tool_calls: [{ id, type: "function", function: call }] };
}

function tokenLogProbs({ tokenizer }: ServedModel, { tokens, logProbs }: Generation) {
  return tokens.map((id, i) => {
    const bytes = [...tokenizer!.bytesOf(id)];
    return { token: tokenizer!.decode([id]), logprob: logProbs[i]!, bytes, top_logprobs: [] };
  });
}

export function usage(prompt_tokens: number, generations: readonly Generation[]) {
  const completion_tokens = generations.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const cached_tokens = generations.reduce((sum, generation) => sum + generation.cachedTokens, 0);
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    prompt_tokens_details: { cached_tokens },
  };
}
