/**
 * From the bytes of a request to what the model reads: parses, validates and tokenizes. Everything
 * here takes time in proportion to the request; reader.ts decides on which thread it runs.
 */

import { createHash } from "node:crypto";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { type Grammar, grammarText } from "../model/grammar.ts";
import { callGrammar } from "../prompts/call-grammar.ts";
import { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import { keptTextOf } from "../tokens/reasoning.ts";
import { type CallText, ChatTemplate } from "../tokens/template.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { compileMs, maxCompileMs } from "./grammar-queue.ts";
import { parseWithinLimits } from "./json-limits.ts";
import {
  type ChatRequest,
  type CompletionRequest,
  chatRequest,
  checkLength,
  completionRequest,
  formatOf,
  mayCall,
  mustCall,
  readRequest,
  type Said,
  saidIn,
  toolsIn,
} from "./protocol.ts";
import { badRequest } from "./request-error.ts";

export interface ReadLimits {
  /** Completions of one request. */
  maxTexts: number;
  /** The model's context, in tokens. */
  maxPositions: number;
}

export interface ReadChat {
  request: ChatRequest;
  /** Without the reasoning that the chat template drops. */
  messages: Said[];
  tools: ToolSchema[];
  /** Cache keys of the conversation after each message. */
  names: string[];
  grammar: Grammar | undefined;
}

export interface ReadCompletion {
  request: CompletionRequest;
  prompts: number[][];
}

/** Messages to render. */
export interface Rendering {
  messages: readonly Said[];
  tools: readonly ToolSchema[];
  /** The conversation that they continue; undefined: they start one. */
  after: ConversationJson | undefined;
  /** What `after` has rendered before. */
  remembered?: ReadonlyMap<string, readonly number[]>;
}

export interface Rendered {
  /** The conversation with the messages, or `after` with them. */
  conversation: ConversationJson;
  /** The template's ids around the next turn. */
  remembered: Map<string, readonly number[]>;
}

export class RequestReader {
  readonly #tokenizer: Tokenizer;
  readonly #limits: ReadLimits;
  /** Bytes of the longest text that the context could hold. */
  readonly #maxBytes: number;
  #template: ChatTemplate | undefined;

  constructor(tokenizer: Tokenizer, limits: ReadLimits) {
    this.#tokenizer = tokenizer;
    this.#limits = limits;
    let longest = 1;
    for (let id = 0; id < tokenizer.vocabSize; id++)
      longest = Math.max(longest, tokenizer.bytesOf(id).length);
    this.#maxBytes = longest * limits.maxPositions;
  }

  /** Throws ERR_TOKENIZER for a model without a chat template. */
  get template(): ChatTemplate {
    this.#template ??= ChatTemplate.of(this.#tokenizer);
    return this.#template;
  }

  /** Throws a RequestError of status 400, or an NlacError of the template or the tokenizer. */
  chat(body: Uint8Array): ReadChat {
    const { messages: asked, ...request } = readRequest(chatRequest, parseWithinLimits(body));
    this.#checkCount(request.n ?? 1);
    const messages = this.kept(saidIn(asked));
    let bytes = 0;
    for (const { content, calls = [] } of messages) {
      bytes += Buffer.byteLength(content);
      for (const call of calls) bytes += Buffer.byteLength(call.name) + Buffer.byteLength(call.arguments);
    }
    this.#checkBytes(bytes, "messages");
    const tools = toolsIn(request);
    if (tools.length > 0 && !this.template.readsTools)
      throw badRequest(
        "The model's chat template does not support tools, so the model would not see them. Serve a model whose " +
          "template does, or describe the tools in a message.",
        "tools",
      );
    return {
      ...{ request, messages, tools, names: namesOf(messages, tools) },
      grammar: this.#grammarOf(request, messages, tools),
    };
  }

  /** Throws a RequestError of status 400. */
  completion(body: Uint8Array): ReadCompletion {
    const { prompt, ...request } = readRequest(completionRequest, parseWithinLimits(body));
    this.#checkCount(prompt.length * (request.n ?? 1));
    for (const one of prompt) if (typeof one === "string") this.#checkBytes(Buffer.byteLength(one), "prompt");
    const prompts = prompt.map((one) => (typeof one === "string" ? this.#tokenizer.encode(one) : one));
    for (const { length } of prompts) checkLength(length, this.#limits.maxPositions, "prompt");
    return { request, prompts };
  }

  /** Throws NlacError ERR_TOKENIZER or ERR_CONFIG if the template refuses the messages. */
  render({ messages, tools, after, remembered = new Map() }: Rendering): Rendered {
    const conversation =
      after === undefined
        ? this.#start(messages, tools)
        : append(Conversation.fromJSON(after, this.#tokenizer, this.template).remember(remembered), messages);
    checkLength(conversation.length, this.#limits.maxPositions, "messages");
    // Renders the template's text around the answer, with which it will be appended.
    conversation.prompt();
    conversation.fork().appendGeneration({ tokens: [] });
    return { conversation: conversation.toJSON(), remembered: new Map(conversation.remembered) };
  }

  /**
   * The messages without reasoning that the chat template drops from the history: clients may or
   * may not send it back, and mean the same conversation.
   */
  kept(messages: readonly Said[]): Said[] {
    const { reasoning } = this.template;
    if (reasoning === undefined) return [...messages];
    return messages.map((said) =>
      said.role === "assistant" ? { ...said, content: keptTextOf(said.content, reasoning) } : said,
    );
  }

  #start(messages: readonly Said[], tools: readonly ToolSchema[]): Conversation {
    const first = messages.findIndex(({ role }) => role === "assistant");
    const opening = first < 0 ? messages : messages.slice(0, Math.max(1, first));
    const begin = (messages: readonly Message[]) =>
      Conversation.start(this.#tokenizer, this.template, messages, tools.length === 0 ? {} : { tools });
    const written = opening.map((said): Message => {
      const { role, content, calls } = said;
      if (calls === undefined) return { role, content };
      // The template formats a call in the same way in any conversation.
      const { text } = begin([{ role: "user", content: "" }]).writeCalls(callTexts(said));
      return { role, content: text };
    });
    return append(begin(written), messages.slice(opening.length));
  }

  /**
   * The constraint on the answer. Throws a RequestError of status 400 for one that cannot be
   * enforced.
   */
  #grammarOf(
    request: ChatRequest,
    messages: readonly Said[],
    tools: readonly ToolSchema[],
  ): Grammar | undefined {
    const called = mustCall(request);
    const format = formatOf(request);
    const held = (parameter: string, make: () => Grammar): Grammar => {
      try {
        const grammar = make();
        grammarText(grammar, parameter);
        if (compileMs(grammar) <= maxCompileMs) return grammar;
      } catch (error) {
        throw badRequest((error as Error).message, parameter);
      }
      throw badRequest(
        `${parameter}: it takes too long to compile: it has too many optional keys or too long texts with limits.`,
        parameter,
        "too_complex",
      );
    };
    const system = messages.some(({ role }) => role === "system");
    const call = (callable: readonly ToolSchema[]) =>
      held("tools", () => callGrammar(callable, this.template.callForm(this.#tokenizer, { system, tools })));
    if (called !== undefined) return call(called);
    if (format === undefined) return undefined;
    const answer = held("response_format", () => format);
    return mayCall(request) ? { anyOf: [call(tools), answer] } : answer;
  }

  #checkCount(texts: number): void {
    const { maxTexts } = this.#limits;
    if (texts <= maxTexts) return;
    throw badRequest(`${texts} completions were requested at once; ${maxTexts} are the most.`, "n");
  }

  #checkBytes(bytes: number, parameter: string): void {
    if (bytes <= this.#maxBytes) return;
    throw badRequest(
      `The prompt has ${bytes} bytes, more than the model's context of ${this.#limits.maxPositions} tokens holds.`,
      parameter,
      "context_length_exceeded",
    );
  }
}

/** Cache keys of the conversation after each message. */
export function namesOf(messages: readonly Said[], tools: readonly ToolSchema[]): string[] {
  let name = digest("", JSON.stringify(tools));
  return messages.map((message) => {
    name = nameAfter(name, message);
    return name;
  });
}

/** The cache key of conversation `name` with `said` appended. */
export function nameAfter(name: string, said: Said): string {
  return digest(name, sameness(said));
}

function append(conversation: Conversation, messages: readonly Said[]): Conversation {
  let others: Message[] = [];
  const flush = () => {
    if (others.length > 0) conversation.append(...others);
    others = [];
  };
  for (const said of messages) {
    const { role, content, calls } = said;
    if (calls === undefined) {
      others.push({ role, content });
      continue;
    }
    flush();
    conversation.appendCalls(callTexts(said));
  }
  flush();
  return conversation;
}

/** The calls of a message, with its content as their thought. */
function callTexts({ content, calls = [] }: Said): CallText[] {
  return calls.map((call) => ({ ...call, thought: content.trim() }));
}

/**
 * A message for comparison, as JSON: arguments are parsed, because clients may format them
 * differently.
 */
function sameness({ role, content, calls = [] }: Said): string {
  const compared = calls.flatMap(({ name, arguments: given }) => {
    try {
      return [name, parseWithinLimits(Buffer.from(given))];
    } catch {
      return [name, given];
    }
  });
  return JSON.stringify([role, content, ...compared]);
}

function digest(before: string, json: string): string {
  return createHash("sha256").update(before).update(json).digest("hex");
}
