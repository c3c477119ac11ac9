/**
 * ArCHer (Zhou et al., "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
 * 2024): an off-policy critic of utterances, and a policy gradient of tokens. Each iteration plays
 * episodes, stores their transitions (s, a, r, s'), where a is the whole action of a turn, and
 * takes two kinds of steps on transitions drawn uniformly:
 *
 *   J_Q = ½ (Q(s, a) - r - γ V̄(s'))²,   V̄ = 0 after a terminal action
 *   J_V = ½ (V(s) - Q̄(s, ã))²,          ã ~ π̄(· | s)
 *   J_π = -Σ_t A(s, ã) log π_θ(ã_t | s, ã_<t),   A(s, ã) = Q(s, ã) - V(s),   ã ~ π_θ(· | s)
 *
 * Both critics are one value head on the policy's network, read at two places: V(s) where the
 * action begins, Q(s, a) after its last token. A bar marks the target network.
 *
 * Departures from the paper:
 * - There the critic is a separate network with two heads each for Q and V, of which the smaller is
 *   used. Here it is one head on the policy's network (see `sharedCritic`). The two losses have
 *   separate steps, moments and learning rates.
 * - The target network is a copy of θ, renewed every `criticUpdatesPerTarget` critic steps; the paper
 *   moves an average.
 * - The optional baseline of each token is the same value head, read before the token; the paper
 *   has a network of its own for it.
 * - A truncated episode is bootstrapped at its end. An episode that failed by a fault is stored
 *   without its last turn.
 */

import { z } from "zod";
import { throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import { type Trajectory, type Transition, transitionsOf } from "../episodes/trajectory.ts";
import type { PolicyGradientModel, ScoredText, SurrogateText } from "../model/language-model.ts";
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
  savedNumber,
  shareOver,
  type TrainingResult,
  type TrainingRun,
  trainingResult,
} from "../run/training-run.ts";
import { deviation, mean } from "../statistics/mean.ts";
import { adamWConfig, criticConfig, trainingConfig } from "../training/config.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { configOf, requireTasks } from "../training/requirements.ts";
import { collectEpisodes, completionMetrics, stepsOf } from "../training/rounds.ts";
import { actionSample } from "../training/sample-records.ts";
import { scheduledStep, stepPlace } from "../training/step.ts";
import { surrogateMetrics } from "../training/surrogate.ts";

const count = z.int().min(1);

/**
 * Each field: meaning, unit, default and, if there is one, the source. "Authors" is the default of
 * the paper's published code.
 */
export const archerConfig = z.strictObject({
  ...trainingConfig.shape,
  /** Episodes collected per iteration. Default 64. Authors: 128. */
  episodesPerIteration: count.default(64),
  /** Critic steps per iteration. Default and authors: 50. */
  criticUpdatesPerIteration: count.default(50),
  /**
   * Critic steps between two copies of θ as the target network. Each copy carries rewards back by
   * one turn. Default 10, about as slow as the authors' average, which moves by 0.1 per step.
   */
  criticUpdatesPerTarget: count.default(10),
  /** Policy steps per iteration, after the critic's. Default and authors: 3. */
  policyUpdatesPerIteration: count.default(3),
  /** First iterations, which train only the critic. Default 1. Authors: 20 of 2,000. */
  criticIterations: z.int().min(0).default(1),
  /** Transitions per step. Default 64. Authors: 256. */
  batchSize: count.default(64),
  /** Capacity of the replay buffer, in transitions. Default and authors: 100,000. */
  replayCapacity: count.default(100_000),
  /** γ per turn. Default and authors: 0.95. */
  discount: z.number().min(0).max(1).default(0.95),
  /** Learning rate of the critic's steps. Default and authors: 1e-5. */
  criticLearningRate: z.number().min(0).default(1e-5),
  /** Learning rate of the policy's steps. Default and authors: 1e-5. */
  policyLearningRate: z.number().min(0).default(1e-5),
  ...criticConfig.shape,
  ...adamWConfig.shape,
  ...sampledConfig.shape,
  /** Softmax temperature at which actions are sampled and scored. Default and authors: 1. */
  actionTemperature: z.number().gt(0).default(1),
  /**
   * Weight of the token-level baseline's loss in policy steps. A token's advantage is then
   * Q(s, ã) - V(s, ã_<t). Default: no such baseline; all tokens have the action's advantage. In the
   * paper it is an option, learned by a network and step of its own.
   */
  baselineCoefficient: z.number().min(0).optional(),
});

