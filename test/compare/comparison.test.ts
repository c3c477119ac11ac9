import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { loadComparison, parseComparison, planRuns, stepsOf } from "../../lib/compare/comparison.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import { comparisonOf } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";

test.each(["errands", "dead-ends", "quickstart"])(
  "the shipped comparison %s is one that can be run",
  async (name) => {
    const comparison = await loadComparison(name);
    const runs = await planRuns(comparison);
    expect(runs).toHaveLength(comparison.methods.length * comparison.seeds.length);
    for (const { resolved, seed } of runs) {
      expect(resolved.config).toMatchObject({ seed, environmentSteps: comparison.environmentSteps });
      expect(resolved.config.evaluation.every).toBeGreaterThan(0);
    }
  },
);

describe("a comparison file", () => {
  const given = {
    name: "mine",
    environmentSteps: 100,
    seeds: [0],
    methods: [{ name: "nlac", recipe: "errands" }],
  };

  test("defaults are filled in, and the reference is the first method", () => {
    expect(parseComparison(given, "mine.ts")).toEqual({
      ...given,
      description: "",
      seedFields: [],
      notes: [],
      paired: false,
      set: {},
      methods: [{ name: "nlac", recipe: "errands", set: {} }],
      reference: "nlac",
    });
  });

  const [method] = given.methods;
  test.each([
    ["an unknown key", { seed: 1 }, /Unrecognized key: "seed"/],
    ["an unknown key of a method", { methods: [{ ...method, seeds: [1] }] }, /Unrecognized key: "seeds"/],
    ["no methods", { methods: [] }, /methods/],
    ["a method twice", { methods: [method, method] }, /A method is listed twice/],
    ["a seed twice", { seeds: [1, 1] }, /A seed is listed twice/],
    ["no steps", { environmentSteps: 0 }, /environmentSteps/],
    ["a name that is no directory's", { methods: [{ ...method, name: "../nlac" }] }, /methods\[0\]\.name/],
    [
      "a group of some methods only",
      { methods: [method, { ...method, name: "other", group: "silent" }] },
      /Some methods have a group, others have none/,
    ],
    ["a group that is no file's name", { methods: [{ ...method, group: "a/b" }] }, /methods\[0\]\.group/],
    ["a reference that is not there", { reference: "sac" }, /not one of the methods\.\n.+reference/],
  ])("%s is refused", (_, change, message) => {
    const parse = () => parseComparison({ ...given, ...change }, "mine.ts");
    expect(parse).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
    expect(parse).toThrow(message);
    expect(parse).toThrow(/mine\.ts/);
  });

  test("its recipes' files are looked for beside it, and --set changes its fields", () =>
    inDirectory(async (directory) => {
      const path = join(directory, "mine.ts");
      const methods = [method, { name: "own", recipe: "./own.ts" }];
      writeFileSync(
        path,
        `import { defineComparison } from "nlac/compare";
export default defineComparison(${JSON.stringify({ ...given, methods })});`,
      );
      const loaded = await loadComparison(path, [
        "seeds=[3,4]",
        "set.config.batchSize=4",
        "methods.0.name=first",
      ]);
      expect(loaded).toMatchObject({
        seeds: [3, 4],
        set: { config: { batchSize: 4 } },
        reference: "first",
        methods: [{ recipe: "errands" }, { recipe: join(directory, "own.ts") }],
      });
    }));

  test("the package's own is found by its name", async () => {
    const { name, methods, seeds } = await loadComparison("errands");
    const rivals = [
      "monte-carlo",
      "hindsight",
      "rft",
      "grpo",
      "grpo-turn",
      "critique-grpo",
      "ppo",
      "archer",
      "sac",
      "hope",
    ];
    expect([name, methods.map(({ name }) => name), seeds.length]).toEqual([
      "errands",
      ["nlac", ...rivals],
      5,
    ]);
  });

  test.each(["errands", "dead-ends"])("%s says what NLAC gets beside the reward", async (name) => {
    const { notes, seeds, methods } = await loadComparison(name);
    const { rehearsal, seed } = (await loadRecipe("errands")).config as { rehearsal: number; seed: number };
    expect(notes.join(" ")).toContain(`rehearses ${rehearsal} labelled samples`);
    expect(notes.join(" ")).toContain("All runs share one world");
    // One world: no run's seed reaches the environment, and all begin from one base.
    const runs = await planRuns(await loadComparison(name));
    expect(runs).toHaveLength(seeds.length * methods.length);
    expect(new Set(runs.map(({ resolved }) => JSON.stringify(resolved.environment))).size).toBe(1);
    expect(new Set(runs.map(({ resolved }) => JSON.stringify(resolved.model))).size).toBe(1);
    expect(seed).toBe(0);
  });

  test.each(["errands", "dead-ends", "hope", "causal-controls", "feedback"])(
    "%s says that NLAC reads the replies and rehearses labelled samples",
    async (name) => {
      const notes = (await loadComparison(name)).notes.join(" ");
      expect(notes).toMatch(/Beyond the reward, NLAC('s targets)? reads? the desk's replies/);
      expect(notes).toMatch(/rehearses? 8 labelled samples/);
    },
  );

  test("an unknown name is answered with the known ones", async () => {
    await expect(loadComparison("sorting")).rejects.toThrow(
      expect.objectContaining({
        code: "ERR_CONFIG",
        message: expect.stringMatching(
          /one of ablations, causal-controls, dead-ends, errands, errands-tuning, feedback, held-out, hope, quickstart, rehearsal\.$/,
        ),
      }),
    );
  });
});

describe("the plan of runs", () => {
  test("a seed of every method before the next seed, with the changes in order", async () => {
    const runs = await planRuns(
      comparisonOf({
        seeds: [7, 8],
        set: { config: { batchSize: 4, iterations: 3 } },
        methods: [
          { name: "nlac", recipe: "errands" },
          { name: "wide", recipe: "errands", set: { config: { batchSize: 6 }, model: "elsewhere" } },
        ],
      }),
    );
    expect(runs.map(({ method, seed }) => `${method} ${seed}`)).toEqual([
      ...["nlac 7", "wide 7", "nlac 8", "wide 8"],
    ]);
    expect(runs[3]!.changes.slice(0, 5)).toEqual([
      ...["config.batchSize=4", "config.iterations=3", "config.batchSize=6", 'model="elsewhere"'],
      "config.seed=8",
    ]);
    expect(runs[3]!.resolved).toMatchObject({ model: "elsewhere", config: { batchSize: 6, seed: 8 } });
    expect(runs[0]!.resolved.config).toMatchObject({ batchSize: 4, iterations: 3, seed: 7 });
  });

  test("a bad change is found before anything is trained, and so are different environments", async () => {
    const bad = comparisonOf({ set: { config: { batchsize: 4 } } });
    await expect(planRuns(bad)).rejects.toThrow(/batchsize/);
    const methods = ["errands", "twenty-questions"].map((recipe) => ({ name: recipe, recipe }));
    await expect(planRuns(comparisonOf({ methods }))).rejects.toThrow(
      /errands and twenty-questions are trained on different environments/,
    );
    const meant = { name: "silent", recipe: "errands", set: { environment: { options: { explained: 0 } } } };
    const runs = await planRuns(comparisonOf({ methods: [methods[0]!, meant] }));
    expect(runs[1]!.resolved.environment.options).toEqual({ explained: 0 });
  });

  test("a seed may determine the world too, and a method may have its own steps", async () => {
    const comparison = comparisonOf({
      ...{ environmentSteps: 100, seeds: [7, 8], seedFields: ["environment.options.seed"] },
      methods: [
        { name: "nlac", recipe: "errands" },
        { name: "long", recipe: "errands", environmentSteps: 900 },
      ],
    });
    const runs = await planRuns(comparison);
    expect(runs.map(({ resolved }) => resolved.environment.options)).toEqual(
      [7, 7, 8, 8].map((seed) => ({ seed })),
    );
    expect(runs.map(({ resolved }) => resolved.config)).toMatchObject(
      [100, 900, 100, 900].map((environmentSteps) => ({ environmentSteps })),
    );
    expect(stepsOf(comparison, "long")).toBe(900);
  });
});
