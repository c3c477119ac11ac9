/**
 * Plays episodes with a chat service. Players work on conversations of ids, services on messages.
 * So here an id is a byte or one of a few control tokens, from which the original messages are
 * recovered exactly.
 */

import { NlacError } from "../base/errors.ts";
import type { Message } from "../contract/environment.ts";
import type { GenerateRequest, Generation } from "../model/language-model.ts";
import type { ChatService } from "../services/chat-service.ts";
import { bytePairModel, byteVocabulary } from "../tokens/bpe.ts";
import { Conversation } from "../tokens/conversation.ts";
import { ChatTemplate } from "../tokens/template.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";
import type { Player } from "./batches.ts";

const roles = ["system", "user", "assistant", "tool"] as const;
/**
 * Ids of the control tokens: one per role that opens its message, and one that ends any message.
 */
const firstRole = 256;
const endOfMessage = firstRole + roles.length;

/**
 * Tools are described in the first message, so that every model reads the same prompt whatever its
 * service supports.
 */
const template =
  "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}" +
  "{% for call in message.tool_calls or [] %}\n<tool_call>" +
  '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}' +
  "{% if loop.first and tools %}\n\nFunctions you can call, with JSON Schemas of their arguments:\n" +
  "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}" +
  'A call is written <tool_call>{"name": …, "arguments": {…}}</tool_call>.\n{% endif %}<|end|>{% endfor %}' +
  "{% if add_generation_prompt %}<|assistant|>{% endif %}";

/**
 * Returns `service` as a player. Its ids are bytes, so a prompt limit in tokens is one in bytes.
 * Its context length is unknown and treated as unlimited. Log probabilities are NaN.
 */
export function servicePlayer(service: ChatService): Player {
  const tokenizer = new Tokenizer({
    json: tokenizerJson() as never,
    config: { eos_token: "<|end|>" },
    chatTemplate: template,
  });
  const chat = ChatTemplate.of(tokenizer);

  const reply = async (request: GenerateRequest, signal?: AbortSignal): Promise<Generation> => {
    let cut = false;
    const text = await service.complete(messagesOf(request.tokens!, tokenizer), {
      ...(request.maxNewTokens === undefined ? {} : { maxTokens: request.maxNewTokens }),
      ...(request.temperature === undefined ? {} : { temperature: request.temperature }),
      ...(request.seed === undefined ? {} : { seed: Number(request.seed) }),
      ...(signal === undefined ? {} : { signal }),
      onCut: () => {
        cut = true;
      },
    });
    const tokens = [...tokenizer.encode(text), ...(cut ? [] : [endOfMessage])];
    const logProbs = new Float32Array(tokens.length).fill(Number.NaN);
    return { tokens, logProbs, text, finishReason: cut ? "length" : "stop", cachedTokens: 0 };
  };

  return {
    maxPositions: Number.MAX_SAFE_INTEGER,
    unbatched: true,
    conversation: (messages, options) => Conversation.start(tokenizer, chat, messages, options),
    generate: (requests, { signal } = {}) =>
      Promise.all(
        requests.map((request) =>
          reply(request, signal).catch((error: unknown) => {
            if (error instanceof NlacError && error.code === "ERR_SERVICE") return error;
            throw error;
          }),
        ),
      ),
  };
}

/** The messages that a prompt was made of, without the generation prompt. */
function messagesOf(ids: readonly number[], tokenizer: Tokenizer): Message[] {
  const messages: Message[] = [];
  for (let start = 0; start < ids.length; ) {
    const role = roles[ids[start]! - firstRole]!;
    const end = ids.indexOf(endOfMessage, start);
    if (end < 0) break;
    messages.push({ role, content: tokenizer.decode(ids.slice(start + 1, end)) });
    start = end + 1;
  }
  return messages;
}

function tokenizerJson(): object {
  const control = [...roles.map((role) => `<|${role}|>`), "<|end|>"];
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: control.map((content, i) => ({
      id: firstRole + i,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: false },
    model: bytePairModel({ vocab: byteVocabulary(), merges: [], ignore_merges: false }),
  };
}
