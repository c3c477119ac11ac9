import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Progress, silentProgress } from "../../lib/display/progress.ts";
import { readRecords } from "../../lib/files/records.ts";
import { loadRecipe, resumeRun, trainOrResume, trainRecipe } from "../../lib/index.ts";
import { parseRecipe, type Recipe } from "../../lib/recipe/recipe.ts";
import { requireSameRecipe } from "../../lib/recipe/train-recipe.ts";
import { learnerDirectory, newestCheckpoint } from "../../lib/run/checkpoints.ts";
import { writeDescription } from "../../lib/run/description.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { readStatus } from "../../lib/run/status.ts";
import { verifyRun } from "../../lib/run/verify.ts";
import { nlac } from "../support/command-line.ts";
import { lockOf } from "../support/locks.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-train-recipe-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const changes = ["warmup.steps=3", "warmup.batchSize=8", "warmup.episodes=2"];
const parametersOf = (run: string) => readFileSync(join(learnerDirectory(run), "model.safetensors"));
/** The metrics that do not depend on the clock. */
const metricsOf = (run: string) =>
  [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))].map(({ step, values }) => [
    step,
    Object.entries(values).filter(([name]) => !/seconds|PerSecond|^time/.test(name)),
  ]);

test("a recipe runs from TypeScript as it does from the command line", async () => {
  const [here, there] = [join(root, "here"), join(root, "there")];
  const lines: string[] = [];
  const recipe = await loadRecipe("errands-base", changes);
  const result = await trainRecipe(recipe, { directory: here, log: (line) => lines.push(line) });
  expect(lines.at(-1)).toBe(`run directory: ${here}`);
  expect(recipe.learner.dtype).toBe((await loadRecipe("errands-base")).learner.dtype); // not changed

  const set = changes.flatMap((change) => ["--set", change]);
  const trained = await nlac("train", "errands-base", "--run", there, "--json", ...set);
  expect(JSON.parse(trained.output)).toEqual({ ...result, run: there });
  expect(metricsOf(there)).toEqual(metricsOf(here));
  expect(parametersOf(there).equals(parametersOf(here))).toBe(true);

  const { run, stopped, updates } = await resumeRun(here);
  expect({ run, stopped, updates }).toEqual({ run: here, stopped: false, updates: result.updates });
});

const sha256 = (bytes: Buffer) => createHash("sha256").update(bytes).digest("hex");

/** Calls `then` after every step of a warm-up, with the number of steps over all models. */
function afterWarmUpSteps(then: (step: number) => void): Progress {
  let steps = 0;
  // A call without tokens shows the steps before a resume.
  return { ...silentProgress, advance: (_, tokens = 0) => tokens > 0 && then(++steps) };
}

describe.each([
  ["errands-base", ["learner"], [0, 2]],
  ["hope/errands", ["learner", "reward-model"], [3, 4]],
])("the warm-up of %s", (name, models, stops) => {
  let recipe: Recipe;
  const weightsOf = (run: string) =>
    models.map((model) => sha256(readFileSync(join(newestCheckpoint(run), model, "model.safetensors"))));
  const whole = join(root, `${name}-whole`);
  beforeAll(async () => {
    recipe = await loadRecipe(name, [...changes, "config.iterations=0", "config.evaluation.every=0"]);
    await trainRecipe(recipe, { directory: whole });
  });

  test.each(stops)("continues bit for bit if it is stopped after %i steps", async (steps) => {
    const directory = join(root, `${name}-stopped-${steps}`);
    const controller = new AbortController();
    const { signal } = controller;
    const progress = afterWarmUpSteps((step) => step === steps && controller.abort());
    if (steps === 0) controller.abort();
    const stopped = await trainRecipe(recipe, { directory, signal, progress });
    expect(stopped).toMatchObject({ stopped: true, updates: 0, episodes: 0 });
    expect(readStatus(directory)).toMatchObject({ state: "stopped", phase: "warm-up" });
    for await (const { faults } of verifyRun(directory)) expect(faults).toEqual([]);
    expect(weightsOf(directory)).not.toEqual(weightsOf(whole));
    await resumeRun(directory);
    expect(weightsOf(directory)).toEqual(weightsOf(whole));
  });

  test("continues bit for bit from a checkpoint that was saved during it, if it is killed", async () => {
    const directory = join(root, `${name}-running`);
    const killed = join(root, `${name}-killed`);
    const saving = { ...recipe, run: { ...recipe.run, checkpointSeconds: 0 } };
    const progress = afterWarmUpSteps((step) => {
      if (step === 3) cpSync(directory, killed, { recursive: true });
    });
    await trainRecipe(saving, { directory, progress });
    writeFileSync(join(killed, "lock"), lockOf(process.ppid, { ended: true }));
    let steps = 0;
    const options = { directory: killed, progress: afterWarmUpSteps(() => steps++) };
    const { stopped } = await trainOrResume(saving, options);
    // Two of the steps were saved.
    expect({ stopped, steps }).toEqual({ stopped: false, steps: 3 * models.length - 2 });
    expect(weightsOf(killed)).toEqual(weightsOf(whole));
  });
});

