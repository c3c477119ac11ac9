/** Statistics of episodes: success, reward, turns, tool calls, tokens. */

import { grouped, type Interval, meanInterval, shareInterval } from "../statistics/intervals.ts";
import { passHatK } from "../statistics/pass-k.ts";
import { type EpisodeRecord, writtenAfter } from "./records.ts";
import { isFaulty, type Outcome, succeeded, type Trajectory, type Turn } from "./trajectory.ts";

/** An episode without its text, as input of the statistics below. */
export interface EpisodeFigures {
  id: number;
  task: string;
  seed: number;
  outcome: Outcome;
  /** False for a fault, which is not judged. */
  success: boolean;
  reward: number;
  turns: number;
  /** Turns whose action could be parsed. */
  readable: number;
  /** Actions that called a tool, and how many of those calls were refused or failed. */
  calls: number;
  toolErrors: number;
  /** Tokens the policy generated; 0 for a service, whose ids are bytes. */
  tokens: number;
}

/** Of an episode just played, or of a recorded one. */
export function figuresOf(episode: Trajectory | EpisodeRecord): EpisodeFigures {
  const { id, task, seed, outcome, reward, turns, conversation } = episode;
  const count = (is: (turn: Pick<Turn, "action" | "info">) => boolean) => turns.filter(is).length;
  return {
    id,
    task,
    seed,
    outcome,
    success: !isFaulty(episode) && succeeded(episode),
    reward,
    turns: turns.length,
    readable: count(({ action }) => action !== undefined),
    calls: count(({ action }) => action?.tool !== undefined),
    toolErrors: count(({ info }) => info.toolError === true),
    tokens: sumOf(turns.map((turn) => sampledIn(turn, conversation))),
  };
}

/** Number of tokens the policy sampled in a turn, including reasoning. */
function sampledIn(
  turn: Trajectory["turns"][number] | EpisodeRecord["turns"][number],
  { segments }: Pick<Trajectory["conversation"], "segments"> | EpisodeRecord["conversation"],
): number {
  if ("tokens" in turn) return hasProbabilities(turn.logProbs) ? turn.tokens.length : 0;
  const { sampled, state } = turn;
  if (sampled !== undefined) return hasProbabilities(sampled.logProbs) ? sampled.tokens.length : 0;
  const written = writtenAfter<(typeof segments)[number]>(segments, state);
  return written !== undefined && hasProbabilities(written.logProbs) ? written.end - written.start : 0;
}

/**
 * Whether log probabilities are known; a service's are NaN. Records hold them as base64 of float32.
 */
function hasProbabilities(logProbs: Float32Array | string | undefined): boolean {
  if (typeof logProbs !== "string") return logProbs !== undefined && !Number.isNaN(logProbs[0]);
  const bytes = Buffer.from(logProbs.slice(0, 8), "base64");
  return bytes.length >= 4 && !Number.isNaN(bytes.readFloatLE());
}

/** Intervals are at 95 % and clustered by task. */
export interface Figures {
  episodes: number;
  /** Number of different tasks. */
  tasks: number;
  /**
   * Share of episodes that succeeded. Faults are excluded here and in all fields below except
   * `tokens` and `outcomes`.
   */
  success: Interval;
  /** pass^1, pass^2, … up to the requested k; empty if that is only pass^1. */
  passHatK: Interval[];
  reward: Interval;
  turns: Interval;
  /** Share of turns whose action could be parsed. */
  parseRate: number;
  /** Number of tool calls, the share that was refused or failed, and the number per episode. */
  toolCalls: number;
  toolErrors: { share: number; perEpisode: number };
  /** Tokens the policy generated, in all; 0 for a service. */
  tokens: number;
  /** Number of episodes by outcome. */
  outcomes: Record<string, number>;
}

/** @param trials largest k of pass^k; the result stops earlier if no task was played that often */
export function summarize(episodes: readonly EpisodeFigures[], trials = 1): Figures {
  const outcomes: Record<string, number> = {};
  for (const { outcome } of episodes) outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
  const judged = episodes.filter((episode) => !isFaulty(episode));
  const sum = (value: (episode: EpisodeFigures) => number) => sumOf(judged.map(value));
  const byTask = (value: (episode: EpisodeFigures) => number) =>
    grouped(
      judged.map(value),
      judged.map(({ task }) => task),
    );
  const successes = byTask(({ success }) => Number(success));
  const tried = successes.map((task) => ({ successes: sumOf(task), trials: task.length }));
  const most = Math.min(
    trials,
    tried.reduce((max, task) => Math.max(max, task.trials), 0),
  );
  const toolErrors = sum((episode) => episode.toolErrors);
  const toolCalls = sum(({ calls }) => calls);
  return {
    episodes: episodes.length,
    tasks: new Set(episodes.map(({ task }) => task)).size,
    success: shareInterval(successes),
    passHatK: most < 2 ? [] : Array.from({ length: most }, (_, i) => passHatK(tried, i + 1)),
    reward: meanInterval(byTask(({ reward }) => reward)),
    turns: meanInterval(byTask(({ turns }) => turns)),
    parseRate: share(
      sum(({ readable }) => readable),
      sum(({ turns }) => turns),
    ),
    toolCalls,
    toolErrors: { share: share(toolErrors, toolCalls), perEpisode: share(toolErrors, judged.length) },
    tokens: sumOf(episodes.map((episode) => episode.tokens)),
    outcomes,
  };
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

/** NaN if `of` is 0. */
function share(part: number, of: number): number {
  return of === 0 ? Number.NaN : part / of;
}

/**
 * Training metrics of the episodes just collected. Those with a fault are only counted, as
 * `rollout/faults` and in `rollout/tokens`.
 */
export function rolloutMetrics(trajectories: readonly Trajectory[]): Record<string, number> {
  const tokensOf = (turns: Trajectory["turns"]) => sumOf(turns.map(({ tokens }) => tokens.length));
  const judged = trajectories.filter(({ fault }) => fault === undefined);
  const turns = judged.flatMap((trajectory) => trajectory.turns);
  return {
    "rollout/success": share(judged.filter(succeeded).length, judged.length),
    "rollout/reward": share(sumOf(judged.map(({ reward }) => reward)), judged.length),
    "rollout/turns": share(turns.length, judged.length),
    "rollout/action_tokens": share(tokensOf(turns), turns.length),
    "rollout/tokens": sumOf(trajectories.map(({ turns }) => tokensOf(turns))),
    "rollout/faults": trajectories.length - judged.length,
    "parse/action": share(turns.filter(({ action }) => action !== undefined).length, turns.length),
  };
}
