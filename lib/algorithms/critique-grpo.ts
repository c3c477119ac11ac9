/**
 * Critique-GRPO (Zhang et al., "Critique-GRPO: Advancing LLM Reasoning with Natural Language and
 * Numerical Feedback", 2025). Each iteration plays groups of G episodes per task under θ_old. A
 * critic that knows how the episode continued then criticizes one action of each; the action is
 * refined, and the refined action is played to the end of a separate episode. k of these
 * refinements join the group:
 *
 *   A_i = R_i - mean of R over the G episodes and the k refinements        "mean-only"
 *
 *   L = - Σ_i Σ_t w_it min(ρ_it A_i, clip(ρ_it, 1 - clipLow, 1 + clipHigh) A_i)     episodes
 *       - Σ_j Σ_t w_jt f(π_θ(y_jt | s_j, y_j<t)) A_j                             refinements
 *
 *   ρ_it = π_θ(y_it | y_i<t) / π_old(y_it | y_i<t),   f(p) = p / (p + shaping)
 *
 * y_j is generated after the critique and trained after s_j, the state before the action that it
 * replaces, without the critique. So its old policy is not π_old(· | s_j), and it has no ratio. The
 * slope of f,
 *
 *   d f(π) / d log π = shaping · π / (π + shaping)²,
 *
 * is largest at π = shaping: unlikely tokens of a good refinement gain the most, and a bad
 * refinement loses by its negative advantage.
 *
 * Departures from the paper, which has tasks of one turn:
 * - One action per episode is refined, at a turn drawn uniformly, and only its tokens are trained.
 *   The turns before it are the episode's own; the policy continues after it.
 * - The critic is the policy. It reads the rest of the episode and the score, as Monte-Carlo
 *   targets of NLAC do; in single-step tasks the score only. The paper compares several kinds of
 *   critiques.
 * - A refinement that does not fit, cannot be parsed or cannot be played is left out and counted, and
 *   so is one whose episode a limit truncated.
 */

import { z } from "zod";
import { throwIfAborted } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { PolicyGradientModel, SurrogateResult, SurrogateText } from "../model/language-model.ts";
import { sampledConfig } from "../playing/config.ts";
import { rolesConfig } from "../roles/role-writer.ts";
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
} from "../training/group-advantages.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { type Refined, refineGroups, savedRefinement } from "../training/refine-groups.ts";
import { configOf, requireTasks } from "../training/requirements.ts";
import {
  collectEpisodes,
  completionMetrics,
  type EpochConfig,
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
} from "../training/surrogate.ts";

const count = z.int().min(1);
const ofRoles = rolesConfig.pick({
  reasoning: true,
  criticTemperature: true,
  refinerTemperature: true,
  maxCriticTokens: true,
  maxRestTokens: true,
});

/**
 * Each field: meaning, unit, default and, if there is one, the source. "Authors" is the published
 * code of Zhang et al.
 */
export const critiqueGrpoConfig = z
  .strictObject({
    ...trainingConfig.shape,
    /** Episodes collected per iteration, a multiple of `groupSize`. Default 64. */
    episodesPerIteration: count.default(64),
    /** G: episodes per task. Default 4; authors: 8 with the refinement. */
    groupSize: z.int().min(2).default(4),
    /** Episodes per group whose action is refined, drawn at random. Default 4; authors: all. */
    refinedPerGroup: count.default(4),
    /**
     * k: refinements per group that are trained on, at most `refinedPerGroup`: those of the highest
     * reward, ties at random. Default and authors: 1.
     */
    refinementsPerGroup: count.default(1),
    /**
     * The shaping constant of f: small values weigh unlikely tokens more. Default and authors: 0.1.
     */
    shaping: z.number().gt(0).default(0.1),
    /** Passes over an iteration's episodes and refinements. Default 1. */
    epochs: count.default(1),
    /** Episodes and refinements per step. Default 80: one step per iteration. */
    batchSize: count.default(80),
    /**
     * How advantages are computed from a group's rewards (docs/algorithms/grpo.md). Default and
     * authors: "mean-only".
     */
    advantage: z.enum(advantageKinds).default("mean-only"),
    /** How token losses are averaged (docs/algorithms/grpo.md). Default and authors: "constant". */
    normalization: z.enum(normalizations).default("constant"),
    /** The episodes' ratio is clipped below at 1 - clipLow. Default 0.2; authors: not clipped. */
    clipLow: z.number().min(0).max(1).default(0.2),
    /** The episodes' ratio is clipped above at 1 + clipHigh. Default 0.2; authors: not clipped. */
    clipHigh: z.number().min(0).default(0.2),
    /** Weight of GRPO's KL to θ at the start of training. Default and authors: 0. */
    klCoefficient: z.number().min(0).default(0),
    /** Weight of the entropy bonus in the objective. Default 0; authors: 0.001. */
    entropyCoefficient: z.number().min(0).default(0),
    ...optimizerConfig.shape,
    /** Peak learning rate. Default 5e-6, as for the other methods; authors: 1e-6. */
    learningRate: optimizerConfig.shape.learningRate,
    ...sampledConfig.shape,
    /** Softmax temperature at which actions are sampled and scored. Default 1. */
    actionTemperature: z.number().gt(0).default(1),
    ...ofRoles.shape,
  })
  .refine(({ episodesPerIteration, groupSize }) => episodesPerIteration % groupSize === 0, {
    path: ["episodesPerIteration"],
    message: "must be a multiple of groupSize",
  })
  .refine(({ refinedPerGroup, groupSize }) => refinedPerGroup <= groupSize, {
    path: ["refinedPerGroup"],
    message: "must not exceed groupSize",
  })
  .refine(({ refinementsPerGroup, refinedPerGroup }) => refinementsPerGroup <= refinedPerGroup, {
    path: ["refinementsPerGroup"],
    message: "must not exceed refinedPerGroup",
  });

