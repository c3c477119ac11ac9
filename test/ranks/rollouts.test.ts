/** `rollouts` of a training on several ranks: rank 0 sends the weights of all. */

import { join } from "node:path";
import { expect, test } from "vitest";
import { readRecords } from "../../lib/files/records.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { inferenceServer } from "../support/inference-server.ts";
import { startNlac } from "../support/ranks.ts";
import { inDirectory } from "../support/tiny.ts";

test("a server plays with the weights of two ranks, each with a part of them", async () => {
  await inDirectory(async (directory) => {
    const open = () => Learner.load("errands-base", { dtype: "float32" });
    const server = await inferenceServer({ engine: "vllm", open });
    const run = join(directory, "run");
    const rollouts = { engine: "vllm", urls: [server.url], shared: join(directory, "shared") };
    const changes = [
      ...["config.iterations=2", "config.episodesPerIteration=4", "config.updatesPerIteration=2"],
      ...["config.batchSize=4", "config.rehearsal=2", "learner.sharding=2"],
      `rollouts=${JSON.stringify(rollouts)}`,
    ];
    const set = changes.flatMap((change) => ["--set", change]);
    try {
      const ranks = await startNlac(2, "train", "errands", ...set, "--run", run);
      const ended = await Promise.all(ranks.map(({ exited }) => exited));
      expect(ended.map(({ code }) => code)).toEqual([0, 0]);
    } finally {
      await server.close();
    }
    const rows = [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))].map(({ values }) => values);
    const played = rows.filter((values) => values["rollouts/answers"] !== undefined);
    expect(played.map((values) => values["rollouts/version"])).toEqual([1, 2]);
    for (const values of played) expect(values["rollouts/log_prob_difference_max"]).toBeLessThan(1e-4);
  });
}, 600_000);
