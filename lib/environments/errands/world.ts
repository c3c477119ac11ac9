/**
 * The hidden part of the world: which things an errand takes in which order, and the desk's
 * reactions. Pure functions, including the exact success rate of a policy, which measures learning
 * without noise.
 */

import { getOrAdd } from "../../base/get-or-add.ts";
import { streams, uniform } from "../../base/random.ts";
import { composedKind, composedParts, type Ending, type Event, kinds, things } from "./words.ts";

/** A kind of errand. */
export interface Errand {
  kind: string;
  /** The things it takes, in order. */
  chain: readonly string[];
  /** Things that the desk takes by mistake, each with the step it replaces. */
  deadEnds: ReadonlyMap<string, number>;
}

/** An errand in progress. */
export interface Progress {
  /** Things the desk has taken. */
  brought: readonly string[];
  movesLeft: number;
  /** The dead end that was taken, if any: the errand can no longer be completed. */
  lostOver?: string | undefined;
}

/** A stream of numbers in [0, 1), the only source of randomness here. */
export type Random = () => number;

export function randomFrom(seed: number): Random {
  let counter = 0;
  return () => uniform(seed, streams.world, counter++);
}

/** A whole number in [0, below). */
export function pick(random: Random, below: number): number {
  return Math.floor(random() * below);
}

export function shuffled<T>(values: readonly T[], random: Random): T[] {
  const result = [...values];
  for (let i = result.length - 1; i > 0; i--) {
    const j = pick(random, i + 1);
    [result[i], result[j]] = [result[j]!, result[i]!];
  }
  return result;
}

/** An errand with a random order and dead ends before its last step. */
export function makeErrand(kind: string, length: number, deadEnds: number, random: Random): Errand {
  const order = shuffled(things, random);
  return {
    kind,
    chain: order.slice(0, length),
    deadEnds: new Map(
      order.slice(length, length + deadEnds).map((thing) => [thing, pick(random, length - 1)]),
    ),
  };
}

/** `count` errands of different kinds. */
export function makeErrands(
  seed: number,
  shape: { kinds: number; chain: number; deadEnds: number },
): Errand[] {
  const random = randomFrom(seed);
  return shuffled(kinds, random)
    .slice(0, shape.kinds)
    .map((kind) => makeErrand(kind, shape.chain, shape.deadEnds, random));
}

/**
 * All composed kinds in random order. Each part decides one thing, drawn by `seed`, that no other
 * part decides.
 */
export function makeComposedErrands(seed: number): Errand[] {
  const random = randomFrom(seed);
  const left = shuffled(things, random);
  const [first, second, third] = composedParts.map((values) =>
    values.map((value) => ({ value, thing: left.pop()! })),
  );
  const combinations = first!.flatMap((a) => second!.flatMap((b) => third!.map((c) => [a, b, c])));
  const errands = combinations.map((parts) => ({
    kind: composedKind(parts.map(({ value }) => value)),
    chain: parts.map(({ thing }) => thing),
    deadEnds: new Map<string, number>(),
  }));
  return shuffled(errands, random);
}

/** The next thing that the errand takes. */
export function wanted(errand: Errand, progress: Progress): string {
  return errand.chain[progress.brought.length]!;
}

/** Whether the desk would now take `thing` by mistake, which loses the errand. */
export function isDeadEnd(errand: Errand, progress: Progress, thing: string): boolean {
  return errand.deadEnds.get(thing) === progress.brought.length;
}

/** Makes one move. `explains`: whether the desk, if it refuses the thing, says what it wants. */
export function bring(
  errand: Errand,
  progress: Progress,
  thing: string,
  explains: boolean,
): { progress: Progress; event: Event; ending?: Ending } {
  const movesLeft = progress.movesLeft - 1;
  const right = wanted(errand, progress);
  const deadEnd = isDeadEnd(errand, progress, thing);
  if (thing !== right && !deadEnd) {
    return {
      progress: { ...progress, movesLeft },
      event: explains ? { kind: "wants", thing: right } : { kind: "refused" },
      ...(movesLeft === 0 ? { ending: { kind: "late" } } : {}),
    };
  }
  const lostOver = progress.lostOver ?? (deadEnd ? thing : undefined);
  const after: Progress = {
    brought: [...progress.brought, thing],
    movesLeft,
    ...(lostOver === undefined ? {} : { lostOver }),
  };
  let ending: Ending | undefined;
  if (after.brought.length === errand.chain.length) {
    ending = lostOver === undefined ? { kind: "done" } : { kind: "lost", over: lostOver };
  } else if (movesLeft === 0) {
    ending = { kind: "late" };
  }
  return { progress: after, event: { kind: "took", thing }, ...(ending === undefined ? {} : { ending }) };
}

/** What the player sees of a move: everything, or an end that does not name the dead end. */
export function shown(
  move: { event: Event; ending?: Ending },
  namesDeadEnd: boolean,
): { event: Event; ending?: Ending } {
  if (namesDeadEnd || move.ending?.kind !== "lost") return move;
  return { event: { kind: "refused" }, ending: { kind: "late" } };
}

/** State of a policy, as far as `successRate` distinguishes states. */
export interface ErrandState {
  errand: Errand;
  /** Number of things taken so far. */
  step: number;
  movesLeft: number;
  /** Whether the desk has just said what it wants. */
  told: boolean;
  /** Number of dead ends that the desk would take now. */
  deadEnds: number;
}

/**
 * Probabilities of bringing the wanted thing, and of bringing any dead end that the desk would take
 * now.
 */
export type ErrandPolicy = (state: ErrandState) => { right: number; deadEnd?: number };

/**
 * The exact probability that `policy` completes an errand, by dynamic programming over steps and
 * moves left.
 *
 * @param moves moves of the errand
 * @param explained share of refusals that the desk explains
 */
export function successRate(errand: Errand, moves: number, explained: number, policy: ErrandPolicy): number {
  const length = errand.chain.length;
  const known = new Map<string, number>();
  const rate = (step: number, movesLeft: number, told: boolean): number => {
    if (step === length) return 1;
    if (length - step > movesLeft) return 0;
    return getOrAdd(known, `${step} ${movesLeft} ${told}`, () => {
      const deadEnds = [...errand.deadEnds.values()].filter((at) => at === step).length;
      const { right, deadEnd = 0 } = policy({ errand, step, movesLeft, told, deadEnds });
      const failed =
        explained * rate(step, movesLeft - 1, true) + (1 - explained) * rate(step, movesLeft - 1, false);
      // After a dead end the errand fails whatever follows.
      return right * rate(step + 1, movesLeft - 1, false) + (1 - right - deadEnd) * failed;
    });
  };
  return rate(0, moves, false);
}
