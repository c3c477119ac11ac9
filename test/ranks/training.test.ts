/** `nlac train` on several ranks, each a process. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { expect, test, vi } from "vitest";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import { nlac } from "../support/command-line.ts";
import { freePort, startNlac, startRank } from "../support/ranks.ts";
import { inDirectory } from "../support/tiny.ts";

/** Of the comparison of episodes: NLAC_RANK_UPDATES=50 makes it longer. */
const long = Number(process.env.NLAC_RANK_UPDATES ?? 0);
const [iterations, perIteration] = long > 0 ? [Math.ceil(long / 5), 5] : [2, 2];
const small = [
  "config.iterations=2",
  "config.episodesPerIteration=4",
  "config.updatesPerIteration=2",
  "config.batchSize=4",
  "config.rehearsal=2",
  "run.checkpointSeconds=0",
].flatMap((change) => ["--set", change]);

/** The tasks, completions and rewards of a run's episodes. */
function played(run: string): unknown[] {
  const records = [...readRecords<EpisodeRecord>(join(run, "trajectories.jsonl"))];
  return records.map(({ task, reward, turns }) => ({ task, reward, texts: turns.map(({ text }) => text) }));
}

test.each([
  [2, false],
  [3, false],
  [3, true],
])(
  "two ranks play the episodes of one process, and a repeated command finds the run finished: sharding %i, layerwise %s",
  async (sharding, layerwise) => {
    await inDirectory(async (directory) => {
      const one = join(directory, "one");
      const two = join(directory, "two");
      const rounds = [`config.iterations=${iterations}`, `config.updatesPerIteration=${perIteration}`];
      const settings = [...small, ...rounds.flatMap((change) => ["--set", change])];
      expect(await nlac("train", "errands", ...settings, "--run", one)).toMatchObject({ code: 0 });
      const command = [
        "train",
        "errands",
        ...settings,
        "--set",
        `learner.sharding=${sharding}`,
        "--set",
        `learner.layerwiseGeneration=${layerwise}`,
        "--run",
        two,
      ];
      const ranks = await startNlac(2, ...command);
      const [first, second] = await Promise.all(ranks.map(({ exited }) => exited));
      expect(first).toMatchObject({ code: 0, output: expect.stringContaining("Done after") });
      expect(second).toMatchObject({ code: 0, output: "" });
      expect(second!.errors).toMatch(
        /^\[rank 1 of 2 on .*\] joined rank 0 at 127\.0\.0\.1:\d+, .*\n\[rank 1 .*\] ended with rank 0\n$/,
      );
      expect(played(two)).toEqual(played(one));

      const again = await Promise.all((await startNlac(2, ...command)).map(({ exited }) => exited));
      expect(again.map(({ code }) => code)).toEqual([0, 0]);
      expect(again[0]!.output).toContain(`${iterations * perIteration} updates`);
      const other = await startNlac(1, "train", "errands", "--run", two);
      const refused = await other[0]!.exited;
      expect(refused.code).toBe(1);
      expect(refused.errors).toMatch(/ERR_RUN: \[rank 0 on .*another recipe/);
    });
  },
  600_000,
);

test("a rank that finds no rank 0 says so in one line", async () => {
  vi.stubEnv("NLAC_PEER_TIMEOUT", "7");
  const alone = startRank(1, 2, await freePort(), "lib/cli/main.ts", "train", "errands");
  vi.unstubAllEnvs();
  const { code, errors } = await alone.exited;
  expect(code).toBe(1);
  const lines = errors.trim().split("\n");
  expect(lines[0]).toMatch(/^\[rank 1 of 2 on .*\] waiting for rank 0 at 127\.0\.0\.1:\d+, for up to 7 s …$/);
  expect(lines[1]).toMatch(
    /^nlac: ERR_PEER: \[rank 1 on .*\] the store of the ranks at .* did not answer for 7 s/,
  );
  expect(lines).toHaveLength(2);
}, 120_000);

test("SIGTERM to all ranks saves a checkpoint, from which the same command continues", async () => {
  await inDirectory(async (directory) => {
    const run = join(directory, "run");
    const settings = [
      ...small,
      "--set",
      "config.updatesPerIteration=40",
      "--set",
      "run.checkpointSeconds=3600",
    ];
    const command = ["train", "errands", ...settings, "--run", run];
    const ranks = await startNlac(2, ...command);
    const metrics = join(run, "metrics.jsonl");
    const rows = () => (existsSync(metrics) ? [...readRecords(metrics)].length : 0);
    while (rows() < 3) await setTimeout(100);
    for (const { child } of ranks) child.kill("SIGTERM");
    const ended = await Promise.all(ranks.map(({ exited }) => exited));
    expect(ended.map(({ code }) => code)).toEqual([0, 0]);
    expect(ended[0]!.output).toContain("Stopped after");
    expect(ended[0]!.output).toContain(`nlac train --resume --run ${run}   (on every rank, or on one)`);
    const updates = rows();
    const again = await Promise.all((await startNlac(2, ...command)).map(({ exited }) => exited));
    expect(again.map(({ code }) => code)).toEqual([0, 0]);
    expect(again[0]!.output).toContain("80 updates");
    expect(rows()).toBeGreaterThan(updates); // what was done before is not repeated
    expect((await nlac("verify", run)).code).toBe(0);
  });
}, 600_000);

test("a killed rank ends all with ERR_PEER, and the same command on one rank continues the run", async () => {
  await inDirectory(async (directory) => {
    const run = join(directory, "run");
    const command = (updates: number) => {
      const changes = [`config.updatesPerIteration=${updates}`, "learner.sharding=1"];
      return ["train", "errands", ...small, ...changes.flatMap((one) => ["--set", one]), "--run", run];
    };
    const ranks = await startNlac(2, ...command(6));
    for (let i = 0; !existsSync(join(run, "latest")); i++) {
      if (i > 3000) throw new Error("The run does not begin.");
      await setTimeout(100);
    }
    const killed = performance.now();
    ranks[1]!.child.kill("SIGKILL");
    const { code, errors } = await ranks[0]!.exited;
    expect(performance.now() - killed).toBeLessThan(120_000);
    expect(code).toBe(1);
    expect(errors).toContain("ERR_PEER");
    const resumed = await (await startNlac(1, ...command(6)))[0]!.exited;
    expect(resumed).toMatchObject({ code: 0, output: expect.stringContaining("12 updates") });
    expect((await nlac("verify", run)).code).toBe(0);
  });
}, 600_000);
