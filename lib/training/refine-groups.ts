/**
 * Refinements that join a group of episodes (algorithms/critique-grpo.ts). The policy criticizes an
 * action of an episode, knowing how the episode continued, and refines it; the refined action is
 * played to the end of a separate episode.
 */

import { z } from "zod";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { rewardRounding, type Trajectory, type Transition, transitionsOf } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { playBranches } from "../playing/branch.ts";
import { countSteps, unreadableActions } from "../playing/count-steps.ts";
import { type Refinement, refine, refinementMetrics } from "../roles/refinements.ts";
import { type RolesConfig, RoleWriter, rolesConfig, user } from "../roles/role-writer.ts";
import { outcomeRequest } from "../roles/targets.ts";
import { savedNumber, type TrainingRun } from "../run/training-run.ts";
import { mean } from "../statistics/mean.ts";

/** A refined action that joins a group. */
export const savedRefinement = z.strictObject({
  /** Index of the group in the iteration. */
  group: z.int().min(0),
  /** The episode that it refines, and the turn. */
  trajectory: z.int().min(0),
  turn: z.int().min(0),
  /** a^r as generated, including its stop id. */
  response: z.array(z.int()).readonly(),
  /** Total reward of the episode with a^r. */
  reward: savedNumber,
});

export type Refined = z.infer<typeof savedRefinement>;

export interface RefineGroupsOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  /** Usable episodes on the same task each. */
  groups: readonly (readonly Trajectory[])[];
  /** The method's configuration explains the fields. */
  config: Pick<
    RolesConfig,
    | "seed"
    | "reasoning"
    | "actionTemperature"
    | "criticTemperature"
    | "refinerTemperature"
    | "maxPromptTokens"
    | "maxActionTokens"
    | "maxCriticTokens"
    | "maxRestTokens"
  > & { refinedPerGroup: number; refinementsPerGroup: number };
  /** Determines every random choice, together with the configuration's seed. */
  iteration: number;
  run: Pick<TrainingRun, "signal" | "progress">;
}

/** An action to refine: its group, transition and episode. */
interface Case {
  group: number;
  trajectory: Trajectory;
  transition: Transition;
}

/**
 * Criticizes and refines an action of some episodes of each group, and plays the refined ones.
 *
 * @returns the refinements of the highest reward, the environment steps taken, and metrics
 * @throws NlacError ERR_ABORTED
 */
export async function refineGroups<Task>({
  model,
  environment,
  tasks,
  groups,
  config,
  iteration,
  run,
}: RefineGroupsOptions<Task>): Promise<{
  refined: Refined[];
  steps: number;
  metrics: Record<string, number>;
}> {
  const started = performance.now();
  const seed = derivedSeed(config.seed, streams.refinement, iteration);
  const cases = casesOf(groups, config.refinedPerGroup, seed);
  run.progress.phase("refine", cases.length);
  const roles: RolesConfig = { ...rolesConfig.parse({}), ...config, attempt: "stored", seed };
  const writer = new RoleWriter(model, environment, roles, 0, run.signal);
  const transitions = cases.map(({ transition }) => transition);
  const requests = transitions.map((transition) => user(outcomeRequest(writer, transition)));
  const refinements = await refine(writer, transitions, requests);

  const byId = new Map(tasks.map((task) => [environment.taskId(task), task]));
  const playable = cases.flatMap((one, i) => {
    const { text, action } = refinements[i]!;
    const task = byId.get(one.trajectory.task);
    if (text === undefined || action === undefined || task === undefined) return [];
    const { response } = text;
    return [{ ...one, task, turn: one.transition.turn, response, action }];
  });
  let [steps, tokens] = [0, 0];
  const episodes = await playBranches(playable, {
    model,
    environment: countSteps(environment, () => steps++),
    seed,
    temperature: config.actionTemperature,
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens,
    signal: run.signal,
    onTurn: (finished, generated) => {
      tokens += generated;
      run.progress.advance(finished, generated);
    },
  });
  await model.dropCaches(); // a resumed run starts with empty caches too
  steps += unreadableActions(episodes.filter((episode) => episode !== undefined));
  const played = playable.flatMap(({ group, trajectory, turn, response }, i) => {
    const episode = episodes[i];
    // The outcome of an episode that was cut short is unknown.
    if (episode === undefined || episode.turns.at(-1)?.truncated) return [];
    return [{ group, trajectory, turn, response, reward: episode.reward }];
  });
  const refined = bestOf(played, config.refinementsPerGroup, seed);
  const roleMetrics = writer.metrics();
  return {
    refined: refined.map((one) => ({ ...one, trajectory: one.trajectory.id })),
    steps,
    metrics: {
      ...roleMetrics,
      ...withoutLossTokens(refinements),
      "tokens/generated": (roleMetrics["tokens/generated"] ?? 0) + tokens,
      "refinements/unplayed": playable.length - played.length,
      "refinements/trained": refined.length,
      "refinements/reward": mean(played.map(({ reward }) => reward)),
      "refinements/gain": mean(played.map(({ reward, trajectory }) => reward - trajectory.reward)),
      "refinements/reward_trained": mean(refined.map(({ reward }) => reward)),
      "time/refine": (performance.now() - started) / 1000,
    },
  };
}

/** `refinementMetrics` counts tokens of NLAC's L2, which is not this method's loss. */
function withoutLossTokens(refinements: readonly Refinement[]): Record<string, number> {
  const { "tokens/l2": _, ...metrics } = refinementMetrics(refinements);
  return metrics;
}

/** Draws the episodes of each group to refine, and a turn of each. */
function casesOf(groups: readonly (readonly Trajectory[])[], perGroup: number, seed: number): Case[] {
  return groups.flatMap((group, g) =>
    permutation(group.length, derivedSeed(seed, streams.minibatch, g), streams.minibatch)
      .slice(0, perGroup)
      .map((i) => {
        const trajectory = group[i]!;
        const transitions = transitionsOf(trajectory);
        const [turn] = permutation(
          transitions.length,
          derivedSeed(seed, streams.attempt, trajectory.id),
          streams.attempt,
        );
        return { group: g, trajectory, transition: transitions[turn!]! };
      }),
  );
}

/** The `most` refinements of the highest reward in each group; ties at random. */
export function bestOf<T extends { group: number; reward: number }>(
  refinements: readonly T[],
  most: number,
  seed: number,
): T[] {
  const order = permutation(refinements.length, seed, streams.minibatch).map((i) => refinements[i]!);
  const isTie = (a: T, b: T) => Math.abs(a.reward - b.reward) <= rewardRounding;
  const best = [...order].sort((a, b) => (isTie(a, b) ? 0 : b.reward - a.reward));
  const groups = [...new Set(refinements.map(({ group }) => group))].sort((a, b) => a - b);
  return groups.flatMap((group) => best.filter((one) => one.group === group).slice(0, most));
}
