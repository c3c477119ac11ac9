/**
 * Joins the generation requests of episodes that run side by side into batches. One batch runs at a
 * time. The next starts when every episode waits for it or, with a finite patience, when the first
 * request has waited that long, so that a slow environment does not hold up the others.
 */

import type { NlacError } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";
import type { GenerateRequest, Generation, LanguageModel } from "../model/language-model.ts";

/**
 * A language model, or a service whose reply may fail; an error then takes the reply's place.
 */
export interface Player extends Pick<LanguageModel, "conversation" | "maxPositions" | "rollouts"> {
  /**
   * Batching does not help here (a remote service batches requests itself), so each request is
   * sent at once.
   */
  readonly unbatched?: boolean;
  generate(
    requests: readonly GenerateRequest[],
    options?: { signal?: AbortSignal | undefined },
  ): Promise<(Generation | NlacError)[]>;
}

interface Waiting {
  order: number;
  request: GenerateRequest;
  resolve: (written: Generation | NlacError) => void;
  reject: (error: unknown) => void;
}

export class Batches {
  readonly #player: Pick<Player, "unbatched" | "generate">;
  readonly #patience: number;
  readonly #signal: AbortSignal | undefined;
  #episodes: number;
  #waiting: Waiting[] = [];
  #writing = false;
  #timer: NodeJS.Timeout | undefined;

  /**
   * @param episodes number of episodes, each with at most one open request until it calls `leave`
   * @param patience longest wait of a request for the other episodes, in milliseconds
   */
  constructor(player: Player, episodes: number, patience: number, signal?: AbortSignal) {
    this.#player = player.rollouts ?? player;
    this.#episodes = episodes;
    this.#patience = patience;
    this.#signal = signal;
  }

  /** Generates for `request`. Requests of a batch are sorted by `order`, not by arrival. */
  async generate(order: number, request: GenerateRequest): Promise<Generation | NlacError> {
    if (this.#player.unbatched) {
      const [written] = await this.#player.generate([request], { signal: this.#signal });
      return written!;
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ order, request, resolve, reject });
      this.#next();
    });
  }

  /** Called when an episode has ended and makes no more requests. */
  leave(): void {
    this.#episodes--;
    this.#next();
  }

  /** Starts the next batch if it is due. */
  #next(): void {
    if (this.#writing || this.#waiting.length === 0) return;
    if (this.#waiting.length === this.#episodes) void this.#write();
    else if (this.#patience <= maxDelayMs)
      this.#timer ??= setTimeout(() => void this.#write(), this.#patience);
  }

  async #write(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#writing = true;
    const batch = this.#waiting.sort((a, b) => a.order - b.order);
    this.#waiting = [];
    try {
      const requests = batch.map(({ request }) => request);
      const written = await this.#player.generate(requests, { signal: this.#signal });
      for (const [i, { resolve }] of batch.entries()) resolve(written[i]!);
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
    this.#writing = false;
    this.#next();
  }
}
