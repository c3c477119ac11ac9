/** What a served model may be asked: so much at once, and so much in all. */

import { NlacError } from "../base/errors.ts";
import type { Usage } from "../contract/environment.ts";

/** What a service may take since it was opened. */
export interface Budget {
  /** Tokens of prompts and replies together. Default: no limit. */
  tokens?: number;
  /** US dollars; needs a `price`. Default: no limit. */
  cost?: number;
}

/** Throws ERR_BUDGET where `used` has reached the budget. */
export function checkBudget(model: string, { tokens, cost }: Budget, used: Usage): void {
  const taken = used.promptTokens + used.completionTokens;
  if (tokens !== undefined && taken >= tokens)
    throw new NlacError(
      "ERR_BUDGET",
      `The budget of ${model} is spent: ${taken} of ${tokens} tokens. Nothing more is asked of it.`,
    );
  if (cost !== undefined && used.cost >= cost)
    throw new NlacError(
      "ERR_BUDGET",
      `The budget of ${model} is spent: $${used.cost.toFixed(4)} of $${cost}. Nothing more is asked of it.`,
    );
}

interface Waiting {
  number: number;
  enter: () => void;
}

/** So many places for requests that are under way; whoever came first gets the next one that is free. */
export class Places {
  #free: number;
  /** By their numbers. */
  readonly #waiting: Waiting[] = [];
  #numbers = 0;

  constructor(places: number) {
    this.#free = places;
  }

  /** Where a request stands in the order: its further attempts go before requests that came after it. */
  number(): number {
    return this.#numbers++;
  }

  /** What `work` gives, once there is a place for it. Throws the signal's reason if that fires while it waits. */
  async within<T>(number: number, signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    await this.#enter(number, signal);
    try {
      signal?.throwIfAborted(); // a place may come in the very moment
      return await work();
    } finally {
      // A place is handed on, so that nobody who comes now takes it from those who wait.
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
