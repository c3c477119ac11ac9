import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readRecords } from "../../lib/files/records.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { learnerDirectory, rewardModelDirectory } from "../../lib/run/checkpoints.ts";
import { readDescription, writeDescription } from "../../lib/run/description.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { mean } from "../../lib/statistics/mean.ts";
import { nlac } from "../support/command-line.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-hope-"));
const run = join(root, "hope");
afterAll(() => rmSync(root, { recursive: true, force: true }));

const set = (fields: Record<string, unknown>) =>
  Object.entries(fields).flatMap(([field, value]) => ["--set", `${field}=${JSON.stringify(value)}`]);
const sha256 = (path: string) => createHash("sha256").update(readFileSync(path)).digest("hex");
const rows = (path: string) =>
  [...readRecords<MetricsRow>(join(path, "metrics.jsonl"))].map(({ values }) => values);

const small = {
  ...{ "config.iterations": 2, "config.episodesPerTask": 2, "config.branchedEpisodes": 1 },
  ...{ "config.rewardBatchSize": 16, "config.batchSize": 16, "config.actorStates": 32 },
  // Every pair counts: a reward model of a few updates hardly distinguishes actions.
  ...{ "config.minGap": 0, "config.rewardHeldOut": 0.1 },
  "config.rewardEvaluation": { every: 2, episodes: 2, bestOf: 3 },
  ...{ "config.keepBest": true, "config.evaluation": { every: 1, episodes: 8, temperature: 1 } },
};

beforeAll(async () => {
  const trained = await nlac("train", "hope/errands", "--run", run, "--json", ...set(small));
  expect(trained.errors).not.toContain("ERR_");
  expect(JSON.parse(trained.output)).toMatchObject({ episodes: 32, stopped: false });
});

test("a run of hope trains both models, and its branches take what the proposer wrote", () => {
  const all = rows(run);
  const branched = all.filter((values) => "branches/played" in values);
  expect(branched).toHaveLength(2);
  for (const values of branched) {
    expect(values["branches/played"]).toBeGreaterThan(8);
    expect(values["proposals/leaked"]).toBe(0);
  }
  const losses = all.flatMap((values) =>
    typeof values["loss/reward"] === "number" ? [values["loss/reward"]] : [],
  );
  expect(losses[0]).toBeCloseTo(Math.log(2), 3); // the head starts at zero: Q is 0.5
  const first = all.find((values) => typeof values["loss/preference"] === "number")!;
  expect(first["loss/preference"]).toBeCloseTo(Math.log(2), 3); // the policy is its own reference
  expect(all.some((values) => "best_of/success" in values)).toBe(true);
  const measured = all.filter((values) => "held_out/brier" in values);
  expect(measured).toHaveLength(2 * 3); // iterations and epochs
  for (const values of measured) {
    expect(values["held_out/brier"]).toBeGreaterThan(0);
    expect(values["held_out/brier"]).toBeLessThan(1);
  }
  for (const file of ["model.safetensors", "checksums.json"])
    expect(existsSync(join(rewardModelDirectory(run), file))).toBe(true);
});

test("it verifies and views", async () => {
  expect((await nlac("verify", run)).code).toBe(0);
  expect((await nlac("view", run)).output).toContain("loss/reward");
});

test("a run that is stopped while it trains the reward model resumes to the same models", async () => {
  const stopped = join(root, "stopped");
  const metrics = join(stopped, "metrics.jsonl");
  // The signal comes once, as soon as the reward model has taken a step.
  const watch = setInterval(() => {
    if (!existsSync(metrics) || !readFileSync(metrics, "utf8").includes("loss/reward")) return;
    clearInterval(watch);
    process.emit("SIGTERM", "SIGTERM");
  }, 1);
  const first = await nlac("train", "hope/errands", "--run", stopped, "--json", ...set(small));
  clearInterval(watch);
  expect(JSON.parse(first.output)).toMatchObject({ stopped: true });
  const resumed = await nlac("train", "--resume", "--run", stopped, "--json");
  expect(resumed.errors).not.toContain("ERR_");
  expect(JSON.parse(resumed.output)).toMatchObject({ episodes: 32, stopped: false });
  for (const of of [learnerDirectory, rewardModelDirectory])
    expect(sha256(join(of(stopped), "model.safetensors"))).toBe(sha256(join(of(run), "model.safetensors")));
});

test("the policy of another run acts as proposer", async () => {
  const own = join(root, "oracle");
  const { output, errors } = await nlac(
    ...["train", "hope/errands", "--run", own, "--json"],
    ...set({
      ...{ ...small, "config.iterations": 1, "config.hindsight": false, "config.proposerTemperature": 1 },
      ...{ "config.rewardEvaluation": { episodes: 0 }, "config.keepBest": false },
      "config.proposer": { local: learnerDirectory(run), dtype: "float32" },
    }),
  );
  expect(errors).not.toContain("ERR_");
  expect(JSON.parse(output)).toMatchObject({ stopped: false });
  const [branched] = rows(own).filter((values) => "branches/played" in values);
  expect(branched!["proposals/kept"]).toBeGreaterThan(8);
  expect(branched!["branches/played"]).toBe(branched!["proposals/kept"]);
});

