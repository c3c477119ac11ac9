import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { trainArcher } from "../../lib/algorithms/archer.ts";
import { trainCritiqueGrpo } from "../../lib/algorithms/critique-grpo.ts";
import { trainDpo } from "../../lib/algorithms/dpo.ts";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { trainHope } from "../../lib/algorithms/hope.ts";
import { trainPpo } from "../../lib/algorithms/ppo.ts";
import { trainRft } from "../../lib/algorithms/rft.ts";
import { trainSft } from "../../lib/algorithms/sft.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { readRecords } from "../../lib/files/records.ts";
import { learnerDirectory, rewardModelDirectory } from "../../lib/run/checkpoints.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import type { TrainingResult } from "../../lib/run/training-run.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { LearningJudge, ScriptedPreferences } from "../support/scripted-preferences.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-interrupted-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const limits = { maxActionTokens: 100, maxPromptTokens: 10_000, seed: 3, learningRate: 20 };
// Two rounds: an episode takes one step or two.
const rounds = {
  ...{ iterations: 9, environmentSteps: 17, episodesPerIteration: 8 },
  ...{ evaluation: { every: 2, episodes: 2 }, ...limits },
};

type Method = (
  model: ScriptedPreferences,
  run: RunDirectory,
  rewardModel: LearningJudge,
) => Promise<TrainingResult>;

const methods: Record<string, Method> = {
  hope: (model, run, rewardModel) => {
    const { environmentSteps: _, episodesPerIteration: __, ...shared } = rounds;
    return trainHope({
      model,
      rewardModel,
      environment,
      run,
      config: {
        ...{ ...shared, iterations: 2, episodesPerTask: 4, branchedEpisodes: 1 },
        ...{ branchRange: { turns: [0, 0] }, rewardBatchSize: 4, rewardLearningRate: 1, batchSize: 4 },
        ...{ proposalShare: 0.5, candidates: 3, maxProposalTokens: 2000, maxTokens: 10_000, balanced: false },
        rewardEvaluation: { episodes: 2, bestOf: 2, split: "train" },
      },
    });
  },
  dpo: (model, run) =>
    trainDpo({
      model,
      environment,
      run,
      config: { ...limits, ...recorded, batchSize: 5, evaluation: { every: 2, episodes: 2 } },
    }),
  sft: (model, run) =>
    trainSft({
      model,
      environment,
      run,
      config: { ...limits, ...recorded, batchSize: 5, evaluation: { every: 2, episodes: 2 } },
    }),
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
  "critique-grpo": (model, run) =>
    trainCritiqueGrpo({
      model,
      environment,
      run,
      // The refined episodes are steps too.
      config: {
        ...rounds,
        environmentSteps: 40,
        epochs: 2,
        batchSize: 5,
        klCoefficient: 0.1,
        learningRate: 400,
      },
    }),
  archer: (model, run) => {
    const { learningRate: _, ...shared } = rounds;
    return trainArcher({
      model,
      environment,
      run,
      config: {
        ...{ ...shared, criticUpdatesPerIteration: 4, policyUpdatesPerIteration: 3, criticIterations: 0 },
        ...{ batchSize: 5, criticLearningRate: 1, policyLearningRate: 20, replayCapacity: 19 },
        criticUpdatesPerTarget: 3,
      },
    });
  },
  ppo: (model, run) =>
    trainPpo({ model, environment, run, config: { ...rounds, epochs: 2, batchSize: 5, klCoefficient: 0.1 } }),
};
const environment = errandEnvironment({ turns: 2 });
const recorded = { recorded: [join(root, "recorded", "trajectories.jsonl")], epochs: 3 };

/**
 * The errand's replies. As HOPE's proposer, the policy writes summaries that depend on its weights,
 * and proposals that depend on the summary.
 */
