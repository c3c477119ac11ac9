/** `nlac train` under torchrun, the launcher that comes with Python's torch. */

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { setTimeout } from "node:timers/promises";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { readRecords } from "../../lib/files/records.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { inDirectory } from "../support/tiny.ts";

const root = join(import.meta.dirname, "../..");
const torchrun = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "nlac/peers/bin/torchrun");
const missing = "torchrun is not there: scripts/peers.sh installs it.";

const command = [process.execPath, "--import", "jiti/register", "lib/cli/main.ts"];
const env = { ...process.env, NLAC_THREADS: "1" };

test("torchrun trains the quickstart on two ranks", async (context) => {
  if (!existsSync(torchrun)) context.skip(missing);
  await inDirectory(async (directory) => {
    const run = join(directory, "run");
    const settings = [
      ...["config.iterations=1", "config.episodesPerIteration=4", "config.updatesPerIteration=2"],
      ...["config.batchSize=4", "config.rehearsal=2", "config.evaluation.episodes=4"],
    ].flatMap((change) => ["--set", change]);
    const launch = ["--standalone", "--nproc-per-node", "2", "--no-python", "--", ...command];
    const { stdout } = await promisify(execFile)(
      torchrun,
      [...launch, "train", "quickstart", ...settings, "--run", run],
      { cwd: root, env },
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

test.skipIf(!existsSync(torchrun)).each([0, 1])(
  "torchrun restarts all ranks when rank %i is killed, and the run ends as one that was not",
  async (victim) => {
    await inDirectory(async (directory) => {
      const settings = [
        ...["config.iterations=2", "config.episodesPerIteration=4", "config.updatesPerIteration=6"],
        ...["config.batchSize=4", "config.rehearsal=2", "run.checkpointSeconds=0", "learner.sharding=2"],
      ].flatMap((change) => ["--set", change]);
      const launch = async (name: string, kill: boolean) => {
        const run = join(directory, name);
        const ranks = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2", "--no-python", "--"];
        const args = [...ranks, ...command, "train", "errands", ...settings, "--run", run];
        const child = spawn(torchrun, args, { cwd: root, env, stdio: ["ignore", "pipe", "pipe"] });
        const output = Promise.all([text(child.stdout), text(child.stderr)]);
        const closed = once(child, "close");
        if (kill) {
          const latest = join(run, "latest");
          while (child.exitCode === null && !(existsSync(latest) && Number(readFileSync(latest)) >= 3))
            await setTimeout(50);
          const pid = processOfRank(child.pid!, victim);
          expect(pid).toBeDefined();
          process.kill(pid!, "SIGKILL");
        }
        const [[code], [stdout, stderr]] = [await closed, await output];
        expect({ code, restarted: stderr.includes("resuming") }).toEqual({ code: 0, restarted: kill });
        expect(stdout).toContain("8 episodes");
        expect(stdout).toContain("12 updates");
        return run;
      };
      const [whole, restarted] = [await launch("whole", false), await launch("restarted", true)];
      for (const file of ["trajectories.jsonl", "samples.jsonl"])
        expect(readFileSync(join(restarted, file)).equals(readFileSync(join(whole, file)))).toBe(true);
      const weights = (run: string) => {
        const latest = readFileSync(join(run, "latest"), "utf8").trim();
        return readFileSync(join(run, "checkpoints", latest, "learner/model.safetensors"));
      };
      expect(weights(restarted).equals(weights(whole))).toBe(true);
    });
  },
  600_000,
);

/** The process with RANK=`rank` below `parent`. */
function processOfRank(parent: number, rank: number): number | undefined {
  for (const name of readdirSync("/proc").filter((entry) => /^\d+$/.test(entry))) {
    try {
      const parents = Number(/^PPid:\s*(\d+)/m.exec(readFileSync(`/proc/${name}/status`, "utf8"))![1]);
      const variables = readFileSync(`/proc/${name}/environ`, "utf8").split("\0");
      if (parents === parent && variables.includes(`RANK=${rank}`)) return Number(name);
    } catch {
      // It has ended, or belongs to another user.
    }
  }
  return undefined;
}
