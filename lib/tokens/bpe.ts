/**
 * Byte-level byte-pair encoding, the model part of a tokenizer. Bytes become symbols; the adjacent
 * pair with the lowest rank is merged first, until no known pair is left.
 */

import { NlacError } from "../base/errors.ts";

/** Byte → the printable character that represents it in vocabularies. */
const byteCharacters: readonly string[] = (() => {
  const printable = (byte: number) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
})();

const characterBytes: ReadonlyMap<string, number> = new Map(
  byteCharacters.map((character, byte) => [character, byte]),
);

const utf8 = new TextEncoder();

/** The bytes that an entry of a byte-level vocabulary represents. */
export function bytesOfToken(token: string): Uint8Array {
  const bytes: number[] = [];
  for (const character of token) {
    const byte = characterBytes.get(character);
    // An entry outside the alphabet was not learned from bytes: it represents its own text.
    if (byte === undefined) return utf8.encode(token);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}

/** `text` in the spelling of a byte-level vocabulary: the inverse of `bytesOfToken`. */
export function tokenOfText(text: string): string {
  let spelling = "";
  for (const byte of utf8.encode(text)) spelling += byteCharacters[byte]!;
  return spelling;
}

/** A vocabulary of the 256 bytes, each its own id. */
export function byteVocabulary(): Record<string, number> {
  return Object.fromEntries(byteCharacters.map((character, byte) => [character, byte]));
}

/** The `model` of a byte-level tokenizer.json. */
export function bytePairModel<T extends { vocab: object; merges: unknown[]; ignore_merges: boolean }>(
  own: T,
) {
  return {
    type: "BPE",
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: null,
    end_of_word_suffix: null,
    fuse_unk: false,
    byte_fallback: false,
    ...own,
  };
}

export interface BytePairOptions {
  vocabulary: ReadonlyMap<string, number>;
  /** Ordered by rank. */
  merges: readonly (readonly [string, string])[];
  /** Ids that ordinary text never encodes to, whatever the merges. */
  forbidden: ReadonlySet<number>;
  /** Words in the vocabulary become one token without merging. */
  wholeWords: boolean;
}

/** Maximum length of a cached word; longer ones are rare and need memory. */
const maxRememberedLength = 64;
const maxRemembered = 1 << 16;
const positions = 2 ** 32;

/** Encodes one pre-token at a time. Caches frequent words. */
export class BytePairEncoder {
  readonly #vocabulary: ReadonlyMap<string, number>;
  readonly #forbidden: ReadonlySet<number>;
  readonly #wholeWords: boolean;
  /** Id of each byte; -1 if it is not in the vocabulary. */
  readonly #byteIds = new Int32Array(256);
  /** left · stride + right → rank. */
  readonly #ranks = new Map<number, number>();
  readonly #stride: number;
  /** rank → id of the merged pair. */
  readonly #joined: Int32Array;
  readonly #remembered = new Map<string, readonly number[]>();

  /** Throws ERR_MODEL_FORMAT if a merge names a token that is not in the vocabulary. */
  constructor(options: BytePairOptions) {
    const { vocabulary, merges, forbidden } = options;
    this.#vocabulary = vocabulary;
    this.#forbidden = forbidden;
    this.#wholeWords = options.wholeWords;
    for (let byte = 0; byte < 256; byte++) {
      this.#byteIds[byte] = vocabulary.get(byteCharacters[byte]!) ?? -1;
    }
    let stride = 0;
    for (const id of vocabulary.values()) stride = Math.max(stride, id + 1);
    this.#stride = stride;
    this.#joined = new Int32Array(merges.length);
    for (const [rank, [left, right]] of merges.entries()) {
      const l = vocabulary.get(left);
      const r = vocabulary.get(right);
      const joined = vocabulary.get(left + right);
      if (l === undefined || r === undefined || joined === undefined) {
        throw new NlacError(
          "ERR_MODEL_FORMAT",
          `Merge ${rank} of the tokenizer, ${JSON.stringify(left)} with ${JSON.stringify(right)}, ` +
            "names a token that the vocabulary does not have.",
        );
      }
      if (forbidden.has(joined)) continue;
      this.#ranks.set(l * stride + r, rank);
      this.#joined[rank] = joined;
    }
  }

  /** Appends the ids of `word` to `out`. Unknown bytes are omitted, as in the reference. */
  encode(word: string, out: number[]): void {
    const remembered = this.#remembered.get(word);
    if (remembered !== undefined) {
      for (const id of remembered) out.push(id);
      return;
    }
    const ids = this.#encode(word);
    for (const id of ids) out.push(id);
    if (word.length > maxRememberedLength) return;
    if (this.#remembered.size >= maxRemembered) this.#remembered.clear();
    this.#remembered.set(word, ids);
  }

  #encode(word: string): number[] {
    const bytes = utf8.encode(word);
    if (this.#wholeWords) {
      const whole = this.#vocabulary.get(tokenOfText(word));
      if (whole !== undefined && !this.#forbidden.has(whole)) return [whole];
    }
    const symbols: number[] = [];
    for (const byte of bytes) {
      const id = this.#byteIds[byte]!;
      if (id >= 0) symbols.push(id);
    }
    return symbols.length < 2 ? symbols : this.#merge(symbols);
  }

  /**
   * Merges pairs in the order of (rank, position). The heap contains rank · 2^32 + position of the
   * left symbol. An entry is stale if the pair at its position now has another rank. O(n log n).
   */
  #merge(symbols: number[]): number[] {
    const count = symbols.length;
    const next = new Int32Array(count);
    const previous = new Int32Array(count);
    const heap = new MinHeap();
    const rankAt = (left: number): number | undefined => {
      const right = next[left]!;
      return right === count ? undefined : this.#ranks.get(symbols[left]! * this.#stride + symbols[right]!);
    };
    const push = (left: number) => {
      const rank = rankAt(left);
      if (rank !== undefined) heap.push(rank * positions + left);
    };
    for (let i = 0; i < count; i++) {
      next[i] = i + 1;
      previous[i] = i - 1;
    }
    for (let i = 0; i + 1 < count; i++) push(i);

    for (let entry = heap.pop(); entry !== undefined; entry = heap.pop()) {
      const rank = Math.floor(entry / positions);
      const left = entry - rank * positions;
      if (symbols[left] === gone || rankAt(left) !== rank) continue;
      const right = next[left]!;
      symbols[left] = this.#joined[rank]!;
      symbols[right] = gone;
      next[left] = next[right]!;
      if (next[left]! < count) {
        previous[next[left]!] = left;
        push(left);
      }
      if (previous[left]! >= 0) push(previous[left]!);
    }
    return symbols.filter((symbol) => symbol !== gone);
  }
}

/** Marks a symbol that was merged into its left neighbour. */
const gone = -1;

/** A binary min-heap of numbers. */
class MinHeap {
  readonly #items: number[] = [];

  push(item: number): void {
    const items = this.#items;
    let i = items.push(item) - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (items[parent]! <= item) break;
      items[i] = items[parent]!;
      i = parent;
    }
    items[i] = item;
  }

  pop(): number | undefined {
    const items = this.#items;
    const least = items[0];
    const last = items.pop();
    if (items.length === 0 || last === undefined) return least;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= items.length) break;
      if (child + 1 < items.length && items[child + 1]! < items[child]!) child++;
      if (items[child]! >= last) break;
      items[i] = items[child]!;
      i = child;
    }
    items[i] = last;
    return least;
  }
}
