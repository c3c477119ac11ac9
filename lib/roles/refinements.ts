/**
 * Policy improvement in words (section 4.2): the policy's own attempt, its critique, and the
 * refiner's action. The policy is trained to generate that action directly.
 */

import type { Action, Message } from "../contract/environment.ts";
import type { Transition } from "../episodes/trajectory.ts";
import type { Generation, ScoredText } from "../model/language-model.ts";
import { correctedRefinementThoughtRequest } from "../prompts/corrected-thought.ts";
import { type Critique, criticRequest, parseCritique } from "../prompts/critic.ts";
import { evaluatorRequest, parseEvaluation } from "../prompts/evaluator.ts";
import type { Parsed } from "../prompts/parsing.ts";
import { parseAction } from "../prompts/policy.ts";
import { refinerRequest } from "../prompts/refiner.ts";
import { successorRequest } from "../prompts/successor.ts";
import { mean } from "../statistics/mean.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { correctThoughts } from "./correct-thoughts.ts";
import { type DropCause, dropMetrics } from "./drops.ts";
import { type RoleWriter, user } from "./role-writer.ts";

export interface Refinement {
  /** a^r after s; absent if it was dropped. */
  text?: ScoredText;
  /** a^r, parsed. */
  action?: Action;
  attempt?: Generation;
  /** ã, parsed; absent for a stored action, which is not parsed again. */
  attempted?: Action;
  /** One per round. */
  critiques: Generation[];
  judgements: Judgement[];
  refinements: Generation[];
  dropped?: DropCause;
  /** The reason in words, for records. */
  reason?: string;
}

/** Content of a critique. */
export interface Judgement {
  /** Undefined if it could not be parsed. */
  yes?: boolean;
  /** The futures that it is based on; none for a single-step task. */
  futures: string[];
}

/**
 * Under θ: ã ~ policy(s), then m times Q ~ critic and a^r ~ refiner. The critic reads only (s, a)
 * (eq. 3), the refiner the history of attempts and critiques. With m = 0 the attempt is the result,
 * and it is judged only if approval is required.
 *
 * @param requests per transition, the request of the first critique instead of the critic's.
 *   The refiner reads that critique after the critic's request, as any other
 */
export async function refine(
  writer: RoleWriter,
  transitions: readonly Transition[],
  requests?: readonly Message[],
): Promise<Refinement[]> {
  const { config, actionFormat, model } = writer;
  // Episodes may have different tools.
  const reader = (i: number) => (answer: string) =>
    parseAction(answer, actionFormat, transitions[i]!.state.tools);
  const results: Refinement[] = transitions.map(() => ({ critiques: [], judgements: [], refinements: [] }));
  // The refiner's conversations, and (s, a) of the latest action, which the critic reads.
  let chains: (Conversation | undefined)[] = transitions.map(({ state }) => state.fork());
  if (config.attempt === "fresh") {
    const attempts = await writer.write("attempt", "online", chains);
    for (const [i, attempt] of attempts.entries()) {
      if (attempt === undefined) continue;
      results[i]!.attempt = attempt;
      const parsed = writer.read("attempt", attempt, reader(i));
      if (parsed.ok) results[i]!.attempted = parsed.action;
    }
    chains = writtenOf(chains, attempts);
  } else {
    for (const [i, chain] of chains.entries()) chain!.appendGeneration({ tokens: transitions[i]!.action });
  }

  let acted = chains.map((chain) => chain?.fork());
  for (let round = 0; round < config.refinements; round++) {
    const judged = await judge(writer, acted, results, round === 0 ? requests : undefined);
    chains = chains.map((chain, i) => {
      const critique = judged[i];
      if (chain === undefined || critique === undefined) return undefined;
      return chain
        .append(critique.request)
        .appendGeneration(critique.generation)
        .append(user(refinerRequest(actionFormat)));
    });
    const refinements = await writer.write("refinement", "online", chains);
    for (const [i, refinement] of refinements.entries())
      if (refinement !== undefined) results[i]!.refinements.push(refinement);
    chains = writtenOf(chains, refinements);
    acted = chains.map((chain, i) => chain && transitions[i]!.state.fork().appendGeneration(refinements[i]!));
  }
  const finals = results.map(({ attempt, refinements }, i) => {
    if (chains[i] === undefined) return undefined;
    return config.refinements === 0 ? attempt : refinements.at(-1);
  });
  if (config.refinements === 0 && config.refinementsKept === "approved") await judge(writer, acted, results);

  const responses =
    config.reasoning && config.refinements > 0
      ? await correctThoughts(writer, "refinement", chains, finals, correctedRefinementThoughtRequest())
      : finals.map((final) => final && { tokens: final.tokens });
  for (const [i, result] of results.entries()) {
    const final = finals[i];
    const lost = (dropped: DropCause, reason: string) => Object.assign(result, { dropped, reason });
    if (final === undefined) {
      if (result.dropped === undefined) lost("context", "the conversation did not fit into the context");
      continue;
    }
    const prompt = transitions[i]!.state.prompt();
    const response = responses[i]!;
    // With m = 0 the attempt was counted above.
    const parsed =
      config.refinements > 0 ? writer.read("refinement", final, reader(i)) : reader(i)(writer.answer(final));
    if (final.finishReason !== "stop") lost("cut_off", "the refined action was cut off");
    else if (!parsed.ok) lost("unreadable", parsed.reason);
    else if (response.tokens === undefined) lost(response.dropped, "its thought could not be corrected");
    else if (prompt.length + response.tokens.length > model.maxPositions)
      lost("context", "its corrected thought does not fit into the context");
    else if (config.refinementsKept === "approved" && result.judgements.at(-1)?.yes !== true)
      lost("not_approved", "its critique did not say Yes");
    else {
      result.text = { prompt, response: response.tokens };
      result.action = parsed.action;
    }
  }
  return results;
}

