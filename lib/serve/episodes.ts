/**
 * Records episodes of agents that use the server. Each request and its reply is a turn, stored as
 * ids with log probabilities. When the agent sends the final reward, the episode is written as a
 * record like those of `nlac eval --record`, for training.
 */

import { randomUUID } from "node:crypto";
import { isOver, type Message } from "../contract/environment.ts";
import { type EpisodeRecord, readEpisodeRecords, sampledBeside } from "../episodes/records.ts";
import { RecordWriter } from "../files/records.ts";
import type { Generation } from "../model/language-model.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { parseAction } from "../prompts/policy.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Held } from "./conversation-cache.ts";
import { badRequest, RequestError, type Said } from "./protocol.ts";

interface OpenEpisode {
  /** Whether the client named it. Its requests are then matched by that name only. */
  named: boolean;
  /** The messages of the first request. */
  opening: Message[];
  turns: EpisodeRecord["turns"];
  /** The conversation after the last turn. Each turn's state is a prefix of it. */
  conversation: Conversation;
  /** Cache keys of the conversation before and after the last turn. */
  asked: string;
  key: string;
  /** Time of the last reply, in milliseconds of `performance.now`. */
  answered: number;
  /** Number of its requests in progress. */
  waiting: number;
}

/** The episode that a request belongs to. */
export interface Place {
  /** The episode's name. */
  name: string;
  named: boolean;
  /** The episode, if it exists, and its conversation at the time of the request. */
  episode?: OpenEpisode;
  before?: Conversation;
  /** The part of the request's messages that the episode contains. */
  held?: Held;
}

/** A turn that was served. */
export interface ServedTurn {
  /** The request's messages, and the cache key of the conversation. */
  messages: readonly Said[];
  asked: string;
  /** Length of the conversation before the model's turn, in tokens. */
  state: number;
  generation: Generation;
  /** Whether tool calls were parsed. */
  calls: boolean;
  /** The conversation after the turn, and its cache key. */
  conversation: Conversation;
  key: string;
}

export class Episodes {
  readonly #writer: RecordWriter;
  readonly #maxHeldTokens: number;
  readonly #maxEpisodes: number;
  /** By name, the most recently answered last. */
  readonly #open = new Map<string, OpenEpisode>();
  /** Total length of their conversations, in tokens. */
  #tokens = 0;
  /** Names of episodes that are over or were dropped. */
  readonly #closed = new Set<string>();
  /** The next id in the file. */
  #next = 0;
  #rewarded = (): void => {};
  recorded = 0;
  /** Number of episodes that never got a final reward. */
  forgotten = 0;

  /**
   * @param path a new file, or one to append to
   * @param maxHeldTokens maximum total length of open episodes, in tokens; the least recently
   *   answered ones are dropped
   * @param maxEpisodes maximum number of open episodes, and of names of earlier ones
   * @throws NlacError ERR_RUN for a damaged file, one without episodes, or one that another process
   *   appends to; ERR_IO
   */
  constructor(path: string, maxHeldTokens: number, maxEpisodes: number = 10_000) {
    this.#writer = RecordWriter.resume(path);
    try {
      for (const { id } of readEpisodeRecords(path)) this.#next = Math.max(this.#next, id + 1);
    } catch (error) {
      this.#writer.close();
      throw error;
    }
    this.#maxHeldTokens = maxHeldTokens;
    this.#maxEpisodes = maxEpisodes;
  }

