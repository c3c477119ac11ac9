import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { makeEnvironment } from "../../lib/environments/registry.ts";
import { applyChange, loadRecipe, parseRecipe } from "../../lib/recipe/recipe.ts";

test.each(["smollm2", "smollm2-rft", "smollm2-grpo", "twenty-questions"])(
  "the shipped recipe %s validates, and its environment opens",
  async (name) => {
    const recipe = await loadRecipe(name);
    expect(recipe.name).toBe(name);
    const environment = await makeEnvironment(recipe.environment.name, recipe.environment.options);
    expect((await environment.tasks("train")).length).toBeGreaterThan(100);
    // The recipe in run.json must be the same when it is read.
    expect(parseRecipe(JSON.parse(JSON.stringify(recipe)), "run.json")).toEqual(recipe);
  },
);

test.each([
  "quickstart",
  "errands-base",
  "errands",
  "errands-monte-carlo",
  "errands-rft",
  "errands-hindsight",
  "errands-grpo",
  "errands-critique-grpo",
  "errands-ppo",
  "errands-archer",
])("the shipped recipe %s validates and survives run.json", async (name) => {
  const recipe = await loadRecipe(name);
  const environment = await makeEnvironment(recipe.environment.name, recipe.environment.options);
  expect(await environment.tasks("train")).toHaveLength(8);
  expect(parseRecipe(JSON.parse(JSON.stringify(recipe)), "run.json")).toEqual(recipe);
});

test("a model to make needs both of its parts", async () => {
  await expect(loadRecipe("errands-base", ["model.tokenizer=5"])).rejects.toThrow(/model/);
  await expect(loadRecipe("errands-base", ['model={"config": {}}'])).rejects.toThrow(/model/);
});

test("--set changes fields; a value that is not JSON is text", async () => {
  const recipe = await loadRecipe("quickstart", [
    "config.batchSize=2",
    'config.support={"topK": 8}',
    "learner.dtype=float32",
    'learner.adapter={"rank": 8, "alpha": 16}',
    "environment.options.turns=3",
  ]);
  expect(recipe.config).toMatchObject({ batchSize: 2, support: { topK: 8 } });
  expect(recipe.learner).toMatchObject({ dtype: "float32", adapter: { rank: 8, alpha: 16 } });
  expect(recipe.environment.options).toEqual({ turns: 3 });
});

test.each([
  [["config.tau=1"], "tau"],
  [["config.batchSize=0"], "batchSize"],
  [["learner.dtype=float8"], "dtype"],
  [["learner.int8Generation=yes"], "int8Generation"],
  [["learner.sharding=4"], 'sharding must be "none", 1, 2 or 3'],
  [["learner.int8Generation=true", "learner.device=cuda"], "int8Generation"],
  [['learner.adapter={"rank": 0, "alpha": 1}'], "rank"],
  [['learner.adapter={"rank": 1, "alpha": 0}'], "alpha"],
  [['learner.adapter={"rank": 1, "alpha": 1, "targets": ["lm_head"]}'], "targets"],
  [["batchSize"], "FIELD=VALUE"],
  [["__proto__.polluted=1"], "FIELD=VALUE"],
])("a bad change is an error that names it: %j", async (changes, named) => {
  await expect(loadRecipe("quickstart", changes)).rejects.toThrow(
    expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(named) }),
  );
  expect(({} as Record<string, unknown>).polluted).toBeUndefined();
});

test("an unknown recipe's error lists the known ones", async () => {
  await expect(loadRecipe("./nonsense.ts")).rejects.toThrow(/There is no file \/.*\/nonsense\.ts\./);
  await expect(loadRecipe("nonsense.mts")).rejects.toThrow(/There is no file \/.*\/nonsense\.mts\./);
  await expect(loadRecipe("nonsense")).rejects.toThrow(
    /errands, errands-archer, errands-base, errands-critique-grpo, errands-grpo, errands-hindsight, errands-monte-carlo, errands-ppo, errands-rft, errands-sac, .*quickstart, .*smollm2, smollm2-grpo, smollm2-rft, twenty-questions/,
  );
});

describe("the algorithm", () => {
  const recipe = (algorithm: string | undefined, config: object) =>
    parseRecipe({ name: "mine", model: "m", environment: { name: "errands" }, algorithm, config }, "mine.ts");

  test("is NLAC by default, and determines the fields of the configuration", () => {
    expect(recipe(undefined, {})).toMatchObject({ algorithm: "nlac", config: { targetRate: 0.005 } });
    expect(recipe("rft", {})).toMatchObject({ algorithm: "rft", config: { balance: "actions" } });
    expect(recipe("grpo", { groupSize: 8 })).toMatchObject({ algorithm: "grpo", config: { groupSize: 8 } });
    expect(recipe("critique-grpo", {})).toMatchObject({ config: { shaping: 0.1 } });
    expect(recipe("archer", {})).toMatchObject({ config: { discount: 0.95 } });
    expect(recipe("ppo", {})).toMatchObject({ algorithm: "ppo", config: { lambda: 1 } });
  });

  test.each([
    [undefined, { groupSize: 4 }, ["algorithm nlac", "groupSize"]],
    ["rft", { targetRate: 0.1 }, ["algorithm rft", "targetRate"]],
    ["grpo", { lambda: 1 }, ["algorithm grpo", "lambda"]],
    [
      "grpo",
      { episodesPerIteration: 10 },
      ["algorithm grpo", "episodesPerIteration", "multiple of groupSize"],
    ],
    ["ppo", { groupSize: 4 }, ["algorithm ppo", "groupSize"]],
    ["reinforce", {}, ["algorithm reinforce", "nlac, rft, grpo, ppo"]],
  ])("%s with %j is an error that says what was expected", (algorithm, config, named) => {
    for (const words of named) {
      expect(() => recipe(algorithm, config)).toThrow(
        expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(words) }),
      );
    }
  });
});

