/**
 * ReAct prompting (Yao et al., "ReAct: synergizing reasoning and acting in language models", 2022): the first rows of the
 * paper's table. Nothing is trained; a model plays under the acting prompt that all methods share (lib/prompts/policy.ts),
 *
 *   thought, action ~ π(· | task, thought_1, action_1, observation_1, …)
 *
 * and is measured. It may be a learner, before or after training, or a service behind OpenAI's API.
 *
 * Departures from the papers:
 * - No worked examples are shown; the form is described.
 * - A tool's call is written as text, not through a service's own function calling: every model reads the same prompt.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { permutation, streams } from "../base/random.ts";
import { checkConfig } from "../base/validation.ts";
import type { Environment } from "../contract/environment.ts";
import type { EpisodeFigures } from "../episodes/figures.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { WeightSet } from "../model/language-model.ts";
import type { Player } from "../playing/batches.ts";
import { type Evaluation, evaluate } from "../playing/evaluate.ts";

const count = z.int().min(1);

/** Tasks played when no number is given. */
const defaultTasks = 32;

/** Every field: meaning, unit, default. */
export const reactConfig = z.strictObject({
  /** Whose tasks. Default "test". */
  split: z.enum(["train", "test"]).default("test"),
  /** Episodes in all. Default: `trials` of each of 32 tasks, or of all where there are fewer. */
  episodes: count.optional(),
  /** Most episodes a task, each with a seed of its own. Default 1. */
  trials: count.default(1),
  /** Most episodes at once. Default 16. */
  concurrency: count.default(16),
  /** Softmax temperature at which actions are written; 0 is greedy. Default 0. */
  temperature: z.number().min(0).default(0),
  /** Holds a learner's actions of the format "tool" to their form and their tools' schemas. Default false. */
  constrainActions: z.boolean().default(false),
  /** Longest prompt, tokens. Default: the player's context. */
  maxPromptTokens: count.optional(),
  /** Longest action, tokens. Default 128. */
  maxActionTokens: count.default(128),
  /** Milliseconds the environment may take to begin an episode or to answer an action. Default: no limit. */
  stepTimeout: count.optional(),
  /** Seed of every random choice; a service makes its own. */
  seed: z.int().min(0).default(0),
});

export type ReactConfig = z.infer<typeof reactConfig>;
export type ReactConfigInput = z.input<typeof reactConfig>;

export interface ReactOptions<Task> {
  /** A learner, or a `servicePlayer`. */
  model: Player;
  environment: Environment<Task>;
  config?: ReactConfigInput;
  /** Of a learner's. Default "online". */
  weights?: WeightSet;
  /** Episodes that were played before under the same configuration; they are not played again. */
  played?: readonly EpisodeFigures[];
  signal?: AbortSignal;
  /** Called at the beginning and after every turn, with the episodes over, those in all, and the tokens written. */
  onProgress?: (finished: number, total: number, tokens: number) => void;
  /** Called with each episode as it ends: what a stop leaves. */
  onEpisode?: (trajectory: Trajectory) => void;
}

/**
 * Plays tasks in random order, spread evenly over the episodes.
 * @throws NlacError ERR_CONFIG for a bad configuration, for more episodes than `trials` of every task, or for
 *   played ones of another evaluation; ERR_ABORTED
 */
export async function evaluateReact<Task>(options: ReactOptions<Task>): Promise<Evaluation> {
  const { model, environment, weights, played = [], signal, onProgress, onEpisode } = options;
  const config = checkConfig(reactConfig, options.config);
  const all = await environment.tasks(config.split);
  const tasks = chooseTasks(all, `${environment.name}, ${config.split}`, config);
  onProgress?.(played.length, tasks.length, 0);
  return evaluate({
    model,
    environment,
    tasks,
    trials: config.trials,
    seed: config.seed,
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

/** One task an episode, none more than `trials` times nor more than once oftener than another. */
function chooseTasks<Task>(all: readonly Task[], source: string, config: ReactConfig): Task[] {
  const { trials, seed } = config;
  if (all.length === 0) throw new NlacError("ERR_CONFIG", `${source}: there are no tasks.`);
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
