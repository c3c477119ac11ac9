/**
 * The Bellman backup in words (eq. 1): the critic's training target. The target model sees the
 * result of an action, predicts the rest, and joins both into one description.
 */

import type { Transition } from "../episodes/trajectory.ts";
import type { DistilledText, Generation } from "../model/language-model.ts";
import {
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
  dropped?: DropCause;
}

/** Training metrics of a batch's targets. */
export function targetMetrics(targets: readonly Target[]): Record<string, number> {
  return dropMetrics("targets", targets);
}

/**
 * Under θ̄: generates the target description y from (s, a) and its observation, in one append-only
 * conversation per transition. A truncated episode has no outcome: its last transition is backed up
 * by a future, like the earlier ones.
 */
export async function writeTargets(
  writer: RoleWriter,
  transitions: readonly Transition[],
): Promise<Target[]> {
  const { model, config, actionFormat, singleStep, rewardRange } = writer;
  const withVerdict = config.futures === 1;
  const chains = transitions.map(({ state, action }) => state.fork().appendGeneration({ tokens: action }));
  // The student reads (s, a) and the critic's request. It must not contain anything of s'.
  const criticPrompt = user(
    withVerdict || singleStep ? criticRequest(singleStep, actionFormat) : successorRequest(),
  );
  const students = chains.map((chain) => chain.fork().append(criticPrompt).prompt());

  const bootstrapping = config.bootstrap !== "none" && !singleStep;
  const going = chains.map((chain, i) => (bootstrapping && !transitions[i]!.terminated ? chain : undefined));
  const futures = bootstrapping ? await bootstrapFutures(writer, going, transitions) : [];

  const backups = chains.map((chain, i) => {
    const { terminated, observation, reward, received } = transitions[i]!;
    if (singleStep) return chain.append(user(solutionTargetRequest(reward, observation, actionFormat)));
    if (terminated)
      return chain.append(user(terminalTargetRequest(observation, received, withVerdict, rewardRange)));
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
      ...(target === undefined ? {} : { target }),
    };
    const lost = (dropped: DropCause): Target => ({ ...written, dropped });
    if (target === undefined) return lost(future?.dropped ?? "context");
    const response = responses[i]!;
    if (response.tokens === undefined) return lost(response.dropped);
    if (response.tokens.length === 0) return lost("cut_off");
    if (config.targets === "parsed" && !parsed[i]!.ok)
      return lost(target.finishReason === "length" ? "cut_off" : "unreadable");
    const [student, teacher] = [students[i]!, teachers[i]!];
    // A rewritten thought may be longer than the original, for which the teacher had room.
    if (Math.max(student.length, teacher.length) + response.tokens.length > model.maxPositions)
      return lost("context");
    return { ...written, text: { student, teacher, response: response.tokens } };
  });
}
