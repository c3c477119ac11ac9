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

export interface PairOptions {
  vocabulary: ReadonlyMap<string, number>;
  /** In order of rank. */
  merges: readonly (readonly [string, string])[];
  /** The rank of each merge, if several have the same; ranks never decrease. Default: its index. */
  ranks?: readonly number[] | undefined;
  /** Ids that ordinary text never encodes to, whatever the merges. */
  forbidden: ReadonlySet<number>;
  /** Words in the vocabulary become one token without merging. */
  wholeWords: boolean;
}

const positions = 2 ** 32;
/** The product of a rank and `positions` must be exact in a double. */
const maxMerges = 2 ** 21;

/** Merges adjacent symbols: the pair of the lowest rank first, and of several the leftmost. */
export class PairMerger {
  /** left · stride + right → index of the merge. */
  readonly #merges = new Map<number, number>();
  readonly #stride: number;
  /** By merge: its rank, and the id of the merged pair. */
  readonly #ranks: Int32Array;
  readonly #joined: Int32Array;

  /** Throws ERR_MODEL_FORMAT if a merge names a token that is not in the vocabulary. */
  constructor({ vocabulary, merges, ranks, forbidden }: PairOptions) {
    if (merges.length > maxMerges) {
      throw new NlacError("ERR_MODEL_FORMAT", `The tokenizer has more than ${maxMerges} merges.`);
    }
    let stride = 0;
    for (const id of vocabulary.values()) stride = Math.max(stride, id + 1);
    this.#stride = stride;
    this.#ranks = Int32Array.from(merges, (_, i) => ranks?.[i] ?? i);
    this.#joined = new Int32Array(merges.length);
    for (const [i, [left, right]] of merges.entries()) {
      const l = vocabulary.get(left);
      const r = vocabulary.get(right);
      const joined = vocabulary.get(left + right);
      if (l === undefined || r === undefined || joined === undefined) {
        throw new NlacError(
          "ERR_MODEL_FORMAT",
          `Merge ${i} of the tokenizer, ${JSON.stringify(left)} with ${JSON.stringify(right)}, ` +
            "names a token that the vocabulary does not have.",
        );
      }
      if (forbidden.has(joined)) continue;
      this.#merges.set(l * stride + r, i);
      this.#joined[i] = joined;
    }
  }

  /**
   * The symbols after all merges; changes `symbols`. The heap contains rank · 2^32 + position of
   * the left symbol. An entry is stale if the pair at its position now has another rank. O(n log
   * n).
   */
  merge(symbols: number[]): number[] {
    const count = symbols.length;
    if (count < 2) return symbols;
    const next = new Int32Array(count);
    const previous = new Int32Array(count);
    const heap = new MinHeap();
    const mergeAt = (left: number): number | undefined => {
      const right = next[left]!;
      return right === count ? undefined : this.#merges.get(symbols[left]! * this.#stride + symbols[right]!);
    };
    const push = (left: number) => {
      const merge = mergeAt(left);
      if (merge !== undefined) heap.push(this.#ranks[merge]! * positions + left);
    };
    for (let i = 0; i < count; i++) {
      next[i] = i + 1;
      previous[i] = i - 1;
    }
    for (let i = 0; i + 1 < count; i++) push(i);

    for (let entry = heap.pop(); entry !== undefined; entry = heap.pop()) {
      const rank = Math.floor(entry / positions);
      const left = entry - rank * positions;
      if (symbols[left] === gone) continue;
      const merge = mergeAt(left);
      if (merge === undefined || this.#ranks[merge] !== rank) continue;
      const right = next[left]!;
      symbols[left] = this.#joined[merge]!;
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

/** Encodes one pre-token at a time. */
export interface WordEncoder {
  /** Appends the ids of `word` to `out`. */
  encode(word: string, out: number[]): void;
}

/** Maximum length of a cached word; longer ones are rare and need memory. */
const maxRememberedLength = 64;
const maxRemembered = 1 << 16;

/** Caches frequent words. */
export class RememberedWords implements WordEncoder {
  readonly #encode: (word: string) => readonly number[];
  readonly #remembered = new Map<string, readonly number[]>();

  constructor(encode: (word: string) => readonly number[]) {
    this.#encode = encode;
  }

  encode(word: string, out: number[]): void {
    let ids = this.#remembered.get(word);
    if (ids === undefined) {
      ids = this.#encode(word);
      if (word.length <= maxRememberedLength) {
        if (this.#remembered.size >= maxRemembered) this.#remembered.clear();
        this.#remembered.set(word, ids);
      }
    }
    for (const id of ids) out.push(id);
  }
}

/**
 * The encoder of byte-level vocabularies. Bytes without an id are omitted, as in the reference.
 *
 * @throws NlacError ERR_MODEL_FORMAT if a merge names a token that is not in the vocabulary
 */
export function bytePairEncoder(options: PairOptions): WordEncoder {
  const { vocabulary, forbidden, wholeWords } = options;
  const byteIds = Int32Array.from(byteCharacters, (character) => vocabulary.get(character) ?? -1);
  const merger = new PairMerger(options);
  return new RememberedWords((word) => {
    const bytes = utf8.encode(word);
    if (wholeWords) {
      const whole = vocabulary.get(tokenOfText(word));
      if (whole !== undefined && !forbidden.has(whole)) return [whole];
    }
    const symbols: number[] = [];
    for (const byte of bytes) {
      const id = byteIds[byte]!;
      if (id >= 0) symbols.push(id);
    }
    return merger.merge(symbols);
  });
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
