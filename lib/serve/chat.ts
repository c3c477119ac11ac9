/** POST /v1/chat/completions: finds or opens the conversation, generates, and records the turn. */

import type { Context } from "hono";
import type { ToolSchema } from "../contract/environment.ts";
import { type Grammar, grammarText } from "../model/grammar.ts";
import type { GenerateRequest, Generation } from "../model/language-model.ts";
import { type CallForm, callGrammar } from "../prompts/calls.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { chatChoice, replyOf, usage } from "./answers.ts";
import { Conversations, nameAfter, namesOf } from "./conversation-cache.ts";
import type { Episodes, Place } from "./episodes.ts";
import {
  badRequest,
  type ChatRequest,
  formatOf,
  mayCall,
  mustCall,
  type Said,
  saidIn,
  toolsIn,
} from "./protocol.ts";
import type { RequestQueue } from "./queue.ts";
import { type OnToken, streamTexts } from "./text-stream.ts";

const episodeHeader = "x-episode-id";

/** A request that has been checked and can be generated. */
interface OpenedChat {
  request: ChatRequest;
  /** Without the reasoning that the chat template drops. */
  messages: Said[];
  /** The conversation's name before the answer. */
  asked: string;
  conversation: Conversation;
  prompt: number[];
  /** The episode that the turn belongs to, if episodes are recorded. */
  place: Place | undefined;
  requests: GenerateRequest[];
}

interface Answer {
  said: Said;
  generation: Generation;
}

export class Chats {
  readonly #queue: RequestQueue;
  readonly #conversations: Conversations;
  readonly #episodes: Episodes | undefined;

  constructor(queue: RequestQueue, maxHeldTokens: number, episodes: Episodes | undefined) {
    this.#queue = queue;
    this.#conversations = new Conversations(queue.learner, maxHeldTokens);
    this.#episodes = episodes;
  }

