/**
 * Soft actor-critic on tokens, the NLAC paper's ablation (section 6.2; Haarnoja et al., "Soft
 * actor-critic algorithms and applications", 2018). An action is one token; its state is everything
 * before it. The successor state is that of the next token that the policy generates, which at the
 * end of a turn comes after the observation. Episodes of any age are replayed:
 *
 *   y     = r + γ V̄(s'),  V̄(s) = E_{a~π}[ min(Q̄1, Q̄2)(s, a) - α log π(a|s) ];
 *           y = r if the episode terminates
 *   L_Q   = ½ (Q1(s, a) - y)² + ½ (Q2(s, a) - y)²
 *   L_π   = KL( π(· | s) ‖ softmax(min(Q1, Q2)(s, ·) / α) )
 *   θ     ← θ - λ ∇(qCoefficient · L_Q + policyCoefficient · L_π),  then  θ̄ ← τ θ + (1 - τ) θ̄
 *   log α ← log α + λ_α (targetEntropy - H(π)),  if a target is set
 *
 * Q1 and Q2 are heads on the model's last hidden state, Q = V + α log softmax. A bar marks θ̄, the
 * EMA of model and heads. The heads start as the policy: before the first step softmax(min Q / α)
 * is π.
 *
 * Departures from the papers, on points that they leave open or that a language model requires:
 * - Policy and critics share the model below their heads and one optimizer. Haarnoja et al. have
 *   separate networks.
 * - L_π is summed over the vocabulary, not sampled, and is the KL itself: Haarnoja et al.'s is α
 *   times it.
 * - log α takes plain gradient steps. Haarnoja et al. use Adam, whose steps do not depend on how far
 *   H(π) is from its target.
 * - Losses are averaged over all policy tokens in a batch of whole episodes.
 * - If the chat history drops the reasoning of earlier turns, each turn is a sequence of its own.
 *   The successor of a turn's last token is then the state of the next turn, whose V̄ is computed
 *   in a separate pass.
 * - The first updates may leave out L_π, so that the policy is not fitted to untrained values. The
 *   policy still changes through the layers it shares with Q.
 * - A truncated episode is bootstrapped from its final state: y = r + γ V̄(s') there too. If that
 *   does not fit into the context, the episode ends one turn earlier. An episode that failed by a
 *   fault of the environment or a service has no known outcome and is not replayed.
 */

