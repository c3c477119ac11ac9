/**
 * Natural Language Actor-Critic (Algorithm 1 of the paper), readable top to bottom.
 *
 *   L1(s, a, r, s') = KL( B_L M_θ̄(· | s, a) ‖ M_θ(· | s, a) )       (eq. 5)  the critic
 *   L2(s)           = -log π_θ(a^r | s)                              (eq. 6)  the policy
 *   θ̄ ← τ θ + (1 - τ) θ̄                                             (line 10)
 *
 * One model plays every role. For a sampled transition, two conversations grow by appending only:
 *
 *   under θ̄:  (s, a) + what came of it → future d' → target y          the teacher's context of y
 *   under θ:  s → attempt ã → critique Q → refinement a^r               a^r is scored after s alone
 *
 * The student reads (s, a) and the critic's request, and must give y the probability that the teacher, who
 * saw s', gives it.
 *
 * Departures from the paper, all of them choices where it is silent or a batch needs one:
 * - The texts of a batch are generated together, before the batch's two steps: a^r is one step older than it
 *   would be if every sample were finished before the next one began.
 * - The losses are averaged over the tokens of a text and then over the batch, so that a long text weighs as
 *   much as a short one.
 * - With k > 1 the futures alone are trained by L1; the evaluator only reads them (the paper: evaluation
 *   needs no training of its own).
 * - A sample whose prompt or target does not fit into the model's context is left out and counted.
 */

import { z } from "zod";
import type { Environment } from "../environments/contract.ts";
import { NlacError, throwIfAborted } from "../errors.ts";
import type { LanguageModel, ScoredText } from "../model.ts";
import { derivedSeed, streams } from "../random.ts";
import { ReplayBuffer } from "../replay/buffer.ts";
import { collectTrajectories, taskIndex } from "../rollout/collect.ts";
import { rolloutMetrics } from "../rollout/evaluate.ts";
import { inGroups, mean, supportOf } from "../rollout/losses.ts";
import { refine } from "../rollout/refine.ts";
import { rehearse } from "../rollout/rehearsal.ts";
import { Roles } from "../rollout/roles.ts";
import { writeTargets } from "../rollout/targets.ts";
import { type Trajectory, transitionsOf, transitionsOfAll } from "../rollout/trajectory.ts";
import { sampleRecord } from "../run/samples.ts";
import { memoryRun, type TrainingRun } from "../run/training-run.ts";

const count = z.int().min(1);
const temperature = z.number().min(0);
const decay = z.number().min(0).lt(1);

