/**
 * The training data of a process reward model (the HOPE paper, appendix C.3): a fixed number of
 * actions with soft labels, half of them with low values, and a given share of the high ones from
 * branches.
 */

import { derivedSeed, permutation, streams } from "../base/random.ts";
import type { ActionValue } from "./returns.ts";

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
