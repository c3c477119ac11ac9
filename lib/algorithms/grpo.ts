/**
 * Group Relative Policy Optimization (Shao et al., "DeepSeekMath", 2024) on whole episodes. Each
 * iteration plays groups of G episodes per task under θ_old. The advantage of an episode, its
 * reward relative to its group, applies to every token that the policy generated in it:
 *
 *   A_i = (R_i - mean R) / (std R + 1e-4)      "std": GRPO
 *   A_i = R_i - mean R                         "mean-only": Dr. GRPO (Liu et al., 2025)
 *   A_i = R_i - mean of the others' R          "leave-one-out": RLOO (Ahmadian et al., 2024)
 *
 * With `credit: "turn"` each turn j has its own advantage A_ij instead: the same comparison of G_ij
 * = Σ_{l >= j} γ^{l-j} r_il among the episodes of the group that have a turn j; with "turn-batch"
 * these are then normalized over all turns of the iteration.
 *
 *   ρ_t = π_θ(y_t | y_<t) / π_old(y_t | y_<t),  k_t = π_ref/π_θ - log(π_ref/π_θ) - 1
 *   L = -Σ_i Σ_t w_it ( min(ρ_t A_i, clip(ρ_t, 1 - clipLow, 1 + clipHigh) A_i) - β k_t )
 *
 *   w_it = 1 / (N |y_i|)                       "sequence": GRPO
 *   w_it = 1 / Σ_j |y_j|                       "token": DAPO (Yu et al., 2025)
 *   w_it = 1 / (N · max tokens per episode)    "constant": Dr. GRPO
 *
 * N is the number of episodes per step. t runs over the tokens that the policy generated, and |y|
 * counts only those. clipHigh > clipLow is DAPO's clip-higher.
 *
 * π_old is θ before the iteration's first step. For served episodes, which earlier weights
 * generated, it is the policy that generated each token, if actions are sampled at temperature 1.
 * Of these, turns that a grammar constrained are not trained on: their tokens are not the policy's.
 *
 * Departures from the papers, all on points that the papers leave open:
 * - An episode has many turns. It is scored as one sequence in which observation tokens have weight
 *   0. If the chat history drops the reasoning of earlier turns, each turn is a sequence of its
 *   own, after the state in which it was generated.
 * - The standard deviation is the sample's (n - 1), and 1e-4 keeps it from 0, as in TRL.
 * - Credit per turn is that of Ding et al. ("Empowering Multi-Turn Tool-Integrated Reasoning with
 *   Group Turn Policy Optimization", 2025) without their shaped rewards: turns are compared by
 *   index. A turn that no other episode of the group reached has an advantage of 0.
 * - An episode that failed by a fault of the environment or a service has no reward. It is left
 *   out, also of its group's statistics.
 * - Nothing is bootstrapped, because there are no values: a truncated episode counts with the
 *   reward received so far.
 */

import { z } from "zod";
import { throwIfAborted } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import type { Trajectory, Turn } from "../episodes/trajectory.ts";
import type { PolicyGradientModel, SurrogateText } from "../model/language-model.ts";
import { sampledConfig } from "../playing/config.ts";
import {
  countersSchema,
  endIteration,
  isOver,
  memoryRun,
  rollBack,
  shareOver,
  type TrainingResult,
  type TrainingRun,
  trainingResult,
} from "../run/training-run.ts";
import { mean } from "../statistics/mean.ts";
import { optimizerConfig, trainingConfig } from "../training/config.ts";
import { type EpisodeText, episodeTexts } from "../training/episode-texts.ts";
import {
  advantageKinds,
  groupAdvantages,
  groupMetrics,
  groupsOf,
  normalizations,
  tokenWeights,
  turnAdvantages,
} from "../training/group-advantages.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { configOf, requireTasks } from "../training/requirements.ts";
import { returnsFrom } from "../training/returns.ts";
import {
  collectEpisodes,
  completionMetrics,
  minibatch,
  restoreRound,
  stepsOf,
  updatesPerRound,
} from "../training/rounds.ts";
import { episodeSample } from "../training/sample-records.ts";
import { scheduledStep, stepPlace } from "../training/step.ts";
import {
  perSample,
  restoreScores,
  type Scores,
  savedScores,
  saveScores,
  scoreEpisodes,
  surrogateMetrics,
  withRecordedPolicy,
} from "../training/surrogate.ts";

