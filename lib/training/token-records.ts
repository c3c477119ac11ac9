/** Figures per token of a sample's completions, for the records. */

import { halvesToBase64 } from "../files/half-floats.ts";
import type { KlDetail, KlSide, LanguageModel } from "../model/language-model.ts";
import type { TokenRecord } from "../run/samples.ts";

/** The text of each token. A character of several tokens is the text of its last one. */
export function piecesOf(model: Pick<LanguageModel, "decode">, ids: readonly number[]): string[] {
  const pieces: string[] = [];
  // A space at the start of a piece stays.
  const textOf = (from: number, to: number) => model.decode(ids.slice(from, to), { continues: true });
  for (let start = 0; start < ids.length; ) {
    let end = start + 1;
    // UTF-8 has at most four bytes per character, and a byte is at most one token.
    while (end < ids.length && end - start < 4 && isPart(textOf(start, end))) end++;
    const whole = textOf(start, end);
    // Bytes that are no character stay one piece each.
    if (isPart(whole)) end = start + 1;
    for (let i = start; i < end - 1; i++) pieces.push("");
    pieces.push(isPart(whole) ? textOf(start, start + 1) : whole);
    start = end;
  }
  return pieces;
}

/** Whether a text ends within a character. */
function isPart(text: string): boolean {
  return text.endsWith("\ufffd");
}

/** Most probable tokens to record at each token. */
export const bestCount = 8;

/** What to record of a target's tokens. */
export interface TargetFigures {
  l1: Float32Array;
  /** Both models' log probabilities, if known, with `bestCount` most probable tokens or none. */
  detail?: KlDetail | undefined;
  /** Log probabilities under θ̄, if they are known otherwise. */
  target?: Float32Array | undefined;
}

/** A completion with its L1 and its log probabilities under θ and θ̄, if known. */
export function targetTokens(
  model: Pick<LanguageModel, "decode">,
  ids: readonly number[],
  { l1, detail, target = detail?.target.logProbs }: TargetFigures,
): TokenRecord {
  return {
    ids: [...ids],
    pieces: piecesOf(model, ids),
    l1: halvesToBase64(l1),
    ...(detail && { online: halvesToBase64(detail.online.logProbs) }),
    ...(target && { target: halvesToBase64(target) }),
  };
}

/**
 * The most probable tokens of θ and θ̄ at each token of a completion, from a detail with
 * `bestCount`.
 */
export function bestTokens(
  model: Pick<LanguageModel, "decode">,
  { online, target }: KlDetail,
): NonNullable<TokenRecord["best"]> {
  const sideOf = ({ top, topLogProbs }: KlSide) => ({ ids: [...top], logProbs: halvesToBase64(topLogProbs) });
  const ids = new Set([...online.top, ...target.top]);
  const words = Object.fromEntries(
    [...ids].map((id) => [String(id), model.decode([id], { continues: true })]),
  );
  return { count: bestCount, words, online: sideOf(online), target: sideOf(target) };
}
