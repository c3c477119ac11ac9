import { setImmediate as nextIteration } from "node:timers/promises";
import { expect, it } from "vitest";
import { afterRunning } from "../../lib/base/timer.ts";

it("a limit counts a pause of the process as a tenth, and fires after ten tenths", async () => {
  const begun = performance.now();
  let late = 0;
  afterRunning(200, () => late++);
  let ticks = 0;
  for (; late === 0; ticks++) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
    await nextIteration();
  }
  expect(ticks).toBeGreaterThanOrEqual(10);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(late).toBe(1);

  const stop = afterRunning(10, () => late++);
  stop();
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(late).toBe(1);
  expect(performance.now() - begun).toBeGreaterThan(3000);
});
