/**
 * HOPE, Hindsight Off-Policy Exploration (Wang and Choudhury, "The road not taken", 2025;
 * algorithms 1 and 2). An iteration has four phases:
 *
 *   play     on-policy episodes τ ~ π                                       (algorithm 1, line 4)
 *   branch   at some turns t of some episodes, a proposer that knows how the episode ended writes
 *            other actions a^H; each is taken in place of a_t and played on by π    (algorithm 2)
 *   reward   Q̂(s, a) = mean return of the episodes through (s, a)                    (equation 3)
 *            L(Q) = -Q̂ log Q(s, a) - (1 - Q̂) log(1 - Q(s, a))                        (equation 1)
 *   actor    two actions per state, ranked by Q; DPO: d = log π/π_ref of the better less that of
 *            the worse, L(π) = -log σ(β d), which maximizes E[Q] - β KL(π ‖ π_ref)   (equation 2)
 *
 * Two models: the actor, and the process reward model Q with a value head. With `actor: "imitate"`
 * the actor learns the proposals themselves and there is no Q (LEAP); without branches it is the
 * paper's PRM+RL.
 *
 * Departures from the paper, on points that it leaves open; docs/algorithms/hope.md has all:
 * - Both models continue from iteration to iteration; the paper may restart them from π_0.
 * - A pair whose two actions are equal, or whose scores differ by less than `minGap`, is left out.
 */

import { NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, permutation, streams, uniform } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { rolloutMetrics } from "../episodes/figures.ts";
import { rewardRounding, succeeded, type Trajectory } from "../episodes/trajectory.ts";
import type { PreferenceModel, RewardModel } from "../model/language-model.ts";
import { type Branch, playBranches } from "../playing/branch.ts";
import { countSteps, unreadableActions } from "../playing/count-steps.ts";
import { HindsightProposer, type Place, type Proposal } from "../roles/hindsight-proposer.ts";
import type { SampleRecord } from "../run/samples.ts";
import {
  endIteration,
  isOver,
  memoryRun,
  parseState,
  rollBack,
  type TrainingResult,
  type TrainingRun,
  trainingResult,
} from "../run/training-run.ts";
import type { ChatService } from "../services/chat-service.ts";
import type { ServiceSource } from "../services/open-service.ts";
import { mean } from "../statistics/mean.ts";
import { branchPlaces } from "../training/branch-places.ts";
import {
  firstBranchId,
  type HopeConfig,
  type HopeConfigInput,
  type HopeState,
  hopeConfig,
  hopeState,
  newHopeState,
  ofIteration,
  requireProposer,
} from "../training/hope-config.ts";
import { inGroups } from "../training/losses.ts";
import { evaluatePeriodically } from "../training/periodic-evaluation.ts";
import { type Pair, pairSamples, preferenceGradient } from "../training/preference-pairs.ts";
import { configOf, requireTasks } from "../training/requirements.ts";
import { type IterationData, iterationData } from "../training/reward-data.ts";
import { chooseReward, heldOutMetrics } from "../training/reward-evaluation.ts";
import { collectEpisodes, stepsOf } from "../training/rounds.ts";
import { scheduledStep, startAgain } from "../training/step.ts";

export { type HopeConfig, type HopeConfigInput, hopeConfig } from "../training/hope-config.ts";

/** Options of `trainHope`. */
export interface HopeOptions<Task> {
  /** The actor, π. */
  model: PreferenceModel;
  /** Q, with the tokenizer of `model`. Not needed with `actor: "imitate"`. */
  rewardModel?: RewardModel;
  environment: Environment<Task>;
  config?: HopeConfigInput;
  /** Where metrics, sample records and checkpoints are written. Default: memory. */
  run?: TrainingRun;
}

/** State shared by the functions below. */
interface Training<Task> {
  model: PreferenceModel;
  rewardModel: RewardModel | undefined;
  environment: Environment<Task>;
  tasks: readonly Task[];
  proposer: HindsightProposer;
  state: HopeState;
  config: HopeConfig & { episodesPerIteration: number };
  run: TrainingRun;
}

/**
 * Trains `model` and `rewardModel` in place. Returns after `iterations`, or when the run's signal
 * fires: the state after the last complete phase or update is then checkpointed and `stopped` is
 * true.
 * @throws NlacError ERR_CONFIG for an invalid configuration, ERR_BUDGET when the proposer's is
 *   spent, ERR_NOT_FINITE after `maxSkippedSteps` skipped steps.
 */
