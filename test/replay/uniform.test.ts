import { expect, test } from "vitest";
import { UniformReplay } from "../../lib/replay/uniform.ts";

function filled(capacity: number, counts: readonly number[]): UniformReplay<number> {
  const replay = new UniformReplay<number>(capacity);
  let next = 0;
  for (const count of counts) replay.add(Array.from({ length: count }, () => next++));
  return replay;
}

test("keeps the newest items, however they were added", () => {
  for (const counts of [[7], [1, 1, 1, 1, 1, 1, 1], [0, 6, 1], [2, 5]]) {
    const replay = filled(4, counts);
    expect(replay.size).toBe(4);
    expect(replay.get([0, 1, 2, 3])).toEqual([3, 4, 5, 6]);
  }
  expect(filled(4, [3]).get([2, 0])).toEqual([2, 0]);
});

test("a draw depends on its seed and the number of items only", () => {
  const draw = filled(10, [10]).draw(50, 3);
  expect(filled(10, [4, 9]).draw(50, 3)).toEqual(draw);
  expect(filled(10, [10]).draw(50, 4)).not.toEqual(draw);
});

test("draws uniformly with replacement", () => {
  const [size, count] = [8, 80_000];
  const counts = new Array<number>(size).fill(0);
  for (const index of filled(size, [size]).draw(count, 1)) counts[index]!++;
  // χ² with 7 degrees of freedom exceeds 24.3 with probability 0.001.
  const expected = count / size;
  const chiSquared = counts.reduce((sum, seen) => sum + (seen - expected) ** 2 / expected, 0);
  expect(chiSquared).toBeLessThan(24.3);
  expect(filled(1, [1]).draw(3, 1)).toEqual([0, 0, 0]);
});
