/** Rounds of playing and updating: the episodes of a round, and how updates go through them. */

import type { z } from "zod";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { collectTrajectories, taskIndex } from "../playing/collect.ts";
import { type Counters, newCounters, parseState, type TrainingRun } from "../run/training-run.ts";
import { deviation, mean } from "../statistics/mean.ts";

/** What the methods' configurations say of acting; every field is explained there. */
export interface PlayConfig {
  episodesPerIteration: number;
  actionTemperature: number;
  maxActionTokens: number;
  maxPromptTokens: number;
  constrainActions: boolean;
  seed: number;
}

export interface PlayOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  config: PlayConfig;
  run: TrainingRun;
}

/**
 * An iteration's episodes under θ, recorded in the run.
 *
 * @param first number of the first of them within the run
 * @param perTask episodes in a row on the same task, each with a seed of its own
 * @throws NlacError ERR_ABORTED; nothing is recorded then
 */
export async function collectEpisodes<Task>(
  options: PlayOptions<Task>,
  first: number,
  perTask = 1,
): Promise<Trajectory[]> {
  const trajectories = await playEpisodes(options, first, perTask);
  for (const trajectory of trajectories) options.run.trajectory(trajectory);
  return trajectories;
}

/** The same, not recorded yet. */
export async function playEpisodes<Task>(
  { model, environment, tasks, config, run }: PlayOptions<Task>,
  first: number,
  perTask = 1,
): Promise<Trajectory[]> {
  run.progress.phase("play", config.episodesPerIteration);
  const episodes = Array.from({ length: config.episodesPerIteration }, (_, i) => {
    const id = first + i;
    return { id, task: tasks[taskIndex(Math.floor(id / perTask), tasks.length, config.seed)]! };
  });
  const trajectories = await collectTrajectories({
    model,
    environment,
    episodes,
    seed: config.seed,
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens,
    temperature: config.actionTemperature,
    constrainActions: config.constrainActions,
    signal: run.signal,
    onTurn: (finished, tokens) => run.progress.advance(finished, tokens),
  });
  await model.dropCaches(); // a resumed run has none here
  const faults = trajectories.filter(isFaulty).length;
  if (faults > 0) run.progress.show({ faults });
  return trajectories;
}

/** Where an on-policy method goes on: its counters, and its round's episodes, the run's last, if they have been played. */
export async function restoreRound<State extends Counters>(
  run: TrainingRun,
  schema: z.ZodType<State>,
  { episodesPerIteration }: Pick<PlayConfig, "episodesPerIteration">,
): Promise<{ state: State; trajectories: Trajectory[] }> {
  const saved = await run.restore();
  if (saved === undefined) return { state: parseState(schema, newCounters()), trajectories: [] };
  const state = parseState(schema, saved.state);
  return {
    state,
    trajectories: state.collected
      ? episodesFrom(saved.trajectories, state.episodes - episodesPerIteration)
      : [],
  };
}

/** Of all the episodes of a run, those from number `first` on. */
export function episodesFrom(trajectories: Iterable<Trajectory>, first: number): Trajectory[] {
  const kept: Trajectory[] = [];
  for (const trajectory of trajectories) if (trajectory.id >= first) kept.push(trajectory);
  return kept;
}

/** How a round's episodes are gone through; every field is explained in the methods' configurations. */
export interface EpochConfig {
  episodesPerIteration: number;
  epochs: number;
  batchSize: number;
  seed: number;
}

/** Updates of one round: they do not depend on how many of its episodes can be used. */
export function updatesPerRound({ episodesPerIteration, epochs, batchSize }: EpochConfig): number {
  return epochs * Math.ceil(episodesPerIteration / batchSize);
}

/**
 * Which of a round's `episodes` usable ones the next update takes: every epoch goes through all of them in a new random
 * order. Empty where the round has too few for its last batches.
 */
export function minibatch(
  config: EpochConfig,
  { iteration, updatesDone }: Counters,
  episodes: number,
): number[] {
  const perEpoch = updatesPerRound({ ...config, epochs: 1 });
  const epoch = iteration * config.epochs + Math.floor(updatesDone / perEpoch);
  const seed = derivedSeed(config.seed, streams.minibatch, epoch);
  const start = (updatesDone % perEpoch) * config.batchSize;
  return permutation(episodes, seed, streams.minibatch).slice(start, start + config.batchSize);
}

/** Environment steps, which methods are compared by: one an action. */
export function stepsOf(trajectories: readonly Trajectory[]): number {
  return trajectories.reduce((sum, { turns }) => sum + turns.length, 0);
}

/** What is logged of the episodes that a policy gradient learns from; the names are TRL's. */
export function completionMetrics(
  trajectories: readonly Trajectory[],
  { endOfTurnIds }: Pick<LanguageModel, "endOfTurnIds">,
): Record<string, number> {
  const rewards = trajectories.filter((trajectory) => !isFaulty(trajectory)).map(({ reward }) => reward);
  const lengths = trajectories.map(({ turns }) => turns.reduce((sum, { tokens }) => sum + tokens.length, 0));
  const cut = trajectories.flatMap(({ turns }) =>
    turns.map(({ tokens }) => !endOfTurnIds.includes(tokens.at(-1)!)),
  );
  return {
    reward: mean(rewards),
    reward_std: deviation(rewards),
    "completions/mean_length": mean(lengths),
    "completions/clipped_ratio": mean(cut.map(Number)),
  };
}