export type ArcherConfig = z.infer<typeof archerConfig>;
/** Settings of ArCHer, as a recipe gives them. */
export type ArcherConfigInput = z.input<typeof archerConfig>;

/** Options of `trainArcher`. */
export interface ArcherOptions<Task> {
  /** A learner made with `heads: "value"`. */
  model: PolicyGradientModel;
  environment: Environment<Task>;
  config?: ArcherConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** Checkpoint state besides the weights. The replay buffer is restored from the run's episodes. */
const stateSchema = countersSchema.extend({
  /** Consecutive skipped steps, per loss. */
  skipped: z.strictObject({ critic: z.int(), policy: z.int() }),
  /**
   * Targets of the critic steps with the present target network: per drawn transition its index,
   * and the targets of Q and V. Absent before they are computed.
   */
  targets: z.array(z.tuple([z.int(), savedNumber, savedNumber])).optional(),
});

type State = z.infer<typeof stateSchema>;

/** State shared by the functions below. */
interface Training<Task> {
  model: PolicyGradientModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  replay: UniformReplay<Stored>;
  state: State;
  config: ArcherConfig;
  run: TrainingRun;
}

/**
 * Trains `model`, which has a value head, in place. Returns after `iterations`, or when the run's
 * signal fires: the state after the last complete collection or update is then checkpointed and
 * `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration or a learner without a value head,
 *   ERR_NOT_FINITE after `maxSkippedSteps` skipped steps.
 */
export async function trainArcher<Task>(options: ArcherOptions<Task>): Promise<TrainingResult> {
  const config = configOf(archerConfig, options);
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  const replay = new UniformReplay<Stored>(config.replayCapacity);
  const state = await restore(run, replay, model.maxPositions);
  const training: Training<Task> = { model, environment, tasks, replay, state, config, run };
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () =>
    run.progress.overall(shareOver(state, config, state.updatesDone / updatesIn(state, config)));

  try {
    showOverall();
    // Saves what happened before training, such as a warm-up, in case the first rollouts are
    // stopped.
    if (state.episodes === 0) await checkpoint(true);
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      if (!state.collected) {
        await collect(training);
        await checkpoint(false);
      }
      const updates = updatesIn(state, config);
      run.progress.phase("update", updates);
      run.progress.advance(state.updatesDone);
      showOverall();
      while (state.updatesDone < updates && replay.size > 0) {
        const ofCritic = state.updatesDone < config.criticUpdatesPerIteration;
        const metrics = ofCritic ? await updateCritic(training) : await updatePolicy(training);
        await model.dropCaches(); // a resumed run starts with empty caches too
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        const loss = ofCritic ? "critic" : "policy";
        run.progress.show({ [loss]: metrics[`loss/${loss}`]! });
        run.progress.advance(state.updatesDone, metrics["tokens/generated"]);
        showOverall();
        await checkpoint(false);
      }
      endIteration(state);
      delete state.targets;
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
  replay: UniformReplay<Stored>,
  maxPositions: number,
): Promise<State> {
  const saved = await run.restore();
  if (saved === undefined) return { ...newCounters(), skipped: { critic: 0, policy: 0 } };
  for await (const trajectory of saved.trajectories) replay.add(storedOf(trajectory, maxPositions));
  return parseState(stateSchema, saved.state);
}

/** Updates of the current iteration. */
function updatesIn({ iteration }: Pick<State, "iteration">, config: ArcherConfig): number {
  const { criticUpdatesPerIteration, policyUpdatesPerIteration, criticIterations } = config;
  return criticUpdatesPerIteration + (iteration < criticIterations ? 0 : policyUpdatesPerIteration);
}

// -------------------------------------------------------------------------------------- collecting

async function collect<Task>(training: Training<Task>): Promise<void> {
  const { model, replay, state, run } = training;
  const started = performance.now();
  const trajectories = await collectEpisodes(training, state.episodes);
  for (const trajectory of trajectories) replay.add(storedOf(trajectory, model.maxPositions));
  state.episodes += trajectories.length;
  state.environmentSteps += stepsOf(trajectories);
  state.collected = true;
  run.metrics(state.updates, {
    ...rolloutMetrics(trajectories),
    ...completionMetrics(trajectories, model),
    episodes: state.episodes,
    environment_steps: state.environmentSteps,
    "replay/size": replay.size,
    "time/play": (performance.now() - started) / 1000,
  });
}

/** A transition with the prompts of its states. */
interface Stored {
  transition: Transition;
  /** s, as the policy's prompt. */
  prompt: number[];
  /** s', likewise; absent if the action was terminal. */
  next?: number[];
}

/** The episode's transitions whose values fit into the model's context. */
function storedOf(trajectory: Trajectory, maxPositions: number): Stored[] {
  return transitionsOf(trajectory).flatMap((transition): Stored[] => {
    const { state, action, observation, terminated } = transition;
    const prompt = state.prompt();
    if (prompt.length + action.length >= maxPositions) return [];
    if (terminated) return [{ transition, prompt }];
    const next = state
      .fork()
      .appendGeneration({ tokens: action })
      .append(...observation)
      .prompt();
    return next.length < maxPositions ? [{ transition, prompt, next }] : [];
  });
}

// ------------------------------------------------------------------------------------------ critic

/** One step on J_Q and J_V. */
async function updateCritic<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { model, replay, state, config, run } = training;
  const started = performance.now();
  const sinceCopy = state.updatesDone % config.criticUpdatesPerTarget;
  const { targets, generated } =
    sinceCopy === 0 || state.targets === undefined
      ? await computeTargets(training)
      : { targets: state.targets, generated: 0 };
  const first = sinceCopy * config.batchSize;
  const batch = targets
    .slice(first, first + config.batchSize)
    .map(([index, qTarget, vTarget]) => ({ ...replay.get([index])[0]!, qTarget, vTarget }));
  // J_Q + J_V, averaged over the batch: of the value head, only V(s) and Q(s, a) have a weight.
  const texts = batch.map(({ transition, prompt, qTarget, vTarget }): SurrogateText => {
    const text = valuedText({ prompt, action: transition.action }, model.endOfTurn);
    const last = text.response.length - 1;
    return {
      ...text,
      weight: text.weight.map((_, t) => (t === 0 || t === last ? 1 / batch.length : 0)),
      returns: text.returns.map((_, t) => (t === 0 ? vTarget : t === last ? qTarget : 0)),
    };
  });
  const results = await inGroups(texts, run.signal, (group) =>
    model.tokenSurrogate(group, { value: { coefficient: 1, detached: !config.sharedCritic } }),
  );
  const stepped = await step(training, "critic", config.criticLearningRate);
  // Only after the step: an update that is stopped before computes the targets again.
  state.targets = targets;
  const q = results.map(({ values }) => values!.at(-1)!);
  const v = results.map(({ values }) => values![0]!);
  for (const [i, { transition, qTarget, vTarget }] of batch.slice(0, run.samplesPerUpdate).entries()) {
    const facts = { q: q[i]!, qTarget, v: v[i]!, vTarget };
    run.sample(actionSample(model, state.updates, transition, facts));
  }
  const errors = q.map((value, i) => value - batch[i]!.qTarget);
  const spread = deviation(batch.map(({ qTarget }) => qTarget)) ** 2;
  return {
    "loss/critic": mean(results.map(({ valueLosses }) => valueLosses!.at(-1)! + valueLosses![0]!)),
    "loss/q": mean(results.map(({ valueLosses }) => valueLosses!.at(-1)!)),
    "loss/v": mean(results.map(({ valueLosses }) => valueLosses![0]!)),
    "q/mean": mean(q),
    "q/target": mean(batch.map(({ qTarget }) => qTarget)),
    "q/explained_variance": spread > 0 ? 1 - deviation(errors) ** 2 / spread : Number.NaN,
    "v/mean": mean(v),
    ...stepped,
    "tokens/values": 2 * batch.length,
    "tokens/gradient": 2 * batch.length,
    "tokens/generated": generated,
    "time/critic": (performance.now() - started) / 1000,
  };
}

/**
 * Draws the transitions of all critic steps until the next copy, and computes their targets under θ
 * as it is now: the target network. A transition that is drawn several times has one ã.
 */
async function computeTargets<Task>(
  training: Training<Task>,
): Promise<{ targets: NonNullable<State["targets"]>; generated: number }> {
  const { model, replay, state, config, run } = training;
  const seed = derivedSeed(config.seed, streams.target, state.updates);
  const { criticUpdatesPerTarget, criticUpdatesPerIteration, batchSize } = config;
  const steps = Math.min(criticUpdatesPerTarget, criticUpdatesPerIteration - state.updatesDone);
  const drawn = replay.draw(steps * batchSize, seed);
  const indices = [...new Set(drawn)].sort((a, b) => a - b);
  const stored = replay.get(indices);
  const valuesOf = (texts: readonly ScoredText[]) =>
    inGroups(texts, run.signal, (group) => model.values(group));

  // Q's target: r + γ V̄(s').
  const going = stored.flatMap(({ next }, i) => (next === undefined ? [] : [{ next, i }]));
  const nextValues = await valuesOf(going.map(({ next }) => ({ prompt: next, response: [model.endOfTurn] })));
  const qTargets = stored.map(({ transition }) => transition.reward);
  for (const [j, { i }] of going.entries()) qTargets[i]! += config.discount * nextValues[j]![0]!;

  // V's target: Q̄(s, ã).
  const prompts = stored.map(({ prompt }) => prompt);
  const acted = await sampleActions(training, prompts, seed);
  const actedValues = await valuesOf(acted.map((one) => valuedText(one, model.endOfTurn)));
  const vTargets = actedValues.map((values) => values.at(-1)!);

  const place = new Map(indices.map((index, i) => [index, i]));
  return {
    targets: drawn.map((index): [number, number, number] => {
      const i = place.get(index)!;
      return [index, qTargets[i]!, vTargets[i]!];
    }),
    generated: acted.reduce((sum, { action }) => sum + action.length, 0),
  };
}

// ------------------------------------------------------------------------------------------ policy

/** One step on J_π. Its random choices depend on (seed, update number) only. */
async function updatePolicy<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { model, replay, state, config, run } = training;
  const started = performance.now();
  const seed = derivedSeed(config.seed, streams.attempt, state.updates);
  const stored = replay.get(replay.draw(config.batchSize, seed));
  const prompts = stored.map(({ prompt }) => prompt);
  const acted = await sampleActions(training, prompts, seed);
  const reads = await readActions(training, acted);
  // J_π, averaged over the batch. The action's advantage is Q(s, ã) - V(s).
  const advantages = reads.map(({ q, before }) => q - before[0]!);
  const { actionTemperature: temperature, baselineCoefficient: coefficient } = config;
  const texts = acted.map(({ prompt, action }, i): SurrogateText => {
    const { q, before, logProbs } = reads[i]!;
    const perToken = coefficient !== undefined;
    return {
      ...{ prompt, response: action, weight: action.map(() => 1 / acted.length) },
      // ã is sampled from θ itself: the ratio is 1, and the gradient that of -A log π.
      oldLogProbs: logProbs,
      advantages: before.map((value) => (perToken ? q - value : advantages[i]!)),
      ...(perToken && { returns: before.map(() => q), oldValues: before }),
    };
  });
  const options = {
    temperature,
    ...(coefficient !== undefined && { value: { coefficient, detached: !config.sharedCritic } }),
  };
  const results = await inGroups(texts, run.signal, (group) => model.tokenSurrogate(group, options));
  const stepped = await step(training, "policy", config.policyLearningRate);
  for (const [i, { transition }] of stored.slice(0, run.samplesPerUpdate).entries()) {
    const { trajectory, turn } = transition;
    run.sample({
      ...{ update: state.updates, trajectory, turn },
      texts: { attempt: model.decode(acted[i]!.action) },
      facts: { advantage: advantages[i]!, v: reads[i]!.before[0]!, q: reads[i]!.q },
    });
  }
  const { "loss/policy": loss, entropy, "tokens/policy": tokens } = surrogateMetrics(texts, results);
  return {
    "loss/policy": loss!,
    ...(coefficient !== undefined && {
      "loss/baseline": mean(results.flatMap(({ valueLosses }) => [...valueLosses!])),
    }),
    entropy: entropy!,
    "advantage/mean": mean(advantages),
    "advantage/std": deviation(advantages),
    ...stepped,
    "tokens/policy": tokens!,
    "tokens/gradient": tokens!,
    "tokens/generated": acted.reduce((sum, { action }) => sum + action.length, 0),
    "time/policy": (performance.now() - started) / 1000,
  };
}

