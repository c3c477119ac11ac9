/** `scripts/measure-ranks.mjs`, which makes the tables of docs/scaling.md, on a very small model. */

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const file = (path: string) => new URL(`../../${path}`, import.meta.url);
interface Result {
  ranks: number;
  sharding: string | number;
  layerwise: boolean;
  plan: { sent: Record<string, number> };
  measured: { held: number; peak: number; tokensPerSecond: number; sent?: Record<string, number> };
}

const built = existsSync(file("dist/index.js"));

test.skipIf(!built)(
  "memory, traffic and speed of ranks are measured beside the plan",
  async () => {
    const args = ["--quick", "--json", "--ranks", "1,2", "--sharding", "1,3,3-layerwise"];
    args.push("--updates", "1");
    const script = file("scripts/measure-ranks.mjs").pathname;
    const { stdout } = await promisify(execFile)(process.execPath, [script, ...args]);
    const results: Result[] = JSON.parse(stdout);
    expect(results.map(({ ranks, sharding, layerwise }) => [ranks, sharding, layerwise])).toEqual([
      [1, "none", false],
      [2, 1, false],
      [2, 3, false],
      [2, 3, true],
    ]);
    for (const { ranks, sharding, layerwise, plan, measured } of results) {
      // The model is smaller than what Node's heap gains or frees meanwhile.
      expect(measured.held).toEqual(expect.any(Number));
      expect(measured.peak).toBeGreaterThanOrEqual(measured.held);
      expect(measured.tokensPerSecond).toBeGreaterThan(0);
      // Without namespaces of its own the script does not count bytes.
      if (ranks === 1 || measured.sent === undefined) continue;
      for (const step of ["critic", "policy"]) {
        const ratio = measured.sent[step]! / plan.sent[step]!;
        expect(ratio).toBeGreaterThan(0.95);
        expect(ratio).toBeLessThan(4); // the texts and headers too, which are much here
      }
      if (sharding !== 3) continue;
      // 2 layers of 53,376 bfloat16 parameters, half of them this rank's; layer by layer for each of
      // 16 tokens.
      expect(plan.sent.generation).toBe(106_752 * (layerwise ? 16 : 1));
      const ratio = measured.sent.generation! / plan.sent.generation!;
      expect(ratio).toBeGreaterThan(0.95);
      expect(ratio).toBeLessThan(layerwise ? 1.2 : 1.5);
    }
  },
  300_000,
);
