/**
 * Byte-pair encoding of characters, as models from SentencePiece use it (Llama 2, Gemma, Mistral
 * before Tekken). A character that the vocabulary lacks becomes its UTF-8 bytes, tokens like
 * <0x0A>.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import { PairMerger, type PairOptions, RememberedWords, type WordEncoder } from "./bpe.ts";

export interface CharacterPairOptions extends PairOptions {
  /** Whether a missing character becomes its bytes, if all of them have tokens. */
  byteFallback: boolean;
  /** The token of other missing characters; undefined if they are omitted. */
  unknown?: number | undefined;
  /** Whether adjacent missing characters become one unknown token. */
  fuseUnknown: boolean;
}

/** The character that stands for a space in such vocabularies, U+2581. */
export const spaceMark = "\u2581";

/** The token of a byte. */
export function byteToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** The byte that a token represents; undefined if it represents its own text. */
export function byteOfToken(token: string): number | undefined {
  const hex = /^<0x([0-9a-fA-F]{2}|\+[0-9a-fA-F])>$/.exec(token)?.[1];
  return hex === undefined ? undefined : Number.parseInt(hex, 16);
}

const utf8 = new TextEncoder();
/** A word: spaces, then other characters. */
const spacedWord = /\u2581*[^\u2581]+|\u2581+/gu;

/**
 * The encoder of a vocabulary of characters.
 *
 * If no merge has a space after another character, text is first cut into words, which are cached.
 * The ids are the same.
 *
 * @throws NlacError ERR_MODEL_FORMAT if a merge names a token that is not in the vocabulary
 */
export function characterPairEncoder(options: CharacterPairOptions): WordEncoder {
  const { vocabulary, merges, forbidden, wholeWords, fuseUnknown } = options;
  const idOf = (token: string): number => {
    const id = vocabulary.get(token);
    return id === undefined || forbidden.has(id) ? -1 : id;
  };
  const bytes = options.byteFallback
    ? Int32Array.from({ length: 256 }, (_, i) => idOf(byteToken(i)))
    : undefined;
  const unknown = options.unknown ?? -1;
  const characters = new Map<string, readonly number[]>();
  const merger = new PairMerger(options);

  /** The ids of a character; empty if it is unknown. */
  const idsOf = (character: string): readonly number[] =>
    getOrAdd(characters, character, () => {
      const id = idOf(character);
      const ids = id >= 0 ? [id] : Array.from(utf8.encode(character), (byte) => bytes?.[byte] ?? -1);
      return ids.includes(-1) ? [] : ids;
    });

  const symbolsOf = (word: string): number[] => {
    const symbols: number[] = [];
    let pending = false;
    for (const character of word) {
      const ids = idsOf(character);
      if (ids.length === 0) {
        if (pending && !fuseUnknown && unknown >= 0) symbols.push(unknown);
        pending = true;
        continue;
      }
      // As in the reference, bytes come before an unknown token that is pending.
      if (pending && idOf(character) >= 0) {
        if (unknown >= 0) symbols.push(unknown);
        pending = false;
      }
      for (const id of ids) symbols.push(id);
    }
    if (pending && unknown >= 0) symbols.push(unknown);
    return symbols;
  };

  const words = new RememberedWords((word) => merger.merge(symbolsOf(word)));
  const crosses = merges.some(([left, right]) => /[^\u2581]\u2581/u.test(left + right));
  if (wholeWords) {
    return {
      encode(word, out) {
        const whole = idOf(word);
        if (whole >= 0) out.push(whole);
        else words.encode(word, out);
      },
    };
  }
  if (crosses || idOf(spaceMark) < 0) return words;
  return {
    encode(word, out) {
      for (const [part] of word.matchAll(spacedWord)) words.encode(part, out);
    },
  };
}