test("a file named stop in the run stops it with a checkpoint, and it can be continued", async () => {
  const directory = join(root, "stop-file");
  const recipe = await loadRecipe("errands", [
    ...["config.iterations=1", "config.episodesPerIteration=2", "config.updatesPerIteration=100000"],
    ...["config.batchSize=1", "config.rehearsal=0", "run.checkpointSeconds=3600"],
  ]);
  let updates = 0;
  for (const rest of [true, false]) {
    const lines: string[] = [];
    const options = { directory, log: (line: string) => void lines.push(line) };
    const training = rest ? trainRecipe(recipe, options) : resumeRun(directory, options);
    const rows = () => (existsSync(join(directory, "metrics.jsonl")) ? metricsOf(directory).length : 0);
    const before = rows();
    while (rows() < before + 3) await new Promise((resolve) => setTimeout(resolve, 50));
    writeFileSync(join(directory, "stop"), "");
    const result = await training;
    expect(result.stopped).toBe(true);
    expect(result.updates).toBeGreaterThan(updates);
    updates = result.updates;
    expect(lines.at(-1)).toContain("stop was found: stopping at the next safe point");
    expect(existsSync(join(directory, "stop"))).toBe(false);
  }
});

test("the same recipe continues a run also if it has an API key, which the run does not record", async () => {
  const directory = join(root, "with-key");
  const file = join(root, "with-key.js");
  const errands = JSON.stringify(resolve("lib/environments/errands/index.ts"));
  writeFileSync(
    file,
    `import { errands } from ${errands};
     export default ({ apiKey, ask, ...options }) => {
       if (apiKey !== "secret" || ask() !== "asked") throw new Error("no key");
       return errands(options);
     };`,
  );
  const environment = { name: file, options: { apiKey: "secret", ask: () => "asked" } };
  const recipe = { ...(await loadRecipe("errands-base", changes)), environment };
  const { updates } = await trainOrResume(recipe, { directory });
  expect(readFileSync(join(directory, "run.json"), "utf8")).not.toContain("secret");
  expect(await trainOrResume(recipe, { directory })).toMatchObject({ updates });
  const other = { name: file, options: { ...environment.options, seed: 1 } };
  await expect(trainOrResume({ ...recipe, environment: other }, { directory })).rejects.toMatchObject({
    ...{ code: "ERR_RUN", message: expect.stringContaining("environment") },
  });
});

test("a training whose environment cannot be closed keeps its result", async () => {
  const directory = join(root, "not-closed");
  const file = join(root, "not-closed.js");
  const errands = JSON.stringify(resolve("lib/environments/errands/index.ts"));
  writeFileSync(
    file,
    `import { errands } from ${errands};
     export default { ...errands(), close: async () => { throw new Error("the socket is closed"); } };`,
  );
  const recipe = { ...(await loadRecipe("errands-base", changes)), environment: { name: file } };
  const lines: string[] = [];
  const result = await trainRecipe(recipe, { directory, log: (line) => lines.push(line) });
  expect(result).toMatchObject({ run: directory, stopped: false });
  expect(lines.at(-1)).toBe("errands: closing failed: the socket is closed");
});