/**
 * What a policy step needs to know of an action under θ, read in one pass without a gradient: Q(s, a),
 * and V(s, a_<t) and log π(a_t | s, a_<t) of each token of a. The first of V is V(s).
 */
async function readActions<Task>(
  { model, config, run }: Training<Task>,
  acted: readonly Acted[],
): Promise<{ q: number; before: Float32Array; logProbs: Float32Array }[]> {
  const texts = acted.map((one) => valuedText(one, model.endOfTurn));
  const options = { value: { coefficient: 1 }, temperature: config.actionTemperature, withGradient: false };
  const results = await inGroups(texts, run.signal, (group) => model.tokenSurrogate(group, options));
  return results.map(({ values, logProbs }) => ({
    q: values!.at(-1)!,
    before: values!.subarray(0, -1),
    logProbs: logProbs.subarray(0, -1),
  }));
}

// ------------------------------------------------------------------------------------------ shared

/** An action in a state: a prompt and the ids of the action. */
interface Acted {
  prompt: readonly number[];
  action: readonly number[];
}

/**
 * The text in which the value head is read: V(s) before its first token, Q(s, a) before the token
 * that is appended to the action. Any token will do. Without advantages the surrogate of the policy
 * is 0, and only the value head's loss is left.
 */
function valuedText({ prompt, action }: Acted, endOfTurn: number) {
  const response = [...action, endOfTurn];
  const zeros = response.map(() => 0);
  const unused = { oldLogProbs: zeros, advantages: zeros, oldValues: zeros, returns: zeros };
  return { prompt, response, weight: response.map(() => 1), ...unused };
}

