/**
 * Supervised fine-tuning on recorded episodes: the policy imitates actions that another player, a
 * person or an earlier run has taken. It is the warm start of HOPE (the HOPE paper, appendix C.1)
 * and useful alone.
 *
 *   L(s, a) = -log π_θ(a | s),  (s, a) ~ D,   each pair once per epoch, in a new random order
 *
 * D comes from files of episodes (those of a run, or of `nlac eval --split train --record`, also of
 * a model at a service), and from the environment's scripted episodes. In a served run D is empty at
 * first and grows by corrections, the better answers that people post: each step takes the
 * corrections with the fewest imitations, the newest first, until each has been imitated `epochs`
 * times.
 *
 * Departures from the paper, on points that it leaves open:
 * - The loss is averaged over the tokens of an action and then over the batch, as in RFT.
 * - The last batch of an epoch may be smaller.
 * - Actions that could not be parsed are never imitated.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { isFaulty, reaches, succeeded, type Trajectory, transitionsOf } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { imitatedConfig, unsampledConfig } from "../playing/config.ts";
import {
  countersSchema,
  endIteration,
  endless,
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
import { copyRecorded } from "../training/recorded-episodes.ts";
import { configOf, requireDemonstrations, requireForm, requireTasks } from "../training/requirements.ts";
import { episodesFrom, epochBatch } from "../training/rounds.ts";
import { scheduleConfigOf } from "../training/schedule.ts";
import { type StepPlace, scheduledStep, stepPlace } from "../training/step.ts";
import { demonstrated } from "../training/warmup.ts";

const count = z.int().min(1);

/** Each field: meaning, unit, default and, if there is one, the source. "Paper" is HOPE's. */
export const sftConfig = z.strictObject({
  /** Passes over the data. Default and paper: 3. */
  epochs: count.default(3),
  /** Files of recorded episodes, in order. Default none. Paper: games of GPT-4o, 3 a task. */
  recorded: z.array(z.string().min(1)).default([]),
  /**
   * Scripted episodes of the environment per training task that are imitated in addition. Default
   * 0. Paper: none.
   */
  demonstrationsPerTask: z.int().min(0).default(0),
  /**
   * Which recorded episodes are imitated: the successful ones, or all. Default "successes".
   * Paper: not given.
   */
  select: z.enum(["successes", "all"]).default("successes"),
  /**
   * With "successes": minimum reward of an episode that is imitated. Default: the environment
   * says which succeeded.
   */
  successReward: z.number().optional(),
  /** Actions per step. Default and paper: 64 (4 × 16; Car Dealer 2 × 12). */
  batchSize: count.default(64),
  /** When the policy is evaluated, in epochs. Default never. */
  evaluation: trainingConfig.shape.evaluation,
  /** Seed of every random choice. Default 0. */
  seed: trainingConfig.shape.seed,
  ...optimizerConfig.shape,
  /** Peak learning rate. Default and paper: 3e-5. */
  learningRate: z.number().min(0).default(3e-5),
  /** Default and paper: cosine decay to 0. */
  schedule: scheduleConfigOf("cosine"),
  ...imitatedConfig.shape,
  ...unsampledConfig.shape,
  /** Longest text, in tokens; longer ones are left out and counted. Default and paper: 2,048. */
  maxTokens: count.default(2048),
});

export type SftConfig = z.infer<typeof sftConfig>;
/** Settings of SFT, as a recipe gives them. */
export type SftConfigInput = z.input<typeof sftConfig>;

/** Options of `trainSft`. */
export interface SftOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  config: SftConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** An action to imitate. */
interface Example {
  /** Computed when it is needed: the prompts of an episode share most of their ids. */
  prompt(): number[];
  response: readonly number[];
  trajectory: number;
  turn: number;
}

/**
 * State shared by the functions below. `iteration` counts finished epochs; in a served run, how
 * often all demonstrations so far were imitated.
 */
interface Training<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  state: z.infer<typeof countersSchema>;
  config: SftConfig & { iterations: number; environmentSteps: number };
  run: TrainingRun;
}

