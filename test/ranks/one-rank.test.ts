/**
 * One rank against no ranks, on the CPU through Gloo, or with NLAC_TEST_DEVICE=cuda on a GPU through NCCL. The second
 * also prints what one rank costs.
 */

import { join } from "node:path";
import { expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import { testDevice } from "../support/device.ts";
import {
  largestDifference,
  learnerOptions,
  methods,
  updates,
  weightDifference,
} from "../support/rank-updates.ts";
import { openRanks } from "../support/ranks.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

const options = { ...learnerOptions, device: testDevice };
// A GPU's sums depend on the order of its threads.
const limit = testDevice === "cpu" ? 0 : 1e-5;

test.each(methods)("updates of %s on one rank are those of none, with every sharding", async (method) => {
  await inDirectory(async (directory) => {
    const alone = await Learner.create(tinyConfig, options);
    const began = performance.now();
    const expected = await updates(alone, method, 0, 4);
    const ofNone = performance.now() - began;
    await alone.save(join(directory, "alone"));
    await alone.dispose();
    for (const sharding of ["none", 1, 2, 3] as const) {
      const source = { kind: "create", config: tinyConfig, tokenizer: undefined } as const;
      const { model } = await openRanks(1, { ...source, options: { ...options, sharding } }, testDevice);
      const started = performance.now();
      const figures = await updates(model, method, 0, 4);
      if (testDevice !== "cpu") {
        const ratio = ((performance.now() - started) / ofNone).toFixed(2);
        console.log(`${method}, one rank, sharding ${sharding}: ${ratio} × the time of none`);
      }
      const saved = join(directory, `${sharding}`);
      await model.save(saved);
      await model.dispose();
      expect(largestDifference(figures, expected)).toBeLessThanOrEqual(limit);
      expect(weightDifference(saved, join(directory, "alone"))).toBeLessThanOrEqual(limit);
    }
  });
});
