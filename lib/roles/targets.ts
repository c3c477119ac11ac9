/**
 * The Bellman backup in words (eq. 1): the critic's training target. The target model sees the
 * result of an action, predicts the rest, and joins both into one description.
 */

import type { Transition } from "../episodes/trajectory.ts";
import type { DistilledText, Generation } from "../model/language-model.ts";
import {
  followedTargetRequest,
  followedTurnText,
  observedTargetRequest,
  solutionTargetRequest,
  targetRequest,
  terminalTargetRequest,
} from "../prompts/backup.ts";
import { correctedTargetThoughtRequest } from "../prompts/corrected-thought.ts";
import { criticRequest, parseCritique } from "../prompts/critic.ts";
import { parseFuture, successorRequest } from "../prompts/successor.ts";
import { correctThoughts } from "./correct-thoughts.ts";
import { type DropCause, dropMetrics } from "./drops.ts";
import { bootstrapFutures } from "./futures.ts";
import { type RoleWriter, user } from "./role-writer.ts";

export interface Target {
  /** Training sequence of L1; absent if the target was dropped. */
  text?: DistilledText;
  /** The generation that d' was parsed from; absent if the outcome replaces it. */
  future?: Generation;
  target?: Generation;
  /** Whether the target could be parsed, and its verdict. */
  parsed?: { ok: boolean; yes?: boolean; reason?: string };
  dropped?: DropCause;
}

/** Training metrics of a batch's targets. */
export function targetMetrics(targets: readonly Target[]): Record<string, number> {
  return dropMetrics("targets", targets);
}

/**
 * Under θ̄: generates the target description y from (s, a) and its observation, in one append-only
 * conversation per transition. A truncated episode has no outcome: its last transition is backed up
 * by a future, like the earlier ones. A Monte-Carlo target reads the real rest of the episode
 * instead of a future; if the episode was truncated, up to there.
 */
export async function writeTargets(
  writer: RoleWriter,
  transitions: readonly Transition[],
): Promise<Target[]> {
  const { model, config, actionFormat, singleStep } = writer;
  const withVerdict = config.futures === 1;
  const chains = transitions.map(({ state, action }) => state.fork().appendGeneration({ tokens: action }));
  // The student reads (s, a) and the critic's request. It must not contain anything of s'.
  const criticPrompt = user(
    withVerdict || singleStep ? criticRequest(singleStep, actionFormat) : successorRequest(),
  );
  const students = chains.map((chain) => chain.fork().append(criticPrompt).prompt());

  const bootstrapping = !["none", "monte-carlo"].includes(config.bootstrap) && !singleStep;
  const going = chains.map((chain, i) => (bootstrapping && !transitions[i]!.terminated ? chain : undefined));
  const futures = bootstrapping ? await bootstrapFutures(writer, going, transitions) : [];

  const backups = chains.map((chain, i) => {
    const { terminated, observation, reward } = transitions[i]!;
    if (singleStep || terminated || config.bootstrap === "monte-carlo")
      return chain.append(user(outcomeRequest(writer, transitions[i]!)));
    if (!bootstrapping) return chain.append(user(observedTargetRequest(observation, withVerdict, reward)));
    return futures[i]?.text === undefined ? undefined : chain.append(user(targetRequest(withVerdict)));
  });
  const teachers = backups.map((chain) => chain?.prompt());
  const targets = await writer.write("target", "target", backups);
  const parsed = targets.map((target) => {
    if (target === undefined) return undefined;
    return writer.read("target", target, (text) =>
      withVerdict || singleStep ? parseCritique(text, singleStep) : parseFuture(text),
    );
  });
  const responses = config.reasoning
    ? await correctThoughts(writer, "target", backups, targets, correctedTargetThoughtRequest())
    : targets.map((target) => target && { tokens: target.tokens });

  return targets.map((target, i): Target => {
    const future = futures[i];
    const written = {
      ...(future?.generation === undefined ? {} : { future: future.generation }),
      ...(target === undefined ? {} : { target, parsed: resultOf(parsed[i]!) }),
    };
    const lost = (dropped: DropCause): Target => ({ ...written, dropped });
    if (target === undefined) return lost(future?.dropped ?? "context");
    const response = responses[i]!;
    if (response.tokens === undefined) return lost(response.dropped);
    if (config.targets === "parsed" && !parsed[i]!.ok)
      return lost(target.finishReason === "length" ? "cut_off" : "unreadable");
    const [student, teacher] = [students[i]!, teachers[i]!];
    // A rewritten thought may be longer than the original, for which the teacher had room.
    if (Math.max(student.length, teacher.length) + response.tokens.length > model.maxPositions)
      return lost("context");
    return { ...written, text: { student, teacher, response: response.tokens } };
  });
}

/**
 * The request for a target that reads what really followed: the score of a solution, the end of the
 * episode, or its rest within `maxRestTokens`.
 */
export function outcomeRequest(writer: RoleWriter, transition: Transition): string {
  const { model, config, actionFormat, singleStep, rewardRange } = writer;
  const { observation, reward, received, terminated, rest } = transition;
  const withVerdict = config.futures === 1;
  if (singleStep) return solutionTargetRequest(reward, observation, actionFormat, rewardRange);
  if (terminated) return terminalTargetRequest(observation, received, withVerdict, rewardRange);
  const turns = rest.turns.map((turn) => followedTurnText(turn.action, turn.observation, turn.reward));
  const shown = withoutMiddle(turns, config.maxRestTokens, (text) => model.encode(text).length);
  return followedTargetRequest(observation, shown, rest.score, withVerdict, reward, rewardRange);
}

/**
 * As many of `texts` as have at most `limit` tokens together, taken from the end and the start in
 * turns; the empty string stands for those left out of the middle. The end comes first, because it
 * says how the episode ended.
 */
export function withoutMiddle(
  texts: readonly string[],
  limit: number,
  tokens: (text: string) => number,
): string[] {
  let [start, end] = [0, texts.length];
  let left = limit;
  for (let fromEnd = true; start < end; fromEnd = !fromEnd) {
    left -= tokens(texts[fromEnd ? end - 1 : start]!);
    if (left < 0) return [...texts.slice(0, start), "", ...texts.slice(end)];
    if (fromEnd) end--;
    else start++;
  }
  return [...texts];
}

function resultOf(parsed: { ok: boolean; yes?: boolean; reason?: string }): NonNullable<Target["parsed"]> {
  if (!parsed.ok) return { ok: false, ...(parsed.reason && { reason: parsed.reason }) };
  return { ok: true, ...(parsed.yes !== undefined && { yes: parsed.yes }) };
}
