import { existsSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";

const root = join(import.meta.dirname, "../..");

interface Report {
  counts?: Record<string, number>;
  failure?: { number: number; message: string };
}

it("withstands some hundred hostile requests", { timeout: 600_000 }, async ({ skip }) => {
  if (!existsSync(join(root, "dist/index.js"))) skip("the package was not built");
  const { run } = await import(join(root, "scripts/torture/server.mjs"));
  const failures: unknown[] = [];
  const counts: Record<string, number> = {};
  await run({
    // A batch of few turns of the event loop has a p99 that is its longest turn.
    ...{ runs: 450, seed: 1, smallBatches: 24, largest: 0.1, hold: 1000 },
    report(part: Report) {
      if (part.failure) failures.push(part.failure);
      for (const [name, count] of Object.entries(part.counts ?? {}))
        counts[name] = (counts[name] ?? 0) + count;
    },
  });
  expect(failures).toEqual([]);
  expect(counts["status 200"]).toBeGreaterThan(0);
  expect(counts["status 400"]).toBeGreaterThan(0);
});
