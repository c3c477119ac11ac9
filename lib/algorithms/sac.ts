/**
 * Soft actor-critic on tokens, the NLAC paper's ablation (section 6.2; Haarnoja et al., "Soft actor-critic algorithms
 * and applications", 2018), readable top to bottom. An action is one token, its state all that stands before it; an
 * action's successor is the state of the next token that the policy wrote, beyond the environment's answer where a turn
 * ends. Episodes of any age are replayed:
 *
 *   y     = r + γ V̄(s'),  V̄(s) = E_{a~π}[ min(Q̄1, Q̄2)(s, a) - α log π(a|s) ];  y = r where an episode terminates
 *   L_Q   = ½ (Q1(s, a) - y)² + ½ (Q2(s, a) - y)²
 *   L_π   = KL( π(· | s) ‖ softmax(min(Q1, Q2)(s, ·) / α) )
 *   θ     ← θ - λ ∇(qCoefficient · L_Q + policyCoefficient · L_π),  then  θ̄ ← τ θ + (1 - τ) θ̄
 *   log α ← log α + λ_α (targetEntropy - H(π)),  where a target is set
 *
 * Q1 and Q2 are heads on the model's last hidden state, Q = V + α log softmax; a bar stands for θ̄, the moving average
 * of model and heads. At first they hold the policy itself: before the first step softmax(min Q / α) is π.
 *
 * Departures from the papers, all of them choices where they are silent or a language model needs one:
 * - Policy and critics share the model below their heads and one optimizer. Haarnoja et al. have separate networks.
 * - L_π is summed over the vocabulary, not sampled, and is the KL itself: Haarnoja et al.'s is α times it.
 * - Losses are averaged over all the tokens that the policy wrote in a batch of whole episodes.
 * - Where the history leaves out the reasoning of earlier turns, an episode is as many texts as
 *   turns; a turn's last token then leads to the state of the next turn, whose V̄ is read in a pass
 *   of its own.
 * - The first updates may leave out L_π, so that the policy is not fitted to values that nothing has taught yet. It moves
 *   all the same, by what it shares with Q.
 * - An episode that a limit cut is bootstrapped from the state at which it was cut: y = r + γ
 *   V̄(s') there too. One that an environment or a service broke has no known outcome and is not
 *   replayed.
 */

import { z } from "zod";
import { throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams, uniform } from "../base/random.ts";
import { checkConfig } from "../base/validation.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { SoftQModel, SoftQResult, SoftQText } from "../model/language-model.ts";
import { sampledConfig } from "../playing/config.ts";
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
import { type EpisodeText, episodeTexts } from "../training/episode-texts.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { requireTasks } from "../training/requirements.ts";
import { collectEpisodes, stepsOf } from "../training/rounds.ts";
import { episodeSample } from "../training/sample-records.ts";
import { scheduledStep, stepPlace } from "../training/step.ts";

const count = z.int().min(1);
const coefficient = z.number().min(0);

/** Every field: meaning, unit, default; the source where there is one. "Paper" is NLAC's. */
export const sacConfig = z.strictObject({
  ...trainingConfig.shape,
  /** Episodes collected a round. Paper: not given. */
  episodesPerIteration: count.default(64),
  /** Steps a round. Paper: 30,720 in all, 1,024 a round. */
  updatesPerIteration: z.int().min(0).default(1024),
  /** Episodes a step. Paper: 1, of a batch of 1,024 a round (docs/decisions/0016). */
  batchSize: count.default(1),
  /** Episodes kept, the newest. Paper: not given. */
  replayCapacity: count.default(10_000),
  /** First updates of the run that leave out L_π. Paper: not given. */
  criticUpdatesFirst: z.int().min(0).default(100),
  /** τ: the share of θ that θ̄ takes over after each update. Paper: 0.005, as Haarnoja et al. */
  targetRate: z.number().min(0).max(1).default(0.005),
  /**
   * α: what a nat of entropy is worth, in units of reward. It is paid for every token: at 0.01, the entropy of an
   * action of a hundred tokens is worth about as much as a success. Paper: not given.
   */
  temperature: z.number().gt(0).default(0.01),
  /** Entropy, nats a token, that α is tuned to, from `temperature` on. Default: α stays. Haarnoja et al. tune it. */
  targetEntropy: z.number().min(0).optional(),
  /** λ_α: learning rate of log α. Haarnoja et al.: 3e-4. */
  temperatureLearningRate: z.number().min(0).default(3e-4),
  /** γ, a token's. Haarnoja et al.: 0.99, a step's; default 1, since an action has many tokens. */
  discount: z.number().min(0).max(1).default(1),
  /** Weight of L_Q. Haarnoja et al.: 1. */
  qCoefficient: coefficient.default(1),
  /** Weight of L_π. Haarnoja et al.: α. */
  policyCoefficient: coefficient.default(1),
  ...optimizerConfig.shape,
  ...sampledConfig.shape,
});

export type SacConfig = z.infer<typeof sacConfig>;
export type SacConfigInput = z.input<typeof sacConfig>;

