/** POST /v1/chat/completions: finds or opens the conversation, generates, and records the turn. */

import type { Context } from "hono";
import { inSlices } from "../base/slices.ts";
import type { GenerateRequest, Generation } from "../model/language-model.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { chatChoice, replyOf, usage } from "./answers.ts";
import { type Admission, Conversations } from "./conversation-cache.ts";
import type { Episodes } from "./episodes.ts";
import { sendJson } from "./json-response.ts";
import { relationHeaders } from "./open-episode.ts";
import { type ChatRequest, checkLength, formatOf, mayCall, type Said, toolsIn } from "./protocol.ts";
import type { RequestQueue } from "./queue.ts";
import { askingOf, type Reader } from "./reader.ts";
import { nameAfter, type ReadChat } from "./reading.ts";
import { badRequest } from "./request-error.ts";
import type { Place } from "./served-turn.ts";
import { type OnToken, streamTexts } from "./text-stream.ts";

const episodeHeader = "x-episode-id";
/** Maximum length of the name of an episode or a group. */
const maxName = 256;

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
  readonly #reader: Reader;
  readonly #conversations: Conversations;
  readonly #episodes: Episodes | undefined;

  constructor(queue: RequestQueue, reader: Reader, maxHeldTokens: number, episodes: Episodes | undefined) {
    this.#queue = queue;
    this.#reader = reader;
    this.#conversations = new Conversations(queue.learner, reader, maxHeldTokens);
    this.#episodes = episodes;
  }

  async answer(c: Context, read: ReadChat, bytes: number): Promise<Response> {
    const place = this.#place(c, read);
    const leave = place === undefined ? () => {} : this.#episodes!.enter(place);
    let admission: Admission | undefined;
    try {
      const chat = await this.#open(c, read, bytes, place);
      admission = await this.#queue.admit(c, read.request.model);
      return await this.#write(c, chat, admission, leave);
    } catch (error) {
      admission?.leave();
      leave();
      throw error;
    }
  }

  /** @param leave called when the answer is complete, or has failed */
  async #write(c: Context, chat: OpenedChat, admission: Admission, leave: () => void): Promise<Response> {
    const { request, prompt, requests } = chat;
    const { learner } = this.#queue;
    const write = (onToken?: OnToken) =>
      this.#queue
        .generate(c, admission, requests, onToken)
        .then(async (generations) => {
          const answers: Answer[] = [];
          for await (const generation of inSlices(generations))
            answers.push(this.#finish(chat, generation, admission));
          return answers;
        })
        .finally(leave);
    const head = this.#queue.head("chatcmpl", "chat.completion", admission);
    if (request.stream) return this.#stream(c, chat, head, write);
    const answers = await write();
    const choices = answers.map(({ said, generation }, i) =>
      chatChoice(learner, request, i, said, generation),
    );
    const ids = request.return_token_ids ? { prompt_token_ids: prompt } : {};
    return sendJson(c, { ...head, choices, usage: usageOf(chat, answers), ...ids });
  }

  /** Throws a RequestError. */
  #place(c: Context, read: ReadChat): Place | undefined {
    const { request } = read;
    this.#queue.checkModel(request.model);
    const named = (header: string) => {
      const name = c.req.header(header) || undefined;
      // Clients encode other characters in a header and in an address in different ways.
      if (name !== undefined && (name.length > maxName || /[^ -~]/.test(name)))
        throw badRequest(`A name may have ${maxName} characters at most, all of them ASCII.`, header);
      return name;
    };
    const name = named(episodeHeader);
    const [parent, group] = [named(relationHeaders.parent), named(relationHeaders.group)];
    const split = named(relationHeaders.split) ?? "train";
    if (split !== "test" && split !== "train")
      throw badRequest('The split of an episode is "train" or "test".', relationHeaders.split);
    const held = split === "test" ? split : undefined;
    const place = this.#episodes?.place(name, read, { parent, group, split: held });
    if (place !== undefined) {
      c.header(episodeHeader, place.name);
      if ((request.n ?? 1) > 1)
        throw badRequest("A recorded episode continues with one answer: n must be 1.", "n");
    }
    return place;
  }

  /**
   * Throws a RequestError, also for a conversation that its chat template or the context cannot
   * hold.
   */
  async #open(c: Context, read: ReadChat, bytes: number, place: Place | undefined): Promise<OpenedChat> {
    const { request, messages, names, grammar } = read;
    const conversation = await this.#conversations.open(read, bytes, askingOf(c), place?.held);
    const prompt = conversation.prompt();
    checkLength(prompt.length, this.#queue.learner.maxPositions, "messages");
    const longest = request.max_completion_tokens ?? request.max_tokens;
    const requests = this.#queue
      .requests(request, prompt, longest, request.top_logprobs)
      .map((asked) => (grammar === undefined ? asked : { ...asked, grammar }));
    return { request, messages, asked: names.at(-1)!, conversation, prompt, place, requests };
  }

  /**
   * Reads a complete answer, keeps the conversation for the client's next request, and records the
   * turn.
   */
  #finish(chat: OpenedChat, generation: Generation, { version, pinned }: Admission): Answer {
    const { request, messages, asked, place } = chat;
    const tools = toolsIn(request);
    const calls = mayCall(request);
    const read = replyOf(generation, calls ? tools : undefined);
    const isKnown = (call: { name: string }) => tools.some(({ name }) => name === call.name);
    // A value in the response format may look like a call.
    const isValue = formatOf(request) !== undefined && !read.calls?.every(isKnown);
    const said = isValue ? replyOf(generation, undefined) : read;
    const [kept] = this.#reader.inline.kept([said]);
    const key = nameAfter(asked, kept!);
    const conversation = chat.conversation.fork().appendGeneration(generation);
    this.#conversations.keep(key, conversation);
    const state = chat.conversation.length;
    if (place !== undefined)
      this.#episodes!.add(place, {
        ...{ messages, asked, state, generation, conversation, key },
        calls: calls && !isValue,
        ...{ version, pinned, constrained: chat.requests.some(({ grammar }) => grammar !== undefined) },
      });
    return { said, generation };
  }

  /**
   * A call is recognized only when it is complete: if calls are possible, the text is sent in one
   * piece.
   */
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
    return streamTexts(this.#queue, c, request, requests.length, write, {
      begin: () => requests.map((_, i) => part(i, { role: "assistant", content: "" })),
      ...(mayCall(request) ? {} : { piece: (i: number, text: string) => part(i, { content: text }) }),
      *end(answers, sent) {
        for (const [i, { said, generation }] of answers.entries()) {
          const choice = chatChoice(learner, request, i, said, generation);
          const { message: whole, finish_reason, logprobs, token_ids } = choice;
          const rest =
            said.calls === undefined
              ? { content: said.content.slice(sent[i]!.length) }
              : { ...whole, tool_calls: whole.tool_calls!.map((call, index) => ({ index, ...call })) };
          if (said.calls !== undefined || rest.content !== "") yield part(i, rest);
          yield part(i, {}, finish_reason, { logprobs, ...(token_ids ? { token_ids } : {}) });
        }
      },
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
    [prompt],
    answers.map(({ generation }) => generation),
  );
}
