/**
 * What changed in an open episode since its state was logged, so that the log grows by each turn
 * and not by the whole episode. A change names the parts of the state that it keeps, and replaces
 * what follows. While the log is rewritten, a state may be logged that already contains changes
 * which follow in the log: applying these again, in order, ends in the same state.
 */

import type { Message } from "../contract/environment.ts";
import type { AcknowledgedReward, EpisodeRecord } from "../episodes/records.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import { type OpenEpisode, type OpenRecord, timeOf } from "./open-episode.ts";
import { withReadRewards } from "./repeated-rewards.ts";

/** A change of a logged state. */
export interface OpenChange
  extends Pick<OpenRecord, "name" | "named" | "rewarded" | "asked" | "key" | "time"> {
  /** Turns of the episode and of its conversation that stay. */
  kept: { turns: number; said: number };
  /** Turns that stay, but have another reward or observation. */
  amended?: { turn: number; reward: number; observation?: Message[] }[];
  /** The turns that follow the kept ones; `state` counts from the end of the kept conversation. */
  turns: EpisodeRecord["turns"];
  /** The conversation after its turns that stay, without tools; positions count from their end. */
  conversation: ConversationJson;
  /** Further rewards of which a repeated request is recognized. */
  acknowledged?: readonly AcknowledgedReward[];
}

/** The parts of a logged state with which a later one is compared. They are not changed. */
export interface Logged {
  turns: readonly EpisodeRecord["turns"][number][];
  conversation: Conversation;
  acknowledged: readonly AcknowledgedReward[];
}

export function loggedOf({ turns, conversation, acknowledged }: OpenEpisode): Logged {
  return { turns: [...turns], conversation, acknowledged };
}

/**
 * How the state of an episode differs from what was logged of it. Undefined if the whole state has
 * to be logged.
 */
export function changeOf(earlier: Logged, name: string, now: OpenEpisode): OpenChange | undefined {
  const { named, rewarded, asked, key } = now;
  const { kept: said, rest: conversation } = now.conversation.since(earlier.conversation);
  const offset = now.conversation.length - conversation.tokens.length;
  const before = earlier.turns;
  let kept = 0;
  // Turns have other copies after a reward; `info` is that of the generation.
  while (kept < now.turns.length && now.turns[kept]!.info === before[kept]?.info) kept++;
  const turns = now.turns.slice(kept).map((turn) => ({ ...turn, state: turn.state - offset }));
  if (turns.some(({ state }) => state < 0)) return undefined;
  const amended = now.turns.slice(0, kept).flatMap((turn, i) => {
    if (turn === before[i]) return [];
    const { reward, observation } = turn;
    return [{ turn: i, reward, ...(observation === before[i]!.observation ? {} : { observation }) }];
  });
  const acknowledged = now.acknowledged.filter((one) => !earlier.acknowledged.includes(one));
  return {
    ...{ name, named, rewarded, asked, key, time: timeOf(now), kept: { turns: kept, said } },
    ...{ turns, conversation },
    ...(amended.length === 0 ? {} : { amended }),
    ...(acknowledged.length === 0 ? {} : { acknowledged }),
  };
}

/** Applies a change to a state that was read, in place. Returns false if it does not fit. */
export function apply(change: OpenChange, record: OpenRecord): boolean {
  const { kept, amended = [], turns, conversation, acknowledged = [], ...rest } = change;
  const whole = record.conversation;
  if (kept.turns > record.turns.length || kept.said > whole.turns.length) return false;
  if (amended.some(({ turn }) => turn >= kept.turns)) return false;
  const offset = kept.said === 0 ? 0 : whole.turns[kept.said - 1]!.end;

  record.turns.length = kept.turns;
  for (const { turn, ...changed } of amended) Object.assign(record.turns[turn]!, changed);
  for (const turn of turns) record.turns.push({ ...turn, state: turn.state + offset });

  whole.tokens.length = offset;
  for (const id of conversation.tokens) whole.tokens.push(id);
  while ((whole.segments.at(-1)?.end ?? 0) > offset) whole.segments.pop();
  for (const { start, end, ...segment } of conversation.segments)
    whole.segments.push({ ...segment, start: start + offset, end: end + offset });
  whole.turns.length = kept.said;
  for (const { end, role } of conversation.turns) whole.turns.push({ end: end + offset, role });
  Object.assign(record, rest, { acknowledged: withReadRewards(record.acknowledged ?? [], acknowledged) });
  return true;
}
