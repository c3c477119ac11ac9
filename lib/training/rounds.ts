/**
 * The parts of an iteration that methods share: collecting episodes, and batching them for updates.
 */

import type { z } from "zod";
import { counted } from "../base/counted.ts";
import { type ErrorCode, NlacError } from "../base/errors.ts";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { isFaulty, type Stream, type Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { collectTrajectories, taskIndex } from "../playing/collect.ts";
import { type Counters, newCounters, parseState, type TrainingRun } from "../run/training-run.ts";
import { deviation, mean } from "../statistics/mean.ts";
import { noteFaults } from "./note-faults.ts";

/** Configuration of rollouts; the methods' configurations explain each field. */
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
 * Plays an iteration's episodes under θ and records them in the run.
 *
 * @param first number of the first episode within the run
 * @param perTask consecutive episodes on the same task, each with its own seed
 * @throws NlacError ERR_ABORTED; if all episodes of a run's first iteration failed, the code of the
 *   first fault; if none of their first prompts fits, ERR_CONFIG. Nothing is recorded then
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

/** Same as `collectEpisodes`, without recording. */
export async function playEpisodes<Task>(
  { model, environment, tasks, config, run }: PlayOptions<Task>,
  first: number,
  perTask = 1,
): Promise<Trajectory[]> {
  run.progress.phase("play", config.episodesPerIteration);
  if (run.nextEpisodes !== undefined) return run.nextEpisodes(first, config.episodesPerIteration);
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
  await model.dropCaches(); // a resumed run starts with empty caches too
  const faults = trajectories.filter(isFaulty).length;
  if (faults > 0) run.progress.show({ faults });
  else run.progress.hide?.("faults");
  noteFaults(run.progress, trajectories, "play");
  if (first === 0) requireAnEpisode(trajectories, Math.min(config.maxPromptTokens, model.maxPositions - 1));
  return trajectories;
}

/**
 * Throws an NlacError with the code of the first fault if all `trajectories` have one, and ERR_CONFIG
 * if none has a turn because all first prompts have more than `maxPromptTokens`.
 */
function requireAnEpisode(trajectories: readonly Trajectory[], maxPromptTokens: number): void {
  const [{ task, fault } = {}] = trajectories;
  const isTooLong = ({ outcome, turns }: Trajectory) => outcome === "context-limit" && turns.length === 0;
  if (trajectories.length > 0 && trajectories.every(isTooLong))
    throw new NlacError(
      "ERR_CONFIG",
      `No episode of the first iteration has a turn: their first prompts have more than ${maxPromptTokens} tokens, the ` +
        "limit of config.maxPromptTokens or of the model's context.",
    );
  if (fault === undefined || !trajectories.every(isFaulty)) return;
  throw new NlacError(
    fault.code as ErrorCode,
    `All ${counted(trajectories.length, "episode")} of the first iteration failed, so there is nothing to train on. ` +
      `The first, on the task ${JSON.stringify(task)}: ${fault.message}`,
  );
}

/**
 * Restores an on-policy method: its counters and, if the iteration's episodes have been played, the
 * last episodes of the run. `isNew`: the run has no checkpoint of the method, so that its reference
 * must be stored.
 */
export async function restoreRound<State extends Counters>(
  run: TrainingRun,
  schema: z.ZodType<State>,
  { episodesPerIteration }: Pick<PlayConfig, "episodesPerIteration">,
): Promise<{ state: State; trajectories: Trajectory[]; isNew: boolean }> {
  const saved = await run.restore();
  if (saved === undefined) return { state: parseState(schema, newCounters()), trajectories: [], isNew: true };
  const state = parseState(schema, saved.state);
  return {
    state,
    trajectories: state.collected
      ? await episodesFrom(saved.trajectories, state.episodes - episodesPerIteration)
      : [],
    isNew: false,
  };
}

/** The episodes of a run from number `first` on. */
export async function episodesFrom(trajectories: Stream<Trajectory>, first: number): Promise<Trajectory[]> {
  const kept: Trajectory[] = [];
  for await (const trajectory of trajectories) if (trajectory.id >= first) kept.push(trajectory);
  return kept;
}

/** How an iteration's episodes are batched; the methods' configurations explain each field. */
export interface EpochConfig {
  episodesPerIteration: number;
  epochs: number;
  batchSize: number;
  seed: number;
}

/** Updates per iteration, regardless of how many of its episodes are usable. */
export function updatesPerRound({ episodesPerIteration, epochs, batchSize }: EpochConfig): number {
  return epochs * Math.ceil(episodesPerIteration / batchSize);
}

/**
 * Indices of the usable episodes for the next update. Each epoch visits all `episodes` of them in a
 * new random order. Empty if too few are usable to fill the last batches.
 */
export function minibatch(
  config: EpochConfig,
  { iteration, updatesDone }: Counters,
  episodes: number,
): number[] {
  const perEpoch = updatesPerRound({ ...config, epochs: 1 });
  const epoch = iteration * config.epochs + Math.floor(updatesDone / perEpoch);
  return epochBatch(config, epoch, updatesDone % perEpoch, episodes);
}

/**
 * Indices of batch number `batch` of an epoch over `count` items, in a random order that depends on
 * (seed, epoch) only. The last batch of an epoch may be smaller.
 */
export function epochBatch(
  { batchSize, seed }: { batchSize: number; seed: number },
  epoch: number,
  batch: number,
  count: number,
): number[] {
  const order = permutation(count, derivedSeed(seed, streams.minibatch, epoch), streams.minibatch);
  return order.slice(batch * batchSize, (batch + 1) * batchSize);
}

/** Environment steps, one per action: the unit in which methods are compared. */
export function stepsOf(trajectories: readonly Trajectory[]): number {
  return trajectories.reduce((sum, { turns }) => sum + turns.length, 0);
}

/**
 * Metrics of the episodes that a policy gradient trains on. Faulty episodes are left out. Names as
 * in TRL.
 */
export function completionMetrics(
  trajectories: readonly Trajectory[],
  { endOfTurnIds }: Pick<LanguageModel, "endOfTurnIds">,
): Record<string, number> {
  const usable = trajectories.filter((trajectory) => !isFaulty(trajectory));
  const rewards = usable.map(({ reward }) => reward);
  const lengths = usable.map(({ turns }) => turns.reduce((sum, { tokens }) => sum + tokens.length, 0));
  const cut = usable.flatMap(({ turns }) =>
    turns.map(({ tokens }) => !endOfTurnIds.includes(tokens.at(-1)!)),
  );
  return {
    reward: mean(rewards),
    reward_std: deviation(rewards),
    "completions/mean_length": mean(lengths),
    "completions/clipped_ratio": mean(cut.map(Number)),
  };
}
