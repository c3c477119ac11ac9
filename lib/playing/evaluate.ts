/** Success of a policy on an environment, and its other figures. */

import { NlacError } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { type EpisodeFigures, type Figures, figuresOf, summarize } from "../episodes/figures.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { WeightSet } from "../model/language-model.ts";
import type { Player } from "./batches.ts";
import { collectTrajectories } from "./collect.ts";

export interface EvaluateOptions<Task> {
  model: Player;
  environment: Environment<Task>;
  /** One an episode; a task may stand here more than once, and is then played with other seeds. */
  tasks: readonly Task[];
  /** Up to which k pass^k is told; default 1, the success rate. */
  trials?: number;
  seed: number;
  /** Most episodes at once. */
  concurrency: number;
  maxActionTokens: number;
  maxPromptTokens: number;
  /** 0 is greedy. */
  temperature: number;
  weights?: WeightSet;
  /** See `CollectOptions`; a service does not look at it. */
  constrainActions?: boolean;
  /** Milliseconds that the environment may take to answer. Default: no limit. */
  stepTimeout?: number;
  /** Episodes of the same evaluation that were played before, and are not played again. */
  played?: readonly EpisodeFigures[];
  signal?: AbortSignal;
  onProgress?: (finished: number, total: number, tokens: number) => void;
  /** Called with each episode as it ends. */
  onEpisode?: (trajectory: Trajectory) => void;
}

export interface Evaluation extends Figures {
  /** The episodes that were played now. */
  trajectories: Trajectory[];
}

/**
 * Plays an episode on each task.
 *
 * @throws NlacError ERR_CONFIG for a played episode of another task or seed; ERR_ABORTED, and `onEpisode` has been given
 *   what was over; what `collectTrajectories` throws
 */
export async function evaluate<Task>(options: EvaluateOptions<Task>): Promise<Evaluation> {
  const { environment, tasks, seed, played = [], onProgress } = options;
  for (const { id, task, seed: episodeSeed } of played) {
    const asked = tasks[id];
    const same = asked !== undefined && environment.taskId(asked) === task;
    if (!same || episodeSeed !== derivedSeed(seed, streams.episode, id))
      throw new NlacError("ERR_CONFIG", `Episode ${id} (${task}) was played in another evaluation.`);
  }
  const known = new Set(played.map(({ id }) => id));
  const episodes = tasks.map((task, id) => ({ id, task })).filter(({ id }) => !known.has(id));
  let tokens = 0;
  const trajectories = await collectTrajectories({
    ...options,
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
