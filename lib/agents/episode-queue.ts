/**
 * The rewarded episodes of a served run in the order in which they are trained on (group-order.ts).
 * An episode's position in this order is its number within the run. Requests are served while the
 * file is read.
 */

import { NlacError, throwIfAborted } from "../base/errors.ts";
import { inSlices, slices } from "../base/slices.ts";
import { type EpisodeRecord, fromRecord, readEpisodeRecords } from "../episodes/records.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { GroupOrder } from "./group-order.ts";

/** Tokens of the episodes in memory, above which later ones are read from the file again. */
const maxTokensInMemory = 4_000_000;

export interface EpisodeQueueOptions {
  /** Episodes per group, of which training gets whole ones only. Default 1: without groups. */
  groupSize?: number;
  /**
   * Longest prompt of a turn that is trained on, in tokens. An episode is cut before the first turn
   * with a longer one. Default: no limit.
   */
  maxPromptTokens?: number;
  /**
   * Tokens of waiting episodes that are in memory, if these are not too few to train on. Default
   * 4,000,000.
   */
  maxTokens?: number;
  /** Called once when an episode is cut, and once when one without a group is left out. */
  log?: (line: string) => void;
}

export class EpisodeQueue {
  readonly #path: string;
  readonly #model: LanguageModel;
  readonly #groupSize: number;
  readonly #maxPromptTokens: number;
  readonly #maxTokens: number;
  readonly #log: (line: string) => void;
  /** What was logged. */
  readonly #told = new Set<"cut" | "group">();
  #order: GroupOrder;
  /** Episodes that were not consumed yet, and the position of the first of them. */
  #waiting: EpisodeRecord[] = [];
  #first: number | undefined;
  /** Their tokens. */
  #tokens = 0;
  /** Number of episodes after them that are not in memory, because there are too many tokens. */
  #later = 0;
  /** Number of episodes that are in memory however long they are. */
  #least = 1;
  #changed = (): void => {};

  constructor(path: string, model: LanguageModel, options: EpisodeQueueOptions = {}) {
    const { groupSize = 1, maxPromptTokens, maxTokens = maxTokensInMemory, log = () => {} } = options;
    this.#path = path;
    this.#model = model;
    this.#groupSize = groupSize;
    this.#maxPromptTokens = maxPromptTokens ?? Number.POSITIVE_INFINITY;
    this.#maxTokens = maxTokens;
    this.#log = log;
    this.#order = new GroupOrder(groupSize);
  }

  /** Number of episodes that wait to be trained on. */
  get length(): number {
    return this.#waiting.length + this.#later;
  }

  /** Adds the episode that was just appended to the file. */
  add(record: EpisodeRecord): void {
    if (this.#groupSize > 1 && record.group === undefined && record.split !== "test")
      this.#tell(
        "group",
        `episode ${record.task} is not trained on: the recipe trains on groups of ${this.#groupSize} episodes, ` +
          "and its requests had no x-episode-group. Later ones are left out without a message.",
      );
    if (this.#first !== undefined) for (const next of this.#order.add(record)) this.#hold(next);
    this.#changed();
  }

  /** Adds the next episode to those in memory, or counts it. */
  #hold(record: EpisodeRecord): void {
    const isFull = this.#waiting.length >= this.#least && this.#tokens >= this.#maxTokens;
    if (this.#later > 0 || isFull) {
      this.#later++;
      return;
    }
    this.#waiting.push(record);
    this.#tokens += lengthOf(record);
  }

  /**
   * Reads the file again at the next use, because it was replaced. Fire the signal of its readers
   * first.
   */
  reload(): void {
    this.#first = undefined;
    this.#forget();
  }

