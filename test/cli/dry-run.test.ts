import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import { type DryRun, renderDryRun } from "../../lib/cli/dry-run.ts";
import { errandsModel } from "../../lib/environments/errands/model.ts";
import { cpu } from "../../lib/estimate/devices.ts";
import { estimate } from "../../lib/estimate/estimate.ts";
import { findShape } from "../../lib/estimate/shape.ts";
import { seconds } from "../../lib/estimate/time.ts";
import { shippedModel } from "../../lib/hub/resolve-model.ts";
import { loadRecipe, parseRecipe, type Recipe, recipeNames } from "../../lib/recipe/recipe.ts";
import { nlac } from "../support/command-line.ts";
import { hubServer } from "../support/hub-server.ts";
import { inDirectory } from "../support/tiny.ts";

const small = cpu("two cores", 2, 25e9);

describe("nlac train --dry-run", () => {
  test.each(recipeNames())("%s", async (name) => {
    const { code, output, errors } = await nlac("train", name, "--dry-run");
    expect(errors).toBe("");
    expect(code).toBe(0);
    for (const line of output.split("\n")) expect(line.length).toBeLessThanOrEqual(100);
    const { model } = await loadRecipe(name);
    const unmade = typeof model === "string" && model.startsWith("runs/") && !existsSync(model);
    expect(/^No estimate: /m.test(output)).toBe(unmade);
  });

  test("every recipe of the paper has the paper's values", async () => {
    const names = recipeNames().filter((name) => name.startsWith("paper/"));
    expect(names).toHaveLength(30); // two models, three tasks, five methods
    for (const name of names) {
      const { name: own, config, model, algorithm } = await loadRecipe(name);
      expect(`paper/${own}`).toBe(name);
      expect(model).toBe(own.startsWith("qwq") ? "Qwen/QwQ-32B" : "Qwen/Qwen2.5-7B-Instruct");
      expect(config).toMatchObject({ iterations: 30, maxPromptTokens: 8192, maxActionTokens: 24_576 });
      if (algorithm === "nlac") {
        const rates = { criticLearningRate: 5e-6, policyLearningRate: 5e-6, targetRate: 0.005 };
        const sizes = { futures: 1, refinements: 1, priorityExponent: 0.1, rehearsal: 0 };
        expect(config).toMatchObject({ ...rates, ...sizes, refinementsKept: "all" });
      } else {
        expect(config).toMatchObject({ learningRate: 5e-6 });
      }
      // docs/decisions/0016: 30,720 samples for all; Algorithm 1 takes a step for each, PPO and
      // GRPO step on verl's mini-batches.
      const batchSize = algorithm === "ppo" || algorithm === "grpo" ? 256 : 1;
      expect(config).toMatchObject({ episodesPerIteration: 1024, batchSize });
      const { work } = estimate(await loadRecipe(name));
      expect(work.iterations * work.updates * batchSize).toBe(30_720);
      expect(work.iterations * work.episodes).toBe(30_720);
    }
  });

  test("--json gives the recipe as it was resolved, and the estimate", async () => {
    const { output } = await nlac(
      "train",
      "quickstart",
      "--dry-run",
      "--json",
      "--set",
      "config.batchSize=8",
    );
    const { recipe, environment, estimate: told } = JSON.parse(output) as DryRun;
    const changed = await loadRecipe("quickstart", ["config.batchSize=8"]);
    expect(recipe).toEqual(JSON.parse(JSON.stringify(changed)));
    expect(environment).toMatchObject({ turns: 6 });
    expect(told).toEqual(JSON.parse(JSON.stringify(estimate(changed, { turns: 6 }))));
  });

  const ofEnvironment = async (environment: object, ...flags: string[]) =>
    inDirectory(async (directory) => {
      const path = join(directory, "mine.json");
      writeFileSync(path, JSON.stringify({ name: "mine", model: "./none", environment }));
      return await nlac("train", path, "--dry-run", ...flags);
    });

  test("reports in one line what this machine lacks", async () => {
    vi.stubEnv("OPENAI_API_KEY", undefined);
    vi.stubEnv("OPENAI_BASE_URL", undefined);
    const service = { user: { model: "gpt-4o" } };
    for (const [environment, lacking] of [
      [{ name: "math", options: { data: "/nowhere/math" } }, "math: there is no /nowhere/math"],
      [{ name: "tauBench", options: service }, "tauBench.user: service: A service needs a key or an address"],
    ] as const) {
      const { code, output, errors } = await ofEnvironment(environment);
      expect([code, errors]).toEqual([0, ""]);
      expect(output.replaceAll(/\s+/g, " ")).toContain(`cannot be opened here: ERR_CONFIG: ${lacking}`);
      expect(output).toMatch(/^No estimate: ERR_MODEL_NOT_FOUND: \.\/none is not a directory/m);
    }
    vi.unstubAllEnvs();
  });

  test("fails for an unknown name of a model, and lists those of the package", async () => {
    const dry = await nlac("train", "quickstart", "--dry-run", "--set", "model=errands-bas");
    expect([dry.code, dry.output]).toEqual([1, ""]);
    expect(dry.errors).toMatch(
      /^nlac: ERR_MODEL_NOT_FOUND: errands-bas is not .+ one of errands-base, SmolLM2/,
    );
  });

  test("estimates a model of the hub without its weights", async () => {
    const config = JSON.parse(readFileSync(join(shippedModel("errands-base")!, "config.json"), "utf8"));
    const files = { "config.json": { data: Buffer.from(JSON.stringify(config)) } };
    const server = await hubServer({ "them/errands": { files } });
    await inDirectory(async (directory) => {
      vi.stubEnv("HF_ENDPOINT", server.url);
      vi.stubEnv("HF_HOME", directory);
      vi.stubEnv("HF_HUB_CACHE", undefined);
      const path = join(directory, "mine.json");
      const mine = { name: "mine", model: "them/errands", environment: { name: "errands" } };
      writeFileSync(path, JSON.stringify(mine));
      const { code, output, errors } = await nlac("train", path, "--dry-run", "--json");
      expect([code, errors]).toEqual([0, ""]);
      const told = JSON.parse(output) as { estimate: { shape: unknown } };
      expect(told.estimate.shape).toEqual(findShape("errands-base"));
      vi.unstubAllEnvs();
    });
    expect(server.requests).toEqual(["GET /them/errands/resolve/main/config.json"]);
  });

  test.each([
    [{ name: "nowhere" }, 'There is no environment "nowhere"'],
    [{ name: "math", options: { colour: "red" } }, "colour"],
    [{ name: "errands", options: { seed: "one" } }, "seed"],
    [{ name: "twentyQuestions", options: { turns: 0 } }, "turns"],
    [{ name: "./nowhere.ts" }, "There is no file"],
  ])("fails for an environment that cannot be opened anywhere: %o", async (environment, named) => {
    for (const flags of [[], ["--json"]]) {
      const { code, output, errors } = await ofEnvironment(environment, ...flags);
      expect([code, output]).toEqual([1, ""]);
      expect(errors).toMatch(/^nlac: ERR_CONFIG: /);
      expect(errors).toContain(named);
    }
  });

  test("prints the time of a warm-up, which is a part of the run's", () => {
    const timed = (steps: number) => {
      const input = { name: "n", model: "SmolLM2-135M-Instruct", environment: { name: "errands" } };
      const recipe = parseRecipe({ ...input, config: { iterations: 2 }, warmup: { steps } }, "a test");
      const told = estimate(recipe, { turns: 5 }, small);
      const text = renderDryRun({ recipe, environment: { trainingTasks: 1, turns: 5 }, estimate: told });
      return { text, ...told.fits[0]!.time };
    };
    const [without, short, long] = [timed(0), timed(10), timed(20)];
    expect(without.text).not.toMatch(/at the limits +warm-up/);
    expect(short.text).toMatch(/at the limits {2}warm-up +update/);
    expect(seconds(without.warmup)).toBe(0);
    expect(seconds(short.warmup)).toBeGreaterThan(0);
    expect(seconds(long.warmup)).toBeCloseTo(2 * seconds(short.warmup), 9);
    for (const { run, iteration, warmup } of [without, short, long])
      expect(seconds(run)).toBeCloseTo(2 * seconds(iteration) + seconds(warmup), 6);
  });

  test("prints memory, devices, remedies and assumptions", () => {
    const recipe = parseRecipe(
      {
        name: "layout",
        model: "Qwen2.5-1.5B-Instruct",
        learner: { device: "cuda" },
        environment: { name: "math" },
        config: {
          iterations: 10,
          updatesPerIteration: 16,
          batchSize: 2048,
          maxActionTokens: 2048,
          maxCriticTokens: 512,
        },
      },
      "a test",
    );
    const text = renderDryRun({
      recipe,
      environment: { trainingTasks: 12_000, turns: 1 },
      estimate: estimate(recipe, { turns: 1 }, small),
    });
    expect(text).toContain("environment  math\n             12,000 training tasks, 1 turn per episode\n");
    // The resolved recipe before it has whatever fields an algorithm has.
    expect(text.slice(text.indexOf("\nmemory "))).toMatchSnapshot();
  });

  test.each([
    ["errands", undefined, undefined],
    ["paper/qwen2.5-7b-math", undefined, "; it is downloaded from the hub unless it is in the cache"],
    ["paper/qwen2.5-7b-math", "Qwen2.5-7B-Instruct", "; no directory of this name exists yet"],
  ])("of %s says whether its model must be downloaded", async (name, model, told) => {
    const recipe = { ...(await loadRecipe(name)), ...(model && { model }) };
    const shaped = { ...recipe, model: errandsModel() } as Recipe;
    const text = renderDryRun({
      recipe,
      environment: { trainingTasks: 8, turns: 6 },
      estimate: estimate(shaped, { turns: 6 }, small),
    });
    const [line] = /model .*?learner/.exec(text.replaceAll(/\s+/g, " "))!;
    expect(line.includes(";")).toBe(told !== undefined);
    expect(line).toContain(told ?? "");
  });
});
