/**
 * Records episodes of agents that use the server. Each request and its reply is a turn, stored as
 * ids with log probabilities. When the agent sends the final reward, the episode is written as a
 * record like those of `nlac eval --record`, for training.
 */

import { randomUUID } from "node:crypto";
import { setImmediate as nextIteration } from "node:timers/promises";
import { dropOldest } from "../base/drop-oldest.ts";
import { inSlices } from "../base/slices.ts";
import { isOver } from "../contract/environment.ts";
import { type EpisodeRecord, readEpisodeRecords, sampledBeside } from "../episodes/records.ts";
import { RecordWriter } from "../files/records.ts";
import type { ActionFormat } from "../prompts/policy.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import { actionOf } from "./answers.ts";
import { isDeleted, withPlacesOf } from "./deleted-episodes.ts";
import {
  asMessage,
  contradictionOf,
  differenceFrom,
  endedRecord,
  heldBy,
  type OpenEpisode,
  type Relations,
  totalReward,
} from "./open-episode.ts";
import type { OpenLog } from "./open-log.ts";
import type { ReadChat } from "./reading.ts";
import type { Redactable } from "./redact.ts";
import {
  type Ending,
  findRepeated,
  type RewardOptions,
  requestHash,
  withReward,
} from "./repeated-rewards.ts";
import { badRequest, noEpisode, noTurn, type RequestError, requireTrained } from "./request-error.ts";
import type { Place, ServedTurn } from "./served-turn.ts";
import { idleEpisodes, paidWorkers, workersOf } from "./sub-episodes.ts";
import { UnnamedEpisodes } from "./unnamed-episodes.ts";