  async answer(c: Context, request: ChatRequest): Promise<Response> {
    const chat = this.#open(c, request);
    const { place, prompt, requests } = chat;
    const { learner } = this.#queue;
    const write = (onToken?: OnToken) => {
      const answers = this.#queue
        .generate(c, requests, onToken)
        .then((generations) => generations.map((generation) => this.#finish(chat, generation)));
      return place === undefined ? answers : this.#episodes!.during(place, answers);
    };
    const head = this.#queue.head("chatcmpl", "chat.completion");
    if (request.stream) return this.#stream(c, chat, head, write);
    const answers = await write();
    const choices = answers.map(({ said, generation }, i) =>
      chatChoice(learner, request, i, said, generation),
    );
    const ids = request.return_token_ids ? { prompt_token_ids: prompt } : {};
    return c.json({ ...head, choices, usage: usageOf(chat, answers), ...ids });
  }

  /** Throws a RequestError, also for a conversation that its chat template or the context cannot hold. */
  #open(c: Context, request: ChatRequest): OpenedChat {
    this.#queue.checkModel(request.model);
    const messages = this.#conversations.kept(saidIn(request.messages));
    const tools = toolsIn(request);
    if (tools.length > 0 && !this.#conversations.readsTools)
      throw badRequest("The model's chat template knows no tools, so the model would not see them.", "tools");
    const names = namesOf(messages, tools);
    const asked = names.at(-1)!;
    const place = this.#episodes?.place(c.req.header(episodeHeader) || undefined, names);
    if (place !== undefined) {
      c.header(episodeHeader, place.name);
      if ((request.n ?? 1) > 1)
        throw badRequest("An episode goes on with one answer: n must be 1 where it is recorded.", "n");
    }
    const conversation = this.#conversations.open(messages, tools, names, place?.held);
    const prompt = conversation.prompt();
    this.#queue.checkLength(prompt, "messages");
    const grammar = grammarOf(request, conversation);
    const longest = request.max_completion_tokens ?? request.max_tokens;
    const requests = this.#queue
      .requests(request, prompt, longest, request.top_logprobs)
      .map((asked) => (grammar === undefined ? asked : { ...asked, grammar }));
    return { request, messages, asked, conversation, prompt, place, requests };
  }

  /** Reads a complete answer, keeps the conversation for the client's next request, and records the turn. */
  #finish(chat: OpenedChat, generation: Generation): Answer {
    const { request, messages, asked, place } = chat;
    const calls = mayCall(request);
    const read = replyOf(generation, calls);
    // A value in the response format may look like a call.
    const isValue =
      formatOf(request) !== undefined && !toolsIn(request).some(({ name }) => name === read.call?.name);
    const said = isValue ? replyOf(generation, false) : read;
    const [kept] = this.#conversations.kept([said]);
    const key = nameAfter(asked, kept!);
    const conversation = chat.conversation.fork().appendGeneration(generation);
    this.#conversations.keep(key, conversation);
    const state = chat.conversation.length;
    if (place !== undefined)
      this.#episodes!.add(place, {
        ...{ messages, asked, state, generation, conversation, key },
        calls: calls && !isValue,
      });
    return { said, generation };
  }

  /** A call is recognized only when it is complete: if calls are possible, the text is sent in one piece. */
  #stream(
    c: Context,
    chat: OpenedChat,
    head: ReturnType<RequestQueue["head"]>,
    write: (onToken?: OnToken) => Promise<Answer[]>,
  ): Promise<Response> {
    const { request, requests } = chat;
    const { learner } = this.#queue;
    const part = (index: number, delta: object, finish_reason: string | null = null, more: object = {}) => ({
      ...head,
      object: "chat.completion.chunk",
      choices: [{ index, delta, logprobs: null, finish_reason, ...more }],
      ...(request.stream_options?.include_usage ? { usage: null } : {}),
    });
    return streamTexts(c, learner.tokenizer!, request, requests.length, write, {
      begin: () => requests.map((_, i) => part(i, { role: "assistant", content: "" })),
      ...(mayCall(request) ? {} : { piece: (i: number, text: string) => part(i, { content: text }) }),
      end: (answers, sent) =>
        answers.flatMap(({ said, generation }, i) => {
          const choice = chatChoice(learner, request, i, said, generation);
          const { message: whole, finish_reason, logprobs, token_ids } = choice;
          const rest =
            said.call === undefined
              ? { content: said.content.slice(sent[i]!.length) }
              : { ...whole, tool_calls: whole.tool_calls!.map((call, index) => ({ index, ...call })) };
          return [
            ...(said.call !== undefined || rest.content !== "" ? [part(i, rest)] : []),
            part(i, {}, finish_reason, { logprobs, ...(token_ids ? { token_ids } : {}) }),
          ];
        }),
      usage: (answers) => ({
        ...head,
        object: "chat.completion.chunk",
        choices: [],
        usage: usageOf(chat, answers),
      }),
    });
  }
}

function usageOf({ prompt }: OpenedChat, answers: readonly Answer[]) {
  return usage(
    prompt.length,
    answers.map(({ generation }) => generation),
  );
}

/** The constraint on the answer. Throws a RequestError of status 400 for one that cannot be enforced. */
function grammarOf(request: ChatRequest, conversation: Conversation): Grammar | undefined {
  const called = mustCall(request);
  const format = formatOf(request);
  const held = (parameter: string, make: () => Grammar): Grammar => {
    try {
      const grammar = make();
      grammarText(grammar, parameter);
      return grammar;
    } catch (error) {
      throw badRequest((error as Error).message, parameter);
    }
  };
  const call = (tools: readonly ToolSchema[]) =>
    held("tools", () => callGrammar(tools, callForm(conversation)));
  if (called !== undefined) return call(called);
  if (format === undefined) return undefined;
  const answer = held("response_format", () => format);
  return mayCall(request) ? { anyOf: [call(toolsIn(request)), answer] } : answer;
}

/** What the chat template writes around a call's name and arguments. */
function callForm(conversation: Conversation): CallForm {
  const [name, args] = ["nlac-name", "nlac-arguments"];
  const { text } = conversation.writeCall({ name, arguments: args });
  const [before, rest] = text.split(name) as [string, string];
  const [between, after] = rest.split(args) as [string, string];
  return { before, between, after };
}
