/**
 * Orders the requests whose grammars must be compiled. Compilation takes from milliseconds to
 * seconds, and the core compiles one grammar at a time. Grammars that would take too long are refused.
 */

import { createHash } from "node:crypto";
import { dropOldest } from "../base/drop-oldest.ts";
import type { Grammar } from "../model/grammar.ts";
import { type ClientKeys, FairQueue, type Waiting } from "./fair-queue.ts";

/** Maximum estimate of the compile time, in milliseconds on a vocabulary of 50,000 tokens. */
export const maxCompileMs = 4000;
/** Milliseconds after which the next grammar is compiled even if the previous one is not done. */
const patienceMs = 10_000;
/** Number of grammars that are remembered. */
const maxRemembered = 1000;

export class GrammarQueue {
  /** Hashes of the grammars that were compiled, the last used last. */
  readonly #known = new Set<string>();
  readonly #waiting = new FairQueue<Waiting & { begin: () => void }>();
  #compiling = false;

  /**
   * Calls `start` when the grammar may be compiled.
   * @param start calls its argument when the grammar is compiled, at the first token
   */
  async run<T>(
    grammar: Grammar,
    client: ClientKeys,
    start: (compiled: () => void) => Promise<T>,
  ): Promise<T> {
    const key = createHash("sha256").update(JSON.stringify(grammar)).digest("base64");
    if (this.#known.has(key)) {
      this.#remember(key);
      return start(() => {});
    }
    await new Promise<void>((begin) => {
      this.#waiting.add({ client, cost: compileMs(grammar), begin });
      if (!this.#compiling) this.#next();
    });
    const begun = performance.now();
    let over = false;
    const done = () => {
      if (over) return;
      over = true;
      clearTimeout(timer);
      this.#waiting.spend(client, performance.now() - begun);
      this.#next();
    };
    const timer = setTimeout(done, patienceMs).unref();
    try {
      const result = await start(done);
      this.#remember(key);
      return result;
    } finally {
      done();
    }
  }

  #next(): void {
    const next = this.#waiting.next();
    this.#compiling = next !== undefined;
    next?.begin();
  }

  #remember(key: string): void {
    this.#known.delete(key);
    this.#known.add(key);
    dropOldest(this.#known, maxRemembered);
  }
}

/**
 * A rough estimate of a grammar's compile time, in milliseconds on a vocabulary of 50,000 tokens.
 * What counts: optional keys, quadratically, because each may be followed by any later one; and the
 * positions in texts of limited length and in patterns, each distinct one once.
 */
export function compileMs(grammar: Grammar): number {
  const texts = new Map<string, number>();
  let quadratic = 0;
  const visit = (value: unknown): void => {
    if (typeof value !== "object" || value === null) return;
    const { properties, required, pattern, maxLength, minLength } = value as Record<string, unknown>;
    if (typeof properties === "object" && properties !== null) {
      const needed = Array.isArray(required) ? new Set(required).size : 0;
      quadratic += Math.max(0, Object.keys(properties).length - needed) ** 2;
    }
    const length = Math.max(lengthOf(maxLength), lengthOf(minLength));
    if (length > 0) texts.set(`length ${lengthOf(minLength)} ${lengthOf(maxLength)}`, length);
    if (typeof pattern === "string") texts.set(`pattern ${pattern}`, 2 * positionsIn(pattern));
    for (const inner of Object.values(value)) visit(inner);
  };
  visit(grammar);
  const positions = [...texts.values()].reduce((sum, count) => sum + count, 0);
  return 0.006 * quadratic + 1.3 * positions;
}

/** Long limits are compiled to a counter, so they cost no more than this. */
const longestCounted = 1000;

function lengthOf(limit: unknown): number {
  return typeof limit === "number" && limit > 0 ? Math.min(limit, longestCounted) : 0;
}

/** Characters of a pattern, each as often as its group's repetitions say. */
function positionsIn(pattern: string): number {
  const repeats = [...pattern.matchAll(/\{(\d+)(?:,(\d*))?\}/g)];
  return pattern.length + repeats.reduce((sum, [, least, most]) => sum + lengthOf(Number(most || least)), 0);
}
