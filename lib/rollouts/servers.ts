/**
 * The inference servers of a run: which version each has, which one answers a request, and what
 * happens when one fails. Every accepted answer was written by one known version of the weights.
 */

import { setTimeout as sleep } from "node:timers/promises";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { PrefixPlaces } from "../ranks/shares.ts";
import type { ActionRequest, Answer, Engine, Server, Weights } from "./engine.ts";
import { HttpFault } from "./http.ts";

export interface ServersOptions {
  engine: Engine;
  urls: readonly string[];
  kind: Weights["kind"];
  /** Called when a server is given up. */
  warn: (line: string) => void;
  /** Milliseconds without a usable answer after which a server is given up. Default 60,000. */
  patienceMs?: number | undefined;
}

interface Place {
  readonly server: Server;
  /** What it answers with; undefined before the first version, and while another one is loaded. */
  weights: Weights | undefined;
  running: number;
  /** When its answers began to fail; undefined after a usable one. */
  failingSince: number | undefined;
  /** Until then others are preferred. */
  restUntil: number;
  /** Why it is given up. */
  fault: Error | undefined;
}

/** Bounds of the pause before a request is repeated, in milliseconds. */
const pauseMs = { first: 250, most: 8000 };
/** How long a server that failed rests, in milliseconds, if there are others. */
const restMs = 5000;
/**
 * A server with a cached prefix may have this multiple of another's requests, and a few more.
 */
const cacheLoad = { factor: 2, more: 8 };

export class Servers {
  readonly #engine: Engine;
  readonly #places: Place[];
  readonly #warn: (line: string) => void;
  readonly #patienceMs: number;
  readonly #prefixes: PrefixPlaces;
  /** Whether servers must have been given weights before they answer. */
  readonly #takesWeights: boolean;
  #switching: Promise<void> = Promise.resolve();
  /** Answers that were not accepted because of their version. */
  refused = 0;

