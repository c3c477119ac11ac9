/**
 * Natural Language Actor-Critic (Algorithm 1 of the paper).
 *
 *   L1(s, a, r, s') = KL( B_L M_θ̄(· | s, a) ‖ M_θ(· | s, a) )       (eq. 5)  the critic
 *   L2(s)           = -log π_θ(a^r | s)                              (eq. 6)  the policy
 *   θ̄ ← τ θ + (1 - τ) θ̄                                             (line 10)
 *
 * One model plays every role. For a sampled transition, two append-only conversations are
 * generated:
 *
 *   under θ̄:  (s, a) + observation → future d' → target y              the teacher's context of y
 *   under θ:  s → attempt ã → critique Q → refinement a^r               a^r is scored after s only
 *
 * The student reads (s, a) and the critic's request, and learns to give y the same probability as
 * the teacher, which also saw s'. If the episode terminated, its outcome replaces d'; if a limit
 * truncated it, d' is generated as usual. With `bootstrap: "monte-carlo"` the rest of the episode
 * replaces d' (Feng et al., "Natural Language Reinforcement Learning", 2025).
 *
 * Departures from the paper, on points that it leaves open or that batching requires:
 * - All completions of a batch are generated before the batch's two steps. So the θ of a^r is one
 *   step older than if samples were processed one by one.
 * - The losses are averaged over the tokens of a completion and then over the batch: short and long
 *   completions have equal weight.
 * - By default L1 is the KL over the vocabulary at each token of the target; section 5.2 trains its
 *   cross entropy at the target's tokens (`support`).
 * - With k > 1, L1 trains only the futures; the evaluator is not trained.
 * - The buffer keeps the latest `replayCapacity` transitions; Algorithm 1 keeps all.
 * - A sample is dropped, and counted by its cause, if a completion does not fit into the model's
 *   context, or a refined action was cut off or cannot be parsed. Other targets are trained on
 *   whatever their form (`targets`). A transition without a target gets the lowest priority.
 * Options that the paper does not have, including its ablations, are off by default and marked.
 */

