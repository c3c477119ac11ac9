/**
 * A conversation as JSON: its ids, where they come from, and where its turns end. Reading checks that
 * these parts fit together. `Conversation` (conversation.ts) appends to them.
 */

import { NlacError } from "../base/errors.ts";
import { floatsFromBase64, floatsToBase64 } from "../base/float32-base64.ts";
import { isObject, shown } from "../base/validation.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { type CalledFunction, roles } from "./messages.ts";

/** A run of ids of one origin; `[start, end)` in tokens. */
export interface Segment {
  /**
   * "environment": messages, with the template's text around them. "template": the start and end of
   * an assistant's turn. "model": sampled ids, or the text of a scripted turn.
   */
  source: "template" | "environment" | "model";
  start: number;
  end: number;
  /** One per id, natural logarithms; only for sampled ids. */
  logProbs?: Float32Array;
}

/** A conversation as JSON. Log probabilities are base64 of little-endian float32. */
export interface ConversationJson {
  version: 1;
  tokens: number[];
  segments: { source: Segment["source"]; start: number; end: number; logProbs?: string }[];
  /**
   * The end of each turn, and its role. `calls`: see `ContinuationContext`; only for templates that
   * render results together with their calls, or with their ids.
   */
  turns: { end: number; role: Message["role"]; calls?: readonly CalledFunction[] }[];
  system: boolean;
  tools?: ToolSchema[];
}

/** The end of a turn. */
export type TurnEnd = ConversationJson["turns"][number];

/** The parts of a conversation in memory. */
interface Parts {
  /** The first `length` of these are its ids. */
  tokens: readonly number[];
  length: number;
  segments: readonly Readonly<Segment>[];
  turns: readonly TurnEnd[];
}

/** What follows the first `kept` turns, without tools; positions count from their end. */
export function jsonAfter(
  { tokens, length, segments, turns }: Parts,
  kept: number,
  system: boolean,
): ConversationJson {
  const offset = kept === 0 ? 0 : turns[kept - 1]!.end;
  const rest = segments.slice(segments.findLastIndex(({ end }) => end <= offset) + 1);
  return {
    version: 1,
    tokens: tokens.slice(offset, length),
    segments: rest.map(({ source, start, end, logProbs }) => ({
      ...{ source, start: start - offset, end: end - offset },
      ...(logProbs === undefined ? {} : { logProbs: floatsToBase64(logProbs) }),
    })),
    turns: turns.slice(kept).map((turn) => ({ ...turn, end: turn.end - offset })),
    system,
  };
}

const sources: ReadonlySet<unknown> = new Set(["template", "environment", "model"]);

function checkList(list: unknown, name: string, isRight: (item: unknown) => boolean): void {
  if (Array.isArray(list) && list.every(isRight)) return;
  throw new NlacError("ERR_VALUE", `The conversation's ${name} cannot be read.`);
}

/** The segments and turns in JSON. Throws ERR_VALUE if the parts do not fit together. */
export function partsOf(json: ConversationJson): { segments: Segment[]; turns: TurnEnd[] } {
  if (!isObject(json)) throw new NlacError("ERR_VALUE", `${shown(json)} is not a conversation.`);
  if (json.version !== 1) {
    throw new NlacError(
      "ERR_VALUE",
      `Conversations of version ${JSON.stringify(json.version)} cannot be read.`,
    );
  }
  checkList(json.tokens, "tokens", (id) => Number.isInteger(id) && (id as number) >= 0);
  checkList(json.segments, "segments", (segment) => isObject(segment) && sources.has(segment.source));
  checkList(json.turns, "turns", (turn) => isObject(turn) && roles.has(turn.role as string));
  const segments = json.segments.map(({ source, start, end, logProbs }) => ({
    source,
    start,
    end,
    ...(logProbs === undefined ? {} : { logProbs: floatsFromBase64(logProbs) }),
  }));
  let covered = 0;
  for (const { start, end, logProbs } of segments) {
    const fits =
      start === covered && end > start && (logProbs === undefined || logProbs.length === end - start);
    if (!fits)
      throw new NlacError("ERR_VALUE", `A segment of the conversation, [${start}, ${end}), does not fit.`);
    covered = end;
  }
  const ends = json.turns.map(({ end }) => end);
  if (covered !== json.tokens.length || ends.at(-1) !== covered) {
    throw new NlacError("ERR_VALUE", "The conversation's segments and turns do not cover its tokens.");
  }
  return { segments, turns: json.turns.map((turn) => ({ ...turn })) };
}