export type CritiqueGrpoConfig = z.infer<typeof critiqueGrpoConfig>;
/** Settings of Critique-GRPO, as a recipe gives them. */
export type CritiqueGrpoConfigInput = z.input<typeof critiqueGrpoConfig>;

/** Options of `trainCritiqueGrpo`. */
export interface CritiqueGrpoOptions<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  config?: CritiqueGrpoConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** Checkpoint state besides the weights. The iteration's episodes are the last ones of the run. */
const stateSchema = countersSchema.extend({
  /** Refinements of the iteration that are trained on. */
  refined: z.array(savedRefinement).optional(),
  /** Scores of the iteration's episodes and refinements, under θ before its first step. */
  scores: z.array(savedScores).optional(),
});

type State = z.infer<typeof stateSchema>;

/** An episode, or a refined action of one. */
interface Sample {
  trajectory: Trajectory;
  /** Of the episode; of a refined action, that of the episode in which it was taken. */
  reward: number;
  texts: EpisodeText[];
  advantage: number;
  isRefinement: boolean;
  /** Of a refined action. */
  turn?: number;
}

/** State shared by the functions below. */
interface Training<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  state: State;
  config: CritiqueGrpoConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Returns after `iterations`, or when the run's signal fires: the state
 * after the last complete collection, round of refinements or update is then checkpointed and
 * `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, ERR_NOT_FINITE after `maxSkippedSteps`
 *   skipped steps.
 */
export async function trainCritiqueGrpo<Task>(options: CritiqueGrpoOptions<Task>): Promise<TrainingResult> {
  const config = configOf(critiqueGrpoConfig, options);
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  let { state, trajectories, isNew } = await restoreRound(run, stateSchema, config);
  const training: Training<Task> = { model, environment, tasks, state, config, run };
  const updatesPerIteration = updatesPerRound(batching(config));
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
          // Environment steps are counted after the refinements were played.
          episodes: state.episodes,
          "time/play": (performance.now() - started) / 1000,
        });
        await checkpoint(false);
      }
      if (state.refined === undefined) {
        const { refined, steps, metrics } = await refineGroups({
          ...{ model, environment, tasks, config, run, iteration: state.iteration },
          groups: groupsOf(trajectories, config.groupSize),
        });
        state.refined = refined;
        state.environmentSteps += steps;
        run.metrics(state.updates, { ...metrics, environment_steps: state.environmentSteps });
        await checkpoint(false);
      }
      const samples = samplesOf(trajectories, state.refined, config);
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
      delete state.refined;
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

/** Episodes and refinements of an iteration are batched together. */
export function batching(config: CritiqueGrpoConfig): EpochConfig {
  const { episodesPerIteration, groupSize, refinementsPerGroup } = config;
  const refinements = (episodesPerIteration / groupSize) * refinementsPerGroup;
  return { ...config, episodesPerIteration: episodesPerIteration + refinements };
}

// -------------------------------------------------------------------------------------- advantages

/** The usable episodes and the refinements, each with its advantage in its group. */
function samplesOf(
  trajectories: readonly Trajectory[],
  refined: readonly Refined[],
  config: CritiqueGrpoConfig,
): Sample[] {
  return groupsOf(trajectories, config.groupSize).flatMap((group, g) => {
    const joined = refined.filter((one) => one.group === g);
    const advantages = groupAdvantages(
      [...group, ...joined].map(({ reward }) => reward),
      config.advantage,
    );
    const episodes = group.map((trajectory, i) => ({
      trajectory,
      reward: trajectory.reward,
      texts: episodeTexts(trajectory),
      advantage: advantages[i]!,
      isRefinement: false,
    }));
    const refinements = joined.map(({ trajectory: id, turn, response, reward }, j) => {
      const trajectory = group.find((one) => one.id === id)!;
      const end = response.length;
      // Trained after the plain state, as the policy must generate it.
      const prompt = trajectory.turns[turn]!.state.prompt();
      const weight = response.map(() => 1);
      const texts = [{ prompt, response, weight, turns: [{ start: 0, end, reward }] }];
      return {
        trajectory,
        turn,
        reward,
        texts,
        advantage: advantages[group.length + j]!,
        isRefinement: true,
      };
    });
    return [...episodes, ...refinements];
  });
}

// ---------------------------------------------------------------------------------------- updating

/** Scores the sequences of all samples, in the order of the samples. */
function score<Task>({ model, config, run }: Training<Task>, samples: readonly Sample[]): Promise<Scores[]> {
  return scoreEpisodes(
    model,
    samples.flatMap(({ texts }) => texts),
    {
      temperature: config.actionTemperature,
      reference: config.klCoefficient > 0,
      values: false,
      signal: run.signal,
    },
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
  const drawn = minibatch(batching(config), state, samples.length);
  // If refinements or episodes were left out, the last batch of an epoch can be empty.
  if (drawn.length === 0) return {};

  const batch = drawn.map((i) => samples[i]!);
  const scored = perSample(samples, scores);
  const weights = tokenWeights(
    batch.map(({ texts }) => texts.flatMap(({ weight }) => weight)),
    config.normalization,
    environment.maxTurns * config.maxActionTokens,
  );
  const texts = batch.flatMap(({ texts, advantage, isRefinement }, i) => {
    let end = 0;
    return texts.map(({ prompt, response }, j) => {
      const advantages = new Array<number>(response.length).fill(advantage);
      const weight = weights[i]!.slice(end, end + response.length);
      end += response.length;
      return { isRefinement, text: { prompt, response, weight, advantages, ...scored[drawn[i]!]![j]! } };
    });
  });
  const textsOf = (refinements: boolean) =>
    texts.filter(({ isRefinement }) => isRefinement === refinements).map(({ text }) => text);
  const played = textsOf(false);
  const { clipLow, clipHigh } = config;
  const results = await surrogate(training, played, { clipLow, clipHigh });
  const shaped = await shape(training, textsOf(true));
  throwIfAborted(run.signal);
  const stepped = await scheduledStep(
    model,
    config,
    stepPlace(state, config, updatesPerRound(batching(config))),
    state,
  );
  for (const { trajectory, turn, reward, texts, advantage, isRefinement } of batch.slice(
    0,
    run.samplesPerUpdate,
  )) {
    const facts = { advantage, refinement: isRefinement };
    const place = turn === undefined ? {} : { turn };
    run.sample({
      ...episodeSample(model, state.updates, { id: trajectory.id, reward }, texts, facts),
      ...place,
    });
  }
  return {
    ...surrogateMetrics([...played, ...shaped.texts], [...results, ...shaped.results]),
    "refinements/probability": shaped.probability,
    ...stepped,
    "time/update": (performance.now() - started) / 1000,
  };
}

function surrogate<Task>(
  { model, config, run }: Training<Task>,
  texts: SurrogateText[],
  clip: { clipLow: number; clipHigh: number },
): Promise<SurrogateResult[]> {
  const { klCoefficient, entropyCoefficient, actionTemperature: temperature } = config;
  return inGroups(texts, run.signal, (group) =>
    model.tokenSurrogate(group, { ...clip, klCoefficient, entropyCoefficient, temperature }),
  );
}

/**
 * The part of the loss for refinements. With θ itself as the old policy the ratio is 1, and the
 * surrogate's gradient is that of -A log π. With A times the slope of f it is that of -f(π) A.
 *
 * @returns the texts and results as `surrogateMetrics` reads them, and the mean π of their tokens
 */
async function shape<Task>(
  training: Training<Task>,
  texts: readonly SurrogateText[],
): Promise<{ texts: SurrogateText[]; results: SurrogateResult[]; probability: number }> {
  const { model, config, run } = training;
  const options = { temperature: config.actionTemperature };
  const current = await inGroups([...texts], run.signal, (group) => model.logProbs(group, options));
  const shaped = texts.map((text, i) => ({
    ...text,
    oldLogProbs: current[i]!,
    advantages: Array.from(text.advantages, (a, t) => a * shapingSlope(current[i]![t]!, config.shaping)),
  }));
  const results = await surrogate(training, shaped, { clipLow: 1, clipHigh: 1 });
  const reported = results.map((result, i) => {
    const losses = result.losses.map((loss, t) => {
      const p = Math.exp(current[i]![t]!);
      // The surrogate has the right gradient but not the value of f: report the loss with f.
      const own = -result.ratios[t]! * shaped[i]!.advantages[t]!;
      return loss - own - texts[i]!.advantages[t]! * (p / (p + config.shaping));
    });
    return { ...result, losses };
  });
  return {
    texts: shaped,
    results: reported,
    probability: mean(current.flatMap((own) => [...own].map(Math.exp))),
  };
}

/** d f(π) / d log π of f(π) = π / (π + shaping). */
export function shapingSlope(logProb: number, shaping: number): number {
  const p = Math.exp(logProb);
  return (shaping * p) / (p + shaping) ** 2;
}