function reply(theta: () => number): ConstructorParameters<typeof ScriptedPreferences>[0] {
  const lucky = luckyReply(() => 1 / (1 + Math.exp(-20 * theta())));
  return (prompt, weights, i, request) => {
    if (prompt.includes("You review what an agent did")) return `It was worth ${theta()}.`;
    const worth = /It was worth (\S+)\./.exec(prompt)?.[1];
    if (worth === undefined) return lucky(prompt, weights, i, request);
    const proposal = {
      teacher_reason: "I know it.",
      action: `a coin of ${worth}`,
      player_reason: "Why not.",
    };
    return JSON.stringify([proposal, { ...proposal, action: `two coins of ${worth}` }]);
  };
}

/** How a training is cut: before its `operation`-th call of the model. */
interface Cut {
  operation: number;
  /** "stop" fires the run's signal; "crash" breaks the training where it is. */
  kind: "stop" | "crash";
}

/**
 * Trains in `path` from where it was left; returns how many operations it took, and whether it came
 * to its end.
 */
async function train(name: string, path: string, cut?: Cut): Promise<{ operations: number; ended: boolean }> {
  // The policy's actions depend on its weights: a wrong weight changes episodes.
  const model: ScriptedPreferences = new ScriptedPreferences(reply(() => model.theta));
  const judge = new LearningJudge();
  const controller = new AbortController();
  const options = {
    signal: controller.signal,
    progress: silentProgress,
    description: {},
    checkpointSeconds: 0,
  };
  const resuming = existsSync(join(path, "latest"));
  if (resuming) model.load(learnerDirectory(path));
  if (resuming && name === "hope") judge.load(rewardModelDirectory(path));
  const run = resuming ? await RunDirectory.resume(path, model, options) : RunDirectory.create(path, options);
  let operations = 0;
  model.before = judge.before = () => {
    if (operations++ !== cut?.operation) return;
    if (cut.kind === "crash") throw new Error("the power is gone");
    controller.abort(new NlacError("ERR_ABORTED", "stopped"));
  };
  try {
    const { stopped } = await methods[name]!(model, run, judge);
    return { operations, ended: !stopped };
  } catch (error) {
    if (!(error as Error).message.includes("power")) throw error;
    return { operations, ended: false };
  } finally {
    run.close();
  }
}

/** The parts of a run that must not depend on interruptions. */
function fingerprint(name: string, path: string): Record<string, unknown> {
  const text = (file: string) => readFileSync(file, "utf8");
  const metrics = [...readRecords<MetricsRow>(join(path, "metrics.jsonl"))].map(({ step, values }) => ({
    step,
    values: Object.fromEntries(Object.entries(values).filter(([key]) => !key.startsWith("time/"))),
  }));
  return {
    metrics,
    trajectories: text(join(path, "trajectories.jsonl")),
    evaluations: text(join(path, "evaluations.jsonl")),
    samples: text(join(path, "samples.jsonl")),
    draws: text(join(path, "draws.jsonl")),
    probes: text(join(path, "probes.jsonl")),
    policy: text(join(learnerDirectory(path), "policy.json")),
    ...(name === "hope" && { judge: text(join(rewardModelDirectory(path), "judge.json")) }),
  };
}

beforeAll(async () => {
  expect((await train("grpo", join(root, "recorded"))).ended).toBe(true);
});

describe.each(Object.keys(methods))("%s", (name) => {
  test("cut at points spread over it, by a stop or a crash, it ends as an uncut run, bit for bit", async () => {
    const whole = join(root, `${name}-whole`);
    const { operations, ended } = await train(name, whole);
    expect(ended).toBe(true);
    const expected = fingerprint(name, whole) as { metrics: MetricsRow[]; policy: string };
    expect(expected.metrics.length).toBeGreaterThan(6);
    const played = expected.metrics.filter(({ values }) => "episodes" in values);
    expect(played).toHaveLength(["dpo", "sft"].includes(name) ? 0 : 2);
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
      expect(fingerprint(name, path)).toEqual(expected);
    }
  }, 600_000);
});
