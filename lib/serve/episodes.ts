/**
 * Records episodes of agents that use the server. Each request and its reply is a turn, stored as
 * ids with log probabilities. When the agent sends the final reward, the episode is written as a
 * record like those of `nlac eval --record`, for training.
 */

import { randomUUID } from "node:crypto";
import { inSlices } from "../base/slices.ts";
import { isOver, type Message } from "../contract/environment.ts";
import { type EpisodeRecord, readEpisodeRecords, sampledBeside } from "../episodes/records.ts";
import { RecordWriter } from "../files/records.ts";
import type { Generation } from "../model/language-model.ts";
import type { ActionFormat } from "../prompts/policy.ts";
import type { Conversation, ConversationJson } from "../tokens/conversation.ts";
import { actionOf } from "./answers.ts";
import type { Held } from "./conversation-cache.ts";
import { isDeleted, withPlacesOf } from "./deleted-episodes.ts";
import type { OpenLog, OpenRecord, Relations } from "./open-log.ts";
import { badRequest, RequestError, requireTrained, type Said } from "./protocol.ts";
import type { Redactable } from "./redact.ts";

interface OpenEpisode extends Relations {
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
  /** Time of the last reply or reward, in milliseconds of `performance.now`. */
  answered: number;
  /** Number of its requests in progress. */
  waiting: number;
  /** Whether a reward of it was acknowledged. */
  rewarded: boolean;
}

/** The episode that a request belongs to. */
export interface Place extends Relations {
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
  /** Version of the weights that generated it. */
  version?: string | undefined;
  /** Whether the client requested that version. */
  pinned?: boolean | undefined;
}

/** How an episode continues after a reward. */
export interface Ending {
  terminated: boolean;
  truncated: boolean;
}

export interface EpisodesOptions {
  /** Maximum number of open episodes, and of names of earlier ones. Default 10,000. */
  maxEpisodes?: number;
  /** A log of the open episodes, which a restarted server continues. Default: they are lost. */
  open?: OpenLog;
  /** How actions are read. Default: calls where tools are given, else the whole text. */
  actionFormat?: ActionFormat;
  /** Redacts episodes before they are stored. Default: they are stored as they are. */
  redact?: <T extends Redactable>(record: T) => T;
  /** Reads conversations of the logs. */
  restore?: (conversation: ConversationJson) => Conversation;
  /** Called with each recorded episode. */
  onRecord?: (record: EpisodeRecord) => void;
  /** Called with a fault of the disk that no client was told of. Default: it is not reported. */
  onFault?: (error: unknown) => void;
}

export class Episodes {
  readonly #writer: RecordWriter;
  readonly #maxHeldTokens: number;
  readonly #options: EpisodesOptions;
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
   * @throws NlacError ERR_RUN for a damaged file, one without episodes, or one that another process
   *   appends to; ERR_IO
   */
  constructor(path: string, maxHeldTokens: number, options: EpisodesOptions = {}) {
    this.#options = options;
    this.#maxHeldTokens = maxHeldTokens;
    this.#maxEpisodes = options.maxEpisodes ?? 10_000;
    this.#writer = RecordWriter.resume(path);
    try {
      for (const { id, task } of readEpisodeRecords(path)) {
        this.#next = Math.max(this.#next, id + 1);
        if (options.open !== undefined) this.#close(task);
      }
      this.#continueOpen();
    } catch (error) {
      this.#writer.close();
      throw error;
    }
  }