/** Training metrics of a batch's refinements. */
export function refinementMetrics(refinements: readonly Refinement[]): Record<string, number> {
  const kept = refinements.filter(({ text }) => text !== undefined);
  const comparable = kept.filter(({ attempted }) => attempted !== undefined);
  return {
    "refinements/kept": kept.length,
    ...dropMetrics("refinements", refinements),
    "refinements/changed": mean(
      comparable.map(({ action, attempted }) => Number(action!.text !== attempted!.text)),
    ),
    "tokens/l2": kept.reduce((sum, { text }) => sum + text!.response.length, 0),
  };
}

/** A critique and the request that it answers. */
interface Critiqued {
  request: Message;
  generation: Generation;
}

/**
 * Generates a critique of each (s, a) and adds it to `results`. Undefined entries have none, or one
 * that ended in its thought: the refiner would read nothing of it.
 */
async function judge(
  writer: RoleWriter,
  acted: readonly (Conversation | undefined)[],
  results: readonly Refinement[],
  given?: readonly Message[],
): Promise<(Critiqued | undefined)[]> {
  const { config, actionFormat, singleStep } = writer;
  const inOne = config.futures === 1 || singleStep || given !== undefined;
  const futures = inOne ? undefined : await sampleFutures(writer, acted, results);
  const requests = acted.map((_, i) => {
    if (inOne) return user(criticRequest(singleStep, actionFormat));
    return futures![i] && user(evaluatorRequest(futures![i]));
  });
  const asking = acted.map((chain, i) => {
    const request = given?.[i] ?? requests[i];
    return request && chain?.fork().append(request);
  });
  const critiques = await writer.write("critique", "online", asking);
  return critiques.map((generation, i) => {
    if (generation === undefined) return undefined;
    const parsed = writer.read(
      "critique",
      generation,
      (text): Parsed<Critique> => (inOne ? parseCritique(text, singleStep) : parseEvaluation(text)),
    );
    const foreseen = parsed.ok ? parsed.future : undefined;
    results[i]!.critiques.push(generation);
    results[i]!.judgements.push({
      futures: futures?.[i] ?? (foreseen === undefined ? [] : [foreseen]),
      ...(parsed.ok ? { yes: parsed.yes } : {}),
    });
    if (writer.endsInThought(generation)) {
      dropCut(results[i]!, "critique");
      return undefined;
    }
    return { request: requests[i]!, generation };
  });
}

function dropCut(result: Refinement, what: "critique" | "future"): void {
  Object.assign(result, { dropped: "cut_off", reason: `a ${what} was cut off in its thought` });
}

/** k > 1: generates k futures of every chain's last action, each from the same point. */
async function sampleFutures(
  writer: RoleWriter,
  chains: readonly (Conversation | undefined)[],
  results: readonly Refinement[],
): Promise<(string[] | undefined)[]> {
  const { config } = writer;
  const { futures: k } = config;
  const forks = chains.flatMap((chain) =>
    Array.from({ length: k }, () => chain?.fork().append(user(successorRequest()))),
  );
  const futures = await writer.write("future", "online", forks);
  return chains.map((_, i) => {
    const texts = futures.slice(i * k, (i + 1) * k).flatMap((future) => future ?? []);
    if (texts.some((text) => writer.endsInThought(text))) dropCut(results[i]!, "future");
    else if (texts.length === k) return texts.map((text) => writer.answer(text));
    return undefined;
  });
}

/** The chains whose completion was generated. */
function writtenOf(
  chains: readonly (Conversation | undefined)[],
  texts: readonly (Generation | undefined)[],
): (Conversation | undefined)[] {
  return chains.map((chain, i) => (texts[i] === undefined ? undefined : chain));
}
