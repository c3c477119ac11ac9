/**
 * Proximal Policy Optimization (Schulman et al., 2017) on whole episodes with a value for every
 * token. Each iteration plays episodes under θ_old and trains on them for a few epochs:
 *
 *   r_t = [t ends its turn] R_turn - β (log π_old(y_t | y_<t) - log π_ref(y_t | y_<t))
 *   δ_t = r_t + γ V_old(y_<t') - V_old(y_<t),   A_t = Σ_l (γλ)^l δ_{t+l},   R_t = A_t + V_old(y_<t)
 *   ρ_t = π_θ(y_t | y_<t) / π_old(y_t | y_<t)
 *   L = mean_t ( -min(ρ_t A_t, clip(ρ_t, 1 - clip, 1 + clip) A_t)
 *                + c_V ½ max((V - R_t)², (V' - R_t)²) - c_H H_t )
 *
 * t runs over the tokens that the policy generated and t' is the next of them; observation tokens
 * in between are skipped. After the last token the value is 0 if the episode terminated, and that
 * of the final state if a limit truncated it. V' is V clipped to within valueClip of V_old. The
 * penalty in the first line is that of Ziegler et al. (2019), A_t that of Schulman et al. (2016).
 * With γ = λ = 1 and β = 0, R_t is the sum of the rewards still to come: the values are learned
 * from Monte-Carlo rollouts, as for the baseline in the NLAC paper.
 *
 * Departures from the papers, all on points that the papers leave open:
 * - If the chat history drops the reasoning of earlier turns, each turn is a sequence of its own,
 *   after the state in which it was generated. The sum over t continues across them.
 * - The value is a head on the policy's own network, so c_V sets how much it shapes the shared
 *   layers.
 * - An episode that failed by a fault of the environment or a service has no known reward and is
 *   left out.
 */

import { z } from "zod";
import { throwIfAborted } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { PolicyGradientModel, SurrogateResult, SurrogateText } from "../model/language-model.ts";
import { sampledConfig } from "../playing/config.ts";
import {
  countersSchema,
  endIteration,
  isOver,
  memoryRun,
  rollBack,
  savedNumber,
  shareOver,
  type TrainingResult,
  type TrainingRun,
  trainingResult,
} from "../run/training-run.ts";
import { deviation, mean } from "../statistics/mean.ts";
import { criticConfig, optimizerConfig, trainingConfig } from "../training/config.ts";
import { type EpisodeText, episodeTexts } from "../training/episode-texts.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { configOf, requireTasks } from "../training/requirements.ts";
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
} from "../training/surrogate.ts";

const count = z.int().min(1);
const share = z.number().min(0).max(1);

/**
 * Each field: meaning, unit, default and, if there is one, the source. "Paper" is NLAC's, where PPO
 * is a baseline.
 */
export const ppoConfig = z.strictObject({
  ...trainingConfig.shape,
  /** Episodes collected per iteration. Default 64. Paper: not given. */
  episodesPerIteration: count.default(64),
  /** Passes over an iteration's episodes. Default 4. Schulman et al.: 3 to 15; TRL: 4. */
  epochs: count.default(4),
  /**
   * Episodes per step. Default 16 of 64: four steps per epoch, as in verl with 256 of 1,024
   * (docs/decisions/0016).
   */
  batchSize: count.default(16),
  /**
   * γ per token. Default 1: a turn's reward counts the same however many tokens the turn has.
   * Paper: not given.
   */
  discount: share.default(1),
  /** λ: 1 is Monte-Carlo returns, 0 is one-step TD. Default 1. Paper: Monte-Carlo. */
  lambda: share.default(1),
  /** Normalizes an iteration's advantages to mean 0 and deviation 1. Default true, as in TRL. */
  whiten: z.boolean().default(true),
  /** The ratio is clipped to [1 - clip, 1 + clip]. Default and Schulman et al.: 0.2. */
  clip: share.default(0.2),
  /**
   * Values are clipped to this distance from their old predictions; 0 is no clipping. Default and
   * TRL: 0.2.
   */
  valueClip: z.number().min(0).default(0.2),
  /** c_V: weight of the value head's loss. Default and TRL: 0.1. */
  valueCoefficient: z.number().min(0).default(0.1),
  ...criticConfig.shape,
  /** c_H: weight of the entropy bonus in the objective. Default 0. Schulman et al.: 0.01. */
  entropyCoefficient: z.number().min(0).default(0),
  /**
   * β: penalty per nat of log π_old - log π_ref. It adds up over an episode's tokens, so that a
   * value that suits 50 tokens outweighs the reward of 1,000. The reference is θ at the start of
   * training; 0 needs none. Default and TRL: 0.05. verl: none.
   */
  klCoefficient: z.number().min(0).default(0.05),
  ...optimizerConfig.shape,
  ...sampledConfig.shape,
  /** Softmax temperature at which actions are sampled and scored. Default 1. Paper: not given. */
  actionTemperature: z.number().gt(0).default(1),
});