/** Every field: meaning, unit, default; the paper's value where it gives one. */
export const nlacConfig = z.strictObject({
  /** Rounds of collecting and updating; 0 ends after the warm-up. Paper: 30. */
  iterations: z.int().min(0).default(30),
  /** Episodes collected a round. Paper: not given. */
  episodesPerIteration: count.default(64),
  /** Updates a round, each a step on L1 and a step on L2. Paper: 30,720 in all, 1,024 a round. */
  updatesPerIteration: z.int().min(0).default(1024),
  /** Transitions an update. Paper: 1024. */
  batchSize: count.default(1024),
  /** k: futures that a critique rests on; 1 is the critic in one generation. Paper: 1. */
  futures: count.default(1),
  /** m: rounds of critique and refinement. Paper: 1. */
  refinements: count.default(1),
  /** ã of the refinement: written afresh by the policy (eq. 6), or the stored action. Paper: fresh. */
  attempt: z.enum(["fresh", "stored"]).default("fresh"),
  /** τ: the share of θ that θ̄ takes over after each update. Paper: 0.005. */
  targetRate: z.number().min(0).max(1).default(0.005),
  /** Transitions kept. Paper: not given. */
  replayCapacity: count.max(2 ** 27).default(100_000),
  /** α: P(i) ∝ L1(i)^α; 0 samples uniformly. Paper: 0.1. */
  priorityExponent: z.number().min(0).default(0.1),
  /** β: importance weights (n P(i))^-β; 0 is off. Paper: not mentioned. */
  importanceExponent: z.number().min(0).max(1).default(0),
  /** λ1: learning rate of the critic's steps. Paper: 5e-6. */
  criticLearningRate: z.number().min(0).default(5e-6),
  /** λ2: learning rate of the policy's steps. Paper: 5e-6. */
  policyLearningRate: z.number().min(0).default(5e-6),
  /** AdamW's moments: one set for both losses, or one for each. Paper: not given. */
  optimizerState: z.enum(["shared", "separate"]).default("shared"),
  /** How AdamW's moments decay. Paper: not given. */
  betas: z.tuple([decay, decay]).default([0.9, 0.999]),
  /** Decoupled weight decay of AdamW. Paper: not given. */
  weightDecay: z.number().min(0).default(0),
  /** Global gradient norm above which a step is scaled down; 0 is off. Paper: not given. */
  maxGradNorm: z.number().min(0).default(1),
  /** Where the KL is taken: all tokens, the teacher's best with a tail bucket, or the sampled one. Paper: all. */
  support: z.union([z.enum(["full", "sampled"]), z.strictObject({ topK: count })]).default("full"),
  /** Train on unparseable targets too (the KL is defined for any text), or leave them out. Paper: not given. */
  targets: z.enum(["all", "parsed"]).default("all"),
  /** Which refinements L2 trains on: all that can be read, or those whose last critique said Yes. Paper: all. */
  refinementsKept: z.enum(["all", "approved"]).default("all"),
  /**
   * Demonstrated targets and refinements, made up afresh, whose likelihood joins the loss of every critic step: they
   * keep a small model from forgetting these roles. 0 is off. Paper: none.
   */
  rehearsal: z.int().min(0).default(0),
  /** The model thinks between <think> tags before it answers (appendix A). Default false. */
  reasoning: z.boolean().default(false),
  /** Softmax temperature at which actions are written. Paper: not given. */
  actionTemperature: temperature.default(1),
  /** The same for futures, targets, critiques. Paper: not given. */
  criticTemperature: temperature.default(1),
  /** The same for refinements. Paper: not given. */
  refinerTemperature: temperature.default(1),
  /** Longest prompt, tokens. Paper: 8192. */
  maxPromptTokens: count.default(8192),
  /** Longest action, tokens. Paper: 24,576 for any response. */
  maxActionTokens: count.default(24_576),
  /** Longest future, target or critique, tokens. Paper: 24,576. */
  maxCriticTokens: count.default(24_576),
  /** Steps in a row that may be skipped for a loss or gradient that is not finite before the run stops. */
  maxSkippedSteps: count.default(10),
  /** Seed of every random choice. */
  seed: z.int().min(0).default(0),
});

export type NlacConfig = z.infer<typeof nlacConfig>;
export type NlacConfigInput = z.input<typeof nlacConfig>;

export interface NlacOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  config?: NlacConfigInput;
  /** Where metrics, texts and checkpoints go. Default: memory. */
  run?: TrainingRun;
}

export interface NlacResult {
  updates: number;
  episodes: number;
  environmentSteps: number;
  /** True when the run was told to stop before its end; a checkpoint was saved. */
  stopped: boolean;
}

/** What a checkpoint says beside weights and replay. */
interface State {
  iteration: number;
  collected: boolean;
  updatesDone: number; // of this iteration
  updates: number; // of the run
  episodes: number;
  environmentSteps: number;
  skippedInARow: number;
  /** The transitions drawn for the update in progress: drawn once, also when it is interrupted and done again. */
  drawn?: { indices: number[]; weights: number[] };
  /** An update whose critic step was taken and whose policy step was not. */
  pending?: { texts: ScoredText[]; metrics: Record<string, number> };
}

/** What the parts of a training work on. */
interface Training<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  tasks: readonly Task[];
  replay: ReplayBuffer;
  state: State;
  config: NlacConfig;
  run: TrainingRun;
}

/**
 * Trains `model` in place. Ends after `iterations`, or when the run's signal fires: then the state at the last
 * boundary is checkpointed and `stopped` is true.
 * @throws NlacError ERR_CONFIG for a bad configuration, ERR_NOT_FINITE after `maxSkippedSteps` skipped steps.
 */
