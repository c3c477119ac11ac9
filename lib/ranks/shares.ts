/**
 * Decides which rank computes which text. The decision depends on the calls only, so that runs
 * repeat.
 */

/**
 * Splits items into shares of about equal size: the largest first, each to the share that is
 * smallest.
 *
 * @param sizes of the items, in tokens
 * @param fixed the share of an item that has no choice
 * @returns per share the indices of its items, ascending
 */
export function sharesOf(
  sizes: readonly number[],
  shares: number,
  fixed: (item: number) => number | undefined = () => undefined,
): number[][] {
  const loads = new Array<number>(shares).fill(0);
  const owners = new Array<number>(sizes.length);
  const give = (item: number, share: number) => {
    owners[item] = share;
    loads[share]! += sizes[item]!;
  };
  const free: number[] = [];
  for (const item of sizes.keys()) {
    const share = fixed(item);
    if (share === undefined) free.push(item);
    else give(item, share);
  }
  free.sort((a, b) => sizes[b]! - sizes[a]! || a - b);
  for (const item of free) give(item, loads.indexOf(Math.min(...loads)));
  return loads.map((_, share) => [...sizes.keys()].filter((item) => owners[item] === share));
}

/** Tokens of a block of the KV cache. */
const blockTokens = 16;
/** Maximum number of prefixes that are remembered; the oldest are forgotten first. */
const maxKnown = 2 ** 20;
/** A rank with cached prefixes takes at most this multiple of an equal share of a call. */
const largestLoad = 1.25;

/**
 * Sends a conversation to the rank that has its prefix in its KV cache, unless that rank has too
 * much to do. Prefixes are known by hashes of whole blocks.
 */
export class PrefixPlaces {
  readonly #ranks: number;
  readonly #most: number;
  #owners = new Map<string, number>();
  /** What was noted before. */
  #earlier: ReadonlyMap<string, number> = new Map();

  constructor(ranks: number, most = maxKnown) {
    this.#ranks = ranks;
    this.#most = most;
  }

  /** Forgets everything, as caches do when the weights change. */
  clear(): void {
    this.#owners = new Map();
    this.#earlier = new Map();
  }

  /** Splits a call's prompts; `sizes` are in tokens. Keys keep the caches of θ and θ̄ apart. */
  shares(
    prompts: readonly (readonly number[])[],
    keys: readonly string[],
    sizes: readonly number[],
  ): number[][] {
    const most = (largestLoad * sizes.reduce((sum, size) => sum + size, 0)) / this.#ranks;
    const loads = new Array<number>(this.#ranks).fill(0);
    const wanted = prompts.map((prompt, i) => this.owner(prompt, keys[i]!));
    return sharesOf(sizes, this.#ranks, (item) => {
      const rank = wanted[item];
      if (rank === undefined || loads[rank]! + sizes[item]! > most) return undefined;
      loads[rank]! += sizes[item]!;
      return rank;
    });
  }

  /** Notes that `rank` has the blocks of a text in its cache. */
  note(ids: readonly number[], key: string, rank: number): void {
    for (const hash of blockHashes(ids, key)) {
      this.#owners.set(hash, rank);
      if (this.#owners.size < this.#most / 2) continue;
      this.#earlier = this.#owners;
      this.#owners = new Map();
    }
  }

  /** The rank with the longest known prefix, if it is more than half of the prompt. */
  owner(prompt: readonly number[], key: string): number | undefined {
    const hashes = blockHashes(prompt, key);
    for (let block = hashes.length; 2 * block * blockTokens > prompt.length; block--) {
      const hash = hashes[block - 1]!;
      const rank = this.#owners.get(hash) ?? this.#earlier.get(hash);
      if (rank !== undefined) return rank;
    }
    return undefined;
  }
}

/** The hash of every prefix of whole blocks. */
function blockHashes(ids: readonly number[], key: string): string[] {
  const hashes: string[] = [];
  let [a, b] = [0x811c9dc5, 0x01000193];
  for (let i = 0; i + blockTokens <= ids.length; i += blockTokens) {
    for (let j = i; j < i + blockTokens; j++) {
      a = Math.imul(a ^ ids[j]!, 0x01000193) >>> 0;
      b = (Math.imul(b, 0x85ebca6b) + ids[j]!) >>> 0;
    }
    hashes.push(`${key}${i}:${a}:${b}`);
  }
  return hashes;
}