  #forget(): void {
    this.#waiting = [];
    this.#tokens = 0;
    this.#later = 0;
  }

  /**
   * The first `count` episodes, one in memory at a time.
   * @throws NlacError ERR_ABORTED; ERR_RUN and ERR_IO for the file
   */
  async *before(count: number, signal: AbortSignal): AsyncGenerator<Trajectory> {
    let position = 0;
    const order = new GroupOrder(this.#groupSize);
    for await (const record of inSlices(readEpisodeRecords(this.#path))) {
      throwIfAborted(signal);
      for (const next of order.add(record)) {
        if (position >= count) return;
        yield this.#trajectoryOf(next, position++);
      }
    }
  }

  /**
   * Resolves once `count` episodes from number `first` on exist: to all of them, up to `most`.
   *
   * @param idle called while too few are there; returns whether it found something to do
   * @throws NlacError ERR_ABORTED; ERR_RUN and ERR_IO for the file
   */
  async next(
    first: number,
    [count, most]: [count: number, most: number],
    signal: AbortSignal,
    idle: () => Promise<boolean>,
  ): Promise<Trajectory[]> {
    for (;;) {
      throwIfAborted(signal);
      this.#least = count;
      if (this.#waiting.length < count && this.#later > 0) this.#first = undefined;
      await this.#seek(first, signal);
      if (this.#waiting.length >= count) break;
      if (!(await idle())) await this.change(signal);
    }
    const taken = this.#waiting.splice(0, Math.max(count, most));
    for (const record of taken) this.#tokens -= lengthOf(record);
    this.#first = first + taken.length;
    return taken.map((record, i) => this.#trajectoryOf(record, first + i));
  }

  /** The part of an episode that is trained on. */
  #trajectoryOf(record: EpisodeRecord, id: number): Trajectory {
    const whole = { ...fromRecord(record, this.#model), id };
    const { turns } = whole;
    const turn = turns.findIndex(({ state }) => state.promptLength > this.#maxPromptTokens);
    if (turn < 0) return whole;
    this.#tell(
      "cut",
      `episode ${record.task}: only the first ${turn} of ${turns.length} turns are trained on, because the next ` +
        `prompt has ${turns[turn]!.state.promptLength} tokens, and the recipe's maxPromptTokens is ` +
        `${this.#maxPromptTokens}. Later episodes are cut without a message.`,
    );
    return cutBefore(whole, turn);
  }

  /** Logs a line, the first of its kind only. */
  #tell(kind: "cut" | "group", line: string): void {
    if (!this.#told.has(kind)) this.#log(line);
    this.#told.add(kind);
  }

  /** Wakes a waiting `next`, which then calls `idle` again, and a waiting `change`. */
  wake(): void {
    this.#changed();
  }

  async #seek(first: number, signal: AbortSignal): Promise<void> {
    if (this.#first === first) return;
    this.#first = undefined;
    this.#forget();
    let position = 0;
    const order = new GroupOrder(this.#groupSize);
    const turn = slices();
    for (const record of readEpisodeRecords(this.#path)) {
      for (const next of order.add(record)) if (position++ >= first) this.#hold(next);
      await turn();
      throwIfAborted(signal);
    }
    if (position < first)
      throw new NlacError(
        "ERR_RUN",
        `${this.#path} has ${position} episodes to train on; at the checkpoint it had ${first} or more.`,
      );
    // Nothing can have been added since the end of the file was read: the event loop had no turn.
    this.#order = order;
    this.#first = first;
  }

  /** Resolves when an episode is added, at `wake`, or when the signal fires. For one caller at a time. */
  change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        signal.removeEventListener("abort", done);
        resolve();
      };
      this.#changed = done;
      signal.addEventListener("abort", done, { once: true });
    });
  }
}

/**
 * The first `turn` turns of an episode, as if a limit had cut it there. Its reward is unchanged,
 * also by what later turns received: that then belongs to no turn.
 */
function cutBefore(episode: Trajectory, turn: number): Trajectory {
  return {
    ...episode,
    turns: episode.turns
      .slice(0, turn)
      .map((kept, i) => (i === turn - 1 ? { ...kept, terminated: false, truncated: true } : kept)),
    conversation: episode.turns[turn]!.state,
    // The reward of a faulty one stays unknown.
    outcome: isFaulty(episode) ? episode.outcome : "context-limit",
  };
}

function lengthOf({ conversation }: EpisodeRecord): number {
  return conversation.tokens.length;
}
