/**
 * Demonstrations of errands with made-up orders, with judgements that know those orders. They teach
 * only what is common to all errands: the forms of all roles, reading the desk's answer into a
 * target, joining it with a predicted future, following a critique. They reveal nothing about the
 * environment's own errands.
 *
 * The demonstrated policy does not know the orders either: it brings random things, except that it
 * usually brings what the desk has just asked for.
 */

import type { Action, Demonstration, JudgedAction, Message } from "../../contract/environment.ts";
import {
  adviceText,
  composedKind,
  composedParts,
  composedRules,
  deskText,
  type Event,
  futureText,
  kinds,
  type Prospect,
  rules,
  things,
  thoughtText,
} from "./words.ts";
import {
  bring,
  type Errand,
  isDeadEnd,
  makeErrand,
  type Progress,
  pick,
  type Random,
  randomFrom,
  shown,
  wanted,
} from "./world.ts";

/** Lengths of made-up errands; their moves are single digits. */
const shortest = 2;
const longest = 6;
const maxMoves = 9;

/** Shares of hints that are followed, and of errands whose desk explains nothing. */
const followed = 0.8;
const silent = 0.2;

/**
 * @param deadEnds number of things per errand that the desk takes by mistake
 * @param composed whether kinds are composed; their made-up orders do not follow from the parts
 * @param namesDeadEnd whether the end of a lost errand names the dead end; if not, judgements do
 *   not know dead ends
 */
export function demonstrate(
  seed: number,
  { deadEnds, namesDeadEnd, composed }: { deadEnds: number; namesDeadEnd: boolean; composed: boolean },
): Demonstration {
  const random = randomFrom(seed);
  const kind = composed
    ? composedKind(composedParts.map((values) => anyOf<string>(values, random)))
    : anyOf(kinds, random);
  const length = shortest + pick(random, longest - shortest + 1);
  const errand = makeErrand(kind, length, Math.min(deadEnds, things.length - length), random);
  const explains = random() >= silent;
  // Half of the players know part of the order, like a partly trained policy: they are refused less
  // often.
  const skill = random() < 0.5 ? 0.5 : 0;
  let progress: Progress = { brought: [], movesLeft: length + pick(random, maxMoves - length + 1) };
  let told: string | undefined;
  const observation = {
    messages: [
      { role: "system" as const, content: composed ? composedRules : rules },
      ...said(deskText(undefined, { kind: errand.kind, ...progress })),
    ],
  };
  const turns: Demonstration["turns"] = [];
  for (;;) {
    const right = wanted(errand, progress);
    const follows = told !== undefined && random() < followed;
    const thing = follows ? told! : random() < skill ? right : anyOf(things, random);
    const move = bring(errand, progress, thing, explains);
    const { event, ending } = shown(move, namesDeadEnd);
    const answer = said(deskText(event, { kind: errand.kind, ...move.progress }, ending));
    turns.push({
      action: actionOf(thing, errand, progress),
      judged: [
        judge(errand, progress, judged(errand, progress, thing, random), { explains, namesDeadEnd }, random),
      ],
      observation: answer,
    });
    if (move.ending !== undefined) return { observation, turns };
    progress = move.progress;
    told = move.event.kind === "wants" ? move.event.thing : undefined;
  }
}

function said(text: string): Message[] {
  return [{ role: "user", content: text }];
}

function anyOf<T>(values: readonly T[], random: Random): T {
  return values[pick(random, values.length)]!;
}

function actionOf(thing: string, errand: Errand, { brought }: Progress): Action {
  return { text: thing, thought: thoughtText({ kind: errand.kind, brought }) };
}

/**
 * The judged actions: the policy's own, or one that the desk takes if those would otherwise be too
 * rare.
 */
function judged(errand: Errand, progress: Progress, thing: string, random: Random) {
  const draw = random();
  if (draw < 0.4) return { thing: wanted(errand, progress), foreseeable: false };
  const traps = things.filter((other) => isDeadEnd(errand, progress, other));
  if (draw < 0.6 && traps.length > 0) return { thing: anyOf(traps, random), foreseeable: false };
  return { thing, foreseeable: true };
}

function judge(
  errand: Errand,
  progress: Progress,
  { thing, foreseeable }: { thing: string; foreseeable: boolean },
  { explains, namesDeadEnd }: { explains: boolean; namesDeadEnd: boolean },
  random: Random,
): JudgedAction {
  const move = bring(errand, progress, thing, explains);
  const { event, ending } = shown(move, namesDeadEnd);
  const after = namesDeadEnd ? move.progress : { ...move.progress, lostOver: undefined };
  const prospect: Prospect =
    ending?.kind === "done" ? { kind: "done", moves: 1 } : (ending ?? foretold(errand, after, random));
  const future = futureText(event, prospect);
  const knowsDeadEnd = namesDeadEnd && isDeadEnd(errand, progress, thing);
  const { advice, better } = advise(knowsDeadEnd, thing, event, random);
  return {
    action: actionOf(thing, errand, progress),
    future,
    ...(advice === undefined ? {} : { advice }),
    foreseeable,
    better: actionOf(better, errand, progress),
    outcome: {
      observation: said(deskText(event, { kind: errand.kind, ...after }, ending)),
      reward: ending?.kind === "done" ? 1 : 0,
      terminated: ending !== undefined,
      ...(ending === undefined ? { future: followUp(event, prospect, explains, random) } : {}),
      joined: future,
    },
  };
}

/** How the errand may end from here, including the result of this move. */
function foretold(errand: Errand, after: Progress, random: Random): Prospect {
  if (after.lostOver !== undefined) return { kind: "lost", over: after.lostOver };
  const missing = errand.chain.length - after.brought.length;
  const spare = after.movesLeft - missing;
  if (spare < 0 || random() < 0.6) return { kind: "late" };
  return { kind: "done", moves: 1 + missing + pick(random, spare + 1) };
}

/** What to bring instead; anything else if the right thing is unknown. */
function advise(
  isDeadEnd: boolean,
  thing: string,
  event: Event,
  random: Random,
): { advice?: string; better: string } {
  const other = anyOf(
    things.filter((candidate) => candidate !== thing),
    random,
  );
  if (event.kind === "wants") return { advice: adviceText("first", event.thing), better: event.thing };
  if (event.kind === "refused") return { advice: adviceText("first", other), better: other };
  if (isDeadEnd) return { advice: adviceText("not", thing), better: other };
  return { better: thing };
}

/**
 * A predicted future after `event`: its end fits, but its next event need not. So the backup learns
 * to trust the observation more than the prediction.
 */
function followUp(event: Event, prospect: Prospect, explains: boolean, random: Random): string {
  const end: Prospect = prospect.kind === "done" ? { kind: "done", moves: prospect.moves - 1 } : prospect;
  const thing = anyOf(things, random);
  if (random() < 1 / 3) {
    const next = event.kind === "wants" && random() < 0.7 ? event.thing : thing;
    return futureText({ kind: "took", thing: next }, end);
  }
  return futureText(explains ? { kind: "wants", thing } : { kind: "refused" }, end);
}