import { z } from "zod";
import { isAborted, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import { checkConfig } from "../base/validation.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import { readSampled } from "../episodes/records.ts";
import {
  ownTransitionsOf,
  type Trajectory,
  type Transition,
  transitionsOf,
  transitionsOfAll,
} from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { ReplayBuffer, replaySample } from "../replay/buffer.ts";
import { refinementMetrics } from "../roles/refinements.ts";
import { requireWords, rolesConfig } from "../roles/role-writer.ts";
import { targetMetrics } from "../roles/targets.ts";
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
import { mean } from "../statistics/mean.ts";
import { adamWConfig, trainingConfig } from "../training/config.ts";
import { diagnose, diagnosticsConfig } from "../training/diagnose.ts";
import { criticLosses, inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { plainUpdates, preparedUpdates, prepareUpdates } from "../training/prepared-updates.ts";
import { chooseProbes, explainProbes, tapProbes } from "../training/probes.ts";
import { criticOptions, type PendingRecords, prepareRecords, writeRecords } from "../training/recording.ts";
import { rehearse } from "../training/rehearsal.ts";
import { configOf, requireForm, requireFuture, requireTasks } from "../training/requirements.ts";
import { playEpisodes, stepsOf } from "../training/rounds.ts";
import { scheduledStep, stepPlace } from "../training/step.ts";

const count = z.int().min(1);

/** Each field: meaning, unit, default and, if given, the paper's value. */
const fields = z.strictObject({
  ...trainingConfig.shape,
  /**
   * Episodes collected per iteration; 0 trains on `recorded` only. Default 64. Paper: not given;
   * `recipes/paper` uses 1,024.
   */
  episodesPerIteration: z.int().min(0).default(64),
  /**
   * Episode files, from `nlac eval --split train --record` or a run, that fill the buffer at the
   * start; held-out episodes are left out. Default and paper: none.
   */
  recorded: z.array(z.string().min(1)).default([]),
  /**
   * Updates per iteration, each a step on L1 and a step on L2. Default 1,024. Paper: 30,720 in all,
   * 1,024 per iteration.
   */
  updatesPerIteration: z.int().min(0).default(1024),
  /** Transitions per update. Default 1. Paper: 1, of 1,024 an iteration (docs/decisions/0016). */
  batchSize: count.default(1),
  /**
   * Updates whose completions are generated together, which keeps a GPU busy if batches are small.
   * The transitions of update i of such a group are drawn, and its completions generated, i updates
   * earlier: by older priorities, θ and θ̄. Default and paper: 1.
   */
  updatesAhead: count.default(1),
  /**
   * Constrains the rollouts' actions of the format "tool" to the form and the tools' schemas.
   * Attempts and refinements stay unconstrained. Default false. Paper: not mentioned.
   */
  constrainActions: z.boolean().default(false),
  /** k, m, how each role generates, and which completions are trained on: roles/role-writer.ts. */
  ...rolesConfig.shape,
  /** τ: the step of the EMA θ̄ towards θ; 1 copies θ, 0 leaves θ̄. Default and paper: 0.005. */
  targetRate: z.number().min(0).max(1).default(0.005),
  /**
   * Updates between two changes of θ̄; with a rate of 1, θ̄ is a copy of θ that is fixed in between.
   * Default and paper: 1.
   */
  targetEvery: count.default(1),
  /**
   * Capacity of the replay buffer, in transitions; the oldest are overwritten. Default 100,000.
   * Paper: not given; Algorithm 1 keeps all.
   */
  replayCapacity: count.max(2 ** 27).default(100_000),
  /**
   * Samples episodes of so many latest iterations only; 1: on-policy. Default and paper: all, of
   * which `replayCapacity` keeps the latest.
   */
  replayIterations: z.union([z.literal("all"), count]).default("all"),
  /** α: P(i) ∝ L1(i)^α; 0 samples uniformly. Default and paper: 0.1. */
  priorityExponent: z.number().min(0).default(0.1),
  /** β: importance weights (n P(i))^-β. Default 0: off. Paper: not mentioned. */
  importanceExponent: z.number().min(0).max(1).default(0),
  /** λ1: learning rate of the critic's steps. Default and paper: 5e-6. */
  criticLearningRate: z.number().min(0).default(5e-6),
  /** λ2: learning rate of the policy's steps. Default and paper: 5e-6. */
  policyLearningRate: z.number().min(0).default(5e-6),
  ...adamWConfig.shape,
  /**
   * AdamW's moments: one set for both losses, or one per loss. Default "shared". Paper: not given.
   */
  optimizerState: z.enum(["shared", "separate"]).default("shared"),
  /**
   * Tokens over which L1 is summed: all of the vocabulary ("full", the default), the teacher's top
   * k with a tail bucket (`topK`), or the sampled token ("sampled"). Paper: "sampled": eq. 5 is the
   * KL, and section 5.2 trains its cross entropy component on the target's tokens. "full" has the
   * same expected gradient if targets are sampled at temperature 1, with less variance. As
   * priorities they differ: the cross entropy includes the teacher's own entropy and the KL does
   * not, so the KL gives no priority to targets just because the teacher is unsure.
   */
  support: z.union([z.enum(["full", "sampled"]), z.strictObject({ topK: count })]).default("full"),
  /**
   * Weight of L1 in a critic step; 0 trains on rehearsal only, an ablation: L1 is then measured and
   * still sets the priorities. Default and paper: 1.
   */
  criticWeight: z.number().min(0).default(1),
  /**
   * Generates each target from the outcome of another transition of the batch: an ablation that
   * breaks the link between action and outcome. Needs a `batchSize` above 1. Default false. Paper:
   * none.
   */
  shuffleOutcomes: z.boolean().default(false),
  /**
   * Demonstrated targets and refinements per critic step, freshly generated from scripted episodes.
   * Their negative log-likelihood is added to the loss, so that a small model does not forget these
   * roles. Default 0: off. Paper: none.
   */
  rehearsal: z.int().min(0).default(0),
  /** When critic, futures and refinements are compared with what happened. Default never. */
  diagnostics: diagnosticsConfig.prefault({}),
});

export const nlacConfig = fields
  .refine(({ refinements, attempt }) => refinements > 0 || attempt === "fresh", {
    error: "without refinements L2 is that of the attempt, which must be fresh",
    path: ["attempt"],
  })
  .refine(({ shuffleOutcomes, batchSize }) => !shuffleOutcomes || batchSize > 1, {
    error: "a batch of one transition has no other outcome: set batchSize above 1",
    path: ["shuffleOutcomes"],
  })
  .refine(({ constrainActions, reasoning }) => !constrainActions || !reasoning, {
    error: "a constrained action has no thought before it, but reasoning models need one",
    path: ["constrainActions"],
  })
  .refine(
    ({ episodesPerIteration, recorded, diagnostics }) =>
      episodesPerIteration > 0 || (recorded.length > 0 && diagnostics.every === 0),
    {
      error: "nothing is played: name `recorded` episodes, and leave diagnostics off",
      path: ["episodesPerIteration"],
    },
  )
  .refine(({ recorded, replayIterations }) => recorded.length === 0 || replayIterations === "all", {
    error: 'recorded episodes belong to no iteration and would not be sampled: set it to "all"',
    path: ["replayIterations"],
  });

export type NlacConfig = z.infer<typeof nlacConfig>;
/** Settings of NLAC, as a recipe gives them. */
export type NlacConfigInput = z.input<typeof nlacConfig>;

/** Options of `trainNlac`. */
export interface NlacOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  config?: NlacConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** Checkpoint state besides weights and replay. */
const stateSchema = countersSchema.extend({
  /** Number of episodes that were recorded before the run; they come first. */
  recorded: z.int().min(0),
  /**
   * Episodes of each of the latest `replayIterations` iterations: a served one may have more than
   * `episodesPerIteration`. Shorter in checkpoints of earlier versions.
   */
  latest: z.array(z.int().min(0)).default([]),
  /** Consecutive skipped steps, per loss. */
  skipped: z.strictObject({ critic: z.int(), policy: z.int() }),
  /** The transitions of this update and the next prepared ones, so that resumed ones use them. */
  drawn: z.array(replaySample).default([]),
  /** Their completions; empty until they have been generated. */
  prepared: preparedUpdates.default([]),
  /** Set between the critic step and the policy step of an update. */
  pending: z
    .strictObject({
      texts: z.array(
        z.strictObject({
          prompt: z.array(z.int()).readonly(),
          response: z.array(z.int()).readonly(),
          weight: z.number(),
        }),
      ),
      metrics: z.record(z.string(), savedNumber),
      /** Written with L2 after the policy step. Absent in checkpoints of earlier versions. */
      records: z.custom<PendingRecords>().optional(),
    })
    .optional(),
  /** Episodes and turns of the probes, and the evaluation at which they were explained last. */
  probes: z.array(z.strictObject({ trajectory: z.int(), turn: z.int() })).optional(),
  probed: z.int().optional(),
});

type State = z.infer<typeof stateSchema>;
/** What the critic step of an update leaves to its policy step: the texts of L2. */
type Pending = NonNullable<State["pending"]>;

/** State shared by the functions below. */
interface Training<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  replay: ReplayBuffer;
  /** The transitions of `state.probes`. */
  probes: Transition[];
  state: State;
  config: NlacConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Returns after `iterations`, or when the run's signal fires: the state
 * after the last complete collection or step is then checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, or one that needs requests which the
 *   model cannot read; ERR_NOT_FINITE after `maxSkippedSteps` skipped steps.
 */
export async function trainNlac<Task>(options: NlacOptions<Task>): Promise<TrainingResult> {
  const config = configOf(nlacConfig, options);
  const { model, environment } = options;
  requireWords(model, config);
  requireForm(environment, config);
  requireFuture(environment, config);
  const run = options.run ?? memoryRun();
  const tasks =
    config.episodesPerIteration > 0 || config.rehearsal > 0 ? await requireTasks(environment, "train") : [];
  const replay = new ReplayBuffer({
    capacity: config.replayCapacity,
    priorityExponent: config.priorityExponent,
    importanceExponent: config.importanceExponent,
    seed: config.seed,
  });
  const saved = await run.restore();
  const state = saved === undefined ? beginning() : parseState(stateSchema, saved.state);
  const training: Training<Task> = { model, environment, tasks, replay, probes: [], state, config, run };
  const checkpoint = (force: boolean) =>
    run.checkpoint({ state: { ...state, prepared: plainUpdates(state.prepared) }, model, replay }, force);

  const showOverall = () =>
    run.progress.overall(
      shareOver(state, config, state.updatesDone / Math.max(1, config.updatesPerIteration)),
    );
  let isRestored = saved === undefined;

  try {
    showOverall();
    if (saved !== undefined) {
      await replay.restore(saved.replay, tapProbes(training, transitionsOfAll(saved.trajectories)));
      retireEarlier(training); // a buffer that was made anew, after a deletion, has all of them
      isRestored = true;
    } else {
      for (const trajectory of readSampled(config.recorded, model)) store(training, trajectory);
      state.recorded = state.episodes;
      await model.updateTarget(1); // line 1: θ̄ starts as θ, which a warm-up may have changed
      await checkpoint(true); // so that a stop during the first rollouts does not lose a warm-up
    }
    while (!isOver(state, config)) {
      await evaluatePeriodically(training);
      // Lines 3-6: act under θ and store the transitions.
      if (!state.collected) {
        await collect(training);
        await checkpoint(false);
      }
      await explainProbes(training);
      // Lines 7-11: each update takes a step on L1 and one on L2, and moves θ̄.
      run.progress.phase("update", config.updatesPerIteration);
      run.progress.advance(state.updatesDone);
      showOverall();
      while (state.updatesDone < config.updatesPerIteration && replay.drawable) {
        const metrics = await update(training);
        await model.dropCaches(); // without a step in between, the KV caches would still be warm
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ L1: metrics["loss/l1"] ?? Number.NaN, L2: metrics["loss/l2"] ?? Number.NaN });
        run.progress.advance(state.updatesDone, metrics["tokens/generated"]);
        showOverall();
        await checkpoint(false);
      }
      endIteration(state);
    }
    await evaluatePeriodically(training);
    await explainProbes(training);
    await checkpoint(true);
    return result(state, false);
  } catch (error) {
    if (!isRestored) throw error; // a checkpoint would lack what was not restored
    await rollBack(model, run, error, () => checkpoint(true));
    return result(state, true);
  } finally {
    replay.dispose();
  }
}