const count = z.int().min(1);

/**
 * Each field: meaning, unit, default and, if there is one, the source. "Paper" is NLAC's, where
 * GRPO is a baseline.
 */
export const grpoConfig = z
  .strictObject({
    ...trainingConfig.shape,
    /**
     * Episodes collected per iteration, a multiple of `groupSize`. Default 64. Paper: not given.
     */
    episodesPerIteration: count.default(64),
    /** G: episodes per task. Default and paper: 4; Shao et al.: 64. */
    groupSize: z.int().min(2).default(4),
    /** Passes over an iteration's episodes. Default and Shao et al.: 1. */
    epochs: count.default(1),
    /**
     * Episodes per step. Default 64: one step per iteration, as in Shao et al.; verl takes four
     * (docs/decisions/0016).
     */
    batchSize: count.default(64),
    /** How advantages are computed from a group's rewards; see above. Default "std": GRPO's. */
    advantage: z.enum(advantageKinds).default("std"),
    /**
     * What has an advantage: the whole "episode", each "turn" by its return, or "turn-batch",
     * the latter normalized over the iteration; see above. Default "episode": GRPO's.
     */
    credit: z.enum(["episode", "turn", "turn-batch"]).default("episode"),
    /** γ per turn of the returns, if credit is per turn. Default 1. Ding et al.: below 1. */
    discount: z.number().min(0).max(1).default(1),
    /** How token losses are averaged; see above. Default "sequence": GRPO's. */
    normalization: z.enum(normalizations).default("sequence"),
    /** The ratio is clipped below at 1 - clipLow. Default and Schulman et al., 2017: 0.2. */
    clipLow: z.number().min(0).max(1).default(0.2),
    /**
     * The ratio is clipped above at 1 + clipHigh. Default and Schulman et al.: 0.2; Yu et al.:
     * 0.28.
     */
    clipHigh: z.number().min(0).default(0.2),
    /**
     * β: weight of the KL to the reference model, θ at the start of training. 0 needs no reference.
     * Default and Shao et al.: 0.04.
     */
    klCoefficient: z.number().min(0).default(0.04),
    /** Weight of the entropy bonus in the objective. Default and Shao et al.: 0. */
    entropyCoefficient: z.number().min(0).default(0),
    ...optimizerConfig.shape,
    /** Peak learning rate. Default and paper: 5e-6; Shao et al.: 1e-6. */
    learningRate: optimizerConfig.shape.learningRate,
    ...sampledConfig.shape,
    /** Softmax temperature at which actions are sampled and scored. Default 1. Paper: not given. */
    actionTemperature: z.number().gt(0).default(1),
  })
  .refine(({ episodesPerIteration, groupSize }) => episodesPerIteration % groupSize === 0, {
    path: ["episodesPerIteration"],
    message: "must be a multiple of groupSize",
  })
  .refine(({ credit, discount }) => credit !== "episode" || discount === 1, {
    path: ["discount"],
    message: 'needs credit "turn" or "turn-batch": the reward of an episode is not discounted',
  });

export type GrpoConfig = z.infer<typeof grpoConfig>;
/** Settings of GRPO, as a recipe gives them. */
export type GrpoConfigInput = z.input<typeof grpoConfig>;

/** Options of `trainGrpo`. */
export interface GrpoOptions<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  config?: GrpoConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** Checkpoint state besides the weights. The iteration's episodes are the last ones of the run. */
const stateSchema = countersSchema.extend({
  /** Scores of the iteration's usable episodes: under θ before its first step, or see `score`. */
  scores: z.array(savedScores).optional(),
});

type State = z.infer<typeof stateSchema>;

/** One training episode. */
interface Sample {
  trajectory: Trajectory;
  texts: EpisodeText[];
  /** One per turn. */
  advantages: number[];
}