test("label prints a value of every action, and its scaled label", async () => {
  const { output, errors } = await nlac("label", run);
  expect(errors).toBe("");
  const lines = output
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(lines.length).toBeGreaterThan(50);
  for (const { value, label, count, state, action } of lines) {
    expect(label).toBe(value); // the reward range is [0, 1]
    expect(count).toBeGreaterThanOrEqual(1);
    expect(state).toContain("A new errand");
    expect(action).toContain("Action:");
  }
  expect(lines.some(({ branched }) => branched)).toBe(true);
});

test("label discounts returns as the run's method does, also of other methods than hope", async () => {
  const other = join(root, "discounted");
  cpSync(run, other, { recursive: true });
  const { recipe, ...description } = readDescription(other) as { recipe: object };
  writeDescription(other, {
    ...description,
    recipe: { ...recipe, algorithm: "grpo", config: { credit: "turn", discount: 0.5 } },
  });
  const valuesOf = async (...flags: string[]) => {
    const { output, errors } = await nlac("label", other, ...flags);
    expect(errors).toBe("");
    return output
      .trim()
      .split("\n")
      .map((line) => (JSON.parse(line) as { value: number }).value);
  };
  const values = await valuesOf();
  expect(values).toEqual(await valuesOf("--discount", "0.5"));
  expect(mean(values)).toBeLessThan(mean(await valuesOf("--discount", "1")));
});

test("eval lets the reward model choose, and says what that needs", async () => {
  const play = ["--episodes", "2", "--no-floor", "--json"];
  const best = await nlac(
    "eval",
    run,
    ...play,
    "--reward-model",
    run,
    "--best-of",
    "3",
    "--temperature",
    "1",
  );
  expect(best.errors).not.toContain("ERR_");
  expect(JSON.parse(best.output)).toMatchObject({ environment: "errands", episodes: 2 });
  expect((await nlac("eval", run, ...play, "--best-of", "3")).errors).toContain("ERR_VALUE");
  // Greedy actions are all the same: there would be nothing to choose from.
  const greedy = await nlac("eval", run, ...play, "--reward-model", run, "--best-of", "3");
  expect(greedy.errors).toMatch(/ERR_VALUE: .*--temperature/);
});

test("export --reward-model writes the run's reward model as a sequence classifier", async () => {
  const out = join(root, "classifier");
  const { code, errors } = await nlac("export", "--reward-model", run, out);
  expect([code, errors]).toEqual([0, ""]);
  const config = JSON.parse(readFileSync(join(out, "config.json"), "utf8"));
  expect(config).toMatchObject({ architectures: ["LlamaForSequenceClassification"], num_labels: 1 });
  // Its head is the reward model's, which was trained; the policy has none.
  const judge = await Learner.resume(rewardModelDirectory(run), { dtype: "float32" });
  await judge.exportRewardModel(join(root, "expected"));
  await judge.dispose();
  const weights = (directory: string) => sha256(join(directory, "model.safetensors"));
  expect(weights(out)).toBe(weights(join(root, "expected")));
});

test("dpo learns from its recorded episodes, whose branches are pairs of actions", async () => {
  const own = join(root, "dpo");
  const recorded = [join(run, "trajectories.jsonl")];
  const { output, errors } = await nlac(
    ...["train", "dpo", "--run", own, "--json"],
    ...set({ "config.recorded": recorded, "config.batchSize": 16, "config.epochs": 3 }),
  );
  expect(errors).not.toContain("ERR_");
  expect(JSON.parse(output).updates).toBeGreaterThanOrEqual(3);
  const losses = rows(own).flatMap((values) =>
    typeof values["loss/preference"] === "number" ? [values["loss/preference"]] : [],
  );
  expect(losses[0]).toBeCloseTo(Math.log(2), 3);
  expect(losses.at(-1)).toBeLessThan(losses[0]!);
  const missing = await nlac("eval", own, "--episodes", "2", "--temperature", "1", "--reward-model", own);
  expect(missing.errors).toContain("ERR_RUN");
});

test("sft learns from scripted episodes", async () => {
  const own = join(root, "sft");
  const { output, errors } = await nlac(
    ...["train", "errands-sft", "--run", own, "--json"],
    ...set({ "config.demonstrationsPerTask": 1, "config.epochs": 6, "config.learningRate": 1e-3 }),
  );
  expect(errors).not.toContain("ERR_");
  expect(JSON.parse(output).updates).toBeGreaterThan(3);
  const losses = rows(own).flatMap((values) =>
    typeof values["loss/nll"] === "number" ? [values["loss/nll"]] : [],
  );
  const epoch = losses.length / 6;
  expect(mean(losses.slice(-epoch))).toBeLessThan(mean(losses.slice(0, epoch)));
  expect(readFileSync(join(own, "run.json"), "utf8")).toContain('"sft"');
});
