/** Success of a policy on an environment, with an interval. */

import type { Environment } from "../environments/contract.ts";
import type { Which } from "../model.ts";
import { streams } from "../random.ts";
import { collectTrajectories, type Player } from "./collect.ts";
import { mean } from "./losses.ts";
import type { Trajectory } from "./trajectory.ts";

export interface Interval {
  estimate: number;
  low: number;
  high: number;
}

/** 95 % interval of a share `p` of `trials` (Wilson, 1927): honest near 0 and 1 and for few trials. */
export function wilsonInterval(p: number, trials: number, z = 1.959964): Interval {
  if (trials === 0) return { estimate: Number.NaN, low: 0, high: 1 };
  const centre = p + (z * z) / (2 * trials);
  const spread = z * Math.sqrt((p * (1 - p)) / trials + (z * z) / (4 * trials * trials));
  const scale = 1 + (z * z) / trials;
  // At 0 and 1 the bound is exact; the formula leaves rounding noise there.
  return {
    estimate: p,
    low: p === 0 ? 0 : (centre - spread) / scale,
    high: p === 1 ? 1 : (centre + spread) / scale,
  };
}

/**
 * `values` in groups of equal `keys`. The intervals below take groups to be independent of each other, and the values
 * in one group not to be: four episodes on one task tell less than one on each of four.
 */
export function grouped(values: readonly number[], keys: readonly unknown[]): number[][] {
  const groups = new Map<unknown, number[]>();
  for (const [i, value] of values.entries()) {
    const group = groups.get(keys[i]);
    if (group === undefined) groups.set(keys[i], [value]);
    else group.push(value);
  }
  return [...groups.values()];
}

/** Mean over all values and, clustered by group, the variance of that mean (Miller, 2024); NaN for less than two groups. */
function groupedMean(groups: readonly (readonly number[])[]): { n: number; mean: number; variance: number } {
  const values = groups.flat();
  const n = values.length;
  const average = mean(values);
  const apart = groups.map((group) => group.reduce((sum, value) => sum + value - average, 0));
  const squares = apart.reduce((sum, difference) => sum + difference ** 2, 0);
  const count = groups.length;
  return { n, mean: average, variance: count < 2 ? Number.NaN : (squares / n ** 2) * (count / (count - 1)) };
}

/** Mean with its 95 % interval under the normal approximation; one group has no interval. */
export function meanInterval(groups: readonly (readonly number[])[], z = 1.959964): Interval {
  const { mean: estimate, variance } = groupedMean(groups);
  const half = z * Math.sqrt(variance);
  return { estimate, low: estimate - half, high: estimate + half };
}

/**
 * 95 % interval of a share of zeros and ones in groups: Wilson's for as many independent trials as would vary as much
 * (Kish, 1965), at least one a group. With one trial a group it is `wilsonInterval`.
 */
export function shareInterval(groups: readonly (readonly number[])[]): Interval {
  const { n, mean: p, variance } = groupedMean(groups);
  // Where nothing varies there is nothing to tell repeats from: a group counts once.
  const independent = variance > 0 ? (p * (1 - p)) / variance : 0;
  const trials = Math.min(n, Math.max(groups.length, independent));
  return wilsonInterval(p, trials);
}

export interface EvaluateOptions<Task> {
  model: Player;
  environment: Environment<Task>;
  /** One an episode; a task may stand here more than once, and is then played with other seeds. */
  tasks: readonly Task[];
  seed: number;
  /** Most episodes at once. */
  concurrency: number;
  maxActionTokens: number;
  maxPromptTokens: number;
  /** 0 is greedy. */
  temperature: number;
  weights?: Which;
  signal?: AbortSignal;
  onProgress?: (finished: number, total: number, tokens: number) => void;
}

/** The intervals are at 95 %, and take episodes on the same task for no more than they tell. */
export interface Evaluation {
  episodes: number;
  /** Different tasks among them. */
  tasks: number;
  /** Share of episodes with a reward of 1. */
  success: Interval;
  reward: Interval;
  turns: Interval;
  /** Share of turns whose action could be read. */
  parseRate: number;
  /** Episodes by what ended them. */
  outcomes: Record<string, number>;
  trajectories: Trajectory[];
}

export async function evaluate<Task>(options: EvaluateOptions<Task>): Promise<Evaluation> {
  const trajectories: Trajectory[] = [];
  let tokens = 0;
  for (let start = 0; start < options.tasks.length; start += options.concurrency) {
    const batch = options.tasks.slice(start, start + options.concurrency);
    trajectories.push(
      ...(await collectTrajectories({
        ...options,
        episodes: batch.map((task, i) => ({ id: start + i, task })),
        stream: streams.evaluation,
        onTurn: (finished, written) => {
          tokens += written;
          options.onProgress?.(start + finished, options.tasks.length, tokens);
        },
      })),
    );
  }
  return summarize(trajectories);
}

export function summarize(trajectories: Trajectory[]): Evaluation {
  const outcomes: Record<string, number> = {};
  for (const { outcome } of trajectories) outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
  const turns = trajectories.flatMap((trajectory) => trajectory.turns);
  const judged = trajectories.filter(({ outcome }) => !outcome.endsWith("-fault"));
  const byTask = (value: (trajectory: Trajectory) => number) =>
    grouped(
      judged.map(value),
      judged.map(({ task }) => task),
    );
  return {
    episodes: trajectories.length,
    tasks: new Set(trajectories.map(({ task }) => task)).size,
    success: shareInterval(byTask(({ reward }) => (reward >= 1 ? 1 : 0))),
    reward: meanInterval(byTask(({ reward }) => reward)),
    turns: meanInterval(byTask((trajectory) => trajectory.turns.length)),
    parseRate:
      turns.length === 0
        ? Number.NaN
        : turns.filter((turn) => turn.action !== undefined).length / turns.length,
    outcomes,
    trajectories,
  };
}

/** What training logs of the episodes it has just collected. */
export function rolloutMetrics(trajectories: readonly Trajectory[]): Record<string, number> {
  const turns = trajectories.flatMap((trajectory) => trajectory.turns);
  const share = (part: number, of: number) => (of === 0 ? Number.NaN : part / of);
  const judged = trajectories.filter(({ fault }) => fault === undefined);
  const rewards = judged.reduce((sum, { reward }) => sum + reward, 0);
  const tokens = turns.reduce((sum, turn) => sum + turn.tokens.length, 0);
  return {
    "rollout/success": share(judged.filter(({ reward }) => reward >= 1).length, judged.length),
    "rollout/reward": share(rewards, judged.length),
    "rollout/turns": share(turns.length, trajectories.length),
    "rollout/action_tokens": share(tokens, turns.length),
    "rollout/faults": trajectories.length - judged.length,
    "parse/action": share(turns.filter(({ action }) => action !== undefined).length, turns.length),
  };
}