export async function trainHope<Task>(options: HopeOptions<Task>): Promise<TrainingResult> {
  const given = configOf(hopeConfig, options, ["run", "rewardModel"]);
  const { model, environment, rewardModel } = options;
  const run = options.run ?? memoryRun();
  const tasks = await requireTasks(environment, "train");
  if (given.actor === "preference" && rewardModel === undefined)
    throw new NlacError("ERR_CONFIG", 'HOPE needs a reward model, unless actor is "imitate".');
  requireProposer(environment, given);
  const taskCount = given.tasksPerIteration === 0 ? tasks.length : given.tasksPerIteration;
  const config = { ...given, episodesPerIteration: taskCount * given.episodesPerTask };
  const saved = await run.restore();
  const state = saved === undefined ? newHopeState() : parseState(hopeState, saved.state);
  let [episodes, branches] = await ofIteration(saved?.trajectories ?? [], state);
  // Imported here, because OpenAI's client has 154 modules, which every start would load.
  const service =
    typeof given.proposer === "object"
      ? (await import("../services/open-service.ts")).openService(given.proposer as never as ServiceSource)
      : undefined;
  const proposer = openProposer(options, config, service, run, state);
  const training: Training<Task> = { model, rewardModel, environment, tasks, proposer, state, config, run };
  const checkpoint = (force: boolean) =>
    run.checkpoint({ state: { ...state }, model, ...(rewardModel && { rewardModel }) }, force);

  try {
    if (saved === undefined) {
      await model.keepReference();
      // Saves what happened before training, such as a warm-up.
      await checkpoint(true);
    }
    while (!isOver(state, config)) {
      await chooseActor(training);
      if (!state.collected) {
        episodes = await play(training);
        await checkpoint(false);
      }
      if (!state.branched) {
        branches = await branch(training, episodes);
        await checkpoint(false);
      }
      const data = config.actor === "imitate" ? undefined : iterationData(training, episodes, branches);
      if (data !== undefined) await trainReward(training, data, () => checkpoint(false));
      if (state.updatesDone === 0 && config.restart) await startAgain(model);
      else if (state.updatesDone === 0 && config.reference === "previous") await model.keepReference();
      await trainActor(training, data, episodes, () => checkpoint(false));
      endIteration(state);
      Object.assign(state, { branched: false, rewardUpdatesDone: 0, summaries: [] });
      proposer.forget();
      for (const key of ["proposals", "rewardMeasuredAt", "rewardBest"] as const) delete state[key];
      state.episodesBefore = state.episodes;
      state.branchesBefore = state.branches;
      await checkpoint(true);
    }
    await chooseActor(training);
    await checkpoint(true);
    return trainingResult(state, false);
  } catch (error) {
    await rollBack(model, run, error, async () => {
      await rewardModel?.discardGradients();
      await checkpoint(true);
    });
    return trainingResult(state, true);
  } finally {
    // A service that the caller passed is the caller's to close.
    if (service !== (given.proposer as unknown)) await service?.close?.();
  }
}

function openProposer<Task>(
  { model, environment }: HopeOptions<Task>,
  config: HopeConfig,
  service: ChatService | undefined,
  run: TrainingRun,
  { summaries }: HopeState,
): HindsightProposer {
  const { seed, summary, hindsight, maxSummaryTokens, maxProposalTokens, maxActionTokens, maxTokens } =
    config;
  return new HindsightProposer(
    {
      ...{ model, environment, signal: run.signal, seed, summary, hindsight },
      ...{ maxSummaryTokens, maxProposalTokens, maxActionTokens, maxTokens },
      writer: service ?? (config.proposer as "policy" | "environment" | "different"),
      temperature: config.proposerTemperature,
    },
    summaries,
  );
}

/** Line 12: with `keepBest`, goes back if the iteration has made the policy worse. */
async function chooseActor<Task>(training: Training<Task>): Promise<void> {
  const { model, state, config } = training;
  const success = await evaluatePeriodically(training);
  if (success === undefined || !config.keepBest || state.iteration === 0) return;
  if (Number.isNaN(success)) return; // every episode failed
  if (success < (state.best ?? 0)) await startAgain(model);
  else state.best = success;
}

// --------------------------------------------------------------------------- playing and branching

