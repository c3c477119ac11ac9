import { describe, expect, test } from "vitest";
import { Draws } from "../../../lib/environments/tau-bench/draws.ts";

describe("draws", () => {
  test("follow their weights", () => {
    const draws = new Draws(1);
    const counts = { a: 0, b: 0, never: 0 };
    for (let i = 0; i < 4000; i++) {
      counts[
        draws.weighted([
          ["a", 3],
          ["never", 0],
          ["b", 1],
        ] as const)
      ]++;
    }
    expect(counts.never).toBe(0);
    expect(Math.abs(counts.a / 4000 - 0.75)).toBeLessThan(0.03);
  });

  test("a sample preserves the order and draws every item equally often", () => {
    const draws = new Draws(2);
    const seen = new Map<string, number>();
    for (let i = 0; i < 3000; i++) {
      const drawn = draws.sample([1, 2, 3], 2).join();
      seen.set(drawn, (seen.get(drawn) ?? 0) + 1);
    }
    expect([...seen.keys()].sort()).toEqual(["1,2", "1,3", "2,3"]);
    for (const count of seen.values()) expect(Math.abs(count - 1000)).toBeLessThan(120);
    expect(draws.sample([1, 2], 5)).toEqual([1, 2]);
  });
});
