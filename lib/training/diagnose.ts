/**
 * Diagnostics of the parts of the method, on episodes that have not been trained on yet. Does the
 * critic predict how an episode ends? Does a bootstrapped future fit what followed? Is a refined
 * action better than the original? Everything is generated anew, so this costs about as much as an
 * update on as many transitions, plus one episode per branch.
 */

import { z } from "zod";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import { type Environment, isOver } from "../contract/environment.ts";
import {
  isFaulty,
  succeeded,
  type Trajectory,
  type Transition,
  transitionsOf,
} from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { playBranches } from "../playing/branch.ts";
import type { CollectOptions } from "../playing/collect.ts";
import { bootstrapFutures } from "../roles/futures.ts";
import { type Refinement, refine } from "../roles/refinements.ts";
import { type RolesConfig, RoleWriter, requireWords } from "../roles/role-writer.ts";
import type { TrainingRun } from "../run/training-run.ts";
import { brier } from "../statistics/forecasts.ts";
import { grouped, meanInterval } from "../statistics/intervals.ts";
import { mean } from "../statistics/mean.ts";

export const diagnosticsConfig = z.strictObject({
  /** Iterations between diagnostics. Default 0: none. */
  every: z.int().min(0).default(0),
  /** Transitions to examine, drawn from the latest episodes. Default 32. */
  transitions: z.int().min(1).default(32),
  /**
   * Episodes continued from each refined action. This needs an environment that repeats its answers
   * to the same actions; an environment behind a service is queried again for all turns up to the
   * action. Default 1; 0 skips this part.
   */
  branches: z.int().min(0).default(1),
});

export interface DiagnoseOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  /** The tasks that the episodes were played on. */
  tasks: readonly Task[];
  /** Episodes just played by the policy and not yet used in an update. */
  trajectories: readonly Trajectory[];
  config: RolesConfig & { diagnostics: z.infer<typeof diagnosticsConfig> };
  /** Settings of the rollouts that the configuration does not contain; branches use them too. */
  playing?: Pick<CollectOptions<Task>, "concurrency" | "constrainActions" | "stepTimeout">;
  /** Determines every random choice, together with the configuration's seed. */
  number: number;
  run: Pick<TrainingRun, "signal" | "progress">;
}

/** A transition, its episode, and the critic's and refiner's output for its action. */
interface Case {
  transition: Transition;
  trajectory: Trajectory;
  refinement: Refinement;
}

/**
 * Returns the metrics that docs/algorithms/nlac.md explains, NaN if there was nothing to measure.
 * @throws NlacError ERR_ABORTED; ERR_CONFIG for a model that cannot read the evaluator's request
 */
export async function diagnose<Task>(options: DiagnoseOptions<Task>): Promise<Record<string, number>> {
  const { model, environment, trajectories, number, run } = options;
  requireWords(model, options.config);
  const { diagnostics } = options.config;
  const seed = derivedSeed(options.config.seed, streams.diagnosis, number);
  // Judges and refines the recorded action, whose result is known, and counts every critique.
  const config: RolesConfig = {
    ...options.config,
    seed,
    attempt: "stored",
    refinements: Math.max(1, options.config.refinements),
    refinementsKept: "all",
  };
  const known = trajectories
    .filter((trajectory) => !isFaulty(trajectory))
    .flatMap((trajectory) => transitionsOf(trajectory).map((transition) => ({ trajectory, transition })));
  const chosen = permutation(known.length, seed, streams.diagnosis)
    .slice(0, diagnostics.transitions)
    .map((i) => known[i]!);
  // Each transition is judged and refined, its future is generated, and its branches are played.
  const steps = chosen.length * (2 + diagnostics.branches);
  run.progress.phase("diagnose", steps);
  const writer = new RoleWriter(model, environment, config, number, run.signal);
  const refinements = await refine(
    writer,
    chosen.map(({ transition }) => transition),
  );
  const cases = chosen.map((one, i) => ({ ...one, refinement: refinements[i]! }));
  run.progress.advance(cases.length);
  const futures = await foresight(cases, writer, environment);
  const before = 2 * cases.length;
  run.progress.advance(before);
  const onTurn = (finished: number, tokens: number) => run.progress.advance(before + finished, tokens);
  const gained = await gain(cases, { ...options, seed }, onTurn);
  run.progress.advance(steps);
  return { ...calibration(cases, environment), ...futures, ...gained };
}

/** Compares the critic, which saw (s, a), with how the episode ended. */
function calibration(cases: readonly Case[], environment: Pick<Environment, "foretold">) {
  const judged = cases.flatMap(({ trajectory, refinement }) => {
    const [judgement] = refinement.judgements;
    return judgement === undefined ? [] : [{ ...judgement, ended: Number(succeeded(trajectory)) }];
  });
  const after = (yes: boolean) => mean(judged.filter((one) => one.yes === yes).map(({ ended }) => ended));
  const forecasts = judged.flatMap(({ futures, ended }) => {
    const forecast = foretold(futures, environment);
    return forecast === undefined ? [] : [{ forecast, ended }];
  });
  const readable = judged.filter(({ yes }) => yes !== undefined);
  return {
    "calibration/yes": mean(readable.map(({ yes }) => Number(yes))),
    "calibration/success": mean(judged.map(({ ended }) => ended)),
    "calibration/success_after_yes": after(true),
    "calibration/success_after_no": after(false),
    "calibration/difference": after(true) - after(false),
    "calibration/foretold": mean(forecasts.map(({ forecast }) => forecast)),
    "calibration/brier": brier(forecasts),
  };
}

