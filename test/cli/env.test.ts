import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative, resolve } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { openEnvironment } from "../../lib/environments/registry.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import { nlac } from "../support/command-line.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-env-"));
const example = resolve("examples/room-desk.ts");
const exitCode = process.exitCode;

beforeAll(() => {
  // As a user's project has it: zod is found from where the file lies.
  mkdirSync(join(root, "node_modules"));
});
afterEach(() => {
  process.exitCode = exitCode;
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

function written(name: string, text: string): string {
  const path = join(root, name);
  writeFileSync(path, text);
  return path;
}

/** A desk whose only tool does what `handler` says. */
const desk = (handler: string, more = "") => `
  import { NlacError } from "nlac";
  import { defineEnvironment, tool, ToolError } from "nlac/environments";
  export default (options) => defineEnvironment({
    name: "desk",
    tasks: { train: ["a"], test: ["b"] },
    taskId: (task) => task,
    start: () => ({}),
    prompt: (task) => task,
    tools: [tool({
      name: "do",
      description: "Does.",
      parameters: { type: "object", properties: { what: { enum: ["this", "that"] } }, required: ["what"] },
      handler: ${handler},
    })],
    score: () => 1,
    maxTurns: 3,
    ${more}
  });`;

describe("nlac env check", () => {
  it("accepts the example and the package's environments", async () => {
    for (const name of [example, "errands"]) {
      const { code, output } = await nlac("env", "check", name);
      expect([code, output]).toEqual([0, expect.stringMatching(/: no violations of the contract\.\n$/)]);
    }
    const { output } = await nlac(
      "env",
      "check",
      "twentyQuestions",
      "--options",
      '{"turns": 4}',
      "--tasks",
      "1",
      "--json",
    );
    expect(JSON.parse(output)).toEqual({ environment: "twentyQuestions", problems: [] });
  });

  it.each([
    [
      "a tool that breaks",
      desk('() => { throw new Error("no such record"); }'),
      /the tool "do" failed: no such record/,
    ],
    ["a tool that hangs", desk("() => new Promise(() => {})"), /no answer within 200 ms/],
    ["chance that is not the seed's", desk("() => Math.random()"), /the same seed gives another answer/],
    ["a score out of range", desk('() => "Done."', "score: () => 2,"), /number from 0 to 1; it returned 2/],
    [
      "tasks that cannot be listed",
      desk('() => ""', 'tasks: { train: () => { throw new Error("x"); }, test: [] },'),
      /tasks cannot be listed/,
    ],
  ])("reports %s, and exits with 1", async (name, text, problem) => {
    const path = written(`${name.replaceAll(/\W/g, "-")}.mjs`, text);
    const { code, output } = await nlac("env", "check", path, "--timeout", "200");
    expect(output).toMatch(problem);
    expect(
      output
        .trim()
        .split("\n")
        .every((line) => line.startsWith("desk: ")),
    ).toBe(true);
    expect(code).toBe(1);
  });

  it("reports an error that nothing catches", () => {
    const path = written(
      "stray.mjs",
      desk('() => { void Promise.reject(new Error("no log")); return "Done."; }'),
    );
    const program = ["--import", "jiti/register", "lib/cli/main.ts", "env", "check", path];
    const { stdout, status } = spawnSync(process.execPath, program, { encoding: "utf8" });
    expect(stdout).toMatch(/^desk: an error that nothing caught, .+: no log\n$/);
    expect(status).toBe(1);
  }, 60_000);

  it.each([
    ["there is none", "missing.ts", undefined, /There is no file/],
    ["it does not load", "broken.ts", "export default {", /cannot be loaded/],
    [
      "it fails",
      "boom.ts",
      'export default () => { throw new Error("boom"); };',
      /boom\.ts: .* failed: boom/,
    ],
    ["it exports something else", "else.ts", "export default { name: 3 };", /must export an environment/],
    [
      "it takes no options",
      "plain.mjs",
      desk("() => 1").replace("(options) => ", ""),
      /which takes no options/,
    ],
  ])("of a file says that %s", async (_, name, text, message) => {
    const path = text === undefined ? join(root, name) : written(name, text);
    const { code, errors } = await nlac("env", "check", path, "--options", '{"a": 1}');
    expect([code, errors]).toEqual([1, expect.stringMatching(message)]);
  });
});

it("errors of an environment file have the package's class, so that service errors are recognised", async () => {
  const path = written("service.mjs", desk('() => { throw new NlacError("ERR_SERVICE", "down"); }'));
  const environment = await openEnvironment(path);
  const episode = await environment.start("a", { seed: 0 });
  const tool = { name: "do", arguments: { what: "this" } };
  const error = await episode.step({ text: JSON.stringify(tool), tool }).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(NlacError);
  expect(error).toMatchObject({ code: "ERR_SERVICE" });
});

describe("a recipe with a user's environment", () => {
  it("takes a path relative to the recipe, or with --set to the working directory", async () => {
    const path = written("mine.mjs", desk("() => 1"));
    const recipe = written(
      "recipe.ts",
      'export default { name: "mine", model: "m", environment: { name: "./mine.mjs" } };',
    );
    expect((await loadRecipe(recipe)).environment.name).toBe(path);
    const set = `environment.name=${relative(process.cwd(), example)}`;
    expect((await loadRecipe(recipe, [set])).environment.name).toBe(example);
  });

  it("trains, resumes, evaluates and plays", async () => {
    const model = join(root, "model");
    const learner = await tinyLearner({}, { ...tinyConfig, max_position_embeddings: 8192 });
    await learner.exportHuggingFace(model);
    await learner.dispose();
    const run = join(root, "run");
    const fields = {
      model,
      "learner.dtype": "float32",
      "warmup.steps": 2,
      "warmup.batchSize": 4,
      "warmup.episodes": 2,
      "config.iterations": 1,
      "config.episodesPerIteration": 2,
      "config.updatesPerIteration": 2,
      "config.batchSize": 2,
      "config.maxPromptTokens": 6000,
      "config.maxActionTokens": 8,
      "config.maxCriticTokens": 8,
    };
    const set = Object.entries(fields).flatMap(([field, value]) => [
      "--set",
      `${field}=${JSON.stringify(value)}`,
    ]);
    const trained = await nlac("train", "examples/room-desk.recipe.ts", "--run", run, "--json", ...set);
    expect(trained.errors).not.toContain("ERR_");
    expect(JSON.parse(trained.output)).toMatchObject({ updates: 2, episodes: 2, stopped: false });
    expect(JSON.parse(readFileSync(join(run, "run.json"), "utf8"))).toMatchObject({
      recipe: { environment: { name: example } },
    });
    const resumed = await nlac("train", "--resume", "--run", run, "--json");
    expect(JSON.parse(resumed.output)).toMatchObject({ updates: 2 });
    const file = relative(process.cwd(), example);
    const measured = await nlac(
      "eval",
      run,
      "--environment",
      file,
      "--episodes",
      "2",
      "--max-action-tokens",
      "4",
      "--json",
    );
    expect(JSON.parse(measured.output)).toMatchObject({ episodes: 2 });
    const played = await nlac("play", run, "--task", "Monday-3", "--max-action-tokens", "4");
    expect(played.output).toContain("We are 3 and need a room on Monday.");
  });
});
