/**
 * Joins what episodes that run side by side want to have written into batches. One batch is written at a time, and the
 * next one begins when every episode waits for it; or, where that is asked for, when the first has waited long enough,
 * so that a slow environment does not hold up the others.
 */

import type { NlacError } from "../base/errors.ts";
import type { GenerateRequest, Generation, LanguageModel } from "../model/language-model.ts";

/** What plays: a language model, or something whose reply may fail; the failure then stands in the reply's place. */
export interface Player extends Pick<LanguageModel, "conversation" | "maxPositions"> {
  /** Requests gain nothing by being made together, as at a service: each is made as soon as it is there. */
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
  readonly #player: Player;
  readonly #patience: number;
  readonly #signal: AbortSignal | undefined;
  #episodes: number;
  #waiting: Waiting[] = [];
  #writing = false;
  #timer: NodeJS.Timeout | undefined;

  /**
   * @param episodes that will ask, each for one text at a time, until it calls `leave`
   * @param patience milliseconds that a request waits for episodes that do not ask yet
   */
  constructor(player: Player, episodes: number, patience: number, signal?: AbortSignal) {
    this.#player = player;
    this.#episodes = episodes;
    this.#patience = patience;
    this.#signal = signal;
  }

  /** The text for `request`. A batch is in the order of `order`, whichever request came first. */
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

  /** One episode less will ask. */
  leave(): void {
    this.#episodes--;
    this.#next();
  }

  /** Begins the next batch, if it is time to. */
  #next(): void {
    if (this.#writing || this.#waiting.length === 0) return;
    if (this.#waiting.length === this.#episodes) void this.#write();
    else if (Number.isFinite(this.#patience))
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