/** Mean probability of success over the futures that state one. */
function foretold(
  futures: readonly string[],
  environment: Pick<Environment, "foretold">,
): number | undefined {
  const forecasts = futures.flatMap((future) => environment.foretold?.(future) ?? []);
  return forecasts.length === 0 ? undefined : mean(forecasts);
}

/**
 * Compares the bootstrapped future d', generated at s' under θ̄, with what followed in the recorded
 * episode.
 */
async function foresight(
  cases: readonly Case[],
  writer: RoleWriter,
  environment: Pick<Environment, "foretold" | "agreement">,
) {
  const going = writer.singleStep ? [] : cases.filter(({ transition }) => !isOver(transition));
  const transitions = going.map(({ transition }) => transition);
  const chains = transitions.map(({ state, action }) => state.fork().appendGeneration({ tokens: action }));
  const futures = await bootstrapFutures(writer, chains, transitions);
  const written = going.flatMap(({ transition, trajectory }, i) => {
    const future = futures[i];
    if (future?.text === undefined) return [];
    const next = trajectory.turns[transition.turn + 1]!.observation;
    return [{ future: future.text, next, ended: Number(succeeded(trajectory)) }];
  });
  const forecasts = written.flatMap(({ future, ended }) => {
    const forecast = environment.foretold?.(future);
    return forecast === undefined ? [] : [{ forecast, ended }];
  });
  /**
   * Mean agreement of each future with the observation that followed the transition `offset`
   * further on.
   */
  const agreement = (offset: number) =>
    mean(
      written.flatMap(({ future }, i) => {
        const { next } = written[(i + offset) % written.length]!;
        if (environment.agreement !== undefined) return environment.agreement(future, next) ?? [];
        return overlap(future, next.map(({ content }) => content).join("\n"));
      }),
    );
  return {
    "future/agreement": agreement(0),
    // The agreement of unrelated futures of these episodes.
    "future/agreement_chance": written.length < 2 ? Number.NaN : agreement(1),
    "future/brier": brier(forecasts),
  };
}

/** F1 of the words that two texts share, counted with multiplicity; 0 if either is empty. */
export function overlap(a: string, b: string): number {
  const words = (text: string) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  const [first, second] = [words(a), words(b)];
  const left = new Map<string, number>();
  for (const word of first) left.set(word, (left.get(word) ?? 0) + 1);
  let shared = 0;
  for (const word of second) {
    const count = left.get(word) ?? 0;
    if (count > 0) shared++;
    left.set(word, count - 1);
  }
  return shared === 0 ? 0 : (2 * shared) / (first.length + second.length);
}

/**
 * Compares episodes continued with the refined action with the recorded ones, continued with the
 * original.
 */
async function gain<Task>(
  cases: readonly Case[],
  { model, environment, tasks, config, playing, seed, run }: DiagnoseOptions<Task> & { seed: number },
  onTurn: NonNullable<CollectOptions<Task>["onTurn"]>,
) {
  const { branches: repeats } = config.diagnostics;
  const byId = new Map(tasks.map((task) => [environment.taskId(task), task]));
  const branches = cases.flatMap(({ transition, trajectory, refinement: { text, action } }) => {
    const task = byId.get(trajectory.task);
    if (text === undefined || action === undefined || task === undefined) return [];
    const branch = { task, trajectory, turn: transition.turn, response: text.response, action };
    return Array.from({ length: repeats }, () => branch);
  });
  const episodes = await playBranches(branches, {
    ...playing,
    onTurn,
    model,
    environment,
    seed,
    stream: streams.diagnosis,
    temperature: config.actionTemperature,
    maxActionTokens: config.maxActionTokens,
    maxPromptTokens: config.maxPromptTokens,
    signal: run.signal,
  });
  const reached = branches.flatMap(({ trajectory }, i) => {
    const branch = episodes[i];
    return branch === undefined ? [] : [{ trajectory, refined: Number(succeeded(branch)) }];
  });
  // Branches of one episode are correlated, so the interval is clustered by episode.
  const differences = meanInterval(
    grouped(
      reached.map(({ trajectory, refined }) => refined - Number(succeeded(trajectory))),
      reached.map(({ trajectory }) => trajectory),
    ),
  );
  return {
    "gain/original": mean(reached.map(({ trajectory }) => Number(succeeded(trajectory)))),
    "gain/refined": mean(reached.map(({ refined }) => refined)),
    "gain/difference": differences.estimate,
    "gain/difference_low": differences.low,
    "gain/difference_high": differences.high,
    "gain/reached": branches.length === 0 ? Number.NaN : reached.length / branches.length,
  };
}