export async function trainNlac<Task>(options: NlacOptions<Task>): Promise<NlacResult> {
  const config = parseConfig(options.config);
  const { model, environment } = options;
  const run = options.run ?? memoryRun();
  const tasks = await environment.tasks("train");
  if (tasks.length === 0) throw new NlacError("ERR_CONFIG", `${environment.name} has no training tasks.`);
  const replay = new ReplayBuffer({
    capacity: config.replayCapacity,
    alpha: config.priorityExponent,
    beta: config.importanceExponent,
    seed: config.seed,
  });
  const state = await restore(run, replay);
  const training = { model, environment, tasks, replay, state, config, run };
  const checkpoint = (force: boolean) =>
    run.checkpoint({ state: state as unknown as Record<string, unknown>, model, replay }, force);

  const showOverall = () =>
    run.progress.overall(
      (state.iteration + state.updatesDone / Math.max(1, config.updatesPerIteration)) / config.iterations,
    );

  try {
    showOverall();
    // What came before training, a warm-up say, is not lost to a stop during the first episodes.
    if (state.updates === 0 && !state.collected) await checkpoint(true);
    while (state.iteration < config.iterations) {
      // Lines 3-6: act under θ and store what happened.
      if (!state.collected) {
        const trajectories = await collect(training);
        const faults = trajectories.filter(({ fault }) => fault !== undefined).length;
        if (faults > 0) run.progress.show({ faults });
        for (const trajectory of trajectories) {
          run.trajectory(trajectory);
          replay.add(transitionsOf(trajectory));
        }
        state.episodes += trajectories.length;
        state.environmentSteps += trajectories.reduce((sum, { turns }) => sum + turns.length, 0);
        state.collected = true;
        await model.dropCaches(); // a resumed run has none here
        run.metrics(state.updates, {
          ...rolloutMetrics(trajectories),
          episodes: state.episodes,
          environment_steps: state.environmentSteps,
        });
        await checkpoint(false);
      }
      // Lines 7-11: two steps and a move of θ̄ an update.
      run.progress.phase("update", config.updatesPerIteration);
      run.progress.advance(state.updatesDone);
      while (state.updatesDone < config.updatesPerIteration && replay.size > 0) {
        const metrics = await update(training);
        await model.dropCaches(); // where no step was taken, they would still be warm
        state.updates++;
        state.updatesDone++;
        run.metrics(state.updates, metrics);
        run.progress.show({ L1: metrics["loss/l1"] ?? Number.NaN, L2: metrics["loss/l2"] ?? Number.NaN });
        run.progress.advance(state.updatesDone, metrics["tokens/generated"]);
        showOverall();
        await checkpoint(false);
      }
      state.iteration++;
      state.collected = false;
      state.updatesDone = 0;
    }
    await checkpoint(true);
    return result(state, false);
  } catch (error) {
    if (!(error instanceof NlacError && error.code === "ERR_ABORTED" && run.signal.aborted)) throw error;
    await model.discardGradients();
    await model.dropCaches();
    await checkpoint(true);
    return result(state, true);
  } finally {
    replay.dispose();
  }
}

export function parseConfig(input: NlacConfigInput | undefined): NlacConfig {
  const parsed = nlacConfig.safeParse(input ?? {});
  if (!parsed.success) throw new NlacError("ERR_CONFIG", z.prettifyError(parsed.error));
  return parsed.data;
}

async function restore(run: TrainingRun, replay: ReplayBuffer): Promise<State> {
  const saved = await run.restore();
  if (saved === undefined) {
    return {
      iteration: 0,
      collected: false,
      updatesDone: 0,
      updates: 0,
      episodes: 0,
      environmentSteps: 0,
      skippedInARow: 0,
    };
  }
  replay.restore(saved.replay, transitionsOfAll(saved.trajectories));
  return saved.state as unknown as State;
}

// ---------------------------------------------------------------------------------------- collecting

async function collect<Task>(training: Training<Task>): Promise<Trajectory[]> {
  const { model, environment, tasks, state, config, run } = training;
  run.progress.phase("play", config.episodesPerIteration);
  const episodes = Array.from({ length: config.episodesPerIteration }, (_, i) => {
    const id = state.episodes + i;
    return { id, task: tasks[taskIndex(id, tasks.length, config.seed)]! };
  });
  return collectTrajectories({
    model,
    environment,
    episodes,
    seed: config.seed,
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens,
    temperature: config.actionTemperature,
    signal: run.signal,
    onTurn: (finished, tokens) => run.progress.advance(finished, tokens),
  });
}

// ------------------------------------------------------------------------------------------ updating

