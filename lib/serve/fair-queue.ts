/**
 * Orders waiting work fairly between clients. The clients that have used the least time come first,
 * and of their requests the cheapest. One turn in four is the oldest request's, so that
 * each is served in the end, however many others arrive.
 */

import type { HttpBindings } from "@hono/node-server";
import type { Context } from "hono";
import { dropOldest } from "../base/drop-oldest.ts";

/** Who sent a request: its address, then its connection. */
export type ClientKeys = readonly string[];

export interface Waiting {
  client: ClientKeys;
  /** Estimated time or size, by which the requests of one client are compared. */
  cost: number;
}

/** Number of clients that are remembered. */
const maxRemembered = 1000;
/** The oldest request has one turn in as many. */
const turnsOfOldest = 4;

export class FairQueue<T extends Waiting> {
  /** In order of arrival. */
  readonly #waiting: T[] = [];
  /** Milliseconds that were used, by client. */
  readonly #spent = new Map<string, number>();
  #turns = 0;

  add(waiting: T): void {
    this.#waiting.push(waiting);
  }

  /** Takes out the request whose turn it is; undefined if none waits. */
  next(): T | undefined {
    const oldest = this.#waiting[0];
    if (oldest === undefined) return undefined;
    if (++this.#turns % turnsOfOldest === 0) return this.remove(oldest);
    const spent = ({ client }: T, i: number) => this.#spent.get(client[i] ?? "") ?? 0;
    const next = this.#waiting.reduce((best, one) => {
      const order = spent(one, 0) - spent(best, 0) || spent(one, 1) - spent(best, 1) || one.cost - best.cost;
      return order < 0 ? one : best;
    });
    return this.remove(next);
  }

  /** Takes out a request that waits. Undefined if it does not. */
  remove(waiting: T): T | undefined {
    const at = this.#waiting.indexOf(waiting);
    return at < 0 ? undefined : this.#waiting.splice(at, 1)[0];
  }

  /** Notes that a client has used `ms` milliseconds. */
  spend(client: ClientKeys, ms: number): void {
    for (const key of client) {
      const before = this.#spent.get(key) ?? 0;
      this.#spent.delete(key);
      this.#spent.set(key, before + ms);
      dropOldest(this.#spent, maxRemembered);
    }
  }
}

export function clientOf(c: Context): ClientKeys {
  const { remoteAddress = "", remotePort = 0 } = (c.env as HttpBindings).incoming.socket;
  return [remoteAddress, `${remoteAddress} ${remotePort}`];
}
