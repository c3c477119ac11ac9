import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const root = fileURLToPath(new URL("../..", import.meta.url));

// scripts/torture/flips.mjs uses the compiled package; `npm test` builds it first.
test.skipIf(!existsSync(`${root}dist/run/checkpoints.js`))(
  "damage to a random file of a run is an error, a warning, or harmless",
  { timeout: 600_000 },
  async () => {
    const { run } = await import(`${root}scripts/torture/flips.mjs`);
    const lines: string[] = [];
    const counts = await run({ runs: 60, seed: 5, report: (line: string) => lines.push(line) });
    expect(lines).toEqual([]);
    expect(counts.silent).toBe(0);
    expect(counts.detected + counts.fallback).toBeGreaterThan(20);
  },
);