/** Throws ERR_CONFIG that names every invalid field. */
export function parseConfig(input: NlacConfigInput | undefined): NlacConfig {
  return checkConfig(nlacConfig, input);
}

function beginning(): State {
  return {
    ...newCounters(),
    recorded: 0,
    latest: [],
    skipped: { critic: 0, policy: 0 },
    drawn: [],
    prepared: [],
  };
}

// -------------------------------------------------------------------------------------- collecting

/** Lines 3 to 6. Stores nothing until all episodes have ended. */
async function collect<Task>(training: Training<Task>): Promise<void> {
  const { model, state, config, run } = training;
  const { episodesPerIteration, diagnostics } = config;
  const started = performance.now();
  const trajectories = await playEpisodes(training, state.episodes);
  const played = performance.now();
  const metrics: Record<string, number> = {
    ...rolloutMetrics(trajectories),
    "time/play": (played - started) / 1000,
  };
  if (diagnostics.every > 0 && state.iteration % diagnostics.every === 0) {
    const playing = { concurrency: episodesPerIteration, constrainActions: config.constrainActions };
    const figures = await diagnose({ ...training, trajectories, playing, number: state.iteration });
    await model.dropCaches(); // a resumed run starts with empty caches too
    Object.assign(metrics, figures, { "time/diagnose": (performance.now() - played) / 1000 });
  }
  const stored = trajectories.map((trajectory) => store(training, trajectory));
  if (state.probes === undefined && config.evaluation.every > 0) {
    training.probes.push(...chooseProbes(stored.flatMap(transitionsOf), run.probes));
    state.probes = training.probes.map(({ trajectory, turn }) => ({ trajectory, turn }));
  }
  state.latest.push(trajectories.length);
  retireEarlier(training);
  state.environmentSteps += stepsOf(trajectories);
  state.collected = true;
  run.metrics(state.updates, {
    ...metrics,
    episodes: state.episodes - state.recorded,
    environment_steps: state.environmentSteps,
  });
}

