/**
 * Episodes of agents that play elsewhere: each request and its answer is a turn, kept as ids with their log probabilities,
 * until the agent says what the episode was worth. Then it is a record like those of `nlac eval --record`, to learn from.
 */

import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
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
  /** Whether a client named it: then requests belong to it by that name alone. */
  named: boolean;
  /** The messages that it was begun with. */
  opening: Message[];
  turns: EpisodeRecord["turns"];
  /** After the last turn. Each turn's state is a beginning of it. */
  conversation: Conversation;
  /** Names of the conversation before the last turn and after it. */
  asked: string;
  key: string;
  /** When the last turn was answered, milliseconds of `performance.now`. */
  answered: number;
  /** Requests of it that are being answered. */
  waiting: number;
}

/** Where a request belongs. */
export interface Place {
  /** The episode's name. */
  name: string;
  named: boolean;
  /** The episode, if it has begun, and its conversation when the request came. */
  episode?: OpenEpisode;
  before?: Conversation;
  /** What the episode holds of the request's messages. */
  held?: Held;
}

/** A turn as it was served. */
export interface ServedTurn {
  /** The request's messages, and the name of the conversation that they are. */
  messages: readonly Said[];
  asked: string;
  /** Length of the conversation before the model's turn, in tokens. */
  state: number;
  generation: Generation;
  /** Whether calls were read in it. */
  calls: boolean;
  /** The conversation after it, and its name. */
  conversation: Conversation;
  key: string;
}

export class Episodes {
  readonly #writer: RecordWriter;
  readonly #maxHeldTokens: number;
  readonly #maxEpisodes: number;
  /** By their names; the one that was answered last is the last. */
  readonly #open = new Map<string, OpenEpisode>();
  /** Ids of their conversations together. */
  #tokens = 0;
  /** Names of those that are over or were forgotten. */
  readonly #closed = new Set<string>();
  /** Number of the next one in the file. */
  #next = 0;
  #rewarded = (): void => {};
  recorded = 0;
  /** Never rewarded. */
  forgotten = 0;

  /**
   * @param path a new file, or one that is to grow
   * @param maxHeldTokens ids that open episodes may have together; beyond, the one that was answered longest ago is forgotten
   * @param maxEpisodes open ones, and names of earlier ones, that are remembered
   * @throws NlacError ERR_RUN for a file that holds something else or is damaged, ERR_IO
   */
  constructor(path: string, maxHeldTokens: number, maxEpisodes: number = 10_000) {
    if (existsSync(path))
      for (const { id } of readEpisodeRecords(path)) this.#next = Math.max(this.#next, id + 1);
    this.#writer = RecordWriter.resume(path);
    this.#maxHeldTokens = maxHeldTokens;
    this.#maxEpisodes = maxEpisodes;
  }

  /**
   * Where a request belongs: by its header, or by the conversation that it continues, or in a new episode. A request that is
   * made again, since its answer was lost, belongs where it did. Without a header the episodes of which a request is being
   * answered are left out, for no agent asks twice at once.
   *
   * @param names of the conversation after each of the request's messages
   * @throws RequestError of status 400 for a conversation that is not the named episode's, or an episode that is no longer open
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
        `The messages do not continue episode ${name}: they must repeat its turns as they were answered. What is no part ` +
          "of it is to be asked without its header.",
      );
    return { ...place, episode, before: episode.conversation, held };
  }

  /** Waits for the answer of a request that belongs to `place`. */
  async during<T>({ episode }: Place, answer: Promise<T>): Promise<T> {
    if (episode !== undefined) episode.waiting++;
    try {
      return await answer;
    } finally {
      if (episode !== undefined) episode.waiting--;
    }
  }

  /** Throws a RequestError of status 400 if the episode was ended meanwhile, or went on another way. */
  add(place: Place, served: ServedTurn): void {
    const { name, named, held, before } = place;
    const { messages, asked, state, generation, calls, conversation, key } = served;
    const { text } = generation;
    const begun = this.#open.get(name);
    if ((place.episode !== undefined && begun !== place.episode) || this.#closed.has(name)) throw over(name);
    if (begun !== undefined && begun.asked !== asked && begun.conversation !== before)
      throw conflict(`The episode ${name} has gone on with another answer.`);

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
   * Adds `reward` to the episode's last turn; where it has ended or was cut, the episode is over
   * and written. Throws a RequestError of status 404 or 400, ERR_IO where it cannot be written;
   * nothing has changed then.
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
    // A reward that could not be written was not given: whoever gives it again gives it once.
    if (isOver(ending)) this.#write(name, { ...episode, turns }, total);
    episode.turns = turns;
    if (isOver(ending)) {
      this.#end(name, episode);
      this.#rewarded();
    }
    return { id: name, turns: turns.length, reward: total, ...ending };
  }

  /** Resolves when no episode is open that was answered in the last `ms` milliseconds. */
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

  /** The episode that a request without a header continues, or else the only one in which it was made before. */
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
      // A first request that is made again looks like another episode's.
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
    this.#writer.append(record);
    this.#writer.sync();
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

/** What an episode holds of a request: all of it if it was made before, or what stands before the last turn's end. */
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
  return conflict(`The episode ${name} is over, or was left so long that it was forgotten.`);
}

/** Not 409, which clients take for a reason to try again. */
function conflict(message: string): RequestError {
  return badRequest(message, null, "episode_conflict");
}
