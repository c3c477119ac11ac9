/**
 * Branches: what would have followed if another action had been taken in a recorded episode. An
 * episode is a function of its task, its seed and its actions, so a state is reached again by
 * repeating the recorded actions. If the environment then answers differently, the branch does not
 * exist.
 */

import { isDeepStrictEqual } from "node:util";
import { isBudgetSpent, throwIfAborted } from "../base/errors.ts";
import { type Action, type Environment, type Episode, isOver } from "../contract/environment.ts";
import { type Patience, withTimeout } from "../contract/timeout.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { policyConversation } from "../prompts/policy.ts";
import { type CollectOptions, collectTrajectories, costOfLeaving, type EpisodeRequest } from "./collect.ts";
import { checkedStep } from "./environment-answers.ts";

/** Another action in place of a recorded one. */
export interface Branch<Task> {
  task: Task;
  trajectory: Trajectory;
  /** Turn of the recorded action, from 0. */
  turn: number;
  /** The other action as the policy would generate it, including its stop id. */
  response: readonly number[];
  action: Action;
}

type BranchOptions<Task> = Omit<CollectOptions<Task>, "episodes" | "model"> & { model: LanguageModel };

/**
 * Takes the action of each branch and continues under the policy, `concurrency` episodes at a time.
 *
 * @returns per branch the reward of its episode from the first turn on; undefined if the state
 *   could not be reached again or the episode ended in a fault
 * @throws NlacError ERR_ABORTED, ERR_VALUE for a `concurrency` below 1
 */
export async function playBranches<Task>(
  branches: readonly Branch<Task>[],
  options: BranchOptions<Task>,
): Promise<(number | undefined)[]> {
  const { concurrency = branches.length } = options;
  const rewards: (number | undefined)[] = [];
  while (rewards.length < branches.length) {
    const together = branches.slice(rewards.length, rewards.length + concurrency);
    rewards.push(...(await playTogether(together, rewards.length, options)));
  }
  return rewards;
}

/** Plays all `branches` at once; `first` is the number of the first one. */
async function playTogether<Task>(
  branches: readonly Branch<Task>[],
  first: number,
  options: BranchOptions<Task>,
): Promise<(number | undefined)[]> {
  const { model, environment } = options;
  const opening = await Promise.allSettled(
    branches.map((branch) => takeAction(branch, model, environment, options)),
  );
  const opened = opening.map((one) => (one.status === "fulfilled" ? one.value : undefined));
  const failed = opening.find((one) => one.status === "rejected");
  if (failed !== undefined) {
    await Promise.all(opened.map((result) => result?.from?.episode.close().catch(() => undefined)));
    throw failed.reason;
  }
  const running = opened.flatMap((result, i) =>
    result?.from === undefined ? [] : [{ id: first + i, task: branches[i]!.task, from: result.from }],
  );
  const trajectories = await collectTrajectories({ ...options, episodes: running });
  const rewards = opened.map((result) => result?.reward);
  for (const trajectory of trajectories) {
    const i = trajectory.id - first;
    rewards[i] = isFaulty(trajectory) ? undefined : rewards[i]! + trajectory.reward;
  }
  return rewards;
}

/**
 * The reward up to and including the branch's action, and where to continue unless the action ended
 * the episode.
 */
async function takeAction<Task>(
  { task, trajectory, turn, response, action }: Branch<Task>,
  model: LanguageModel,
  environment: Environment<Task>,
  patience: Patience,
): Promise<{ reward: number; from?: EpisodeRequest<Task>["from"] } | undefined> {
  const { signal } = patience;
  let starting: Promise<Episode> | undefined;
  let episode: Episode | undefined;
  try {
    episode = await withTimeout(() => {
      const { seed } = trajectory;
      starting = environment.start(task, { seed, ...(signal === undefined ? {} : { signal }) });
      return starting;
    }, patience);
    if (!(await repeats(episode, trajectory, turn, model, environment, patience))) {
      await episode.close();
      return undefined;
    }
    const here = episode;
    const result = checkedStep(await withTimeout(() => here.step(action), patience));
    const before = trajectory.turns.slice(0, turn).reduce((sum, { reward }) => sum + reward, 0);
    const reward = before + result.reward;
    if (isOver(result) || turn + 1 === environment.maxTurns) {
      await episode.close();
      return { reward: isOver(result) ? reward : reward + costOfLeaving(environment, reward) };
    }
    const conversation = trajectory.turns[turn]!.state.fork()
      .appendGeneration({ tokens: response })
      .append(...result.observation);
    return { reward, from: { episode, conversation, turns: turn + 1, reward } };
  } catch (error) {
    if (episode !== undefined) await episode.close().catch(() => undefined);
    // The episode may start after a timeout or stop; it is then closed.
    else void starting?.then((late) => late.close()).catch(() => undefined);
    throwIfAborted(signal);
    if (isBudgetSpent(error)) throw error;
    return undefined; // an environment's fault affects only this branch
  }
}

/**
 * Repeats the recorded actions before `turn` in `episode`. Returns whether the environment answered
 * as recorded.
 */
async function repeats<Task>(
  episode: Episode,
  trajectory: Trajectory,
  turn: number,
  model: LanguageModel,
  environment: Environment<Task>,
  patience: Patience,
): Promise<boolean> {
  const opening = policyConversation(model, episode.observation, environment.actionFormat);
  if (!isDeepStrictEqual(opening.tokens, trajectory.turns[0]!.state.tokens)) return false;
  for (const { action, observation, reward } of trajectory.turns.slice(0, turn)) {
    if (action === undefined) continue; // an unreadable action, which the environment never received
    const result = checkedStep(await withTimeout(() => episode.step(action), patience));
    const same = result.reward === reward && isDeepStrictEqual(result.observation, observation);
    if (!same || isOver(result)) return false;
  }
  return true;
}
