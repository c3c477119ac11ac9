/**
 * The state of an open episode, and its records in the log of open episodes and in the recording.
 */

import type { Message } from "../contract/environment.ts";
import type { AcknowledgedReward, EpisodeRecord } from "../episodes/records.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import type { Held } from "./conversation-cache.ts";
import type { Said } from "./protocol.ts";
import type { ReadChat } from "./reading.ts";
import type { Ending } from "./repeated-rewards.ts";

/** What a request says about its episode, besides the name. */
export interface Relations {
  parent?: string | undefined;
  group?: string | undefined;
  /** Whether it is held out. A sub-episode of a held-out one is, too. */
  split?: "test" | undefined;
}

/** The headers that say so. */
export const relationHeaders = {
  /** The episode for which a sub-agent works. */
  parent: "x-parent-episode-id",
  /** Episodes of one group are attempts at the same task. */
  group: "x-episode-group",
  /** "test" holds an episode out of training; "train" is the default. */
  split: "x-episode-split",
} as const;

export interface OpenEpisode extends Relations {
  /** Whether the client named it. Its requests are then matched by that name only. */
  named: boolean;
  /** The messages of the first request. */
  opening: Message[];
  /** The objects are replaced, not changed, so that the log finds what changed. */
  turns: EpisodeRecord["turns"];
  /** The conversation after the last turn. Each turn's state is a prefix of it. */
  conversation: Conversation;
  /** Cache keys of the conversation before and after the last turn. */
  asked: string;
  key: string;
  /** Time of the last reply or reward, in milliseconds of `performance.now`. */
  answered: number;
  /** Number of its requests in progress. */
  waiting: number;
  /** Whether a reward of it was acknowledged. */
  rewarded: boolean;
  /** The rewards of which a repeated request is recognized. */
  acknowledged: readonly AcknowledgedReward[];
}

/** The state of an open episode in the log. */
export interface OpenRecord extends Relations {
  name: string;
  named: boolean;
  /** Whether a reward of it was acknowledged. */
  rewarded: boolean;
  /** Absent in logs of earlier versions. */
  acknowledged?: readonly AcknowledgedReward[];
  opening: Message[];
  turns: EpisodeRecord["turns"];
  conversation: ConversationJson;
  asked: string;
  key: string;
  /** Time of the last answer or reward, in milliseconds since 1970. */
  time: number;
}

/** The state as it is logged. */
export function openRecord(name: string, episode: OpenEpisode): OpenRecord {
  const { named, parent, group, split, rewarded, acknowledged, opening, turns, conversation, asked, key } =
    episode;
  return {
    ...{ name, named, parent, group, split, rewarded, acknowledged, opening, turns, asked, key },
    time: timeOf(episode),
    conversation: conversation.toJSON(),
  };
}

/** Time of the last reply or reward, in milliseconds since 1970. */
export function timeOf({ answered }: OpenEpisode): number {
  return Date.now() - (performance.now() - answered);
}

/** The record of an episode that ends now. */
export function endedRecord(id: number, task: string, episode: OpenEpisode, ending: Ending): EpisodeRecord {
  const { opening, conversation, parent, group, split, acknowledged } = episode;
  const turns = [...episode.turns.slice(0, -1), { ...episode.turns.at(-1)!, ...ending }];
  return {
    ...{ id, task, seed: 0, reward: totalReward(turns), opening, turns },
    ...(parent === undefined ? {} : { parent }),
    ...(group === undefined ? {} : { group }),
    ...(split === undefined ? {} : { split }),
    ...(acknowledged.length === 0 ? {} : { acknowledged }),
    outcome: ending.terminated ? "done" : "truncated",
    conversation: conversation.toJSON(),
  };
}

export function totalReward(turns: EpisodeRecord["turns"]): number {
  return turns.reduce((sum, { reward }) => sum + reward, 0);
}

/**
 * The part of a request that an episode contains: all of it if repeated, else up to the last turn.
 */
export function heldBy(
  { asked, key, turns, conversation }: OpenEpisode,
  names: readonly string[],
): Held | undefined {
  if (asked === names.at(-1))
    return { conversation: conversation.prefix(turns.at(-1)!.state), messages: names.length };
  const last = names.lastIndexOf(key);
  return last < 0 ? undefined : { conversation, messages: last + 1 };
}

/** What is different in a request that does not continue the episode. Without texts of clients. */
export function differenceFrom(
  { opening, turns, conversation }: OpenEpisode,
  { messages, tools }: Pick<ReadChat, "messages" | "tools">,
): string {
  if (JSON.stringify(tools) !== JSON.stringify(conversation.tools))
    return "its tools are not those of the earlier requests";
  // A turn's text may be written differently in its message.
  const held: Partial<Message>[] = [
    ...opening,
    ...turns.flatMap(({ observation }) => [{ role: "assistant" as const }, ...observation]),
  ];
  const lastTurn = held.findLastIndex(({ content }) => content === undefined);
  const isOther = ({ role, content }: Partial<Message>, i: number) => {
    if (messages[i] === undefined) return true;
    const message = asMessage(messages[i]);
    return message.role !== role || (content !== undefined && message.content !== content);
  };
  const other = held.slice(0, lastTurn + 1).findIndex(isOther);
  if (other < 0) return "an answer is not repeated as it was given";
  return other < messages.length ? `messages[${other}] is another one` : "it ends before the last answer";
}

/** The header of a request that says something else of its episode than the first request did. */
export function contradictionOf(episode: Relations, said: Relations): string | undefined {
  const other = (["parent", "group", "split"] as const).find(
    (key) => said[key] !== undefined && said[key] !== episode[key],
  );
  return other && relationHeaders[other];
}

export function asMessage({ role, content, calls = [] }: Said): Message {
  const written = calls.map(
    (call) => `{"name": ${JSON.stringify(call.name)}, "arguments": ${call.arguments}}`,
  );
  return { role, content: [...(content === "" && calls.length > 0 ? [] : [content]), ...written].join("\n") };
}
