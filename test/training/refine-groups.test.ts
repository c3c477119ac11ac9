import { expect, test } from "vitest";
import { bestOf } from "../../lib/training/refine-groups.ts";

const refinement = (group: number, reward: number, name: string) => ({ group, reward, name });

test("of each group the refinements of the highest reward are taken, ties at random", () => {
  const all = [
    refinement(0, 0.5, "a"),
    refinement(2, 0, "b"),
    refinement(0, 1, "c"),
    refinement(0, 0.5, "d"),
    refinement(2, 0, "e"),
  ];
  const names = (most: number, seed: number) => bestOf(all, most, seed).map(({ name }) => name);
  expect(names(3, 1).sort()).toEqual(["a", "b", "c", "d", "e"]);
  const ties = new Set<string>();
  for (let seed = 0; seed < 40; seed++) {
    const [first, second] = names(1, seed);
    expect(first).toBe("c");
    ties.add(second!);
    expect(names(1, seed)).toEqual([first, second]);
    expect(names(2, seed).slice(0, 1)).toEqual(["c"]);
  }
  expect([...ties].sort()).toEqual(["b", "e"]);
  // Rewards of an episode, added up in another order.
  const rounded = [refinement(0, 0.1 + (0.2 + 0.3), "a"), refinement(0, 0.1 + 0.2 + 0.3, "b")];
  const firsts = Array.from({ length: 40 }, (_, seed) => bestOf(rounded, 1, seed)[0]!.name);
  expect([...new Set(firsts)].sort()).toEqual(["a", "b"]);
  expect(bestOf([], 2, 0)).toEqual([]);
});
