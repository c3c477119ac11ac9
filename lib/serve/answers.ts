/** Responses in the format of OpenAI's API. */

import { isUtf8 } from "node:buffer";
import { randomUUID } from "node:crypto";
import type { ToolSchema } from "../contract/environment.ts";
import type { Generation } from "../model/language-model.ts";
import { argumentsText, parseCalls } from "../prompts/calls.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { type ActionFormat, parseAction } from "../prompts/policy.ts";
import type { ServedModel } from "./conversation-cache.ts";
import { lazy } from "./json-response.ts";
import type { ChatRequest, CompletionRequest, Said } from "./protocol.ts";

/**
 * The model's message, as the client will repeat it in the next request.
 * @param tools the functions that it may call; undefined: its text is not parsed
 */
export function replyOf({ text }: Pick<Generation, "text">, tools: readonly ToolSchema[] | undefined): Said {
  const parsed = tools === undefined ? undefined : parseCalls(withoutThought(text), tools);
  if (!parsed?.ok || parsed.calls.length === 0) return { role: "assistant", content: text };
  // Clients tell the calls of a turn apart by their ids.
  const isUnique = new Set(parsed.calls.map(({ id }) => id)).size === parsed.calls.length;
  const calls = parsed.calls.map(({ id, ...call }) => ({
    ...{ name: call.tool.name, arguments: argumentsText(call) },
    ...(id !== undefined && isUnique ? { id } : {}),
  }));
  return { role: "assistant", content: parsed.thought, calls };
}

/**
 * The action of a recorded turn. Several calls are one action: the turn's text.
 * @param tools as in `replyOf`
 * @param format default: calls if there are tools, else the whole text
 */
export function actionOf(
  { text }: Pick<Generation, "text">,
  tools: readonly ToolSchema[] | undefined,
  format: ActionFormat = tools === undefined ? "solution" : "call",
): ReturnType<typeof parseAction> {
  const said = withoutThought(text);
  const several = replyOf({ text }, format === "call" ? tools : undefined).calls?.[1] !== undefined;
  return parseAction(said, several ? "solution" : format, tools);
}

/** One choice of a chat response. */
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
    finish_reason: said.calls === undefined ? finishReason(generation) : "tool_calls",
    ...(request.return_token_ids ? { token_ids: generation.tokens } : {}),
  };
}

/** One choice of a completion response, or a streamed piece of one. */
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
            tokens: lazy(generation.tokens, (id) => nameOf(model, id)),
            token_logprobs: lazy(generation.tokens, (_, i) => generation.logProbs[i]!),
            top_logprobs: request.logprobs > 0 ? likeliest(model, generation) : null,
            text_offset: [],
          }
        : null,
    finish_reason: generation ? finishReason(generation) : null,
    ...(generation && request.return_token_ids ? { token_ids: generation.tokens } : {}),
  };
}

/** OpenAI's API has no "stuck": it is reported as "length", because the text is cut off. */
function finishReason({ finishReason }: Generation): "stop" | "length" {
  return finishReason === "stop" ? "stop" : "length";
}

function message({ content, calls }: Said) {
  if (calls === undefined) return { content };
  const tool_calls = calls.map(({ id = `call_${randomUUID()}`, ...call }) => ({
    ...{ id, type: "function", function: call },
  }));
  return { content: content === "" ? null : content, tool_calls };
}

function tokenLogProbs({ tokenizer }: ServedModel, generation: Generation) {
  const { tokens, logProbs } = generation;
  const told = ([id, logprob]: TokenLogProb) => {
    const bytes = [...tokenizer!.bytesOf(id)];
    return { token: tokenizer!.decode([id], { continues: true }), logprob, bytes };
  };
  return lazy(tokens, (id, i) => ({
    ...told([id, logProbs[i]!]),
    top_logprobs: topAt(generation, i).map(told),
  }));
}

/** For each token: the most probable tokens and the generated one, by name. */
function likeliest(model: ServedModel, generation: Generation): Iterable<Record<string, number>> {
  return lazy(generation.tokens, (token, i) => {
    const all: TokenLogProb[] = [...topAt(generation, i), [token, generation.logProbs[i]!]];
    return Object.fromEntries(all.map(([id, logProb]) => [nameOf(model, id), logProb]));
  });
}

type TokenLogProb = [id: number, logProb: number];

/** The most probable alternatives at position `i`. */
function topAt({ tokens, topTokens, topLogProbs }: Generation, i: number): TokenLogProb[] {
  if (topTokens === undefined) return [];
  const most = topTokens.length / tokens.length;
  return Array.from({ length: most }, (_, k) => [topTokens[i * most + k]!, topLogProbs![i * most + k]!]);
}

/** The name of a token: its text, or its bytes if it is part of a character. */
function nameOf({ tokenizer }: ServedModel, id: number): string {
  const bytes = tokenizer!.bytesOf(id);
  if (isUtf8(bytes)) return tokenizer!.decode([id], { continues: true });
  return `bytes:${Array.from(bytes, (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("")}`;
}

/** @param generations the same number for every prompt, in the order of the prompts */
export function usage(prompts: readonly { length: number }[], generations: readonly Generation[]) {
  const prompt_tokens = prompts.reduce((sum, { length }) => sum + length, 0);
  const completion_tokens = generations.reduce((sum, { tokens }) => sum + tokens.length, 0);
  const n = generations.length / prompts.length;
  // A prompt counts once, and so does what was cached of it before its first completion.
  const cached_tokens = prompts.reduce((sum, _, i) => {
    const cached = generations.slice(i * n, (i + 1) * n).map(({ cachedTokens }) => cachedTokens);
    return sum + Math.min(...cached);
  }, 0);
  return {
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
    prompt_tokens_details: { cached_tokens },
  };
}
