import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { readFigures } from "../../lib/compare/run-figures.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { figuresOf } from "../../lib/episodes/figures.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import { describeBuild } from "../../lib/run/build.ts";
import { learnerDirectory } from "../../lib/run/checkpoints.ts";
import { readDescription } from "../../lib/run/description.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { nlac } from "../support/command-line.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-algorithms-"));
const base = join(root, "base");
afterAll(() => rmSync(root, { recursive: true, force: true }));

const set = (fields: Record<string, unknown>) =>
  Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .flatMap(([field, value]) => ["--set", `${field}=${JSON.stringify(value)}`]);

const warmup = { "warmup.steps": 3, "warmup.batchSize": 8, "warmup.episodes": 2 };

beforeAll(async () => {
  const made = await nlac("train", "errands-base", "--run", base, "--json", ...set(warmup));
  expect(made.errors).not.toContain("ERR_");
});

const rounds = { model: base, ...warmup, "config.iterations": 1, "config.episodesPerIteration": 4 };

describe.each([
  // In so few episodes nothing succeeds: let everything that can be read count as success.
  [
    "rft",
    {
      ...{ model: "errands-base", "config.successReward": 0 },
      ...{ "config.updatesPerIteration": 2, "config.batchSize": 3 },
    },
    "loss/nll",
  ],
  ["grpo", { "config.epochs": 2, "config.batchSize": 4, "config.klCoefficient": 0.1 }, "loss/policy"],
  ["ppo", { "config.epochs": 2, "config.batchSize": 4, "config.klCoefficient": 0.1 }, "loss/policy"],
  ["sac", { "config.updatesPerIteration": 2, "config.batchSize": 3 }, "loss/q"],
  ["critique-grpo", { "config.epochs": 1, "config.batchSize": 3 }, "loss/policy"],
  [
    "archer",
    {
      ...{ "config.criticUpdatesPerIteration": 1, "config.policyUpdatesPerIteration": 1 },
      ...{ "config.criticIterations": 0, "config.batchSize": 3 },
    },
    "loss/critic",
  ],
])("a run of %s", (name, fields, loss) => {
  const run = join(root, name);

  test("trains, resumes, views, evaluates and plays", async () => {
    const trained = await nlac(
      "train",
      `errands-${name}`,
      "--run",
      run,
      "--json",
      ...set({ ...rounds, ...fields }),
    );
    expect(trained.errors).not.toContain("ERR_");
    const result = JSON.parse(trained.output);
    expect(result).toMatchObject({ updates: 2, episodes: 4, stopped: false });
    // Methods without θ̄ do not hold it, with or without a warm-up.
    expect(existsSync(join(learnerDirectory(run), "target.safetensors"))).toBe(name === "sac");

    const resumed = await nlac("train", "--resume", "--run", run, "--json");
    expect(JSON.parse(resumed.output)).toEqual(result);
    const again = await nlac("train", "--resume", "--run", run);
    const found = `4 episodes, ${result.environmentSteps} environment steps, 2 updates.`;
    expect(again.output).toContain(`Nothing was left to train: the run had finished.\n${found}\n`);
    expect(again.output).toContain(
      `Train on:  npx nlac train RECIPE --set model=${run} --set warmup.steps=0`,
    );

    const viewed = await nlac("view", run, "--samples", "1");
    expect(viewed.output).toContain(`errands-${name}:`);
    expect(viewed.output).toContain(loss);
    expect(viewed.output).toMatch(/── update 2, episode \d/);
    expect(viewed.output).toContain("▸ state");

    const record = join(root, `${name}.jsonl`);
    const measured = await nlac("eval", run, "--episodes", "2", "--json", "--record", record);
    expect(JSON.parse(measured.output)).toMatchObject({ environment: "errands", episodes: 2 });
    const critic = await nlac("eval", run, "--critic", record);
    expect(critic.errors).toContain(
      `ERR_VALUE: --critic needs a run that trained a critic; this is a run of ${name}.`,
    );

    const played = await nlac("play", run);
    expect(played.output).toMatch(/^1\. /m);
  });
});