test("a user's recipe imports this package", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "nlac-recipe-")), "mine.ts");
  writeFileSync(
    path,
    `import { defineRecipe } from "nlac";
     export default defineRecipe({ name: "mine", model: "m", environment: { name: "math" }, config: { batchSize: 3 as number } });`,
  );
  expect((await loadRecipe(path)).config).toMatchObject({ batchSize: 3, targetRate: 0.005 });
});

test("changes make the objects they need", () => {
  const target: Record<string, unknown> = {};
  applyChange(target, "a.b.c=x=y");
  expect(target).toEqual({ a: { b: { c: "x=y" } } });
});

test.each([
  ["a syntax error", "mine.ts", "export default {\n  name: ,\n};", "mine.ts:2:"],
  ["JSON that is cut off", "mine.json", '{"name": "mine",', ""],
  ["an exception", "mine.ts", 'throw new Error("no such luck\\nsecond line")', "no such luck"],
  ["a thrown value", "mine.ts", 'throw "no such luck"', "no such luck"],
  ["an import of nothing", "mine.ts", 'import "./nothing.ts";', "nothing.ts"],
  ["a value that is not plain", "mine.ts", "export default { name: () => 1 };", "it contains functions"],
  ["no object", "mine.ts", "export default 5;", "must export a recipe"],
  ["no default export", "mine.ts", 'export const recipe = { name: "r" };', "has no default export. It must"],
  [
    "no default export in JavaScript",
    "mine.mjs",
    "export const f = () => 5;",
    "has no default export. It must",
  ],
  ["an empty file", "mine.ts", "", "has no default export. It must"],
  ["fields that do not fit", "mine.ts", "export default { name: 5 };", "model"],
])("%s is an error that names the file", async (_, name, text, reason) => {
  const path = join(mkdtempSync(join(tmpdir(), "nlac-recipe-")), name);
  writeFileSync(path, text);
  const error = await loadRecipe(path, ["config.seed=1"]).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: "ERR_CONFIG" });
  const { message } = error as Error;
  expect(message).toContain(path);
  expect(message).toContain(reason);
  if (!message.includes("is not valid")) expect(message).not.toContain("\n");
});

test("a misspelt field is an error that names the field that was meant", async () => {
  const refused = (...changes: string[]) => expect(loadRecipe("quickstart", changes)).rejects;
  await refused("config.iteratoins=3").toThrow(
    /Unrecognized key: "iteratoins" \(did you mean "config\.iterations"\?\)\n +→ at config$/,
  );
  await refused("wramup.steps=3", "nothingLikeIt=1").toThrow(
    'Unrecognized keys: "wramup" (did you mean "warmup"?), "nothingLikeIt"',
  );
  await refused("environment.nam=x").toThrow('(did you mean "environment.name"?)');
  const file = join(mkdtempSync(join(tmpdir(), "nlac-recipe-")), "mine.json");
  const recipe = { name: "mine", model: "m", environment: { name: "errands" }, algorithm: "grpo" };
  writeFileSync(file, JSON.stringify({ ...recipe, config: { evaluation: { evry: 1 } } }));
  await expect(loadRecipe(file)).rejects.toThrow('"evry" (did you mean "config.evaluation.every"?)');
});

test("a misspelt recipe is an error that names the nearest one", async () => {
  await expect(loadRecipe("quickstrat")).rejects.toThrow(
    'There is no recipe "quickstrat" (did you mean "quickstart"?): give the path of a file, or one of ',
  );
  await expect(loadRecipe("nothing-like-it")).rejects.toThrow('There is no recipe "nothing-like-it": give');
  await expect(loadRecipe("nothing-like-it")).rejects.toThrow(
    / quickstart, .*, hope\/… \(\d+\), paper\/… \(\d+\)\.$/,
  );
  await expect(loadRecipe("paper/none")).rejects.toThrow(/, hope\/… \(\d+\), paper\/qwen2\.5-7b-math, /);
  const file = join(mkdtempSync(join(tmpdir(), "nlac-recipe-")), "mine");
  writeFileSync(`${file}.ts`, "export default {};");
  await expect(loadRecipe(file)).rejects.toThrow(`(did you mean "${file}.ts"?)`);
});
