/** Limits of a service: concurrent requests and total budget. */

import { NlacError } from "../base/errors.ts";
import type { Usage } from "../contract/environment.ts";

/** Budget of a service since it was opened. */
export interface Budget {
  /** Tokens of prompts and replies together. Default: no limit. */
  tokens?: number;
  /** US dollars; needs a `price`. Default: no limit. */
  cost?: number;
}

/** Throws ERR_BUDGET if `used` has reached the budget. */
export function checkBudget(model: string, { tokens, cost }: Budget, used: Usage): void {
  const taken = used.promptTokens + used.completionTokens;
  if (tokens !== undefined && taken >= tokens)
    throw new NlacError(
      "ERR_BUDGET",
      `The budget of ${model} is spent: ${taken} of ${tokens} tokens. No further requests are sent.`,
    );
  if (cost !== undefined && used.cost >= cost)
    throw new NlacError(
      "ERR_BUDGET",
      `The budget of ${model} is spent: $${used.cost.toFixed(4)} of $${cost}. No further requests are sent.`,
    );
}

interface Waiting {
  number: number;
  enter: () => void;
}

/** A semaphore for concurrent requests, in order of arrival. */
export class Places {
  #free: number;
  /** Sorted by number. */
  readonly #waiting: Waiting[] = [];
  #numbers = 0;

  constructor(places: number) {
    this.#free = places;
  }

  /** A request's place in the queue: its retries go before later requests. */
  number(): number {
    return this.#numbers++;
  }

  /**
   * Runs `work` once a place is free and returns its result. Throws the signal's reason if that
   * fires during the wait.
   */
  async within<T>(number: number, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    await this.#enter(number, signal);
    try {
      signal?.throwIfAborted(); // the signal may fire in the moment in which the place is granted
      return await work();
    } finally {
      // Passes the place to the next in the queue, so that a new request cannot overtake it.
      const next = this.#waiting.shift();
      if (next === undefined) this.#free++;
      else next.enter();
    }
  }

  async #enter(number: number, signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted();
    if (this.#free > 0) {
      this.#free--;
      return;
    }
    let leave = () => {};
    await new Promise<void>((resolve, reject) => {
      const waiting = { number, enter: resolve };
      const behind = this.#waiting.findLastIndex((other) => other.number < number);
      this.#waiting.splice(behind + 1, 0, waiting);
      leave = () => {
        const place = this.#waiting.indexOf(waiting);
        if (place >= 0) this.#waiting.splice(place, 1);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", leave, { once: true });
    }).finally(() => signal?.removeEventListener("abort", leave));
  }
}