  private constructor(engine: Engine, servers: readonly Server[], options: ServersOptions, fixed: boolean) {
    this.#engine = engine;
    this.#places = servers.map((server) => ({
      ...{ server, weights: undefined, running: 0, failingSince: undefined, restUntil: 0, fault: undefined },
    }));
    this.#warn = options.warn;
    this.#patienceMs = options.patienceMs ?? 60_000;
    this.#prefixes = new PrefixPlaces(servers.length);
    this.#takesWeights = !fixed;
  }

  /**
   * Connects to all servers.
   * @param fixed whether they keep their own weights
   * @throws NlacError ERR_ROLLOUTS if one does not answer or lacks a call
   */
  static async open(options: ServersOptions, fixed: boolean): Promise<Servers> {
    const { engine, urls, kind } = options;
    const opened = urls.map(async (url) => {
      try {
        return await engine.open(url, kind);
      } catch (error) {
        throw coded(error);
      }
    });
    return new Servers(engine, await Promise.all(opened), options, fixed);
  }

  /** Longest context that all servers have, if they say so. */
  get maxPositions(): number {
    return Math.min(...this.#places.map(({ server }) => server.maxPositions ?? Number.POSITIVE_INFINITY));
  }

  /** One line per server. */
  describe(): string[] {
    return this.#places.map(({ server }) => `${server.url}: ${server.about}, model ${server.model}`);
  }

  /** Number of servers that are not given up. */
  get usable(): number {
    return this.#places.filter(({ fault }) => fault === undefined).length;
  }

  /**
   * Gives all servers new weights, and frees the version that they had. Answers that began before
   * are refused. A server that fails is given up as it is: paused, and perhaps with parts of both
   * versions.
   *
   * @throws NlacError ERR_ROLLOUTS if none is left
   */
  async install(weights: Weights): Promise<void> {
    const before = this.#switching;
    const switched = before.then(() => this.#install(weights));
    this.#switching = switched.catch(() => {});
    return switched;
  }

  async #install(weights: Weights): Promise<void> {
    this.#prefixes.clear();
    const work = this.#places.map(async (place) => {
      if (place.fault !== undefined) return;
      const earlier = place.weights;
      place.weights = undefined;
      try {
        await this.#engine.install(place.server, weights);
      } catch (error) {
        const left = weights.kind === "model" ? " It is left as it is, perhaps paused: restart it." : "";
        this.#giveUp(place, new Error(`${weights.label} was not installed: ${messageOf(error)}${left}`));
        return;
      }
      place.weights = weights;
      place.failingSince = undefined;
      if (earlier) await this.#engine.release(place.server, earlier).catch(() => {}); // costs memory only
    });
    await Promise.all(work);
    this.#requireOne();
  }

  /** Frees the last version on all servers. */
  async close(): Promise<void> {
    await this.#switching;
    const installed = this.#places.filter(({ fault, weights }) => fault === undefined && weights);
    await Promise.allSettled(installed.map(({ server, weights }) => this.#engine.release(server, weights!)));
  }

  /**
   * The answer of one server, written by the version that it has.
   *
   * @throws NlacError ERR_ROLLOUTS if a server refuses the request or none is left; ERR_ABORTED
   */
  async generate(request: ActionRequest, signal: AbortSignal | undefined): Promise<Answer> {
    for (let attempt = 0; ; attempt++) {
      throwIfAborted(signal);
      for (let seen: unknown; seen !== this.#switching; ) {
        seen = this.#switching;
        await seen;
      }
      const place = this.#choose(request.tokens);
      const { weights } = place;
      const answer = await this.#ask(place, request, signal);
      const current = place.weights === weights && place.fault === undefined;
      if (answer !== undefined) {
        const named = answer.label === undefined || answer.label === weights?.label;
        if (current && named && !answer.aborted) {
          place.failingSince = undefined;
          this.#prefixes.note([...request.tokens, ...answer.tokens], "", this.#places.indexOf(place));
          return answer;
        }
        this.refused++;
        if (current && !named)
          this.#failing(place, `It answers with the weights ${answer.label}, not ${weights?.label}.`);
        else if (current) this.#failing(place, "It gives up requests.");
      }
      // After a switch there is nothing to wait for.
      if (!current) continue;
      const bound = Math.min(pauseMs.first * 2 ** attempt, pauseMs.most);
      await sleep(bound * (0.5 + Math.random() / 2), undefined, { signal }).catch(() => {});
    }
  }

  /** Undefined if the server failed in a way that may pass. */
  async #ask(
    place: Place,
    request: ActionRequest,
    signal: AbortSignal | undefined,
  ): Promise<Answer | undefined> {
    const { weights } = place;
    place.running++;
    try {
      return await this.#engine.generate(place.server, request, weights, signal);
    } catch (error) {
      throwIfAborted(signal);
      if (!(error instanceof HttpFault)) throw error;
      if (place.weights !== weights) return undefined;
      // An adapter that is missing: the server was restarted.
      if (error.isTransient || (error.isMissing && weights?.kind === "adapter")) {
        this.#failing(place, error.message);
        return undefined;
      }
      throw coded(error);
    } finally {
      place.running--;
    }
  }

  /**
   * The server that has the request's prefix in its cache, if it is not busy; else the least busy
   * one.
   */
  #choose(tokens: readonly number[]): Place {
    this.#requireOne();
    const usable = this.#places.filter(
      ({ fault, weights }) => fault === undefined && (weights !== undefined || !this.#takesWeights),
    );
    if (usable.length === 0) throw new NlacError("ERR_INTERNAL", "No weights have been installed.");
    const rested = usable.filter(({ restUntil }) => restUntil <= performance.now());
    const among = rested.length > 0 ? rested : usable;
    const least = among.reduce((a, b) => (b.running < a.running ? b : a));
    const owner = this.#places[this.#prefixes.owner(tokens, "") ?? -1];
    const isFree = owner && owner.running <= cacheLoad.factor * least.running + cacheLoad.more;
    return isFree && among.includes(owner) ? owner : least;
  }

  #failing(place: Place, why: string): void {
    place.failingSince ??= performance.now();
    place.restUntil = performance.now() + restMs;
    if (performance.now() - place.failingSince >= this.#patienceMs) this.#giveUp(place, new Error(why));
  }

  #giveUp(place: Place, fault: Error): void {
    if (place.fault !== undefined) return;
    place.fault = fault;
    place.weights = undefined;
    this.#warn(`rollouts: ${place.server.url} is not used any more. ${fault.message}`);
  }

  #requireOne(): void {
    if (this.usable > 0) return;
    const reasons = this.#places.map(({ server, fault }) => `${server.url}: ${fault?.message}`);
    throw new NlacError("ERR_ROLLOUTS", `No inference server is left. ${reasons.join(" ")}`);
  }
}

function coded(error: unknown): NlacError {
  if (error instanceof NlacError) return error;
  return new NlacError("ERR_ROLLOUTS", messageOf(error), { cause: error });
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