test("an environment that never answers costs the episode, with the recipe's timeout also in nlac eval", async () => {
  const directory = join(root, "hanging");
  const file = join(root, "hanging.js");
  const errands = JSON.stringify(resolve("lib/environments/errands/index.ts"));
  writeFileSync(
    file,
    `import { errands } from ${errands};
     const never = () => new Promise(() => {});
     export default () => {
       const environment = errands();
       let starts = 0;
       const start = async (...given) => {
         const number = ++starts % 4;
         if (number === 1) return never();
         const episode = await environment.start(...given);
         return number === 2 ? { ...episode, step: never, close: never } : episode;
       };
       return { ...environment, start };
     };`,
  );
  const recipe = await loadRecipe("errands", [
    ...["config.iterations=1", "config.episodesPerIteration=4", "config.updatesPerIteration=1"],
    ...[
      "config.batchSize=1",
      "config.rehearsal=0",
      "config.evaluation.every=1",
      "config.evaluation.episodes=4",
    ],
    ...[`environment.name=${file}`, "environment.stepTimeout=50"],
  ]);
  const notes: string[] = [];
  const progress: Progress = { ...silentProgress, note: (line) => notes.push(line) };
  expect(await trainRecipe(recipe, { directory, progress })).toMatchObject({ stopped: false, updates: 1 });
  expect(notes).toEqual([
    expect.stringMatching(/ failed with ERR_ENVIRONMENT: The environment gave no answer within 50 ms\.$/),
  ]);
  const rows = [...readRecords<MetricsRow>(join(directory, "metrics.jsonl"))];
  expect(rows.flatMap(({ values }) => values["rollout/faults"] ?? [])).toEqual([2]);

  for (const [more, timeout] of [
    [[], 50],
    [["--step-timeout", "20"], 20],
  ] as const) {
    const { output, errors } = await nlac(
      "eval",
      directory,
      "--episodes",
      "4",
      "--no-floor",
      "--json",
      ...more,
    );
    expect(JSON.parse(output)).toMatchObject({ outcomes: { "environment-fault": 2 } });
    expect(errors).toContain(
      `2 episodes failed, the first with ERR_ENVIRONMENT: The environment gave no answer within ${timeout} ms.`,
    );
  }
});

test("a run that is continued has the API key of its proposer again", async () => {
  const directory = join(root, "proposer-key");
  const proposer = { model: "m", baseURL: "http://localhost:1", apiKey: "secret" };
  const input = { name: "n", algorithm: "hope", model: "m", environment: { name: "errands" } };
  const recipe = parseRecipe({ ...input, config: { proposer } }, "a test");
  mkdirSync(directory);
  writeDescription(directory, { recipe: { ...recipe, learner: { ...recipe.learner, dtype: "float32" } } });
  expect(readFileSync(join(directory, "run.json"), "utf8")).not.toContain("secret");
  const continued = requireSameRecipe(recipe, directory);
  expect(continued).toMatchObject({ config: { proposer }, learner: { dtype: "float32" } });
});

test("an invalid recipe is rejected before anything is written", async () => {
  const directory = join(root, "bad");
  const recipe = { name: "n", model: "m", environment: { name: "errands" }, learner: { cacheBytes: -1 } };
  await expect(trainRecipe(recipe, { directory })).rejects.toMatchObject({
    code: "ERR_CONFIG",
    message: expect.stringContaining("learner.cacheBytes"),
  });
  // A file that is not there is named by its whole path, which depends on the working directory.
  const recorded = {
    ...{ name: "n", model: "errands-base", environment: { name: "recorded" } },
    config: { recorded: ["none.jsonl"], episodesPerIteration: 0, iterations: 1 },
  };
  await expect(trainRecipe(recorded, { directory })).rejects.toMatchObject({
    code: "ERR_IO",
    message: expect.stringContaining(join(process.cwd(), "none.jsonl")),
  });
  expect(existsSync(directory)).toBe(false);
});
