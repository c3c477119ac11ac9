/**
 * Branches: what would have followed if another action had been taken in a recorded episode. An
 * episode is a function of its task, its seed and its actions, so a state is reached again by
 * repeating the recorded actions. If the environment then answers differently, the branch is
 * abandoned.
 */

import { setMaxListeners } from "node:events";
import { isDeepStrictEqual } from "node:util";
import { isBudgetSpent, throwIfAborted } from "../base/errors.ts";
import { type Action, type Environment, type Episode, isOver } from "../contract/environment.ts";
import { type Patience, withTimeout } from "../contract/timeout.ts";
import { isFaulty, type Trajectory, type Turn } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { policyConversation } from "../prompts/policy.ts";
import {
  type CollectOptions,
  closeEpisode,
  collectTrajectories,
  costOfLeaving,
  type EpisodeRequest,
  turnLimitTerminates,
} from "./collect.ts";
import { checkedScore, checkedStep } from "./environment-answers.ts";

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

type BranchOptions<Task> = Omit<CollectOptions<Task>, "episodes" | "model" | "onEpisode"> & {
  model: LanguageModel;
  /**
   * Number of the first branch's episode; later ones follow. It determines the random choices after
   * the branch's action. Default 0.
   */
  firstId?: number;
};

/**
 * Takes the action of each branch and continues under the policy, `concurrency` episodes at a time.
 *
 * @returns per branch its whole episode, from the recorded turns on; undefined if the state could
 *   not be reached again or the episode ended in a fault. Log probabilities of the branch's action
 *   are NaN, because the policy need not have generated it
 * @throws NlacError ERR_ABORTED, ERR_VALUE for a `concurrency` below 1
 */
export async function playBranches<Task>(
  branches: readonly Branch<Task>[],
  options: BranchOptions<Task>,
): Promise<(Trajectory | undefined)[]> {
  const { environment, concurrency = branches.length, firstId = 0, signal } = options;
  const { stepTimeout = environment.stepTimeout } = options;
  // A separate signal, because every environment that is waited for adds a listener to it.
  const shared = signal === undefined ? undefined : AbortSignal.any([signal]);
  if (shared !== undefined) setMaxListeners(0, shared);
  const patient = {
    ...options,
    ...(shared !== undefined && { signal: shared }),
    ...(stepTimeout !== undefined && { stepTimeout }),
  };
  const episodes: (Trajectory | undefined)[] = [];
  while (episodes.length < branches.length) {
    const before = episodes.length;
    const together = branches.slice(before, before + concurrency);
    const onTurn = (finished: number, tokens: number) => options.onTurn?.(before + finished, tokens);
    episodes.push(...(await playTogether(together, firstId + before, { ...patient, onTurn })));
  }
  return episodes;
}

/** Plays all `branches` at once; `first` is the number of the first one. */
async function playTogether<Task>(
  branches: readonly Branch<Task>[],
  first: number,
  options: BranchOptions<Task>,
): Promise<(Trajectory | undefined)[]> {
  const { model, environment } = options;
  const opening = await Promise.allSettled(
    branches.map((branch, i) => takeAction(branch, first + i, model, environment, options)),
  );
  const opened = opening.map((one) => (one.status === "fulfilled" ? one.value : undefined));
  const failed = opening.find((one) => one.status === "rejected");
  if (failed !== undefined) {
    await Promise.all(opened.map((result) => closeEpisode(result?.from?.episode, options)));
    throw failed.reason;
  }
  const running = opened.flatMap((result, i) =>
    result?.from === undefined ? [] : [{ id: first + i, task: branches[i]!.task, from: result.from }],
  );
  const rest = await collectTrajectories({ ...options, episodes: running });
  const continued = new Map(rest.map((trajectory) => [trajectory.id, trajectory]));
  return opened.map((result, i) => {
    const after = continued.get(first + i);
    if (result === undefined || after === undefined) return result?.begun;
    if (isFaulty(after)) return undefined;
    const { begun } = result;
    const { turns, conversation, outcome, privileged } = after;
    // Without room for another turn, the branch's own action is the last one.
    const taken = { ...begun.turns.at(-1)!, truncated: turns.length === 0 };
    return {
      ...begun,
      turns: [...begun.turns.slice(0, -1), taken, ...turns],
      conversation,
      reward: begun.reward + after.reward,
      outcome,
      ...(privileged === undefined ? {} : { privileged }),
    };
  });
}

/**
 * The episode up to and including the branch's action, and where to continue unless the action
 * ended it.
 */
async function takeAction<Task>(
  branch: Branch<Task>,
  id: number,
  model: LanguageModel,
  environment: Environment<Task>,
  patience: Patience,
): Promise<{ begun: Trajectory; from?: EpisodeRequest<Task>["from"] } | undefined> {
  const { task, trajectory, turn, response, action } = branch;
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
      await closeEpisode(episode, patience);
      return undefined;
    }
    const here = episode;
    const result = checkedStep(await withTimeout(() => here.step(action), patience));
    const before = trajectory.turns.slice(0, turn).reduce((sum, { reward }) => sum + reward, 0);
    const reward = before + result.reward;
    const over = isOver(result);
    const atLimit = !over && turn + 1 === environment.maxTurns;
    const score = atLimit ? await withTimeout(() => checkedScore(here), patience) : 0;
    const added = score + (atLimit ? costOfLeaving(environment, reward + score) : 0);
    const terminated = over ? result.terminated : atLimit && turnLimitTerminates(environment);
    const { state } = trajectory.turns[turn]!;
    const conversation = state
      .fork()
      .appendGeneration({ tokens: response })
      .append(...result.observation);
    const taken: Turn = {
      state,
      tokens: [...response],
      logProbs: new Float32Array(response.length).fill(Number.NaN),
      text: model.decode(response.filter((id) => !model.endOfTurnIds.includes(id))),
      action,
      observation: result.observation,
      reward: result.reward + (terminated ? added : 0),
      terminated,
      truncated: (over || atLimit) && !terminated,
      info: result.info,
    };
    const privileged = over || atLimit ? episode.privileged?.() : undefined;
    const begun: Trajectory = {
      id,
      task: trajectory.task,
      seed: trajectory.seed,
      ...(trajectory.opening === undefined ? {} : { opening: trajectory.opening }),
      turns: [...trajectory.turns.slice(0, turn), taken],
      conversation,
      reward: reward + added + (result.score ?? 0),
      outcome: result.terminated ? "done" : turn + 1 === environment.maxTurns ? "turn-limit" : "truncated",
      ...(privileged === undefined ? {} : { privileged }),
      branch: { trajectory: trajectory.id, turn },
    };
    if (over || atLimit) {
      await closeEpisode(episode, patience);
      return { begun };
    }
    return { begun, from: { episode, conversation, turns: turn + 1, reward } };
  } catch (error) {
    if (episode !== undefined) await closeEpisode(episode, patience);
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