import { z } from "zod";
import { throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { SoftQModel, SoftQResult, SoftQText } from "../model/language-model.ts";
import { sampledConfig } from "../playing/config.ts";
import { UniformReplay } from "../replay/uniform.ts";
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
import { criticConfig, optimizerConfig, trainingConfig } from "../training/config.ts";
import { type EpisodeText, episodeTexts } from "../training/episode-texts.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { configOf, requireTasks } from "../training/requirements.ts";
import { collectEpisodes, stepsOf } from "../training/rounds.ts";
import { episodeSample } from "../training/sample-records.ts";
import { scheduledStep, stepPlace } from "../training/step.ts";

const count = z.int().min(1);
const coefficient = z.number().min(0);

/** Each field: meaning, unit, default and, if there is one, the source. "Paper" is NLAC's. */
export const sacConfig = z.strictObject({
  ...trainingConfig.shape,
  /** Episodes collected per iteration. Default 64. Paper: not given. */
  episodesPerIteration: count.default(64),
  /** Steps per iteration. Default 1,024. Paper: 30,720 in all, 1,024 per iteration. */
  updatesPerIteration: z.int().min(0).default(1024),
  /**
   * Episodes per step. Default 1. Paper: 1, of a batch of 1,024 per iteration
   * (docs/decisions/0016).
   */
  batchSize: count.default(1),
  /**
   * Capacity of the replay buffer, in episodes; the oldest are dropped. Default 10,000. Paper: not
   * given.
   */
  replayCapacity: count.default(10_000),
  /** Number of first updates of the run that leave out L_π. Default 100. Paper: not given. */
  criticUpdatesFirst: z.int().min(0).default(100),
  /**
   * τ: the step of the EMA θ̄ towards θ after each update. Default and paper: 0.005, as in Haarnoja
   * et al.
   */
  targetRate: z.number().min(0).max(1).default(0.005),
  /**
   * α: value of a nat of entropy, in units of reward. Every token earns it: at 0.01, the entropy of
   * an action of a hundred tokens is worth about as much as a success. Default 0.01. Paper: not
   * given.
   */
  temperature: z.number().gt(0).default(0.01),
  /**
   * Target entropy, in nats per token, to which α is tuned, starting at `temperature`. Default: α
   * is constant. Haarnoja et al. tune it.
   */
  targetEntropy: z.number().min(0).optional(),
  /** λ_α: learning rate of log α. Default 3e-4. Haarnoja et al.: 3e-4, of Adam. */
  temperatureLearningRate: z.number().min(0).default(3e-4),
  /** γ per token. Default 1, since an action has many tokens. Haarnoja et al.: 0.99 per step. */
  discount: z.number().min(0).max(1).default(1),
  /** Weight of L_Q. Default and Haarnoja et al.: 1. */
  qCoefficient: coefficient.default(1),
  ...criticConfig.shape,
  /** Weight of L_π. Default 1. Haarnoja et al.: α. */
  policyCoefficient: coefficient.default(1),
  ...optimizerConfig.shape,
  ...sampledConfig.shape,
});

export type SacConfig = z.infer<typeof sacConfig>;
/** Settings of SAC, as a recipe gives them. */
export type SacConfigInput = z.input<typeof sacConfig>;

/** Options of `trainSac`. */
export interface SacOptions<Task> {
  /** A learner made with `heads: "q"`. */
  model: SoftQModel;
  environment: Environment<Task>;
  config?: SacConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** Checkpoint state besides the weights. The replayed episodes are the newest ones of the run. */
const stateSchema = countersSchema.extend({
  /** α. */
  temperature: z.number(),
});

type State = z.infer<typeof stateSchema>;

/** State shared by the functions below. */
interface Training<Task> {
  model: SoftQModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  replay: UniformReplay<Episode>;
  state: State;
  config: SacConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Returns after `iterations`, or when the run's signal fires: the state
 * after the last complete collection or update is then checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration or a learner without Q heads,
 *   ERR_NOT_FINITE after `maxSkippedSteps` skipped steps.
 */
export async function trainSac<Task>(options: SacOptions<Task>): Promise<TrainingResult> {
  const config = configOf(sacConfig, options);
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  const replay = new UniformReplay<Episode>(config.replayCapacity);
  const { state, restored } = await restore(run, replay, config, model.maxPositions);
  const training: Training<Task> = { model, environment, tasks, replay, state, config, run };
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () =>
    run.progress.overall(
      shareOver(state, config, state.updatesDone / Math.max(1, config.updatesPerIteration)),
    );

  try {
    showOverall();
    if (!restored) {
      // Heads and θ̄ start from θ, which a warm-up may have changed.
      await model.resetQHeads();
      await model.updateTarget(1);
      // Saves what happened before training, such as a warm-up, in case the first rollouts are
      // stopped.
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      if (!state.collected) {
        const started = performance.now();
        const trajectories = await collectEpisodes(training, state.episodes);
        for (const trajectory of trajectories) replay.add(replayed(trajectory, model.maxPositions));
        state.episodes += trajectories.length;
        state.environmentSteps += stepsOf(trajectories);
        state.collected = true;
        run.metrics(state.updates, {
          ...rolloutMetrics(trajectories),
          episodes: state.episodes,
          environment_steps: state.environmentSteps,
          "replay/episodes": replay.size,
          "time/play": (performance.now() - started) / 1000,
        });
        await checkpoint(false);
      }
      run.progress.phase("update", config.updatesPerIteration);
      run.progress.advance(state.updatesDone);
      showOverall();
      while (state.updatesDone < config.updatesPerIteration && replay.size > 0) {
        const metrics = await update(training);
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ Q: metrics["loss/q"]!, KL: metrics["loss/policy"]! });
        run.progress.advance(state.updatesDone, metrics["tokens/actions"]);
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

async function restore(
  run: TrainingRun,
  replay: UniformReplay<Episode>,
  config: SacConfig,
  maxPositions: number,
): Promise<{ state: State; restored: boolean }> {
  const saved = await run.restore();
  if (saved === undefined)
    return { state: { ...newCounters(), temperature: config.temperature }, restored: false };
  for await (const trajectory of saved.trajectories) replay.add(replayed(trajectory, maxPositions));
  return { state: parseState(stateSchema, saved.state), restored: true };
}

/** A replayed episode. */
interface Episode {
  id: number;
  reward: number;
  texts: EpisodeText[];
}

/** The episode, if its outcome is known and it has policy tokens; at most one. */
function replayed(trajectory: Trajectory, maxPositions: number): Episode[] {
  const { id, reward } = trajectory;
  const texts = isFaulty(trajectory) ? [] : episodeTexts(trajectory, maxPositions);
  return texts.length === 0 ? [] : [{ id, reward, texts }];
}

// ---------------------------------------------------------------------------------------- updating

/** One step on both losses. Its random choices depend on (seed, update number) only. */
async function update<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { model, replay, state, config, run } = training;
  const started = performance.now();
  const seed = derivedSeed(config.seed, streams.minibatch, state.updates);
  const drawn = replay.get(replay.draw(config.batchSize, seed));
  const episodes = drawn.flatMap(({ texts }) => texts);
  const actions = episodes.reduce((sum, { weight }) => sum + weight.filter((w) => w !== 0).length, 0);
  const after = await valuesAfter(model, episodes, { ...config, temperature: state.temperature }, run.signal);
  const texts = episodes.map((text, i) => softQText(text, 1 / actions, after[i]!));
  const fitsPolicy = state.updates >= config.criticUpdatesFirst;
  const { temperature } = state;
  const results = await inGroups(texts, run.signal, (group) =>
    model.softQ(group, {
      temperature,
      discount: config.discount,
      qCoefficient: config.qCoefficient,
      policyCoefficient: fitsPolicy ? config.policyCoefficient : 0,
      detached: !config.sharedCritic,
    }),
  );
  throwIfAborted(run.signal);
  // Moves θ̄ in the same pass, at the configuration's targetRate.
  const stepped = await scheduledStep(
    model,
    config,
    stepPlace(state, config, config.updatesPerIteration),
    state,
    { targetRate: config.targetRate },
  );
  // Results are 0 at positions without an action.
  const total = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0);
  const average = (name: keyof SoftQResult) =>
    results.reduce((sum, lists) => sum + total(lists[name]), 0) / actions;
  const entropy = average("entropies");
  if (fitsPolicy && config.targetEntropy !== undefined && stepped.skipped === 0)
    state.temperature *= Math.exp(config.temperatureLearningRate * (config.targetEntropy - entropy));

  for (const { texts, ...episode } of drawn.slice(0, run.samplesPerUpdate)) {
    const { q, targets } = results[episodes.indexOf(texts[0]!)]!;
    const facts = { firstQ: q[0]!, firstTarget: targets[0]! }; // a sequence begins with an action
    run.sample(episodeSample(model, state.updates, episode, texts, facts));
  }
  return {
    "loss/q": average("qLosses"),
    "loss/policy": average("policyLosses"),
    "q/mean": average("q"),
    "target/mean": average("targets"),
    entropy,
    temperature,
    ...stepped,
    "target/distance": await model.targetDistance(),
    "tokens/actions": actions,
    "tokens/gradient": actions,
    "time/update": (performance.now() - started) / 1000,
  };
}

/**
 * γ V̄ of the state after the last action of each sequence; 0 if the episode ended there. The model
 * treats the last action of a sequence as terminal. So the value is read from an extra sequence, as
 * the target of a zero-reward action that leads to that state; any token will do as that action.
 */
export async function valuesAfter(
  model: SoftQModel,
  texts: readonly EpisodeText[],
  { temperature, discount, qCoefficient }: Pick<SacConfig, "temperature" | "discount" | "qCoefficient">,
  signal: AbortSignal,
): Promise<number[]> {
  const going = texts.flatMap(({ next }, i) => (next === undefined ? [] : [{ next, i }]));
  const results = await inGroups(
    going.map(
      ({ next }): SoftQText => ({
        prompt: next.slice(0, -1),
        response: [next.at(-1)!, model.endOfTurn],
        weight: [1, 1],
        rewards: [0, 0],
      }),
    ),
    signal,
    (group) =>
      model.softQ(group, {
        temperature,
        discount,
        qCoefficient,
        policyCoefficient: 0,
        withGradient: false,
      }),
  );
  const values = new Array<number>(texts.length).fill(0);
  for (const [j, { i }] of going.entries()) values[i] = results[j]!.targets[0]!;
  return values;
}

/**
 * A sequence in the model's form: each action has the weight `share`, and the last one leads to a
 * state of the value `after`.
 */
function softQText(
  { prompt, response, weight, turns }: EpisodeText,
  share: number,
  after: number,
): SoftQText {
  const rewards = new Array<number>(response.length).fill(0);
  for (const { end, reward } of turns) rewards[end - 1] = reward;
  rewards[turns.at(-1)!.end - 1]! += after;
  return { prompt, response, weight: weight.map((w) => w * share), rewards };
}