/** Throws ERR_CONFIG if the configuration names nothing to imitate, as only a served run may. */
export function requireData({ recorded, demonstrationsPerTask }: SftConfig): void {
  if (recorded.length === 0 && demonstrationsPerTask === 0)
    throw new NlacError(
      "ERR_CONFIG",
      "There is nothing to imitate: name files of `recorded` episodes in the recipe's config, or set " +
        "demonstrationsPerTask. To imitate corrections, use nlac serve --train.",
    );
}

/**
 * Trains `model` in place. Returns after the epochs, or when the run's signal fires: the state
 * after the last complete update is then checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, or if there is nothing to imitate;
 *   ERR_RUN, ERR_IO for recorded episodes that cannot be read; ERR_NOT_FINITE after
 *   `maxSkippedSteps` skipped steps.
 */
export async function trainSft<Task>(options: SftOptions<Task>): Promise<TrainingResult> {
  const given = configOf(sftConfig, options);
  const config = { ...given, iterations: given.epochs, environmentSteps: 0 };
  const { model, environment } = options;
  requireForm(environment, config);
  const run = options.run ?? memoryRun();
  const { nextDemonstrations } = run;
  if (nextDemonstrations === undefined) requireData(config);
  const saved = await run.restore();
  const state = saved === undefined ? newCounters() : parseState(countersSchema, saved.state);
  if (nextDemonstrations !== undefined) {
    const training = { model, environment, state, config: { ...config, iterations: endless }, run };
    return imitateArriving(training, nextDemonstrations, saved === undefined);
  }
  const recorded =
    saved === undefined
      ? await copyRecorded(run, config.recorded, model, environment)
      : await episodesFrom(saved.trajectories, 0);
  const all = [...recordedExamples(recorded, config), ...(await scriptedExamples(options, config))];
  const longest = Math.min(config.maxTokens, model.maxPositions);
  const examples = all.filter(({ prompt, response }) => prompt().length + response.length <= longest);
  if (examples.length === 0)
    throw new NlacError(
      "ERR_CONFIG",
      all.length > 0
        ? `All ${all.length} actions to imitate are longer than maxTokens (${longest}) with their prompts.`
        : `None of the ${recorded.length} recorded episodes can be imitated: see \`select\` and \`successReward\`.`,
    );
  const training: Training<Task> = { model, environment, state, config, run };
  const perEpoch = Math.ceil(examples.length / config.batchSize);
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  const showOverall = () => run.progress.overall(shareOver(state, config, state.updatesDone / perEpoch));

  try {
    showOverall();
    if (saved === undefined) {
      run.metrics(0, {
        "data/episodes": recorded.length,
        "data/actions": examples.length,
        "data/too_long": all.length - examples.length,
      });
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      state.collected = true;
      run.progress.phase("update", perEpoch);
      run.progress.advance(state.updatesDone);
      while (state.updatesDone < perEpoch) {
        const metrics = await update(training, examples, perEpoch);
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ NLL: metrics["loss/nll"] ?? Number.NaN });
        run.progress.advance(state.updatesDone, metrics["tokens/nll"]);
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

/** Trains on demonstrations that arrive during the run. Returns when its signal fires. */
async function imitateArriving<Task>(
  training: Training<Task>,
  next: NonNullable<TrainingRun["nextDemonstrations"]>,
  isNew: boolean,
): Promise<TrainingResult> {
  const { model, state, config, run } = training;
  const checkpoint = (force: boolean) => run.checkpoint({ state: { ...state }, model }, force);
  try {
    if (isNew) await checkpoint(true);
    for (;;) {
      await evaluatePeriodically(training);
      run.progress.phase("update", 1);
      const { examples, imitated } = await next(config.batchSize);
      const started = performance.now();
      // Nothing says how many will arrive: the learning rate does not decay.
      const { metrics } = await imitate(training, examples, { step: state.updates, over: 0 });
      const left = imitated();
      state.updates++;
      run.metrics(state.updates, { ...metrics, "time/update": (performance.now() - started) / 1000 });
      run.progress.show({ NLL: metrics["loss/nll"] ?? Number.NaN });
      run.progress.advance(1, metrics["tokens/nll"]);
      if (left === 0) endIteration(state); // before it is saved: an evaluation may be due then
      await checkpoint(false);
    }
  } catch (error) {
    await rollBack(model, run, error, () => checkpoint(true));
    return trainingResult(state, true);
  }
}

/**
 * The readable actions of the imitated episodes. A branch repeats turns of another episode: each of
 * these turns is imitated once.
 */
function recordedExamples(
  trajectories: readonly Trajectory[],
  { select, successReward }: SftConfig,
): Example[] {
  const good = (trajectory: Trajectory) =>
    select === "all" ||
    (successReward === undefined ? succeeded(trajectory) : reaches(trajectory, successReward));
  const known = new Set<string>();
  const isNew = ({ id, branch }: Trajectory, turn: number) => {
    const place = `${branch !== undefined && turn < branch.turn ? branch.trajectory : id} ${turn}`;
    return !known.has(place) && known.add(place);
  };
  return trajectories
    .filter((trajectory) => !isFaulty(trajectory) && good(trajectory))
    .flatMap((trajectory) =>
      transitionsOf(trajectory)
        .filter(({ turn }) => trajectory.turns[turn]!.action !== undefined && isNew(trajectory, turn))
        .map(({ turn, state, action }) => ({
          prompt: () => state.prompt(),
          response: action,
          trajectory: trajectory.id,
          turn,
        })),
    );
}

/** The actions of scripted episodes: a function of the seed, so that a resumed run repeats them. */
async function scriptedExamples<Task>(
  { model, environment }: SftOptions<Task>,
  { demonstrationsPerTask, seed }: SftConfig,
): Promise<Example[]> {
  if (demonstrationsPerTask === 0) return [];
  requireDemonstrations(environment);
  const tasks = await requireTasks(environment, "train");
  const examples: Example[] = [];
  for (const [i, task] of tasks.entries()) {
    for (let j = 0; j < demonstrationsPerTask; j++) {
      const own = derivedSeed(seed, streams.warmup, i * demonstrationsPerTask + j);
      const texts = await demonstrated(model, environment, task, own);
      const actions = texts.filter(({ role }) => role === "attempt");
      for (const [turn, { prompt, response }] of actions.entries())
        examples.push({ prompt: () => [...prompt], response, trajectory: -1, turn });
    }
  }
  return examples;
}

/** One step on a batch. Its random choices depend on (seed, epoch) only. */
async function update<Task>(
  training: Training<Task>,
  examples: readonly Example[],
  perEpoch: number,
): Promise<Record<string, number>> {
  const { model, state, config, run } = training;
  const started = performance.now();
  const drawn = epochBatch(config, state.iteration, state.updatesDone, examples.length);
  const batch = drawn.map((i) => examples[i]!);
  const texts = batch.map(({ prompt, response }) => ({ prompt: prompt(), response }));
  const { losses, metrics } = await imitate(training, texts, stepPlace(state, config, perEpoch));
  for (const [i, { trajectory, turn }] of batch.slice(0, run.samplesPerUpdate).entries()) {
    const { prompt, response } = texts[i]!;
    // A demonstration is no episode of the run.
    const written = {
      ...(trajectory < 0 && { state: model.decode(prompt) }),
      action: model.decode(response),
    };
    run.sample({ update: state.updates, trajectory, turn, texts: written, facts: { nll: mean(losses[i]!) } });
  }
  return {
    ...metrics,
    epoch: state.iteration + (state.updatesDone + 1) / perEpoch,
    "time/update": (performance.now() - started) / 1000,
  };
}

/** One step: the mean over the texts of each one's mean NLL per token. */
async function imitate<Task>(
  { model, config, run, state }: Training<Task>,
  texts: readonly { prompt: readonly number[]; response: readonly number[] }[],
  place: StepPlace,
): Promise<{ losses: Float32Array[]; metrics: Record<string, number> }> {
  const weighted = texts.map((text) => ({ ...text, weight: 1 / (text.response.length * texts.length) }));
  const losses = await inGroups(weighted, run.signal, (group) => model.tokenNll(group));
  throwIfAborted(run.signal);
  const stepped = await scheduledStep(model, config, place, state);
  const tokens = losses.reduce((sum, { length }) => sum + length, 0);
  const metrics = { "loss/nll": mean(losses.map(mean)), "tokens/nll": tokens, "tokens/gradient": tokens };
  return { losses, metrics: { ...metrics, ...stepped } };
}
