/**
 * Policy improvement in words (section 4.2): the policy's own attempt, its critique, and the action that the
 * refiner makes of them. What comes out is what the policy is trained to write at once.
 */

import type { Generation, ScoredText } from "../model.ts";
import { correctedRefinementThoughtRequest } from "../prompts/corrected-thought.ts";
import { criticRequest, parseCritique } from "../prompts/critic.ts";
import { evaluatorRequest, parseEvaluation } from "../prompts/evaluator.ts";
import { parseAction } from "../prompts/policy.ts";
import { refinerRequest } from "../prompts/refiner.ts";
import { successorRequest } from "../prompts/successor.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { answerOf, type Roles, user } from "./roles.ts";
import { correctThoughts } from "./thoughts.ts";
import type { Transition } from "./trajectory.ts";

export interface Refinement {
  /** a^r after s; absent when it was dropped. */
  text?: ScoredText;
  attempt?: Generation;
  /** One a round. */
  critiques: Generation[];
  refinements: Generation[];
  dropped?: string;
}

/** Under θ: ã ~ policy(s), then m times Q ~ critic and a^r ~ refiner, with the history of attempts in sight. */
export async function refine(roles: Roles, transitions: readonly Transition[]): Promise<Refinement[]> {
  const { config, actionFormat, singleStep } = roles;
  const results: Refinement[] = transitions.map(() => ({ critiques: [], refinements: [] }));
  let chains: (Conversation | undefined)[] = transitions.map(({ state }) => state.fork());
  if (config.attempt === "fresh") {
    const attempts = await roles.write("attempt", "online", chains);
    chains = chains.map((chain, i) => (attempts[i] === undefined ? undefined : chain));
    for (const [i, attempt] of attempts.entries()) if (attempt !== undefined) results[i]!.attempt = attempt;
  } else {
    for (const [i, chain] of chains.entries()) chain!.appendGeneration({ tokens: transitions[i]!.action });
  }

  let approved: boolean[] = [];
  for (let round = 0; round < config.refinements; round++) {
    const asking =
      config.futures === 1 || singleStep
        ? chains.map((chain) => chain?.append(user(criticRequest(singleStep))))
        : await askEvaluator(roles, chains);
    const critiques = await roles.write("critique", "online", asking);
    approved = critiques.map((critique, i) => {
      if (critique === undefined) return false;
      results[i]!.critiques.push(critique);
      const text = answerOf(critique.text, config);
      const parsed = roles.read(
        "critique",
        config.futures === 1 || singleStep ? parseCritique(text, singleStep) : parseEvaluation(text),
      );
      return parsed.ok && parsed.yes;
    });
    chains = asking.map((chain, i) =>
      critiques[i] === undefined ? undefined : chain!.append(user(refinerRequest(actionFormat))),
    );
    const refinements = await roles.write("refinement", "online", chains);
    for (const [i, refinement] of refinements.entries())
      if (refinement !== undefined) results[i]!.refinements.push(refinement);
    chains = chains.map((chain, i) => (refinements[i] === undefined ? undefined : chain));
  }

  const last = results.map(({ refinements }, i) =>
    chains[i] === undefined ? undefined : refinements.at(-1),
  );
  const responses = config.reasoning
    ? await correctThoughts(roles, "refinement", chains, last, correctedRefinementThoughtRequest())
    : last.map((refinement) => refinement?.tokens);
  for (const [i, result] of results.entries()) {
    const refinement = last[i];
    if (refinement === undefined) {
      result.dropped = "the conversation did not fit into the context";
      continue;
    }
    const parsed = roles.read("refinement", parseAction(answerOf(refinement.text, config), actionFormat));
    const prompt = transitions[i]!.state.prompt();
    if (refinement.finishReason !== "stop") result.dropped = "the refined action was cut off";
    else if (!parsed.ok) result.dropped = parsed.reason;
    else if (responses[i] === undefined) result.dropped = "its thought could not be corrected";
    else if (config.refinementsKept === "approved" && !approved[i])
      result.dropped = "its critique did not say Yes";
    else result.text = { prompt, response: responses[i] };
  }
  return results;
}

/** k > 1: k futures of every attempt, each from the same point, then the evaluator's request that lists them. */
async function askEvaluator(
  roles: Roles,
  chains: readonly (Conversation | undefined)[],
): Promise<(Conversation | undefined)[]> {
  const { futures: k } = roles.config;
  const forks = chains.flatMap((chain) =>
    Array.from({ length: k }, () => chain?.fork().append(user(successorRequest()))),
  );
  const futures = await roles.write("future", "online", forks);
  return chains.map((chain, i) => {
    const texts = futures.slice(i * k, (i + 1) * k);
    if (chain === undefined || texts.includes(undefined)) return undefined;
    return chain.append(user(evaluatorRequest(texts.map((future) => answerOf(future!.text, roles.config)))));
  });
}
