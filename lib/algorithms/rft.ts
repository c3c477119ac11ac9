/**
 * Rejection fine-tuning (the NLAC paper, section 6.2; Yuan et al., "Scaling relationship on
 * learning mathematical reasoning with large language models", 2023). Each iteration plays episodes
 * under θ, stores those that succeed, and imitates actions drawn from the buffer:
 *
 *   D ← D ∪ { (s, a) of τ ~ π_θ : τ succeeded }
 *   L(s, a) = -log π_θ(a | s),  (s, a) ~ D
 *
 * Departures from the papers, all on points that the papers leave open:
 * - θ continues from iteration to iteration. Yuan et al. fine-tune the base model anew, on one set
 *     of its own samples.
 * - Equal solutions are kept, so that frequent ones are imitated more. Yuan et al. keep one of those
 *   with the same equations.
 * - A sample is one action after its state, not an episode, so that batch sizes compare with
 *   NLAC's.
 * - A truncated episode is imitated only if it succeeded before the limit, which is rare: there are
 *     no values to bootstrap from.
 * - An action that could not be parsed is never imitated, even if its episode succeeds.
 * - The loss is averaged over the tokens of an action and then over the batch, as in NLAC.
 * - While the buffer is empty, an iteration's updates are skipped, and the learning rate's schedule
 *   advances as if they had been taken.
 * `imitate: "hindsight"` makes it a different method, a baseline for environments whose
 * observations name the right action: code of the environment reads that action from them, as
 * NLAC's model does.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { derivedSeed, streams, uniform } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import {
  isFaulty,
  reaches,
  succeeded,
  type Trajectory,
  type Transition,
  transitionsOf,
} from "../episodes/trajectory.ts";
import type { LanguageModel, PolicyGradientModel } from "../model/language-model.ts";
import { imitatedConfig } from "../playing/config.ts";
import { turnTokens } from "../prompts/policy.ts";
import {
  type Counters,
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
import { mean } from "../statistics/mean.ts";
import { optimizerConfig, trainingConfig } from "../training/config.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { rehearse } from "../training/rehearsal.ts";
import { configOf, requireForm, requireHindsight, requireTasks } from "../training/requirements.ts";
import { collectEpisodes, stepsOf } from "../training/rounds.ts";
import { actionSample } from "../training/sample-records.ts";
import { type StepPlace, scheduledStep, startAgain, stepPlace } from "../training/step.ts";

const count = z.int().min(1);

/** Each field: meaning, unit, default and, if there is one, the source. "Paper" is NLAC's. */
const fields = z.strictObject({
  ...trainingConfig.shape,
  /** Episodes collected per iteration. Default 64. Paper: not given. */
  episodesPerIteration: count.default(64),
  /** Steps per iteration. Default 1,024. Paper: 30,720 in all, 1,024 per iteration. */
  updatesPerIteration: z.int().min(0).default(1024),
  /**
   * Actions per step. Default 1. Paper: 1, of a batch of 1,024 per iteration (docs/decisions/0016).
   */
  batchSize: count.default(1),
  /**
   * With `imitate: "successes"`, the minimum reward of an episode that is imitated. Default and
   * paper: episodes that the environment calls a success.
   */
  successReward: z.number().optional(),
  /**
   * What is imitated: "successes", the actions of successful episodes; or, from all episodes, the
   * actions that should have been taken according to the environment's `hindsight`, which reads
   * either the next observation ("hindsight") or all later ones ("hindsight-episode"). Default and
   * paper: successes.
   */
  imitate: z.enum(["successes", "hindsight", "hindsight-episode"]).default("successes"),
  /**
   * Whether each iteration's updates start from the run's initial model again, with new moments and
   * at the start of the schedule, as in the baseline Reject-S of HOPE. Default and paper: false.
   */
  restart: z.boolean().default(false),
  /**
   * Demonstrated targets and refinements per step whose negative log-likelihood is added to the
   * loss, as in NLAC: for comparisons that give both methods the same labelled data. Default 0:
   * off. Paper: none.
   */
  rehearsal: z.int().min(0).default(0),
  /**
   * Capacity of the buffer, in actions; the oldest are dropped. Default 100,000. Paper: not given.
   */
  capacity: count.default(100_000),
  /**
   * Draws each stored action, or each solved task, with equal probability. With "actions" easy
   * tasks dominate. Default "actions". Paper: not given.
   */
  balance: z.enum(["actions", "tasks"]).default("actions"),
  ...optimizerConfig.shape,
  ...imitatedConfig.shape,
});