/** State shared by the functions below. */
interface Training<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  state: State;
  config: GrpoConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Returns after `iterations`, or when the run's signal fires: the state
 * after the last complete collection or update is then checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, ERR_NOT_FINITE after `maxSkippedSteps`
 *   skipped steps.
 */
export async function trainGrpo<Task>(options: GrpoOptions<Task>): Promise<TrainingResult> {
  const config = configOf(grpoConfig, options);
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  let { state, trajectories, isNew } = await restoreRound(run, stateSchema, config);
  const training: Training<Task> = { model, environment, tasks, state, config, run };
  const updatesPerIteration = updatesPerRound(config);
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () =>
    run.progress.overall(shareOver(state, config, state.updatesDone / updatesPerIteration));

  try {
    showOverall();
    if (isNew) {
      if (config.klCoefficient > 0) await model.keepReference();
      // Saves what happened before training, such as a warm-up, in case the first rollouts are
      // stopped.
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      if (!state.collected) {
        const started = performance.now();
        trajectories = await collectEpisodes(training, state.episodes, config.groupSize);
        state.episodes += trajectories.length;
        state.environmentSteps += stepsOf(trajectories);
        state.collected = true;
        run.metrics(state.updates, {
          ...rolloutMetrics(trajectories),
          ...completionMetrics(trajectories, model),
          ...groupMetrics(trajectories, config.groupSize),
          ...(run.nextEpisodes && constrainedMetrics(trajectories)),
          episodes: state.episodes,
          environment_steps: state.environmentSteps,
          "time/play": (performance.now() - started) / 1000,
        });
        await checkpoint(false);
      }
      const samples = samplesOf(trajectories, config, run.nextEpisodes !== undefined);
      state.scores ??= (await score(training, samples)).map(saveScores);
      const scores = state.scores.map(restoreScores);
      run.progress.phase("update", updatesPerIteration);
      run.progress.advance(state.updatesDone);
      showOverall();
      while (state.updatesDone < updatesPerIteration) {
        const metrics = await update(training, samples, scores);
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ loss: metrics["loss/policy"] ?? Number.NaN });
        run.progress.advance(state.updatesDone, metrics["tokens/policy"]);
        showOverall();
        await checkpoint(false);
      }
      endIteration(state);
      delete state.scores;
    }
    await evaluatePeriodically(training);
    await checkpoint(true);
    return trainingResult(state, false);
  } catch (error) {
    await rollBack(model, run, error, () => checkpoint(true));
    return trainingResult(state, true);
  }
}

// -------------------------------------------------------------------------------------- advantages

/** The usable episodes, each with its advantages; of served ones, those with policy tokens. */
function samplesOf(trajectories: readonly Trajectory[], config: GrpoConfig, areServed: boolean): Sample[] {
  const groups = groupsOf(trajectories, config.groupSize);
  const advantages = advantagesOf(groups, config);
  const samples = groups.flatMap((group, g) =>
    group.map((trajectory, i) => {
      const texts = episodeTexts(trajectory);
      return {
        trajectory,
        texts: areServed ? withoutConstrained(texts, trajectory.turns) : texts,
        advantages: advantages[g]![i]!,
      };
    }),
  );
  return samples.filter(({ texts }) => texts.some(({ weight }) => weight.includes(1)));
}

/** Whether a grammar constrained a served turn: that of `response_format`, or of a required call. */
function isConstrained({ info }: Pick<Turn, "info">): boolean {
  return info.constrained === true;
}

/**
 * The sequences with a weight of 0 for constrained turns. Their tokens were not sampled from a
 * policy that the loss knows: where the grammar left one token, nothing was chosen.
 */
function withoutConstrained(texts: readonly EpisodeText[], turns: readonly Turn[]): EpisodeText[] {
  let turn = 0;
  return texts.map((text) => {
    const weight = [...text.weight];
    for (const { start, end } of text.turns) if (isConstrained(turns[turn++]!)) weight.fill(0, start, end);
    return { ...text, weight };
  });
}

