/** `nlac train` under torchrun, the launcher that comes with Python's torch. */

import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { readRecords } from "../../lib/files/records.ts";
import type { MetricsRow } from "../../lib/run/directory.ts";
import { inDirectory } from "../support/tiny.ts";

const root = join(import.meta.dirname, "../..");
const torchrun = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "nlac/peers/bin/torchrun");

test("torchrun trains the quickstart on two ranks", async (context) => {
  if (!existsSync(torchrun)) context.skip("torchrun is not there: scripts/peers.sh installs it.");
  await inDirectory(async (directory) => {
    const run = join(directory, "run");
    const settings = [
      ...["config.iterations=1", "config.episodesPerIteration=4", "config.updatesPerIteration=2"],
      ...["config.batchSize=4", "config.rehearsal=2", "config.evaluation.episodes=4"],
    ].flatMap((change) => ["--set", change]);
    const command = [process.execPath, "--import", "jiti/register", "lib/cli/main.ts"];
    const launch = ["--standalone", "--nproc-per-node", "2", "--no-python", "--", ...command];
    const options = { cwd: root, env: { ...process.env, NLAC_THREADS: "1" } };
    const { stdout } = await promisify(execFile)(
      torchrun,
      [...launch, "train", "quickstart", ...settings, "--run", run],
      options,
    );
    expect(stdout.match(/Done after/g)).toHaveLength(1); // rank 0 alone reports
    expect(stdout).toContain("4 episodes");
    const rows = [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))];
    const losses = rows.flatMap(({ values }) => values["loss/l1"] ?? []);
    expect(losses).toHaveLength(2);
    for (const loss of losses) expect(loss).toBeGreaterThan(0);
    expect(readFileSync(join(run, "status.json"), "utf8")).toContain('"finished"');
  });
}, 600_000);
