import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PrefixPlaces, sharesOf } from "../../lib/ranks/shares.ts";

describe("shares", () => {
  test("hold every item once, in order, and are about equal", () => {
    fc.assert(
      fc.property(
        fc.array(fc.nat(2000), { maxLength: 60 }),
        fc.integer({ min: 1, max: 9 }),
        (sizes, count) => {
          const shares = sharesOf(sizes, count);
          expect(shares).toHaveLength(count);
          expect(shares.flat().sort((a, b) => a - b)).toEqual([...sizes.keys()]);
          for (const share of shares) expect(share).toEqual([...share].sort((a, b) => a - b));
          const loads = shares.map((share) => share.reduce((sum, i) => sum + sizes[i]!, 0));
          expect(Math.max(...loads) - Math.min(...loads)).toBeLessThanOrEqual(Math.max(0, ...sizes));
        },
      ),
    );
  });

  test("respect items that have no choice", () => {
    expect(sharesOf([5, 5, 5, 5], 2, (i) => (i < 2 ? 0 : undefined))).toEqual([
      [0, 1],
      [2, 3],
    ]);
  });
});

describe("conversations", () => {
  const ids = (start: number, length: number) => Array.from({ length }, (_, i) => start + i);

  test("are forgotten from the oldest on, so that a run of days stays in memory", () => {
    const places = new PrefixPlaces(2, 100);
    const [old, used] = [ids(0, 64), ids(100, 64)];
    for (const prompt of [old, used]) places.note(prompt, "online", 1);
    for (let other = 0; other < 30; other++) {
      places.note(ids(1000 * (other + 1), 64), "online", 0);
      places.note(used, "online", 1);
    }
    expect(places.owner(old, "online")).toBeUndefined();
    expect(places.owner(used, "online")).toBe(1);
  });

  test("return to the rank that has their prefix", () => {
    const places = new PrefixPlaces(2);
    const prompts = [ids(0, 64), ids(1000, 64), ids(2000, 64), ids(3000, 64)];
    const keys = prompts.map(() => "online");
    const first = places.shares(prompts, keys, [64, 64, 64, 64]);
    for (const [rank, part] of first.entries())
      for (const i of part) places.note(prompts[i]!, keys[i]!, rank);
    // In another order, and longer.
    const later = prompts.map((prompt, i) => [...prompt, ...ids(9000 + i, 20)]).reverse();
    const second = places.shares(later, keys, [84, 84, 84, 84]);
    const owner = (shares: number[][], i: number) => shares.findIndex((share) => share.includes(i));
    for (const i of prompts.keys()) expect(owner(second, 3 - i)).toBe(owner(first, i));
    // θ̄ has other caches, and a change of the weights drops them.
    expect(places.shares([later[0]!], ["target"], [84])).toEqual([[0], []]);
    places.clear();
    expect(places.shares([later[3]!, later[2]!], keys, [84, 84])).toEqual([[0], [1]]);
  });

  test("that share a prefix are still spread", () => {
    const places = new PrefixPlaces(4);
    const system = ids(0, 160);
    places.note(system, "online", 2);
    const prompts = Array.from({ length: 16 }, (_, i) => [...system, ...ids(500 + 50 * i, 20)]);
    const shares = places.shares(
      prompts,
      prompts.map(() => "online"),
      prompts.map(() => 180),
    );
    expect(Math.max(...shares.map((share) => share.length))).toBeLessThanOrEqual(5);
    expect(shares[2]!.length).toBeGreaterThanOrEqual(4);
  });
});
