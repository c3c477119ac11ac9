/**
 * The training data of a process reward model (the HOPE paper, appendix C.3): a fixed number of
 * actions with soft labels, half of them with low values, and a given share of the high ones from
 * branches.
 */

import { derivedSeed, permutation, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { Place } from "../roles/hindsight-proposer.ts";
import type { HopeConfig, HopeState } from "./hope-config.ts";
import { type ActionValue, actionValues, keyOf, unitScale } from "./returns.ts";

export interface LabelledAction extends ActionValue {
  /** Q̂ scaled to [0, 1]. */
  label: number;
}

export interface RewardDataOptions {
  /** Most data points. */
  points: number;
  /** α: share of the data points with high values that come from branches, 0 to 1. */
  branchShare: number;
  /** Whether low and high values are to be equally frequent. */
  balanced: boolean;
  seed: number;
}

/** Values from here on are high. */
const high = 0.5;

/**
 * Chooses the data points, in random order. If balanced, the rarer half decides the size of both;
 * if one half is empty, the other is used alone. Low values come from the policy's own episodes as
 * far as these suffice. Of the high ones, `branchShare` comes from branches; if one source has too
 * few, the other supplies the rest.
 */
export function rewardData(
  actions: readonly LabelledAction[],
  { points, branchShare, balanced, seed }: RewardDataOptions,
): LabelledAction[] {
  const order = permutation(actions.length, derivedSeed(seed, streams.shuffle, 0), streams.shuffle);
  const shuffled = order.map((i) => actions[i]!);
  const of = (isHigh: boolean, branched: boolean) =>
    shuffled.filter((action) => action.label >= high === isHigh && action.branched === branched);
  const lows = [...of(false, false), ...of(false, true)];
  const [own, branches] = [of(true, false), of(true, true)];
  const highs = own.length + branches.length;
  let [lowCount, highCount] = [lows.length, highs];
  if (balanced && lowCount > 0 && highCount > 0) {
    const half = Math.min(Math.floor(points / 2), lowCount, highCount);
    [lowCount, highCount] = [half, half];
  } else if (lowCount + highCount > points) {
    lowCount = Math.round((points * lowCount) / (lowCount + highs));
    highCount = points - lowCount;
  }
  const wanted = Math.round(branchShare * highCount);
  const fromBranches = Math.min(branches.length, Math.max(wanted, highCount - own.length));
  const chosen = [
    ...lows.slice(0, lowCount),
    ...branches.slice(0, fromBranches),
    ...own.slice(0, highCount - fromBranches),
  ];
  const mixed = permutation(chosen.length, derivedSeed(seed, streams.shuffle, 1), streams.shuffle);
  return mixed.map((i) => chosen[i]!);
}

/** An iteration's data: the reward model's, and the states that the actor learns from. */
export interface IterationData {
  points: LabelledAction[];
  /** Actions of episodes that are kept apart, to measure the reward model. */
  heldOut: LabelledAction[];
  /** Actions left out for their length. */
  tooLong: number;
  /** Episodes and branches that a limit cut short; their returns end there. Faulty ones have none. */
  truncated: number;
  states: Place[];
}

interface DataOptions {
  model: { maxPositions: number };
  environment: Pick<Environment, "rewardRange">;
  state: Pick<HopeState, "iteration">;
  config: HopeConfig;
}

/**
 * HOPE's line 7: labels by equation 3, and a choice of them; a function of the iteration's
 * episodes. Whole episodes are held out, with their branches: turns of one episode share its end.
 */
export function iterationData(
  { model, environment, state, config }: DataOptions,
  episodes: readonly Trajectory[],
  branches: readonly Trajectory[],
): IterationData {
  const seed = derivedSeed(config.seed, streams.minibatch, state.iteration);
  const apart = new Set(
    permutation(episodes.length, seed, streams.split)
      .slice(0, Math.floor(config.rewardHeldOut * episodes.length))
      .map((i) => episodes[i]!.id),
  );
  const all = [...episodes, ...branches];
  const isApart = ({ id, branch }: Trajectory) => apart.has(branch?.trajectory ?? id);
  const values = actionValues(
    all.filter((trajectory) => !isApart(trajectory)),
    config,
  );
  const others = actionValues(all.filter(isApart), config);
  const longest = Math.min(config.maxTokens, model.maxPositions);
  const fits = ({ state: before, action }: ActionValue) => before.prompt().length + action.length <= longest;
  const scale = unitScale(
    config.scaling,
    environment,
    [...values, ...others].map(({ value }) => value),
  );
  const labelled = (value: ActionValue): LabelledAction => ({ ...value, label: scale(value.value) });
  const points = rewardData(values.filter(fits).map(labelled), { ...config, seed });
  const states = [...new Map(points.map((point) => [keyOf(point.state.tokens), point])).values()];
  const shuffled = permutation(states.length, seed, streams.shuffle).map((i) => states[i]!);
  return {
    points,
    heldOut: others.filter(fits).map(labelled),
    tooLong: [...values, ...others].filter((value) => !fits(value)).length,
    truncated: all.filter((one) => !isFaulty(one) && one.turns.at(-1)?.truncated).length,
    states: config.actorStates === 0 ? shuffled : shuffled.slice(0, config.actorStates),
  };
}
