import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import { uniform } from "../../lib/base/random.ts";
import { readRecords } from "../../lib/files/records.ts";
import { newestCheckpoint } from "../../lib/run/checkpoints.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";

const child = fileURLToPath(new URL("../support/train-child.ts", import.meta.url));
const root = mkdtempSync(join(tmpdir(), "nlac-resume-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

interface Ending {
  code: number | null;
  signal: NodeJS.Signals | null;
  errors: string;
  /** The result of the training; undefined if it was killed. */
  result?: { stopped: boolean; operations: number };
}

/**
 * Where a training is cut: in the learner's `operation`-th operation, at most `delay` milliseconds
 * after it began.
 */
interface Cut {
  signal: NodeJS.Signals;
  operation: number;
  delay: number;
}

/** Runs the child to its end, or to its cut. */
function train(path: string, cut?: Cut): Promise<Ending> {
  return new Promise((resolve) => {
    const cutting = cut === undefined ? [] : [cut.signal, String(cut.operation), String(cut.delay)];
    const argv = ["--import", "jiti/register", child, path, ...cutting];
    const process_ = spawn(process.execPath, argv, { stdio: "pipe" });
    let output = "";
    let errors = "";
    process_.stdout.on("data", (data) => {
      output += String(data);
    });
    process_.stderr.on("data", (data) => {
      errors += String(data);
    });
    process_.on("close", (code, signal) =>
      resolve({ code, signal, errors, ...(output === "" ? {} : { result: JSON.parse(output) }) }),
    );
  });
}

/**
 * Everything that must not depend on interruptions: records, metrics without times, and every
 * checkpointed byte.
 */
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

  const { operations } = uncut.result!;
  for (let i = 0; i < 5; i++) {
    const path = join(root, `cut-${i}`);
    // Two cuts per run, the second in the first half of the rest; then to its end.
    let left = operations;
    for (const j of [0, 1]) {
      const signal = (i + j) % 2 === 0 ? "SIGKILL" : "SIGTERM";
      const operation = 1 + Math.floor(uniform(17, i, j) * left * (j === 0 ? 0.9 : 0.5));
      left -= operation;
      const ending = await train(path, { signal, operation, delay: 20 * uniform(18, i, j) });
      expect(ending.errors).toBe("");
      if (signal === "SIGKILL") expect(ending.signal).toBe(signal);
      else expect(ending.result).toMatchObject({ stopped: true });
      // Killed before there was anything to resume from: such a run starts anew.
      if (!existsSync(join(path, "latest"))) rmSync(path, { recursive: true, force: true });
    }
    const ending = await train(path);
    expect(ending.errors).toBe("");
    expect(ending.code).toBe(0);
    expect(fingerprint(path)).toEqual(expected);
  }
});