/** With `replayIterations`: excludes the episodes of earlier iterations from draws. */
function retireEarlier<Task>({ replay, state, config }: Training<Task>): void {
  const { replayIterations, episodesPerIteration } = config;
  state.latest = replayIterations === "all" ? [] : state.latest.slice(-replayIterations);
  if (replayIterations === "all") return;
  const unknown = (replayIterations - state.latest.length) * episodesPerIteration;
  const drawable = state.latest.reduce((sum, episodes) => sum + episodes, unknown);
  replay.retire(state.episodes - drawable);
}

/** Assigns the episode its number within the run and stores it. */
function store<Task>({ replay, state, run }: Training<Task>, trajectory: Trajectory): Trajectory {
  const stored = { ...trajectory, id: state.episodes++ };
  run.trajectory(stored);
  replay.add(ownTransitionsOf(stored));
  return stored;
}

// ---------------------------------------------------------------------------------------- updating

/**
 * Lines 8 to 10 for one batch: a step on L1, then a step on L2 that also moves θ̄. A stop between the
 * steps writes `pending` to the checkpoint. Random choices depend on (seed, update number) only.
 */
async function update<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { state } = training;
  state.pending ??= await updateCritic(training);
  const metrics = await updatePolicy(training, state.pending);
  delete state.pending;
  state.drawn.shift();
  state.prepared.shift();
  return metrics;
}

