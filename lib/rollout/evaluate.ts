/** Success of a policy on an environment, with an interval. */

import type { Environment } from "../environments/contract.ts";
import type { LanguageModel, Which } from "../model.ts";
import { streams } from "../random.ts";
import { collectTrajectories } from "./collect.ts";
import type { Trajectory } from "./trajectory.ts";

export interface Interval {
  estimate: number;
  low: number;
  high: number;
}

/** 95 % interval of a share (Wilson, 1927): honest near 0 and 1 and for few trials. */
export function wilsonInterval(successes: number, trials: number, z = 1.959964): Interval {
  if (trials === 0) return { estimate: Number.NaN, low: 0, high: 1 };
  const p = successes / trials;
  const centre = p + (z * z) / (2 * trials);
  const spread = z * Math.sqrt((p * (1 - p)) / trials + (z * z) / (4 * trials * trials));
  const scale = 1 + (z * z) / trials;
  // At 0 and 1 the bound is exact; the formula leaves rounding noise there.
  return {
    estimate: p,
    low: successes === 0 ? 0 : (centre - spread) / scale,
    high: successes === trials ? 1 : (centre + spread) / scale,
  };
}

/** Mean with its 95 % interval under the normal approximation. */
export function meanInterval(values: readonly number[], z = 1.959964): Interval {
  const n = values.length;
  if (n === 0) return { estimate: Number.NaN, low: Number.NaN, high: Number.NaN };
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  const variance = n < 2 ? 0 : values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  const half = z * Math.sqrt(variance / n);
  return { estimate: mean, low: mean - half, high: mean + half };
}

export interface EvaluateOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
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

export interface Evaluation {
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
  return {
    success: wilsonInterval(judged.filter(({ reward }) => reward >= 1).length, judged.length),
    reward: meanInterval(judged.map(({ reward }) => reward)),
    turns: meanInterval(judged.map((trajectory) => trajectory.turns.length)),
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
