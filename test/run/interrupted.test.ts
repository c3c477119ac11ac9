import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { trainPpo } from "../../lib/algorithms/ppo.ts";
import { trainRft } from "../../lib/algorithms/rft.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { readRecords } from "../../lib/files/records.ts";
import { learnerDirectory } from "../../lib/run/checkpoints.ts";
import { type MetricsRow, RunDirectory } from "../../lib/run/directory.ts";
import type { TrainingResult } from "../../lib/run/training-run.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-interrupted-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const limits = { maxActionTokens: 100, maxPromptTokens: 10_000, seed: 3, learningRate: 20 };
// Two rounds: an episode takes one step or two.
const rounds = {
  ...{ iterations: 9, environmentSteps: 17, episodesPerIteration: 8 },
  ...{ evaluation: { every: 2, episodes: 2 }, ...limits },
};

const methods: Record<string, (model: ScriptedPolicy, run: RunDirectory) => Promise<TrainingResult>> = {
  rft: (model, run) =>
    trainRft({
      model,
      environment,
      run,
      config: { ...rounds, updatesPerIteration: 3, batchSize: 6, capacity: 9 },
    }),
  grpo: (model, run) =>
    trainGrpo({
      model,
      environment,
      run,
      config: { ...rounds, epochs: 2, batchSize: 5, klCoefficient: 0.1 },
    }),
  ppo: (model, run) =>
    trainPpo({ model, environment, run, config: { ...rounds, epochs: 2, batchSize: 5, klCoefficient: 0.1 } }),
};
const environment = errandEnvironment({ turns: 2 });

/** How a training is cut: before its `operation`-th call of the model. */
interface Cut {
  operation: number;
  /** "stop" fires the run's signal; "crash" breaks the training where it is. */
  kind: "stop" | "crash";
}

/** Trains in `path` from where it was left; returns how many operations it took, and whether it came to its end. */
async function train(name: string, path: string, cut?: Cut): Promise<{ operations: number; ended: boolean }> {
  // What the policy does depends on what it has learned: a wrong weight changes episodes.
  const model: ScriptedPolicy = new ScriptedPolicy(luckyReply(() => 1 / (1 + Math.exp(-20 * model.theta))));
  const controller = new AbortController();
  const options = {
    signal: controller.signal,
    progress: silentProgress,
    description: {},
    checkpointSeconds: 0,
  };
  const resuming = existsSync(join(path, "latest"));
  if (resuming) model.load(learnerDirectory(path));
  const run = resuming ? await RunDirectory.resume(path, model, options) : RunDirectory.create(path, options);
  let operations = 0;
  model.before = () => {
    if (operations++ !== cut?.operation) return;
    if (cut.kind === "crash") throw new Error("the power is gone");
    controller.abort(new NlacError("ERR_ABORTED", "stopped"));
  };
  try {
    const { stopped } = await methods[name]!(model, run);
    return { operations, ended: !stopped };
  } catch (error) {
    if (!(error as Error).message.includes("power")) throw error;
    return { operations, ended: false };
  } finally {
    run.close();
  }
}

/** All that must not depend on interruptions. */
function fingerprint(path: string): Record<string, unknown> {
  const text = (file: string) => readFileSync(file, "utf8");
  const metrics = [...readRecords<MetricsRow>(join(path, "metrics.jsonl"))].map(({ step, values }) => ({
    step,
    values: Object.fromEntries(Object.entries(values).filter(([key]) => !key.startsWith("time/"))),
  }));
  return {
    metrics,
    trajectories: text(join(path, "trajectories.jsonl")),
    samples: text(join(path, "samples.jsonl")),
    policy: text(join(learnerDirectory(path), "policy.json")),
  };
}

describe.each(Object.keys(methods))("%s", (name) => {
  test("cut at points spread over it, by a stop or a crash, it ends as an uncut run, bit for bit", async () => {
    const whole = join(root, `${name}-whole`);
    const { operations, ended } = await train(name, whole);
    expect(ended).toBe(true);
    const expected = fingerprint(whole) as { metrics: MetricsRow[]; policy: string };
    expect(expected.metrics.length).toBeGreaterThan(6);
    expect(expected.metrics.filter(({ values }) => "episodes" in values)).toHaveLength(2);
    expect(JSON.parse(expected.policy).theta).not.toBe(0);

    const cuts = 8;
    for (let i = 0; i < cuts; i++) {
      const path = join(root, `${name}-${i}`);
      const operation = Math.floor((i * operations) / cuts);
      const kind = i % 2 === 0 ? "stop" : "crash";
      // Cut twice: there, and three operations after it went on.
      await train(name, path, { operation, kind });
      if (existsSync(join(path, "latest"))) await train(name, path, { operation: 3, kind });
      else rmSync(path, { recursive: true, force: true });
      expect((await train(name, path)).ended).toBe(true);
      expect(fingerprint(path)).toEqual(expected);
    }
  }, 600_000);
});