/** ã ~ π_θ(· | s) for each prompt; the seed decides. */
async function sampleActions<Task>(
  { model, config, run }: Training<Task>,
  prompts: readonly (readonly number[])[],
  seed: number,
): Promise<Acted[]> {
  const generations = await model.generate(
    prompts.map((tokens, i) => ({
      tokens,
      // Leaves room for the token at which Q is read.
      maxNewTokens: Math.min(config.maxActionTokens, model.maxPositions - tokens.length - 1),
      temperature: config.actionTemperature,
      seed: derivedSeed(seed, streams.attempt, i),
    })),
    { signal: run.signal },
  );
  return generations.map(({ tokens }, i) => ({ prompt: prompts[i]!, action: tokens }));
}

/** The number of the loss's next step, from 0: each loss has a warm-up of its own. */
function stepOf({ iteration, updatesDone }: State, config: ArcherConfig, loss: "critic" | "policy"): number {
  const { criticUpdatesPerIteration, policyUpdatesPerIteration, criticIterations } = config;
  if (loss === "critic") return iteration * criticUpdatesPerIteration + updatesDone;
  return (iteration - criticIterations) * policyUpdatesPerIteration + updatesDone - criticUpdatesPerIteration;
}

/** One optimizer step on the gradients of one of the losses. */
async function step<Task>(
  { model, config, state, run }: Training<Task>,
  loss: "critic" | "policy",
  learningRate: number,
): Promise<Record<string, number>> {
  throwIfAborted(run.signal);
  // Counted per loss, so that good steps of one loss do not hide failures of the other.
  const counters = { skippedInARow: state.skipped[loss] };
  const { over } = stepPlace(state, config, updatesIn(state, config));
  const place = { step: stepOf(state, config, loss), over };
  const taken = await scheduledStep(model, { ...config, learningRate }, place, counters, { moments: loss });
  state.skipped[loss] = counters.skippedInARow;
  return Object.fromEntries(Object.entries(taken).map(([name, value]) => [`${name}/${loss}`, value]));
}
