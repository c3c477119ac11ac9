/** Evaluates a policy on an environment: its success rate and other statistics. */

import { NlacError } from "../base/errors.ts";
import { overlay } from "../base/overlay.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { type EpisodeFigures, type Figures, figuresOf, summarize } from "../episodes/figures.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { WeightSet } from "../model/language-model.ts";
import type { Player } from "./batches.ts";
import { collectTrajectories } from "./collect.ts";

/** Options of `evaluate`. */
export interface EvaluateOptions<Task> {
  model: Player;
  environment: Environment<Task>;
  /** One per episode. A task that occurs more than once is played with different seeds. */
  tasks: readonly Task[];
  /** Largest k of pass^k; default 1, the success rate. */
  trials?: number;
  /**
   * Determines the episodes' seeds as in training: choose another one than a run's, so that no
   * episode of its training is played.
   */
  seed: number;
  /** Most episodes at once. */
  concurrency: number;
  maxActionTokens: number;
  maxPromptTokens: number;
  /** Softmax temperature of the actions; 0 is greedy. */
  temperature: number;
  weights?: WeightSet;
  /** See `CollectOptions`; ignored by a service. */
  constrainActions?: boolean;
  /** Timeout of the environment, in milliseconds. Default: the environment's `stepTimeout`. */
  stepTimeout?: number;
  /** Episodes already played in this evaluation; they are not played again. */
  played?: readonly EpisodeFigures[];
  signal?: AbortSignal;
  onProgress?: (finished: number, total: number, tokens: number) => void;
  /** Called with each episode as it ends. */
  onEpisode?: (trajectory: Trajectory) => void;
}

/** Result of an evaluation. */
export interface Evaluation extends Figures {
  /** The episodes played by this call. */
  trajectories: Trajectory[];
}

/**
 * Plays one episode per task.
 *
 * @throws NlacError ERR_CONFIG for a `played` episode of another task or seed; ERR_ABORTED, after
 *   `onEpisode` was called with the finished episodes; what `collectTrajectories` throws
 */
export async function evaluate<Task>(options: EvaluateOptions<Task>): Promise<Evaluation> {
  const { environment, tasks, seed, played = [], onProgress } = options;
  for (const { id, task, seed: episodeSeed } of played) {
    const asked = tasks[id];
    const same = asked !== undefined && environment.taskId(asked) === task;
    if (!same || episodeSeed !== derivedSeed(seed, streams.episode, id))
      throw new NlacError("ERR_CONFIG", `Episode ${id} (${task}) belongs to another evaluation.`);
  }
  const known = new Set(played.map(({ id }) => id));
  const episodes = tasks.map((task, id) => ({ id, task })).filter(({ id }) => !known.has(id));
  let tokens = 0;
  const trajectories = await collectTrajectories({
    ...options,
    model: evaluated(options.model),
    episodes,
    stream: streams.evaluation,
    onTurn: (finished, written) => {
      tokens += written;
      onProgress?.(known.size + finished, tasks.length, tokens);
    },
  });
  const figures = [...played, ...trajectories.map(figuresOf)].sort((a, b) => a.id - b.id);
  return { ...summarize(figures, options.trials), trajectories };
}

/** The player without its `rollouts`, if those are a fixed policy. */
function evaluated(player: Player): Player {
  return player.rollouts?.fixed ? overlay(player, { rollouts: undefined }) : player;
}
