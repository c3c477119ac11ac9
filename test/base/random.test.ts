import { describe, expect, it } from "vitest";
import { derivedSeed, permutation, philox, streams, uniform } from "../../lib/base/random.ts";

describe("philox", () => {
  // The known answers of the authors' Random123 library, kat_vectors, philox4x32 with 10 rounds.
  it("gives the authors' words for zeros", () => {
    expect([...philox(0, 0, 0)].map((word) => word.toString(16))).toEqual([
      "6627e8d5",
      "e169c58d",
      "bc57ac4c",
      "9b00dbd8",
    ]);
  });

  it("changes all words with the seed, the stream and the counter, also above 32 bits", () => {
    const base = [...philox(1, 2, 3)];
    for (const other of [philox(2, 2, 3), philox(1, 3, 3), philox(1, 2, 4), philox(1, 2, 3 + 2 ** 40)]) {
      for (const [i, word] of [...other].entries()) expect(word).not.toBe(base[i]);
    }
    expect([...philox(1, 2, 3)]).toEqual(base);
  });
});

describe("numbers derived from it", () => {
  it("are uniform in [0, 1)", () => {
    const numbers = Array.from({ length: 20_000 }, (_, i) => uniform(7, streams.policy, i));
    expect(Math.min(...numbers)).toBeGreaterThanOrEqual(0);
    expect(Math.max(...numbers)).toBeLessThan(1);
    const tenths = new Array<number>(10).fill(0);
    for (const number of numbers) tenths[Math.floor(number * 10)]!++;
    for (const count of tenths) expect(Math.abs(count - 2000)).toBeLessThan(5 * Math.sqrt(2000));
  });

  it("differ between streams: no two uses have the same number", () => {
    expect(new Set(Object.values(streams)).size).toBe(Object.values(streams).length);
  });

  it("are seeds that a safe integer holds", () => {
    const seeds = Array.from({ length: 1000 }, (_, i) => derivedSeed(5, streams.episode, i));
    expect(seeds.every(Number.isSafeInteger)).toBe(true);
    expect(new Set(seeds).size).toBe(seeds.length);
  });

  it("are permutations, each equally likely", () => {
    const counts = new Map<string, number>();
    for (let seed = 0; seed < 6000; seed++) {
      const order = permutation(3, seed, streams.split);
      expect([...order].sort()).toEqual([0, 1, 2]);
      counts.set(order.join(), (counts.get(order.join()) ?? 0) + 1);
    }
    expect(counts.size).toBe(6);
    for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(5 * Math.sqrt(1000));
  });
});