/** Algorithm 1, line 4. */
async function play<Task>(training: Training<Task>): Promise<Trajectory[]> {
  const { state, config, run } = training;
  const started = performance.now();
  const episodes = await collectEpisodes(training, state.episodes, config.episodesPerTask);
  state.episodes += episodes.length;
  state.environmentSteps += stepsOf(episodes);
  state.collected = true;
  run.metrics(state.updates, {
    ...rolloutMetrics(episodes),
    episodes: state.episodes,
    environment_steps: state.environmentSteps,
    "time/play": (performance.now() - started) / 1000,
  });
  return episodes;
}

/** Algorithm 2: proposes other actions and, unless they are only imitated, plays on from each. */
async function branch<Task>(
  training: Training<Task>,
  episodes: readonly Trajectory[],
): Promise<Trajectory[]> {
  const { model, environment, tasks, proposer, state, config, run } = training;
  const started = performance.now();
  run.progress.phase("branch", 1);
  const places = branchPlaces(episodes, config);
  const proposals = (await proposer.propose(places, config.proposalsPerTurn)).flat();
  let [steps, tokens] = [0, 0];
  const played = config.actor === "imitate" ? [] : await playOn();
  await model.dropCaches(); // a resumed run starts with empty caches too
  for (const trajectory of played) run.trajectory(trajectory);
  if (config.actor === "imitate")
    state.proposals = proposals.map(({ trajectory: { id: trajectory }, turn, response }) => ({
      ...{ trajectory, turn, response },
    }));
  const recorded = new Map(episodes.map((episode) => [episode.id, episode]));
  const gains = played.map(({ reward, branch }) => reward - recorded.get(branch!.trajectory)!.reward);
  state.branches += proposals.length;
  state.environmentSteps += steps;
  state.summaries = proposer.summaries();
  state.branched = true;
  const metrics = proposer.takeMetrics();
  run.metrics(state.updates, {
    ...metrics,
    "tokens/generated": metrics["tokens/generated"]! + tokens,
    "branches/places": places.length,
    "branches/played": played.length,
    "branches/success": mean(played.map((trajectory) => Number(succeeded(trajectory)))),
    "branches/gain": mean(gains),
    "branches/better": mean(gains.map((gain) => (gain > rewardRounding ? 1 : 0))),
    environment_steps: state.environmentSteps,
    "time/branch": (performance.now() - started) / 1000,
  });
  return played;

  async function playOn(): Promise<Trajectory[]> {
    const byId = new Map(tasks.map((task) => [environment.taskId(task), task]));
    const chosen = proposals.map(
      ({ trajectory, turn, response, action }): Branch<Task> => ({
        ...{ trajectory, turn, response, action, task: byId.get(trajectory.task)! },
      }),
    );
    const all = await playBranches(chosen, {
      ...{ model, seed: config.seed, signal: run.signal },
      // Repeated actions count as steps, and so do actions of branches that could not be played.
      environment: countSteps(environment, () => steps++),
      onTurn: (_, generated) => {
        tokens += generated;
      },
      firstId: firstBranchId + state.branches,
      concurrency: Math.max(1, config.episodesPerIteration),
      temperature: config.actionTemperature,
      maxActionTokens: config.maxActionTokens,
      maxPromptTokens: config.maxPromptTokens,
    });
    const whole = all.filter((trajectory) => trajectory !== undefined);
    steps += unreadableActions(whole);
    return whole;
  }
}

// ------------------------------------------------------------------------------------ reward model

