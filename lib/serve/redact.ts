/**
 * Redaction of episodes before they are stored: texts of people are changed, and the ids with them.
 * Ids whose text changes lose their log probabilities.
 */

import { floatsToBase64 } from "../base/float32-base64.ts";
import type { EpisodeRecord } from "../episodes/records.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";

/** Stored, as ids, in place of a text that is redacted to nothing: no part of a conversation is empty. */
const nothing = ".";

/** Returns the text to store. */
export type Redact = (text: string) => string;

type RedactableTurn = EpisodeRecord["turns"][number];

export interface Redactable {
  opening?: EpisodeRecord["opening"];
  turns: RedactableTurn[];
  /** Changes of earlier turns. */
  amended?: { observation?: RedactableTurn["observation"] }[];
  conversation: ConversationJson;
}

/** A copy of an episode's record with redacted texts and ids. */
export function redactEpisode<T extends Redactable>(record: T, redact: Redact, tokenizer: Tokenizer): T {
  const marks = record.turns.map(({ state }) => state);
  const { conversation, moved } = redactConversation(record.conversation, marks, redact, tokenizer);
  const turns = record.turns.map(({ sampled, action, malformed, observation, ...turn }): RedactableTurn => {
    const ids = sampled && redactIds(sampled.tokens, redact, tokenizer);
    return {
      ...{ ...turn, state: moved(turn.state), text: redact(turn.text) },
      ...(action && { action: redactStrings(action, redact) }),
      // The reason may quote the text.
      ...(malformed !== undefined && { malformed: redact(malformed) }),
      observation: redactStrings(observation, redact),
      ...(sampled && { sampled: isSame(ids!, sampled.tokens) ? sampled : unscored(ids!) }),
    };
  });
  const opening = record.opening && { opening: redactStrings(record.opening, redact) };
  const amended = record.amended && { amended: redactStrings(record.amended, redact) };
  return { ...record, ...opening, ...amended, turns, conversation };
}

/** Ids with the redacted text of each run between control tokens. */
export function redactIds(ids: readonly number[], redact: Redact, tokenizer: Tokenizer): number[] {
  const out: number[] = [];
  for (let start = 0; start < ids.length; ) {
    const end = endOfRun(ids, start, ids.length, tokenizer);
    out.push(...redactRun(ids.slice(start, end), redact, tokenizer));
    start = end;
  }
  return out;
}

function redactConversation(
  { tokens, segments, turns, tools, ...rest }: ConversationJson,
  marks: readonly number[],
  redact: Redact,
  tokenizer: Tokenizer,
): { conversation: ConversationJson; moved: (position: number) => number } {
  const borders = new Set([...marks, ...segments.flatMap(({ start, end }) => [start, end])]);
  for (const { end } of turns) borders.add(end);
  const stops = [...borders, tokens.length].sort((a, b) => a - b);
  const places = new Map<number, number>([[0, 0]]);
  const out: number[] = [];
  let start = 0;
  for (const stop of stops) {
    out.push(...redactIds(tokens.slice(start, stop), redact, tokenizer));
    places.set(stop, out.length);
    start = stop;
  }
  const moved = (position: number) => places.get(position)!;
  const conversation: ConversationJson = {
    ...rest,
    ...(tools && { tools: redactStrings(tools, redact) }),
    tokens: out,
    segments: segments.map(({ source, start, end, logProbs }) => {
      const [first, last] = [moved(start), moved(end)];
      const same = isSame(out.slice(first, last), tokens.slice(start, end));
      const scores = logProbs === undefined || same ? logProbs : unscored(out.slice(first, last)).logProbs;
      return { source, start: first, end: last, ...(scores === undefined ? {} : { logProbs: scores }) };
    }),
    turns: turns.map(({ end, role }) => ({ end: moved(end), role })),
  };
  return { conversation, moved };
}

/** The end of the control token at `start`, or of the ordinary ids from there on. */
function endOfRun(ids: readonly number[], start: number, stop: number, { specialIds }: Tokenizer): number {
  if (specialIds.has(ids[start]!)) return start + 1;
  let end = start + 1;
  while (end < stop && !specialIds.has(ids[end]!)) end++;
  return end;
}

function redactRun(ids: number[], redact: Redact, tokenizer: Tokenizer): number[] {
  if (tokenizer.specialIds.has(ids[0]!)) return ids;
  const text = tokenizer.decode(ids, { continues: true });
  const redacted = redact(text);
  if (redacted === text) return ids;
  const changed = tokenizer.encode(redacted, { continues: true });
  return changed.length > 0 ? changed : tokenizer.encode(nothing, { continues: true });
}

function unscored(tokens: number[]): { tokens: number[]; logProbs: string } {
  return { tokens, logProbs: floatsToBase64(new Float32Array(tokens.length).fill(Number.NaN)) };
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((id, i) => id === b[i]);
}

/** A copy of a JSON value with redacted texts. */
function redactStrings<T>(value: T, redact: Redact): T {
  if (typeof value === "string") return redact(value) as T;
  if (Array.isArray(value)) return value.map((item) => redactStrings(item, redact)) as T;
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, redactStrings(item, redact)]),
  ) as T;
}