/** Line 8, with the completions of both steps, which are generated under the same θ and θ̄. */
async function updateCritic<Task>(training: Training<Task>): Promise<Pending> {
  const { model, replay, state, config, run } = training;
  await prepare(training);
  const drawn = state.drawn[0]!;
  const { targets, refinements: refined, metrics: generated } = state.prepared[0]!;
  const transitions = replay.get(drawn.indices);
  const started = performance.now();

  // L1, averaged over the tokens of a target and then over the batch. Its gradient is added up
  // here.
  const taught = targets.flatMap(({ text }, i) => (text === undefined ? [] : [{ text, i }]));
  // With weight 0, L1 is measured only: texts of weight 0 would have losses, and so priorities, of 0.
  const withGradient = config.criticWeight > 0;
  const targetTexts = taught.map(({ text, i }) => {
    const weight = (config.criticWeight * drawn.weights[i]!) / (text.response.length * taught.length);
    return withGradient ? { ...text, weight } : text;
  });
  const options = { ...criticOptions(run, config, state.updates), withGradient };
  const { losses, details } = await criticLosses(model, targetTexts, run.signal, options);
  /** Expands a list over the taught transitions to all of the batch. */
  const placed = <T>(list: readonly T[]) =>
    targets.map((_, i) => list[taught.findIndex((one) => one.i === i)]);

  const recordingStarted = performance.now();
  const completions = { update: state.updates, transitions, targets, refinements: refined };
  const scored = { ...completions, losses: placed(losses), details: placed(details) };
  const records = await prepareRecords(training, scored, drawn, state.episodes);
  const recording = performance.now() - recordingStarted;

  const seed = derivedSeed(config.seed, streams.rehearsal, state.updates);
  // Monte-Carlo targets answer the request of targets without a future.
  const shown = { observedTargets: config.bootstrap === "none" || config.bootstrap === "monte-carlo" };
  const rehearsed = await rehearse({ ...training, count: config.rehearsal, seed, signal: run.signal, shown });

  const refining = refinementMetrics(refined);
  const l1Tokens = losses.reduce((sum, loss) => sum + loss.length, 0);
  const metrics: Record<string, number> = {
    ...generated,
    ...replay.metrics(drawn, state.episodes),
    ...refining,
    ...targetMetrics(targets),
    "loss/l1": mean(losses.map(mean)),
    "loss/rehearsal": rehearsed.nll,
    "tokens/l1": l1Tokens,
    "tokens/rehearsal": rehearsed.tokens,
    "tokens/gradient": (withGradient ? l1Tokens : 0) + refining["tokens/l2"]! + rehearsed.tokens,
  };
  // θ ← θ - λ1 ∇L1.
  throwIfAborted(run.signal);
  if ((withGradient && targetTexts.length > 0) || config.rehearsal > 0)
    await step(training, "critic", metrics);
  metrics["time/record"] = recording / 1000;
  metrics["time/critic"] = (performance.now() - started - recording) / 1000;
  metrics["replay/untaught"] = setPriorities(replay, drawn.indices, placed(losses.map(mean)));

  // L2, averaged over the tokens of a refinement and then over the batch.
  const kept = refined.flatMap(({ text }) => (text === undefined ? [] : [text]));
  const texts = kept.map((text) => ({ ...text, weight: 1 / (text.response.length * kept.length) }));
  return { texts, metrics, records };
}

