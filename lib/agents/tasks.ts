/**
 * Tasks for harnesses that fetch them: each is leased to one client under the name of an episode. A
 * task whose lease ends without a reward is leased again.
 */

import { z } from "zod";
import { streams, uniform } from "../base/random.ts";
import { leasedName } from "../episodes/served-tasks.ts";

export const tasksConfig = z.strictObject({
  /** Seconds until a task without a reward is leased again. Default 600. */
  leaseSeconds: z.number().positive().default(600),
  /**
   * Leases of a task that may end without a reward before it is passed over, with the rest of its
   * group. Default 3.
   */
  maxAttempts: z.int().min(1).default(3),
  /**
   * Order of the tasks. "even": each in turn. "variance": at random, in proportion to the variance
   * of their success, so that tasks that sometimes fail come more often. Default "even".
   */
  order: z.enum(["even", "variance"]).default("even"),
  /** Leases of a task in a row, as one group. Default 1, and the recipe's group size for GRPO. */
  groupSize: z.int().min(1).default(1),
  /** Seed of the order. Default 0. */
  seed: z.int().min(0).default(0),
});

export type TasksConfig = z.infer<typeof tasksConfig>;

/** Maximum number of leases at a time. */
const maxLeases = 16_384;
/** Number of a task's latest leases of which a late reward is recognized. */
const maxEarlier = 16;

export interface Lease {
  /** The name of the episode: the client sends it as x-episode-id. */
  episode: string;
  /** Number of the task. */
  id: number;
  task: unknown;
  /**
   * The group that it belongs to, for methods that compare attempts: the client sends it as
   * x-episode-group.
   */
  group?: string;
  /** Number of this lease of the task: 1, and 1 more for each lease that ended without a reward. */
  attempt: number;
  lease_seconds: number;
}

interface Group {
  name: string;
  /**
   * Whether one of its tasks was passed over: it cannot become complete, so none is leased again.
   */
  closed: boolean;
}

/** A task to be leased. */
interface Open {
  id: number;
  attempt: number;
  group?: Group;
  /** The episodes of its latest leases. One of them may still be rewarded late. */
  earlier: readonly string[];
}

interface Held extends Open {
  /** Milliseconds of `now` at which it ends. */
  until: number;
  /** Whether the episode of an earlier lease was rewarded meanwhile. */
  rewarded: boolean;
}

export class Tasks {
  readonly #tasks: readonly unknown[];
  readonly #config: TasksConfig;
  readonly #now: () => number;
  /** By episode, the one that ends first at the beginning. */
  readonly #held = new Map<string, Held>();
  /** Tasks whose lease ended without a reward. */
  #again: Open[] = [];
  /** The rest of the group whose task was leased last. */
  #rest: Open[] = [];
  readonly #played: number[];
  readonly #succeeded: number[];
  /** Number of first leases, without repeated ones. */
  #chosen = 0;
  /** Leases that ended without a reward, and tasks passed over because of too many of them. */
  expired = 0;
  passedOver = 0;

  constructor(tasks: readonly unknown[], config: TasksConfig, now: () => number = () => performance.now()) {
    this.#tasks = tasks;
    this.#config = config;
    this.#now = now;
    this.#played = tasks.map(() => 0);
    this.#succeeded = tasks.map(() => 0);
  }

  /** Number of tasks that are leased now. */
  get leased(): number {
    this.#expire();
    return this.#held.size;
  }

  /** Whether no further task can be leased, because too many are. */
  get isFull(): boolean {
    return this.leased >= maxLeases;
  }

  /** Leases the next task; undefined without tasks. */
  next(): Lease | undefined {
    if (this.#tasks.length === 0) return undefined;
    this.#expire();
    const open = this.#again.shift() ?? this.#rest.shift() ?? this.#first();
    const { id, attempt, group } = open;
    const episode = leasedName(id);
    const { leaseSeconds } = this.#config;
    this.#held.set(episode, { ...open, until: this.#now() + leaseSeconds * 1000, rewarded: false });
    const task = this.#tasks[id];
    return { episode, id, attempt, ...(group && { group: group.name }), task, lease_seconds: leaseSeconds };
  }

  /** The next task, for the first time; the others of its group follow. */
  #first(): Open {
    const { groupSize } = this.#config;
    const id = this.#choose();
    if (groupSize === 1) return { id, attempt: 1, earlier: [] };
    const open = { id, attempt: 1, earlier: [], group: { name: leasedName(id), closed: false } };
    for (let i = 1; i < groupSize; i++) this.#rest.push({ ...open });
    return open;
  }

  /** Extends a lease. Returns false if it has ended. */
  renew(episode: string): boolean {
    this.#expire();
    const held = this.#held.get(episode);
    if (held === undefined) return false;
    this.#held.delete(episode);
    this.#held.set(episode, { ...held, until: this.#now() + this.#config.leaseSeconds * 1000 });
    return true;
  }

  /** Gives a task back, to be leased again. Returns false if the lease has ended. */
  release(episode: string): boolean {
    this.#expire();
    const held = this.#held.get(episode);
    if (held === undefined) return false;
    this.#held.delete(episode);
    this.#leaseAgain(episode, held, held.attempt);
    return true;
  }

  /**
   * Ends the lease of an episode that was recorded. If it had ended before, its task is not leased
   * again. Other episodes are ignored.
   */
  finish(episode: string, success: boolean): void {
    const id = this.#held.get(episode)?.id ?? this.#finishLate(episode);
    if (id === undefined) return;
    this.#held.delete(episode);
    this.#played[id]!++;
    if (success) this.#succeeded[id]!++;
  }

  /** Returns the number of the task if it was going to be leased again, or is. */
  #finishLate(episode: string): number | undefined {
    const waiting = this.#again.find(({ earlier }) => earlier.includes(episode));
    if (waiting !== undefined) {
      this.#again = this.#again.filter((open) => open !== waiting);
      return waiting.id;
    }
    const held = [...this.#held.values()].find(({ earlier }) => earlier.includes(episode));
    if (held !== undefined) held.rewarded = true;
    return held?.id;
  }

  #expire(): void {
    for (const [episode, held] of this.#held) {
      if (held.until > this.#now()) return;
      this.#held.delete(episode);
      this.expired++;
      this.#leaseAgain(episode, held, held.attempt + 1);
    }
  }

  /** Lets a task be leased again whose lease ended, or passes it over. */
  #leaseAgain(episode: string, { id, group, earlier, rewarded }: Held, attempt: number): void {
    if (rewarded || group?.closed) return;
    if (attempt <= this.#config.maxAttempts) {
      this.#again.push({
        id,
        attempt,
        ...(group && { group }),
        earlier: [...earlier.slice(1 - maxEarlier), episode],
      });
      return;
    }
    this.passedOver++;
    if (group === undefined) return;
    group.closed = true;
    this.#again = this.#again.filter((open) => open.group !== group);
    this.#rest = this.#rest.filter((open) => open.group !== group);
  }

  #choose(): number {
    const { order, seed } = this.#config;
    const count = this.#tasks.length;
    const number = this.#chosen++;
    if (order === "even") return number % count;
    // The variance p (1 - p), with p estimated as if each task had succeeded once and failed once.
    const weights = this.#tasks.map((_, i) => {
      const p = (this.#succeeded[i]! + 1) / (this.#played[i]! + 2);
      return p * (1 - p);
    });
    let left = uniform(seed, streams.taskOrder, number) * weights.reduce((sum, weight) => sum + weight, 0);
    for (const [i, weight] of weights.entries()) {
      left -= weight;
      if (left < 0) return i;
    }
    return count - 1;
  }
}