/** Line 8, equation 1. */
async function trainReward<Task>(
  training: Training<Task>,
  { points, heldOut, tooLong, truncated }: IterationData,
  checkpoint: () => Promise<void>,
): Promise<void> {
  const { state, config, run } = training;
  const rewardModel = training.rewardModel!;
  const perEpoch = Math.ceil(points.length / config.rewardBatchSize);
  const total = config.rewardEpochs * perEpoch;
  run.progress.phase("reward", total);
  const figures = {
    "data/points": points.length,
    "data/branched": mean(points.map(({ branched }) => Number(branched))),
    "data/high": mean(points.map(({ label }) => Number(label >= 0.5))),
    "data/label": mean(points.map(({ label }) => label)),
    "data/held_out": heldOut.length,
    "data/too_long": tooLong,
    "data/truncated": truncated,
  };
  while (state.rewardUpdatesDone < total) {
    await chooseReward({ ...training, rewardModel }, total);
    const started = performance.now();
    const epoch = Math.floor(state.rewardUpdatesDone / perEpoch);
    const seed = derivedSeed(config.seed, streams.minibatch, state.iteration * config.rewardEpochs + epoch);
    const start = (state.rewardUpdatesDone % perEpoch) * config.rewardBatchSize;
    const drawn = permutation(points.length, seed, streams.minibatch).slice(
      start,
      start + config.rewardBatchSize,
    );
    const texts = drawn.map((i) => {
      const { state: before, action: response, label } = points[i]!;
      return { prompt: before.prompt(), response, label, weight: 1 / drawn.length };
    });
    const losses = await inGroups(texts, run.signal, async (group) => [
      ...(await rewardModel.rewardLoss(group)),
    ]);
    throwIfAborted(run.signal);
    const place = { step: state.rewardUpdatesDone, over: state.rewardUpdatesDone / total };
    const optimizer = { ...config, learningRate: config.rewardLearningRate };
    const stepped = await scheduledStep(rewardModel, optimizer, place, state);
    state.rewardUpdatesDone++;
    state.updates++;
    // Once the step has been taken its row is written, even if the run is stopped.
    const measured =
      state.rewardUpdatesDone % perEpoch === 0 && heldOut.length > 0
        ? await heldOutMetrics(rewardModel, heldOut)
        : {};
    run.metrics(state.updates, {
      ...(state.rewardUpdatesDone === 1 && figures),
      ...measured,
      "loss/reward": mean(losses),
      "reward/grad_norm": stepped.grad_norm,
      "reward/learning_rate": stepped.learning_rate,
      skipped: stepped.skipped,
      // One value of each text.
      "tokens/values": drawn.length,
      "tokens/gradient": drawn.length,
      "time/reward": (performance.now() - started) / 1000,
    });
    run.progress.show({ "reward loss": mean(losses) });
    run.progress.advance(state.rewardUpdatesDone);
    await checkpoint();
  }
  await chooseReward({ ...training, rewardModel }, total);
  if (total === 0) run.metrics(state.updates, figures);
}

// ------------------------------------------------------------------------------------------- actor

/** Line 10, equation 2. */
async function trainActor<Task>(
  training: Training<Task>,
  data: IterationData | undefined,
  episodes: readonly Trajectory[],
  checkpoint: () => Promise<void>,
): Promise<void> {
  const { state, config, run, model, proposer } = training;
  const imitated = shuffledProposals(state, config);
  const size = data === undefined ? imitated.length : data.states.length;
  const total = Math.ceil(size / config.batchSize);
  run.progress.phase("actor", total);
  while (state.updatesDone < total) {
    const started = performance.now();
    const start = state.updatesDone * config.batchSize;
    const { metrics, samples } =
      data === undefined
        ? await imitate(training, imitated.slice(start, start + config.batchSize), episodes)
        : await prefer(training, data.states.slice(start, start + config.batchSize));
    throwIfAborted(run.signal);
    const place = { step: state.updatesDone, over: state.updatesDone / total };
    // Without a pair there is no gradient, and AdamW would still move the parameters.
    const stepped = metrics.pairs === 0 ? {} : await scheduledStep(model, config, place, state);
    await model.dropCaches(); // without a step in between, the KV caches would still be warm
    for (const sample of samples) run.sample(sample);
    state.summaries = proposer.summaries();
    state.updates++;
    state.updatesDone++;
    run.metrics(state.updates, {
      ...metrics,
      ...stepped,
      "time/update": (performance.now() - started) / 1000,
    });
    run.progress.show({ loss: metrics["loss/preference"] ?? metrics["loss/nll"] ?? Number.NaN });
    run.progress.advance(state.updatesDone, metrics["tokens/gradient"]);
    await checkpoint();
  }
}

/** The proposals to imitate, in an order of the seed: they were made one task after the other. */
function shuffledProposals(
  { proposals = [], iteration }: HopeState,
  { seed }: HopeConfig,
): NonNullable<HopeState["proposals"]> {
  const order = permutation(
    proposals.length,
    derivedSeed(seed, streams.minibatch, iteration),
    streams.minibatch,
  );
  return order.map((i) => proposals[i]!);
}

/** What is recorded of a gradient after its step. */
interface Gradient {
  metrics: Record<string, number>;
  samples: SampleRecord[];
}

