/**
 * The tokenizer.json of a SentencePiece model of the kind "BPE" (Llama 2, Gemma, Mistral before
 * Tekken). SentencePiece merges the adjacent pair whose result has the highest score.
 */

import { NlacError } from "../base/errors.ts";
import { bytePairModel } from "./bpe.ts";
import { spaceMark } from "./fallback.ts";
import type { AddedToken, TokenizerJson } from "./format.ts";

/** Most characters in all splits of pieces into two; Gemma's two million splits have far fewer. */
const maxWork = 1 << 28;

/**
 * All merges whose parts and result are pieces, best first, and the rank of each. Pieces of one
 * score have one rank: the leftmost pair is merged first.
 *
 * @throws NlacError ERR_MODEL_FORMAT for pieces that are too long
 */
export function mergesOfScores(pieces: readonly { token: string; score: number }[]): {
  merges: [string, string][];
  ranks: number[];
} {
  const known = new Set(pieces.map(({ token }) => token));
  const merges: [string, string][] = [];
  const ranks: number[] = [];
  let [work, rank, last] = [0, -1, Number.NaN];
  for (const { token, score } of [...pieces].sort((a, b) => b.score - a.score)) {
    if (score !== last) rank++;
    last = score;
    for (let i = 1; i < token.length; i++) {
      work += token.length;
      if (work > maxWork) throw new NlacError("ERR_MODEL_FORMAT", "The tokenizer's pieces are too long.");
      const [left, right] = [token.slice(0, i), token.slice(i)];
      if (!known.has(left) || !known.has(right)) continue;
      merges.push([left, right]);
      ranks.push(rank);
    }
  }
  return { merges, ranks };
}

export function sentencePieceJson(parts: {
  vocab: Record<string, number>;
  merges: [string, string][];
  added: AddedToken[];
  /** The token of missing characters, if there are bytes that have none. */
  unknown: string | undefined;
  /** Whether text gets a space before it. */
  prefix: boolean;
}): TokenizerJson {
  const { vocab, merges, added, unknown, prefix } = parts;
  const spaces = { type: "Replace", pattern: { String: " " }, content: spaceMark };
  const prepend = { type: "Prepend", prepend: spaceMark };
  const decoders = [
    { type: "Replace", pattern: { String: spaceMark }, content: " " },
    { type: "ByteFallback" },
    { type: "Fuse" },
    { type: "Strip", content: " ", start: 1, stop: 0 },
  ];
  return {
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: added,
    normalizer: { type: "Sequence", normalizers: prefix ? [prepend, spaces] : [spaces] },
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: "Sequence", decoders: prefix ? decoders : decoders.slice(0, 3) },
    model: {
      ...bytePairModel({ vocab, merges, ignore_merges: false }),
      unk_token: unknown ?? null,
      fuse_unk: true,
      byte_fallback: true,
    },
  };
}
