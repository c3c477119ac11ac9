/**
 * Tasks for harnesses that fetch them: each is leased to one client under the name of an episode. A
 * task whose lease ends without a reward is leased again.
 */

import { randomUUID } from "node:crypto";
import { z } from "zod";
import { streams, uniform } from "../base/random.ts";

export const tasksConfig = z.strictObject({
  /** Seconds until a task without a reward is leased again. Default 600. */
  leaseSeconds: z.number().positive().default(600),
  /** Leases of a task that may end without a reward before it is passed over. Default 3. */
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

/** A task to be leased. */
interface Open {
  id: number;
  attempt: number;
  group?: string;
}

interface Held extends Open {
  /** Milliseconds of `now` at which it ends. */
  until: number;
}

export class Tasks {
  readonly #tasks: readonly unknown[];
  readonly #config: TasksConfig;
  readonly #now: () => number;
  readonly #held = new Map<string, Held>();
  /** Tasks whose lease ended without a reward. */
  readonly #again: Open[] = [];
  /** The rest of the group whose task was leased last. */
  readonly #rest: Open[] = [];
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

  get size(): number {
    return this.#tasks.length;
  }

  /** Number of tasks that are leased now. */
  get leased(): number {
    this.#expire();
    return this.#held.size;
  }

  /** Leases the next task; undefined without tasks. */
  next(): Lease | undefined {
    if (this.#tasks.length === 0) return undefined;
    this.#expire();
    const open = this.#again.shift() ?? this.#rest.shift() ?? this.#first();
    const episode = `task-${open.id}-${randomUUID()}`;
    const { leaseSeconds } = this.#config;
    this.#held.set(episode, { ...open, until: this.#now() + leaseSeconds * 1000 });
    return { episode, ...open, task: this.#tasks[open.id], lease_seconds: leaseSeconds };
  }

  /** The next task, for the first time; the others of its group follow. */
  #first(): Open {
    const { groupSize } = this.#config;
    const id = this.#choose();
    if (groupSize === 1) return { id, attempt: 1 };
    const open = { id, attempt: 1, group: `task-${id}-${randomUUID()}` };
    for (let i = 1; i < groupSize; i++) this.#rest.push({ ...open });
    return open;
  }

  /** Extends a lease. Returns false if it has ended. */
  renew(episode: string): boolean {
    this.#expire();
    const held = this.#held.get(episode);
    if (held === undefined) return false;
    held.until = this.#now() + this.#config.leaseSeconds * 1000;
    return true;
  }

  /** Gives a task back, to be leased again. Returns false if the lease has ended. */
  release(episode: string): boolean {
    this.#expire();
    const held = this.#held.get(episode);
    if (held === undefined) return false;
    this.#held.delete(episode);
    const { until: _, ...open } = held;
    this.#again.push(open);
    return true;
  }

  /** Ends the lease of an episode that was recorded; other episodes are ignored. */
  finish(episode: string, success: boolean): void {
    const held = this.#held.get(episode);
    if (held === undefined) return;
    this.#held.delete(episode);
    this.#played[held.id]!++;
    if (success) this.#succeeded[held.id]!++;
  }

  #expire(): void {
    for (const [episode, { until, ...open }] of this.#held) {
      if (until > this.#now()) continue;
      this.#held.delete(episode);
      this.expired++;
      const attempt = open.attempt + 1;
      if (attempt <= this.#config.maxAttempts) this.#again.push({ ...open, attempt });
      else this.passedOver++;
    }
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