export const rftConfig = fields.refine(
  ({ imitate, successReward }) => imitate === "successes" || successReward === undefined,
  { error: 'needs imitate "successes": in hindsight all episodes are imitated', path: ["successReward"] },
);

export type RftConfig = z.infer<typeof rftConfig>;
/** Settings of RFT, as a recipe gives them. */
export type RftConfigInput = z.input<typeof rftConfig>;

/** Options of `trainRft`. */
export interface RftOptions<Task> {
  /** With `restart`, a model with a reference. */
  model: LanguageModel & Partial<Pick<PolicyGradientModel, "keepReference" | "restoreReference">>;
  environment: Environment<Task>;
  config?: RftConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** State shared by the functions below. */
interface Training<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  successes: Successes;
  state: Counters;
  config: RftConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Returns after `iterations`, or when the run's signal fires: the state
 * after the last complete collection or update is then checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, ERR_NOT_FINITE after `maxSkippedSteps`
 *   skipped steps.
 */
export async function trainRft<Task>(options: RftOptions<Task>): Promise<TrainingResult> {
  const config = configOf(rftConfig, options);
  const { model, environment } = options;
  requireForm(environment, config);
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  if (config.imitate !== "successes") requireHindsight(environment);
  if (config.restart && (model.keepReference === undefined || model.restoreReference === undefined))
    throw new NlacError(
      "ERR_CONFIG",
      "restart: this model has no reference, a copy of its initial weights, to start from.",
    );
  const successes = new Successes(config, (trajectory) => imitable(model, environment, config, trajectory));
  const state = await restore(run, successes);
  const training: Training<Task> = { model, environment, tasks, successes, state, config, run };
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () =>
    run.progress.overall(
      shareOver(state, config, state.updatesDone / Math.max(1, config.updatesPerIteration)),
    );

  try {
    showOverall();
    // Saves what happened before training, such as a warm-up, in case the first rollouts are
    // stopped.
    if (state.episodes === 0) {
      if (config.restart) await model.keepReference!();
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      if (!state.collected) {
        const started = performance.now();
        const trajectories = await collectEpisodes(training, state.episodes);
        const kept = trajectories.filter((trajectory) => successes.add(trajectory)).length;
        state.episodes += trajectories.length;
        state.environmentSteps += stepsOf(trajectories);
        state.collected = true;
        run.metrics(state.updates, {
          ...rolloutMetrics(trajectories),
          episodes: state.episodes,
          environment_steps: state.environmentSteps,
          "buffer/kept": kept,
          "buffer/actions": successes.size,
          "buffer/tasks": successes.tasks,
          "time/play": (performance.now() - started) / 1000,
        });
        await checkpoint(false);
      }
      run.progress.phase("update", config.updatesPerIteration);
      run.progress.advance(state.updatesDone);
      showOverall();
      if (config.restart && state.updatesDone === 0 && successes.size > 0)
        await startAgain(model as PolicyGradientModel);
      while (state.updatesDone < config.updatesPerIteration && successes.size > 0) {
        const metrics = await update(training);
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ NLL: metrics["loss/nll"] ?? Number.NaN });
        run.progress.advance(state.updatesDone, metrics["tokens/nll"]);
        showOverall();
        await checkpoint(false);
      }
      endIteration(state);
      showOverall(); // an iteration without successes has no updates
    }
    await evaluatePeriodically(training);
    await checkpoint(true);
    return trainingResult(state, false);
  } catch (error) {
    await rollBack(model, run, error, () => checkpoint(true));
    return trainingResult(state, true);
  }
}

async function restore(run: TrainingRun, successes: Successes): Promise<Counters> {
  const saved = await run.restore();
  if (saved === undefined) return newCounters();
  for await (const trajectory of saved.trajectories) successes.add(trajectory);
  return parseState(countersSchema, saved.state);
}

/**
 * The actions of an episode to imitate, each after its own state; undefined if the episode is not
 * imitated.
 */
