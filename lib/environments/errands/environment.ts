/**
 * Errands: a small world in which the optimal behaviour is known. Each kind of errand has a hidden
 * order in which the desk takes things. A wrong thing changes nothing, and the desk says what it
 * wants first. The reward is 1 for an errand completed within its moves, else 0.
 *
 * It is made for studying how a method learns. An episode has six short moves, a model of half a
 * million parameters can learn it (model.ts), and the success rate of a policy can be computed
 * exactly (world.ts). Options make it harder, by removing explanations or by hiding mistakes until
 * the end.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { streams, uniform } from "../../base/random.ts";
import { checkConfig, inOption } from "../../base/validation.ts";
import type { Action, Environment, Episode, StartOptions, StepResult } from "../../contract/environment.ts";
import { checkSplit, episodeOver } from "../errors.ts";
import { demonstrate } from "./demonstrate.ts";
import {
  composedRules,
  deadEndIn,
  deskText,
  eventAgreement,
  foretoldSuccess,
  kinds,
  phrases,
  rules,
  thingIn,
  things,
  thoughtText,
} from "./words.ts";
import {
  bring,
  type Errand,
  type ErrandPolicy,
  makeComposedErrands,
  makeErrands,
  type Progress,
  shown,
  successRate,
} from "./world.ts";

const errandsOptions = z
  .strictObject({
    /** Number of kinds of errand. Default 8; 90 if composed. */
    kinds: z.int().min(1).max(kinds.length).optional(),
    /** Number of things an errand takes. Default 4; 3 if composed. */
    chain: z.int().min(2).max(9).optional(),
    /**
     * Kinds have three parts, such as "nurse's visa for Peru", and each part decides one thing: 60
     * kinds to train on and 30 held out, whose orders follow from the others'. Default false.
     */
    composed: z.boolean().default(false),
    /** Moves per errand. Default 6. */
    moves: z.int().min(1).max(9).default(6),
    /**
     * Share of refusals in which the desk says what it wants; in the others it says nothing.
     * Default 1.
     */
    explained: z.number().min(0).max(1).default(1),
    /**
     * Number of things per errand that the desk takes by mistake in place of a step before the
     * last. Nothing shows until the last thing is brought, which ends the errand. Default 0.
     */
    deadEnds: z.int().min(0).default(0),
    /**
     * Whether the end of an errand lost by a dead end names the dead end. If not, the last thing is
     * refused without explanation and the office closes. Default true.
     */
    namesDeadEnd: z.boolean().default(true),
    /** Determines the hidden orders. Default 0. */
    seed: z.int().min(0).default(0),
  })
  .refine(
    ({ composed, kinds, chain, deadEnds }) =>
      !composed || (kinds === undefined && chain === undefined && deadEnds === 0),
    "composed kinds have their own number, take three things and have no dead ends",
  )
  .transform(({ kinds = 8, chain, ...options }) => ({
    ...options,
    kinds,
    chain: chain ?? (options.composed ? 3 : 4),
  }))
  .refine(({ chain, moves }) => chain <= moves, "an errand cannot take more things than it has moves")
  .refine(
    ({ chain, deadEnds }) => chain + deadEnds <= things.length,
    `there are ${things.length} things, too few for the chain and its dead ends`,
  );

/** Options of `environments.errands`. */
export type ErrandsOptions = z.input<typeof errandsOptions>;

function checkOptions(options: ErrandsOptions): z.output<typeof errandsOptions> {
  return inOption("errands", () => checkConfig(errandsOptions, options));
}

/**
 * The exact success probability of `policy` on `errands(options)`, averaged over kinds; `evaluate`
 * estimates it by playing episodes.
 *
 * @throws NlacError ERR_CONFIG for invalid options
 */
export function errandsSuccessRate(options: ErrandsOptions, policy: ErrandPolicy): number {
  const { moves, explained, ...shape } = checkOptions(options);
  const all = makeAll(shape);
  return all.reduce((sum, errand) => sum + successRate(errand, moves, explained, policy), 0) / all.length;
}

function makeAll({ composed, seed, ...shape }: Omit<z.output<typeof errandsOptions>, "moves" | "explained">) {
  return composed ? makeComposedErrands(seed) : makeErrands(seed, shape);
}

/** Composed kinds to train on; the others are held out. */
const composedToTrain = 60;

/** A task of Errands. */
export interface ErrandsTask {
  /** The kind of errand. */
  kind: string;
  split: "train" | "test";
}

