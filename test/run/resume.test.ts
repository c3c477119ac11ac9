import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import { uniform } from "../../lib/random.ts";
import { type MetricsRow, newestCheckpoint } from "../../lib/run/directory.ts";
import { readRecords } from "../../lib/run/records.ts";

const child = fileURLToPath(new URL("../support/train-child.ts", import.meta.url));
const root = mkdtempSync(join(tmpdir(), "nlac-resume-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

interface Ending {
  code: number | null;
  signal: NodeJS.Signals | null;
  output: string;
  errors: string;
  /** Milliseconds from when the training began to its end. */
  trained: number;
}

/** Runs the child; sends it `signal` so many milliseconds after its training began. */
function train(path: string, stop?: { signal: NodeJS.Signals; after: number }): Promise<Ending> {
  return new Promise((resolve) => {
    const process_ = spawn(process.execPath, ["--import", "jiti/register", child, path], { stdio: "pipe" });
    let output = "";
    let errors = "";
    let began = 0;
    process_.stdout.on("data", (data) => {
      output += String(data);
      if (began !== 0 || !output.includes("ready")) return;
      began = performance.now();
      if (stop !== undefined) setTimeout(() => process_.kill(stop.signal), stop.after);
    });
    process_.stderr.on("data", (data) => {
      errors += String(data);
    });
    process_.on("exit", (code, signal) =>
      resolve({ code, signal, output, errors, trained: performance.now() - began }),
    );
  });
}

/** Everything that must not depend on interruptions: records, metrics without times, and every checkpointed byte. */
function fingerprint(path: string): Record<string, unknown> {
  const checkpoint = newestCheckpoint(path);
  const hashes: Record<string, string> = {};
  for (const directory of [path, checkpoint, join(checkpoint, "learner")]) {
    for (const file of readdirSync(directory)) {
      if (!/^(trajectories|samples)\.jsonl$|\.safetensors$|^sampler\.bin$|^replay\.json$/.test(file))
        continue;
      hashes[file] = createHash("sha256")
        .update(readFileSync(join(directory, file)))
        .digest("hex");
    }
  }
  const metrics = [...readRecords<MetricsRow>(join(path, "metrics.jsonl"))].map(({ step, values }) => ({
    step,
    values: Object.fromEntries(
      Object.entries(values).filter(([name]) => !name.startsWith("time/") && name !== "tokens/cached"),
    ),
  }));
  return { hashes, metrics };
}

test("a run cut at ten random points, by SIGKILL and by SIGTERM, ends as an uncut one, bit for bit", {
  timeout: 600_000,
}, async () => {
  const whole = join(root, "whole");
  const uncut = await train(whole);
  expect(uncut.errors).toBe("");
  expect(uncut.code).toBe(0);
  const expected = fingerprint(whole);
  const { hashes, metrics } = expected as { hashes: Record<string, string>; metrics: MetricsRow[] };
  expect(Object.keys(hashes).length).toBeGreaterThan(4);
  expect(metrics).toHaveLength(13); // 2 rounds of episodes, 8 updates, 3 measurements
  // The comparison means something only if both losses took steps.
  expect(
    metrics.some(({ values }) => (values["refinements/kept"] ?? 0) > 0 && values["loss/l2"] !== undefined),
  ).toBe(true);

  let cuts = 0;
  for (let i = 0; i < 5; i++) {
    const path = join(root, `cut-${i}`);
    let ending: Ending;
    // Two cuts a run, then to its end.
    for (const j of [0, 1]) {
      const signal = (i + j) % 2 === 0 ? "SIGKILL" : "SIGTERM";
      ending = await train(path, {
        signal,
        after: uniform(17, i, j) * uncut.trained * (j === 0 ? 0.9 : 0.5),
      });
      if (ending.signal !== null || ending.output.includes('"stopped":true')) cuts++;
      // Killed before there was anything to resume from: such a run starts anew.
      if (!existsSync(join(path, "latest"))) rmSync(path, { recursive: true, force: true });
    }
    ending = await train(path);
    expect(ending.errors).toBe("");
    expect(ending.code).toBe(0);
    expect(fingerprint(path)).toEqual(expected);
  }
  expect(cuts).toBeGreaterThanOrEqual(8);
});
