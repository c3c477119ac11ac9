import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { nlacConfig } from "../../lib/algorithms/nlac.ts";
import { rftConfig } from "../../lib/algorithms/rft.ts";
import { sacConfig } from "../../lib/algorithms/sac.ts";
import type { MathProblem } from "../../lib/environments/math/index.ts";
import { makeEnvironment } from "../../lib/environments/registry.ts";
import { loadRecipe, recipeNames } from "../../lib/recipe/recipe.ts";
import { dataFile } from "../environments/data.ts";
import { nlac } from "../support/command-line.ts";
import { inDirectory } from "../support/tiny.ts";

const recipesOf = (task: string) =>
  recipeNames().filter((name) => name.startsWith("paper/") && name.includes(`-${task}`));

const before = process.env.NLAC_DATA;
afterEach(() => {
  if (before === undefined) delete process.env.NLAC_DATA;
  else process.env.NLAC_DATA = before;
});

async function splitsOf(name: string) {
  const { environment } = await loadRecipe(name);
  const opened = await makeEnvironment(environment.name, environment.options);
  try {
    const [train, test] = await Promise.all([opened.tasks("train"), opened.tasks("test")]);
    return { train: train as MathProblem[], test: test as MathProblem[] };
  } finally {
    await opened.close();
  }
}

describe("the paper's recipes for MATH", () => {
  const names = recipesOf("math");

  test("are ten: two models, five methods", () => {
    expect(names).toHaveLength(10);
  });

  // Section 6.1: "a subset of 500 problems from the test dataset of the highest difficulty level".
  test.each(names)("%s tests on 500 problems of the highest level", async (name) => {
    await inDirectory(async (directory) => {
      // MATH in small: more of the hardest than are tested on, easier ones in both splits, and
      // level 5 in MATH's own train split.
      const line = (id: string, level: number) =>
        JSON.stringify({ unique_id: id, problem: id, answer: "1", level });
      const easy = Array.from({ length: 40 }, (_, i) => line(`test/algebra/${i}.json`, 1 + (i % 4)));
      const hard = Array.from({ length: 530 }, (_, i) => line(`test/geometry/${i}.json`, 5));
      const own = Array.from({ length: 30 }, (_, i) => line(`train/algebra/${i}.json`, 5));
      const folder = join(directory, "math");
      mkdirSync(folder);
      writeFileSync(join(folder, "test500.jsonl"), [...easy, ...hard.slice(0, 100)].join("\n"));
      writeFileSync(join(folder, "train12000.jsonl"), [...own, ...hard.slice(100)].join("\n"));
      process.env.NLAC_DATA = directory;
      const { train, test } = await splitsOf(name);
      expect(test).toHaveLength(500);
      for (const { id, level } of test) expect([level, id.split("/")[0]]).toEqual([5, "test"]);
      const tested = new Set(test.map(({ id }) => id));
      expect(train).toHaveLength(100); // all others
      expect(train.filter(({ id }) => tested.has(id))).toEqual([]);
    });
  });

  const real = dataFile("math/train12000.jsonl");
  test.skipIf(real === undefined)("they share one choice of MATH's own, and 12,000 to train on", async () => {
    process.env.NLAC_DATA = join(real!, "../..");
    const all = await Promise.all(names.map(splitsOf));
    const ids = all.map(({ test }) => test.map(({ id }) => id));
    for (const [i, { train, test }] of all.entries()) {
      expect([train.length, test.length]).toEqual([12_000, 500]);
      expect(test.every(({ level }) => level === 5)).toBe(true);
      expect(ids[i]).toEqual(ids[0]);
    }
  });

  test("without MATH they are estimated, and name the missing data instead of playing other problems", async () => {
    delete process.env.NLAC_DATA;
    const { output, code } = await nlac("train", names[0]!, "--dry-run");
    expect(code).toBe(0);
    expect(output.replaceAll(/\s+/g, " ")).toMatch(/cannot be opened here: ERR_CONFIG: .*NLAC_DATA/);
    expect(output).not.toContain("No estimate");
    await expect(splitsOf(names[0]!)).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });
});

// The values in section 6.2 and appendix A.4, which do not give the number of episodes per round.
const given = [
  "iterations",
  "updatesPerIteration",
  "batchSize",
  "maxPromptTokens",
  "maxActionTokens",
  "targetRate",
  "futures",
  "refinements",
  "priorityExponent",
  "criticLearningRate",
  "policyLearningRate",
  "maxCriticTokens",
  "learningRate",
];

test.each([
  ["paper/qwen2.5-7b-twenty-questions", nlacConfig],
  ["paper/qwen2.5-7b-twenty-questions-rft", rftConfig],
  ["paper/qwen2.5-7b-twenty-questions-sac", sacConfig],
])("the defaults are what %s has of the paper's figures", async (name, schema) => {
  const defaults: Record<string, unknown> = schema.parse({});
  const config = (await loadRecipe(name)).config as unknown as Record<string, unknown>;
  const shared = given.filter((field) => field in config);
  expect(shared.length).toBeGreaterThan(5);
  for (const field of shared) expect([field, defaults[field]]).toEqual([field, config[field]]);
  const { iterations, updatesPerIteration, batchSize } = schema.parse({});
  expect(iterations * updatesPerIteration * batchSize).toBe(30_720);
});

test.each(recipeNames().filter((name) => name.startsWith("paper/")))(
  "%s has no term that outweighs the reward of a long episode",
  async (name) => {
    const { algorithm, config } = await loadRecipe(name);
    const settings = config as unknown as Record<string, number>;
    // Summed over the tokens of an episode, in units of reward: 0.01 nats per token of distance from
    // the initial model, or 0.3 of entropy, for 1,000 tokens.
    if (algorithm === "ppo") expect(settings.klCoefficient! * 0.01 * 1000).toBeLessThan(0.5);
    if (algorithm === "sac") expect(settings.temperature! * 0.3 * 1000).toBeLessThan(0.5);
    // Averaged over the tokens.
    if (algorithm === "grpo") expect(settings.klCoefficient).toBeLessThanOrEqual(0.001);
  },
);

test.each(recipesOf("twenty-questions"))("%s does not tell the word at the end", async (name) => {
  const { environment } = await loadRecipe(name);
  expect(environment.options.revealAtEnd).toBe(false);
});