/** Accumulates the gradient of pairs of actions in `places`, ranked by Q. */
async function prefer<Task>(training: Training<Task>, places: readonly Place[]): Promise<Gradient> {
  const { model, proposer, state, config, run } = training;
  const rewardModel = training.rewardModel!;
  const { candidates, candidateTemperature: temperature, proposalShare, minGap, beta } = config;
  const own = derivedSeed(config.seed, streams.attempt, state.updates);
  const longest = Math.min(config.maxTokens, model.maxPositions);
  const prompts = places.map(({ trajectory, turn }) => trajectory.turns[turn]!.state.prompt());
  const sampled = await model.generate(
    prompts.flatMap((tokens, p) =>
      Array.from({ length: candidates }, (_, i) => ({
        ...{ tokens, temperature, seed: derivedSeed(own, streams.attempt, p * candidates + i) },
        maxNewTokens: Math.min(config.maxActionTokens, longest - tokens.length),
      })),
    ),
    { signal: run.signal },
  );
  const responses = sampled.map(({ tokens }) => tokens);
  const generated = responses.reduce((sum, { length }) => sum + length, 0);
  // With probability β the last candidate is a proposal.
  const explored = places.flatMap((_, p) => (uniform(own, streams.proposal, p) < proposalShare ? [p] : []));
  const proposed = await proposer.propose(
    explored.map((p) => places[p]!),
    1,
  );
  for (const [i, p] of explored.entries()) {
    const [proposal]: (Proposal | undefined)[] = proposed[i]!;
    if (proposal !== undefined) responses[(p + 1) * candidates - 1] = proposal.response;
  }
  const texts = responses.map((response, i) => ({ prompt: prompts[Math.floor(i / candidates)]!, response }));
  const scores = await inGroups(texts, run.signal, async (group) => [...(await rewardModel.rewards(group))]);
  const pairs = places.flatMap(({ trajectory, turn }, p): Pair[] => {
    const of = Array.from({ length: candidates }, (_, i) => p * candidates + i);
    const best = of.reduce((a, b) => (scores[b]! > scores[a]! ? b : a));
    const worst = of.reduce((a, b) => (scores[b]! < scores[a]! ? b : a));
    const gap = scores[best]! - scores[worst]!;
    if (gap === 0 || gap < minGap || String(responses[best]) === String(responses[worst])) return [];
    const text = (i: number) => ({ ...texts[i]!, weight: 1 });
    return [{ chosen: text(best), rejected: text(worst), gap, trajectory: trajectory.id, turn }];
  });
  const { results, metrics } =
    pairs.length === 0
      ? { results: [], metrics: {} }
      : await preferenceGradient(model, pairs, { ...config, labelSmoothing: 0 }, run.signal);
  const ofProposals = explored.length === 0 ? {} : proposer.takeMetrics();
  return {
    metrics: {
      ...metrics,
      pairs: pairs.length,
      "pairs/left_out": 1 - pairs.length / places.length,
      "reward/mean": mean(scores),
      "reward/gap": mean(pairs.map(({ gap }) => gap)),
      // As TRL's: a sample estimate of KL(π ‖ π_ref), here over the pairs' actions, nats.
      "objective/kl": mean(results.map((one) => (one.chosenReward + one.rejectedReward) / (2 * beta))),
      ...ofProposals,
      "tokens/generated": generated + (ofProposals["tokens/generated"] ?? 0),
    },
    samples: pairSamples(model, state.updates, pairs.slice(0, run.samplesPerUpdate), results),
  };
}

/** Accumulates the gradient of imitating proposals (LEAP). */
async function imitate<Task>(
  { model, run }: Training<Task>,
  proposals: NonNullable<HopeState["proposals"]>,
  episodes: readonly Trajectory[],
): Promise<Gradient> {
  const byId = new Map(episodes.map((episode) => [episode.id, episode]));
  const texts = proposals.map(({ trajectory, turn, response }) => ({
    prompt: byId.get(trajectory)!.turns[turn]!.state.prompt(),
    response,
    weight: 1 / (response.length * proposals.length),
  }));
  const losses = await inGroups(texts, run.signal, (group) => model.tokenNll(group));
  const tokens = losses.reduce((sum, { length }) => sum + length, 0);
  return {
    metrics: { "loss/nll": mean(losses.map(mean)), "tokens/nll": tokens, "tokens/gradient": tokens },
    samples: [],
  };
}