describe.each([
  ["nlac", "errands", { "config.updatesPerIteration": 2, "config.batchSize": 3, "config.rehearsal": 2 }],
  [
    "rft",
    "errands-rft",
    {
      "config.successReward": 0,
      "config.updatesPerIteration": 2,
      "config.batchSize": 3,
      model: "errands-base",
    },
  ],
  ["grpo", "errands-grpo", { "config.batchSize": 4 }],
  ["ppo", "errands-ppo", { "config.batchSize": 4 }],
  ["sac", "errands-sac", { "config.updatesPerIteration": 2, "config.batchSize": 3 }],
  ["critique-grpo", "errands-critique-grpo", { "config.batchSize": 3 }],
  [
    "archer",
    "errands-archer",
    {
      ...{ "config.criticUpdatesPerIteration": 2, "config.policyUpdatesPerIteration": 1 },
      ...{ "config.criticIterations": 0, "config.batchSize": 3 },
    },
  ],
  [
    "hope",
    "hope/errands",
    {
      ...{
        "config.episodesPerIteration": undefined,
        "config.episodesPerTask": 2,
        "config.branchedEpisodes": 1,
      },
      ...{ "config.rewardBatchSize": 16, "config.batchSize": 16, "config.proposalShare": 0.5 },
    },
  ],
] as [string, string, Record<string, unknown>][])("a run of %s", (name, recipe, fields) => {
  const run = join(root, `${name}-costs`);

  test("records its token counts, and the build that trained it", async () => {
    const trained = await nlac("train", recipe, "--run", run, "--json", ...set({ ...rounds, ...fields }));
    expect(trained.errors).not.toContain("ERR_");
    const rows = [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))].map(({ values }) => values);
    // What the policy wrote in the episodes, counted from their conversations.
    const episodes = [...readRecords<EpisodeRecord>(join(run, "trajectories.jsonl"))];
    const played = episodes.filter(({ branch }) => branch === undefined);
    const written = played.reduce((sum, episode) => sum + figuresOf(episode).tokens, 0);
    expect(written).toBeGreaterThan(0);
    expect(rows.flatMap((values) => values["rollout/tokens"] ?? [])).toEqual([written]);
    // Every update says how many tokens had a gradient: the sum of those of its losses.
    const updates = rows.filter((values) => "tokens/gradient" in values);
    expect(updates.length).toBeGreaterThan(0);
    expect(updates.length).toBe(
      rows.filter((values) => Object.keys(values).some((key) => key.startsWith("loss/"))).length,
    );
    const losses = [
      "tokens/l1",
      "tokens/l2",
      "tokens/rehearsal",
      "tokens/nll",
      "tokens/policy",
      "tokens/actions",
      "tokens/values",
      "tokens/preference",
    ];
    for (const values of updates) {
      const sum = losses.reduce((total, key) => total + (values[key] ?? 0), 0);
      expect(values["tokens/gradient"]).toBe(sum);
      expect(sum).toBeGreaterThan(0);
    }
    const figures = readFigures(run, 1000);
    const generated = rows.reduce((sum, values) => sum + (values["tokens/generated"] ?? 0), 0);
    expect(figures.generatedTokens).toBe(written + generated);
    expect(generated > 0).toBe(["nlac", "critique-grpo", "archer", "hope"].includes(name));
    // In a branch only the turns after its own action are generated: the environment proposes it.
    const branched = rows.find((values) => "branches/played" in values)?.["tokens/generated"] ?? 0;
    const followed = episodes
      .filter(({ branch }) => branch !== undefined)
      .map(
        (episode) => figuresOf({ ...episode, turns: episode.turns.slice(episode.branch!.turn + 1) }).tokens,
      )
      .reduce((sum, tokens) => sum + tokens, 0);
    expect(branched).toBe(followed);
    expect(followed > 0).toBe(name === "hope");

    const build = describeBuild("cpu");
    expect(build.core).toMatch(/^[\da-f]{12}$/);
    expect(readDescription(run).builds).toEqual([build]);
    await nlac("train", "--resume", "--run", run, "--json");
    expect(readDescription(run).builds).toEqual([build]);
  });
});

test("view shows samples that are whole episodes", async () => {
  const path = join(root, "episodes");
  const { signal } = new AbortController();
  const run = RunDirectory.create(path, { signal, progress: silentProgress, description: {} });
  await trainGrpo({
    model: new ScriptedPolicy(luckyReply(() => 0.5)),
    environment: errandEnvironment({ turns: 2 }),
    run,
    config: { iterations: 1, episodesPerIteration: 4, maxActionTokens: 100, maxPromptTokens: 10_000 },
  });
  run.close();
  const { output } = await nlac("view", path, "--samples", "1");
  expect(output).toMatch(/── update 1, episode \d: reward [01], advantage /);
  expect(output).toMatch(/▸ episode\n {4}Thought:/);
  expect(output).toContain("frac_reward_zero_std");
});