function pairs(things: readonly string[]): [string, string][] {
  return things.flatMap((a, i) => things.slice(i + 1).map((b): [string, string] => [a, b]));
}

function nameOf({ kind, split }: ErrandsTask): string {
  return split === "train" ? kind : `${kind} (${split})`;
}

/** The environment of errands. Throws ERR_CONFIG for invalid options. */
export function errands(options: ErrandsOptions = {}): Environment<ErrandsTask> {
  const shape = checkOptions(options);
  const { moves, explained, deadEnds, namesDeadEnd, composed } = shape;
  const all = new Map<string, Errand>(makeAll(shape).map((errand) => [errand.kind, errand]));

  async function start(task: ErrandsTask, { seed, signal }: StartOptions): Promise<Episode> {
    throwIfAborted(signal);
    const errand = all.get(task.kind);
    if (errand === undefined)
      throw new NlacError("ERR_ENVIRONMENT", `errands: there is no errand "${task.kind}".`);
    let progress: Progress = { brought: [], movesLeft: moves };
    let over = false;
    return {
      observation: {
        messages: [
          { role: "system", content: composed ? composedRules : rules },
          { role: "user", content: deskText(undefined, { kind: errand.kind, ...progress }) },
        ],
      },
      async step(action: Action): Promise<StepResult> {
        if (over) throw episodeOver("errands");
        throwIfAborted(signal);
        const explains = uniform(seed, streams.world, progress.movesLeft) < explained;
        const move = bring(errand, progress, action.text.trim(), explains);
        progress = move.progress;
        over = move.ending !== undefined;
        const { event, ending } = shown(move, namesDeadEnd);
        return {
          observation: [
            { role: "user", content: deskText(event, { kind: errand.kind, ...progress }, ending) },
          ],
          reward: move.ending?.kind === "done" ? 1 : 0,
          terminated: over,
          truncated: false,
          info: { event: move.event, ...(move.ending === undefined ? {} : { ending: move.ending.kind }) },
        };
      },
      privileged: () => ({
        secret: errand.chain.join(", "),
        // Naming one thing is an action like any other; two that the desk has not named are an
        // order.
        hidden: [...pairs(errand.chain), ...(progress.lostOver === undefined ? [] : [progress.lostOver])],
        ...(progress.lostOver === undefined
          ? progress.brought.length === errand.chain.length
            ? {}
            : { failureReason: "The moves ran out." }
          : { failureReason: `The desk took the ${progress.lostOver} by mistake.` }),
      }),
      async close() {
        over = true;
      },
    };
  }

  return {
    name: "errands",
    actionFormat: "text",
    maxTurns: moves,
    turnLimitEnds: true,
    idle: { text: phrases.nothing },
    // Unless kinds are composed, nothing is held out, since the orders themselves are what is
    // learned. The test split then differs only in the seeds of its episodes.
    async tasks(split) {
      checkSplit("errands", split);
      const kinds = [...all.keys()];
      const ofSplit = split === "train" ? kinds.slice(0, composedToTrain) : kinds.slice(composedToTrain);
      return (composed ? ofSplit : kinds).map((kind) => ({ kind, split }));
    },
    taskId: nameOf,
    start,
    // Demonstrates made-up errands regardless of the task, so that no hidden order is revealed.
    demonstrate: async (_, { seed }) => demonstrate(seed, { deadEnds, namesDeadEnd, composed }),
    foretold: foretoldSuccess,
    agreement: (future, observation) => eventAgreement(future, observation[0]?.content ?? ""),
    hindsight: (action, observation, later) => {
      const thing = thingIn(observation[0]?.content ?? "");
      const deadEnd = deadEndIn(later.at(-1)?.[0]?.content ?? "");
      return thing === undefined || thing === deadEnd ? undefined : { ...action, text: thing };
    },
    propose: ({ task }, actions, _, count) => {
      const errand = [...all.values()].find(
        ({ kind }) => task === kind || task === nameOf({ kind, split: "test" }),
      );
      if (errand === undefined) return [];
      let progress: Progress = { brought: [], movesLeft: moves };
      for (const { text } of actions) progress = bring(errand, progress, text.trim(), false).progress;
      // What the desk should be brought next; then things that it will want later.
      const thought = thoughtText({ kind: errand.kind, brought: progress.brought });
      return errand.chain
        .slice(progress.brought.length, progress.brought.length + count)
        .map((text) => ({ text, thought }));
    },
    close: async () => {},
  };
}
