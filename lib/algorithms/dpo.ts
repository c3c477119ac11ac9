/**
 * Direct preference optimization on recorded episodes (Rafailov et al., "Direct preference
 * optimization", 2023). Pairs of texts y⁺, y⁻ after the same prompt come from returns, not from
 * people:
 *
 *   d = log π_θ(y⁺)/π_ref(y⁺) - log π_θ(y⁻)/π_ref(y⁻)
 *   L = -log σ(β d)             "sigmoid": DPO, equation 7
 *   L = max(0, 1 - β d)         "hinge": SLiC (Zhao et al., 2023)
 *   L = (d̄ - 1/(2β))²           "ipo": IPO (Azar et al., 2023), equation 17, with d̄ as d but each
 *                               text's log ratio divided by its number of tokens, as in TRL
 *
 * π_ref is θ at the start of training. Two kinds of pairs: whole episodes on the same task with the
 * same opening, or actions in the same state by their Monte-Carlo values Q̂(s, a)
 * (training/returns.ts), such as the branches that HOPE records.
 *
 * Departures from the papers, on points that they leave open:
 * - IPO's log ratios are means over a text's tokens; the paper's are sums.
 * - The return of a truncated episode ends where it was cut.
 * - An episode has many turns. Its log probability is the sum over the policy's tokens; those of
 *   the environment have weight 0.
 * - Pairs are random: up to `pairsPerGroup` of each opening or state, not only the best against the
 *   worst.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { PreferenceModel } from "../model/language-model.ts";
import { sampledConfig, unsampledConfig } from "../playing/config.ts";
import {
  countersSchema,
  endIteration,
  isOver,
  memoryRun,
  newCounters,
  parseState,
  rollBack,
  shareOver,
  type TrainingResult,
  type TrainingRun,
  trainingResult,
} from "../run/training-run.ts";
import { optimizerConfig, trainingConfig } from "../training/config.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import {
  actionPairs,
  episodePairs,
  type Pair,
  pairSamples,
  preferenceGradient,
} from "../training/preference-pairs.ts";
import { copyRecorded } from "../training/recorded-episodes.ts";
import { configOf } from "../training/requirements.ts";
import { actionValues } from "../training/returns.ts";
import { episodesFrom, epochBatch } from "../training/rounds.ts";
import { scheduleConfigOf } from "../training/schedule.ts";
import { scheduledStep, stepPlace } from "../training/step.ts";

const count = z.int().min(1);

/**
 * Each field: meaning, unit, default and, if there is one, the source. "Paper" is Rafailov et al.
 */
export const dpoConfig = z
  .strictObject({
    /** Passes over the pairs. Default and paper: 1. */
    epochs: count.default(1),
    /** Files of recorded episodes, in order. */
    recorded: z.array(z.string().min(1)).default([]),
    /**
     * What a pair is: two "episodes" on the same task with the same opening, or two "actions" in the
     * same state, by the mean return of the episodes that took them. Default "episodes".
     */
    pairs: z.enum(["episodes", "actions"]).default("episodes"),
    /** Maximum pairs of one opening of a task, or of one state. Default 4. */
    pairsPerGroup: count.default(4),
    /** Minimum difference of returns in a pair. Default 0: they must differ. */
    minGap: z.number().min(0).default(0),
    /** With "actions": γ per turn. Default 1. */
    discount: z.number().min(0).max(1).default(1),
    /** The loss; see above. Default "sigmoid". */
    loss: z.enum(["sigmoid", "hinge", "ipo"]).default("sigmoid"),
    /** β: weight of the KL to the reference. Default and paper: 0.1. */
    beta: z.number().gt(0).default(0.1),
    /** Probability that a pair's preference is wrong; "sigmoid" only. Default and paper: 0. */
    labelSmoothing: z.number().min(0).lt(0.5).default(0),
    /** Pairs per step. Default and paper: 64. */
    batchSize: count.default(64),
    /** When the policy is evaluated, in epochs. Default never. */
    evaluation: trainingConfig.shape.evaluation,
    /** Seed of every random choice. Default 0. */
    seed: trainingConfig.shape.seed,
    ...optimizerConfig.shape,
    /** Peak learning rate. Default and paper: 1e-6. */
    learningRate: z.number().min(0).default(1e-6),
    /** Default: linear decay to 0. Paper: a linear warm-up over 150 steps, then constant. */
    schedule: scheduleConfigOf("linear"),
    ...sampledConfig.shape,
    ...unsampledConfig.shape,
    /** Longest text, in tokens; pairs with a longer one are left out and counted. Default 4,096. */
    maxTokens: count.default(4096),
  })
  .refine(({ recorded }) => recorded.length > 0, {
    path: ["recorded"],
    message: "there is nothing to compare: name files of `recorded` episodes",
  })
  .refine(({ pairs, discount }) => pairs === "actions" || discount === 1, {
    path: ["discount"],
    message: 'needs pairs "actions": the reward of an episode is not discounted',
  })
  .refine(({ loss, labelSmoothing }) => loss === "sigmoid" || labelSmoothing === 0, {
    path: ["labelSmoothing"],
    message: 'needs loss "sigmoid"',
  });