export type PpoConfig = z.infer<typeof ppoConfig>;
/** Settings of PPO, as a recipe gives them. */
export type PpoConfigInput = z.input<typeof ppoConfig>;

/** Options of `trainPpo`. */
export interface PpoOptions<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  config?: PpoConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** Checkpoint state besides the weights. The iteration's episodes are the last ones of the run. */
const stateSchema = countersSchema.extend({
  /**
   * Scores of the sequences of the iteration's usable episodes, under θ before the iteration's
   * first step.
   */
  scores: z.array(savedScores).optional(),
  /** Per episode, V_old of the state at which a limit truncated it; 0 if it terminated. */
  bootstraps: z.array(savedNumber).optional(),
});

type State = z.infer<typeof stateSchema>;

/** One training episode. */
interface Sample {
  trajectory: Trajectory;
  texts: EpisodeText[];
}

/** State shared by the functions below. */
interface Training<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  state: State;
  config: PpoConfig;
  run: TrainingRun;
}

/**
 * Trains `model`, which has a value head, in place. Returns after `iterations`, or when the run's
 * signal fires: the state after the last complete collection or update is then checkpointed and
 * `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, ERR_NOT_FINITE after `maxSkippedSteps`
 *   skipped steps.
 */
export async function trainPpo<Task>(options: PpoOptions<Task>): Promise<TrainingResult> {
  const config = configOf(ppoConfig, options);
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
        trajectories = await collectEpisodes(training, state.episodes);
        state.episodes += trajectories.length;
        state.environmentSteps += stepsOf(trajectories);
        state.collected = true;
        run.metrics(state.updates, {
          ...rolloutMetrics(trajectories),
          ...completionMetrics(trajectories, model),
          episodes: state.episodes,
          environment_steps: state.environmentSteps,
          "time/play": (performance.now() - started) / 1000,
        });
        await checkpoint(false);
      }
      const samples = samplesOf(trajectories, model);
      state.scores ??= (await score(training, samples)).map(saveScores);
      state.bootstraps ??= await bootstrap(training, samples);
      const scores = state.scores.map(restoreScores);
      const estimates = estimate(samples, scores, state.bootstraps, config);
      run.progress.phase("update", updatesPerIteration);
      run.progress.advance(state.updatesDone);
      showOverall();
      while (state.updatesDone < updatesPerIteration) {
        const metrics = await update(training, samples, scores, estimates);
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
      delete state.bootstraps;
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

/** The usable episodes. */
function samplesOf(
  trajectories: readonly Trajectory[],
  { maxPositions }: Pick<PolicyGradientModel, "maxPositions">,
): Sample[] {
  return trajectories.flatMap((trajectory) => {
    const texts = isFaulty(trajectory) ? [] : episodeTexts(trajectory, maxPositions);
    return texts.length === 0 ? [] : [{ trajectory, texts }];
  });
}

/** Scores the sequences of all samples, in the order of the samples. */
function score<Task>({ model, config, run }: Training<Task>, samples: readonly Sample[]): Promise<Scores[]> {
  return scoreEpisodes(
    model,
    samples.flatMap(({ texts }) => texts),
    {
      temperature: config.actionTemperature,
      reference: config.klCoefficient > 0,
      values: true,
      signal: run.signal,
    },
  );
}

/**
 * Per sample, V_old of the state after the last action, from which a truncated episode is
 * bootstrapped.
 */
async function bootstrap<Task>(
  { model, run }: Training<Task>,
  samples: readonly Sample[],
): Promise<number[]> {
  const cut = samples.flatMap(({ texts }, i) => {
    const next = texts.at(-1)!.next;
    return next === undefined ? [] : [{ next, i }];
  });
  // The value belongs to the state before the token, so the token does not matter.
  const texts = cut.map(({ next }) => ({ prompt: next, response: [model.endOfTurn] }));
  const read = await inGroups(texts, run.signal, (group) => model.values(group));
  const values = new Array<number>(samples.length).fill(0);
  for (const [j, { i }] of cut.entries()) values[i] = read[j]![0]!;
  return values;
}

/** Of one sequence, [response tokens]; 0 where the token is not the policy's. */
interface Estimates {
  advantages: number[];
  returns: number[];
}

/** Advantages and returns of the sequences of an iteration's episodes. */
function estimate(
  samples: readonly Sample[],
  scores: readonly Scores[],
  bootstraps: readonly number[],
  { discount, lambda, klCoefficient, whiten }: PpoConfig,
): Estimates[][] {
  const scored = perSample(samples, scores);
  const all = samples.map(({ texts }, i) => {
    // The chain of the policy's tokens, across all sequences of the episode.
    const [rewards, values]: [number[], number[]] = [[], []];
    for (const [j, { weight, turns }] of texts.entries()) {
      const { oldLogProbs, referenceLogProbs, oldValues } = scored[i]![j]!;
      const received = new Map(turns.map(({ end, reward }) => [end - 1, reward]));
      for (const [t, one] of weight.entries()) {
        if (one !== 1) continue;
        const penalty =
          referenceLogProbs === undefined ? 0 : klCoefficient * (oldLogProbs[t]! - referenceLogProbs[t]!);
        rewards.push((received.get(t) ?? 0) - penalty);
        values.push(oldValues![t]!);
      }
    }
    return { texts, chain: generalizedAdvantages(rewards, values, discount, lambda, bootstraps[i]!) };
  });
  const advantages = all.flatMap(({ chain }) => chain.advantages);
  // A single advantage has no deviation.
  const [centre, scale] =
    whiten && advantages.length > 1
      ? [mean(advantages), 1 / Math.sqrt(deviation(advantages) ** 2 + minVariance)]
      : [0, 1];
  return all.map(({ texts, chain }) => {
    const whitened = chain.advantages.map((advantage) => (advantage - centre) * scale);
    let t = 0;
    return texts.map(({ weight }) => {
      const first = t;
      const place = (values: readonly number[]) => {
        t = first;
        return weight.map((one) => (one === 1 ? values[t++]! : 0));
      };
      return { advantages: place(whitened), returns: place(chain.returns) };
    });
  });
}

/**
 * Added to the variance, as in TRL and verl. If all returns are equal, advantages are only the
 * values' errors; those below 1e-4 are not scaled up to 1.
 */
const minVariance = 1e-8;

/**
 * Returns A_t = Σ_l (γλ)^l (r_{t+l} + γ V_{t+l+1} - V_{t+l}) and A_t + V_t of one chain of actions
 * (Schulman et al., "High-dimensional continuous control using generalized advantage estimation",
 * 2016, eq. 16).
 *
 * @param rewards received after each action
 * @param values of the state before each action
 * @param after value of the state after the last action; 0, the default, if it is terminal
 */
export function generalizedAdvantages(
  rewards: readonly number[],
  values: readonly number[],
  discount: number,
  lambda: number,
  after = 0,
): Estimates {
  const advantages = new Array<number>(rewards.length).fill(0);
  let later = 0;
  for (let t = rewards.length - 1; t >= 0; t--) {
    const surprise = rewards[t]! + discount * (values[t + 1] ?? after) - values[t]!;
    later = surprise + discount * lambda * later;
    advantages[t] = later;
  }
  return { advantages, returns: advantages.map((advantage, t) => advantage + values[t]!) };
}

// ---------------------------------------------------------------------------------------- updating

/** One step on a batch. Its random choices depend on (seed, update number) only. */
async function update<Task>(
  training: Training<Task>,
  samples: readonly Sample[],
  scores: readonly Scores[],
  estimates: readonly (readonly Estimates[])[],
): Promise<Record<string, number>> {
  const { model, state, config, run } = training;
  const started = performance.now();
  const drawn = minibatch(config, state, samples.length);
  // If episodes failed by faults, the last batch of an epoch can be empty.
  if (drawn.length === 0) return {};

  const batch = drawn.map((i) => samples[i]!);
  const scored = perSample(samples, scores);
  const tokens = batch
    .flatMap(({ texts }) => texts.flatMap(({ weight }) => weight))
    .reduce((a, b) => a + b, 0);
  const texts = batch.flatMap(({ texts }, i) =>
    texts.map(
      ({ prompt, response, weight }, j): SurrogateText => ({
        prompt,
        response,
        weight: weight.map((one) => one / tokens),
        ...scored[drawn[i]!]![j]!,
        ...estimates[drawn[i]!]![j]!,
      }),
    ),
  );
  const { clip, valueClip, valueCoefficient, sharedCritic, entropyCoefficient, actionTemperature } = config;
  const results = await inGroups(texts, run.signal, (group) =>
    model.tokenSurrogate(group, {
      clipLow: clip,
      clipHigh: clip,
      entropyCoefficient,
      temperature: actionTemperature,
      value: { coefficient: valueCoefficient, clip: valueClip, detached: !sharedCritic },
    }),
  );
  throwIfAborted(run.signal);
  const stepped = await scheduledStep(
    model,
    config,
    stepPlace(state, config, updatesPerRound(config)),
    state,
  );
  for (const [i, { trajectory, texts }] of batch.slice(0, run.samplesPerUpdate).entries()) {
    const value = scored[drawn[i]!]![0]!.oldValues![texts[0]!.turns[0]!.start]!;
    run.sample(episodeSample(model, state.updates, trajectory, texts, { value }));
  }
  return {
    ...surrogateMetrics(texts, results),
    ...valueMetrics(texts, results),
    ...stepped,
    "time/update": (performance.now() - started) / 1000,
  };
}

/**
 * The value head's loss, its mean prediction, and the share of the returns' variance that it
 * explains.
 */
function valueMetrics(
  texts: readonly SurrogateText[],
  results: readonly SurrogateResult[],
): Record<string, number> {
  const own = texts.flatMap(({ weight, returns }, i) => {
    const { values, valueLosses } = results[i]!;
    return Array.from(weight as number[], (share, t) =>
      share === 0 ? [] : [{ value: values![t]!, loss: valueLosses![t]!, target: returns![t]! }],
    ).flat();
  });
  const targets = deviation(own.map(({ target }) => target)) ** 2;
  const errors = deviation(own.map(({ target, value }) => target - value)) ** 2;
  return {
    "loss/value": mean(own.map(({ loss }) => loss)),
    "value/mean": mean(own.map(({ value }) => value)),
    "value/return": mean(own.map(({ target }) => target)),
    "value/explained_variance": targets === 0 ? Number.NaN : 1 - errors / targets,
  };
}