export interface SacOptions<Task> {
  /** With Q heads: a learner made with `heads: "q"`. */
  model: SoftQModel;
  environment: Environment<Task>;
  config?: SacConfigInput;
  /** Where metrics, texts and checkpoints go. Default: memory. */
  run?: TrainingRun;
}

/** What a checkpoint says beside the weights; the replayed episodes are the run's newest. */
const stateSchema = countersSchema.extend({
  /** α. */
  temperature: z.number(),
});

type State = z.infer<typeof stateSchema>;

/** What the parts of a training work on. */
interface Training<Task> {
  model: SoftQModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  replay: Replay;
  state: State;
  config: SacConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Ends after `iterations`, or when the run's signal fires: then the state at the last
 * boundary is checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for a bad configuration or a learner without Q heads, ERR_NOT_FINITE after
 *   `maxSkippedSteps` skipped steps.
 */
export async function trainSac<Task>(options: SacOptions<Task>): Promise<TrainingResult> {
  const config = checkConfig(sacConfig, options.config);
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  const replay = new Replay(config, model.maxPositions);
  const state = await restore(run, replay, config);
  const training: Training<Task> = { model, environment, tasks, replay, state, config, run };
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () =>
    run.progress.overall(
      shareOver(state, config, state.updatesDone / Math.max(1, config.updatesPerIteration)),
    );

  try {
    showOverall();
    if (state.episodes === 0) {
      // Both begin at θ, which a warm-up may have moved.
      await model.resetQHeads();
      await model.updateTarget(1);
      // What came before training, a warm-up say, is not lost to a stop during the first episodes.
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      if (!state.collected) {
        const started = performance.now();
        const trajectories = await collectEpisodes(training, state.episodes);
        for (const trajectory of trajectories) replay.add(trajectory);
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

async function restore(run: TrainingRun, replay: Replay, config: SacConfig): Promise<State> {
  const saved = await run.restore();
  if (saved === undefined) return { ...newCounters(), temperature: config.temperature };
  for (const trajectory of saved.trajectories) replay.add(trajectory);
  return parseState(stateSchema, saved.state);
}

/** An episode as it is replayed. */
interface Episode {
  id: number;
  reward: number;
  texts: EpisodeText[];
}

/** The newest `replayCapacity` episodes. A draw depends on its seed and on them alone, so none of it is checkpointed. */
class Replay {
  readonly #capacity: number;
  readonly #maxPositions: number;
  readonly #episodes: Episode[] = [];

  constructor({ replayCapacity }: SacConfig, maxPositions: number) {
    this.#capacity = replayCapacity;
    this.#maxPositions = maxPositions;
  }

  /** Episodes held now. */
  get size(): number {
    return this.#episodes.length;
  }

  /** Keeps the episode if its outcome is known and the policy wrote something in it. */
  add(trajectory: Trajectory): void {
    const texts = isFaulty(trajectory) ? [] : episodeTexts(trajectory, this.#maxPositions);
    if (texts.length === 0) return;
    this.#episodes.push({ id: trajectory.id, reward: trajectory.reward, texts });
    if (this.#episodes.length > this.#capacity) this.#episodes.shift();
  }

  /** Draws `size` episodes with replacement, each as likely. */
  draw(size: number, seed: number): Episode[] {
    return Array.from({ length: size }, (_, i) => {
      return this.#episodes[Math.floor(uniform(seed, streams.minibatch, i) * this.#episodes.length)]!;
    });
  }
}

// ------------------------------------------------------------------------------------------ updating

/** A step on both losses. What is random in it depends on (seed, update number) alone. */
async function update<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { model, replay, state, config, run } = training;
  const started = performance.now();
  const drawn = replay.draw(config.batchSize, derivedSeed(config.seed, streams.minibatch, state.updates));
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
    }),
  );
  throwIfAborted(run.signal);
  // θ̄ follows in the same pass, at the configuration's targetRate.
  const stepped = await scheduledStep(
    model,
    config,
    stepPlace(state, config, config.updatesPerIteration),
    state,
    { targetRate: config.targetRate },
  );
  // Results are 0 where no action is.
  const total = (values: Float32Array) => values.reduce((sum, value) => sum + value, 0);
  const average = (name: keyof SoftQResult) =>
    results.reduce((sum, lists) => sum + total(lists[name]), 0) / actions;
  const entropy = average("entropies");
  if (fitsPolicy && config.targetEntropy !== undefined && stepped.skipped === 0)
    state.temperature *= Math.exp(config.temperatureLearningRate * (config.targetEntropy - entropy));

  for (const { texts, ...episode } of drawn.slice(0, run.samplesPerUpdate)) {
    const { q, targets } = results[episodes.indexOf(texts[0]!)]!;
    const facts = { firstQ: q[0]!, firstTarget: targets[0]! }; // an episode's text begins with an action
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
 * γ V̄ of the state after each text's last action; 0 where the episode ended there. The model takes
 * a text's last action for terminal, so what follows it is read in a text of its own: the target of
 * an action that brings nothing and leads to that state. What is written there does not matter to
 * the state's value.
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
 * A text as the model reads it; each of its actions weighs `share`, and the last one leads to a
 * value of `after`.
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
