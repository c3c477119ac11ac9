/**
 * Joins the ranks of a training: opens their shared store, and gives this process its share of the
 * machine.
 */

import { fromNative } from "../base/errors.ts";
import type { NativeRanks } from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";
import { deviceOfRank, type RankPlace, threadsOfRank } from "./place.ts";

/** The ranks of a training, as one of them sees them. */
export interface Ranks {
  readonly place: RankPlace;
  readonly native: NativeRanks;
}

/**
 * Opens the ranks' store, or waits for it.
 *
 * @param device of the recipe: "cpu", or "cuda", of which each rank takes the GPU with its local
 *   number
 * @throws NlacError ERR_PEER when it cannot be reached in time, ERR_LIBTORCH_NOT_FOUND,
 *   ERR_ADDON_NOT_FOUND
 */
export async function joinRanks(place: RankPlace, device: string): Promise<Ranks> {
  const addon = loadAddon({ device: deviceOfRank(device, place) });
  const threads = threadsOfRank(place);
  if (threads !== undefined) addon.setThreads(threads);
  const { rank, ranks, address, port, serves, timeoutMs } = place;
  try {
    const native = await callNative(() =>
      addon.joinRanks({
        ...{ rank, ranks, address, port, serves, timeoutMs },
        // torchrun's store outlives an attempt: the next one must not read its keys.
        prefix: `nlac/${place.restart}`,
      }),
    );
    return { place, native };
  } catch (error) {
    throw fromNative(error);
  }
}