  /**
   * Finds the episode of a request: by its header, or by the conversation that it continues, or a
   * new one. A repeated request (its reply was lost) belongs to the same episode again. Without a
   * header, episodes with a request in progress are skipped, because an agent sends one at a time.
   *
   * @param names cache keys of the conversation after each of the request's messages
   * @throws RequestError of status 400 if the messages do not continue the named episode, or it is
   *   closed
   */
  place(header: string | undefined, names: readonly string[]): Place {
    const name = header ?? this.#find(names) ?? randomUUID();
    const place = { name, named: header !== undefined };
    if (this.#closed.has(name)) throw over(name);
    const episode = this.#open.get(name);
    if (episode === undefined) return place;
    const held = heldBy(episode, names);
    if (held === undefined)
      throw conflict(
        `The messages do not continue episode ${name}: they must repeat its turns exactly as they were answered. ` +
          "Send requests outside the episode without its header.",
      );
    return { ...place, episode, before: episode.conversation, held };
  }

  /** Marks the episode of `place` as waiting for a reply, until the returned function is called. */
  enter({ episode }: Place): () => void {
    if (episode === undefined) return () => {};
    let inside = true;
    episode.waiting++;
    return () => {
      if (inside) episode.waiting--;
      inside = false;
    };
  }

  /** Adds a turn. Throws a RequestError of status 400 if the episode was closed or has changed. */
  add(place: Place, served: ServedTurn): void {
    const { name, named, held, before } = place;
    const { messages, asked, state, generation, calls, conversation, key } = served;
    const { text } = generation;
    const begun = this.#open.get(name);
    if ((place.episode !== undefined && begun !== place.episode) || this.#closed.has(name)) throw over(name);
    if (begun !== undefined && begun.asked !== asked && begun.conversation !== before)
      throw conflict(`The episode ${name} was continued with another reply.`);

    const now = { conversation, asked, key, answered: performance.now() };
    const said = messages.slice(held?.messages ?? 0).map(asMessage);
    const episode: OpenEpisode = begun ?? { named, opening: said, turns: [], waiting: 0, ...now };
    const repeated = begun?.asked === asked ? episode.turns.pop() : undefined;
    const last = episode.turns.at(-1);
    if (last !== undefined && repeated === undefined) last.observation = said;
    const parsed = parseAction(withoutThought(text), calls ? "call" : "solution");
    episode.turns.push({
      ...{ state, text, ...sampledBeside(conversation, state, generation) },
      ...(parsed.ok ? { action: parsed.action } : { malformed: parsed.reason }),
      ...{ observation: [], reward: repeated?.reward ?? 0, terminated: false, truncated: false, info: {} },
    });
    if (begun !== undefined) this.#remove(name, begun);
    this.#open.set(name, Object.assign(episode, now));
    this.#tokens += conversation.length;
    this.#forgetOldest(name);
  }

  /**
   * Adds `reward` to the episode's last turn. If `ending` says so, closes the episode and writes
   * it. Throws a RequestError of status 404 or 400, or ERR_IO (also if the file was deleted or
   * replaced), without changing the episode.
   */
  reward(
    name: string,
    reward: number,
    ending: { terminated: boolean; truncated: boolean },
  ): { id: string; turns: number; reward: number; terminated: boolean; truncated: boolean } {
    const episode = this.#open.get(name);
    if (episode === undefined) {
      if (this.#closed.has(name)) throw over(name);
      throw new RequestError(
        404,
        "invalid_request_error",
        `There is no episode ${name}.`,
        "episode_not_found",
      );
    }
    const last = episode.turns.at(-1)!;
    const turns = [...episode.turns.slice(0, -1), { ...last, reward: last.reward + reward, ...ending }];
    const total = turns.reduce((sum, turn) => sum + turn.reward, 0);
    if (!Number.isFinite(total) || !Number.isFinite(turns.at(-1)!.reward))
      throw badRequest("The episode's rewards add up to more than a number can hold.", "reward");
    this.#writer.requireUnchanged();
    // Write first: if that fails, the reward was not added, and the client can send it again.
    if (isOver(ending)) this.#write(name, { ...episode, turns }, total);
    episode.turns = turns;
    if (isOver(ending)) {
      this.#end(name, episode);
      this.#rewarded();
    }
    return { id: name, turns: turns.length, reward: total, ...ending };
  }

  /** Resolves when no open episode was answered in the last `ms` milliseconds. */
  async rewarded(ms: number): Promise<void> {
    for (;;) {
      const last = [...this.#open.values()].at(-1);
      const left = last === undefined ? 0 : last.answered + ms - performance.now();
      if (left <= 0) return;
      let timer: NodeJS.Timeout | undefined;
      await new Promise<void>((resolve) => {
        this.#rewarded = resolve;
        timer = setTimeout(resolve, left);
      });
      clearTimeout(timer);
    }
  }

  close(): void {
    this.forgotten += this.#open.size;
    this.#open.clear();
    this.#writer.close();
  }

  /** The episode that a request without a header continues, or the only one that it repeats. */
  #find(names: readonly string[]): string | undefined {
    const positions = new Map(names.map((name, i) => [name, i]));
    const asked = names.at(-1)!;
    let longest = -1;
    let found: string | undefined;
    const repeated: string[] = [];
    for (const [name, { named, waiting, key, asked: before, turns }] of this.#open) {
      if (named || waiting > 0) continue;
      const at = positions.get(key) ?? -1;
      if (at >= 0 && at >= longest) {
        longest = at;
        found = name;
      }
      // A repeated first request could belong to any new episode.
      if (before === asked && turns.length > 1) repeated.push(name);
    }
    return found ?? (repeated.length === 1 ? repeated[0] : undefined);
  }

  #write(task: string, { opening, turns, conversation }: OpenEpisode, reward: number): void {
    const record: EpisodeRecord = {
      ...{ id: this.#next, task, seed: 0, reward, opening, turns },
      outcome: turns.at(-1)!.terminated ? "done" : "truncated",
      conversation: conversation.toJSON(),
    };
    this.#writer.appendDurably(record);
    this.#writer.requireUnchanged();
    this.#next++;
    this.recorded++;
  }

  #remove(name: string, { conversation }: OpenEpisode): void {
    this.#open.delete(name);
    this.#tokens -= conversation.length;
  }

  #end(name: string, episode: OpenEpisode): void {
    this.#remove(name, episode);
    this.#closed.add(name);
    if (this.#closed.size > this.#maxEpisodes) this.#closed.delete(this.#closed.values().next().value!);
  }

  #forgetOldest(latest: string): void {
    for (const [name, episode] of this.#open) {
      const room = this.#open.size <= this.#maxEpisodes && this.#tokens <= this.#maxHeldTokens;
      if (room || name === latest) return;
      this.#end(name, episode);
      this.forgotten++;
    }
  }
}

/**
 * The part of a request that an episode contains: all of it if repeated, else up to the last turn.
 */
function heldBy(
  { asked, key, turns, conversation }: OpenEpisode,
  names: readonly string[],
): Held | undefined {
  if (asked === names.at(-1))
    return { conversation: conversation.prefix(turns.at(-1)!.state), messages: names.length };
  const last = names.lastIndexOf(key);
  return last < 0 ? undefined : { conversation, messages: last + 1 };
}

function asMessage({ role, content, call }: Said): Message {
  if (call === undefined) return { role, content };
  const written = `{"name": ${JSON.stringify(call.name)}, "arguments": ${call.arguments}}`;
  return { role, content: content === "" ? written : `${content}\n${written}` };
}

function over(name: string): RequestError {
  return conflict(`The episode ${name} is over, or was dropped because it was idle.`);
}

/** Status 400, because clients retry after 409. */
function conflict(message: string): RequestError {
  return badRequest(message, null, "episode_conflict");
}
