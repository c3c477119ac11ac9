/**
 * The place of this process among the ranks of a training, from the environment variables that
 * torchrun, Kubeflow and Ray set, and that one line of shell derives from Slurm's.
 */

import { availableParallelism } from "node:os";
import { NlacError } from "../base/errors.ts";

export interface RankPlace {
  /** From 0. Rank 0 runs the recipe, the others serve their learner. */
  rank: number;
  /** How many ranks there are. */
  ranks: number;
  /** Number of this rank on its machine; the index of its GPU. */
  localRank: number;
  /** How many ranks share this machine, if known. */
  localRanks: number | undefined;
  /** Host and port of the ranks' store. */
  address: string;
  port: number;
  /** Whether this rank hosts the store. torchrun hosts it itself. */
  serves: boolean;
  /** Restarts of this job by torchrun before this one. */
  restart: number;
  /** Longest wait for another rank. */
  timeoutMs: number;
}

/** Ten minutes: a rank may load a large model, or write a checkpoint, while others wait. */
const defaultTimeoutSeconds = 600;

/**
 * The place that the environment names; undefined if this is no distributed training.
 * @throws NlacError ERR_CONFIG that names a variable that is missing or no number
 */
export function rankPlace(
  env: Readonly<Record<string, string | undefined>> = process.env,
): RankPlace | undefined {
  if (!env.RANK || !env.WORLD_SIZE) return undefined;
  const whole = (name: string, least: number, most: number, otherwise?: number): number => {
    const text = env[name];
    if ((text === undefined || text === "") && otherwise !== undefined) return otherwise;
    const value = Number(text);
    if (text && Number.isInteger(value) && value >= least && value <= most) return value;
    throw new NlacError(
      "ERR_CONFIG",
      `${name} is ${text ? JSON.stringify(text) : "not set"}. RANK and WORLD_SIZE are set, so this is a distributed ` +
        `training, and ${name} must be an integer from ${least} to ${most} (docs/scaling.md).`,
    );
  };
  const ranks = whole("WORLD_SIZE", 1, 65_536);
  const rank = whole("RANK", 0, ranks - 1);
  const address = env.MASTER_ADDR;
  if (!address) {
    throw new NlacError(
      "ERR_CONFIG",
      "RANK and WORLD_SIZE are set, but not MASTER_ADDR, the host of rank 0 (docs/scaling.md).",
    );
  }
  const localRanks = env.LOCAL_WORLD_SIZE ? whole("LOCAL_WORLD_SIZE", 1, ranks) : undefined;
  const agentStore = env.TORCHELASTIC_USE_AGENT_STORE === "True";
  return {
    ...{ rank, ranks, localRanks, address },
    localRank: whole("LOCAL_RANK", 0, 65_535, 0),
    port: whole("MASTER_PORT", 1, 65_535),
    serves: rank === 0 && !agentStore,
    restart: whole("TORCHELASTIC_RESTART_COUNT", 0, Number.MAX_SAFE_INTEGER, 0),
    timeoutMs: 1000 * whole("NLAC_PEER_TIMEOUT", 1, 1_000_000, defaultTimeoutSeconds),
  };
}

/** The device of a rank: of several GPUs, the one with its number. */
export function deviceOfRank(device: string, { localRank }: Pick<RankPlace, "localRank">): string {
  return device === "cuda" ? `cuda:${localRank}` : device;
}

/** Threads for a rank that shares its machine; undefined if it does not, or if the user chose. */
export function threadsOfRank(
  { localRanks = 1 }: Pick<RankPlace, "localRanks">,
  env: Readonly<Record<string, string | undefined>> = process.env,
): number | undefined {
  if (localRanks === 1 || env.NLAC_THREADS) return undefined;
  return Math.max(1, Math.floor(availableParallelism() / localRanks));
}