/** Most idle episodes that are recorded with one write. */
const recordedTogether = 32;

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
  readonly #unnamed = new UnnamedEpisodes();
  /** Total length of their conversations, in tokens. */
  #tokens = 0;
  /** Names of episodes that are over or were dropped. */
  readonly #closed = new Set<string>();
  /** By name, recorded episodes: the reward, and what a repeated request is answered. */
  readonly #ended = new Map<string, Pick<EpisodeRecord, "reward" | "acknowledged">>();
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
    this.#writer = RecordWriter.resume(path, { isPrivate: true });
    try {
      for (const record of readEpisodeRecords(path)) {
        this.#next = Math.max(this.#next, record.id + 1);
        if (options.open !== undefined) this.#close(record.task);
        if (!isDeleted(record)) this.#remember(record);
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
    for (const { name, time, acknowledged = [], ...record } of open.read()) {
      if (this.#closed.has(name)) continue; // it was recorded just before the server was killed
      const conversation = restore!(record.conversation);
      const answered = performance.now() - Math.max(0, Date.now() - time);
      this.#insert(name, { ...record, acknowledged, conversation, answered, waiting: 0 });
    }
    open.start(() => this.#open, this.#options.redact);
  }

  /**
   * Finds the episode of a request: by its header, or by the conversation that it continues, or a
   * new one. A repeated request (its reply was lost) belongs to the same episode again. Without a
   * header, episodes with a request in progress are skipped, because an agent sends one at a time.
   *
   * @throws RequestError of status 400 if the request does not continue the named episode, or
   *   `relations` are not those of its first request, or it is closed
   */
  place(
    header: string | undefined,
    request: Pick<ReadChat, "names" | "messages" | "tools">,
    relations: Relations = {},
  ): Place {
    const { names } = request;
    const name = header ?? this.#unnamed.find(names, relations) ?? randomUUID();
    const place = { name, named: header !== undefined, ...relations };
    if (this.#closed.has(name)) throw this.#over(name);
    const episode = this.#open.get(name);
    if (episode === undefined) return place;
    const held = heldBy(episode, names);
    if (held === undefined)
      throw conflict(
        `The request does not continue episode ${name}: ${differenceFrom(episode, request)}. Repeat its tools, ` +
          "messages and answers exactly. Send requests outside the episode without its header, and a branch under " +
          "another name with x-parent-episode-id.",
      );
    const other = contradictionOf(episode, relations);
    if (other !== undefined)
      throw conflict(
        `The first request of episode ${name} had another ${other}, or none: send the same with every request.`,
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
    const { messages, asked, state, generation, calls, conversation, key, version, pinned, constrained } =
      served;
    const { text } = generation;
    const begun = this.#open.get(name);
    if ((place.episode !== undefined && begun !== place.episode) || this.#closed.has(name))
      throw this.#over(name);
    if (begun !== undefined && begun.asked !== asked && begun.conversation !== before)
      throw conflict(`The episode ${name} was continued with another reply.`);

    const now = { conversation, asked, key, answered: performance.now() };
    const said = messages.slice(held?.messages ?? 0).map(asMessage);
    const episode: OpenEpisode = begun ?? {
      ...{
        named,
        parent,
        group,
        split,
        opening: said,
        turns: [],
        waiting: 0,
        rewarded: false,
        acknowledged: [],
      },
      ...now,
    };
    const repeated = begun?.asked === asked ? episode.turns.pop() : undefined;
    const last = episode.turns.at(-1);
    if (last !== undefined && repeated === undefined)
      episode.turns[episode.turns.length - 1] = { ...last, observation: said };
    const parsed = actionOf(generation, calls ? conversation.tools : undefined, this.#options.actionFormat);
    episode.turns.push({
      ...{ state, text, ...sampledBeside(conversation, state, generation) },
      ...(parsed.ok ? { action: parsed.action } : { malformed: parsed.reason }),
      ...{ observation: [], reward: repeated?.reward ?? 0, terminated: false, truncated: false },
      info: {
        ...(version !== undefined && { version, ...(pinned && { pinned }) }),
        ...(constrained && { constrained }),
      },
    });
    if (begun !== undefined) this.#remove(name, begun);
    this.#insert(name, Object.assign(episode, now));
    try {
      this.#forgetOldest(name);
      // It may have ended just now, with the one that it works for.
      if (this.#open.get(name) !== episode) return;
      // A crash of the machine may lose this turn, but no acknowledged reward.
      this.#options.open?.put(name, episode, false);
    } catch (error) {
      // The answer is not lost with the recording. The reward will report the fault to the client.
      this.#options.onFault?.(error);
    }
  }

  /**
   * Adds `reward` to a turn of the episode, by default to the last one. If `ending` says so, closes
   * the episode and writes it, together with its open sub-episodes: one without its own reward gets
   * the whole reward of this one. A repeated request (repeated-rewards.ts) adds nothing and returns
   * the same. Throws a RequestError of status 404 or 400, or ERR_IO (also if the file was deleted
   * or replaced), without changing any episode.
   */
  reward(
    name: string,
    reward: number,
    ending: Ending,
    options: RewardOptions = {},
  ): { id: string; turns: number; reward: number } & Ending {
    const { turn, observation, key } = options;
    const request = requestHash(reward, ending, options);
    const { acknowledged = [] } = this.#open.get(name) ?? this.#ended.get(name) ?? {};
    const repeated = findRepeated(acknowledged, request, key);
    if (repeated !== undefined) {
      const { turns, reward, terminated, truncated } = repeated;
      this.#writer.requireUnchanged();
      return { id: name, turns, reward, terminated, truncated };
    }
    const episode = this.#openEpisode(name);
    const at = turn ?? episode.turns.length - 1;
    if (at >= episode.turns.length) throw noTurn(episode.turns.length);
    const turns = episode.turns.map((one, i) => (i === at ? { ...one, reward: one.reward + reward } : one));
    const last = turns.length - 1;
    if (observation !== undefined) turns[last] = { ...turns[last]!, observation };
    const total = totalReward(turns);
    if (!Number.isFinite(total) || !Number.isFinite(turns[at]!.reward))
      throw badRequest("The episode's rewards add up to more than a number can hold.", "reward");
    this.#writer.requireUnchanged();
    const answer = { turns: turns.length, reward: total, ...ending };
    const now = {
      turns,
      rewarded: true,
      acknowledged: withReward(acknowledged, { ...answer, request, ...(key !== undefined && { key }) }),
      answered: performance.now(),
    };
    // Write first: if that fails, the reward was not added, and the client can send it again.
    if (isOver(ending)) {
      this.#finish(
        [...paidWorkers(workersOf(this.#open), name, total), [name, { ...episode, ...now }]],
        ending,
      );
      this.#rewarded();
    } else {
      this.#options.open?.put(name, { ...episode, ...now }, true);
      Object.assign(episode, now);
      // The most recent one is the last.
      this.#remove(name, episode);
      this.#insert(name, episode);
    }
    return { id: name, ...answer };
  }

  /**
   * The conversation before a turn of an open episode, for a correction. Throws a RequestError (404
   * or 400), also if the episode is held out.
   */
  stateOf(name: string, turn: number): Conversation {
    const { turns, conversation, split } = this.#openEpisode(name);
    requireTrained(name, split);
    const found = turns[turn];
    if (found === undefined) throw noTurn(turns.length);
    return conversation.prefix(found.state);
  }

  /**
   * Ends the episodes that were not answered or rewarded for `ms` milliseconds. An episode and its
   * sub-episodes stay while one of them is active. Rewarded ones are recorded as truncated, with
   * their sub-episodes, some with each write and sync, between which the event loop gets turns; the
   * others are dropped. Throws ERR_IO.
   */
  async expire(ms: number): Promise<void> {
    try {
      for (;;) {
        // Rewarded ones first, because their sub-episodes get the reward.
        const rewarded = idleEpisodes(this.#open, ms).filter(([, episode]) => this.#isKept(episode));
        if (rewarded.length === 0) break;
        this.#drop(rewarded.slice(0, recordedTogether));
        await nextIteration();
      }
    } finally {
      // Episodes that could not be recorded are kept, and so are their sub-episodes.
      const idle = idleEpisodes(this.#open, ms);
      const workers = workersOf(this.#open);
      const kept = new Set<string>();
      for (const [name, episode] of idle)
        if (this.#isKept(episode) && !kept.has(name))
          for (const one of [name, ...paidWorkers(workers, name, 0).map(([worker]) => worker)]) kept.add(one);
      this.#drop(idle.filter(([name]) => !kept.has(name)));
    }
  }

  /**
   * Drops an open episode without recording it. Resolves to whether there was one, once its content
   * is not on disk any more, nor that of episodes that were dropped before. Throws ERR_IO.
   */
  async forget(name: string): Promise<boolean> {
    const episode = this.#open.get(name);
    if (episode !== undefined) this.#end(name, episode);
    await this.#options.open?.purge();
    return episode !== undefined;
  }

  /**
   * Deletes recorded episodes: their content is removed from the file. Their places remain, so that
   * the numbers of later episodes do not change. Others may be recorded meanwhile. Dropped episodes
   * leave the log of open ones. Resolves to whether there were any to delete. If it throws ERR_IO or
   * ERR_ABORTED (closed), the file is unchanged.
   */
  async deleteRecorded(is: (record: EpisodeRecord) => boolean): Promise<boolean> {
    const { path } = this.#writer;
    const isMeant = (record: EpisodeRecord) => !isDeleted(record) && is(record);
    const deleted: string[] = [];
    const isRemoved = (record: EpisodeRecord) => isMeant(record) && deleted.push(record.task) > 0;
    let found = false;
    for await (const record of inSlices(readEpisodeRecords(path))) {
      found = isMeant(record);
      if (found) break;
    }
    await this.#options.open?.purge(); // it may have earlier states of them
    if (!found) return false;
    const soFar = () => readEpisodeRecords(path, this.#writer.bytes);
    await this.#writer.replace(() => withPlacesOf(soFar(), isRemoved));
    for (const name of deleted) this.#ended.delete(name);
    return true;
  }

  /** Number of open episodes. */
  get open(): number {
    return this.#open.size;
  }

  /** How often the file was replaced, because episodes were deleted. */
  get replacements(): number {
    return this.#writer.replacements;
  }

  #openEpisode(name: string): OpenEpisode {
    const episode = this.#open.get(name);
    if (episode !== undefined) return episode;
    if (this.#closed.has(name)) throw this.#over(name);
    throw noEpisode(name);
  }

  /** Writes episodes that end now, all or none of them, and closes them. */
  #finish(ended: readonly [string, OpenEpisode][], ending: Ending): void {
    const records = ended.map(([name, episode], i) => {
      const record = {
        ...endedRecord(this.#next + i, name, episode, ending),
        ...(this.#options.open && { time: Date.now() }),
      };
      return this.#options.redact?.(record) ?? record;
    });
    this.#writer.appendDurably(...records);
    this.#writer.requireUnchanged();
    this.#next += records.length;
    this.recorded += records.length;
    for (const [name, episode] of ended) this.#end(name, episode);
    for (const record of records) {
      this.#remember(record);
      this.#options.onRecord?.(record);
    }
  }

  /** Whether an episode is recorded when it is dropped: an acknowledged reward must not be lost. */
  #isKept({ rewarded }: OpenEpisode): boolean {
    return rewarded && this.#options.open !== undefined;
  }

  /**
   * Ends episodes that will get no more rewards. Those to be recorded are written together. Throws
   * ERR_IO; then none of them has ended.
   */
  #drop(episodes: readonly [string, OpenEpisode][]): void {
    const kept = episodes.filter(([, episode]) => this.#isKept(episode));
    if (kept.length > 0) {
      const workers = workersOf(this.#open);
      const ended = new Map<string, OpenEpisode>();
      for (const [name, episode] of kept)
        for (const [one, paid] of [
          ...paidWorkers(workers, name, totalReward(episode.turns)),
          [name, episode] as const,
        ])
          if (!ended.has(one)) ended.set(one, paid);
      this.#finish([...ended], { terminated: false, truncated: true });
    }
    for (const [name, episode] of episodes) {
      if (this.#open.get(name) !== episode) continue; // it was recorded
      this.#end(name, episode);
      this.forgotten++;
    }
  }

  /**
   * Drops episodes until `isEnough`. If one cannot be recorded, those with a reward stay, the others
   * are dropped nevertheless; it then throws ERR_IO.
   */
  #dropAll(episodes: Iterable<[string, OpenEpisode]>, isEnough = (_: string) => false): void {
    let fault: unknown;
    for (const [name, episode] of episodes) {
      if (isEnough(name)) break;
      const isGone = this.#open.get(name) !== episode; // it was recorded with the one it worked for
      if (isGone || (fault !== undefined && episode.rewarded)) continue;
      try {
        this.#drop([[name, episode]]);
      } catch (error) {
        fault ??= error;
      }
    }
    if (fault !== undefined) throw fault;
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
    this.#unnamed.clear();
    this.#writer.close();
    this.#options.open?.close();
  }

  #insert(name: string, episode: OpenEpisode): void {
    this.#open.set(name, episode);
    if (!episode.named) this.#unnamed.add(name, episode);
    this.#tokens += episode.conversation.length;
  }

  #remove(name: string, episode: OpenEpisode): void {
    this.#open.delete(name);
    this.#unnamed.remove(name, episode);
    this.#tokens -= episode.conversation.length;
  }

  #end(name: string, episode: OpenEpisode): void {
    this.#remove(name, episode);
    this.#close(name);
    this.#options.open?.end(name);
  }

  #close(name: string): void {
    this.#closed.add(name);
    dropOldest(this.#closed, this.#maxEpisodes);
  }

  /** Remembers a recorded episode for repeated requests. */
  #remember({ task, reward, acknowledged }: EpisodeRecord): void {
    this.#ended.delete(task);
    this.#ended.set(task, { reward, ...(acknowledged && { acknowledged }) });
    dropOldest(this.#ended, this.#maxEpisodes);
  }

  #over(name: string): RequestError {
    const ended = this.#ended.get(name);
    const how =
      ended === undefined
        ? "was dropped: it was idle or deleted, or there was no room"
        : `is over; its reward is ${ended.reward}`;
    return conflict(`The episode ${name} ${how}. Give a new episode another name.`);
  }

  #forgetOldest(latest: string): void {
    const hasRoom = () => this.#open.size <= this.#maxEpisodes && this.#tokens <= this.#maxHeldTokens;
    this.#dropAll(this.#open, (name) => hasRoom() || name === latest);
  }
}

/** Status 400, because clients retry after 409. */
function conflict(message: string): RequestError {
  return badRequest(message, null, "episode_conflict");
}
