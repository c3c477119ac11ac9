/**
 * Recognizes a repeated request for a reward, whose answer was lost: by its Idempotency-Key or, if
 * it ended the episode, by its content. It is answered as before, and adds nothing. Corrections are
 * recognized by their key.
 */

import { createHash } from "node:crypto";
import type { Context } from "hono";
import { isOver, type Message } from "../contract/environment.ts";
import type { AcknowledgedReward } from "../episodes/records.ts";
import { badRequest, type RequestError } from "./request-error.ts";

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

/** Maximum length of an Idempotency-Key. */
const maxKey = 256;

/** The key by which a repeated request is recognized. Throws a RequestError of status 400. */
export function idempotencyKey(c: Context): string | undefined {
  const key = c.req.header("idempotency-key") || undefined;
  if (key !== undefined && key.length > maxKey)
    throw badRequest(`An Idempotency-Key may have ${maxKey} characters at most.`, "Idempotency-Key");
  return key;
}

/** The refusal of a key that another request of the same episode had. */
export function keyReused(what: "reward" | "correction"): RequestError {
  return badRequest(
    `This Idempotency-Key was used for another ${what} of the episode: give each ${what} a key of its own.`,
    "Idempotency-Key",
    "idempotency_key_reused",
  );
}

/** Hash of a reward. */
export function requestHash(
  reward: number,
  { terminated, truncated }: Ending,
  { turn, observation }: RewardOptions,
): string {
  const said = observation?.map(({ role, content }) => [role, content]);
  return hashOf([reward, terminated, truncated, turn ?? null, said ?? null]);
}

/** Hash of a request's content. */
export function hashOf(content: unknown): string {
  return createHash("sha256").update(JSON.stringify(content)).digest("base64url").slice(0, 22);
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
  if (found !== undefined && found.request !== request) throw keyReused("reward");
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