function constrainedMetrics(trajectories: readonly Trajectory[]): Record<string, number> {
  const turns = trajectories.flatMap((trajectory) => trajectory.turns);
  return turns.some(isConstrained)
    ? { "completions/constrained": mean(turns.map((turn) => Number(isConstrained(turn)))) }
    : {};
}

/** Per group and episode, the advantages of its turns. */
function advantagesOf(
  groups: readonly (readonly Trajectory[])[],
  { advantage, credit, discount }: GrpoConfig,
): number[][][] {
  if (credit !== "episode") {
    const wholeBatch = credit === "turn-batch";
    const returns = groups.map((group) => group.map((trajectory) => returnsFrom(trajectory, discount)));
    return turnAdvantages(returns, advantage, wholeBatch);
  }
  return groups.map((group) => {
    const rewards = group.map(({ reward }) => reward);
    const advantages = groupAdvantages(rewards, advantage);
    return group.map(({ turns }, i) => turns.map(() => advantages[i]!));
  });
}

// ---------------------------------------------------------------------------------------- updating

/**
 * Scores the sequences of all samples, in the order of the samples. Served episodes were generated
 * by earlier weights: their recorded log probabilities are those of π_old.
 */
async function score<Task>(
  { model, config, run }: Training<Task>,
  samples: readonly Sample[],
): Promise<Scores[]> {
  const scores = await scoreEpisodes(
    model,
    samples.flatMap(({ texts }) => texts),
    {
      temperature: config.actionTemperature,
      reference: config.klCoefficient > 0,
      values: false,
      signal: run.signal,
    },
  );
  if (run.nextEpisodes === undefined || config.actionTemperature !== 1) return scores;
  return perSample(samples, scores).flatMap((own, i) =>
    withRecordedPolicy(own, samples[i]!.texts, samples[i]!.trajectory.turns),
  );
}

/** One step on a batch. Its random choices depend on (seed, update number) only. */
async function update<Task>(
  training: Training<Task>,
  samples: readonly Sample[],
  scores: readonly Scores[],
): Promise<Record<string, number>> {
  const { model, environment, state, config, run } = training;
  const started = performance.now();
  const drawn = minibatch(config, state, samples.length);
  // If episodes failed by faults, the last batch of an epoch can be empty.
  if (drawn.length === 0) return {};

  const batch = drawn.map((i) => samples[i]!);
  const scored = perSample(samples, scores);
  const weights = tokenWeights(
    batch.map(({ texts }) => texts.flatMap(({ weight }) => weight)),
    config.normalization,
    environment.maxTurns * config.maxActionTokens,
  );
  const texts = batch.flatMap(({ texts, advantages: ofTurns }, i) => {
    let end = 0;
    let turn = 0;
    return texts.map(({ prompt, response, turns }, j): SurrogateText => {
      const advantages: number[] = [];
      for (const own of turns) {
        while (advantages.length < own.end) advantages.push(ofTurns[turn]!);
        turn++;
      }
      const weight = weights[i]!.slice(end, end + response.length);
      end += response.length;
      return { prompt, response, weight, advantages, ...scored[drawn[i]!]![j]! };
    });
  });
  const { clipLow, clipHigh, klCoefficient, entropyCoefficient, actionTemperature } = config;
  const results = await inGroups(texts, run.signal, (group) =>
    model.tokenSurrogate(group, {
      clipLow,
      clipHigh,
      klCoefficient,
      entropyCoefficient,
      temperature: actionTemperature,
    }),
  );
  throwIfAborted(run.signal);
  const stepped = await scheduledStep(
    model,
    config,
    stepPlace(state, config, updatesPerRound(config)),
    state,
  );
  for (const { trajectory, texts, advantages } of batch.slice(0, run.samplesPerUpdate)) {
    const facts: Record<string, number | string> =
      config.credit === "episode"
        ? { advantage: advantages[0]! }
        : { advantages: advantages.map((advantage) => advantage.toFixed(3)).join(" ") };
    run.sample(episodeSample(model, state.updates, trajectory, texts, facts));
  }
  return {
    ...surrogateMetrics(texts, results),
    ...stepped,
    "time/update": (performance.now() - started) / 1000,
  };
}