/** Lines 8 to 10 for one batch. What is random in it depends on (seed, update number) alone. */
async function update<Task>(training: Training<Task>): Promise<Record<string, number>> {
  const { model, state, config, run } = training;
  state.pending ??= await critic(training);
  const { texts, metrics } = state.pending;

  // Line 9: θ ← θ - λ2 ∇L2.
  const started = performance.now();
  if (texts.length > 0) {
    const losses = await inGroups(texts, run.signal, (group) => model.tokenNll(group));
    metrics["loss/l2"] = mean(losses.map(mean));
    await step(training, "policy", metrics);
  }
  // Line 10.
  await model.updateTarget(config.targetRate);
  metrics["target/distance"] = await model.targetDistance();
  metrics["time/policy"] = (performance.now() - started) / 1000;
  delete state.drawn;
  delete state.pending;
  return metrics;
}

/** Line 8, and the texts that line 9 needs: all of them are written under the same θ and θ̄. */
async function critic<Task>(training: Training<Task>): Promise<NonNullable<State["pending"]>> {
  const { model, environment, replay, state, config, run } = training;
  state.drawn ??= replay.sample(config.batchSize);
  const { indices, weights } = state.drawn;
  const transitions = replay.get(indices);
  const roles = new Roles(model, environment, config, state.updates, run.signal);
  const started = performance.now();
  const targets = await writeTargets(roles, transitions);
  const refined = await refine(roles, transitions);
  const generated = performance.now();

  // θ ← θ - λ1 ∇L1.
  const usable = targets.flatMap((target, i) => (target === undefined ? [] : [{ target, i }]));
  const texts = usable.map(({ target, i }) => ({
    ...target.text,
    weight: weights[i]! / (target.text.response.length * usable.length),
  }));
  const support = supportOf(config);
  const losses = await inGroups(texts, run.signal, (group) => model.tokenKl(group, { support }));
  const l1 = losses.map(mean);
  const seed = derivedSeed(config.seed, streams.rehearsal, state.updates);
  const rehearsed = await rehearse({ ...training, count: config.rehearsal, seed, signal: run.signal });

  const metrics: Record<string, number> = {
    ...roles.metrics(),
    "loss/l1": mean(l1),
    "loss/rehearsal": rehearsed,
    "tokens/l1": losses.reduce((sum, loss) => sum + loss.length, 0),
    "time/generate": (generated - started) / 1000,
    "time/critic": (performance.now() - generated) / 1000,
  };
  throwIfAborted(run.signal);
  if (texts.length > 0 || config.rehearsal > 0) await step(training, "critic", metrics);
  // The priority of a transition becomes its L1.
  for (const [j, { i }] of usable.entries()) {
    if (Number.isFinite(l1[j])) replay.setPriority(indices[i]!, Math.max(l1[j]!, 0));
  }

  const kept = refined.flatMap(({ text }) => (text === undefined ? [] : [text]));
  for (const [i, transition] of transitions.slice(0, run.samplesPerUpdate).entries()) {
    const j = usable.findIndex((entry) => entry.i === i);
    run.sample(sampleRecord(model, state.updates, transition, targets[i], refined[i]!, l1[j]));
  }
  return {
    texts: kept.map((text) => ({ ...text, weight: 1 / (text.response.length * kept.length) })),
    metrics: {
      ...metrics,
      "tokens/l2": kept.reduce((sum, { response }) => sum + response.length, 0),
      "refinements/kept": kept.length,
      "refinements/dropped": refined.length - kept.length,
      "targets/dropped": targets.length - usable.length,
    },
  };
}

/** A step on the gradients of one of the two losses. */
async function step<Task>(
  { model, config, state }: Training<Task>,
  loss: "critic" | "policy",
  metrics: Record<string, number>,
): Promise<void> {
  const { gradNorm, skipped } = await model.step({
    learningRate: loss === "critic" ? config.criticLearningRate : config.policyLearningRate,
    betas: config.betas,
    weightDecay: config.weightDecay,
    maxGradNorm: config.maxGradNorm,
    state: config.optimizerState === "separate" ? loss : "",
  });
  metrics[`grad_norm/${loss}`] = gradNorm;
  metrics[`skipped/${loss}`] = skipped ? 1 : 0;
  state.skippedInARow = skipped ? state.skippedInARow + 1 : 0;
  if (state.skippedInARow >= config.maxSkippedSteps) {
    throw new NlacError(
      "ERR_NOT_FINITE",
      `${state.skippedInARow} steps in a row had a loss or gradient that was not finite; the last checkpoint is intact.`,
    );
  }
}

function result(state: State, stopped: boolean): NlacResult {
  const { updates, episodes, environmentSteps } = state;
  return { updates, episodes, environmentSteps, stopped };
}
