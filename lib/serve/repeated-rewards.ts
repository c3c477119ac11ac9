/**
 * Recognizes a repeated request for a reward, whose answer was lost: by its Idempotency-Key or, if
 * it ended the episode, by its content. It is answered as before, and adds nothing.
 */

import { createHash } from "node:crypto";
import { isOver, type Message } from "../contract/environment.ts";
import type { AcknowledgedReward } from "../episodes/records.ts";
import { badRequest } from "./protocol.ts";

/** How an episode continues after a reward. */
export interface Ending {
  terminated: boolean;
  truncated: boolean;
}

/** What may be said about a reward. */
export interface RewardOptions {
  /** The turn that it belongs to. Default: the last one. */
  turn?: number | undefined;
  /** The messages that followed the last turn. */
  observation?: Message[] | undefined;
  /** The request's Idempotency-Key. */
  key?: string | undefined;
}

/** Latest rewards per episode that are recognized. */
const most = 64;

/** Hash of a request. */
export function requestHash(
  reward: number,
  { terminated, truncated }: Ending,
  { turn, observation }: RewardOptions,
): string {
  const said = observation?.map(({ role, content }) => [role, content]);
  const content = JSON.stringify([reward, terminated, truncated, turn ?? null, said ?? null]);
  return createHash("sha256").update(content).digest("base64url").slice(0, 22);
}

/**
 * The earlier acknowledgement of a request, if it is repeated. Throws a RequestError of status 400
 * if its key was used for another one.
 */
export function findRepeated(
  acknowledged: readonly AcknowledgedReward[],
  request: string,
  key: string | undefined,
): AcknowledgedReward | undefined {
  if (key === undefined) return acknowledged.find((one) => isOver(one) && one.request === request);
  const found = acknowledged.find((one) => one.key === key);
  if (found !== undefined && found.request !== request)
    throw badRequest(
      "This Idempotency-Key was used for another reward of the episode: give each reward a key of its own.",
      "Idempotency-Key",
      "idempotency_key_reused",
    );
  return found;
}

/** The acknowledgements to keep after another one. One that cannot be repeated is left out. */
export function withReward(
  acknowledged: readonly AcknowledgedReward[],
  added: AcknowledgedReward,
): readonly AcknowledgedReward[] {
  return added.key === undefined && !isOver(added) ? acknowledged : [...acknowledged, added].slice(-most);
}

/** The same for rewards that were read from a log, and may be there already. */
export function withReadRewards(
  acknowledged: readonly AcknowledgedReward[],
  added: readonly AcknowledgedReward[],
): readonly AcknowledgedReward[] {
  const keys = new Set(added.map(({ key }) => key));
  return [...acknowledged.filter(({ key }) => !keys.has(key)), ...added].slice(-most);
}
