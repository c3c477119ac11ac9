/**
 * ReAct prompting (Yao et al., "ReAct: synergizing reasoning and acting in language models", 2022):
 * the first rows of the paper's table. Nothing is trained. A model plays under the acting prompt
 * that all methods share (lib/prompts/policy.ts),
 *
 *   thought, action ~ π(· | task, thought_1, action_1, observation_1, …)
 *
 * and its success is measured. The model is a learner, before or after training, or a service
 * behind OpenAI's API.
 *
 * Departures from the papers:
 * - The prompt describes the form and has no worked examples.
 * - A tool call is generated as text, not through a service's function calling API, so that every
 *   model reads the same prompt.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import { tasksOf } from "../contract/checks.ts";
import type { Environment } from "../contract/environment.ts";
import type { EpisodeFigures } from "../episodes/figures.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { WeightSet } from "../model/language-model.ts";
import type { Player } from "../playing/batches.ts";
import { type Evaluation, evaluate } from "../playing/evaluate.ts";
import { configOf } from "../training/requirements.ts";

const count = z.int().min(1);

/** Tasks to play if `episodes` is not given. */
const defaultTasks = 32;

/** Options besides model, environment and config. */
const optionNames = ["weights", "played", "signal", "onProgress", "onEpisode"];

/** Each field: meaning, unit, default. */
export const reactConfig = z.strictObject({
  /** Split the tasks are taken from. Default "test". */
  split: z.enum(["train", "test"]).default("test"),
  /**
   * Number of episodes. Default: `trials` of each of 32 tasks, or of every task if there are fewer.
   */
  episodes: count.optional(),
  /** Maximum episodes per task, each with its own seed. Default 1. */
  trials: count.default(1),
  /** Maximum episodes at once. Default 16. */
  concurrency: count.default(16),
  /** Softmax temperature at which actions are sampled; 0 is greedy. Default 0. */
  temperature: z.number().min(0).default(0),
  /**
   * Constrains a learner's actions of the format "tool" to the form and the tools' schemas. Default
   * false.
   */
  constrainActions: z.boolean().default(false),
  /** Longest prompt, in tokens. Default: the player's context. */
  maxPromptTokens: count.optional(),
  /** Longest action, in tokens. Default 128. */
  maxActionTokens: count.default(128),
  /**
   * Timeout of the environment for starting an episode or answering an action, in milliseconds.
   * Default: none.
   */
  stepTimeout: count.optional(),
  /**
   * Seed of every random choice, except those that a service makes itself. Episodes have other seeds
   * than those of a training with the same seed. Default 0.
   */
  seed: z.int().min(0).default(0),
});

export type ReactConfig = z.infer<typeof reactConfig>;
/** Settings of ReAct, as a recipe gives them. */
export type ReactConfigInput = z.input<typeof reactConfig>;

/** Options of `evaluateReact`. */
export interface ReactOptions<Task> {
  /** A learner, or a `servicePlayer`. */
  model: Player;
  environment: Environment<Task>;
  config?: ReactConfigInput;
  /** Weights that a learner plays with. Default "online". */
  weights?: WeightSet;
  /** Episodes already played under the same configuration; they are not played again. */
  played?: readonly EpisodeFigures[];
  signal?: AbortSignal;
  /**
   * Called at the beginning and after every turn with the finished episodes, all episodes, and the
   * tokens generated.
   */
  onProgress?: (finished: number, total: number, tokens: number) => void;
  /** Called with each episode when it ends, so that a stopped evaluation keeps them. */
  onEpisode?: (trajectory: Trajectory) => void;
}

/**
 * Plays tasks in random order, spread evenly over the episodes.
 * @throws NlacError ERR_CONFIG for an invalid configuration or option, for more episodes than
 *   `trials` of every task, or for `played` episodes of another evaluation; ERR_ABORTED
 */
export async function evaluateReact<Task>(options: ReactOptions<Task>): Promise<Evaluation> {
  const { model, environment, weights, played = [], signal, onProgress, onEpisode } = options;
  const config = configOf(reactConfig, options, optionNames);
  const all = await tasksOf(environment, config.split);
  const tasks = chooseTasks(all, `${environment.name}, ${config.split}`, config);
  onProgress?.(played.length, tasks.length, 0);
  return evaluate({
    model,
    environment,
    tasks,
    trials: config.trials,
    // Otherwise they would be the seeds of training's episodes, if its seed is the same. Evaluations
    // during training have the counters 0 and 1.
    seed: derivedSeed(config.seed, streams.evaluation, 2),
    concurrency: config.concurrency,
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens ?? model.maxPositions,
    temperature: config.temperature,
    constrainActions: config.constrainActions,
    played,
    ...(config.stepTimeout === undefined ? {} : { stepTimeout: config.stepTimeout }),
    ...(weights === undefined ? {} : { weights }),
    ...(signal === undefined ? {} : { signal }),
    ...(onProgress === undefined ? {} : { onProgress }),
    ...(onEpisode === undefined ? {} : { onEpisode }),
  });
}

/**
 * One task per episode: none more than `trials` times, and the counts of two tasks differ by at
 * most one.
 */
function chooseTasks<Task>(all: readonly Task[], source: string, config: ReactConfig): Task[] {
  const { trials, seed } = config;
  if (all.length === 0)
    throw new NlacError("ERR_CONFIG", `${source}: there are no tasks. Name another environment or split.`);
  const episodes = config.episodes ?? Math.min(defaultTasks, all.length) * trials;
  if (episodes > all.length * trials) {
    throw new NlacError(
      "ERR_CONFIG",
      `${source}: there are ${all.length} tasks. For ${episodes} episodes, play tasks more than once: ` +
        `--trials ${Math.ceil(episodes / all.length)}.`,
    );
  }
  const order = permutation(all.length, seed, streams.evaluation);
  const different = Math.ceil(episodes / trials);
  return Array.from({ length: episodes }, (_, i) => all[order[i % different]!]!);
}
