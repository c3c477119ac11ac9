import { expect, it, vi } from "vitest";
import { inSlices } from "../../lib/base/slices.ts";

it("one slice of many loops runs in an iteration of the event loop", async () => {
  let ms = 0;
  const clock = vi.spyOn(performance, "now").mockImplementation(() => (ms += 10));
  let steps = 0;
  const most: number[] = [];
  let before = 0;
  let watched: NodeJS.Immediate;
  const watch = () => {
    most.push(steps - before);
    before = steps;
    watched = setImmediate(watch);
  };
  try {
    const loops = Array.from({ length: 20 }, async () => {
      for await (const _ of inSlices([1, 2, 3, 4])) steps++;
    });
    await Promise.resolve();
    before = steps; // the first slices
    watched = setImmediate(watch);
    await Promise.all(loops);
    expect(steps).toBe(80);
    expect(Math.max(...most.slice(1))).toBeLessThanOrEqual(1);
  } finally {
    clearImmediate(watched!);
    clock.mockRestore();
  }
});