  /** Continues the episodes that were open when an earlier server ended. */
  #continueOpen(): void {
    const { open, restore } = this.#options;
    if (open === undefined) return;
    for (const { name, time, ...record } of open.read()) {
      if (this.#closed.has(name)) continue; // it was recorded just before the server was killed
      const conversation = restore!(record.conversation);
      const answered = performance.now() - Math.max(0, Date.now() - time);
      this.#open.set(name, { ...record, conversation, answered, waiting: 0 });
      this.#tokens += conversation.length;
    }
    open.start(() => this.#openRecords());
  }

  *#openRecords(): Generator<OpenRecord> {
    for (const [name, episode] of this.#open) yield this.#stored(name, episode);
  }

  /** The state of an open episode as it is stored. */
  #stored(name: string, episode: OpenEpisode): OpenRecord {
    const record = openRecord(name, episode);
    return this.#options.redact?.(record) ?? record;
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
  place(header: string | undefined, names: readonly string[], relations: Relations = {}): Place {
    const name = header ?? this.#find(names) ?? randomUUID();
    const place = { name, named: header !== undefined, ...relations };
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
    const { name, named, held, before, parent, group } = place;
    const split = place.split ?? (parent === undefined ? undefined : this.#open.get(parent)?.split);
    const { messages, asked, state, generation, calls, conversation, key, version, pinned } = served;
    const { text } = generation;
    const begun = this.#open.get(name);
    if ((place.episode !== undefined && begun !== place.episode) || this.#closed.has(name)) throw over(name);
    if (begun !== undefined && begun.asked !== asked && begun.conversation !== before)
      throw conflict(`The episode ${name} was continued with another reply.`);

    const now = { conversation, asked, key, answered: performance.now() };
    const said = messages.slice(held?.messages ?? 0).map(asMessage);
    const episode: OpenEpisode = begun ?? {
      ...{ named, parent, group, split, opening: said, turns: [], waiting: 0, rewarded: false },
      ...now,
    };
    const repeated = begun?.asked === asked ? episode.turns.pop() : undefined;
    const last = episode.turns.at(-1);
    if (last !== undefined && repeated === undefined) last.observation = said;
    const parsed = actionOf(generation, calls ? conversation.tools : undefined, this.#options.actionFormat);
    episode.turns.push({
      ...{ state, text, ...sampledBeside(conversation, state, generation) },
      ...(parsed.ok ? { action: parsed.action } : { malformed: parsed.reason }),
      ...{ observation: [], reward: repeated?.reward ?? 0, terminated: false, truncated: false },
      info: version === undefined ? {} : { version, ...(pinned && { pinned }) },
    });
    if (begun !== undefined) this.#remove(name, begun);
    this.#open.set(name, Object.assign(episode, now));
    this.#tokens += conversation.length;
    try {
      this.#forgetOldest(name);
      // A crash of the machine may lose this turn, but no acknowledged reward.
      this.#options.open?.put(this.#stored(name, episode), false);
    } catch (error) {
      // The answer is not lost with the recording. The reward will report the fault to the client.
      this.#options.onFault?.(error);
    }
  }

  /**
   * Adds `reward` to a turn of the episode, by default to the last one. `observation` has the
   * messages that followed the last turn. If `ending` says so, closes the episode and writes it,
   * together with its open sub-episodes: one without its own reward gets the whole reward of this
   * one. Throws a RequestError of status 404 or 400, or ERR_IO (also if the file was deleted or
   * replaced), without changing the episode.
   */
  reward(
    name: string,
    reward: number,
    ending: Ending,
    { turn, observation }: { turn?: number | undefined; observation?: Message[] | undefined } = {},
  ): { id: string; turns: number; reward: number; terminated: boolean; truncated: boolean } {
    const episode = this.#openEpisode(name);
    const at = turn ?? episode.turns.length - 1;
    if (at >= episode.turns.length)
      throw badRequest(`The episode has ${episode.turns.length} turns; the first is turn 0.`, "turn");
    const turns = episode.turns.map((one, i) => (i === at ? { ...one, reward: one.reward + reward } : one));
    const last = turns.length - 1;
    if (observation !== undefined) turns[last] = { ...turns[last]!, observation };
    const total = turns.reduce((sum, one) => sum + one.reward, 0);
    if (!Number.isFinite(total) || !Number.isFinite(turns[at]!.reward))
      throw badRequest("The episode's rewards add up to more than a number can hold.", "reward");
    this.#writer.requireUnchanged();
    // Write first: if that fails, the reward was not added, and the client can send it again.
    if (isOver(ending)) {
      for (const [child, helper] of this.#workersFor(name)) {
        const last = helper.turns.at(-1)!;
        const paid = helper.rewarded ? last : { ...last, reward: total };
        this.#finish(child, helper, [...helper.turns.slice(0, -1), paid], ending);
      }
      this.#finish(name, episode, turns, ending);
      this.#rewarded();
    } else {
      const now = { turns, rewarded: true, answered: performance.now() };
      this.#options.open?.put(this.#stored(name, { ...episode, ...now }), true);
      Object.assign(episode, now);
      // The most recent one is the last.
      this.#open.delete(name);
      this.#open.set(name, episode);
    }
    return { id: name, turns: turns.length, reward: total, ...ending };
  }

  /**
   * The conversation before a turn of an open episode, for a correction. Throws a RequestError (404
   * or 400), also if the episode is held out.
   */
  stateOf(name: string, turn: number): Conversation {
    const { turns, conversation, split } = this.#openEpisode(name);
    requireTrained(name, split);
    const found = turns[turn];
    if (found === undefined)
      throw badRequest(`The episode has ${turns.length} turns; the first is turn 0.`, "turn");
    return conversation.prefix(found.state);
  }

  /**
   * Ends the episodes that were not answered or rewarded for `ms` milliseconds. Those with a reward
   * are recorded as truncated; the others are dropped. Throws ERR_IO.
   */
  expire(ms: number): void {
    for (const [name, episode] of [...this.#open])
      if (episode.waiting === 0 && performance.now() - episode.answered >= ms) this.#drop(name, episode);
  }

  /**
   * Drops an open episode without recording it. Resolves to whether there was one, once its content
   * is not on disk any more. Throws ERR_IO.
   */
  async forget(name: string): Promise<boolean> {
    const episode = this.#open.get(name);
    if (episode === undefined) return false;
    this.#end(name, episode);
    await this.#options.open?.rewrite();
    return true;
  }

  /** The open episodes that worked for an episode, or for one that did. */
  #workersFor(name: string): Map<string, OpenEpisode> {
    const found = new Map<string, OpenEpisode>();
    const parents = [name];
    for (const parent of parents)
      for (const [child, episode] of this.#open) {
        if (episode.parent !== parent || child === name || found.has(child)) continue;
        found.set(child, episode);
        parents.push(child);
      }
    return found;
  }

  /**
   * Deletes recorded episodes: their content is removed from the file. Their places remain, so that
   * the numbers of later episodes do not change. Others may be recorded meanwhile. Resolves to
   * whether there were any. If it throws ERR_IO or ERR_ABORTED (closed), the file is unchanged.
   */
  async deleteRecorded(is: (record: EpisodeRecord) => boolean): Promise<boolean> {
    const { path } = this.#writer;
    const isMeant = (record: EpisodeRecord) => !isDeleted(record) && is(record);
    let found = false;
    for await (const record of inSlices(readEpisodeRecords(path))) {
      found = isMeant(record);
      if (found) break;
    }
    if (!found) return false;
    await this.#options.open?.rewrite(); // it may have earlier states of them
    const soFar = () => readEpisodeRecords(path, this.#writer.bytes);
    await this.#writer.replace(() => withPlacesOf(soFar(), isMeant));
    return true;
  }

  #openEpisode(name: string): OpenEpisode {
    const episode = this.#open.get(name);
    if (episode !== undefined) return episode;
    if (this.#closed.has(name)) throw over(name);
    throw new RequestError(404, "invalid_request_error", `There is no episode ${name}.`, "episode_not_found");
  }

  /** Writes an episode that ends now, and closes it. */
  #finish(name: string, episode: OpenEpisode, turns: OpenEpisode["turns"], ending: Ending): void {
    const ended = [...turns.slice(0, -1), { ...turns.at(-1)!, ...ending }];
    const reward = ended.reduce((sum, turn) => sum + turn.reward, 0);
    this.#write(name, { ...episode, turns: ended }, reward);
    this.#end(name, episode);
  }

  /** Ends an episode that will get no more rewards: an acknowledged one must not be lost. */
  #drop(name: string, episode: OpenEpisode): void {
    if (episode.rewarded && this.#options.open !== undefined) {
      this.#finish(name, episode, episode.turns, { terminated: false, truncated: true });
      return;
    }
    this.#end(name, episode);
    this.forgotten++;
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

  /** With a log, open episodes are continued by the next server. */
  close(): void {
    if (this.#options.open === undefined) this.forgotten += this.#open.size;
    this.#open.clear();
    this.#writer.close();
    this.#options.open?.close();
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

  #write(task: string, episode: OpenEpisode, reward: number): void {
    const { opening, turns, conversation, parent, group, split } = episode;
    const whole: EpisodeRecord = {
      ...{ id: this.#next, task, seed: 0, reward, opening, turns },
      ...(this.#options.open && { time: Date.now() }),
      ...(parent === undefined ? {} : { parent }),
      ...(group === undefined ? {} : { group }),
      ...(split === undefined ? {} : { split }),
      outcome: turns.at(-1)!.terminated ? "done" : "truncated",
      conversation: conversation.toJSON(),
    };
    const record = this.#options.redact?.(whole) ?? whole;
    this.#writer.appendDurably(record);
    this.#writer.requireUnchanged();
    this.#next++;
    this.recorded++;
    this.#options.onRecord?.(record);
  }

  #remove(name: string, { conversation }: OpenEpisode): void {
    this.#open.delete(name);
    this.#tokens -= conversation.length;
  }

  #end(name: string, episode: OpenEpisode): void {
    this.#remove(name, episode);
    this.#close(name);
    this.#options.open?.end(name);
  }

  #close(name: string): void {
    this.#closed.add(name);
    if (this.#closed.size > this.#maxEpisodes) this.#closed.delete(this.#closed.values().next().value!);
  }

  #forgetOldest(latest: string): void {
    for (const [name, episode] of this.#open) {
      const room = this.#open.size <= this.#maxEpisodes && this.#tokens <= this.#maxHeldTokens;
      if (room || name === latest) return;
      this.#drop(name, episode);
    }
  }
}

function openRecord(name: string, episode: OpenEpisode): OpenRecord {
  const { named, parent, group, split, rewarded, opening, turns, conversation, asked, key, answered } =
    episode;
  const time = Date.now() - (performance.now() - answered);
  return {
    ...{ name, named, parent, group, split, rewarded, opening, turns, asked, key, time },
    conversation: conversation.toJSON(),
  };
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

function asMessage({ role, content, calls = [] }: Said): Message {
  const written = calls.map(
    (call) => `{"name": ${JSON.stringify(call.name)}, "arguments": ${call.arguments}}`,
  );
  return { role, content: [...(content === "" && calls.length > 0 ? [] : [content]), ...written].join("\n") };
}

function over(name: string): RequestError {
  return conflict(`The episode ${name} is over, or was dropped because it was idle.`);
}

/** Status 400, because clients retry after 409. */
function conflict(message: string): RequestError {
  return badRequest(message, null, "episode_conflict");
}