function imitable<Task>(
  model: LanguageModel,
  environment: Environment<Task>,
  { imitate, successReward }: RftConfig,
  trajectory: Trajectory,
): Transition[] | undefined {
  if (imitate === "successes") {
    const good = successReward === undefined ? succeeded(trajectory) : reaches(trajectory, successReward);
    if (isFaulty(trajectory) || !good) return undefined;
    return transitionsOf(trajectory).filter(({ turn }) => trajectory.turns[turn]!.action !== undefined);
  }
  const transitions = transitionsOf(trajectory);
  return transitions.flatMap((transition, i) => {
    const { action, tokens } = trajectory.turns[transition.turn]!;
    const later = imitate === "hindsight-episode" ? transitions.slice(i + 1) : [];
    const better =
      action &&
      environment.hindsight!(
        action,
        transition.observation,
        later.map(({ observation }) => observation),
      );
    if (better === undefined) return [];
    if (better.text === action!.text) return [{ ...transition, action: tokens }];
    const written = turnTokens(model, transition.state, better, environment.actionFormat);
    // The context had room for the action taken; the imitated one may be longer.
    if (transition.state.prompt().length + written.length > model.maxPositions) return [];
    return [{ ...transition, action: written }];
  });
}

/** The latest `capacity` actions to imitate. */
class Successes {
  readonly #config: RftConfig;
  readonly #imitable: (trajectory: Trajectory) => Transition[] | undefined;
  readonly #actions: Transition[] = [];
  readonly #tasks: string[] = []; // the task of each action

  constructor(config: RftConfig, imitable: (trajectory: Trajectory) => Transition[] | undefined) {
    this.#config = config;
    this.#imitable = imitable;
  }

  /** Number of actions stored. */
  get size(): number {
    return this.#actions.length;
  }

  /** Number of different tasks among them. */
  get tasks(): number {
    return new Set(this.#tasks).size;
  }

  /** Adds the actions of an episode that qualifies for imitation. Returns false for other episodes. */
  add(trajectory: Trajectory): boolean {
    const actions = this.#imitable(trajectory);
    if (actions === undefined) return false;
    for (const action of actions) {
      this.#actions.push(action);
      this.#tasks.push(trajectory.task);
    }
    const over = Math.max(0, this.#actions.length - this.#config.capacity);
    this.#actions.splice(0, over);
    this.#tasks.splice(0, over);
    return true;
  }

  /** Draws `size` actions with replacement; a function of the seed and the content. */
  draw(size: number, seed: number): Transition[] {
    const all = this.#actions.map((_, i) => i);
    const groups = this.#config.balance === "tasks" ? this.#byTask() : [all];
    const choose = <T>(from: readonly T[], counter: number) =>
      from[Math.floor(uniform(seed, streams.minibatch, counter) * from.length)]!;
    return Array.from({ length: size }, (_, i) => {
      const group = choose(groups, 2 * i);
      return this.#actions[choose(group, 2 * i + 1)]!;
    });
  }

  #byTask(): number[][] {
    const groups = new Map<string, number[]>();
    for (const [i, task] of this.#tasks.entries()) {
      getOrAdd(groups, task, () => []).push(i);
    }
    return [...groups.values()];
  }
}

/** Place of the next step in the schedule, which begins anew with the weights. */
function placeOf(state: Counters, config: RftConfig): StepPlace {
  const { updatesPerIteration, restart } = config;
  if (!restart) return stepPlace(state, config, updatesPerIteration);
  return { step: state.updatesDone, over: state.updatesDone / updatesPerIteration };
}

/** One step on a batch. Its random choices depend on (seed, update number) only. */
async function update<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { model, successes, state, config, run } = training;
  const started = performance.now();
  const actions = successes.draw(
    config.batchSize,
    derivedSeed(config.seed, streams.minibatch, state.updates),
  );
  const texts = actions.map((drawn) => ({
    prompt: drawn.state.prompt(),
    response: drawn.action,
    weight: 1 / (drawn.action.length * actions.length),
  }));
  const losses = await inGroups(texts, run.signal, (group) => model.tokenNll(group));
  const rehearsalSeed = derivedSeed(config.seed, streams.rehearsal, state.updates);
  const rehearsed = await rehearse({
    ...training,
    count: config.rehearsal,
    seed: rehearsalSeed,
    signal: run.signal,
  });
  throwIfAborted(run.signal);
  const stepped = await scheduledStep(model, config, placeOf(state, config), state);
  for (const [i, action] of actions.slice(0, run.samplesPerUpdate).entries()) {
    run.sample(actionSample(model, state.updates, action, { nll: mean(losses[i]!) }));
  }
  const tokens = losses.reduce((sum, { length }) => sum + length, 0);
  return {
    "loss/nll": mean(losses.map(mean)),
    "tokens/nll": tokens,
    ...(config.rehearsal > 0
      ? { "loss/rehearsal": rehearsed.nll, "tokens/rehearsal": rehearsed.tokens }
      : {}),
    "tokens/gradient": tokens + rehearsed.tokens,
    ...stepped,
    "time/update": (performance.now() - started) / 1000,
  };
}
