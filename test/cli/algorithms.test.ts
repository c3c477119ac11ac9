import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { learnerDirectory, RunDirectory } from "../../lib/run/directory.ts";
import { silentProgress } from "../../lib/run/training-run.ts";
import { nlac } from "../support/command-line.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-algorithms-"));
const base = join(root, "base");
afterAll(() => rmSync(root, { recursive: true, force: true }));

const set = (fields: Record<string, unknown>) =>
  Object.entries(fields).flatMap(([field, value]) => ["--set", `${field}=${JSON.stringify(value)}`]);

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
])("a run of %s", (name, fields, loss) => {
  const run = join(root, name);

  test("is trained, resumed, shown, measured and played", async () => {
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
    // What nothing is learned from is not held, warm-up or not.
    expect(existsSync(join(learnerDirectory(run), "target.safetensors"))).toBe(name === "sac");

    const resumed = await nlac("train", "--resume", "--run", run, "--json");
    expect(JSON.parse(resumed.output)).toEqual(result);

    const viewed = await nlac("view", run, "--samples", "1");
    expect(viewed.output).toContain(`errands-${name}:`);
    expect(viewed.output).toContain(loss);
    expect(viewed.output).toMatch(/── update 1, episode \d/);
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
  expect(output).toMatch(/── update 0, episode \d: reward [01], advantage /);
  expect(output).toMatch(/▸ episode\n {4}Thought:/);
  expect(output).toContain("frac_reward_zero_std");
});