export type DpoConfig = z.infer<typeof dpoConfig>;
/** Settings of DPO, as a recipe gives them. */
export type DpoConfigInput = z.input<typeof dpoConfig>;

/** Options of `trainDpo`. */
export interface DpoOptions<Task> {
  model: PreferenceModel;
  environment: Environment<Task>;
  config: DpoConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** State shared by the functions below. `iteration` counts finished epochs. */
interface Training<Task> {
  model: PreferenceModel;
  environment: Environment<Task>;
  pairs: readonly Pair[];
  state: z.infer<typeof countersSchema>;
  config: DpoConfig & { iterations: number; environmentSteps: number };
  run: TrainingRun;
}

/**
 * Trains `model` in place. Returns after the epochs, or when the run's signal fires: the state
 * after the last complete update is then checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, or if the episodes have no pair;
 *   ERR_RUN, ERR_IO for recorded episodes that cannot be read; ERR_NOT_FINITE after
 *   `maxSkippedSteps` skipped steps.
 */
export async function trainDpo<Task>(options: DpoOptions<Task>): Promise<TrainingResult> {
  const given = configOf(dpoConfig, options);
  const config = { ...given, iterations: given.epochs, environmentSteps: 0 };
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const saved = await run.restore();
  const state = saved === undefined ? newCounters() : parseState(countersSchema, saved.state);
  const recorded =
    saved === undefined
      ? await copyRecorded(run, config.recorded, model, environment)
      : await episodesFrom(saved.trajectories, 0);
  const all = pairsOf(recorded, config);
  const longest = Math.min(config.maxTokens, model.maxPositions);
  const fits = ({ prompt, response }: Pair["chosen"]) => prompt.length + response.length <= longest;
  const pairs = all.filter(({ chosen, rejected }) => fits(chosen) && fits(rejected));
  if (pairs.length === 0)
    throw new NlacError(
      "ERR_CONFIG",
      all.length > 0
        ? `All ${all.length} pairs have a text that is longer than maxTokens (${longest}).`
        : `The ${recorded.length} recorded episodes have no pair of ${config.pairs} with different returns.`,
    );
  const training: Training<Task> = { model, environment, pairs, state, config, run };
  const perEpoch = Math.ceil(pairs.length / config.batchSize);
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () => run.progress.overall(shareOver(state, config, state.updatesDone / perEpoch));

  try {
    showOverall();
    if (saved === undefined) {
      await model.keepReference();
      run.metrics(0, {
        "data/episodes": recorded.length,
        "data/pairs": pairs.length,
        "data/too_long": all.length - pairs.length,
      });
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      state.collected = true;
      run.progress.phase("update", perEpoch);
      run.progress.advance(state.updatesDone);
      while (state.updatesDone < perEpoch) {
        const metrics = await update(training, perEpoch);
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ loss: metrics["loss/preference"] ?? Number.NaN });
        run.progress.advance(state.updatesDone, metrics["tokens/preference"]);
        showOverall();
        await checkpoint(false);
      }
      endIteration(state);
    }
    await evaluatePeriodically(training);
    await checkpoint(true);
    return trainingResult(state, false);
  } catch (error) {
    await rollBack(model, run, error, () => checkpoint(true));
    return trainingResult(state, true);
  }
}

function pairsOf(trajectories: readonly Trajectory[], config: DpoConfig): Pair[] {
  const { pairsPerGroup: perGroup, minGap, discount, seed } = config;
  if (config.pairs === "episodes") return episodePairs(trajectories, { perGroup, minGap, seed });
  return actionPairs(actionValues(trajectories, { discount, prefixes: false }), { perGroup, minGap, seed });
}

/** One step on a batch. Its random choices depend on (seed, epoch) only. */
async function update<Task>(training: Training<Task>, perEpoch: number): Promise<Record<string, number>> {
  const { model, pairs, state, config, run } = training;
  const started = performance.now();
  const drawn = epochBatch(config, state.iteration, state.updatesDone, pairs.length);
  const batch = drawn.map((i) => pairs[i]!);
  const { results, metrics } = await preferenceGradient(model, batch, config, run.signal);
  throwIfAborted(run.signal);
  const stepped = await scheduledStep(model, config, stepPlace(state, config, perEpoch), state);
  for (const sample of pairSamples(model, state.updates, batch.slice(0, run.samplesPerUpdate), results))
    run.sample(sample);
  return {
    ...metrics,
    epoch: state.iteration + (state.updatesDone + 1) / perEpoch,
    ...stepped,
    "time/update": (performance.now() - started) / 1000,
  };
}