/** Lines 9 and 10, on the refinements that `updateCritic` returned. */
async function updatePolicy<Task>(
  training: Training<Task>,
  { texts, metrics, records }: Pending,
): Promise<Record<string, number>> {
  const { model, state, config, run } = training;
  const started = performance.now();
  // θ ← θ - λ2 ∇L2, and θ̄ ← τ θ + (1 - τ) θ̄ in the same pass, or alone if no step is taken.
  const targetRate = (state.updates + 1) % config.targetEvery === 0 ? config.targetRate : undefined;
  let losses: Float32Array[] = [];
  if (texts.length > 0) {
    losses = await inGroups(texts, run.signal, (group) => model.tokenNll(group));
    metrics["loss/l2"] = mean(losses.map(mean));
    await step(training, "policy", metrics, targetRate);
  } else if (targetRate !== undefined) {
    await model.updateTarget(targetRate);
  }
  // After the step a stop no longer ends the update, which would be repeated: this row lacks a figure.
  metrics["target/distance"] = await model.targetDistance().catch((error) => {
    if (isAborted(error)) return Number.NaN;
    throw error;
  });
  metrics["time/policy"] = (performance.now() - started) / 1000;
  writeRecords(training, records, texts, losses);
  return metrics;
}

/**
 * Draws transitions, and generates targets y under θ̄ and refinements a^r under θ for them, unless an
 * earlier update did so (`updatesAhead`).
 */
async function prepare<Task>(training: Training<Task>): Promise<void> {
  const { replay, state, config } = training;
  const ahead = Math.min(config.updatesAhead, config.updatesPerIteration - state.updatesDone);
  if (state.drawn.length === 0)
    state.drawn = Array.from({ length: ahead }, () => replay.sample(config.batchSize));
  if (state.prepared.length === 0)
    state.prepared = await prepareUpdates(training, state.drawn, state.updates);
}

/**
 * L1 becomes the priority of its transition. A transition without a target gets the least priority:
 * at the initial, largest one it would be drawn again and again although the critic learns nothing
 * from it. Its refinement is still trained on. Returns the number of these transitions.
 */
function setPriorities(replay: ReplayBuffer, indices: readonly number[], l1: (number | undefined)[]): number {
  const taught = new Set(indices.filter((_, i) => l1[i] !== undefined));
  const untaught = new Set(indices.filter((index) => !taught.has(index)));
  for (const index of untaught) replay.setPriority(index, 0);
  for (const [i, loss] of l1.entries()) {
    if (loss !== undefined && Number.isFinite(loss)) replay.setPriority(indices[i]!, Math.max(loss, 0));
  }
  return untaught.size;
}

/** One optimizer step on the gradients of one of the two losses. */
async function step<Task>(
  { model, config, state }: Training<Task>,
  loss: "critic" | "policy",
  metrics: Record<string, number>,
  targetRate?: number,
): Promise<void> {
  const learningRate = loss === "critic" ? config.criticLearningRate : config.policyLearningRate;
  const moments = config.optimizerState === "separate" ? loss : "";
  // Counted per loss, so that good steps of one loss do not hide failures of the other.
  const counters = { skippedInARow: state.skipped[loss] };
  const place = stepPlace(state, config, config.updatesPerIteration);
  const options = { moments, targetRate };
  const taken = await scheduledStep(model, { ...config, learningRate }, place, counters, options);
  state.skipped[loss] = counters.skippedInARow;
  for (const [name, value] of Object.entries(taken)) metrics[`${name}/${loss}`] = value;
}

/** `episodes` counts the episodes played by this run, without recorded ones. */
function result(state: State, stopped: boolean): TrainingResult {
  return trainingResult({ ...state, episodes: state.episodes - state.recorded }, stopped);
}
