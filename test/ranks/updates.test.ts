/**
 * Many updates on several ranks against one learner. NLAC_RANK_UPDATES=50 compares 50 updates of
 * every method on 2, 3 and 4 ranks with each sharding, and prints the table of docs/scaling.md.
 */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import type { LearnerSource } from "../../lib/ranks/protocol.ts";
import {
  largestDifference,
  learnerOptions,
  type Method,
  methods,
  trainedBytes,
  updates,
  weightDifference,
} from "../support/rank-updates.ts";
import { RankPool } from "../support/ranks.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

vi.setConfig({ testTimeout: 1_200_000, hookTimeout: 600_000 });

const long = process.env.NLAC_RANK_UPDATES !== undefined;
const count = Number(process.env.NLAC_RANK_UPDATES ?? 4);
/** Updates that are repeated. */
const repeated = Math.min(count, 4);
const { microBatchTokens } = learnerOptions;
/** Of weights (relative) and of losses. */
const limit = 1e-5;

type Case = readonly [ranks: number, sharding: 1 | 2 | 3];
const all = [2, 3, 4].flatMap((ranks) => ([1, 2, 3] as const).map((sharding): Case => [ranks, sharding]));
const cases: Record<Method, readonly Case[]> = long
  ? { nlac: all, ppo: all, hope: all }
  : { nlac: [[4, 2]], ppo: [[3, 3]], hope: [[2, 1]] };

const pool = new RankPool();
afterAll(async () => {
  expect(await pool.close()).toEqual([0, 0, 0]);
});

function create(sharding: LearnerSource["options"]["sharding"]): LearnerSource {
  return {
    kind: "create",
    config: tinyConfig,
    tokenizer: undefined,
    options: { ...learnerOptions, sharding },
  };
}

describe.each(methods)("updates of %s", (method) => {
  let expected: number[][];
  let alone: string;
  beforeAll(async () => {
    const learner = await Learner.create(tinyConfig, learnerOptions);
    expected = await updates(learner, method, 0, count);
    alone = mkdtempSync(join(tmpdir(), "nlac-"));
    await learner.save(alone);
    await learner.dispose();
  });
  afterAll(() => rmSync(alone, { recursive: true }));

  test.each(cases[method])(
    "on %i ranks with sharding %i are those of one learner, and the same when repeated",
    async (ranks, sharding) => {
      const once = async (directory: string, times: number) => {
        const model = await pool.open(ranks, create(sharding));
        const figures = await updates(model, method, 0, times);
        await model.save(directory);
        await model.dispose();
        return figures;
      };
      await inDirectory(async (directory) => {
        const [first, again] = [join(directory, "first"), join(directory, "again")];
        const figures = await once(first, count);
        const losses = largestDifference(figures, expected);
        const weights = weightDifference(first, alone);
        const shown = [losses, weights].map((value) => value.toExponential(1));
        if (long) process.stdout.write(`| ${[method, ranks, sharding, ...shown].join(" | ")} |\n`);
        expect(losses).toBeLessThan(limit);
        expect(weights).toBeLessThan(limit);
        // They do not compute in the order of one learner: equal bits would mean that one computes all.
        expect(weights).toBeGreaterThan(0);
        expect(await once(again, repeated)).toEqual(figures.slice(0, repeated));
        if (repeated === count) expect(trainedBytes(again)).toEqual(trainedBytes(first));
      });
    },
  );

  test("saved by 2 ranks are continued by 1 and by 3", async () => {
    const half = count / 2;
    await inDirectory(async (directory) => {
      const saved = join(directory, "saved");
      const two = await pool.open(2, create(2));
      const figures = await updates(two, method, 0, half);
      await two.save(saved);
      await two.dispose();
      for (const [ranks, sharding] of [
        [1, 1],
        [3, 3],
      ] as const) {
        const [same, end] = [join(directory, `same-${ranks}`), join(directory, `end-${ranks}`)];
        const options = { dtype: "float32", sharding, microBatchTokens } as const;
        const model = await pool.open(ranks, { kind: "resume", directory: saved, options });
        await model.save(same);
        expect(trainedBytes(same)).toEqual(trainedBytes(saved));
        const rest = await updates(model, method, half, count);
        await model.save(end);
        await model.dispose();
        expect(largestDifference([...figures, ...rest], expected)).toBeLessThan(limit);
        expect(weightDifference(end, alone)).toBeLessThan(limit);
      }
    });
  });
});
